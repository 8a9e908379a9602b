from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tbexp.config.schema import Endpoint, ModelPrice, Sampling
from tbexp.errors import UserError, WorldError, WorldFailure
from tbexp.interpret.messages import Message, ToolSpec
from tbexp.policy import ChatEndpoint, ChatPolicy, Generated, OutOfContext, OwnTime, TokenEndpoint, Usage, metered
from tbexp.policy.endpoint import cost_usd, pause_s, usage_of

KEY = "sk-planted-0123456789"
ENV = "TBEXP_TEST_KEY"
Answer = tuple[int, dict[str, str], Any]  # status, headers, body


def said(content: str | None = "hi", **message: Any) -> Answer:
    usage = {"prompt_tokens": 10, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 6}}
    choice = {"message": {"role": "assistant", "content": content, **message}, "finish_reason": "stop"}
    return 200, {}, {"choices": [choice], "usage": usage}


@contextmanager
def server(answer: Callable[[int, dict[str, Any]], Answer]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A real HTTP server; `answer` gets the number and the body of a request. Yields its URL and what it was sent."""
    seen: list[dict[str, Any]] = []
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                number = len(seen)
                seen.append({**body, "_key": self.headers.get("Authorization"), "_path": self.path})
            status, headers, payload = answer(number, body)
            data = payload.encode() if isinstance(payload, str) else json.dumps(payload).encode()
            self.send_response(status)
            for name, value in {"Content-Length": str(len(data)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            return None

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_port}/v1", seen
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


@pytest.fixture(autouse=True)
def key_and_short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV, KEY)
    monkeypatch.setattr("tbexp.policy.endpoint._FIRST_PAUSE_S", 0.001)


def endpoint(url: str, **options: Any) -> Endpoint:
    return Endpoint(base_url=url, model="m", api_key_env=ENV, **{"retries": 3, **options})


def ask(config: Endpoint, times: int = 1, **options: Any) -> list[str]:
    async def all_of_them() -> list[str]:
        use = ChatEndpoint(config, **options)
        try:
            calls = [use.text([{"role": "user", "content": "?"}], temperature=0.5) for _ in range(times)]
            return list(await asyncio.gather(*calls))
        finally:
            await use.close()

    return asyncio.run(all_of_them())


def test_an_answer_is_asked_for_with_key_model_and_extras() -> None:
    with server(lambda number, body: said("hello")) as (url, seen):
        assert ask(endpoint(url, extra_body={"min_p": 0.1})) == ["hello"]
    assert seen[0]["_key"] == f"Bearer {KEY}" and seen[0]["_path"] == "/v1/chat/completions"
    assert (seen[0]["model"], seen[0]["min_p"], seen[0]["temperature"]) == ("m", 0.1, 0.5)


@pytest.mark.parametrize(
    "failure",
    [
        (429, {"Retry-After": "0"}, "slow down"),
        (500, {}, "oops"),
        (503, {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, ""),
        (200, {}, "<html>not json</html>"),
        (200, {}, {"choices": []}),
        (200, {}, {"choices": [{"message": None}]}),
        (200, {}, [1]),
    ],
    ids=lambda f: f"{f[0]} {str(f[2])[:12]}",
)
def test_what_may_pass_is_tried_again(failure: Answer) -> None:
    with server(lambda number, body: failure if number < 2 else said()) as (url, seen):
        assert ask(endpoint(url)) == ["hi"]
    assert len(seen) == 3


def test_what_does_not_pass_is_a_world_error_of_the_role() -> None:
    with (
        server(lambda number, body: (500, {}, f"trouble with {KEY}")) as (url, seen),
        pytest.raises(WorldError, match=r"HTTP 500: trouble with \*\*\*") as caught,
    ):
        ask(endpoint(url, retries=2), role="user")
    assert caught.value.kind == "user_endpoint" and len(seen) == 3


def test_a_server_that_is_not_there_is_a_world_error() -> None:
    with pytest.raises(WorldError, match="ConnectError") as caught:
        ask(endpoint("http://127.0.0.1:9/v1", retries=1), role="judge")
    assert caught.value.kind == "judge_endpoint"


def test_a_server_that_does_not_answer_in_time_is_a_world_error() -> None:
    def slow(number: int, body: dict[str, Any]) -> Answer:
        time.sleep(0.3)
        return said()

    with server(slow) as (url, _), pytest.raises(WorldError, match=r"no answer within 0\.05 s"):
        ask(endpoint(url, retries=1, timeout_s=0.05))


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_is_the_users_to_mend_and_is_told_nowhere(status: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    refusal = (status, {}, {"error": {"message": f"Incorrect API key provided: {KEY}"}})
    with server(lambda number, body: refusal) as (url, seen), pytest.raises(UserError, match=ENV) as caught:
        ask(endpoint(url))
    assert len(seen) == 1
    told = f"{caught.value} {caught.value!r} {caught.value.__cause__!r} {caplog.text} {ChatEndpoint(endpoint(url))!r}"
    assert KEY not in told


@pytest.mark.parametrize(
    ("key", "text", "kept"),
    [
        (KEY, f"your key is {KEY}.", "your key is ***."),
        ("open-sesame", "x-open-sesame-y", "x-***-y"),
        ('se"same\\!', 'it is se"same\\!, in JSON "se\\"same\\\\!"', 'it is ***, in JSON "***"'),
        ("hunter2", "Bearer hunter2, not hunter22", "Bearer ***, not hunter22"),
        ("EMPTY", "the shelf is EMPTY", "the shelf is EMPTY"),
        ("none", "none is left", "none is left"),
    ],
)
def test_a_key_that_an_ordinary_answer_repeats_is_not_kept(
    key: str, text: str, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV, key)
    call = {"id": "c", "function": {"name": "look", "arguments": {"said": text, text: 1}}}

    async def asked(url: str) -> Any:
        use = ChatEndpoint(endpoint(url))
        try:
            return (await use.complete({"messages": []}))["choices"][0]["message"]
        finally:
            await use.close()

    with server(lambda number, body: said(text, tool_calls=[call])) as (url, _):
        message = asyncio.run(asked(url))
    assert message["content"] == kept and message["tool_calls"][0]["function"]["arguments"] == {"said": kept, kept: 1}


def test_a_key_that_is_not_set_is_the_users_to_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENV)
    with server(lambda number, body: said()) as (url, seen), pytest.raises(UserError, match=f"has no variable {ENV}"):
        ask(endpoint(url))
    assert not seen


def test_an_unknown_model_is_the_users_to_mend() -> None:
    with (
        server(lambda number, body: (404, {}, "The model `m` does not exist.")) as (url, _),
        pytest.raises(UserError, match=r"no model m .*does not exist"),
    ):
        ask(endpoint(url))


def test_an_endpoint_without_url_or_model_names_both_keys() -> None:
    with pytest.raises(UserError) as caught:
        ChatEndpoint(Endpoint(), role="judge")
    assert [p.where for p in caught.value.problems] == ["judge.endpoint.base_url", "judge.endpoint.model"]


@pytest.mark.parametrize(
    "text",
    [
        "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens",
        '{"error": {"code": "context_length_exceeded"}}',
        "The decoder prompt (length 9000) is longer than the maximum model length of 8192.",
        "prompt is too long: 210000 tokens > 200000 maximum",
    ],
)
def test_a_conversation_that_is_too_long_is_the_agents_failure_and_of_others_the_worlds(text: str) -> None:
    async def act(url: str) -> None:
        policy = ChatPolicy(endpoint(url), Sampling())
        try:
            await policy.open([Message("user", "?")], (), seed=0).act([])
        finally:
            await policy.close()

    with server(lambda number, body: (400, {}, text)) as (url, seen):
        with pytest.raises(OutOfContext):
            asyncio.run(act(url))
        with pytest.raises(WorldError):
            ask(endpoint(url), role="user")
    assert len(seen) == 2


def test_another_bad_request_is_not_tried_again() -> None:
    with server(lambda number, body: (400, {}, "top_k is unknown")) as (url, seen), pytest.raises(WorldError):
        ask(endpoint(url))
    assert len(seen) == 1


def test_no_more_calls_are_under_way_than_allowed() -> None:
    lock, now, most = threading.Lock(), [0], [0]

    def count(number: int, body: dict[str, Any]) -> Answer:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.01)
        with lock:
            now[0] -= 1
        return said()

    with server(count) as (url, seen):
        ask(endpoint(url, max_concurrency=3), times=20)
    assert len(seen) == 20 and most[0] == 3


def test_a_spending_cap_ends_the_run() -> None:
    price = ModelPrice(prompt=1.0, cached=0.5, completion=10.0)
    assert cost_usd(Usage(10, 6, 4), price) == pytest.approx((4 * 1.0 + 6 * 0.5 + 4 * 10.0) / 1e6)

    async def spend(url: str) -> int:
        use = ChatEndpoint(endpoint(url), role="user", spending_cap_usd=100e-6, price=price)
        try:
            for number in range(10):
                try:
                    await use.text([])
                except WorldFailure:
                    return number
        finally:
            await use.close()
        return -1

    with server(lambda number, body: said()) as (url, _):
        assert asyncio.run(spend(url)) == 3  # 47 micro-dollars each


@pytest.mark.parametrize(
    ("usage", "used", "warned"),
    [
        ({"prompt_tokens": 10, "completion_tokens": 4}, Usage(10, 0, 4), False),
        ({"prompt_tokens": 10, "completion_tokens": "4"}, Usage(10, 0, 0), False),
        ({"prompt_tokens": True}, Usage(), False),
        (None, Usage(), False),
        ({"prompt_tokens": 10, "completion_tokens": -5}, Usage(), True),
        ({"prompt_tokens": -10, "completion_tokens": 5}, Usage(), True),
        ({"prompt_tokens": 10, "completion_tokens": 10**400}, Usage(), True),
        ({"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 11}}, Usage(), True),
        ({"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": -1}}, Usage(), True),
        ({"completion_tokens": 10, "completion_tokens_details": {"reasoning_tokens": 11}}, Usage(0, 0, 21, 11), False),
        ({"completion_tokens": -1, "completion_tokens_details": {"reasoning_tokens": 11}}, Usage(), True),
    ],
)
def test_usage_that_cannot_be_counts_as_not_told_with_one_warning(
    usage: Any, used: Usage, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    answer = said()[2] | {"usage": usage}

    async def ask_twice(url: str) -> tuple[Usage, Usage, Usage]:
        use = ChatEndpoint(endpoint(url))
        with metered() as spent:
            first, _ = await use.complete({"messages": []}), await use.complete({"messages": []})
        await use.close()
        return usage_of(first), use.usage, spent["policy"]

    with server(lambda number, body: (200, {}, answer)) as (url, _):
        assert asyncio.run(ask_twice(url)) == (used, used + used, used + used)
    assert caplog.text.count("usage that cannot be") == warned


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens": 10}, {"prompt_tokens": -1, "completion_tokens": 3}])
def test_an_endpoint_that_tells_no_tokens_ends_a_run_with_a_spending_cap(usage: Any) -> None:
    answer = said()[2] | {"usage": usage}
    capped = {"role": "judge", "spending_cap_usd": 1.0, "price": ModelPrice(prompt=1.0, completion=1.0)}
    with server(lambda number, body: (200, {}, answer)) as (url, seen):
        with pytest.raises(WorldFailure, match=r"judge\.spending_cap_usd: the cap cannot be kept.*does not tell"):
            ask(endpoint(url), **capped)
        assert len(seen) == 1 and ask(endpoint(url)) == ["hi"]


def test_a_spending_cap_needs_a_price() -> None:
    with pytest.raises(UserError, match=r"prices\.models"):
        ChatEndpoint(endpoint("http://x/v1"), role="user", spending_cap_usd=1.0)


def test_pauses_double_and_obey_the_server() -> None:
    assert all(0.0005 * 2**n <= pause_s(n, None) <= 0.0015 * 2**n for n in range(6))
    assert 5.0 <= pause_s(0, 5.0) <= 5.001
    assert pause_s(0, 1e6) < 200


def test_a_conversation_sends_back_its_own_answers_with_the_ids_of_the_episode() -> None:
    call = {"id": "abc", "type": "function", "function": {"name": "look", "arguments": '{"x": 1}'}}
    broken = {"id": "def", "type": "function", "function": {"name": "look", "arguments": "{x"}}
    answers = [said(None, tool_calls=[call, broken], reasoning_content="hm"), said("done")]
    tool = ToolSpec("look", "Look.", {"type": "object", "properties": {"x": {"type": "integer"}}})

    async def talk(url: str) -> Any:
        policy = ChatPolicy(endpoint(url), Sampling(temperature=0.7, max_tokens=50))
        session = policy.open([Message("system", "s"), Message("user", "u")], [tool], seed=7)
        first = await session.act([])
        answered = [Message("tool", "one", name="look", call_id="call_4"), Message("tool", "no", call_id="call_5")]
        second = await session.act(answered)
        await policy.close()
        return first, second

    with server(lambda number, body: answers[number]) as (url, seen):
        first, second = asyncio.run(talk(url))
    assert first.reading.calls[0].arguments == {"x": 1} and first.reading.calls[1].error
    assert first.reading.reasoning == "hm" and second.reading.text == "done"
    assert first.usage == Usage(10, 6, 4) and first.usage + second.usage == Usage(20, 12, 8)
    assert [m["role"] for m in seen[1]["messages"]] == ["system", "user", "assistant", "tool", "tool"]
    own = seen[1]["messages"][2]
    assert [c["id"] for c in own["tool_calls"]] == ["call_4", "call_5"] and own["reasoning_content"] == "hm"
    assert [c["function"]["arguments"] for c in own["tool_calls"]] == ['{"x": 1}', "{}"]
    assert [m.get("tool_call_id") for m in seen[1]["messages"][3:]] == ["call_4", "call_5"]
    assert seen[0]["tools"][0]["function"]["name"] == "look" and seen[0]["seed"] != seen[1]["seed"]


def test_each_attempt_meters_its_own_answers_by_role_also_those_of_tasks_that_it_makes() -> None:
    with server(lambda number, body: said()) as (url, _):

        async def attempt(user: ChatEndpoint, judge: ChatEndpoint, questions: int) -> dict[str, Usage]:
            with metered() as spent:
                for _ in range(questions):
                    await user.text([])
                await asyncio.create_task(judge.text([]))
            await user.text([])  # of nobody's attempt
            return spent

        async def both() -> list[dict[str, Usage]]:
            user, judge = (ChatEndpoint(endpoint(url), role=role) for role in ("user", "judge"))
            try:
                return await asyncio.gather(attempt(user, judge, 1), attempt(user, judge, 3))
            finally:
                await user.close()
                await judge.close()

        first, second = asyncio.run(both())
    assert first == {"user": Usage(10, 6, 4), "judge": Usage(10, 6, 4)}
    assert second == {"user": Usage(30, 18, 12), "judge": Usage(10, 6, 4)}


def continued(config: Endpoint, **sampling: Any) -> Generated:
    async def once() -> Generated:
        use = TokenEndpoint(config)
        try:
            return await use.generate([5, 6], session="s", max_tokens=9, sampling=Sampling(**sampling), seed=3)
        finally:
            await use.close()

    return asyncio.run(once())


def produced(ids: Any, finish: str = "stop") -> Answer:
    return 200, {}, {"choices": [{"index": 0, "text": "", "token_ids": ids, "finish_reason": finish}]}


def test_a_token_endpoint_takes_and_gives_ids() -> None:
    with server(lambda number, body: produced([7, 2], "length")) as (url, seen):
        made = continued(endpoint(url), temperature=0.7, top_p=0.9, top_k=20)
    assert (made.token_ids, made.logprobs, made.finish) == ([7, 2], None, "length")
    (asked,) = seen
    assert asked["_path"] == "/v1/completions" and asked["_key"] == f"Bearer {KEY}"
    wanted = {"prompt": [5, 6], "max_tokens": 9, "seed": 3, "temperature": 0.7, "top_p": 0.9, "top_k": 20}
    assert wanted.items() <= asked.items() and asked["return_token_ids"] is True


def test_what_a_models_own_generation_config_would_set_is_turned_off() -> None:
    with server(lambda number, body: produced([7])) as (url, seen):
        continued(endpoint(url))
    assert {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}.items() <= seen[0].items()


@pytest.mark.parametrize("ids", [None, "7", [7, None], [7, "8"], [True]])
def test_an_answer_without_token_ids_is_the_worlds_failure(ids: Any) -> None:
    with server(lambda number, body: produced(ids)) as (url, seen), pytest.raises(WorldError, match="return_token_ids"):
        continued(endpoint(url, retries=1))
    assert len(seen) == 2


def test_a_prompt_that_the_server_has_no_room_for_is_the_agents_failure() -> None:
    refused = 400, {}, {"error": {"message": "This model's maximum context length is 8 tokens"}}
    with server(lambda number, body: refused) as (url, _), pytest.raises(OutOfContext):
        continued(endpoint(url))


def test_requests_leave_no_faster_than_the_rate_limit_allows_further_tries_included() -> None:
    left: list[float] = []

    def answer(number: int, body: dict[str, Any]) -> Answer:
        left.append(time.monotonic())
        return (503, {}, "") if number == 0 else said()

    with server(answer) as (url, seen):
        ask(endpoint(url, requests_per_minute=600), times=5)
    assert len(seen) == 6 and max(left) - min(left) > 5 * 0.1 - 0.05


def test_a_policys_clock_stands_while_endpoints_are_asked_and_runs_again_after_their_answers() -> None:
    def answer(number: int, body: dict[str, Any]) -> Answer:
        time.sleep(1.5 if number in (0, 3) else 0.0)
        return said()

    async def act(use: ChatEndpoint, clock: OwnTime, hangs: bool) -> None:
        async with clock.running():
            await asyncio.gather(use.text([]), use.text([]))
            if hangs:
                await asyncio.Event().wait()

    async def both(url: str) -> tuple[float, float, float]:
        use = ChatEndpoint(endpoint(url, timeout_s=0.5, retries=3))
        patient, asked_long, hanging = OwnTime(1.0), OwnTime(1.0), OwnTime(1.0)
        try:
            await act(use, patient, hangs=False)  # the first request has no answer in time
            use.config = endpoint(url)
            await act(use, asked_long, hangs=False)
            with pytest.raises(TimeoutError):
                await act(use, hanging, hangs=True)
        finally:
            await use.close()
        return patient.left, asked_long.left, hanging.left

    with server(answer) as (url, _):
        patient, asked_long, hanging = asyncio.run(both(url))
    assert 0.0 < patient <= 1.0 and asked_long < 0.0 and hanging < 0.0
