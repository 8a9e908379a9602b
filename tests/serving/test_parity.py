from __future__ import annotations

import ast
import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tbexp.config.schema import Endpoint
from tbexp.errors import UserError, WorldFailure
from tbexp.interpret import ToolSpec
from tbexp.interpret.rendering import chat_tool
from tbexp.serving.live import nothing_but, produced_text, read_live
from tbexp.serving.parity import ask, compare, differing, our_reading
from tbexp.serving.recordings import Recording

RENT = ToolSpec("rent", "Rents.", {"type": "object", "properties": {"days": {"type": "integer"}}})
CALL = '<tool_call>\n{"name": "rent", "arguments": {"days": 3}}\n</tool_call>'
READS = ["reasoning", "text", "calls"]


def recording(output: str, id: str = "r") -> Recording:
    return Recording(id, "m", "hermes", output, (RENT,))


@given(st.text())
def test_a_grammar_spells_its_text_in_one_line_of_printable_characters(text: str) -> None:
    grammar = nothing_but(text)
    assert grammar.isprintable() and ast.literal_eval(grammar.removeprefix("root ::= ")) == text


@pytest.mark.parametrize(
    ("theirs", "parts"),
    [
        ({"calls": [{"name": "rent", "arguments": '{"days": 3}'}], "text": "Wait. ", "reasoning": None}, ()),
        ({"calls": [{"name": "rent", "arguments": {"days": 3.0}}], "text": "Wait.", "reasoning": ""}, ()),
        ({"calls": [{"name": "rent", "arguments": '{"days": "3"}'}], "text": "Wait."}, ("calls",)),
        ({"calls": [{"name": "rent", "arguments": '{"days": true}'}], "text": "Wait."}, ("calls",)),
        ({"calls": [{"name": "rent", "arguments": "{"}], "text": "Wait."}, ("calls",)),
        ({"calls": [], "text": None, "reasoning": "Wait."}, ("calls", "text", "reasoning")),
        ({"calls": [{"name": "lend", "arguments": '{"days": 3}'}], "text": "Wait."}, ("calls",)),
    ],
)
def test_readings_agree_when_calls_are_equal_as_json_and_texts_but_for_white_space(theirs, parts):
    assert differing(our_reading(recording(f"Wait.\n{CALL}")), theirs, READS) == parts


def test_what_tbexp_cannot_read_agrees_with_nobody():
    ours = our_reading(recording("<tool_call>\n{}\n</tool_call>"))
    assert ours["calls"][0]["error"]
    assert differing(ours, {"calls": [{"name": "", "arguments": "{}"}], "text": ""}, READS) == ("calls",)


def test_agreement_is_counted_by_model_and_format_and_what_was_not_compared_is_told():
    some = [recording("a"), recording("b"), recording("c"), Recording("x", "n", "hermes", "a")]
    readings = [
        {"calls": [], "text": "a"},
        {"calls": [], "text": "z"},
        {"problem": "cannot"},
        {"calls": [], "text": "a"},
    ]
    (first, second), differences = compare(some, "other", readings, READS)
    assert (first.model, first.agree, first.differ, first.not_compared) == ("m", 1, 1, {"cannot": 1})
    assert first.mismatch == 0.5 and (second.model, second.agree, second.mismatch) == ("n", 1, 0.0)
    assert [(each.recording.output, each.parts) for each in differences] == [("b", ("text",))]


def test_a_reader_that_is_not_installed_is_the_users_to_fix():
    with pytest.raises(UserError, match=r"vllm cannot read here(.|\n)*parity\.python"):
        ask("vllm", [recording("a")], python=sys.executable, tool_parser="hermes", tokenizer=".")


# -- a live server


