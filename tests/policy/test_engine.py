from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.train
torch = pytest.importorskip("torch")

from transformers import Qwen3Config, Qwen3ForCausalLM  # noqa: E402

from tbexp.config.schema import Sampling  # noqa: E402
from tbexp.errors import UserError  # noqa: E402
from tbexp.policy.engine import TransformersEngine, load_engine  # noqa: E402
from tbexp.policy.tokens import Generated  # noqa: E402

VOCABULARY = 60
EOS = 1
GREEDY = Sampling(temperature=0.0)
PLAIN = Sampling()


def tiny_model(seed: int = 0, **options: Any) -> Any:
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=512,
        initializer_range=0.3,
        tie_word_embeddings=True,
        **options,
    )
    return Qwen3ForCausalLM(config).double().eval()


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def engine(slots: int = 8, eos: tuple[int, ...] = (EOS,), seed: int = 0) -> TransformersEngine:
    return TransformersEngine(tiny_model(seed), eos=eos, slots=slots, max_context=256)


def prompt(seed: int, length: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(2, VOCABULARY) for _ in range(length)]


def run(use: TransformersEngine, *requests: dict[str, Any], together: bool = True) -> list[Generated]:
    async def all_of_them() -> list[Generated]:
        calls = [
            use.generate(
                r["ids"],
                session=r.get("session", str(i)),
                max_tokens=r.get("max_tokens", 12),
                sampling=r.get("sampling", PLAIN),
                seed=r.get("seed", 0),
            )
            for i, r in enumerate(requests)
        ]
        try:
            return list(await asyncio.gather(*calls)) if together else [await call for call in calls]
        finally:
            await use.close()

    return asyncio.run(all_of_them())


def reference(ids: list[int], count: int, seed: int = 0) -> list[int]:
    """transformers' own greedy continuation."""
    model = tiny_model(seed)
    with torch.no_grad():
        out = model.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids)),
            max_new_tokens=count,
            do_sample=False,
            eos_token_id=EOS,
            pad_token_id=0,
        )
    return [int(t) for t in out[0, len(ids) :]]


def test_greedy_tokens_and_logprobs_are_those_of_transformers_in_a_batch_of_unequal_prompts() -> None:
    prompts = [prompt(i, length) for i, length in enumerate((1, 3, 17, 40, 41, 90, 5))]
    made = run(engine(), *({"ids": ids, "sampling": GREEDY} for ids in prompts))
    assert [list(m.token_ids) for m in made] == [reference(ids, 12) for ids in prompts]
    ids, first = prompts[3], made[3]
    with torch.no_grad():
        logits = tiny_model()(torch.tensor([[*ids, *first.token_ids]])).logits[0].double().log_softmax(-1)
    expected = [float(logits[len(ids) - 1 + i, token]) for i, token in enumerate(first.token_ids)]
    assert first.logprobs == pytest.approx(expected, abs=1e-6)


def test_what_is_sampled_does_not_depend_on_the_batch() -> None:
    requests = [{"ids": prompt(i, 5 + 3 * i), "seed": 100 + i, "max_tokens": 30, "session": str(i)} for i in range(12)]
    together = run(engine(slots=12), *requests)
    alone = run(engine(slots=3), *requests, together=False)
    backwards = run(engine(slots=5), *reversed(requests))[::-1]
    assert [m.token_ids for m in together] == [m.token_ids for m in alone] == [m.token_ids for m in backwards]
    assert len({tuple(m.token_ids) for m in together}) > 1
    for one, other in zip(together, alone, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-9)


def test_each_seed_draws_its_own_tokens() -> None:
    ids = prompt(0, 20)
    made = run(engine(), *({"ids": ids, "seed": s} for s in (1, 2, 1)))
    assert made[0].token_ids == made[2].token_ids != made[1].token_ids


