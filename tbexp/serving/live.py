"""A live chat server as another reader.

A chat server reads only what its own model has just produced; it cannot be given an output to read. Decided here: how
it is brought to show both. Each request asks for the log-probabilities of the tokens, whose bytes together are the
output, and holds the server to the recorded output by a grammar that spells nothing else (`structured_outputs`, a
field of vLLM's that other servers ignore or refuse). tbexp then reads the output that was really produced, and its
reading is compared with the server's message. This shows whether both read alike what this server produces, with its
template, tokenizer and parsers as they run. It cannot show what the server would make of recordings that it did not
reproduce.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tbexp.config.schema import Endpoint
from tbexp.errors import WorldError, WorldFailure
from tbexp.interpret.rendering import chat_tool
from tbexp.policy.endpoint import ChatEndpoint
from tbexp.serving.recordings import Recording

LONGEST = 1024  # tokens that a server may produce for a recording


async def read_live(
    endpoint: Endpoint, recordings: Sequence[Recording], *, role: str = "parity"
) -> tuple[list[Recording], list[dict[str, Any]]]:
    """What the server produced in place of each recording, and its readings. Raises WorldFailure."""
    client = ChatEndpoint(endpoint, role=role)
    try:
        answers = await asyncio.gather(*(client.complete(_body(each)) for each in recordings))
    except WorldError as problem:
        raise WorldFailure(f"the server at {endpoint.base_url} failed: {problem.message}") from problem
    finally:
        await client.close()
    produced, readings = [], []
    for recording, answer in zip(recordings, answers, strict=True):
        choice = answer["choices"][0]
        output = produced_text(choice)
        if output is None:
            produced.append(recording)
            readings.append({"problem": "the server gives no log-probabilities, so what it produced is not known"})
            continue
        kind = "forced" if output == recording.output else "live"
        produced.append(replace(recording, output=output, made=f"{kind}; {recording.made}".rstrip("; ")))
        readings.append(_reading(choice["message"]))
    return produced, readings


def _body(recording: Recording) -> dict[str, Any]:
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": "Repeat: " + recording.output}],
        "temperature": 0.0,
        "max_tokens": LONGEST,
        "logprobs": True,
        "skip_special_tokens": False,
        "chat_template_kwargs": {"enable_thinking": recording.thinking},
        "structured_outputs": {"grammar": nothing_but(recording.output)},
    }
    if recording.tools:
        body["tools"] = [chat_tool(tool) for tool in recording.tools]
    return body


def nothing_but(text: str) -> str:
    """The EBNF grammar, as xgrammar reads it, of this one text. vLLM's own `choice` fails on a text with a line break,
    which it does not escape.
    """
    return f'root ::= "{"".join(map(_spelled, text))}"'


def _spelled(character: str) -> str:
    if character in _ESCAPED:
        return _ESCAPED[character]
    if character.isprintable():
        return character
    return f"\\u{ord(character):04x}" if ord(character) < 0x10000 else f"\\U{ord(character):08x}"


_ESCAPED = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def produced_text(choice: Mapping[str, Any]) -> str | None:
    """The text of the produced tokens, without an end token; None where the server does not tell them."""
    tokens = (choice.get("logprobs") or {}).get("content")
    if not tokens:
        return None
    data = b"".join(
        bytes(token["bytes"]) if token.get("bytes") is not None else token["token"].encode() for token in tokens
    )
    text = data.decode("utf-8", "replace")
    for end in ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "</s>"):
        text = text.removesuffix(end)
    return text


def _reading(message: Mapping[str, Any]) -> dict[str, Any]:
    calls = [call.get("function") or {} for call in message.get("tool_calls") or []]
    return {
        "reasoning": message.get("reasoning_content") or message.get("reasoning"),
        "text": message.get("content"),
        "calls": [{"name": call.get("name", ""), "arguments": call.get("arguments") or "{}"} for call in calls],
    }
