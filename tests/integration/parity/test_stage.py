"""`tbexp stages=[parity]` as a command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CORPUS = Path(__file__).parents[2] / "interpret" / "recordings"


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tbexp", "stages=[parity]", f"hydra.run.dir={folder / 'out'}", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


@pytest.mark.train
def test_recordings_are_compared_and_more_differences_than_allowed_end_with_3(tmp_path):
    pytest.importorskip("verl")
    good = '<tool_call>\n{"name": "rent", "arguments": {}}\n</tool_call>'
    rows = [{"id": "good", "output": good}, {"id": "bad", "output": good.replace("{}", "7")}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({**row, "format": "hermes"}) + "\n" for row in rows))
    words = ("parity.recordings=[rows.jsonl]",)
    done = run(tmp_path, *words)
    assert done.returncode == 3 and "1 of 2 outputs are read differently (50.0%)" in done.stderr, done.stderr
    out = tmp_path / "out"
    (difference,) = [json.loads(line) for line in (out / "differences.jsonl").read_text().splitlines()]
    assert difference["id"] == "bad" and difference["tbexp"]["calls"][0]["error"] and difference["parts"] == ["calls"]
    (row,) = json.loads((out / "agreement.json").read_text())["table"]
    assert (row["model"], row["format"], row["agree"], row["differ"]) == ("tiny", "hermes", 1, 1)
    report = (out / "report.md").read_text()
    assert "| tiny | hermes |" in report and "### bad: calls" in report and '"arguments": 7' in report
    assert len((out / "verl.jsonl").read_text().splitlines()) == 2
    assert run(tmp_path, *words, "parity.max_mismatch=0.5").returncode == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), ("parity.recordings: names no file",)),
        (("parity.recordings=[none.jsonl]",), ("there is no file none.jsonl",)),
        (
            ("parity.recordings=[none.jsonl]", "parity.tools=none.json", "dry_run=true"),
            ("there is no file none.jsonl", "there is no file none.json"),
        ),
        (
            (
                "parity.recordings=[none.jsonl]",
                "parity.python=none",
                "parity.tokenizer=none",
                "parity.readers=[vllm,vllm]",
            ),
            ("none.jsonl", "parity.python", "has no tokenizer.json", "vllm stands there twice"),
        ),
        (("parity=server", "parity.recordings=[a]"), ("parity.endpoint.base_url", "parity.endpoint.model")),
        (("parity.recordings=[a]", "parity.readers=[sglang]"), ("parity.readers",)),
        (("parity.recordings=[a]", "parity.compare=[text]"), ("verl reads calls alone",)),
        (
            ("parity.recordings=[a]", "parity.readers=[]", "parity.max_mismatch=2"),
            ("nobody else", "parity.max_mismatch"),
        ),
        (("parity.recordings=[a]", "parity=vllm", "model=folder"), ("parity.tokenizer",)),
    ],
)
def test_what_cannot_work_is_told_at_once(tmp_path, words, told):
    done = run(tmp_path, *words)
    assert done.returncode == 2 and all(each in done.stderr for each in told), done.stderr
    assert not (tmp_path / "out").exists()


def test_a_dry_run_reads_the_recordings_and_writes_nothing(tmp_path):
    done = run(
        tmp_path,
        f"parity.recordings=[{CORPUS / 'tiny.jsonl'}]",
        f"parity.tools={CORPUS / 'tools.json'}",
        "dry_run=true",
    )
    assert done.returncode == 0 and "would compare" in done.stderr and not (tmp_path / "out").exists(), done.stderr
