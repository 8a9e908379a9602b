"""Why tbexp reads an output otherwise than vLLM or verl: each kind of difference, and the reason that it is wanted.

docs/parity.md shows the table that `markdown` makes; a difference of no kind here fails the tests.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tbexp.serving.parity import Difference

TAGS = ("</parameter>", "<parameter=", "</function>", "<tool_call>", "</tool_call>", "<function=")


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    reason: str
    fits: Callable[[Difference], bool]


def calls(reading: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [call for call in reading.get("calls") or []]


def errors(each: Difference) -> int:
    return sum("error" in call for call in each.ours["calls"])


def arguments(call: Mapping[str, Any]) -> Any:
    given = call["arguments"]
    return json.loads(given) if isinstance(given, str) else given


def pairs(each: Difference) -> Iterator[tuple[str, Any, Any]]:
    """Arguments that both have and that differ: name, ours, theirs."""
    for our, their in zip(calls(each.ours), calls(each.theirs), strict=False):
        theirs = arguments(their)
        if our["name"] == their["name"] and isinstance(theirs, dict):
            for key in our["arguments"].keys() & theirs.keys():
                if our["arguments"][key] != theirs[key] or type(our["arguments"][key]) is not type(theirs[key]):
                    yield key, our["arguments"][key], theirs[key]


def every_pair(each: Difference, test: Callable[[Any, Any], bool]) -> bool:
    found = [test(ours, theirs) for _, ours, theirs in pairs(each)]
    return bool(found) and all(found)


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for member in value.values() if isinstance(value, dict) else value:
            yield from texts(member)


def holds_a_tag(each: Difference) -> bool:
    return any(tag in text for call in calls(each.ours) for text in texts(call["arguments"]) for tag in TAGS)


KINDS = (
    Kind(
        "a request without tools",
        "A call of a request that offers no tools is passed on and answered by the tool layer, like any undeclared "
        "function. vLLM does not look for calls then, and shows them to the user as text.",
        lambda d: not d.recording.tools and not calls(d.theirs) and bool(calls(d.ours)),
    ),
    Kind(
        "a call inside a thought",
        "What stands in `<think>` is thought, not done: a model that weighs a call there has not made it. vLLM takes "
        "`<tool_call>` for the end of the thought; verl does not look for thoughts.",
        lambda d: "<tool_call>" in (d.ours["reasoning"] or ""),
    ),
    Kind(
        "a thought after text",
        "Text before `<think>` was said to the user. vLLM's server, told that the model thinks, takes all before "
        "`</think>` for thought.",
        lambda d: "reasoning" in d.parts and "<think>" in d.recording.output,
    ),
    Kind(
        "a thought that nothing opened",
        "Text before a `</think>` that nothing opened was thought. With a server that is told that the model does not "
        "think, vLLM leaves it in the text.",
        lambda d: "</think>" in d.recording.output and "reasoning" in d.parts,
    ),
    Kind(
        "`<function=` outside `<tool_call>`",
        "Only `<tool_call>` opens a call: a text that mentions a tag stays a text. vLLM takes `<function=` "
        "alone for a call.",
        lambda d: "<function=" in d.ours["text"] and len(calls(d.theirs)) > len(calls(d.ours)),
    ),
    Kind(
        "a call that cannot be read is answered, not left out",
        "The agent gets an error text for each call that cannot be read, so that it can mend it, in training as "
        "in evaluation. vLLM drops such a call or shows it to the user as text, and in hermes all other calls "
        "with it; verl drops it, and the agent never learns.",
        lambda d: errors(d) > 0 and len(calls(d.theirs)) < len(calls(d.ours)),
    ),
    Kind(
        "a call that cannot be read is answered, not repaired",
        "No broken call is made whole: text where an integer belongs, a parameter given twice or not closed, a "
        "call that was cut off, JSON with single quotes, NaN. Others guess, and call the tool with a value that "
        "the model did not write, or with an empty one. A policy that is trained on guesses is not the one that is "
        "served elsewhere.",
        lambda d: errors(d) > 0,
    ),
    Kind(
        "a value may contain what looks like a tag",
        "A value ends where the format ends it, so a text argument may hold `</parameter>` or `</tool_call>`. Others "
        "cut it there, or lose the call.",
        holds_a_tag,
    ),
    Kind(
        "`</tool_call>` may be missing at the end",
        "A call that is whole but for its last tag, where the output ends, is read. verl drops it in hermes, and reads "
        "it in qwen3_xml.",
        lambda d: "calls" in d.parts
        and not calls(d.theirs)
        and not d.recording.output.rstrip().endswith("</tool_call>"),
    ),
    Kind(
        "white space belongs to a text",
        "A declared string is the text as it stands, but for the one line break at each end that the format has. vLLM "
        "strips it.",
        lambda d: every_pair(d, lambda ours, theirs: isinstance(ours, str) and ours.strip() == theirs),
    ),
    Kind(
        "a declared string stays a string",
        "`null` in a parameter that is declared a string is the text `null`, also with white space around it where the "
        "schema admits null beside strings. Others make it null.",
        lambda d: every_pair(d, lambda ours, theirs: isinstance(ours, str) and theirs is None),
    ),
    Kind(
        "only declared types are made",
        "Where a schema admits strings and arrays, `7` is a string: no number was asked for.",
        lambda d: every_pair(d, lambda ours, theirs: isinstance(ours, str) and isinstance(theirs, (int, float))),
    ),
    Kind(
        "a string in quotes, where it would be another type without",
        "Beside other types `\"1\"` is the text `1`: there must be a way to write it. Others keep the quotes.",
        lambda d: every_pair(d, lambda ours, theirs: isinstance(ours, str) and theirs == f'"{ours}"'),
    ),
    Kind(
        "Python's None",
        "Published chat templates write null as `None`, so models do too. Where no string is admitted it is null.",
        lambda d: every_pair(d, lambda ours, theirs: ours is None and theirs == "None"),
    ),
    Kind(
        "a whole number with a fraction of zeros",
        "`7.0` is an integer in JSON schema.",
        lambda d: every_pair(d, lambda ours, theirs: isinstance(ours, int) and theirs == f"{ours}.0"),
    ),
    Kind(
        "values without a declared type",
        "A value whose type nobody declared, or declared by `$ref` or by properties alone, is what its JSON says. "
        "Others take it for a string, and a tool that wants an object gets a text.",
        lambda d: every_pair(d, lambda ours, theirs: not isinstance(ours, str) and isinstance(theirs, str)),
    ),
    Kind(
        "text after a call is kept",
        "Text between and after calls is said too, and kept. vLLM keeps only what stands before the first call.",
        lambda d: d.parts == ("text",) and len(d.ours["text"]) > len((d.theirs.get("text") or "").strip()),
    ),
)  # fmt: skip


def kind_of(each: Difference) -> str | None:
    return next((kind.name for kind in KINDS if kind.fits(each)), None)


def markdown(found: Mapping[str, Sequence[Difference]]) -> str:
    """A table of kinds with their counts by reader, and under it the recordings of each."""
    sorted_in = {
        reader: {kind.name: [each for each in differences if kind_of(each) == kind.name] for kind in KINDS}
        for reader, differences in found.items()
    }
    lines = ["| kind | " + " | ".join(found) + " | why it is wanted |", "|---|" + "---:|" * len(found) + "---|"]
    for kind in KINDS:
        counts = [len(kinds[kind.name]) for kinds in sorted_in.values()]
        if any(counts):
            lines.append(f"| {kind.name} | {' | '.join(map(str, counts))} | {kind.reason} |")
    lines.append(f"| together | {' | '.join(str(len(differences)) for differences in found.values())} | |")
    for reader, kinds in sorted_in.items():
        lines += ["", f"<details><summary>{reader}: the recordings of each kind</summary>", ""]
        for name, differences in kinds.items():
            if differences:
                lines.append(f"- {name}: {', '.join(f'`{each.recording.id}`' for each in differences)}")
        lines += ["", "</details>"]
    return "\n".join(lines) + "\n"
