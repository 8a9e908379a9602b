"""Which weights `stages=[serve]` gives to the server that it starts."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from tbexp.config.compose import opened, plain
from tbexp.config.folders import conf_folder
from tbexp.config.schema import Config
from tbexp.errors import UserError
from tbexp.pipeline.serving import joins_systems, weights_of
from tbexp.samples.bases import base_key

with opened(conf_folder()) as compose:
    SHIPPED = plain(compose([]))

ONE_SYSTEM = """{%- for m in messages %}
{%- if m.role == 'system' and not loop.first %}{{ raise_exception('one') }}{% endif -%}
<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor -%}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def config(**groups: dict[str, Any]) -> Config:
    values = copy.deepcopy(SHIPPED)
    for group, changes in groups.items():
        values[group].update(changes)
    return Config.model_validate(values)


def trained(run_dir: Path, *choices: tuple[int, int]) -> None:
    """Trainings of so many steps, each with the step that it chose; `chosen` is the last one's."""
    folder = run_dir / "train"
    for steps, step in choices:
        weights = folder / f"chosen-step-{step}"
        weights.mkdir(parents=True)
        (weights / "config.json").write_text("{}")
        (folder / f"result-{steps}.json").write_text(json.dumps({"chosen_step": step}))
        (folder / "chosen").unlink(missing_ok=True)
        (folder / "chosen").symlink_to(weights.name)


def test_the_trained_weights_of_this_length_are_served_and_else_the_newest(tmp_path: Path) -> None:
    trained(tmp_path, (20, 10), (40, 30))
    for steps, chosen in ((20, 10), (40, 30), (60, 30)):
        weights, name = weights_of(config(training={"steps": steps}), tmp_path)
        assert Path(weights) == (tmp_path / "train" / f"chosen-step-{chosen}").resolve() and name == "tiny-trained"


def test_what_is_named_comes_before_what_was_trained_and_a_models_folder_after_it(tmp_path: Path) -> None:
    folder = {"kind": "folder", "path": "base", "name": "b"}
    assert weights_of(config(model=folder), tmp_path) == ("base", "b")
    trained(tmp_path, (40, 30))
    assert weights_of(config(model=folder), tmp_path)[1] == "b-trained"
    vllm = {**SHIPPED["policy"]["vllm"], "model": "org/mine"}
    assert weights_of(config(policy={"vllm": vllm}, model=folder), tmp_path) == ("org/mine", "mine")
    named = config(policy={"vllm": vllm}, serve={"model": "m"})
    assert weights_of(named, tmp_path) == ("org/mine", "m")


def test_of_a_taught_model_the_taught_weights_are_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "start").mkdir()
    (tmp_path / "start" / "config.json").write_text("{}")
    taught = config(model={"kind": "warmed", "name": "w", "path": str(tmp_path / "start")})
    with pytest.raises(UserError, match="no weights to serve"):
        weights_of(taught, tmp_path / "run")
    place = tmp_path / "outputs" / "stages" / "models" / f"w-{base_key(taught.model)}"
    place.mkdir(parents=True)
    (place / "config.json").write_text("{}")
    assert weights_of(taught, tmp_path / "run") == (str(place), "w")


def test_without_weights_the_ways_out_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as wrong:
        weights_of(config(), tmp_path)
    (problem,) = wrong.value.problems
    assert problem.where == "policy.vllm.model" and "serve.upstream" in problem.fix


@pytest.mark.train
@pytest.mark.parametrize(("template", "joined"), [(None, False), (ONE_SYSTEM, True)])
def test_clients_are_joined_the_system_messages_that_the_policy_was_given_as_one(
    tmp_path: Path, template: str | None, joined: bool
) -> None:
    pytest.importorskip("transformers")
    from tbexp.samples.tiny_words import make_tokenizer

    tokenizer = make_tokenizer()
    if template is not None:
        tokenizer.chat_template = template
    tokenizer.save_pretrained(tmp_path)
    assert joins_systems(config(), str(tmp_path)) is joined


def test_of_a_server_of_others_nothing_is_known_so_they_are_joined() -> None:
    assert joins_systems(config(), "") is joins_systems(config(), "org/name") is True
