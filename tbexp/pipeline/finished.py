"""Whether a run has nothing left to do: a sweep that is started again passes such jobs over.

Decided here: what a finished run is known by. It is a hash of everything that its stages were given (config, tasks,
model, the bytes of the files it read) in its manifest, with the hashes of what they made.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tbexp
from tbexp.config.deciding import ASIDE, deciding_values
from tbexp.config.schema import STAGES, Config
from tbexp.pipeline import identity
from tbexp.pipeline.files import read_json, sha256_of
from tbexp.pipeline.inputs import Inputs, files_read, reads_candidates, reads_held_out, reads_servers

NOT_GIVEN = ASIDE - {"stages", "store"}  # which stages are done, and where what they share is


def given(config: Config, model_key: str | None, inputs: Inputs) -> str:
    """Hash of what the stages are given. model_key: None where the base model's weights are not used."""
    value: dict[str, Any] = {
        "format": [tbexp.__version__, identity.FORMAT],
        "config": deciding_values(config.model_dump(mode="json"), NOT_GIVEN),
        "model": model_key,
        "files": {file: inputs.digest(file) for file in files_read(config)},
    }
    tasks = [*inputs.candidates(config)] if reads_candidates(config) else []
    tasks += inputs.held_out(config) if reads_held_out(config) else []
    if reads_servers(config):
        value["servers"] = inputs.servers_digest(config, tasks)
    value["tasks"] = identity.tasks_digest(tasks)
    return identity.digest(value, 64)


def is_finished(run_dir: Path, config: Config, given: str) -> bool:
    """Whether the run in `run_dir` has made everything of the config's stages from what is `given`, and it is there."""
    manifest = read_json(run_dir / "manifest.json")
    if config.force or not isinstance(manifest, dict) or manifest.get("finished") != given:
        return False
    # A link to a shared result that was removed does not exist.
    made = [run_dir / stage for stage in STAGES if stage in config.stages and not is_skipped(config, stage)]
    if "evaluate" in config.stages and not config.evaluation.rows:
        made += [run_dir / "evaluate" / policy for policy in config.evaluation.policies]
    outputs = manifest.get("outputs", {})
    return all(path.exists() for path in made) and all(
        (run_dir / name).is_file() and sha256_of(run_dir / name) == sha for name, sha in outputs.items()
    )


def is_skipped(config: Config, stage: str) -> bool:
    return stage == "probe" and bool(config.probe.rows)
