"""The agent loop of real training: `tbexp.episode` on a world that each agent-loop process opens once.

Decided here: one sandbox, grader, user and judge per process, opened with its first attempt and ended with the process.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tbexp.config.checks import key_names
from tbexp.config.schema import Config, Sampling
from tbexp.config.secrets import provide
from tbexp.episode import World, open_judge, open_user, run_attempt
from tbexp.grading import open_grader
from tbexp.interpret import Renderer
from tbexp.policy import TokenPolicy
from tbexp.sandbox import open_sandbox, servers_of
from tbexp.tasks import Task, load_tasks
from tbexp.training.agent_loop import AttemptLoop, Generator, Played
from tbexp.training.groups import others_of


@dataclass(frozen=True, slots=True)
class Place:
    """What all attempts of a process share."""

    config: Config
    world: World
    tasks: dict[str, Task]
    renderer: Renderer


class _Opening:
    """The process's place, opened once; `stack` ends with the process."""

    place: Place | None = None
    lock = asyncio.Lock()
    stack = AsyncExitStack()


async def opened(plan: dict[str, Any], tokenizer: Any) -> Place:
    async with _Opening.lock:
        if _Opening.place is None:
            _Opening.place = await open_place(plan, tokenizer, _Opening.stack)
        return _Opening.place


async def open_place(plan: dict[str, Any], tokenizer: Any, stack: AsyncExitStack) -> Place:
    config = Config.model_validate(plan["config"])
    provide(config.launcher.secrets_file, key_names(config))
    root = Path(plan["root"])
    servers = servers_of(config.sandbox, root, config.tasks.server_python)
    tasks = load_tasks(root, config.tasks.agent, plan["uids"], format_query=config.tasks.format_query)
    world = World(
        sandbox=await stack.enter_async_context(open_sandbox(config.sandbox, servers)),
        grader=await stack.enter_async_context(open_grader(config.sandbox)),
        user=open_user(config.user, config.prices),
        judge=open_judge(config.judge, config.prices),
    )
    renderer = Renderer(tokenizer, format=config.model.format)
    return Place(config, world, {task.uid: task for task in tasks}, renderer)


class EpisodeLoop(AttemptLoop):
    async def play(self, task: str, *, seed: int, generate: Generator, sampling: Sampling) -> Played:
        place = await opened(self.plan, self.tokenizer)
        config = place.config
        policy = TokenPolicy(place.renderer, generate, sampling, config.model.max_context)
        done = await run_attempt(
            place.tasks[task],
            attempt=self.session,
            seed=seed,
            policy=policy,
            world=place.world,
            limits=config.policy.limits,
        )
        generate.others = others_of(done.others)
        if done.system_error is not None:
            raise done.system_error
        talk = policy.conversation
        if talk is None:
            raise RuntimeError(f"{task}: the attempt ended before the policy was asked")
        return Played(
            tokens=list(talk.tokens),
            mask=list(talk.mask),
            logprobs=list(talk.logprobs),
            prompt_length=talk.prompt_length,
            reward=done.reward,
            turns=done.turns,
            finish_reason=done.finish_reason,
            seconds=done.seconds,
        )
