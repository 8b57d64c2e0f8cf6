"""The overlay of a search's best setting: a YAML file that `+tuned=NAME` adds to a stage."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from launch.config.group_files import user_folder
from launch.config.schema import Buckets, Mode
from launch.config.yaml_nodes import write_comment
from launch.planning.flags import sequence_limit
from launch.planning.parallel import default_mode
from launch.planning.plan import Plan
from launch.resources import default_user_folder
from launch.trials.tune.record import TuneRecord
from launch.trials.tune.space import Candidate, held_flags
from launch.trials.view import runs_table

_GROUP = "tuned"  # the Hydra group of overlays


def overlay_path(name: str, environ: Mapping[str, str]) -> Path:
    """Return the overlay's path, in the folder that LAUNCH_CONFIG_DIR names or in the user's own."""
    folder = user_folder(environ) or default_user_folder(environ)
    return folder / _GROUP / f"{name}.yaml"


def overlay_text(record: TuneRecord) -> str:
    """Render the overlay of a record that has a best setting."""
    best = record.best
    assert best is not None and best.figures is not None
    plan = record.plan
    date = record.began[:10]
    counts_tokens = best.figures.unit == "tokens"
    facts: dict[str, Any] = {
        "name": record.id,
        "date": date,
        "stage": plan.stage,
        "trainer": plan.trainer,
        "model": plan.inputs.model.reference,
        "width": str(plan.parallel.width),
        "global_batch_size": record.workload.global_batch,
        "max_seq_length": sequence_limit(plan.config, plan.flags),
        "machine": platform.node(),
        "card": record.card,
        "versions": dict(plan.machine.versions),
        "tokens_per_second": _rounded(best.figures.per_second) if counts_tokens else None,
        "step_seconds": _rounded(best.figures.step_seconds),
        "reserved_gib": _rounded(best.memory_gib),
        "record": str(record.folder),
    }
    setting = _setting_keys(best.candidate, plan)
    setting[_GROUP] = facts
    comments = ["@package _global_", *_overlay_comments(record, date)]
    head = "".join(f"{write_comment(line)}\n" for line in comments)
    return head + yaml.safe_dump(setting, sort_keys=False, allow_unicode=True)


def _overlay_comments(record: TuneRecord, date: str) -> list[str]:
    """Return the lines at the head of an overlay: its use, and the probes of its search."""
    plan = record.plan
    place = f"{plan.parallel.width} on {record.card or 'a CPU'}"
    title = (
        f"Written by `launch tune` on {date}: the fastest setting found for {plan.stage} with "
        f"{plan.trainer} at {place}."
    )
    lines = [title, f"Use it as `+tuned={record.id}`. {record.gain}"]
    if record.loss_sentence:
        lines.append(record.loss_sentence)
    lines.append(f"The search is in {record.folder}. Its probes:")
    table = runs_table(record.verb, record.file_content()["runs"])
    return lines + [f"  {line}" for line in table.lines()]


def _setting_keys(best: Candidate, plan: Plan) -> dict[str, Any]:
    """Return all keys of the measured setting, as the nested mapping of an overlay.

    They include the keys that the command line set, so that these need not be repeated when the
    overlay is used. A command line can still change the parallel mode. It is written as `auto` if it
    is the default mode of the width, so that the overlay also works at other widths.
    """
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
        for group_name in groups:
            group = group.setdefault(group_name, {})
        group[name] = value
    return setting


def _rounded(value: float | None) -> float | None:
    """Round to five significant digits."""
    return None if value is None else float(f"{value:.5g}")
