"""The pass of `cache_only=true`, which tokenises the data in one plain CPU process, and what an earlier one left.

Upstream tokenises inside a process group, which times out after 30 minutes (finetune.py:376).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from launch import resources
from launch.config.schema import Device, Family, Mode
from launch.errors import Problem, UserError
from launch.execution.caches import find_half_written, tokenized_folder
from launch.execution.record.reader import RunRecord
from launch.planning.parallel import Width
from launch.planning.plan import TOKENIZE_ONLY_FLAG, Plan

_KEPT_PATCHES = ("unused_imports", "lengths")  # they let the trainer be imported, and write its samples' lengths


@dataclass(frozen=True)
class TokenizedData:
    """The data set that a trainer reports."""

    path: Path
    built: bool  # False: it was in the cache already


def plan_cache_pass(plan: Plan) -> Plan:
    """Plan the pass: the same flags without accelerate, with an output folder of its own.

    Raises UserError: no_cache_pass, for a trainer that keeps no tokenised data.
    """
    tokenized = tokenized_folder(plan)
    if tokenized is None or plan.config.trainer.family != Family.open_instruct:
        message = f"{plan.trainer} tokenises when it starts and keeps no tokenised data of its own"
        cure = "leave cache_only out; only the open-instruct trainers have such a cache"
        raise UserError(Problem("no_cache_pass", message, "cache_only", cure))
    runs, name = tokenized.parent / ".passes", tokenized.name
    separator = plan.command.index("--")
    python, script = plan.command[0], plan.command[separator - 1]
    output = str(runs / plan.stage / name / "model")
    arguments = [output if argument == str(plan.model_dir) else argument for argument in plan.command[separator:]]
    patches = tuple(patch for patch in plan.patches if patch.partition("=")[0] in _KEPT_PATCHES)
    worker = [str(resources.WORKER), *(option for patch in patches for option in ("--patch", patch))]
    return replace(
        plan,
        name=name,
        runs=runs,
        parallel=replace(plan.parallel, mode=Mode.single, width=Width(Device.cpu, 1)),
        batch=replace(plan.batch, width=1),
        command=(python, *worker, "--script", script, *arguments, f"--{TOKENIZE_ONLY_FLAG}", "true"),
        env={**plan.env, "CUDA_VISIBLE_DEVICES": ""},
        patches=patches,
    )


def read_dataset_event(run: RunRecord) -> TokenizedData | None:
    """Return the data set that the last `dataset_cache` event of a run reports."""
    reported = [event for event in run.events("evidence") if event.get("what") == "dataset_cache"]
    return TokenizedData(Path(reported[-1]["path"]), built=reported[-1]["value"] == "built") if reported else None


def supports_cache_pass(plan: Plan) -> bool:
    """Whether the plan's trainer can tokenise before it trains."""
    return plan.config.trainer.family == Family.open_instruct and tokenized_folder(plan) is not None


def find_tokenized_data(plan: Plan) -> Path | None:
    """Return the complete data set that an earlier pass built with the same command.

    None also where only a run built it, which leaves no record of a pass.
    """
    cache_pass, tokenized = plan_cache_pass(plan), tokenized_folder(plan)
    assert tokenized is not None  # plan_cache_pass raises without it
    record = RunRecord(cache_pass.folder)
    dataset = read_dataset_event(record)
    if record.plan.get("command") != list(cache_pass.command) or dataset is None:
        return None
    incomplete = [path for path, _ in find_half_written(tokenized)]
    return dataset.path if dataset.path.is_dir() and dataset.path not in incomplete else None