def test_a_conversation_that_grows_prefills_only_what_is_new() -> None:
    use, start, more = engine(), prompt(1, 30), prompt(2, 9)

    async def talk() -> tuple[list[int], list[int], int]:
        first = await use.generate(start, session="a", max_tokens=8, sampling=PLAIN, seed=3)
        longer = [*start, *first.token_ids, *more]
        slot = use._slots.session.index("a")
        known = int(use._slots.shared(_array(longer))[slot])
        second = await use.generate(longer, session="a", max_tokens=8, sampling=PLAIN, seed=4)
        await use.close()
        return longer, list(second.token_ids), known

    longer, second, known = asyncio.run(talk())
    assert known == len(longer) - len(more) - 1  # the last token that was drawn has not been through the model
    assert second == list(run(engine(), {"ids": longer, "seed": 4, "max_tokens": 8})[0].token_ids)


def test_a_shared_prefix_is_computed_once_and_copied() -> None:
    system = prompt(7, 60)
    requests = [{"ids": [*system, *prompt(20 + i, 6)], "max_tokens": 1, "seed": i} for i in range(6)]
    use = engine()
    widths: list[tuple[int, int]] = []
    forward = use._forward

    def noted(batch: Any, pieces: Any) -> Any:
        widths.append((len(pieces), max(map(len, pieces))))
        return forward(batch, pieces)

    use._forward = noted  # type: ignore[method-assign]
    made = run(use, *requests)
    assert sorted(widths) == [(1, 66), (5, 6)]
    assert [m.token_ids for m in made] == [run(engine(), r)[0].token_ids for r in requests]


def test_the_slot_that_was_used_longest_ago_is_evicted_and_a_released_one_before_it() -> None:
    use = engine(slots=3)

    async def fill() -> list[str | None]:
        for name in "abc":
            await use.generate(prompt(ord(name), 20), session=name, max_tokens=2, sampling=PLAIN, seed=0)
        use.release("b")
        for name in "de":
            await use.generate(prompt(ord(name), 20), session=name, max_tokens=2, sampling=PLAIN, seed=0)
        await use.close()
        return use._slots.session

    assert asyncio.run(fill()) == ["e", "d", "c"]


def test_more_requests_than_slots_wait_and_all_are_answered() -> None:
    made = run(engine(slots=2), *({"ids": prompt(i, 10), "session": str(i % 3), "seed": i} for i in range(9)))
    assert all(m.token_ids for m in made)


def test_new_weights_are_used_and_nothing_of_the_old_ones_is() -> None:
    use, ids = engine(seed=0), prompt(3, 25)

    async def switch() -> tuple[list[int], list[int]]:
        before = await use.generate(ids, session="a", max_tokens=10, sampling=GREEDY, seed=0)
        await use.load_weights([(n, p.float()) for n, p in tiny_model(5).float().state_dict().items()])
        after = await use.generate(ids, session="a", max_tokens=10, sampling=GREEDY, seed=0)
        await use.close()
        return list(before.token_ids), list(after.token_ids)

    before, after = asyncio.run(switch())
    assert before == reference(ids, 10, seed=0)
    assert after == reference(ids, 10, seed=5)


def test_weights_that_arrive_in_mid_generation_do_not_lose_the_request() -> None:
    use = engine(eos=())

    async def switch() -> Generated:
        going = asyncio.ensure_future(use.generate(prompt(3, 25), session="a", max_tokens=200, sampling=PLAIN, seed=0))
        while not use.steps:
            await asyncio.sleep(0)
        await use.load_weights(list(tiny_model(5).named_parameters()))
        made = await going
        await use.close()
        return made

    made = asyncio.run(switch())
    assert len(made.token_ids) == len(made.logprobs or ()) == 200


def test_weights_under_other_names_are_refused() -> None:
    use = engine()

    async def wrong() -> None:
        try:
            await use.load_weights([("model.norm.scale", torch.ones(32))])
        finally:
            await use.close()

    with pytest.raises(ValueError, match=r"model\.norm\.scale"):
        asyncio.run(wrong())


def test_a_completion_ends_with_the_end_token_or_its_length() -> None:
    model = tiny_model()
    likeliest = reference(prompt(0, 10), 3)[1]
    use = TransformersEngine(model, eos=[likeliest], slots=4, max_context=20)
    made = run(use, {"ids": prompt(0, 10), "sampling": GREEDY}, {"ids": prompt(4, 17), "max_tokens": 50})
    assert made[0].token_ids[-1] == likeliest and made[0].finish == "stop"
    assert len(made[1].token_ids) <= 3  # the context ends there


