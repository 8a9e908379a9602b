"""What attempts cost, by the price table: which of its prices are whose, and what they do not tell.

Decided here: a policy behind an endpoint is priced by its tokens, local weights, and those that tbexp serves itself, by
the hours of their devices, as their rows tell these, whatever the settings are by now; a policy that has no price has
no cost, and what cannot be known is not taken for nothing:
without the price of a user or judge that is paid for there is none either, nor where attempts do not tell their
tokens. What a trained policy cost before it was evaluated is priced likewise, from what probing and training have
measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tbexp.attempts import AttemptRow, AttemptStore
from tbexp.config.schema import Config, ModelPrice
from tbexp.episode.loop import OWN_LIMITS
from tbexp.errors import counted
from tbexp.evaluation.cost import Spending, known_usd
from tbexp.pipeline.context import Context
from tbexp.pipeline.policies import devices_of
from tbexp.pipeline.sharing import with_failed_tries

TOKENS = ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens")


def spending_of(config: Config, rows: Sequence[AttemptRow], *, made_elsewhere: bool | None = None) -> Spending | None:
    """How a policy's attempts are priced; None without a price for the policy itself.

    rows: its attempts. Devices generate for as long as attempts run: each attempt's seconds by how many ran at a time.
    Rows of older versions do not tell these: policy.concurrency and policy.vllm.tensor_parallel_size are taken.
    made_elsewhere: by whom is not known, so neither devices nor endpoints of the config made them; None: as
    evaluation.rows says.
    """
    models, rate = config.prices.models, config.prices.gpu_hour_usd
    elsewhere = bool(config.evaluation.rows) if made_elsewhere is None else made_elsewhere
    user = models.get(config.user.endpoint.model or "") if config.user.kind == "chat" else None
    judge = models.get(config.judge.endpoint.model or "") if config.judge.kind == "chat" else None
    unpriced = tuple(
        role
        for role, kind, price in (("user", config.user.kind, user), ("judge", config.judge.kind, judge))
        if _unknown(price is not None, kind == "chat", elsewhere, any(used(role, row) for row in rows))
    )
    untold = {} if user is None else _untold("user", user, [row for row in rows if row.clean and _heard_user(row)])
    untold |= {} if judge is None else _untold("judge", judge, [row for row in rows if row.clean and row.judged])
    unpriced = tuple(dict.fromkeys((*unpriced, *untold)))
    policy = config.policy
    served = policy.serve == "vllm" and name_of(config) not in models
    if (served or (policy.kind == "local" and policy.serve != "vllm")) and rate > 0 and not elsewhere:
        untold_of = (max(1, min(policy.concurrency, len(rows))), devices_of(policy))
        told = [(row.at_a_time, row.devices) if row.at_a_time else untold_of for row in rows]
        seconds = sum(row.seconds / many * on for row, (many, on) in zip(rows, told, strict=True))
        return Spending(
            user=user,
            judge=judge,
            gpu_hours=seconds / 3600,
            gpu_hour_usd=rate,
            assumed=sum(not row.at_a_time for row in rows),
            unpriced=unpriced,
            untold=untold,
        )
    price = models.get(name_of(config))
    if price is None:
        return None
    untold = _untold("policy", price, [row for row in rows if row.clean and _generated(row)]) | untold
    if "policy" in untold or (
        not price.by_attempt and not any(row.prompt_tokens or row.completion_tokens for row in rows)
    ):
        unpriced = ("policy", *unpriced)
    return Spending(policy=price, user=user, judge=judge, unpriced=unpriced, untold=untold)


def _generated(row: AttemptRow) -> bool:
    """False only where the policy produced nothing: its very first prompt was too long, say."""
    return row.turns > 0 or row.finish_reason not in OWN_LIMITS


def _heard_user(row: AttemptRow) -> bool:
    """Whether the simulated user has surely spoken: it ended the attempt, or there are two completions without calls,
    of which only the last can be left unanswered. False also where rows do not tell it.
    """
    return row.finish_reason == "user_done" or row.turns - row.tool_calls > 1


def _untold(role: str, price: ModelPrice, rows: Sequence[AttemptRow]) -> dict[str, tuple[int, int]]:
    """{role: (n, of)} if n of these rows lack a kind of tokens that the price charges; nobody asks or answers with
    none.
    """
    prefix = "" if role == "policy" else f"{role}_"
    charged = {"prompt": price.prompt or price.cached, "completion": price.completion or price.reasoning}
    kinds = [f"{prefix}{kind}_tokens" for kind, usd in charged.items() if usd]
    lacking = sum(not all(getattr(row, kind) for kind in kinds) for row in rows)
    return {role: (lacking, len(rows))} if lacking else {}


def _unknown(priced: bool, paid: bool, elsewhere: bool, used: bool) -> bool:
    """Whether a user's or judge's cost is not known: without a price, or of rows made elsewhere without its tokens."""
    if not priced:
        return used or (paid and not elsewhere)
    return elsewhere and not used


def used(role: str, row: AttemptRow) -> int:
    """Tokens of the user or the judge."""
    if role == "user":
        return row.user_prompt_tokens + row.user_completion_tokens
    return row.judge_prompt_tokens + row.judge_completion_tokens


def name_of(config: Config) -> str:
    """The name that the price table knows the policy by: its endpoint's model, or `model.name`."""
    return (config.policy.endpoint.model or "") if config.policy.kind == "chat" else config.model.name


