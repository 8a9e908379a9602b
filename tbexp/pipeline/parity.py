"""`tbexp stages=[parity]`: recorded outputs read by tbexp and by others, and every difference written down.

Decided here: what is asked of which reader, where the findings are kept, and when they are too many (exit 3): when for
one model, format and reader more than parity.max_mismatch of the outputs are read differently, or none is compared.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tbexp.config.checks import named_keys
from tbexp.config.schema import Config
from tbexp.config.secrets import provide
from tbexp.config.whole import write_whole
from tbexp.errors import Problem, UserError, WorldFailure
from tbexp.pipeline import identity
from tbexp.pipeline.files import sha256_of, write_json
from tbexp.pipeline.progress import Progress
from tbexp.serving.parity import Agreement, Difference, ask, compare
from tbexp.serving.recordings import Recording, read_recordings, read_tools

VERL_PARSERS = {"qwen3_xml": "qwen3_coder", "hermes": "hermes"}
SHOWN = 10  # differences in the report of each reader; the file has all
Readings = list[tuple[Recording, dict[str, Any], list[str]]]  # an output, another's reading, and what it reads


def parity(config: Config, *, run_dir: Path) -> None:
    """Writes report.md, agreement.json, differences.jsonl and each reader's readings.

    Raises UserError (files that cannot be read, a reader that is not there) and WorldFailure (too many differences).
    """
    wanted = config.parity
    tools = read_tools(Path(wanted.tools)) if wanted.tools else {}
    recordings = read_recordings(
        [Path(file) for file in wanted.recordings],
        model=config.model.name,
        format=config.model.format,
        tools=tools,
        thinking=wanted.thinking,
        thinking_open=wanted.thinking_open,
    )
    with Progress() as progress:
        if config.dry_run:
            progress.say(
                f"would compare {len(recordings)} outputs with {', '.join(wanted.readers)}; nothing was written"
            )
            return
        folder = place(config, run_dir)
        folder.mkdir(parents=True, exist_ok=True)
        table: list[Agreement] = []
        differences: list[Difference] = []
        notes: list[str] = []
        reproduced = True
        for reader in wanted.readers:
            version, found = read_by(reader, config, recordings)
            write_readings(folder / f"{reader}.jsonl", found)
            rows, more = judged(found, f"{reader} {version}".strip(), wanted.compare)
            table += rows
            differences += more
            if reader == "server":
                notes += produced_here(found)
                reproduced = any(each.made.startswith("forced") for each, _, _ in found)
        write_findings(folder, table, differences, recordings, notes)
        columns = ["model", "format", "reader", "outputs", "agree", "differ", "not compared"]
        progress.table(f"parity of {len(recordings)} outputs", columns, [cells(row) for row in table])
        for note in notes:
            progress.say(note)
        progress.say(f"report: {os.path.relpath(folder / 'report.md')}")
    refuse(table, wanted.max_mismatch, folder)
    if not reproduced:
        raise WorldFailure(
            f"{notes[0]}: its reading of these recordings is not known; it may ignore structured_outputs"
        )


def place(config: Config, run_dir: Path) -> Path:
    """outputs/<experiment>/parity-<key>, or the folder that hydra.run.dir names."""
    from tbexp.config.compose import run_id_of

    if run_dir.name != run_id_of(config):
        return run_dir
    settings = config.parity.model_dump(mode="json", exclude={"name", "max_mismatch"})
    files = [sha256_of(Path(file)) for file in config.parity.recordings]
    return run_dir.with_name(f"parity-{identity.digest({'settings': settings, 'files': files}, 8)}")


def read_by(reader: str, config: Config, recordings: Sequence[Recording]) -> tuple[str, Readings]:
    """The reader's version and its readings, in the order of the recordings."""
    wanted = config.parity
    if reader == "server":
        from tbexp.serving.live import read_live

        asked = [variable for key, variable in named_keys(config) if key.startswith("parity.")]
        provide(config.launcher.secrets_file, asked)
        produced, answers = asyncio.run(read_live(wanted.endpoint, recordings))
        return "", [(r, a, ["reasoning", "text", "calls"]) for r, a in zip(produced, answers, strict=True)]
    found: dict[int, tuple[Recording, dict[str, Any], list[str]]] = {}
    version = ""
    with tempfile.TemporaryDirectory(prefix="tbexp-tokenizer-") as scratch:
        for format in dict.fromkeys(each.format for each in recordings):
            numbered = [(number, each) for number, each in enumerate(recordings) if each.format == format]
            version, reads, answers = ask(
                reader,
                [each for _, each in numbered],
                python=wanted.python or sys.executable,
                tool_parser=VERL_PARSERS[format] if reader == "verl" else wanted.tool_parser or format,
                reasoning_parser=wanted.reasoning_parser,
                tokenizer=tokenizer(config, Path(scratch)) if reader == "vllm" else None,
            )
            for (number, each), answer in zip(numbered, answers, strict=True):
                found[number] = (each, answer, reads)
    return version, [found[number] for number in range(len(recordings))]


def tokenizer(config: Config, scratch: Path) -> str:
    """The folder of the tokenizer that vLLM's parsers are made with."""
    if config.parity.tokenizer is not None:
        return str(Path(config.parity.tokenizer).absolute())
    if config.model.kind == "folder":
        return str(Path(str(config.model.path)).absolute())
    if not (scratch / "tokenizer.json").exists():
        try:
            from tbexp.samples.tiny_words import make_tokenizer

            make_tokenizer().save_pretrained(scratch)
        except ImportError as missing:
            fix = "a folder with a tokenizer, or install the train extra"
            raise UserError(Problem(f"the tiny tokenizer cannot be made: {missing}", "parity.tokenizer", fix)) from None
    return str(scratch)


