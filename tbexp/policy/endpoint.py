"""Calls of an OpenAI-compatible chat endpoint, for the agent, the simulated user and the judge.

Decided here: what is tried again, how long, how fast, and whose fault the rest is. A refused key or an unknown model
ends the run (the user can fix it), a conversation that is too long is the agent's failure, and everything else is the
world's. The key is read from the environment with each call; it is in no attribute, message or log line.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from tbexp.config.schema import Endpoint, ModelPrice
from tbexp.config.secrets import key_in, without_key
from tbexp.errors import Problem, UserError, WorldError, WorldFailure
from tbexp.policy.own_time import standing
from tbexp.policy.policy import OutOfContext, Usage

log = logging.getLogger(__name__)

_TRANSIENT = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529})
_TOO_LONG = re.compile(
    r"context.?(?:length|window|size)|maximum (?:model |input )?length|max_model_len|too many (?:input )?tokens"
    r"|prompt is too long|(?:longer|larger) than the (?:maximum|model)",
    re.IGNORECASE,
)
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 60.0
_EXCERPT = 300  # characters of a server's complaint that are shown


_METER: ContextVar[dict[str, Usage] | None] = ContextVar("meter", default=None)


@contextmanager
def metered() -> Iterator[dict[str, Usage]]:
    """The tokens by role of all answers that endpoints give inside, in this task and those that it makes."""
    spent: dict[str, Usage] = {}
    token = _METER.set(spent)
    try:
        yield spent
    finally:
        _METER.reset(token)


class ChatEndpoint:
    """One endpoint. role: policy, user or judge; it names the kind of system error, and the config's section unless
    `section` does.

    usage: tokens of all answers so far. price: of this model, for `spending_cap_usd`; the cap is checked before each
    call, so what is under way when it is reached still runs to its end. spent_before: tokens that earlier processes had
    answers for, which count for the cap too.
    """

    PATH = "/chat/completions"
    ANSWER = "chat completion"

    def __init__(
        self,
        config: Endpoint,
        *,
        role: str = "policy",
        section: str | None = None,
        spending_cap_usd: float | None = None,
        price: ModelPrice | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ):
        section = section or role
        key = f"{section}.endpoint"
        problems = [
            Problem(f"{field} is not set", f"{key}.{field}", f"{key}.{field}=...")
            for field, value in (("base_url", config.base_url), ("model", config.model))
            if not value
        ]
        if spending_cap_usd is not None and price is None:
            problems.append(
                Problem(
                    f"a spending cap needs the price of {config.model}",
                    f"{section}.spending_cap_usd",
                    "add the model to prices.models, or leave the cap away",
                )
            )
        if problems:
            raise UserError(problems)
        self.config, self.role, self.section, self.usage = config, role, section, Usage()
        self.spent_before = Usage()
        self._cap, self._price = spending_cap_usd, price
        self._url = httpx.URL(str(config.base_url).rstrip("/") + self.PATH)
        self._transport = transport
        self._client: httpx.AsyncClient | None = None
        self._gate: asyncio.Semaphore | None = None
        self._warned = False  # of usage that cannot be
        self._next = 0.0  # when the next request may leave, on the monotonic clock

    def __repr__(self) -> str:
        return f"ChatEndpoint({self.config.model} at {self._url.host}, {self.role})"

    @property
    def spent_usd(self) -> float:
        """What the answers so far cost, those of earlier processes included; 0.0 without a price."""
        return 0.0 if self._price is None else cost_usd(self.spent_before + self.usage, self._price)

    async def text(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        """The visible text of the answer. A context that is too small is the world's fault here, not the agent's."""
        try:
            answer = await self.complete({"messages": list(messages), **options})
        except OutOfContext as problem:
            raise WorldError(f"{self.role}_endpoint", f"the conversation is too long for it: {problem}") from problem
        content = answer["choices"][0]["message"].get("content")
        return content if isinstance(content, str) else ""

    async def complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a request, as `understood` wants it; `model` and `extra_body` are added.

        Raises UserError (refused key, unknown model), OutOfContext, WorldFailure (the spending cap is reached, or
        cannot be kept since an answer tells no tokens), and WorldError with kind `<role>_endpoint` after `retries`
        further tries.
        """
        if self._cap is not None and self.spent_usd >= self._cap:
            raise WorldFailure(
                f"{self.section}.spending_cap_usd: {self.spent_usd:.2f} of {self._cap:.2f} US dollars are spent. "
                "What was finished is kept; the same command with a higher cap goes on from here"
            )
        payload = {"model": self.config.model, **body, **self.config.extra_body}
        with standing() as counted:
            return await self._answered(payload, counted)

    async def _answered(self, payload: Mapping[str, Any], counted: Callable[[float], None]) -> dict[str, Any]:
        """counted: is told how long the answer took, without what came before."""
        client, gate = self._open()
        problem = ""
        for attempt in range(self.config.retries + 1):
            pause = None
            try:
                async with gate:
                    await self._turn()
                    started = time.monotonic()
                    async with asyncio.timeout(self.config.timeout_s):
                        response = await client.post(self._url, json=payload, headers=self._headers())
                    took = time.monotonic() - started
                if response.status_code < 300:
                    if (answer := self._told(response)) is not None:
                        counted(took)
                        self._count(answer)
                        return answer
                    problem = f"the answer is no {self.ANSWER}: " + self._excerpt(response.text)
                else:
                    problem = self._refusal(response)
                    pause = _asked_pause(response)
            except TimeoutError:
                problem = f"no answer within {self.config.timeout_s:g} s"
            except httpx.HTTPError as error:
                problem = f"{type(error).__name__}: {self._excerpt(str(error))}"
            if attempt < self.config.retries:
                log.debug("%s: %s; trying again", self, problem)
                await asyncio.sleep(pause_s(attempt, pause))
        raise WorldError(f"{self.role}_endpoint", f"{self._url.host}: {problem} ({self.config.retries + 1} tries)")

    def understood(self, content: bytes) -> dict[str, Any] | None:
        """An answer with a message in its first choice; None: it is none."""
        try:
            answer = json.loads(content)
            message = answer["choices"][0]["message"]
        except (json.JSONDecodeError, UnicodeDecodeError, KeyError, IndexError, TypeError):
            return None
        return answer if isinstance(answer, dict) and isinstance(message, Mapping) else None

    async def _turn(self) -> None:
        """Waits until the next request may leave: they are spread evenly over each minute."""
        if self.config.requests_per_minute is None:
            return
        now = time.monotonic()
        leaves = max(now, self._next)
        self._next = leaves + 60.0 / self.config.requests_per_minute
        await asyncio.sleep(leaves - now)

    def _count(self, answer: Mapping[str, Any]) -> None:
        try:
            used = _told_usage(answer)
        except ValueError as wrong:
            used = Usage()
            if not self._warned:
                self._warned = True
                log.warning("%s tells usage that cannot be (%s); such answers count as telling none", self, wrong)
        usage = answer.get("usage")
        told = used.prompt_tokens and isinstance(usage, Mapping) and type(usage.get("completion_tokens")) is int
        if self._cap is not None and not told:
            raise WorldFailure(
                f"{self.section}.spending_cap_usd: the cap cannot be kept, since an answer of {self._url.host} does "
                "not tell its tokens (usage.prompt_tokens, usage.completion_tokens). Have the server tell them, or "
                "leave the cap out; what was finished is kept"
            )
        self.usage = self.usage + used
        if (spent := _METER.get()) is not None:
            spent[self.role] = spent.get(self.role, Usage()) + used

    async def close(self) -> None:
        if self._client is not None:
            client, self._client, self._gate = self._client, None, None
            await client.aclose()

    def _open(self) -> tuple[httpx.AsyncClient, asyncio.Semaphore]:
        if self._client is None or self._gate is None:
            limit = self.config.max_concurrency
            self._client = httpx.AsyncClient(
                timeout=None,
                limits=httpx.Limits(max_connections=limit),
                transport=self._transport,
                trust_env=not is_loopback(self._url.host),
            )
            self._gate = asyncio.Semaphore(limit)
        return self._client, self._gate

    def _headers(self) -> dict[str, str]:
        name = self.config.api_key_env
        if name is None:
            return {}
        key, wrong = key_in(name)
        if wrong:
            raise UserError(
                Problem(
                    wrong,
                    f"{self.section}.endpoint.api_key_env",
                    f"export {name}=<the key>, or name the variable that holds it",
                )
            )
        return {"Authorization": f"Bearer {key}"}

    def _refusal(self, response: httpx.Response) -> str:
        """What a refusal that may pass says; raises for the others."""
        status = response.status_code
        if status in (401, 403):  # its text may repeat the key
            name = self.config.api_key_env
            key = f"the key in {name}" if name else "a call without a key"
            raise UserError(
                Problem(
                    f"{self._url.host} refuses {key} (HTTP {status})",
                    f"{self.section}.endpoint.api_key_env",
                    f"put a key that is valid for {self._url.host} into {name}"
                    if name
                    else "name the variable with a key",
                )
            )
        said = self._excerpt(response.text)
        if status in (400, 413, 422) and _TOO_LONG.search(response.text):
            raise OutOfContext(said)
        if status == 404:
            raise UserError(
                Problem(
                    f"{self._url.host} knows no {self._url.path} or no model {self.config.model} (HTTP 404): {said}",
                    f"{self.section}.endpoint",
                    f"check {self.section}.endpoint.base_url and {self.section}.endpoint.model",
                )
            )
        if status not in _TRANSIENT:
            raise WorldError(f"{self.role}_endpoint", f"{self._url.host}: HTTP {status}: {said}")
        return f"HTTP {status}: {said}"

    def _key(self) -> str:
        return key_in(self.config.api_key_env)[0] if self.config.api_key_env else ""

    def _told(self, response: httpx.Response) -> dict[str, Any] | None:
        """Answers are stored: a key that the server repeats in one is not."""
        answer: dict[str, Any] | None = without_key(self.understood(response.content), self._key())
        return answer

    def _excerpt(self, text: str) -> str:
        shown = " ".join(str(without_key(text, self._key())).split())
        return shown if len(shown) <= _EXCERPT else shown[: _EXCERPT - 3] + "..."