def models_of(config: Config) -> dict[str, str]:
    """{role: model} of everyone in this run that the price table may have a price for."""
    found = {"policy": name_of(config)}
    reference = config.selection.reference.policy
    for role, part in (("user", config.user), ("judge", config.judge), ("reference", reference)):
        if part.kind == "chat":
            found[role] = part.endpoint.model or ""
    return found


def faults_of(config: Config, spending: Mapping[str, Spending]) -> Iterator[str]:
    """What the price table lacks or has in vain, a sentence each. spending: of the policies that have a price."""
    models, needed = config.prices.models, models_of(config)
    if models and not set(needed.values()) & set(models):
        named = ", ".join(f"{role} {model}" for role, model in needed.items())
        yield f"prices.models names no model of this run ({named}); it has {', '.join(models)}"
    elif models and not spending:
        yield f"there is no cost: the policy has no price; add it: {key_of(needed['policy'])}"
    if assumed := sum(each.assumed for each in spending.values()):
        yield (
            f"{counted(assumed, 'attempt')} without a word of how many ran at a time, as of older versions: "
            f"policy.concurrency={config.policy.concurrency} is taken for the hours of their devices"
        )
    for role in dict.fromkeys(role for each in spending.values() for role in each.unpriced):
        model = needed.get(role)
        if model in models:
            yield from dict.fromkeys(
                f"the cost is not told, for {_untold_of(each, role, name if len(spending) > 1 else '')} tokens of the "
                f"{role}, whose model is {model}"
                for name, each in spending.items()
                if role in each.unpriced
            )
            continue
        add = key_of(model) if model else f"{role}=chat {role}.endpoint.model=NAME, and {key_of('NAME')}"
        who = f"the {role}'s model {model}" if model else f"the {role} of the rows"
        yield f"the cost is not told, for {who} has no price; add it: {add}"


def _untold_of(spending: Spending, role: str, name: str) -> str:
    n, of = spending.untold.get(role, (0, 0))
    if not n:
        return "no row holds"
    return f"{n} of {of} clean attempts{f' of {name}' if name else ''} do not tell all"


def key_of(model: str) -> str:
    return f"prices.models={{{model}: {{prompt: ..., cached: ..., completion: ...}}}} (US dollars per million tokens)"


# -- probing and training


def with_besides(run: Context, spending: Spending) -> Spending:
    """With what this run's probing and training cost, as far as they were measured and have prices."""
    besides: dict[str, float] = {}
    unknown: list[str] = []
    for name, price in (("probing", _probing), ("training", _training)):
        besides[name], lacking = price(run)
        unknown += lacking
    return replace(spending, besides=besides, besides_unknown=tuple(unknown))


def _probing(run: Context) -> tuple[float, list[str]]:
    """The attempts that the pool was chosen from, the reference's included."""
    from tbexp.pipeline.probing import has_reference, probe_campaign, reference_campaign

    if run.config.probe.rows:
        return 0.0, ["probing: probe.rows were made elsewhere"]
    total, lacking = 0.0, []
    campaigns = {"the reference": reference_campaign(run)} if has_reference(run.config) else {}
    for name, campaign in {**campaigns, "the base policy": probe_campaign(run)}.items():
        with AttemptStore(campaign.folder, read_only=True) as store:
            rows = with_failed_tries(store, campaign.wanted.counted(store.rows()))
            usd, unknown = probing_usd(campaign.config, rows, name)
        total += usd
        lacking += unknown
    return total, lacking


