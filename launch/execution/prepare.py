"""Build the missing inputs of a plan: the demo's model and data, converted local data, and merged
models.
"""

from __future__ import annotations

from collections.abc import Callable

from launch.data.staging import count_trained_elsewhere, is_staged, load_staged, stage
from launch.demo.ensure import ensure_model, ensure_rows
from launch.errors import UserError, refusal
from launch.execution.merge import RECORD, merge_adapter, read_training
from launch.planning.adapter import Adapter
from launch.planning.chat_template import missing_text_problem
from launch.planning.digest_cache import DigestCache
from launch.planning.input_source import BUILDS, MERGE
from launch.planning.plan import Plan
from launch.planning.rules.labels import judge_staged_labels
from launch.worker.finding import Fix


def prepare_inputs(plan: Plan, say: Callable[[str], None]) -> None:
    """Build the plan's model and data where they are missing, and stage local data; existing files
    are kept.

    Raises UserError: validation_trained, one_label, one_kind_batches, those of the builders, of
    `stage_template`, of `launch.data.staging.stage` and of `merge_adapter`.
    """
    adapter = plan.inputs.model.adapter
    if adapter is not None and plan.inputs.model.build == MERGE:
        _merge(adapter, say)
    build_missing(plan, say)
    stage_template(plan)
    digests = DigestCache(plan.cache / "digests.json")
    for entry in plan.inputs.mixture:
        if entry.data is None:
            continue
        if not is_staged(entry.data, digests.of):
            say(f"staging {entry.source.reference}")
            staged = stage(entry.data, digests.of)
            if staged is not None:
                say(f"staged {staged.describe()} in {entry.data.folder}")
        counted = load_staged(entry.data)
        if counted is not None:
            _refuse_trained_validation(plan, counted.shared, counted.validation)
    digests.save()
    _judge_labels(plan, say)
    _refuse_validation_of_others(plan)


def _judge_labels(plan: Plan, say: Callable[[str], None]) -> None:
    """Judge the labels of KTO's rows, all of which are staged now, and print the warnings."""
    staged = [load_staged(entry.data) if entry.data else None for entry in plan.inputs.mixture]
    counts = [rows.labels if rows else None for rows in staged]
    printed = {warning.id for warning in plan.warnings}
    for warning in judge_staged_labels(plan, counts):
        if warning.id not in printed:
            say(str(warning))


def _merge(adapter: Adapter, say: Callable[[str], None]) -> None:
    """Merge the adapter that the plan starts from into its base."""
    if not (adapter.merged / RECORD).is_file():
        say(f"merging {adapter.folder} into {adapter.base}")
    merged = merge_adapter(adapter, read_training(adapter))
    verb = "merged" if merged.built else "uses the merge of"
    say(f"{verb} {adapter.folder} and {adapter.base} in {merged.folder}")


def _refuse_validation_of_others(plan: Plan) -> None:
    """Refuse rows that are held out of one data set and trained on in another."""
    sets = {entry.data.folder: entry.data for entry in plan.inputs.mixture if entry.data}
    if len(sets) < 2:
        return
    counts = [load_staged(data) for data in sets.values()]
    held_out = sum(staged.validation for staged in counts if staged)
    _refuse_trained_validation(plan, count_trained_elsewhere(list(sets.values())), held_out)


def _refuse_trained_validation(plan: Plan, shared: int, held_out: int) -> None:
    """Raise UserError (validation_trained) if validation rows are also among the training rows."""
    if not shared or "validation_trained" in plan.config.allow:
        return
    message = f"{shared} of {held_out} validation rows are also trained on: their loss means little"
    where = plan.origins.of("data.validation").where
    cure = Fix.of("remove them from one of the two, or set {0}", "allow=[validation_trained]")
    raise refusal("validation_trained", message, where, cure)


def stage_template(plan: Plan) -> None:
    """Write the text of TRL's chat template into the file that the trainer reads.

    A resumed run reads the same file. Raises UserError: no_template_text.
    """
    if plan.trl_template is None:
        return
    where = plan.origins.of("recipe.chat_template").where
    problem = missing_text_problem(plan.trl_template, plan.command[0], where)
    if problem:
        raise UserError(problem)
    plan.finder.stage(plan.trl_template)


_MODELS = {"demo": "the demo's model", "demo_trained": "the demo's model, trained for a minute"}


def build_missing(plan: Plan, say: Callable[[str], None]) -> None:
    """Build the demo's model and data where the plan uses them and they are missing."""
    for source in (plan.inputs.model, *(entry.source for entry in plan.inputs.mixture)):
        if source.build not in BUILDS or source.local is None:
            continue
        name = _MODELS.get(source.build, "the demo's data")
        if not source.local.exists():
            say(f"making {name}")
        kind = source.build.removeprefix("demo_")
        if source.build in _MODELS:
            made = ensure_model(source.local, plan.command[0], trained=kind == "trained")
            size = f"{made.facts['parameters']:,} parameters"
        else:
            made = ensure_rows(source.local.parent, kind)
            size = f"{made.facts['rows']:,} {kind}"
        if made.built:
            say(f"made {name} ({size}) in {source.local}")