def is_loopback(host: str) -> bool:
    """Whether a host is this machine by its name, which no web proxy of the environment can reach."""
    return host in ("localhost", "::1", "0.0.0.0", "::") or host.endswith(".localhost") or host.startswith("127.")


def pause_s(attempt: int, asked: float | None) -> float:
    """Seconds before the next try: what the server asked for, else doubling; jitter keeps callers apart."""
    if asked is not None:
        return min(asked, 2 * _LONGEST_PAUSE_S) + random.random() * _FIRST_PAUSE_S
    return float(min(_FIRST_PAUSE_S * 2.0**attempt, _LONGEST_PAUSE_S) * (0.5 + random.random()))


def usage_of(answer: Mapping[str, Any]) -> Usage:
    """The tokens that an answer says it used; none where it does not say, or says what cannot be."""
    try:
        return _told_usage(answer)
    except ValueError:
        return Usage()


def _told_usage(answer: Mapping[str, Any]) -> Usage:
    """ValueError: it cannot be."""
    used = answer.get("usage")

    def count(*path: str) -> Any:
        value: Any = used
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        return value

    return Usage.told(
        count("prompt_tokens"),
        count("prompt_tokens_details", "cached_tokens"),
        count("completion_tokens"),
        count("completion_tokens_details", "reasoning_tokens"),
    )


def cost_usd(usage: Usage, price: ModelPrice) -> float:
    """US dollars; cached prompt tokens and reasoning tokens have their own price."""
    fresh, thought = usage.prompt_tokens - usage.cached_tokens, usage.reasoning_tokens
    reasoning = price.completion if price.reasoning is None else price.reasoning
    completion = (usage.completion_tokens - thought) * price.completion + thought * reasoning
    return (fresh * price.prompt + usage.cached_tokens * price.cached + completion) / 1e6


def _asked_pause(response: httpx.Response) -> float | None:
    """The seconds of a Retry-After header, which is a number or a date."""
    value = response.headers.get("retry-after")
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (TypeError, ValueError):
        return None
