"""verl's rollout backend `transformers`: generation on the CPU by the engine that probe and evaluate use too.

Loaded by `actor_rollout_ref.model.external_lib=tbexp.training.rollout_cpu` in every process that reads verl's model
config. Decided here: one Ray actor per replica holds a copy of the weights and serves all conversations; the
trainer's workers ship it the gathered weights after each update. How tokens are sampled and batched is
`tbexp.policy.engine`'s.
"""

from __future__ import annotations

import functools
import os
import zlib
from collections.abc import AsyncIterator, Iterable
from typing import Any

import ray
import torch
from verl.workers.rollout.base import _ROLLOUT_REGISTRY, BaseRollout
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput

from tbexp.config.schema import Sampling

NAME = "transformers"


class Server:
    """The Ray actor behind one replica: verl's server interface on top of the engine."""

    def __init__(self, model_folder: str, max_context: int, slots: int):
        from tbexp.policy.engine import load_engine

        threads = int(os.environ.get("TBEXP_TORCH_THREADS", "1"))
        # float32 as in the trainer: float64 halves the speed, and that the company in a batch changes one token in a
        # million is no harm here.
        self._engine = load_engine(model_folder, slots=slots, max_context=max_context, threads=threads, dtype="float32")
        self._max_context = max_context
        self._step: int | None = None

    async def generate(
        self,
        request_id: str,
        prompt_ids: list[int],
        sampling_params: dict[str, Any],
        **_: Any,
    ) -> TokenOutput:
        made = await self._engine.generate(
            prompt_ids,
            session=request_id,
            max_tokens=sampling_params.get("max_tokens") or self._max_context,
            sampling=Sampling(
                temperature=sampling_params.get("temperature", 1.0),
                top_p=sampling_params.get("top_p", 1.0),
                top_k=sampling_params.get("top_k", -1),
            ),
            seed=sampling_params.get("seed", 0),
        )
        return TokenOutput(
            token_ids=list(made.token_ids),
            log_probs=list(made.logprobs) if made.logprobs is not None else None,
            stop_reason=made.finish,
            extra_fields={"global_steps": self._step},
        )

    async def update_weights(self, weights: list[tuple[str, torch.Tensor]], step: int | None) -> None:
        await self._engine.load_weights(weights)
        self._step = step

    async def ready(self) -> bool:
        return True

    async def nothing(self, *_: Any, **__: Any) -> None:
        return None

    sleep = wake_up = abort_all_requests = resume_generation = clear_kv_cache = nothing
    release_kv_cache = resume_kv_cache = start_profile = stop_profile = nothing


class Replica(RolloutReplica):  # type: ignore[misc]
    async def launch_servers(self) -> None:
        actor = ray.remote(Server).options(
            name=server_name(self.replica_rank), num_cpus=0, max_concurrency=self.max_concurrency
        )
        config = self.config
        self._server_handle = actor.remote(self.model_config.path, config.max_model_len, config.max_num_seqs)
        await self._server_handle.ready.remote()
        self.servers = [self._server_handle]
        self._server_address = server_name(self.replica_rank)


class Adapter(BaseRollout):  # type: ignore[misc]
    """In a trainer worker: ships the gathered weights to the replica's server."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1):
        super().__init__(config, model_config, device_mesh)
        rank, size = int(os.environ["RANK"]), self.config.tensor_model_parallel_size
        self.replica_rank = rank // size if replica_rank == -1 else replica_rank
        self.is_leader_rank = rank % size == 0
        self._server: Any = None

    async def resume(self, tags: list[str]) -> None:
        return None

    async def release(self) -> None:
        return None

    async def update_weights(
        self,
        weights: Iterable[tuple[str, torch.Tensor]] | AsyncIterator[tuple[str, torch.Tensor]],
        wire_format: str = "named_tensors",
        global_steps: int | None = None,
        **_: Any,
    ) -> None:
        if wire_format != "named_tensors":
            raise NotImplementedError(f"the {NAME} rollout takes named tensors, not {wire_format}")
        # Gathering is collective: every rank walks through the weights, the leader keeps them.
        pairs = [pair async for pair in weights] if isinstance(weights, AsyncIterator) else list(weights)
        full = [(name, tensor.detach().to("cpu", torch.float32).contiguous().clone()) for name, tensor in pairs]
        if self.is_leader_rank:
            self._server = self._server or ray.get_actor(server_name(self.replica_rank))
            await self._server.update_weights.remote(full, global_steps)


async def ask(request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any]) -> TokenOutput:
    """One request to the replica that has this conversation. request_id: the conversation's name."""
    servers = replicas()
    server = servers[zlib.crc32(request_id.encode()) % len(servers)]
    output: TokenOutput = await server.generate.remote(request_id, prompt_ids, sampling_params)
    return output


@functools.cache
def replicas() -> list[Any]:
    """The servers of this Ray, which are all there before the first attempt begins."""
    found: list[Any] = []
    while True:
        try:
            found.append(ray.get_actor(server_name(len(found))))
        except ValueError:
            return found


def server_name(replica_rank: int) -> str:
    return f"tbexp_rollout_{replica_rank}"


def _register() -> None:
    _ROLLOUT_REGISTRY[(NAME, "async")] = f"{__name__}.Adapter"
    RolloutReplicaRegistry.register(NAME, lambda: Replica)


_register()
