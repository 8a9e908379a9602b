from __future__ import annotations

from pathlib import Path

import pytest

from tbexp.errors import WorldFailure
from tbexp.training import rows
from tbexp.training.checkpoints import write_manifest
from tbexp.training.nonfinite import Watch
from tbexp.training.stopping import STOP

BAD = {3: "actor/grad_norm"}


@pytest.mark.parametrize(
    ("figures", "found"),
    [
        ('{"actor/loss": 0.1, "actor/grad_norm": 2.0}', None),
        ('{"actor/loss": null, "actor/grad_norm": 2.0}', "actor/loss"),  # as verl's logger writes it
        ('{"actor/loss": 0.1, "actor/grad_norm": NaN}', "actor/grad_norm"),
        ('{"actor/grad_norm": Infinity}', "actor/grad_norm"),
        ('{"critic/rewards/mean": null}', None),  # of no consequence
    ],
)
def test_an_update_that_is_not_finite_has_no_row(figures: str, found: str | None, tmp_path: Path) -> None:
    file = tmp_path / rows.fragment_name(0, 0)
    file.write_text(f'{{"step": 1, "data": {{"timing_s/step": 1.0}}}}\n{{"step": 2, "data": {figures}}}\n')
    assert rows.broken(file) == ({} if found is None else {2: found})
    assert list(rows.merge([file])) == ([1, 2] if found is None else [1])


def checkpoint(folder: Path, step: int) -> None:
    place = folder / "checkpoints" / f"global_step_{step}"
    place.mkdir(parents=True)
    write_manifest(place, step)


def test_with_a_checkpoint_before_it_the_training_ends_at_once(tmp_path: Path) -> None:
    watch = Watch(tmp_path, 2)
    checkpoint(tmp_path, 2)
    watch.look({}, {1: {}, 2: {}})
    with pytest.raises(WorldFailure, match=r"update 3: actor/grad_norm is not .*checkpoint of update 2 is kept"):
        watch.look(BAD, {1: {}, 2: {}})


def test_without_one_a_save_is_asked_for_and_waited_for(tmp_path: Path) -> None:
    (tmp_path / "verl").mkdir()
    watch, recorded = Watch(tmp_path, 10), {1: {}, 2: {}}
    watch.look(BAD, recorded)
    assert (tmp_path / "verl" / STOP).exists()
    checkpoint(tmp_path, 4)  # saved, but its update is not recorded yet
    watch.look(BAD, recorded)
    with pytest.raises(WorldFailure, match="checkpoint of update 4 is kept"):
        watch.look(BAD, recorded | {4: {}})


def test_when_nothing_is_finite_any_more_nothing_is_waited_for_in_vain(tmp_path: Path) -> None:
    (tmp_path / "verl").mkdir()
    watch = Watch(tmp_path, 10)
    watch.look(BAD, {1: {}, 2: {}})
    watch.look(BAD | {4: "actor/loss", 5: "actor/loss"}, {1: {}, 2: {}})
    with pytest.raises(WorldFailure, match=r"No checkpoint was written before \(one is due every 10 updates\)"):
        watch.look(BAD | {4: "actor/loss", 5: "actor/loss", 6: "actor/loss"}, {1: {}, 2: {}})
    with pytest.raises(WorldFailure):
        Watch(tmp_path, 10).look(BAD, {}, ended=True)
