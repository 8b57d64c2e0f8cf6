"""The rules of the data of a plan: its rows against the batch, and what a trainer evaluates on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from launch.config.kinds import Kind
from launch.config.recipe_keys import Packing
from launch.config.schema import Family, Launcher, SystemTurns
from launch.data.sources import is_pattern
from launch.planning.data import count_epoch_rows, count_steps_at_once, find_step_limit
from launch.planning.estimate.speed import planned_steps
from launch.planning.flags import Flag
from launch.planning.packing import REFERENCE_ROWS
from launch.planning.plan import Plan
from launch.planning.rules.plan_rule import FlagsCase, SettingsCase, plan_rule
from launch.rules.code import failed, warned
from launch.upstream.trainers import OLMO_CORE_DPO
from launch.worker.evidence import FEW_STEPS
from launch.worker.finding import Finding, Fix
from launch.worker.wording import count_of


@plan_rule("path_wildcards")
def cache_has_no_wildcards(case: SettingsCase) -> Iterator[Finding]:
    """The trainers' data loader (datasets.load_dataset) takes * ? [ in a path for a glob pattern."""
    for entry in case.mixture:
        is_made_here = entry.data is not None or entry.source.build is not None
        if is_made_here and is_pattern(entry.source.reference):
            folder = Path(entry.source.reference).parent
            message = f"the data loader expands * ? [ in the path of the cache, {folder}"
            where = case.origins.of("cache").where or case.origins.of("runs").where
            yield failed(message, "set cache to a folder without them in its path", where)
            return


@plan_rule("data_split")
def both_splits_have_rows(case: FlagsCase) -> Iterator[Finding]:
    """A share of a few rows may be none of them, or all."""
    for entry, structure in zip(case.inputs.mixture, case.data, strict=True):
        if structure is None or entry.data is None or not isinstance(entry.data.validation, float):
            continue
        if structure.all_ and structure.validation in (0, structure.read):
            share = entry.data.validation
            use = "to validate" if structure.validation == 0 else "to train"
            message = f"data.validation={share:g} of {structure.read} rows leaves none {use} on"
            cure = Fix.of("set another share, or name a file with {0}", "data.validation=FILE")
            yield failed(message, cure, entry.source.provenance.where)


@plan_rule("data_small_epoch", allow=True)
def epoch_fills_a_batch(case: FlagsCase) -> Iterator[Finding]:
    """An epoch of fewer rows than a global batch makes steps of another size than requested, or none,
    and no trainer reports it.
    """
    rows = _rows_of_epoch(case)
    has_split_problem = any(True for _ in both_splits_have_rows.judge(case))
    if rows is None or has_split_problem:
        return
    config = case.config
    needed = case.batch.global_ // (config.recipe.samples_per_prompt or 1)
    steps = count_steps_at_once(config)
    if rows >= needed * steps:
        return
    held_out = sum(structure.validation or 0 for structure in case.data if structure)
    available = f"{rows} rows ({held_out} are held out)" if held_out else f"{rows} rows"
    if config.stage.kind == Kind.rlvr:
        key = "prompts_per_step"
        use = "a step"
        if steps > 1:
            use = f"the {steps} steps that flags.async_steps samples ahead"
        batch_text = f"the {needed * steps} prompts of {use}"
    else:
        key = "global_batch_size"
        batch_text = f"the global batch of {needed}"
    message = f"an epoch has {available}, which is less than {batch_text}"
    change = "add rows"
    if rows >= steps:
        change = f"set recipe.{key} to at most {rows // steps}"
    cure = Fix.of(f"{change}, or {{0}}", "allow=[data_small_epoch]")
    yield failed(message, cure, _place_of_data(case))


@plan_rule("data_small_reference")
def reference_pass_has_rows(case: FlagsCase) -> Iterator[Finding]:
    """dpo.py fills the last batch of its reference pass up with the first rows, once
    (data_loader.py:288), so that fewer rows than half of that batch fail in a reshape.
    """
    rows = _rows_of_epoch(case)
    width = case.batch.width
    size = REFERENCE_ROWS * case.batch.per_device * width
    if case.trainer.name != OLMO_CORE_DPO or rows is None or 2 * rows >= size:
        return
    message = (
        f"dpo.py's reference pass takes {size} rows at a time and fails with fewer than "
        f"half: data has {rows}"
    )
    most = 2 * rows // (REFERENCE_ROWS * width)
    cure = f"add rows: at least {size // 2}"
    if most:
        cure = f"set recipe.per_device_batch_size to at most {most}"
    yield failed(message, cure, _place_of_data(case))


