"""Find a run's tokenised data, by the record that a cache pass of the same flags left."""

from __future__ import annotations

from pathlib import Path

from launch.config.schema import Family
from launch.execution.cache_pass import parse_dataset_event, plan_cache_pass
from launch.execution.caches import find_half_written, tokenized_folder
from launch.files import load_json
from launch.planning.plan import Plan


def supports_cache_pass(plan: Plan) -> bool:
    """Whether the plan's trainer can tokenise before it trains."""
    return plan.config.trainer.family == Family.open_instruct and tokenized_folder(plan) is not None


def find_tokenized_data(plan: Plan) -> Path | None:
    """Return the complete data set that an earlier pass built with the same command.

    None also where only a run built it, which leaves no record of a pass.
    """
    cache_pass, tokenized = plan_cache_pass(plan), tokenized_folder(plan)
    assert tokenized is not None  # plan_cache_pass raises without it
    try:
        recorded = load_json(cache_pass.folder / "plan.json")
        dataset = parse_dataset_event((cache_pass.folder / "events.jsonl").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if recorded.get("command") != list(cache_pass.command) or dataset is None:
        return None
    incomplete = [path for path, _ in find_half_written(tokenized)]
    return dataset.path if dataset.path.is_dir() and dataset.path not in incomplete else None
