"""Reads recorded outputs with the parsers of vLLM or verl: `python other_readers.py REQUEST.json ANSWER.json`.

Runs in any Python that has the package, so it imports nothing of tbexp and writes a file: these packages print to
stdout. REQUEST: reader (vllm or verl), tokenizer (folder, vllm only), tool_parser, reasoning_parser, rows of output,
tools (OpenAI shape), thinking, thinking_open. ANSWER: version and readings, one a row: reasoning, text, calls of name
and arguments (JSON text), or problem. reads: which of the three the reader decides at all. Instead of these, unknown:
which of the two names the reader does not know, with those that it does.

vLLM is asked as its chat server does without streaming: one parser object a request, made of the reasoning and the tool
parser of these names, `enable_thinking` as the request would have had it.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import logging
import sys
from pathlib import Path
from typing import Any


class Unknown(Exception):
    """The name of a setting that names no parser of the reader, and the names that do."""


def vllm_readings(request: dict[str, Any]) -> list[dict[str, Any]]:
    from transformers import AutoTokenizer
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.parser.parser_manager import ParserManager
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    for name, manager in (("tool_parser", ToolParserManager), ("reasoning_parser", ReasoningParserManager)):
        if request[name] is not None and request[name] not in (known := manager.list_registered()):
            raise Unknown(name, sorted(known))
    tokenizer = AutoTokenizer.from_pretrained(request["tokenizer"])
    readings: list[dict[str, Any]] = []
    for row in request["rows"]:
        reasoning_parser = request["reasoning_parser"] if row["thinking"] else None
        kind = ParserManager.get_parser(request["tool_parser"], reasoning_parser, enable_auto_tools=True)
        messages: Any = [{"role": "user", "content": "x"}]
        asked = ChatCompletionRequest(messages=messages, model="m", tools=row["tools"] or None)
        parser = kind(tokenizer, asked.tools, chat_template_kwargs={"enable_thinking": row["thinking"]})
        try:
            reasoning, text, calls = parser.parse(
                row["output"],
                asked,
                enable_auto_tools=True,
                model_output_token_ids=tokenizer(row["output"], add_special_tokens=False)["input_ids"],
            )
        except Exception as problem:  # a parser that fails on an output is a finding
            readings.append({"problem": f"{type(problem).__name__}: {problem}"[:300]})
            continue
        told = [{"name": call.name, "arguments": call.arguments} for call in calls or []]
        readings.append({"reasoning": reasoning, "text": text, "calls": told})
    return readings


class Recorded:
    """A tokenizer whose text is the recorded output, whatever the tokens."""

    pad_token = ""

    def __init__(self, text: str):
        self.text = text

    def decode(self, ids: Any, **_: Any) -> str:
        return self.text


def verl_readings(request: dict[str, Any]) -> list[dict[str, Any]]:
    from verl.experimental.agent_loop.tool_parser import ToolParser
    from verl.tools.schemas import OpenAIFunctionToolSchema

    async def one(row: dict[str, Any]) -> dict[str, Any]:
        tools, refused = [], []
        for tool in row["tools"]:
            try:
                tools.append(OpenAIFunctionToolSchema.model_validate(tool))
            except ValueError:
                refused.append(tool["function"]["name"])
        parser = ToolParser.get_tool_parser(request["tool_parser"], Recorded(row["output"]))
        try:
            _, calls = await parser.extract_tool_calls([0], tools)
        except Exception as problem:
            return {"problem": f"{type(problem).__name__}: {problem}"[:300]}
        unknown = sorted({call.name for call in calls} & set(refused))
        if unknown:
            return {"problem": f"verl takes no tool with the parameters of {', '.join(unknown)}"}
        return {"calls": [{"name": call.name, "arguments": call.arguments} for call in calls]}

    async def every() -> list[dict[str, Any]]:
        return [await one(row) for row in request["rows"]]

    return asyncio.run(every())


READERS = {
    "vllm": (vllm_readings, ["reasoning", "text", "calls"]),
    "verl": (verl_readings, ["calls"]),  # what is text and what is reasoning, its agent loop does not ask
}


def main() -> None:
    source, target = map(Path, sys.argv[1:])
    logging.disable(logging.ERROR)  # the parsers log each output that they cannot read, with its traceback
    request = json.loads(source.read_text(encoding="utf-8"))
    reader = request["reader"]
    read, reads = READERS[reader]
    try:
        answer = {"version": importlib.metadata.version(reader), "reads": reads, "readings": read(request)}
    except Unknown as problem:
        answer = {"unknown": problem.args}
    target.write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main()
