from __future__ import annotations

import pytest

from tbexp.config.schema import VllmServer
from tbexp.serving.vllm_server import serve_command


@pytest.mark.parametrize(
    ("parser", "flags", "told"),
    [
        (None, [], []),
        (None, ["enable-auto-tool-choice"], []),  # vLLM does not start with it alone
        (None, ["enable-prefix-caching", "enable-auto-tool-choice"], ["--enable-prefix-caching"]),
        ("hermes", [], ["--enable-auto-tool-choice"]),  # and does not parse without it
        ("hermes", ["enable-auto-tool-choice", "x"], ["--x", "--enable-auto-tool-choice"]),
    ],
)
def test_vllm_is_told_to_read_calls_exactly_where_it_has_a_parser(
    parser: str | None, flags: list[str], told: list[str]
) -> None:
    words = serve_command(VllmServer(model="m", tool_call_parser=parser, flags=flags), served_name=None)
    assert [word for word in words if word in ("--enable-auto-tool-choice", *(f"--{flag}" for flag in flags))] == told
    assert ("--tool-call-parser" in words) == (parser is not None)
