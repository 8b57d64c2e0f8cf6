"""Recognise the run of a plan in a folder that another version of the launcher wrote, under another
identity.

A plan's identity, which is in the name of its folder, changes with the launcher
(IDENTITY_VERSIONS). The settings tell whether a folder holds the same run all the same: it is never
trained again in a new folder without a word.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from launch.config.line import override_key
from launch.config.schema import RootConfig
from launch.errors import UserError
from launch.execution.record.lock import locked_problem
from launch.execution.record.outcome import folder_status
from launch.execution.record.run import Run, mapping
from launch.planning.plan import Plan
from launch.worker.finding import Finding
from launch.worker.json_codec import to_json

# width and identity; of an archived run a date follows
_DEFAULT_NAME = re.compile(r"[a-z0-9]+-[0-9a-f]{8}")
# keys of config.yaml that describe how a run is started and watched, and not what it trains; the
# width and the Python packages are compared as plan.json records them, or not at all
_NOT_TRAINED = frozenset(
    (
        *(
            "name",
            "runs",
            "cache",
            "restart",
            "detach",
            "cache_only",
            "report",
            "evaluate",
            "python",
            "allow",
        ),
        *(
            "expandable_segments",
            "nodes",
            "gpus",
            "device",
            "processes",
            "cluster",
            "upstream",
            "guards",
            "gates",
        ),
        *("rollout", "bench", "tune", "tuned", "tracking", "tracking_project", "tracking_entity"),
        *(
            "stage.description",
            "stage.tasks",
            "model.trained_by",
            "trainer.why",
            "trainer.refused",
            "trainer.unread",
        ),
        *("trainer.refused_values", "trainer.inert"),
    )
)
# which another version may set otherwise: the demo stages saved nothing
_OF_A_VERSION = ("recipe.checkpoint_steps",)

# patches of version 1 of TRL's trainers: those that are options of launch's entry now, and those
# that it needs none for
_RENAMED = {
    "trl_subset": "subset",
    "trl_validation": "validation",
    "trl_chat_template": "chat_template",
}
_NO_OPTION = frozenset(
    ("trainer_steps", "trl_flatten", "trl_exact_resume", "trl_lengths", "lengths")
)


def holds_plan(run: Run, plan: Plan) -> bool:
    """Whether the recorded plan is this one: its identity, computed in the same way."""
    return (run.plan.get("identity"), _version(run)) == (plan.identity, plan.identity_version)


def holds_same_run(run: Run, plan: Plan) -> bool:
    """Whether the run was made from the settings and inputs of `plan`, whatever its identity."""
    return _has_settings(run, plan) and not changed_inputs(run, plan)


def place_run(plan: Plan, say: Callable[[str], None], verb: str = "run") -> Plan:
    """Return the plan in the folder of an earlier run of the same settings and inputs, if there is
    one.

    Only for a plan whose folder the user did not name. A folder whose inputs have changed since is
    another run: it is reported. Raises UserError: other_identity, for a run that is not finished;
    run_is_locked.
    """
    if plan.config.name or plan.config.cache_only or folder_status(plan.folder) != "absent":
        return plan
    unfinished: Finding | None = None
    note = ""
    for run in _runs_of_settings(plan):
        if changed := changed_inputs(run, plan):
            note = (
                note
                or f"{run.folder} has the same settings, but {changed}: this is a new run, in "
                f"{plan.folder}"
            )
            continue
        placed = plan.renamed(run.folder.name)
        if holds_plan(run, plan) or plan.config.restart:
            return placed
        if run.folder_status == "done":
            identities = f"planned as {run.plan.get('identity')}, now {plan.identity}"
            say(f"{run.folder} has the same settings and inputs, {identities}")
            return placed
        unfinished = unfinished or unfinished_problem(run, placed, verb)
    if unfinished is not None:
        raise UserError(unfinished)
    if note:
        say(note)
    return plan


def unfinished_problem(run: Run, plan: Plan, verb: str = "run") -> Finding:
    """Name the command that continues or archives the unfinished run in the plan's folder."""
    if run.holder:
        return locked_problem(run.folder, *run.holder)
    differences = rendered_differences(run, plan)
    message = (
        f"{run.folder} holds an unfinished run of the same settings under another identity: "
        f"{run.plan.get('identity')} (version {_version(run)}), now {plan.identity} (version "
        f"{plan.identity_version})"
    )
    overrides = [
        override for override in plan.origins.overrides if override_key(override) != "restart"
    ]
    command = ["launch", verb, *overrides]
    if differences:
        message += f". This version starts it differently: {', '.join(differences[:3])}"
        restart = shlex.join([*command, "restart=true"])
        return Finding.error(
            "other_identity", message, None, f"`{restart}` archives it and starts over"
        )
    name = () if "name" in map(override_key, overrides) else (f"name={plan.name}",)
    return Finding.error(
        "other_identity", message, None, f"`{shlex.join([*command, *name])}` continues it"
    )


