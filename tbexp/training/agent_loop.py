"""verl's agent loop that runs our episode: the same attempt loop as probe and evaluate, on the tokens verl trains on.

Decided here:
- What an attempt hands to verl: the episode's own token ids, a mask that is 1 on the policy's tokens only, their
  log-probabilities, and the reward of the verdict, so no reward manager computes it again.
- An attempt that ends as a system error is run again in place, on a fresh backend, up to `RETRIES` times. If it still
  fails the loop raises, verl marks the group failed, and `refill` replaces it: it is never scored, padded or trained
  on.
- Anything else that goes wrong, such as a prompt that does not fit (it is never cut) or a rendered step that does not
  continue the tokens, is no system error: it is written down and ends the run (`refill`).

The episode itself is `tbexp.episode`'s, sampling the rollout backend's, and which groups are used `refill`'s.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import time
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Container
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput

from tbexp.config.schema import Sampling
from tbexp.errors import WorldError
from tbexp.policy.policy import Finish
from tbexp.policy.tokens import Generated
from tbexp.training.failures import FAILURES, note_failure

log = logging.getLogger(__name__)

RETRIES = 3


@dataclass(frozen=True, slots=True)
class Played:
    """One finished attempt. Token lists have equal length; `seconds` per part; `note` goes into metrics."""

    tokens: list[int]
    mask: list[int]
    logprobs: list[float]
    prompt_length: int
    reward: float
    turns: int
    finish_reason: str
    seconds: dict[str, float] = field(default_factory=dict)


class Generator:
    """`generate` of a token policy on verl's rollout servers; notes when it asked and the weights' versions it met.

    ask: sends one request. Called with request_id (the conversation's name), prompt_ids and sampling_params. ends:
    tokens that end a completion; verl calls one that was cut off `completed` too.
    """

    def __init__(self, ask: Callable[..., Awaitable[Any]], ends: Container[int]):
        self._ask = ask
        self._ends = ends
        self.seconds = 0.0
        self.asked: list[tuple[float, float]] = []  # begin and end of each answered request, in seconds of the epoch
        self.tokens = self.prompt_tokens = 0  # produced, and given: every completion is given its whole prompt
        self.others: dict[str, int] = {}  # tokens of the endpoints of user and judge, as `others_of` names them
        self.versions: list[int] = []

    async def __call__(
        self, ids: list[int], *, max_tokens: int, session: str, seed: int, sampling: Sampling
    ) -> Generated:
        begun, started = time.time(), time.monotonic()
        params = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "repetition_penalty": 1.0,
            "logprobs": True,
            "max_tokens": max_tokens,
            "seed": seed,
        }
        output = await self._ask(request_id=session, prompt_ids=list(ids), sampling_params=params)
        self.seconds += (seconds := time.monotonic() - started)
        self.asked.append((round(begun, 4), round(begun + seconds, 4)))
        self.tokens += len(output.token_ids)
        self.prompt_tokens += len(ids)
        if (version := output.extra_fields.get("global_steps")) is not None:
            self.versions.append(int(version))
        if not output.token_ids:
            raise WorldError("policy_endpoint", f"the rollout server produced no token ({output.stop_reason})")
        finish: Finish = "stop" if output.token_ids[-1] in self._ends else "length"
        return Generated(list(output.token_ids), output.log_probs, finish)


def attempt_seed(seed: int, kind: str, draw: int, session: int, retry: int) -> int:
    """One seed per attempt, the same in every run with the same config and in a resumed one."""
    digest = hashlib.sha256(f"{seed}/{kind}/{draw}/{session}/{retry}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1  # endpoints take 31 bits


class AttemptLoop(AgentLoopBase):  # type: ignore[misc]
    """Everything but the episode: retries, seeds, and the shape verl wants. `plan`: the run's input file."""

    def __init__(self, *, trainer_config: Any, server_manager: Any, tokenizer: Any, plan: str, **_: Any):
        # verl makes a loop per attempt, and its own constructor makes a token builder, which our renderer replaces.
        self.rollout_config = trainer_config.config.actor_rollout_ref.rollout
        self.server_manager = server_manager
        self.tokenizer = tokenizer
        self.plan_file = Path(plan)
        self.plan = read_plan(plan)
        self.session = self.retry = 0

    def ask(self) -> Callable[..., Awaitable[Any]]:
        """Our own rollout server is asked directly: verl's client would add two calls to its load balancer to each."""
        if self.rollout_config.name != "transformers":
            return self.server_manager.generate  # type: ignore[no-any-return]
        from tbexp.training.rollout_cpu import ask

        return ask

    @abstractmethod
    async def play(self, task: str, *, seed: int, generate: Generator, sampling: Sampling) -> Played:
        """One attempt at `task`; `generate.others` is told what others spend. WorldError when the world failed."""

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        task, draw, session = str(row["task"]), int(row["draw"]), int(row["session_id"])
        kind = str(row["data_source"])
        sampling = Sampling(
            temperature=sampling_params["temperature"],
            top_p=sampling_params["top_p"],
            top_k=sampling_params["top_k"],
            max_tokens=self.plan["max_tokens"],
        )
        ends = end_tokens(self.plan["model"], self.tokenizer.eos_token_id)
        begun = time.time()
        for retry in range(RETRIES + 1):
            generate = Generator(self.ask(), ends)
            seed = attempt_seed(self.plan["seed"], kind, draw, session, retry)
            self.session, self.retry = session, retry
            started = time.monotonic()
            try:
                played = await self.play(task, seed=seed, generate=generate, sampling=sampling)
                return self._output(played, generate, task=task, draw=draw, retried=retry, begun=begun)
            except WorldError as error:
                spent = {
                    "tokens": generate.tokens,
                    "prompt_tokens": generate.prompt_tokens,
                    "seconds": round(time.monotonic() - started, 4),
                    "others": generate.others,
                }
                note_failure(self.plan_file.with_name(FAILURES), task, error, **spent)
                log.warning("%s attempt %s ended as a system error (%s), try %s", task, session, error, retry + 1)
                if retry == RETRIES:
                    raise
            except Exception as error:
                note_failure(self.plan_file.with_name(FAILURES), task, error)
                raise
        raise AssertionError("unreachable")

    def _output(
        self, played: Played, generate: Generator, *, task: str, draw: int, retried: int, begun: float
    ) -> AgentLoopOutput:
        start, end = played.prompt_length, last_produced(played.mask) + 1
        limit, room = self.rollout_config.prompt_length, self.rollout_config.response_length
        if start > limit:
            raise ValueError(f"a prompt of {start} tokens, and training.max_prompt_tokens allows {limit}")
        if end > limit + room:
            raise ValueError(f"a conversation of {end} tokens, and model.max_context is {limit + room}")
        if end <= start:
            raise ValueError("the policy produced no token")
        seconds = {**played.seconds, "generation": generate.seconds}
        note = {
            "task": task,
            "draw": draw,
            "reward": played.reward,
            "finish_reason": played.finish_reason,
            "turns": played.turns,
            "retried": retried,
            "tokens": sum(played.mask[start:end]),
            "prompt_tokens": generate.prompt_tokens,
            "others": generate.others,
            "surprise": -sum(played.logprobs[start:end]),
            "seconds": seconds,
            "span": (round(begun, 4), round(time.time(), 4)),
            "asked": generate.asked,
        }
        versions = generate.versions or [-1]
        return AgentLoopOutput(
            prompt_ids=played.tokens[:start],
            response_ids=played.tokens[start:end],
            response_mask=played.mask[start:end],
            response_logprobs=played.logprobs[start:end],
            reward_score=played.reward,
            num_turns=played.turns,
            metrics=AgentLoopMetrics(
                generate_sequences=generate.seconds,
                tool_calls=seconds.get("tools", 0.0),
                compute_score=seconds.get("grading", 0.0),
            ),
            extra_fields={
                "attempt": note,
                "reward_extra_info": {},
                "min_global_steps": min(versions),
                "max_global_steps": max(versions),
            },
        )


def last_produced(mask: list[int]) -> int:
    """Index of the policy's last token; what the environment said after it trains nothing. -1: there is none."""
    return next((i for i in range(len(mask) - 1, -1, -1) if mask[i]), -1)


@functools.cache
def end_tokens(model_folder: str, eos: int) -> frozenset[int]:
    """The tokens that end a completion: the tokenizer's, and those of generation_config.json."""
    file = Path(model_folder) / "generation_config.json"
    own = json.loads(file.read_text()).get("eos_token_id") if file.exists() else None
    return frozenset({eos, *(own if isinstance(own, list) else [own])} - {None})


@functools.cache
def read_plan(file: str) -> dict[str, Any]:
    plan: dict[str, Any] = json.loads(Path(file).read_text())
    return plan
