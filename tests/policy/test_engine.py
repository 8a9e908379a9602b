"""The engine against plain transformers, and against itself in other company."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from tbexp.config.schema import Sampling
from tbexp.policy.engine import TransformersEngine, _common, _cut

pytestmark = pytest.mark.train

VOCABULARY, END = 97, 3
SYSTEM = [5 + (7 * i) % 90 for i in range(50)]


def tiny(seed: int = 0) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    return Qwen3ForCausalLM(config)


def engine(slots: int = 4, **options) -> TransformersEngine:
    return TransformersEngine(tiny(), end_ids={END}, slots=slots, max_context=200, **options)


def run(engine: TransformersEngine, requests: list[dict]) -> list:
    async def all_of_them() -> list:
        try:
            return await asyncio.gather(*(engine.generate(**request) for request in requests))
        finally:
            await engine.close()

    return asyncio.run(all_of_them())


def request(number: int, **changes) -> dict:
    ids = [*SYSTEM, *(5 + (number * 11 + i) % 80 for i in range(3 + number % 7))]
    return {
        "ids": ids,
        "max_tokens": 12,
        "session": f"s{number}",
        "seed": 1000 + number,
        "sampling": Sampling(temperature=1.0),
        **changes,
    }


def test_greedy_tokens_and_their_logprobs_are_those_of_transformers() -> None:
    requests = [request(n, sampling=Sampling(temperature=0.0)) for n in range(6)]
    made = run(engine(slots=3), requests)
    plain = tiny().double().eval()
    for asked, got in zip(requests, made, strict=True):
        ids = torch.tensor([asked["ids"]])
        expected = plain.generate(
            ids, max_new_tokens=12, do_sample=False, eos_token_id=END, pad_token_id=0, attention_mask=torch.ones_like(ids)
        )[0, ids.shape[1] :].tolist()
        assert got.token_ids == expected
        whole = torch.tensor([asked["ids"] + got.token_ids])
        logprobs = plain(whole).logits[0, ids.shape[1] - 1 : -1].log_softmax(-1)
        wanted = logprobs.gather(1, whole[0, ids.shape[1] :, None])[:, 0]
        assert torch.allclose(torch.tensor(got.logprobs, dtype=torch.float64), wanted.double(), atol=1e-5)


def test_a_request_gets_the_same_tokens_whatever_else_is_in_the_batch() -> None:
    together = run(engine(slots=4), [request(n) for n in range(12)])
    for n in (0, 5, 11):
        (alone,) = run(engine(slots=1), [request(n)])
        assert alone.token_ids == together[n].token_ids
        assert alone.logprobs == pytest.approx(together[n].logprobs, abs=1e-9)


def test_a_conversation_that_goes_on_computes_only_its_new_tokens() -> None:
    async def talk(kept: int) -> tuple[list[int], int]:
        server = engine(kept=kept)
        first = await server.generate(**request(1))
        longer = [*request(1)["ids"], *first.token_ids, 9, 10, 11]
        before = server.prefilled
        second = await server.generate(**request(1, ids=longer, seed=7))
        computed = server.prefilled - before
        await server.close()
        return second.token_ids, computed

    remembered, few = asyncio.run(talk(kept=8))
    forgotten, _ = asyncio.run(talk(kept=0))
    assert remembered == forgotten
    assert few <= 4 + 1


def test_a_shared_beginning_is_computed_once() -> None:
    server = engine(slots=8)
    run(server, [request(n) for n in range(8)])
    assert server.reused >= 7 * len(SYSTEM)


def test_conversations_that_are_dropped_are_computed_again() -> None:
    async def talk() -> list[list[int]]:
        server = engine(slots=2, kept=1)
        answers = []
        for turn in range(2):
            for n in range(3):
                ids = request(n)["ids"] + [20 + turn] * turn
                answers.append((await server.generate(**request(n, ids=ids))).token_ids)
        await server.close()
        return answers

    async def one_by_one() -> list[list[int]]:
        answers = []
        for turn in range(2):
            for n in range(3):
                server = engine(slots=1, kept=0)
                ids = request(n)["ids"] + [20 + turn] * turn
                answers.append((await server.generate(**request(n, ids=ids))).token_ids)
                await server.close()
        return answers

    assert asyncio.run(talk()) == asyncio.run(one_by_one())


def test_new_weights_forget_what_the_old_ones_computed() -> None:
    async def talk() -> tuple[list[int], list[int]]:
        server = engine()
        await server.generate(**request(1))
        other = tiny(seed=9)
        await server.load_weights(list(other.state_dict().items()))
        after = await server.generate(**request(1))
        await server.close()
        fresh = TransformersEngine(tiny(seed=9), end_ids={END}, slots=4, max_context=200)
        expected = await fresh.generate(**request(1))
        await fresh.close()
        return after.token_ids, expected.token_ids

    after, expected = asyncio.run(talk())
    assert after == expected


def test_weights_under_a_wrong_name_are_an_error_and_change_nothing() -> None:
    async def talk() -> None:
        server = engine()
        with pytest.raises(ValueError, match="no.such"):
            await server.load_weights([("no.such", torch.zeros(1))])
        assert (await server.generate(**request(1))).token_ids
        await server.close()

    asyncio.run(talk())


def test_what_does_not_fit_is_refused_before_it_is_queued() -> None:
    async def talk() -> None:
        server = engine()
        with pytest.raises(ValueError, match="context"):
            await server.generate(**request(1, max_tokens=190))
        await server.close()

    asyncio.run(talk())


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        (Sampling(top_k=1), [2]),
        (Sampling(top_k=2), [1, 2]),
        (Sampling(top_p=0.5), [2]),
        (Sampling(top_p=0.51), [1, 2]),
        (Sampling(top_k=3, top_p=0.99), [1, 2, 3]),
        (Sampling(top_k=2, top_p=0.6), [2]),
    ],
)
def test_top_k_and_top_p_keep(sampling: Sampling, kept: list[int]) -> None:
    weights = torch.tensor([0.05, 0.3, 0.5, 0.1, 0.05], dtype=torch.float64)
    assert _cut(weights, sampling).nonzero()[:, 0].tolist() == kept


def test_sampled_tokens_follow_the_distribution() -> None:
    made = run(engine(slots=64), [request(3, session=f"n{n}", seed=n, max_tokens=1) for n in range(3000)])
    logits = tiny().double().eval()(torch.tensor([request(3)["ids"]])).logits[0, -1]
    expected = logits.softmax(-1)
    counts = torch.bincount(torch.tensor([m.token_ids[0] for m in made]), minlength=VOCABULARY) / len(made)
    assert (counts - expected).abs().max() < 0.035


@pytest.mark.parametrize(("a", "b"), [([], []), ([1], []), ([1, 2, 3], [1, 2]), ([1, 2], [1, 2]), ([1, 2, 9], [1, 2, 3])])
def test_the_common_beginning(a: list[int], b: list[int]) -> None:
    expected = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    assert _common(a, b) == expected