def judged(found: Readings, reader: str, parts: Sequence[str]) -> tuple[list[Agreement], list[Difference]]:
    reads = [part for part in found[0][2] if part in parts]
    return compare([each[0] for each in found], reader, [each[1] for each in found], reads)


def write_readings(file: Path, found: Readings) -> None:
    lines = [
        json.dumps({"id": each.id, "output": each.output} | ({"made": each.made} if each.made else {}) | answer)
        for each, answer, _ in found
    ]
    write_whole(file, "".join(f"{line}\n" for line in lines))


def produced_here(found: Readings) -> list[str]:
    """How much of what a live server read is what was recorded: of the rest it shows its own outputs alone."""
    forced = sum(each.made.startswith("forced") for each, _, _ in found)
    live = sum(each.made.startswith("live") for each, _, _ in found)
    if not forced + live:
        return []
    if not forced:
        return [f"the server reproduced none of {live} outputs as they were recorded, and was compared on others"]
    note = f"the server reproduced {forced} of {forced + live} outputs as they were recorded (forced)"
    return [
        f"{note}; in place of the other {live} it wrote something else, which was compared (live)" if live else note
    ]


def cells(row: Agreement) -> tuple[Any, ...]:
    skipped = sum(row.not_compared.values())
    return (row.model, row.format, row.reader, row.agree + row.differ + skipped, row.agree, row.differ, skipped)


def write_findings(
    folder: Path,
    table: Sequence[Agreement],
    differences: Sequence[Difference],
    recordings: Sequence[Recording],
    notes: Sequence[str],
) -> None:
    lines = [json.dumps(each.as_dict()) for each in differences]
    write_whole(folder / "differences.jsonl", "".join(f"{line}\n" for line in lines))
    rows = [
        {"model": r.model, "format": r.format, "reader": r.reader, "agree": r.agree, "differ": r.differ}
        | {"not_compared": r.not_compared}
        for r in table
    ]
    rebuilt = sum(each.rebuilt for each in recordings)
    write_json(folder / "agreement.json", {"recordings": len(recordings), "rebuilt": rebuilt, "table": rows})
    write_whole(folder / "report.md", report(table, differences, len(recordings), rebuilt, notes))


def report(
    table: Sequence[Agreement], differences: Sequence[Difference], outputs: int, rebuilt: int, notes: Sequence[str] = ()
) -> str:
    lines = ["# Parity of readings", "", f"{outputs} outputs, each read by tbexp and by:", ""]
    if rebuilt:
        note = (
            f"{rebuilt} of the outputs are not recordings: they were written anew from a recorded reading, so they say"
        )
        lines += [f"{note} nothing of outputs that cannot be read.", ""]
    lines += ["| model | format | reader | outputs | agree | differ | not compared |", "|---|---|---|---|---|---|---|"]
    lines += ["| " + " | ".join(str(cell) for cell in cells(row)) + " |" for row in table]
    lines += [line for note in notes for line in ("", f"{note[0].upper()}{note[1:]}.")]
    reasons: dict[tuple[str, str], int] = {}
    for row in table:
        for why, count in row.not_compared.items():
            reasons[row.reader, why] = reasons.get((row.reader, why), 0) + count
    if reasons:
        lines += ["", "Not compared:", ""]
        lines += [f"- {reader}, {count} outputs: {why}" for (reader, why), count in reasons.items()]
    for reader in dict.fromkeys(each.reader for each in differences):
        own = [each for each in differences if each.reader == reader]
        more = f", the first {SHOWN}; differences.jsonl has all" if len(own) > SHOWN else ""
        lines += ["", f"## {len(own)} differences with {reader}{more}"]
        for each in own[:SHOWN]:
            lines += [
                "",
                f"### {each.recording.id}: {', '.join(each.parts)}",
                "",
                *block("output", each.recording.output),
            ]
            lines += block("tbexp", shown(each.ours)) + block(reader, shown(each.theirs))
    return "\n".join(lines) + "\n"


def block(title: str, text: str) -> list[str]:
    fence = "`" * max(3, 1 + max((len(run) for run in text.split() if set(run) == {"`"}), default=0))
    return [f"{title}:", "", fence + "text", text, fence, ""]


def shown(reading: Mapping[str, Any]) -> str:
    text = json.dumps(reading, ensure_ascii=False, indent=1)
    return text.encode("utf-8", "backslashreplace").decode()  # a reading may hold lone surrogates


def refuse(table: Sequence[Agreement], allowed: float, folder: Path) -> None:
    wrong = []
    for row in table:
        where = f"{row.model}, {row.format}, {row.reader}"
        if row.mismatch > allowed:
            total = row.agree + row.differ
            wrong.append(f"{where}: {row.differ} of {total} outputs are read differently ({row.mismatch:.1%})")
        elif not row.agree + row.differ:
            wrong.append(f"{where}: no output could be compared ({next(iter(row.not_compared), '')})")
    if wrong:
        head = f"parity.max_mismatch allows {allowed:.1%}; every difference is in {os.path.relpath(folder)}/report.md"
        raise WorldFailure("\n  ".join([head, *wrong]))
