"""dry_run: what a run would do, what it would take, and what this machine lacks for it, on stdout.

Reads tasks, verl's configuration files and, of a model's folder that is here, the tokenizer; writes nothing, starts
nothing, imports no verl. Decided here: that what is missing is told and fails nothing, since the machine that plans is
seldom the one that trains; what cannot work anywhere has ended the command before (`config.checks`,
`training.problems`) or ends it here.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from tbexp.config.checks import to_be_named
from tbexp.config.here import check_here
from tbexp.config.schema import STAGES, Config
from tbexp.errors import Problem, UserError, counted
from tbexp.pipeline.context import Context, Untracked
from tbexp.pipeline.inputs import Inputs, problems_of
from tbexp.pipeline.preflight import asked_of_themselves, template_problems
from tbexp.pipeline.progress import Progress
from tbexp.pipeline.stages import lacking


def plan(config: Config, run_dir: Path, inputs: Inputs) -> None:
    """Raises UserError when verl refuses what it would be told, or the model's template is not `model.format`."""
    if wrong := template_problems(config):
        raise UserError(wrong)
    with Progress(sys.stdout) as progress:
        context = Context(config, run_dir, progress, Untracked(), inputs)
        base, no_weights = base_weights(context) if config.policy.kind == "local" else ("", [])
        unnamed = list(to_be_named(config))
        missing = [*unnamed, *check_here(config, run_dir), *no_weights]
        no_weights += [problem for problem in missing if problem.where == "model.path"]
        context.unknown = config.tasks.root == "" or bool(problems_of(config, inputs) or no_weights)
        missing += [] if context.unknown else lacking(context)
        steps = stage_plans(config, run_dir, context)
        progress.table(
            f"plan of {config.name} in {short_path(run_dir)}; nothing was run",
            ["stage", "would do"],
            [(name, steps[name]) for name in STAGES if name in config.stages],
        )
        for policy in (config.policy, config.selection.reference.policy):
            if policy.serve == "vllm":
                from tbexp.pipeline.policies import server_of_tokens
                from tbexp.serving.vllm_server import HOST, serve_command

                if policy.kind == "local":
                    weights, settings = base, server_of_tokens(policy)
                else:
                    weights, settings = policy.vllm.model or config.model.path or "MODEL", policy.vllm
                settings = settings.model_copy(update={"model": weights})
                words = serve_command(settings, served_name=policy.endpoint.model or Path(weights).name, host=HOST)
                free = " (by each job, at a port that is free)" if config.launcher.kind == "slurm" else ""
                progress.say(f"started for the attempts, and ended after them{free}: {shlex.join(words)}")
            elif policy.kind == "chat" and (policy.vllm.model or policy.vllm.tool_call_parser):
                from tbexp.serving.vllm_server import serve_command

                name = policy.endpoint.model or "MODEL"
                words = serve_command(policy.vllm, served_name=name)
                progress.say(f"{name} by vLLM: {shlex.join(words)}")
        if "train" in config.stages and config.topology.device == "cuda":
            from tbexp.training import estimates

            progress.table("estimates", ["of", "about"], estimates.lines(config))
        missing += asked_of_themselves(config)
        if missing:
            what = "not named, or not on this machine" if unnamed else "not on this machine"
            progress.say(f"\n{what} ({len(missing)}); a run would stop at it")
            for problem in missing:
                progress.say(f"  - {problem}")
        if "train" in config.stages:
            for line in verl_plan(config, run_dir):
                progress.say(line)
        if config.launcher.kind == "slurm":
            from tbexp.pipeline.submit import planned

            for line in planned(context):
                progress.say(line)