def test_a_request_that_nobody_waits_for_frees_its_slot() -> None:
    use = engine(slots=1, eos=())

    async def give_up() -> Generated:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(
                use.generate(prompt(0, 9), session="a", max_tokens=240, sampling=PLAIN, seed=0), timeout=0.001
            )
        made = await use.generate(prompt(1, 9), session="b", max_tokens=2, sampling=PLAIN, seed=0)
        await use.close()
        return made

    assert len(asyncio.run(give_up()).token_ids) == 2


def test_a_long_prompt_is_computed_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tbexp.policy.engine._SCORES_AT_ONCE", 4 * 200 * 20)
    requests = [{"ids": prompt(i, length)} for i, length in enumerate((200, 3, 120))]
    chunked = run(engine(), *requests)
    monkeypatch.undo()
    assert [m.token_ids for m in chunked] == [m.token_ids for m in run(engine(), *requests)]


def test_a_model_that_breaks_fails_its_requests_and_not_the_engine() -> None:
    use, ids = engine(), prompt(3, 25)
    good = [(n, p.detach().clone()) for n, p in use.model.named_parameters()]

    async def switch() -> list[int]:
        await use.load_weights([(n, torch.full_like(p, torch.nan)) for n, p in good])
        with pytest.raises(FloatingPointError):
            await use.generate(ids, session="a", max_tokens=5, sampling=GREEDY, seed=0)
        await use.load_weights(good)
        made = await use.generate(ids, session="b", max_tokens=10, sampling=GREEDY, seed=0)
        await use.close()
        return list(made.token_ids)

    assert asyncio.run(switch()) == reference(ids, 10)


def test_models_with_other_attention_are_refused_with_the_way_out() -> None:
    sliding = tiny_model(layer_types=["full_attention", "sliding_attention"], use_sliding_window=True, sliding_window=8)
    with pytest.raises(UserError, match=r"topology\.rollout=vllm"):
        TransformersEngine(sliding, eos=[EOS], slots=2, max_context=64)


def _array(ids: list[int]) -> Any:
    import numpy as np

    return np.array(ids, np.int64)


def save_model(folder: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = {f"w{i}": i for i in range(VOCABULARY)}
    PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="w0")), eos_token="w1"
    ).save_pretrained(folder)
    tiny_model().float().save_pretrained(folder)


def test_a_folder_is_loaded_in_float64_when_it_is_small(tmp_path: Path) -> None:
    save_model(tmp_path)
    use = load_engine(tmp_path, slots=2)
    assert use.model.dtype == torch.float64 and EOS in use.eos and use.max_context == 512


def test_there_are_no_more_slots_than_memory_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tbexp.policy import engine as module
    from tbexp.policy.memory import CACHE_SHARE, slots_that_fit
    from tbexp.policy.slots import bytes_of_slot

    use = engine(slots=3)
    use._slots.reserve(256)
    assert bytes_of_slot(use.model, 256) == use._slots.store.nbytes / 3
    assert slots_that_fit(64, 100, int(1000 / CACHE_SHARE) + 1) == 10
    assert slots_that_fit(4, 100, 10**9) == 4 and slots_that_fit(4, 100, 1) == 1
    save_model(tmp_path)
    monkeypatch.setattr(module, "memory", lambda: int(2.5 * bytes_of_slot(use.model, 128) / CACHE_SHARE))
    small = load_engine(tmp_path, slots=8, max_context=128)
    assert small._slots.count == 2
    asked = [{"ids": prompt(n, 10 + n), "seed": n} for n in range(5)]  # more than there are slots: they wait
    large = load_engine(tmp_path, slots=2, max_context=128)
    large._slots = type(large._slots)(large.model, 8, 128)
    assert [made.token_ids for made in run(small, *asked)] == [made.token_ids for made in run(large, *asked)]
