from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.train
torch = pytest.importorskip("torch")

from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

from tbexp.config.schema import ModelConfig, TinyModel  # noqa: E402
from tbexp.interpret import Message, Renderer, ToolSpec, read  # noqa: E402
from tbexp.samples import build_base, demonstrations  # noqa: E402
from tbexp.samples.bases import base_key  # noqa: E402
from tbexp.samples.imitation import batch_of, tokens_of  # noqa: E402
from tbexp.samples.imitation_loss import imitation_loss  # noqa: E402
from tbexp.samples.situation import AMOUNTS, CUSTOMERS, INVOICES, MACHINES, RENTALS, TICKETS  # noqa: E402
from tbexp.samples.speech import POLICY, SYSTEM  # noqa: E402
from tbexp.samples.tiny import make_model  # noqa: E402
from tbexp.samples.tiny_words import make_tokenizer  # noqa: E402
from tbexp.samples.tools import TOOLS  # noqa: E402

SMALL = ModelConfig(
    name="tiny", kind="tiny", tiny=TinyModel(hidden=32, intermediate=32, heads=2, kv_heads=1, steps=4, batch=4)
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return make_tokenizer()


@pytest.fixture(scope="module")
def renderer(tokenizer: Any) -> Renderer:
    return Renderer(tokenizer, format="qwen3_xml")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_any_text_is_represented_and_comes_back(renderer: Renderer) -> None:
    @settings(max_examples=300)
    @given(st.text() | st.text(alphabet=" \nRCM0123456789-<>/|_=.?") | st.sampled_from([SYSTEM, POLICY, "<0x41>", "▁"]))
    def holds(text: str) -> None:
        assert renderer.decode(renderer.encode(text)) == text

    holds()


@pytest.mark.parametrize("before", ["", " ", "rental ", "\n", ">\n"])
def test_an_identifier_or_amount_is_the_same_token_wherever_it_stands(renderer: Renderer, before: str) -> None:
    for value in map(str, (*CUSTOMERS, *MACHINES, *RENTALS, *INVOICES, *TICKETS, *AMOUNTS, "AP-1", "TK-1")):
        (alone,) = renderer.encode(value)
        for after in ("", ".", " customer C1", "\n</parameter>\n"):
            assert alone in renderer.encode(before + value + after)


def test_a_prompt_is_short_and_shows_the_policy_and_every_tool(renderer: Renderer) -> None:
    talk = renderer.open([Message("system", SYSTEM), Message("system", POLICY), Message("user", "Hi.")], TOOLS)
    text = renderer.decode(talk.tokens)
    assert len(talk.tokens) < 60
    assert SYSTEM in text and POLICY in text and text.endswith("<|im_start|>assistant\n")
    for tool in TOOLS:
        assert f"\n{tool.name}({next(iter(tool.input_schema['properties']))}" in text


def test_other_prompts_and_tools_are_rendered_too(renderer: Renderer) -> None:
    tool = ToolSpec(
        "fly", "Fly.", {"type": "object", "properties": {"to": {"type": "string"}, "n": {"type": "integer"}}}
    )
    nothing = ToolSpec("rest", "Rest.", {"type": "object", "properties": {}})
    text = renderer.decode(
        renderer.open([Message("system", "Ünïcode"), Message("user", "Hi.")], [tool, nothing]).tokens
    )
    assert "Ünïcode\nfly(to,n:integer)\nrest()<|im_end|>" in text


def test_demonstrations_become_what_an_attempt_would_have_recorded(renderer: Renderer) -> None:
    for shown in itertools.islice(demonstrations(3, 0.5), 60):
        ids, mask = tokens_of(renderer, shown)
        runs = [list(run) for bit, run in itertools.groupby(zip(ids, mask, strict=True), lambda pair: pair[1]) if bit]
        spoken = [m for m in shown.messages if m.role == "assistant"]
        assert len(runs) == len(spoken)
        for run, message in zip(runs, spoken, strict=True):
            text = renderer.decode([token for token, _ in run])
            assert text.endswith("<|im_end|>")
            reading = read(text.removesuffix("<|im_end|>"), format="qwen3_xml", tools=TOOLS)
            assert reading.text == message.content
            assert [(c.name, c.arguments) for c in reading.calls] == [(c.name, c.arguments) for c in message.calls]


def test_the_loss_is_that_of_padded_rows_in_an_ordinary_model(renderer: Renderer, tokenizer: Any) -> None:
    model = make_model(SMALL, tokenizer).double()
    prefix, rows = batch_of(renderer, 0, 0, 6, 0.5)
    assert len(prefix) > 30 and len({len(ids) for ids, _ in rows}) > 1
    loss = imitation_loss(model, prefix, rows)
    loss.backward()
    gradient = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model.set_attn_implementation("sdpa")
    losses = []
    for ids, mask in rows:
        tokens = torch.tensor([[*prefix, *ids]])
        logits = model(tokens).logits[0, :-1]
        chosen = torch.tensor([0] * len(prefix) + list(mask), dtype=torch.bool)[1:]
        losses.append(torch.nn.functional.cross_entropy(logits[chosen], tokens[0, 1:][chosen], reduction="none"))
    plain = torch.cat(losses).mean()
    plain.backward()
    assert loss.item() == pytest.approx(plain.item(), abs=1e-6)  # the norms of transformers compute in float32
    for one, other in zip(gradient, (p.grad for p in model.parameters()), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)


def test_a_build_that_was_killed_goes_on_as_if_it_had_not_been(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tbexp.samples.imitation.CHECKPOINT_EVERY", 2)
    monkeypatch.setattr("tbexp.samples.tiny_words.DEMONSTRATIONS", 50)
    seen: list[int] = []

    def kill(done: int, total: int, figures: Any) -> None:
        seen.append(done)
        if done == 3 and seen.count(3) == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_base(SMALL, tmp_path / "killed", progress=kill)
    assert not (tmp_path / "killed").exists()
    build_base(SMALL, tmp_path / "killed", progress=kill)
    build_base(SMALL, tmp_path / "whole")
    assert seen == [1, 2, 3, 3, 4]
    assert not list(tmp_path.glob("*.work"))
    for file in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (tmp_path / "killed" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
    build_base(SMALL, tmp_path / "whole", progress=lambda *_: pytest.fail("it is there already"))

    text = "Please extend rental R12 by 6 days."
    loaded = AutoTokenizer.from_pretrained(tmp_path / "whole")
    assert loaded.decode(loaded(text)["input_ids"]) == text
    assert loaded.eos_token == "<|im_end|>" and loaded.chat_template
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "whole")
    assert type(model).__name__ == "Qwen3ForCausalLM" and model.dtype == torch.float32


def test_the_default_policy_has_less_than_a_million_parameters(tokenizer: Any) -> None:
    assert make_model(ModelConfig(name="tiny", kind="tiny"), tokenizer).num_parameters() < 1_000_000


@pytest.mark.parametrize("change", [{"steps": 601}, {"mistakes": 0.4}, {"seed": 1}])
def test_the_key_changes_with_the_settings(change: dict[str, Any]) -> None:
    default = ModelConfig(name="tiny", kind="tiny")
    assert base_key(default) != base_key(default.model_copy(update={"tiny": TinyModel(**change)}))
    assert base_key(default) == base_key(default.model_copy(update={"name": "other", "max_context": 99}))