def stage_plans(config: Config, run_dir: Path, context: Context) -> dict[str, str]:
    """A sentence for each stage. Tasks that cannot be read here are not counted."""
    group, training, k = config.group, config.training, config.evaluation.attempts
    rows = config.probe.rows
    try:
        candidates, held_out = counted(len(context.candidates), "task"), counted(len(context.held_out), "held-out task")
    except UserError:
        candidates, held_out = "tasks (not here)", "held-out tasks (not here)"
    return {
        "probe": f"rows of {', '.join(rows)}" if rows else probe_plan(config, candidates),
        "select": f"{pool_plan(config)}; {config.selection.validation_fraction:.0%} for validation"
        + (guard_plan(context) if "select" in config.stages else ""),
        "train": f"{counted(training.steps, 'update')} of {group.groups_per_update} groups x {group.size} attempts, "
        f"validated every {training.validate_every}",
        "evaluate": f"{held_out} x {counted(k, 'attempt')} for {', '.join(config.evaluation.policies)}",
        "report": short_path(run_dir / "report" / "report.html"),
    }


def pool_plan(config: Config) -> str:
    """What selection.pool decides by."""
    by, selection = f"by {config.buckets.by}", config.selection
    if selection.pool == "selected":
        return by + lora_plan(config)
    if selection.pool == "all":
        return "pool all: whatever their difficulty"
    return f"pool random: as many as {by}, drawn by seed {selection.seed} whatever their difficulty"


def lora_plan(config: Config) -> str:
    """A word on the one band that the publication keeps for a training of all parameters and not for LoRA."""
    from tbexp.training.estimates import lora_rank

    buckets = config.buckets
    if "train" not in config.stages or buckets.by != "band" or not buckets.bands.often.keep or not lora_rank(config):
        return ""
    return ", the often solved band with it, which was published for training of all parameters (LoRA: buckets=lora)"


def guard_plan(context: Context) -> str:
    """How many of the tasks will never be selected, since they are the public benchmark's."""
    from tbexp.pipeline.stages import benchmark_among

    config = context.config
    try:
        rows = config.probe.rows
        uids = context.inputs.counts(rows, config.probe.fields).uids if rows else [t.uid for t in context.candidates]
        found = benchmark_among(context, uids)
    except UserError:
        return ""  # not here
    if not found:
        return ""
    are = "is a benchmark task" if len(found) == 1 else "are benchmark tasks"
    return f"; {len(found)} of {counted(len(uids), 'task')} {are}, for evaluation only, and never selected"


def probe_plan(config: Config, tasks: str) -> str:
    probe, reference = config.probe, config.selection.reference
    most = " at most" if probe.kind == "adaptive" and not probe.spend_saved else ""
    each = f"{counted(probe.attempts, 'attempt')}{most}"
    if probe.kind == "adaptive":
        each += ", each until its decision can hardly change"
    if reference.policy.kind is None:
        return f"{tasks} x {each}"
    model = reference.policy.endpoint.model
    return f"{tasks} x {counted(reference.attempts, 'attempt')} of {model}; then those it solves x {each}"


def base_weights(context: Context) -> tuple[str, list[Problem]]:
    """Where they are or will be, and nothing; the model's name and why where what they are built from is missing here.
    Of a folder that the config names, `check_here` says why.
    """
    model = context.config.model
    try:
        return short_path(context.model_place), []
    except UserError as error:
        return model.name, list(error.problems) if model.path is None else []


def verl_plan(config: Config, run_dir: Path) -> Iterator[str]:
    """The command line that stands for the training: the same overrides go to verl's main_ppo, in a process of tbexp's
    that watches it. Its folder is linked from the run's, under a name that the pool decides.
    """
    from tbexp.training import mapping

    path = Path(config.model.path) if config.model.kind == "folder" and config.model.path else Path(config.model.name)
    made = mapping.overrides(config, model_folder=path.absolute(), folder=(run_dir / "train").absolute())
    yield "\n# ---- verl"
    yield " \\\n  ".join(["python -m verl.trainer.main_ppo", *(shlex.quote(line) for line in made)])
    if config.topology.device != "cuda":
        return  # nothing that this machine could not simply try
    if importlib.util.find_spec("verl") is None:
        yield "\nverl is not installed here, so its own configuration was not composed with these"
        return
    mapping.compose(made)
    yield f"\nverl {importlib.metadata.version('verl')} composes its configuration with these {len(made)} overrides"


def short_path(path: Path) -> str:
    """Relative to where one is, if that is shorter to read."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)
