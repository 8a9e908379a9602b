"""Probing: the reference's attempts, what its screen rejects, the base policy's attempts at the rest, and their counts.

Decided here: that the reference goes first and that the base policy never attempts what the screen rejects; which
attempts count (`wanted`). The store of either policy is keyed by all candidates, so another screen or another rule
finds the attempts that are there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tbexp.attempts import AttemptRow, AttemptStore, Counts, canonical, digest
from tbexp.config.schema import Config
from tbexp.errors import Problem, UserError, WorldFailure, counted
from tbexp.pipeline import identity
from tbexp.pipeline.context import Context
from tbexp.pipeline.export import write_tb_infer
from tbexp.pipeline.files import link
from tbexp.pipeline.inputs import NO_CANDIDATES
from tbexp.pipeline.sharing import Campaign, attempts_in
from tbexp.pipeline.wanted import AdaptiveNumber, FixedNumber, Wanted

REFERENCE = "reference"


def probe(run: Context) -> None:
    """The base policy's attempts at every candidate that the reference, if there is one, shows to be solvable."""
    config = run.config
    if config.probe.rows:
        run.progress.say(f"probe: rows made elsewhere are used ({', '.join(config.probe.rows)}), nothing to do")
        return
    if has_reference(config):
        probe_reference(run)
    campaign = probe_campaign(run)
    link(run.run_dir / "probe", campaign.folder)
    rows = attempts_in(run, campaign)
    if config.probe.tb_infer:
        write_tb_infer(campaign.folder, rows, run.run_dir / "probe-tb_infer.jsonl", run.candidates)
    summarise(run, campaign.wanted, rows)
    refuse_too_many_errors(config, "probe", rows)


def probe_campaign(run: Context) -> Campaign:
    """The base policy's attempts, at what the reference solves; its own attempts have to be there."""
    config, rejected = run.config, screened(run)
    if not run.candidates:
        raise UserError(NO_CANDIDATES)
    uids = [task.uid for task in run.candidates if task.uid not in rejected]
    if not uids:
        raise UserError(
            Problem(
                f"the reference solves none of {len(run.candidates)} candidates, so nothing is left to probe",
                "selection.reference",
                "relax selection.reference.min_passed, raise its attempts, or look at the reference's trajectories",
            )
        )
    wanted = base_wanted(config, uids)
    folder = probe_folder(run)
    return Campaign("probe", folder, run.candidates, wanted, config.probe.retries, run.base_policy, config)


def reference_campaign(run: Context) -> Campaign:
    """The reference's attempts at every candidate."""
    config, wanted = as_reference(run.config), reference_wanted(run)
    folder, retries = reference_folder(run), config.probe.retries
    return Campaign("probe reference", folder, run.candidates, wanted, retries, run.reference_policy, config)


def probe_reference(run: Context) -> None:
    """The reference's attempts at every candidate."""
    config, campaign = run.config, reference_campaign(run)
    link(run.run_dir / REFERENCE, campaign.folder)
    rows = attempts_in(run, campaign)
    refuse_too_many_errors(config, "reference", rows)
    rejected = screened(run)
    total = len(run.candidates)
    # Of tasks that stop at different numbers the mean over tasks is right, see `summarise`.
    passed = mean_rate(rows) if isinstance(campaign.wanted, AdaptiveNumber) else rate(rows)
    found = {"attempts": len(rows), "tasks": total, "solvable": total - len(rejected), "pass_rate": passed}
    run.facts[REFERENCE] = {"model": config.selection.reference.policy.endpoint.model, **found}
    run.tracker.metrics({f"reference/{name}": value for name, value in found.items()})
    run.results.append(
        (
            "reference",
            f"{counted(len(rows), 'attempt')} at {counted(total, 'task')}: pass rate {passed:.1%}; "
            f"{len(rejected)} screened out",
        )
    )


def summarise(run: Context, wanted: Wanted, rows: Sequence[AttemptRow]) -> None:
    """What the probe took, and what adaptive probing saved of it."""
    probe, tasks = run.config.probe, len({row.uid for row in rows})
    errors = sum(not row.clean for row in rows)
    found: dict[str, float] = {"pass_rate": rate(rows), "attempts": len(rows), "system_errors": errors}
    if isinstance(wanted, AdaptiveNumber):
        prefix = wanted.prefix(rows)
        # Tasks stop at different numbers: attempts alone would weigh the undecided ones more.
        found["pass_rate"] = mean_rate(rows)
        found |= {
            "attempts_saved": wanted.most - len(rows),
            "attempts_saved_share": 1 - len(rows) / wanted.most,
            "stopped_early": prefix.stopped_early,
            "extended": prefix.extended,
        }
        sizes = f"{counted(tasks, 'task')} x {probe.attempts} at most: {len(rows)} of {wanted.most} attempts"
        sizes += f", {counted(prefix.stopped_early, 'task')} stopped early"
        sizes += f", {prefix.extended} got more" if probe.spend_saved else ""
        text = f"{sizes} ({found['attempts_saved_share']:.0%} saved); mean pass rate {found['pass_rate']:.1%}"
    else:
        text = f"{counted(tasks, 'task')} x {probe.attempts}: pass rate {rate(rows):.1%}"
    run.facts["probe"] = {"kind": probe.kind, "tasks": tasks, **found}
    run.tracker.metrics({f"probe/{name}": value for name, value in found.items()})
    if errors == len(rows):
        text = f"{counted(tasks, 'task')} x {probe.attempts}: no attempt has a verdict"
    run.results.append(("probe", text))


