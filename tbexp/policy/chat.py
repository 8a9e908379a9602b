"""A policy behind an OpenAI-compatible chat endpoint.

Decided here: what the endpoint is told of its own earlier answers: they are sent back as it gave them. Left to others:
retries (endpoint.py), and reading an answer (interpret).
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tbexp.config.schema import Endpoint, ModelPrice, Sampling
from tbexp.interpret.messages import Message, ToolSpec
from tbexp.interpret.reading import read_chat_message
from tbexp.interpret.rendering import chat_tool
from tbexp.policy.endpoint import ChatEndpoint, usage_of
from tbexp.policy.policy import Completion


class ChatPolicy:
    """format: how the model writes calls, for servers without a tool parser; None: the server reads them. tool_choice:
    what is said of it besides, if anything; section: of the config, that messages name.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        sampling: Sampling,
        format: str | None = None,
        *,
        tool_choice: str | None = None,
        section: str = "policy",
        spending_cap_usd: float | None = None,
        price: ModelPrice | None = None,
    ):
        self.endpoint = ChatEndpoint(
            endpoint, role="policy", section=section, spending_cap_usd=spending_cap_usd, price=price
        )
        self.sampling, self.format, self.tool_choice = sampling, format, tool_choice
        self.name = str(endpoint.model)

    def open(self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, seed: int) -> ChatSession:
        return ChatSession(self, messages, tools, seed)

    async def close(self) -> None:
        await self.endpoint.close()


class ChatSession:
    """One conversation with the endpoint."""

    def __init__(self, policy: ChatPolicy, messages: Sequence[Message], tools: Sequence[ToolSpec], seed: int):
        self._policy, self._tools, self._seed = policy, tuple(tools), seed
        self._sent = [wire_message(m) for m in messages]
        self._turn = 0

    async def act(self, new: Sequence[Message]) -> Completion:
        start = time.perf_counter()
        answered = [m.call_id for m in new if m.role == "tool"]
        # The episode numbers calls anew, so that ids are unique: the answers' ids become the calls'.
        for call, identity in zip(self._sent[-1].get("tool_calls", ()), answered, strict=False):
            call["id"] = identity
        self._sent.extend(wire_message(m) for m in new)
        sampling = self._policy.sampling
        body: dict[str, Any] = {
            "messages": self._sent,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
            "seed": (self._seed + self._turn) % 2**31,
        }
        if sampling.top_k > 0:
            body["top_k"] = sampling.top_k
        if self._tools:
            body["tools"] = [chat_tool(tool) for tool in self._tools]
            if self._policy.tool_choice is not None:
                body["tool_choice"] = self._policy.tool_choice
        answer = await self._policy.endpoint.complete(body)
        choice = answer["choices"][0]
        message = choice["message"]
        reading = read_chat_message(message, self._tools, format=self._policy.format)
        self._sent.append(_own_message(message))
        self._turn += 1
        return Completion(
            reading=reading,
            finish="length" if choice.get("finish_reason") == "length" else "stop",
            usage=usage_of(answer),
            raw=json.dumps(message, ensure_ascii=False),
            seconds=time.perf_counter() - start,
        )

    async def close(self) -> None:
        return None


def wire_message(message: Message) -> dict[str, Any]:
    """A message as chat endpoints take it: arguments are JSON text."""
    wire: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.calls:
        wire["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments), ensure_ascii=False)},
            }
            for call in message.calls
        ]
    if message.role == "tool":
        wire["tool_call_id"] = message.call_id
    return wire


def _own_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """The server's own answer as it is sent back. Arguments that are no JSON object are dropped: servers refuse it."""
    content = message.get("content")
    own: dict[str, Any] = {"role": "assistant", "content": content if content is not None else ""}
    for name in ("reasoning_content", "reasoning"):
        if message.get(name):
            own[name] = message[name]
    calls = message.get("tool_calls")
    if isinstance(calls, list) and calls:
        own["tool_calls"] = [_own_call(call, number) for number, call in enumerate(calls)]
    return own


def _own_call(call: Any, number: int) -> dict[str, Any]:
    call = call if isinstance(call, Mapping) else {}
    function = call.get("function")
    function = function if isinstance(function, Mapping) else {}
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    try:
        readable = isinstance(json.loads(text), dict)
    except ValueError:
        readable = False
    return {
        "id": call.get("id") or f"call_{number}",
        "type": "function",
        "function": {"name": function.get("name") or "unknown", "arguments": text if readable else "{}"},
    }
