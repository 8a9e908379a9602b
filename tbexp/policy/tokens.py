"""A policy over tokens: renders the conversation, has tokens produced, and reads them.

Decided here: how a conversation meets a limited context, and which seed each turn draws with. Left to others: rendering
and reading (interpret), and what produces the tokens: this room's engine, verl's rollout server, or vLLM.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tbexp.config.schema import Sampling
from tbexp.interpret.messages import Message, ToolSpec
from tbexp.interpret.rendering import Renderer, TokenConversation
from tbexp.policy.policy import Completion, Finish, OutOfContext, Usage


@dataclass(frozen=True, slots=True)
class Generated:
    """Produced tokens, the end token included if there was one, and the log-probability of each."""

    token_ids: Sequence[int]
    logprobs: Sequence[float] | None
    finish: Finish


class Produced(Protocol):
    """What a generator gives back; `Generated` is one."""

    @property
    def token_ids(self) -> Sequence[int]: ...
    @property
    def logprobs(self) -> Sequence[float] | None: ...
    @property
    def finish(self) -> str: ...


class Generate(Protocol):
    """Continues `ids` by at most `max_tokens` tokens. session: conversations that grow share one name."""

    def __call__(
        self, ids: list[int], *, session: str, max_tokens: int, sampling: Sampling, seed: int
    ) -> Awaitable[Produced]: ...


class TokenPolicy:
    """conversation: the tokens of the session opened last, for callers that make one policy per attempt.

    max_context: tokens of a whole conversation. release: called with a session's name when it is closed.
    """

    def __init__(
        self,
        renderer: Renderer,
        generate: Generate,
        sampling: Sampling,
        max_context: int,
        *,
        name: str = "local",
        release: Callable[[str], None] | None = None,
        on_close: Callable[[], Awaitable[None]] | None = None,
    ):
        self.renderer, self.generate, self.sampling, self.max_context = renderer, generate, sampling, max_context
        self.name = name
        self.release, self._on_close = release, on_close
        self.conversation: TokenConversation | None = None

    def open(self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, seed: int) -> TokenSession:
        session = TokenSession(self, self.renderer.open(messages, tools), seed)
        self.conversation = session.conversation
        return session

    async def close(self) -> None:
        if self._on_close is not None:
            await self._on_close()


class TokenSession:
    """One conversation of a token policy."""

    def __init__(self, policy: TokenPolicy, conversation: TokenConversation, seed: int):
        self.conversation = conversation
        self._policy, self._seed = policy, seed
        self._name = uuid.uuid4().hex
        self._seen = 0  # tokens that an earlier turn has been through

    async def act(self, new: Sequence[Message]) -> Completion:
        talk, policy = self.conversation, self._policy
        start = time.perf_counter()
        if new or talk.turn:  # after thoughts alone nobody has spoken, and a turn begins anew
            talk.add(new)
        room = policy.max_context - len(talk.tokens)
        if room < 1:
            raise OutOfContext(f"{len(talk.tokens)} tokens, and the context holds {policy.max_context}")
        prompt, cached = len(talk.tokens), self._seen
        made = await policy.generate(
            list(talk.tokens),
            session=self._name,
            max_tokens=min(policy.sampling.max_tokens, room),
            sampling=policy.sampling,
            seed=turn_seed(self._seed, talk.turn),
        )
        opened = talk.thinking_open
        reading = talk.produced(made.token_ids, made.logprobs)
        self._seen = len(talk.tokens)
        thought = len(policy.renderer.encode(reading.reasoning)) if reading.reasoning else 0
        return Completion(
            reading=reading,
            finish="length" if made.finish == "length" else "stop",
            usage=Usage(prompt, cached, len(made.token_ids), thought),
            raw=policy.renderer.decode(made.token_ids),
            seconds=time.perf_counter() - start,
            output={"output": talk.said, "format": policy.renderer.format, "thinking_open": opened},
        )

    async def close(self) -> None:
        if self._policy.release is not None:
            self._policy.release(self._name)


def turn_seed(seed: int, turn: int) -> int:
    """The seed of one turn, 31 bits: turns of a conversation draw independently of each other."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{turn}".encode(), digest_size=4).digest(), "big") >> 1