class Chat(BaseHTTPRequestHandler):
    """A chat server that obeys `structured_outputs` and reads calls as the test tells it to."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.bodies.append(body)  # type: ignore[attr-defined]
        status, answer = self.server.answer(body)  # type: ignore[attr-defined]
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        return None


@pytest.fixture
def server() -> Iterator[Any]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Chat)
    server.bodies = []  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def spelled(text: str) -> dict[str, Any]:
    data = text.encode()
    pieces = [data[place : place + 3] for place in range(0, len(data), 3)]
    return {"content": [{"token": "?", "bytes": list(piece), "logprob": 0.0} for piece in pieces]}


def endpoint(server: Any) -> Endpoint:
    return Endpoint(base_url=f"http://127.0.0.1:{server.server_address[1]}/v1", model="m", retries=0)


def _reproduces_calls_alone(body: dict[str, Any]) -> tuple[int, Any]:
    text = ast.literal_eval(body["structured_outputs"]["grammar"].removeprefix("root ::= "))
    produced = text if "rent" in text else "Something else: é🌱"
    calls = [{"id": "1", "type": "function", "function": {"name": "rent", "arguments": '{"days": 4}'}}]
    message = {"role": "assistant", "content": None, "tool_calls": calls} if "rent" in text else {"content": produced}
    return 200, {
        "choices": [{"message": message, "logprobs": spelled(produced + "<|im_end|>"), "finish_reason": "stop"}]
    }


def test_a_live_servers_message_is_compared_with_tbexps_reading_of_what_it_really_produced(server):
    server.answer = _reproduces_calls_alone
    produced, readings = asyncio.run(read_live(endpoint(server), [recording(CALL), recording("hello")]))
    assert [each.output for each in produced] == [CALL, "Something else: é🌱"]
    assert [each.made for each in produced] == ["forced", "live"]
    assert all(body["logprobs"] and body["tools"] for body in server.bodies)
    _, differences = compare(produced, "server", readings, READS)
    assert [(each.recording.made, each.parts) for each in differences] == [("forced", ("calls",))]


def test_a_server_that_does_not_tell_what_it_produced_is_compared_with_nothing(server):
    server.answer = lambda _: (200, {"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]})
    produced, readings = asyncio.run(read_live(endpoint(server), [recording("hi")]))
    (row,), _ = compare(produced, "server", readings, READS)
    assert (row.agree, row.differ) == (0, 0) and "log-probabilities" in next(iter(row.not_compared))


def test_a_server_that_fails_is_the_worlds_failure(server):
    server.answer = lambda _: (500, {"error": {"message": "broken"}})
    with pytest.raises(WorldFailure, match="failed"):
        asyncio.run(read_live(endpoint(server), [recording("hi")]))


def test_produced_text_is_put_together_from_bytes_or_tokens():
    assert produced_text({"logprobs": {"content": [{"token": "a", "bytes": None}, {"token": "b"}]}}) == "ab"
    assert produced_text({"logprobs": None}) is None and produced_text({}) is None


def test_a_parser_that_the_reader_does_not_know_is_the_users_mistake_with_the_names_that_it_knows(
    tmp_path: Path,
) -> None:
    program = tmp_path / "python"  # answers as other_readers.py does: -P SCRIPT REQUEST ANSWER
    program.write_text("""#!/bin/sh\necho '{"unknown": ["tool_parser", ["hermes", "qwen3_xml"]]}' > "$4"\n""")
    program.chmod(0o755)
    with pytest.raises(UserError) as told:
        ask("vllm", [], python=str(program), tool_parser="qwen_3")
    (problem,) = told.value.problems
    assert problem.where == "parity.tool_parser" and problem.fix == "one of: hermes, qwen3_xml"


def _parity_stage(server: Any, folder: Path, *outputs: str) -> subprocess.CompletedProcess[str]:
    lines = [{"id": each, "output": each, "format": "hermes", "tools": [chat_tool(RENT)]} for each in outputs]
    (folder / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = [
        "stages=[parity]",
        "parity=server",
        "parity.recordings=[rows.jsonl]",
        f"parity.endpoint.base_url={endpoint(server).base_url}",
        "parity.endpoint.model=m",
        "parity.compare=[text]",
        f"hydra.run.dir={folder / 'out'}",
    ]
    return subprocess.run([sys.executable, "-m", "tbexp", *words], cwd=folder, capture_output=True, text=True)


def test_the_report_says_how_many_outputs_a_live_server_reproduced(server, tmp_path):
    server.answer = _reproduces_calls_alone
    done = _parity_stage(server, tmp_path, CALL, "hello")
    said = "the server reproduced 1 of 2 outputs as they were recorded (forced); in place of the other 1"
    assert done.returncode == 0 and said in " ".join(done.stderr.split()), done.stderr
    assert said[1:] in (tmp_path / "out" / "report.md").read_text()
    made = [json.loads(line)["made"] for line in (tmp_path / "out" / "server.jsonl").read_text().splitlines()]
    assert made == ["forced", "live"]


def test_a_live_server_that_reproduces_no_recording_proves_nothing(server, tmp_path):
    server.answer = _reproduces_calls_alone
    done = _parity_stage(server, tmp_path, "hello")
    assert done.returncode == 3 and "the server reproduced none of 1 outputs" in done.stderr, done.stderr
    assert (tmp_path / "out" / "report.md").exists()
