"""Whole configs for the tests of training."""

from __future__ import annotations

from typing import Any

from tbexp.config.schema import Config


def toy_config(**changes: dict[str, Any]) -> Config:
    """A whole Config with toy settings; keyword arguments update single groups."""
    bands = ("rarely", "hard", "medium", "often", "nearly_always")
    groups: dict[str, Any] = {
        "name": "toy",
        "seed": 1,
        "stages": ["train"],
        "store": "/nowhere",
        "model": {"name": "toy", "kind": "folder", "max_context": 128},
        "tasks": {"name": "toy"},
        "buckets": {"name": "toy", "bands": {band: {"keep": True} for band in bands}},
        "group": {"name": "toy", "size": 4, "groups_per_update": 2},
        "optimizer": {"name": "toy", "lr": 1e-2},
        "topology": {"name": "cpu", "device": "cpu"},
        "launcher": {"name": "local", "kind": "local"},
        "policy": {"name": "local", "kind": "local", "sampling": {"max_tokens": 12}, "concurrency": 8},
        "user": {"name": "none", "kind": "none"},
        "judge": {"name": "none", "kind": "none"},
        "sandbox": {"name": "toy", "kind": "process"},
        "probe": {"name": "toy"},
        "selection": {"name": "toy"},
        "training": {
            "name": "toy",
            "steps": 2,
            "validate_every": 1,
            "validation_attempts": 2,
            "save_every": 1,
            "keep_checkpoints": 1,
        },
        "evaluation": {"name": "toy"},
        "prices": {"name": "none", "dated": "2026-01-01"},
        "tracking": {"name": "none", "kind": "none"},
        "compare": {"name": "baseline"},
        "parity": {"name": "vllm"},
        "serve": {"name": "proxy"},
    }
    for group, change in changes.items():
        groups[group] = {**groups[group], **change}
    return Config.model_validate(groups)


def composed_config(overrides: list[str]) -> Config:
    """The config that the command line would make of conf/ with these overrides."""
    from tbexp.config.compose import opened, plain
    from tbexp.config.folders import conf_folder

    with opened(conf_folder()) as compose:
        return Config.model_validate({**plain(compose(overrides)), "store": "/nowhere"})
