"""Renders the overlay of a search: a configuration file that `+tuned=NAME` adds to the stage, with its evidence."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from launch.config.compose import user_folder
from launch.config.schema import Buckets, Mode
from launch.config.yaml_nodes import write_comment
from launch.planning.flags import sequence_limit
from launch.planning.parallel import default_mode
from launch.planning.plan import Plan
from launch.resources import default_user_folder
from launch.table import Table
from launch.trials.tune.record import TuneRecord
from launch.trials.tune.space import Candidate, held_flags
from launch.trials.view import COLUMNS

GROUP = "tuned"


def overlay_path(name: str, environ: Mapping[str, str]) -> Path:
    """The overlay's path: in the folder that LAUNCH_CONFIG_DIR names, else in the user's own."""
    return (user_folder(environ) or default_user_folder(environ)) / GROUP / f"{name}.yaml"


def overlay_text(record: TuneRecord) -> str:
    """Render the overlay of a record that has a best setting."""
    best = record.best
    assert best is not None and best.figures is not None
    date = record.began[:10]
    title = (
        f"Written by `launch tune` on {date}: the fastest setting found for {record.plan.stage} with "
        f"{record.plan.trainer} at {record.plan.parallel.width} on {record.card or 'a CPU'}."
    )
    comments = [
        title,
        f"Use it as `+tuned={record.name}`. {record.gain}",
        record.loss_sentence,
        f"The search is in {record.folder}. Its probes:",
        *(f"  {line}" for line in Table.of("", COLUMNS[record.verb], record.as_json()["runs"]).lines()),
    ]
    facts: dict[str, Any] = {
        "name": record.name,
        "date": date,
        "stage": record.plan.stage,
        "trainer": record.plan.trainer,
        "model": record.plan.inputs.model.reference,
        "width": str(record.plan.parallel.width),
        "global_batch_size": record.workload.global_batch,
        "max_seq_length": sequence_limit(record.plan.config, record.plan.flags),
        "machine": platform.node(),
        "card": record.card,
        "versions": dict(record.versions),
        "tokens_per_second": _rounded(best.figures.per_second) if best.figures.unit == "tokens" else None,
        "step_seconds": _rounded(best.figures.step_seconds),
        "reserved_gib": _rounded(best.memory_gib),
        "record": str(record.folder),
    }
    setting = _setting_keys(best.candidate, record.plan)
    setting[GROUP] = facts
    head = "".join(f"{write_comment(line)}\n" for line in ("@package _global_", *comments) if line)
    return head + yaml.safe_dump(setting, sort_keys=False, allow_unicode=True)


def _setting_keys(best: Candidate, plan: Plan) -> dict[str, Any]:
    """All keys of the measured setting, including those that the command line set, which are not repeated when the
    overlay is used. The mode is a choice that a command line can change; `auto` where it is the usual one, so that it
    also works at other widths."""
    chosen = best.keys()
    mode = chosen.pop("parallel")
    if mode in (default_mode(plan.parallel.width), Mode.fsdp):
        mode = Mode.auto.value
    held = {f"flags.{name}": value for name, value in held_flags(plan).items()}
    if plan.config.parallel.buckets != Buckets.usual:
        held["parallel.buckets"] = plan.config.parallel.buckets.value
    setting: dict[str, Any] = {"defaults": [{"override /parallel": mode}]}
    for key, value in (held | chosen).items():
        *groups, name = key.split(".")
        group = setting
        for each in groups:
            group = group.setdefault(each, {})
        group[name] = value
    return setting


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")
