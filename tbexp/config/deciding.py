"""What of a config's values decides results.

Decided here: which groups do not (how a run is started, where, and who is told), and that it makes no difference where
secrets come from. What decides each stage is the pipeline's to say (`identity`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

ASIDE = frozenset({"stages", "force", "dry_run", "store", "launcher", "tracking", "compare", "parity", "serve"})
# Names of variables that hold keys, and what stands for any of them.
SOURCES: Mapping[str, Any] = {"api_key_env": None, "remote_env": []}


def deciding_values(values: Mapping[str, Any], aside: Collection[str] = ASIDE) -> dict[str, Any]:
    """Plain values of a config without the groups `aside`, the same whatever the variables of its keys are called."""
    return {key: _nameless(value) for key, value in values.items() if key not in aside}


def _nameless(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: SOURCES[key] if key in SOURCES else _nameless(inner) for key, inner in value.items()}
    return [_nameless(inner) for inner in value] if isinstance(value, list) else value
