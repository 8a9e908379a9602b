"""What is asked of a model before anything is queued: whether its chat template and `model.format` agree.

Decided here: of which models it is asked. Those of the sample domain bring a template of tbexp's own; of a folder one
round trip is made (`interpret.round_trip`) wherever its tokenizer is: by a submission, a dry run and a training.
"""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path

from tbexp.config.schema import Config
from tbexp.errors import Problem

log = logging.getLogger(__name__)


def template_problems(config: Config) -> list[Problem]:
    """What is wrong between the base model's template and `model.format`; none if the folder is not on this machine.

    Loads the tokenizer, no weights. UserError: the folder has no tokenizer, or it has no template.
    """
    path = config.model.path
    if config.policy.kind != "local" or config.model.kind != "folder" or path is None or not Path(path).is_dir():
        return []
    if not {"probe", "train", "evaluate"} & set(config.stages):
        return []
    if importlib.util.find_spec("transformers") is None:
        log.warning("model.format was not tried on %s: transformers is not installed here", path)
        return []
    from tbexp.interpret.round_trip import round_trip

    return round_trip(path, format=config.model.format)