def _rows_of_epoch(case: FlagsCase) -> int | None:
    """Return the rows that an epoch trains on; None where they are not known, or where a packed row
    holds several samples.
    """
    if case.config.recipe.packing == Packing.bins:
        return None
    return count_epoch_rows(case.inputs.mixture, case.data)


def _place_of_data(case: FlagsCase) -> str | None:
    return case.inputs.mixture[0].source.provenance.where


@plan_rule("system_turns_not_staged")
def system_turns_are_of_staged_rows(case: FlagsCase) -> Iterator[Finding]:
    """launch puts system turns into user turns when it converts local rows; the trainer reads hub data
    itself, and the trainers on Ray read local files, too.
    """
    key = "data.system_turns"
    if case.config.data.system_turns == SystemTurns.keep:
        return
    keep = Fix.of("remove {0}", f"~{key}")
    if case.trainer.launcher == Launcher.ray:
        message = f"{case.trainer.name} reads the files themselves, with their system turns"
        yield failed(message, keep, key)
    for entry in case.inputs.mixture:
        if entry.data is None and entry.source.build is None:
            message = (
                f"{entry.source.reference} is not on this machine: its trainer reads its turns"
            )
            cure = Fix.of(
                "download the data set and name its files in data.mix, or remove {0}", f"~{key}"
            )
            yield failed(message, cure, key)


@plan_rule("no_split_to_evaluate")
def evaluation_has_data(case: FlagsCase) -> Iterator[Finding]:
    """TRL fails where a flag makes it evaluate on a split that the data lacks (trl/scripts/sft.py:107,
    trl/scripts/dpo.py:105).

    Local data has only the split to train on and the one that data.validation makes.
    """
    if case.trainer.family != Family.trl:
        return
    strategy = case.flags.get("eval_strategy")
    at_start = case.flags.get("eval_on_start")
    if strategy is not None and str(strategy.value) != "no":
        entry = case.inputs.mixture[0]
        given = case.flags.get("dataset_test_split")
        split = given.value if given else "test"
        splits = [entry.split]
        if case.config.data.validation is not None:
            splits.append("validation")
        if entry.source.local and split not in splits:
            only = " and ".join(splits)
            reason = f"evaluates on the split '{split}', and the data has only {only}"
            yield _lacks_data(case, "eval_strategy", strategy, reason)
    elif at_start is not None and str(at_start.value).lower() == "true":
        reason = "evaluates, and has no data for it"
        yield _lacks_data(case, "eval_on_start", at_start, reason)


def _lacks_data(case: FlagsCase, name: str, flag: Flag, reason: str) -> Finding:
    message = f"with flags.{name}={str(flag.value).lower()} {case.trainer.name} {reason}"
    cure = Fix.of("set {0} or to a file", "data.validation=0.02")
    return failed(message, cure, flag.provenance.where)


@plan_rule("best_not_saved", severity="warning")
def best_model_is_saved(plan: Plan) -> Iterator[Finding]:
    """A model that is evaluated between two checkpoints may be the best one, and is lost."""
    evaluated = plan.config.recipe.eval_steps
    saved = plan.config.recipe.checkpoint_steps
    if plan.config.data.validation is None or evaluated is None or saved is None:
        return
    if evaluated % saved == 0:
        return
    message = (
        f"recipe.eval_steps={evaluated} evaluates between checkpoints, so the best one may "
        "not be saved"
    )
    cure = f"set recipe.eval_steps to a multiple of recipe.checkpoint_steps ({saved})"
    yield warned(message, cure, "recipe.eval_steps")


@plan_rule("few_steps", severity="warning")
def steps_are_more_than_a_smoke_test(plan: Plan) -> Iterator[Finding]:
    """Nothing is learnt in a step or two, whose warm-up begins at a learning rate of 0."""
    limit, where = find_step_limit(plan)
    if limit is None:  # all epochs
        where = plan.origins.of("data.mix").where
    steps = planned_steps(plan)
    if steps is None or steps > FEW_STEPS:
        return
    number = count_of(steps, "optimizer step")
    message = (
        f"nothing can be learnt in {number}: a warm-up begins at a learning rate of 0; the run "
        "proves everything else"
    )
    cure = f"fine for a smoke test; a training takes more than {FEW_STEPS} steps"
    yield warned(message, cure, where)
