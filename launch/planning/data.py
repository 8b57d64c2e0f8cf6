"""The data of a plan: the first rows of local data against the batch, and what is held out to
evaluate on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from launch.config.origins import Origins
from launch.config.schema import BadRows, Family, Kind, Launcher, Packing, RootConfig
from launch.errors import UserError, refusal
from launch.planning.batches import REFERENCE_ROWS
from launch.planning.flags import Flag
from launch.planning.inputs import Inputs, MixtureEntry
from launch.planning.parallel import Batch
from launch.upstream.trainers import OLMO_CORE_DPO
from launch.worker.finding import FEW_STEPS, Finding, Fix

if TYPE_CHECKING:
    from launch.data.structure import DataStructure


def read_local_data(
    config: RootConfig, inputs: Inputs, batch: Batch
) -> tuple[DataStructure | None, ...]:
    """Return what the first rows of each entry of the mixture are; None for one that is not local.

    Reads FIRST_ROWS rows, and as many more as it takes to know that an epoch fills a global batch;
    all rows where faulty ones are left out, to record how many.

    Raises UserError: data_split, data_small_epoch, data_small_reference, and those of
    `launch.data.conversion.Conversion.rows`.
    """
    if not any(entry.data for entry in inputs.mixture):
        return (None,) * len(inputs.mixture)
    # with readers and converters: hub data needs none
    from launch.data.structure import FIRST_ROWS, read_structure

    smallest = min(entry.share for entry in inputs.mixture)
    rows = (
        None
        if config.data.bad_rows == BadRows.skip
        else max(FIRST_ROWS, int(2 * batch.global_ / smallest) + 2)
    )
    found = tuple(
        read_structure(entry.data, rows) if entry.data and not entry.source.build else None
        for entry in inputs.mixture
    )
    _check_split(inputs, found)
    _check_epoch(config, inputs, batch, found)
    return found


def describe_data(inputs: Inputs, structures: tuple[DataStructure | None, ...]) -> list[str]:
    """Describe each entry of the mixture in a line."""
    return [
        _describe(entry, found) for entry, found in zip(inputs.mixture, structures, strict=True)
    ]


def _describe(entry: MixtureEntry, structure: DataStructure | None) -> str:
    if structure is not None:
        return structure.describe()
    if entry.source.build:
        return f"{entry.source.build}, made on this machine"
    if entry.source.local:
        return f"{entry.source.reference}: not read, it does not exist here"
    return f"{entry.source.reference}: hub data, not read"


def _check_split(inputs: Inputs, structures: tuple[DataStructure | None, ...]) -> None:
    """Raise UserError (data_split) if all rows are known and the share to hold out leaves a side
    without any.
    """
    for entry, structure in zip(inputs.mixture, structures, strict=True):
        if structure is None or entry.data is None or not isinstance(entry.data.validation, float):
            continue
        if structure.all_ and structure.validation in (0, structure.read):
            share, empty = (
                entry.data.validation,
                "to validate" if structure.validation == 0 else "to train",
            )
            message = f"data.validation={share:g} of {structure.read} rows leaves none {empty} on"
            cure = Fix.of("set another share, or name a file with {0}", "data.validation=FILE")
            raise refusal("data_split", message, entry.source.provenance.where, cure)


def _check_epoch(
    config: RootConfig, inputs: Inputs, batch: Batch, structures: tuple[DataStructure | None, ...]
) -> None:
    """Raise UserError (data_small_epoch) if the rows are known, and fewer than one optimizer step
    takes.
    """
    if config.recipe.packing == Packing.bins:
        return  # a packed row holds several samples
    rows = _count_rows(inputs.mixture, structures)
    if rows is None:
        return
    where = inputs.mixture[0].source.provenance.where
    needed = batch.global_ // (config.recipe.samples_per_prompt or 1)
    ahead = config.flags.get("async_steps", 8) if config.trainer.launcher == Launcher.ray else 1
    # that open-instruct's GRPO samples ahead (grpo_fast.py:2247)
    steps = ahead if isinstance(ahead, int) else 1
    if rows < needed * steps and "data_small_epoch" not in config.allow:
        held_out = sum(structure.validation or 0 for structure in structures if structure)
        message = (
            f"an epoch has {rows} rows{f' ({held_out} are held out)' if held_out else ''}, "
            "which is less than "
        )
        is_rlvr = config.stage.kind == Kind.rlvr
        of = "a step" if steps == 1 else f"the {steps} steps that flags.async_steps samples ahead"
        message += (
            f"the {needed * steps} prompts of {of}" if is_rlvr else f"the global batch of {needed}"
        )
        key = "prompts_per_step" if is_rlvr else "global_batch_size"
        cure = Fix.of(
            f"{f'set recipe.{key} to at most {rows // steps}' if rows >= steps else 'add rows'}, "
            f"or {{0}}",
            "allow=[data_small_epoch]",
        )
        raise refusal("data_small_epoch", message, where, cure)
    _check_reference_pass(config, batch, rows, where)


def _count_rows(
    mixture: Sequence[MixtureEntry], structures: Sequence[DataStructure | None]
) -> int | None:
    """Return the rows that an epoch trains on; None where those of a data set are not known."""
    rows = 0
    for entry, structure in zip(mixture, structures, strict=True):
        if structure is None or structure.unread or not structure.all_:
            return None
        rows += int((structure.read - (structure.validation or 0)) * entry.share)
    return rows


def count_steps(
    config: RootConfig,
    batch: Batch,
    mixture: Sequence[MixtureEntry],
    structures: Sequence[DataStructure | None],
    samples: int | None,
) -> int | None:
    """Return the optimizer steps of all epochs; None where the rows are not known, or several share
    one.

    `samples`: the samples that were tokenised, where they are counted. Ranks share an epoch's micro
    batches, and the last step may be short (accelerate's BatchSamplerShard, then finetune.py:684
    and transformers' trainer.py); RLVR and dpo.py leave an incomplete one out
    (trl/trainer/utils.py, RepeatSampler; dpo.py:212).
    """
    rows = samples or _count_rows(mixture, structures)
    if rows is None or config.recipe.packing == Packing.bins or config.trainer.always_packs:
        return None
    if config.stage.kind == Kind.rlvr or config.trainer.name == OLMO_CORE_DPO:
        steps = rows * (config.recipe.samples_per_prompt or 1) // batch.global_
    else:
        steps = math.ceil(
            math.ceil(math.ceil(rows / batch.per_device) / batch.width) / batch.accumulation
        )
    return steps * config.recipe.epochs


def few_steps_warnings(
    config: RootConfig, origins: Origins, flags: Mapping[str, Flag], counted: int | None
) -> tuple[Finding, ...]:
    """Return the warning few_steps where a run is known to have as few steps as a smoke test.

    `counted`: the steps of all epochs, where they are known.
    """
    name = config.trainer.recipe.get("max_steps")
    flag = flags.get(name) if isinstance(name, str) else None
    steps = flag.value if flag else config.recipe.max_steps
    where = flag.provenance.where if flag else origins.of("recipe.max_steps").where
    if not isinstance(steps, int) or steps < 1:  # all epochs
        steps, where = counted, origins.of("data.mix").where
    if steps is None or steps > FEW_STEPS:
        return ()
    message = (
        "nothing can be learnt in "
        f"{'1 optimizer step' if steps == 1 else f'{steps} optimizer steps'}: "
    )
    message += "a warm-up begins at a learning rate of 0; the run proves everything else"
    cure = f"fine for a smoke test; a training takes more than {FEW_STEPS} steps"
    return (Finding.error("few_steps", message, where, cure),)


def _check_reference_pass(config: RootConfig, batch: Batch, rows: int, where: str | None) -> None:
    """dpo.py fills the last batch of its reference pass up with the first rows, once
    (data_loader.py:288): fewer rows than half of that batch fail in a reshape. Raises UserError:
    data_small_reference.
    """
    size = REFERENCE_ROWS * batch.per_device * batch.width
    if config.trainer.name == OLMO_CORE_DPO and 2 * rows < size:
        message = (
            f"dpo.py's reference pass takes {size} rows at a time and fails with fewer than "
            f"half: data has {rows}"
        )
        most = 2 * rows // (REFERENCE_ROWS * batch.width)
        cure = (
            f"set recipe.per_device_batch_size to at most {most}"
            if most
            else f"add rows: at least {size // 2}"
        )
        raise refusal("data_small_reference", message, where, cure)


_KEY = "data.validation"


def check_validation(config: RootConfig, origins: Origins) -> None:
    """Check data.validation, recipe.eval_steps and recipe.early_stop.

    Raises UserError: bad_validation, no_validation, eval_never, early_stop_checkpoints.
    """
    problems = _data_problems(config, origins) or [
        *_schedule_problems(config, origins),
        *_early_stop_problems(config, origins),
    ]
    if problems:
        raise UserError(problems)


def check_evaluation(
    config: RootConfig, flags: Mapping[str, Flag], mixture: Sequence[MixtureEntry]
) -> None:
    """Check that TRL finds the data which a flag has it evaluate on (trl/scripts/sft.py:107,
    trl/scripts/dpo.py:105).

    Local data has no other split than that to train on and the one that data.validation makes.

    Raises UserError: no_validation.
    """
    if config.trainer.family != Family.trl:
        return
    strategy, at_start = flags.get("eval_strategy"), flags.get("eval_on_start")
    if strategy is not None and str(strategy.value) != "no":
        name, flag, entry = "eval_strategy", strategy, mixture[0]
        split = flags["dataset_test_split"].value if "dataset_test_split" in flags else "test"
        here = [entry.split] if config.data.validation is None else [entry.split, "validation"]
        why = f"evaluates on the split '{split}', and the data has only {' and '.join(here)}"
        if split in here or not entry.source.local:
            return
    elif at_start is not None and str(at_start.value).lower() == "true":
        name, flag, why = "eval_on_start", at_start, "evaluates, and has no data for it"
    else:
        return
    value = str(flag.value).lower()
    message = f"with flags.{name}={value} {config.trainer.name} {why}"
    raise refusal(
        "no_validation",
        message,
        flag.provenance.where,
        Fix.of("set {0} or to a file", f"{_KEY}=0.02"),
    )


def validation_warnings(config: RootConfig) -> tuple[Finding, ...]:
    """Return the warning best_not_saved where it applies: an evaluation at a step without a
    checkpoint.
    """
    evaluated, saved = config.recipe.eval_steps, config.recipe.checkpoint_steps
    if (
        config.data.validation is None
        or evaluated is None
        or saved is None
        or evaluated % saved == 0
    ):
        return ()
    message = (
        f"recipe.eval_steps={evaluated} evaluates between checkpoints, so the best one may "
        "not be saved"
    )
    cure = f"set recipe.eval_steps to a multiple of recipe.checkpoint_steps ({saved})"
    return (Finding.error("best_not_saved", message, "recipe.eval_steps", cure),)


def describe_schedule(config: RootConfig) -> str | None:
    """Describe what is held out and when the trainer evaluates on it; None without validation
    data.
    """
    value, recipe = config.data.validation, config.recipe
    if value is None:
        return None
    held_out = f"{value:.4g} of the rows" if isinstance(value, float) else str(value)
    if not config.trainer.validation_flags:
        return (
            f"{held_out}, kept for `launch eval`; {config.trainer.name} does not evaluate "
            "while "
            "it trains"
        )
    evaluated = (
        f"every {recipe.eval_steps} steps and at the end" if recipe.eval_steps else "at the end"
    )
    stop = f"; stops after {recipe.early_stop} without a lower loss" if recipe.early_stop else ""
    return f"{held_out}, evaluated {evaluated}{stop}"


def _data_problems(config: RootConfig, origins: Origins) -> list[Finding]:
    value, where = config.data.validation, origins.of(_KEY).where
    if value is None:
        return []
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if (is_number and 0 < value < 1) or (isinstance(value, str) and value):
        return []
    wanted = (
        "must be above 0 and below 1" if is_number else "must be a fraction of the rows or a path"
    )
    return [
        Finding.error(
            "bad_validation", f"{_KEY} {wanted}, got {value!r}", where, f"for example {_KEY}=0.02"
        )
    ]


def _schedule_problems(config: RootConfig, origins: Origins) -> list[Finding]:
    recipe, problems = config.recipe, []
    for key in ("eval_steps", "early_stop"):
        value = getattr(recipe, key)
        # for other trainers the recipe key itself is refused
        if value is not None and config.data.validation is None and config.trainer.validation_flags:
            message = f"recipe.{key}={value} needs validation data"
            cure = Fix.of("set {0} or to a file, or remove {1}", f"{_KEY}=0.02", f"~recipe.{key}")
            problems.append(
                Finding.error("no_validation", message, origins.of(f"recipe.{key}").where, cure)
            )
    if recipe.eval_steps and recipe.max_steps and recipe.eval_steps > recipe.max_steps:
        message = (
            f"recipe.eval_steps={recipe.eval_steps} is more than "
            f"recipe.max_steps={recipe.max_steps}"
        )
        cure = Fix.of("set fewer; null evaluates at the end only", "recipe.eval_steps=null")
        problems.append(
            Finding.error("eval_never", message, origins.of("recipe.eval_steps").where, cure)
        )
    return problems


def _early_stop_problems(config: RootConfig, origins: Origins) -> list[Finding]:
    """Check that every evaluation has a checkpoint: the best one becomes the model (transformers
    loads it at the end, and asks for the same of --save_steps and --eval_steps,
    training_args.py:1749-1775).
    """
    recipe, where = config.recipe, origins.of("recipe.early_stop").where
    if recipe.early_stop is None or config.data.validation is None:
        return []
    needs = f"recipe.early_stop={recipe.early_stop} keeps the best checkpoint, so it needs"
    if recipe.eval_steps is None:
        steps = recipe.checkpoint_steps or 100
        cure = Fix.of("set {0}", f"recipe.eval_steps={steps} recipe.checkpoint_steps={steps}")
        return [Finding.error("early_stop_checkpoints", f"{needs} recipe.eval_steps", where, cure)]
    if recipe.checkpoint_steps != recipe.eval_steps:
        saved = "null" if recipe.checkpoint_steps is None else recipe.checkpoint_steps
        message = (
            f"{needs} one at each evaluation: recipe.checkpoint_steps is {saved}, "
            "eval_steps "
            f"{recipe.eval_steps}"
        )
        cure = Fix.of("set {0}", f"recipe.checkpoint_steps={recipe.eval_steps}")
        return [Finding.error("early_stop_checkpoints", message, where, cure)]
    return []
