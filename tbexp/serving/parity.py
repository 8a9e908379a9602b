"""Does another reader make the same of an output as tbexp does?

Decided here: when two readings agree. Calls agree when names and arguments are equal as JSON, types included; one that
tbexp answers with an error agrees with none. Text and reasoning agree when they are equal but for white space at either
end. Left to others: where outputs come from (recordings.py), how another reader is asked (other_readers.py, live.py).
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tbexp.errors import Problem, UserError
from tbexp.interpret import Reading, read
from tbexp.interpret.rendering import chat_tool
from tbexp.serving.recordings import Recording

PARTS = ("calls", "text", "reasoning")
SCRIPT = Path(__file__).with_name("other_readers.py")
Plain = Mapping[str, Any]  # a reading as JSON: reasoning, text, calls


@dataclass(frozen=True, slots=True)
class Difference:
    """An output that two readers read differently. parts: in what."""

    recording: Recording
    reader: str
    parts: tuple[str, ...]
    ours: Plain
    theirs: Plain

    def as_dict(self) -> dict[str, Any]:
        of = self.recording
        kept = {"id": of.id, "model": of.model, "format": of.format, "reader": self.reader, "parts": list(self.parts)}
        return {**kept, "made": of.made, "output": of.output, "tbexp": dict(self.ours), self.reader: dict(self.theirs)}


@dataclass(slots=True)
class Agreement:
    """Of one model, format and reader. not_compared: why, for each output that the reader could not take."""

    model: str
    format: str
    reader: str
    agree: int = 0
    differ: int = 0
    not_compared: dict[str, int] = field(default_factory=dict)

    @property
    def mismatch(self) -> float:
        """Share of the compared outputs that are read differently; 0 when none was compared."""
        compared = self.agree + self.differ
        return self.differ / compared if compared else 0.0


def our_reading(recording: Recording) -> dict[str, Any]:
    """What tbexp makes of it, by the function that training and evaluation use."""
    return plain(
        read(
            recording.output,
            format=recording.format,
            tools=recording.tools,
            thinking_open=recording.thinking_open,
        )
    )


def plain(reading: Reading) -> dict[str, Any]:
    calls = [
        {"name": call.name, "arguments": dict(call.arguments)} | ({"error": call.error} if call.error else {})
        for call in reading.calls
    ]
    return {"reasoning": reading.reasoning, "text": reading.text, "calls": calls}


def differing(ours: Plain, theirs: Plain, reads: Sequence[str]) -> tuple[str, ...]:
    """In which parts two readings differ, of those that the other reader reads."""
    parts = []
    for part in PARTS:
        if part not in reads:
            continue
        if part == "calls":
            same = [_call(call) for call in ours["calls"]] == [_call(call) for call in theirs.get("calls") or []]
            if not same or any(call.get("error") for call in ours["calls"]):
                parts.append(part)
        elif (ours[part] or "").strip() != (theirs.get(part) or "").strip():
            parts.append(part)
    return tuple(parts)


def _call(call: Plain) -> str:
    """A call as text that is equal for equal JSON alone: 1 and 1.0 are one number, true and "1" are others."""
    arguments = call["arguments"]
    if isinstance(arguments, str):  # as servers write them
        try:
            arguments = json.loads(arguments)
        except ValueError:
            arguments = {"not JSON": arguments}
    return json.dumps([call["name"], _numbers(arguments)], sort_keys=True)


def _numbers(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {key: _numbers(member) for key, member in value.items()}
    return [_numbers(member) for member in value] if isinstance(value, list) else value


def compare(
    recordings: Sequence[Recording], reader: str, readings: Sequence[Plain], reads: Sequence[str]
) -> tuple[list[Agreement], list[Difference]]:
    """Agreement by model and format, and every difference."""
    table: dict[tuple[str, str], Agreement] = {}
    differences = []
    for recording, theirs in zip(recordings, readings, strict=True):
        key = (recording.model, recording.format)
        row = table.setdefault(key, Agreement(recording.model, recording.format, reader))
        if problem := theirs.get("problem"):
            row.not_compared[problem] = row.not_compared.get(problem, 0) + 1
            continue
        ours = our_reading(recording)
        parts = differing(ours, theirs, reads)
        if parts:
            row.differ += 1
            differences.append(Difference(recording, reader, parts, ours, theirs))
        else:
            row.agree += 1
    return [table[key] for key in sorted(table)], differences


def ask(
    reader: str,
    recordings: Sequence[Recording],
    *,
    python: str,
    tool_parser: str,
    reasoning_parser: str | None = None,
    tokenizer: str | None = None,
) -> tuple[str, list[str], list[dict[str, Any]]]:
    """The other reader's version, which parts it reads, and its readings.

    python: an interpreter that has the reader's package. UserError when it has not.
    """
    request = {
        "reader": reader,
        "tokenizer": tokenizer,
        "tool_parser": tool_parser,
        "reasoning_parser": reasoning_parser,
        "rows": [
            {
                "output": each.output,
                "tools": [chat_tool(tool) for tool in each.tools],
                "thinking": each.thinking,
                "thinking_open": each.thinking_open,
            }
            for each in recordings
        ],
    }
    with tempfile.TemporaryDirectory(prefix="tbexp-parity-") as scratch:
        source, target = Path(scratch) / "request.json", Path(scratch) / "answer.json"
        source.write_text(json.dumps(request), encoding="utf-8")
        # In the folder of no package: a script's own folder is on its path, and ours has files named as others'.
        done = subprocess.run(
            [python, "-P", str(SCRIPT), str(source), str(target)], capture_output=True, text=True, cwd=scratch
        )
        if done.returncode:
            last = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode} and no message"])[-1]
            fix = f"parity.python=PYTHON of an environment that has {reader}, or leave it out of parity.readers"
            raise UserError(Problem(f"{reader} cannot read here: {last}", "parity.readers", fix))
        answer = json.loads(target.read_text(encoding="utf-8"))
    if "unknown" in answer:
        name, known = answer["unknown"]
        raise UserError(
            Problem(f"{reader} has no {name} `{request[name]}`", f"parity.{name}", f"one of: {', '.join(known)}")
        )
    return answer["version"], answer["reads"], answer["readings"]