def _training(run: Context) -> tuple[float, list[str]]:
    from tbexp.pipeline.expected import read_steps
    from tbexp.pipeline.stages import training_folder
    from tbexp.training.groups import OTHERS, read_others

    folder, _, _ = training_folder(run)
    steps = dict(read_steps(folder / "metrics.jsonl", run.config.training.steps))
    return training_usd(run.config, steps, read_others(folder / "verl" / OTHERS))


def probing_usd(config: Config, rows: Sequence[AttemptRow], who: str) -> tuple[float, list[str]]:
    """US dollars of a policy's probing, and what is not in them. config: with that policy."""
    spending = spending_of(config, rows, made_elsewhere=False)
    if spending is None:
        return 0.0, [f"probing: {who} has no price"]
    lacking = []
    for role in spending.unpriced:
        n, of = spending.untold.get(role, (0, 0))
        lacks = f"lacks tokens in {n} of {of} attempts" if n else "has no price"
        lacking.append(f"probing: the {role} of {who} {lacks}")
    return sum(known_usd(tokens_of(rows), len(rows), spending).values()), lacking


def training_usd(
    config: Config,
    steps: Mapping[int, Mapping[str, float]],
    others: Mapping[tuple[int, str], tuple[int, Mapping[str, int]]],
) -> tuple[float, list[str]]:
    """US dollars of all devices in the seconds of updates and validations, and of the tokens of user and judge in them;
    what is not in them. steps: the training's metrics, which tell the devices of each update; others: (tries, tokens)
    of each update and validation, as far as they were noted (`training.groups.read_others`).
    """
    from tbexp.training.rows import devices_of_update

    rate = config.prices.gpu_hour_usd
    known = [found for row in steps.values() if (found := devices_of_update(row)) is not None]
    usual = known[0] if known else config.topology.nodes * config.topology.gpus_per_node
    seconds = sum(
        (row.get("train/seconds/step", 0.0) + row.get("train/seconds/validation", 0.0))
        * (devices_of_update(row) or usual)
        for row in steps.values()
    )
    lacking = [] if rate > 0 else ["training: prices.gpu_hour_usd is 0"]
    if rate > 0 and not seconds:
        return 0.0, ["training: its metrics hold no seconds"]
    usd, unknown = _others_usd(config, steps, others)
    return seconds / 3600 * max(rate, 0.0) + usd, [*lacking, *unknown]


def _others_usd(
    config: Config,
    steps: Mapping[int, Mapping[str, float]],
    others: Mapping[tuple[int, str], tuple[int, Mapping[str, int]]],
) -> tuple[float, list[str]]:
    """What user and judge cost in training, as far as it was noted and has prices."""
    from tbexp.training.groups import UPDATE, VALIDATION

    roles = {role: part for role, part in (("user", config.user), ("judge", config.judge)) if part.kind == "chat"}
    marks = {UPDATE: "train/seconds/step", VALIDATION: "train/validation_pass_rate"}
    made = [(step, kind) for step, row in steps.items() for kind, mark in marks.items() if mark in row]
    noted = [others[each] for each in made if each in others]
    lacking = []
    if roles and len(noted) < len(made):
        lost = len(made) - len(noted)
        lacking.append(
            f"training: the tokens of {' and '.join(roles)} in {lost} of {len(made)} updates and validations were not "
            "recorded, as by older versions"
        )
    prices = {role: config.prices.models.get(part.endpoint.model or "") for role, part in roles.items()}
    lacking += [f"training: the {role} has no price" for role, price in prices.items() if price is None]
    tokens: dict[str, int] = {}
    for _, spent in noted:
        for name, count in spent.items():
            tokens[name] = tokens.get(name, 0) + count
    tries = sum(count for count, _ in noted)
    return sum(known_usd(tokens, tries, Spending(user=prices.get("user"), judge=prices.get("judge"))).values()), lacking


def tokens_of(rows: Sequence[AttemptRow]) -> dict[str, int]:
    """Sums over rows of every kind of tokens."""
    names = [f"{role}{kind}" for role in ("", "user_", "judge_") for kind in TOKENS]
    return {name: sum(getattr(row, name) for row in rows) for name in names}
