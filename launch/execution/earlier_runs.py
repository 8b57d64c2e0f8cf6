"""Compares earlier runs with a plan: which is the same training, and why the plan is a new run.

A run's name has the plan's identity, so changed inputs give another folder. A message then explains
why the training starts over. A run is the same training at another width if only how the ranks share
the work has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from launch.config.schema import Device
from launch.execution.record.outcome import folder_status
from launch.execution.record.run import Run, mapping
from launch.planning.command import is_decisive
from launch.planning.find_runs import runs_of_stage
from launch.planning.folders import DEFAULT_NAME
from launch.planning.other_width import ShardedState, split_flags
from launch.planning.parallel import default_mode
from launch.planning.plan import Plan
from launch.worker.finding import Finding, Fix
from launch.worker.json_codec import to_json

# Keys of config.yaml that describe the run folder and how it is used.
FOLDER_KEYS = (
    "name",
    "runs",
    "cache",
    "restart",
    "detach",
    "cache_only",
    "report",
    "evaluate",
)
# Keys of config.yaml that describe how a run is started and watched, and not what it trains. The
# width is compared as plan.json records it, and the Python packages are not compared.
_NOT_TRAINED = frozenset(
    (
        *FOLDER_KEYS,
        "python",
        "allow",
        "expandable_segments",
        "nodes",
        "gpus",
        "device",
        "processes",
        "cluster",
        "upstream",
        "guards",
        "gates",
        "rollout",
        "bench",
        "tune",
        "tuned",
        "tracking",
        "tracking_project",
        "tracking_entity",
        "stage.description",
        "stage.tasks",
        "model.trained_by",
        "trainer.unsupported_because",
        # Runs of earlier versions have recorded these sections of a trainer's file.
        "trainer.recipe",
        "trainer.fallback_values",
        "trainer.refused",
        "trainer.ignored_flags",
        "trainer.refused_values",
        "trainer.effective_only_with",
    )
)
# Settings of how the ranks share the model and the global batch, and the batch that they share.
_SHARED_WORK = (
    "parallel.mode",
    "parallel.buckets",
    "recipe.per_device_batch_size",
    "recipe.global_batch_size",
    "recipe.global_batch_tokens",
)


def note_earlier_run(plan: Plan, say: Callable[[str], None]) -> None:
    """Report why a plan is a new run, if an earlier run of its settings is in another folder.

    So is an unfinished one at another width, which this plan can't continue. Nothing is reported
    for a plan whose folder the user named, or whose folder exists already.
    """
    if plan.config.name or plan.config.cache_only or folder_status(plan.folder) != "absent":
        return
    run = _newest_run(plan, lambda run: _has_settings(run, plan))
    if run is not None:
        reason = changed_inputs(run, plan) or f"another identity, {run.plan.get('identity')}"
        say(
            f"{run.folder} has the same settings, but {reason}: this is a new run, in {plan.folder}"
        )
        return
    run = _newest_run(plan, lambda run: _is_unfinished_at_other_width(run, plan))
    if run is not None:
        reason, _ = _why_not_at_this_width(run, plan)
        say(
            f"{run.folder} is unfinished at width {_recorded_width(run)} and can't go on at this "
            f"one: {reason}; this is a new run, in {plan.folder}"
        )


def changed_inputs(run: Run, plan: Plan) -> str | None:
    """Describe which inputs of a recorded plan have changed since: upstream's source, or local
    files; None if none have.
    """
    commit_before = mapping(run.plan.get("upstream")).get("commit")
    commit_now = plan.upstream.commit
    if commit_before != commit_now:
        before = _format_commit(commit_before)
        now = _format_commit(commit_now)
        return f"open-instruct was at {before} and is at {now}"
    # A file of the parallel mode sets how the ranks share the work; it is not an input.
    modes = {Path(path).name for path in (*plan.parallel.files, *run.plan.get("files", ()))}
    digests_before = _digests(mapping(run.plan.get("inputs")), modes)
    digests_now = _digests(plan.input_digests, modes)
    changed = digests_before ^ digests_now
    names = sorted({name for name, _ in changed})
    return f"{', '.join(names)} changed since" if names else None


def _format_commit(commit: str | None) -> str:
    """Return the first nine digits of a commit."""
    return str(commit)[:9] if commit else "no known commit"


def _digests(inputs: Mapping[str, str], ignored: Collection[str]) -> set[tuple[str, str]]:
    """Return (file name, digest) of each input, but for the names that are ignored.

    A model that another run makes is left out: its digest is that run's identity, and its path is
    compared with the settings.
    """
    digests = set()
    for path, value in inputs.items():
        digest = str(value)
        name = Path(path).name
        if not digest.startswith("run-") and name not in ignored:
            digests.add((name, digest))
    return digests


def _newest_run(plan: Plan, is_wanted: Callable[[Run], bool]) -> Run | None:
    """Return the newest run of the stage that is wanted, with a default name, in another folder;
    None without one.
    """
    folders = []
    for folder in runs_of_stage(plan.runs / plan.stage):
        has_default_name = DEFAULT_NAME.fullmatch(folder.name) is not None
        if has_default_name and folder != plan.folder:
            folders.append(folder)
    folders.sort(key=lambda folder: (folder / "plan.json").stat().st_mtime, reverse=True)
    for folder in folders:
        run = Run(folder)
        if run.other_format is None and is_wanted(run):
            return run
    return None


def _has_settings(run: Run, plan: Plan) -> bool:
    """Return whether a recorded run has the width and the training settings of a plan."""
    return _recorded_width(run) == _planned_width(plan) and _trains_as(run, plan)


def _is_unfinished_at_other_width(run: Run, plan: Plan) -> bool:
    """Return whether a recorded run has not finished, and differs from a plan in the global batch
    and how the ranks share the work alone.
    """
    if run.folder_status == "done" or _recorded_width(run) in (None, _planned_width(plan)):
        return False
    if has_same_training(run, plan):  # it has no checkpoint yet, or it would be continued
        return False
    has_steps = next(run.steps(), None) is not None
    return has_steps and _trains_as(run, plan, ignored=_SHARED_WORK)


def _trains_as(run: Run, plan: Plan, ignored: Collection[str] = ()) -> bool:
    """Return whether a recorded run has the training settings of a plan, but for those ignored."""
    recorded = _without(training_settings(run.settings), ignored)
    planned = _without(training_settings(plan.resolved), ignored)
    # A run of an earlier version lacks the keys that were added later. Those that nobody sets are at
    # their defaults, which train as before.
    newer = [key for key in planned if key not in recorded]
    is_newer_one_set = any(plan.origins.overridden(key) for key in newer)
    known = {key: planned.get(key) for key in recorded}
    return known == recorded and not is_newer_one_set


def _without(settings: Mapping[str, Any], ignored: Collection[str]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key not in ignored}


def training_settings(
    config: Mapping[str, Any], *, with_trainer: bool = True, prefix: str = ""
) -> dict[str, Any]:
    """Return the settings that decide the training, by dotted key.

    `prefix`: the dotted key of `config` in the whole configuration, with a dot at its end.
    """
    settings: dict[str, Any] = {}
    for name, value in config.items():
        key = f"{prefix}{name}"
        if key in _NOT_TRAINED or (key == "trainer" and not with_trainer):
            continue
        if isinstance(value, Mapping) and value:
            settings |= training_settings(value, with_trainer=with_trainer, prefix=f"{key}.")
        elif key == "trainer.patches":
            settings[key] = list(filter(is_decisive, value or ()))
        else:
            settings[key] = value
    return settings


def has_same_training(run: Run, plan: Plan) -> bool:
    """Return whether a recorded run is that of a plan, at the plan's width or at another one."""
    if run.plan.get("identity") == plan.identity:
        return True
    training = plan.training_identity
    return training is not None and run.plan.get("training_identity") == training


