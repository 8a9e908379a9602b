"""Times of reading and rendering: `python tests/benchmarks/bench_interpret.py [folder of a tokenizer with a template]`.

Prints microseconds per call, and seconds for a megabyte of adversarial output.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from tbexp.interpret import Message, Renderer, ToolCall, ToolSpec, read, render_call


def timed(what: str, run: Callable[[], object], times: int) -> None:
    run()
    start = time.perf_counter()
    for _ in range(times):
        run()
    print(f"{what:50s} {(time.perf_counter() - start) / times * 1e6:12.1f} us")


def main() -> None:
    schema = {"type": "object", "properties": {"days": {"type": "integer"}, "note": {"type": ["string", "null"]}}}
    tools = [ToolSpec(f"tool_{i}", "Does something useful with a machine. " * 5, schema) for i in range(20)]
    call = ToolCall("tool_1", {"days": 3, "note": "left at the gate"}, "call_0")
    for format in ("qwen3_xml", "hermes"):
        output = f"<think>hm</think>\n\nOne moment.\n{render_call(call, format=format, tools=tools)}"
        timed(f"{format}: read one call", lambda o=output, f=format: read(o, format=f, tools=tools), 2000)  # type: ignore[misc]
        for unit in ("<tool_call>", "<tool_call></tool_call>", "<tool_call><function=f><parameter=a></tool_call>"):
            flood = unit * (1_000_000 // len(unit))
            timed(f"{format}: 1 MB of {unit[:30]}", lambda o=flood, f=format: read(o, format=f, tools=tools), 1)  # type: ignore[misc]
    if len(sys.argv) > 1:
        from transformers import AutoTokenizer

        renderer = Renderer(AutoTokenizer.from_pretrained(sys.argv[1]), format="qwen3_xml")
        start = [Message("system", "Rules of the desk. " * 1000), Message("user", "A digger, please.")]
        timed("open, prefix known", lambda: renderer.open(start, tools), 100)
        conversation = renderer.open(start, tools)
        ids = renderer.encode(render_call(call, format="qwen3_xml", tools=tools) + renderer.end_text)
        timed("produced, one call", lambda: conversation.produced(ids, None), 500)
        answer = [Message("tool", '{"machine": "D-7", "state": "free"}', name="tool_1", call_id="call_0")]

        def step() -> None:
            conversation.produced(ids, None)
            conversation.add(answer)

        timed("produced and add, one tool answer", step, 500)


if __name__ == "__main__":
    main()