def rendered_differences(run: Run, plan: Plan) -> list[str]:
    """Return what of a recorded plan differs from how this one starts its trainer, in the same
    folder.
    """
    before, after, now = run.flags, _flag_values(plan), plan.as_json()
    flags = [
        f"--{name}" for name in sorted({*before, *after}) if before.get(name) != after.get(name)
    ]
    keys = [key for key in ("trainer", "parallel", "batch") if run.plan.get(key) != now[key]]
    changes = [] if _changes(run.plan) == _changes(now) else ["patches"]
    return flags + keys + changes


def _changes(plan: Mapping[str, Any]) -> set[str]:
    """Return a plan's patches and options, those of version 1 of TRL's trainers as the options that
    they are now.
    """
    lists = [value for key in ("patches", "options") if isinstance(value := plan.get(key), list)]
    split = [str(text).partition("=") for texts in lists for text in texts]
    named = [(_RENAMED.get(name, name), equals, value) for name, equals, value in split]
    return {f"{name}{equals}{value}" for name, equals, value in named if name not in _NO_OPTION}


def changed_inputs(run: Run, plan: Plan) -> str | None:
    """Return which inputs of a recorded plan have changed since, in words: local files, or
    upstream's source.
    """
    before, after = mapping(run.plan.get("upstream")).get("commit"), plan.upstream.commit
    if before != after:
        commits = [str(commit)[:9] if commit else "no known commit" for commit in (before, after)]
        return f"open-instruct was at {commits[0]} and is at {commits[1]}"
    if "inputs" in run.plan:
        ignored = (
            {path.name for path in plan.parallel.files}
            if _version(run) != plan.identity_version
            else set()
        )
        then, now = (
            _digests(inputs, ignored)
            for inputs in (mapping(run.plan["inputs"]), plan.input_digests)
        )
        names = sorted({name for name, _ in then ^ now})
    else:
        # a record of before: the paths of data that this machine prepares carry a key of its
        # content
        launch = plan.config.trainer.launch
        of_inputs = [
            launch[key] for key in ("model", "dataset", "mixer", "tokenized_cache") if key in launch
        ]
        names = [
            f"--{name}" for name in of_inputs if run.flags.get(name) != _flag_values(plan).get(name)
        ]
    return f"{', '.join(names)} changed since" if names else None


def _flag_values(plan: Plan) -> dict[str, Any]:
    return {name: to_json(flag.value) for name, flag in plan.flags.items()}


def _digests(inputs: Mapping[str, str], ignored: set[str]) -> set[tuple[str, str]]:
    """Return name and digest of each input; a model that another run makes is compared by its path
    alone.
    """
    names = ((Path(path).name, str(digest)) for path, digest in inputs.items())
    return {
        (name, digest)
        for name, digest in names
        if name not in ignored and not digest.startswith("run-")
    }


def _runs_of_settings(plan: Plan) -> Iterator[Run]:
    """Yield the runs of the stage with these settings and a default name, the newest first."""
    folders = (
        path for path in (plan.runs / plan.stage).glob("*/") if _DEFAULT_NAME.fullmatch(path.name)
    )
    plans = [
        path / "plan.json"
        for path in folders
        if path != plan.folder and (path / "plan.json").is_file()
    ]
    for path in sorted(plans, key=lambda path: path.stat().st_mtime, reverse=True):
        run = Run(path.parent)
        if _has_settings(run, plan):
            yield run


def _has_settings(run: Run, plan: Plan) -> bool:
    width = (
        mapping(run.plan.get("batch")).get("width"),
        mapping(run.plan.get("parallel")).get("device"),
    )
    if (
        width != (plan.batch.width, plan.parallel.width.device.value)
        or run.plan.get("trainer") != plan.trainer
    ):
        return False
    defaults = OmegaConf.to_container(OmegaConf.structured(RootConfig))
    # another version may map a recipe to other flags
    is_current = _version(run) == plan.identity_version
    then, now, default = (
        training_settings(values, is_current) for values in (run.settings, plan.resolved, defaults)
    )
    compared = now.keys() - (() if is_current else _OF_A_VERSION)
    # a key that the other version did not know had its default
    return bool(then) and all(then.get(key, default.get(key)) == now[key] for key in compared)


def training_settings(config: Any, with_trainer: bool, prefix: str = "") -> dict[str, Any]:
    """Return what decides the training, by dotted key."""
    settings: dict[str, Any] = {}
    for name, value in config.items():
        key = f"{prefix}{name}"
        if key in _NOT_TRAINED or (key == "trainer" and not with_trainer):
            continue
        if isinstance(value, Mapping) and value:
            settings |= training_settings(value, with_trainer, f"{key}.")
        else:
            settings[key] = value
    return settings


def _version(run: Run) -> object:
    return run.plan.get("identity_version", 1)