def differing_flags(run: Run, plan: Plan) -> list[str]:
    """Return the trainer's flags whose values a recorded plan and this one set differently."""
    recorded = run.flags
    planned = {name: to_json(flag.value) for name, flag in plan.flags.items()}
    names = sorted({*recorded, *planned})
    return [f"--{name}" for name in names if recorded.get(name) != planned.get(name)]


def other_plan_problem(plan: Plan, run: Run) -> Finding:
    """Return the problem of a folder that holds a run of another plan: other_width, name_taken."""
    recorded_width = _recorded_width(run)
    planned_width = _planned_width(plan)
    if recorded_width is not None and recorded_width != planned_width:
        reason, parallel = _why_not_at_this_width(run, plan)
        message = (
            f"{plan.folder} holds a run of another plan at width {recorded_width}; this plan has "
            f"width {planned_width}, and the run can't go on there: {reason}"
        )
        cure = Fix("resume it at its own width, use another name=, or leave the name out")
        if parallel is not None:
            cure = Fix.of(f"set {{0}}; or {cure.sentence}", parallel)
        return Finding.error("other_width", message, "name", cure)
    names = [name for name in differing_flags(run, plan) if name != "--output_dir"]
    differences = f", which differs in {', '.join(names[:3])}" if names else ""
    message = (
        f"{plan.folder} holds a run of plan {run.plan.get('identity')}; this one is "
        f"{plan.identity}{differences}"
    )
    return Finding.error("name_taken", message, "name", "use another name=, or leave it out")


def _recorded_width(run: Run) -> str | None:
    """Return the ranks and the device of a recorded run: `8 cuda`; None if they are not recorded."""
    ranks = mapping(run.plan.get("batch")).get("width")
    device = mapping(run.plan.get("parallel")).get("device")
    return None if ranks is None or device is None else f"{ranks} {device}"


def _planned_width(plan: Plan) -> str:
    return f"{plan.batch.width} {plan.parallel.width.device.value}"


def _why_not_at_this_width(run: Run, plan: Plan) -> tuple[str, str | None]:
    """Return why a recorded run cannot be resumed at a plan's width, and what would allow it."""
    return next(_find_reasons(run, plan))


def _find_reasons(run: Run, plan: Plan) -> Iterator[tuple[str, str | None]]:
    """Yield the reasons of `_why_not_at_this_width`, at least one.

    What differs comes first: the obstacles of this plan may be those of another training.
    """
    global_batch = mapping(run.plan.get("batch")).get("global")
    if global_batch != plan.batch.global_:
        yield f"its global batch is {global_batch}, and this one {plan.batch.global_}", None
    ignored = {"--output_dir", *(f"--{name}" for name in split_flags(plan.config))}
    names = [name for name in differing_flags(run, plan) if name not in ignored]
    if names:
        yield f"it differs in {', '.join(names[:3])}", None
    changed = changed_inputs(run, plan)
    if changed is not None:
        yield changed, None
    if plan.width_obstacle is not None:
        yield plan.width_obstacle, None
    goes_on = run.plan.get("training_identity") is not None
    mode = mapping(run.plan.get("parallel")).get("mode")
    stage = mapping(run.plan.get("parallel")).get("zero_stage")
    if ShardedState.of_stage(stage) != ShardedState.of(plan.parallel):
        if stage is None:
            mode = default_mode(replace(plan.parallel.width, device=Device.cpu))
        reason = f"parallel={plan.parallel.mode} does not read the checkpoints of parallel={mode}"
        yield reason, f"parallel={mode}" if goes_on else None
    if not goes_on:
        yield "it was recorded as one that is bound to its width", None
    yield "its patches, its options or its environment are others", None
