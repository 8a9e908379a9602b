"""OpenAI-compatible chat endpoints: the policy, the simulated user and the judge call theirs through here.

Decided here: what is tried again and how long one waits, whose fault a refusal is, and that a key is read when it is
needed and never kept, logged or put into an error. A refused key is the user's to mend (exit 2); an endpoint that
stays away is the world's failure; a conversation that is too long is the agent's.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import httpx

from tbexp.config.schema import Endpoint, Sampling
from tbexp.errors import Problem, UserError, WorldError, WorldFailure
from tbexp.interpret import read_chat_message
from tbexp.interpret.messages import Message, ToolSpec
from tbexp.policy.kinds import Completion, OutOfContext, Usage

log = logging.getLogger(__name__)

LONGEST_PAUSE = 32.0  # seconds between two tries
TRANSIENT = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
TOO_LONG = (
    "context length",
    "context_length",
    "maximum context",
    "too many tokens",
    "max_model_len",
    "input is too long",
)


class ChatEndpoint:
    """One endpoint with its patience. role: policy, user or judge; names its config group in errors."""

    def __init__(
        self,
        config: Endpoint,
        *,
        role: Literal["policy", "user", "judge"],
        spending_cap_usd: float | None = None,
        usd_per_token: tuple[float, float] = (0.0, 0.0),
    ):
        """usd_per_token: of a prompt and a completion token, for the cap."""
        self.config, self.role = config, role
        self.usage = Usage()
        self._cap, self._price = spending_cap_usd, usd_per_token
        self._places = asyncio.Semaphore(config.max_concurrency)
        self._client: httpx.AsyncClient | None = None

    async def complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The endpoint's answer to a chat completion request.

        Raises UserError (401, 403, 404), OutOfContext, WorldError `<role>_endpoint` (everything else, after the
        retries), WorldFailure when the spending cap is reached.
        """
        self._check_cap()
        async with self._places:
            tries = self.config.retries + 1
            for number in range(1, tries + 1):
                try:
                    answer = await self._once(body)
                except _Again as problem:
                    if number == tries:
                        raise WorldError(f"{self.role}_endpoint", f"{problem} ({tries} tries)") from None
                    pause = problem.pause if problem.pause is not None else random.uniform(0, 2.0 ** (number - 1))
                    log.info("%s endpoint: %s; next try in %.1f s", self.role, problem, pause)
                    await asyncio.sleep(min(pause, LONGEST_PAUSE))
                    continue
                self._count(answer)
                return answer
        raise AssertionError("unreachable")

    async def text(
        self, messages: Sequence[Mapping[str, str]], *, temperature: float, max_tokens: int, seed: int
    ) -> str:
        """The content of a completion without tools; "" if there is none."""
        body = {
            "messages": list(messages),
            "temperature": temperature,
            "max_tokens": max_tokens,
            "seed": seed,
        }
        content = self.message(await self.complete(body)).get("content")
        return content if isinstance(content, str) else ""

    def message(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        """The message of the first choice; WorldError if the answer has none."""
        try:
            message: dict[str, Any] = answer["choices"][0]["message"]
            return dict(message)
        except (KeyError, IndexError, TypeError):
            raise WorldError(f"{self.role}_endpoint", "the answer has no choices[0].message") from None

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def _once(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if self._client is None:
            limits = httpx.Limits(max_connections=self.config.max_concurrency)
            self._client = httpx.AsyncClient(timeout=self.config.timeout_s, limits=limits, follow_redirects=False)
        url = f"{(self.config.base_url or '').rstrip('/')}/chat/completions"
        whole = {"model": self.config.model, **body, **self.config.extra_body}
        try:
            # The client's own limit is per read: an answer that trickles would never end.
            async with asyncio.timeout(self.config.timeout_s):
                response = await self._client.post(url, json=whole, headers=self._headers())
        except (httpx.TimeoutException, TimeoutError):
            raise _Again(f"no answer within {self.config.timeout_s:g} s") from None
        except httpx.HTTPError as problem:
            raise _Again(f"{type(problem).__name__}: {self._hide(str(problem))}") from None
        if response.status_code == 200:
            try:
                answer = response.json()
            except (json.JSONDecodeError, UnicodeDecodeError):
                raise _Again("the answer is no JSON") from None
            if not isinstance(answer, dict):
                raise _Again("the answer is no JSON object")
            return answer
        self._refused(response, url)
        raise AssertionError("unreachable")

    def _refused(self, response: httpx.Response, url: str) -> None:
        status, text = response.status_code, self._hide(response.text[:500])
        key = f"{self.role}.endpoint"
        if status in (401, 403):
            named = self.config.api_key_env
            fix = (
                f"check the key in the variable {named}"
                if named
                else f"name the variable with the key: {key}.api_key_env"
            )
            raise UserError(Problem(f"{url} refuses the credentials ({status})", f"{key}.api_key_env", fix))
        if status == 404:
            raise UserError(
                Problem(f"{url} does not know the model {self.config.model!r} or the path ({status}): {text}", key)
            )
        if status in (400, 413, 422) and any(words in text.lower() for words in TOO_LONG):
            raise OutOfContext(text)
        if status in TRANSIENT or status >= 500:
            raise _Again(f"HTTP {status}: {text}", _retry_after(response))
        raise WorldError(f"{self.role}_endpoint", f"HTTP {status}: {text}")

    def _headers(self) -> dict[str, str]:
        key = self._key()
        return {"Authorization": f"Bearer {key}"} if key else {}

    def _key(self) -> str:
        return os.environ.get(self.config.api_key_env, "") if self.config.api_key_env else ""

    def _hide(self, text: str) -> str:
        """Endpoints like to quote the key that they refuse."""
        key = self._key()
        return text.replace(key, "***") if key else text

    def _count(self, answer: Mapping[str, Any]) -> None:
        self.usage = self.usage + usage_of(answer)

    def _check_cap(self) -> None:
        if self._cap is None:
            return
        spent = self.usage.prompt_tokens * self._price[0] + self.usage.completion_tokens * self._price[1]
        if spent >= self._cap:
            raise WorldFailure(
                f"the {self.role} has spent {spent:.2f} USD of {self._cap:.2f} ({self.role}.spending_cap_usd). What was "
                "finished is kept; raise the cap and run the same command again"
            )


class _Again(Exception):
    """Worth another try; pause: the seconds that the endpoint asks for."""

    def __init__(self, message: str, pause: float | None = None):
        super().__init__(message)
        self.pause = pause


class ChatPolicy:
    """A model behind a chat endpoint plays the agent; the endpoint reads its output."""

    name = "chat"

    def __init__(self, endpoint: Endpoint, sampling: Sampling):
        self.endpoint = ChatEndpoint(endpoint, role="policy")
        self.sampling = sampling

    def open(self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, seed: int) -> ChatSession:
        return ChatSession(self, list(messages), tuple(tools), seed)

    async def close(self) -> None:
        await self.endpoint.close()


class ChatSession:
    """One conversation; the whole of it travels with each request."""

    def __init__(self, policy: ChatPolicy, messages: list[Message], tools: tuple[ToolSpec, ...], seed: int):
        self.policy, self.messages, self.tools, self.seed = policy, messages, tools, seed
        self.turn = 0

    async def act(self, new: Sequence[Message]) -> Completion:
        self.messages.extend(new)
        sampling = self.policy.sampling
        body: dict[str, Any] = {
            "messages": [wire_message(m) for m in self.messages],
            "temperature": sampling.temperature,
            "max_tokens": sampling.max_tokens,
            "seed": (self.seed + self.turn * 1_000_003) % 2**31,
        }
        if sampling.top_p < 1.0:
            body["top_p"] = sampling.top_p
        if sampling.top_k > 0:
            body["top_k"] = sampling.top_k  # not in OpenAI's own interface, but in vLLM's and most others'
        if self.tools:
            body["tools"] = [wire_tool(tool) for tool in self.tools]
        answer = await self.policy.endpoint.complete(body)
        message = self.policy.endpoint.message(answer)
        reading = read_chat_message(message, self.tools)
        self.turn += 1
        self.messages.append(reading.message())
        reason = answer["choices"][0].get("finish_reason")
        return Completion(
            reading=reading,
            finish="length" if reason == "length" else "stop",
            usage=usage_of(answer),
            raw=json.dumps(message, ensure_ascii=False),
        )

    async def close(self) -> None:
        return None


def wire_message(message: Message) -> dict[str, Any]:
    """A message in OpenAI's chat form."""
    if message.role == "tool":
        return {"role": "tool", "content": message.content, "tool_call_id": message.call_id or "call_0"}
    plain: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.calls:
        plain["content"] = message.content or None
        plain["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments), ensure_ascii=False)},
            }
            for call in message.calls
        ]
    return plain


def wire_tool(tool: ToolSpec) -> dict[str, Any]:
    """A tool in OpenAI's chat form."""
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.input_schema)}
    return {"type": "function", "function": function}


def usage_of(answer: Mapping[str, Any]) -> Usage:
    """The usage that an answer reports; zeros where it reports none."""
    usage = answer.get("usage")
    if not isinstance(usage, Mapping):
        return Usage()

    def number(name: str, *path: str) -> int:
        value: Any = usage
        for part in (*path, name):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value if isinstance(value, int) else 0

    return Usage(
        prompt_tokens=number("prompt_tokens"),
        cached_tokens=number("cached_tokens", "prompt_tokens_details"),
        completion_tokens=number("completion_tokens"),
        reasoning_tokens=number("reasoning_tokens", "completion_tokens_details"),
    )


def _retry_after(response: httpx.Response) -> float | None:
    """Seconds of a Retry-After header, given as a number or as a date."""
    value = response.headers.get("retry-after")
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        from email.utils import parsedate_to_datetime

        try:
            return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
        except (TypeError, ValueError):
            return None
