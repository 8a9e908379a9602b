"""The config group `serve`: what `stages=[serve]` offers to other harnesses, and where."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tbexp.config.values import AtLeastOne, Group


class ServeConfig(Group):
    """stages=[serve]: an OpenAI-compatible proxy, or the tasks as an OpenEnv environment."""

    name: str
    kind: Literal["proxy", "openenv"] = "proxy"
    host: str = "127.0.0.1"  # address to listen at; whoever reaches it may use what is served
    port: Annotated[int, Field(ge=0, le=65535, strict=True)] = 8014  # 0: one that is free, which is told
    # The server behind the proxy, such as http://HOST:8000/v1; null: `vllm serve` is started as policy.vllm says, with
    # policy.vllm.model, else the run's trained checkpoint, else model.path.
    upstream: str | None = None
    api_key_env: str | None = None  # environment variable with the upstream's key; no other key is passed on
    # The name that started weights are served by; of an upstream: ready is who lists it; null: any.
    model: str | None = None
    # Leading system messages are joined to one. null: as tbexp joins them for the weights that are served here, only
    # where their template takes one; for an upstream, whose template is not known, always.
    merge_system: bool | None = None
    sessions: AtLeastOne = 8  # kind=openenv: episodes at once
    trajectories: bool = False  # kind=openenv: the last observation holds messages, effects and verdict
