"""A policy by token ids: tbexp renders the conversation and reads the output itself, in training as in evaluation.

Decided here: when a conversation no longer fits, and how much of the context one completion may use. Left to others:
sampling (engine, or verl's servers in training), rendering and reading (interpret).
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from tbexp.config.schema import Sampling
from tbexp.interpret import Renderer, TokenConversation
from tbexp.interpret.messages import Message, ToolSpec
from tbexp.policy.kinds import Completion, OutOfContext, Usage


@dataclass(frozen=True, slots=True)
class Generated:
    """One completion as tokens, the end token included; logprobs (natural) of each under the distribution sampled
    from.
    """

    token_ids: list[int]
    logprobs: list[float] | None
    finish: Literal["stop", "length"]


class Generate(Protocol):
    """Samples a completion of `ids`. session: names the conversation, whose earlier tokens may be cached."""

    async def __call__(
        self, ids: list[int], *, max_tokens: int, session: str, seed: int, sampling: Sampling
    ) -> Generated: ...


class TokenPolicy:
    """generate: who samples. max_context: tokens of conversation and completion together."""

    name = "tokens"

    def __init__(
        self,
        renderer: Renderer,
        generate: Generate,
        *,
        sampling: Sampling,
        max_context: int,
        forget: Callable[[str], None] | None = None,
        on_close: Callable[[], Awaitable[None]] | None = None,
    ):
        self.renderer, self.generate, self.sampling, self.max_context = renderer, generate, sampling, max_context
        self.forget, self.on_close = forget, on_close
        self._numbers = itertools.count()

    def open(self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, seed: int) -> TokenSession:
        return TokenSession(self, self.renderer.open(messages, tools), f"{seed}-{next(self._numbers)}", seed)

    async def close(self) -> None:
        if self.on_close is not None:
            await self.on_close()


class TokenSession:
    """`conversation` holds tokens, mask and log-probabilities, which training takes as they are."""

    def __init__(self, policy: TokenPolicy, conversation: TokenConversation, name: str, seed: int):
        self.policy, self.conversation, self.name, self.seed = policy, conversation, name, seed

    async def act(self, new: Sequence[Message]) -> Completion:
        policy, talk = self.policy, self.conversation
        if new:
            talk.add(new)
        room = policy.max_context - len(talk.tokens)
        if room < 1:
            raise OutOfContext(f"{len(talk.tokens)} tokens, the context has {policy.max_context}")
        prompt = len(talk.tokens)
        made = await policy.generate(
            list(talk.tokens),
            max_tokens=min(policy.sampling.max_tokens, room),
            session=self.name,
            seed=self.seed + talk.turn * 1_000_003,  # another stream of draws for each turn
            sampling=policy.sampling,
        )
        start = len(talk.tokens)
        reading = talk.produced(made.token_ids, made.logprobs)
        return Completion(
            reading=reading,
            finish=made.finish,
            usage=Usage(prompt_tokens=prompt, completion_tokens=len(made.token_ids)),
            raw=policy.renderer.decode(talk.tokens[start:]),
        )

    async def close(self) -> None:
        if self.policy.forget is not None:
            self.policy.forget(self.name)
