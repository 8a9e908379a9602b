"""What vLLM's and verl's parsers make of the corpus, and that every difference from tbexp's reading is a known one.

vLLM's readings were recorded (recordings/README.md says how); verl's parsers are asked here.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tbexp.serving.parity import Difference, ask, compare
from tbexp.serving.recordings import Recording, read_recordings, read_tools

HERE = Path(__file__).parents[2] / "interpret" / "recordings"
FILES = [HERE / f"{name}.jsonl" for name in ("rules", "tiny", "smollm2")]
DOCS = Path(__file__).parents[3] / "docs" / "parity.md"
VERL_PARSERS = {"qwen3_xml": "qwen3_coder", "hermes": "hermes"}
BEGIN, END = "<!-- differences -->\n", "<!-- end of differences -->"


def load(name: str) -> Any:
    """A module beside this one; pytest's importlib mode puts no folder of tests on the path."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


differences = load("differences")


@pytest.fixture(scope="module")
def corpus() -> list[Recording]:
    return read_recordings(FILES, model="m", format="qwen3_xml", tools=read_tools(HERE / "tools.json"))


@pytest.fixture(scope="module")
def of_vllm(corpus: list[Recording]) -> list[Difference]:
    lines = [line for name in ("qwen3_xml", "hermes") for line in (HERE / f"vllm-{name}.jsonl").open(encoding="utf-8")]
    readings = {row["id"]: row for row in map(json.loads, lines)}
    assert readings.keys() == {each.id for each in corpus}
    return compare(corpus, "vllm", [readings[each.id] for each in corpus], ["reasoning", "text", "calls"])[1]


@pytest.fixture(scope="module")
def of_verl(corpus: list[Recording]) -> list[Difference]:
    pytest.importorskip("verl")
    found = []
    for format, parser in VERL_PARSERS.items():
        some = [each for each in corpus if each.format == format]
        _, reads, readings = ask("verl", some, python=sys.executable, tool_parser=parser)
        found += compare(some, "verl", readings, reads)[1]
    order = {each.id: place for place, each in enumerate(corpus)}
    return sorted(found, key=lambda each: order[each.recording.id])


def test_every_difference_from_vllm_is_of_a_known_kind(of_vllm):
    assert [each.as_dict() for each in of_vllm if differences.kind_of(each) is None] == []


@pytest.mark.train
def test_every_difference_from_verl_is_of_a_known_kind(of_verl):
    assert [each.as_dict() for each in of_verl if differences.kind_of(each) is None] == []


@pytest.mark.train
def test_the_documentation_lists_every_difference(of_vllm, of_verl):
    listed = DOCS.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    assert listed.strip() == differences.markdown({"vLLM 0.24.0": of_vllm, "verl 0.9.1": of_verl}).strip()


def test_outputs_that_tbexp_reads_without_an_error_and_vllm_otherwise_are_few(of_vllm, corpus):
    """What is left is what tbexp promises beyond others: text kept, tags in values, types as declared."""
    clean = [each for each in of_vllm if not any("error" in call for call in each.ours["calls"])]
    real = [each for each in clean if each.recording.model != "rules"]
    assert len(real) / sum(each.model != "rules" for each in corpus) < 0.1