def refuse_too_many_errors(config: Config, name: str, rows: Sequence[AttemptRow]) -> None:
    allowed = config.probe.max_system_error_share
    errors = sum(not row.clean for row in rows)
    if errors > allowed * len(rows):
        raise WorldFailure(
            f"{errors} of {len(rows)} {name} attempts are system errors, allowed are {allowed:.0%} "
            "(probe.max_system_error_share). They are kept and tried again when the same command is run"
        )


# -- which attempts


def base_wanted(config: Config, uids: Sequence[str]) -> Wanted:
    """What the base policy attempts of these tasks."""
    probe = config.probe
    if probe.kind == "fixed":
        return FixedNumber(uids, probe.attempts)
    from tbexp.selection import Spend, StoppingRule, confidence_of

    rule = StoppingRule.of_settings(
        probe.attempts,
        buckets=config.buckets,
        min_clean=config.selection.min_clean,
        group_size=config.group.size,
        level=probe.level,
        least=probe.least,
    )
    if not probe.spend_saved:
        return AdaptiveNumber(uids, rule)
    most = probe.max_attempts or 3 * probe.attempts
    return AdaptiveNumber(uids, rule, Spend(most, confidence_of(config.buckets, config.group.size)))


def reference_wanted(run: Context) -> Wanted:
    """What the reference attempts; with an adaptive probe no more than what its screen still asks for."""
    uids, gate = [task.uid for task in run.candidates], run.config.selection.reference
    if run.config.probe.kind == "fixed":
        return FixedNumber(uids, gate.attempts)
    from tbexp.selection import StoppingRule

    return AdaptiveNumber(uids, StoppingRule.of_reference(gate.attempts, gate))


# -- the reference


def has_reference(config: Config) -> bool:
    """Whether the reference is a policy."""
    return config.selection.reference.policy.kind is not None


def as_reference(config: Config) -> Config:
    """The config of the reference's attempts: its policy in the place of the base one."""
    return config.model_copy(update={"policy": config.selection.reference.policy})


def reference_folder(run: Context) -> Path:
    config, servers = run.config, run.servers_digest(run.candidates)
    who = identity.reference_identity(config)
    return run.store / REFERENCE / identity.campaign_key(as_reference(config), who, run.candidates, servers)


def reference_counts(run: Context) -> Counts | None:
    """The counts of the screen, from rows or from the reference's attempts; None: there is no screen."""
    found = counts_of_screen(run)
    if found is not None and not run.config.selection.reference.rows:
        link(run.run_dir / REFERENCE, reference_folder(run))
    return found


def counts_of_screen(run: Context) -> Counts | None:
    """The same, and nothing is written."""
    reference = run.config.selection.reference
    if reference.rows:
        return run.inputs.counts(reference.rows, run.config.probe.fields)
    if not has_reference(run.config):
        return None
    return Counts.of_rows(finished_rows(run, "reference's probe", reference_folder(run), reference_wanted(run)))


def screened(run: Context) -> frozenset[str]:
    """The candidates that the base policy never attempts, since a reference policy does not solve them."""
    if not has_reference(run.config):
        return frozenset()
    from tbexp.selection import unsolved

    uids = [task.uid for task in run.candidates]
    return unsolved(uids, counts_of_screen(run), run.config.selection.reference)


# -- stores


def probe_folder(run: Context) -> Path:
    servers = run.servers_digest(run.candidates)
    return run.store / "probe" / identity.campaign_key(run.config, run.base_identity, run.candidates, servers)


def finished_rows(run: Context, what: str, folder: Path, wanted: Wanted) -> list[AttemptRow]:
    """The rows that are wanted, all of which have to be there. UserError if they are not."""
    if not folder.exists():
        raise UserError(
            Problem(
                f"there is no {what} to select from", "stages", "put probe before select, or name rows in probe.rows"
            )
        )
    with AttemptStore(folder, read_only=True) as store:
        rows = store.rows()
    if unmade := wanted.unmade(rows):
        more = " or more" if isinstance(wanted, AdaptiveNumber) else ""
        raise UserError(
            Problem(
                f"the {what} is not finished: {unmade}{more} of {wanted.most} attempts are missing",
                "stages",
                "put probe before select",
            )
        )
    return canonical(wanted.counted(rows))


def probe_counts(run: Context) -> tuple[Counts, Mapping[str, str]]:
    """Counts per candidate and the hash of what they come from. Tasks that were screened out have none."""
    config = run.config
    if config.probe.rows:
        counts = run.inputs.counts(config.probe.rows, config.probe.fields)
        return counts, {"probe": counts.digest()}
    rows = probed_rows(run)
    link(run.run_dir / "probe", probe_folder(run))
    return Counts.of_rows(rows).with_uids([task.uid for task in run.candidates]), {"probe": digest(rows)}


def probed_rows(run: Context) -> list[AttemptRow]:
    """The base policy's attempts, all of which have to be there. UserError if they are not."""
    rejected = screened(run)
    uids = [task.uid for task in run.candidates if task.uid not in rejected]
    return finished_rows(run, "probe", probe_folder(run), base_wanted(run.config, uids))


# -- rates


def rate(rows: Sequence[AttemptRow]) -> float:
    """Share of clean attempts that passed; 0 where there is none."""
    clean = [row for row in rows if row.clean]
    return sum(row.passed is True for row in clean) / len(clean) if clean else 0.0


def mean_rate(rows: Sequence[AttemptRow]) -> float:
    """Mean over tasks of the share of clean attempts that passed."""
    by_uid: dict[str, list[AttemptRow]] = {}
    for row in rows:
        if row.clean:
            by_uid.setdefault(row.uid, []).append(row)
    return sum(rate(each) for each in by_uid.values()) / len(by_uid) if by_uid else 0.0
