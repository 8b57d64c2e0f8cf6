"""Build what a plan lacks here: the demo's model and data, converted copies of local data, merged models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from launch.data.staging import load_staged, stage
from launch.demo import (
    BuiltFolder,
    ensure_chats,
    ensure_model,
    ensure_preferences,
    ensure_prompts,
    ensure_trained_model,
)
from launch.errors import Cure, Problem, UserError
from launch.execution.merge import RECORD, merge_adapter, read_training
from launch.planning.identity import DigestCache
from launch.planning.inputs import MERGE
from launch.planning.plan import Plan


def prepare_inputs(plan: Plan, say: Callable[[str], None]) -> None:
    """Build the plan's model and data where they are missing, and stage local data; existing files are kept.

    Raises UserError: validation_trained, those of the builders, of `launch.data.staging.stage` and of `merge_adapter`.
    """
    adapter = plan.inputs.model.adapter
    if adapter is not None and plan.inputs.model.build == MERGE:
        if not (adapter.merged / RECORD).is_file():
            say(f"merging {adapter.folder} into {adapter.base}")
        merged = merge_adapter(adapter, read_training(adapter))
        did = "merged" if merged.built else "uses the merge of"
        say(f"{did} {adapter.folder} and {adapter.base} in {merged.folder}")
    build_missing(plan, say)
    digests = DigestCache(plan.cache / "digests.json")
    for entry in plan.inputs.mixture:
        if entry.data is not None and load_staged(entry.data) is None:
            say(f"staging {entry.source.reference}")
            staged = stage(entry.data, digests.of)
            if staged is not None:
                say(f"staged {staged.describe()} in {entry.data.folder}")
        rows = load_staged(entry.data) if entry.data is not None else None
        if rows is not None and rows.shared and "validation_trained" not in plan.config.allow:
            message = f"{rows.shared} of {rows.validation} validation rows are also trained on: their loss means little"
            cure = Cure("remove them from one of the two, or set {0}", "allow=[validation_trained]")
            raise UserError(Problem("validation_trained", message, plan.origins.of("data.validation").where, cure))
    digests.save()


def build_missing(plan: Plan, say: Callable[[str], None]) -> None:
    """Build the demo's model and data where the plan uses them and they are missing."""
    for source in (plan.inputs.model, *(entry.source for entry in plan.inputs.mixture)):
        if source.build in _BUILDERS and source.local:
            what, build, unit, fact = _BUILDERS[source.build]
            if not Path(source.local).exists():
                say(f"making {what}")
            made = build(source.local, plan.command[0])
            if made.built:
                say(f"made {what} ({made.facts[fact]:,} {unit}) in {source.local}")


# what each makes, its function of the path and the trainer's Python, and the unit and fact that say how much
_BUILDERS: dict[str, tuple[str, Callable[[Path, str], BuiltFolder], str, str]] = {
    "demo": ("the demo's model", ensure_model, "parameters", "parameters"),
    "demo_trained": (
        "the demo's model, trained for a minute",
        ensure_trained_model,
        "parameters",
        "parameters",
    ),
    "demo_chats": ("the demo's data", lambda file, _: ensure_chats(file.parent), "chats", "rows"),
    "demo_preferences": (
        "the demo's data",
        lambda file, _: ensure_preferences(file.parent),
        "preference pairs",
        "rows",
    ),
    "demo_prompts": ("the demo's data", lambda file, _: ensure_prompts(file.parent), "prompts", "rows"),
}
