"""The data of a plan: the first rows of local data against the batch, and what is held out to
evaluate on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from launch.config.origins import Origins
from launch.config.ranges import HELD_OUT_FRACTION, is_number
from launch.config.recipe_keys import Packing
from launch.config.schema import BadRows, Kind, Launcher, RootConfig
from launch.errors import UserError
from launch.planning.inputs import Inputs
from launch.planning.mixture import MixtureEntry
from launch.planning.parallel import Batch
from launch.upstream.trainers import OLMO_CORE_DPO
from launch.worker.finding import Finding, Fix

if TYPE_CHECKING:
    from launch.data.structure import DataStructure


def read_local_data(
    config: RootConfig, inputs: Inputs, batch: Batch
) -> tuple[DataStructure | None, ...]:
    """Return the structure of the first rows of each entry of the mixture; None for one that is not
    local.

    FIRST_ROWS rows are read, and as many more as it takes to know that an epoch fills a global
    batch. All rows are read where faulty ones are left out, to record how many.

    Raises UserError: those of `launch.data.conversion.Conversion.rows`.
    """
    if not any(entry.data for entry in inputs.mixture):
        return (None,) * len(inputs.mixture)
    # imported with its readers and converters, which hub data does not need
    from launch.data.structure import FIRST_ROWS, read_structure

    most_rows = None
    if config.data.bad_rows != BadRows.skip:
        smallest_share = min(entry.share for entry in inputs.mixture)
        rows_of_two_batches = int(2 * batch.global_ / smallest_share) + 2
        most_rows = max(FIRST_ROWS, rows_of_two_batches)
    structures: list[DataStructure | None] = []
    for entry in inputs.mixture:
        structure = None
        if entry.data is not None and not entry.source.build:
            structure = read_structure(entry.data, most_rows)
        structures.append(structure)
    return tuple(structures)


def describe_data(inputs: Inputs, structures: Sequence[DataStructure | None]) -> list[str]:
    """Describe each entry of the mixture in a line."""
    entries = zip(inputs.mixture, structures, strict=True)
    return [_describe(entry, structure) for entry, structure in entries]


def _describe(entry: MixtureEntry, structure: DataStructure | None) -> str:
    if structure is not None:
        return structure.describe()
    if entry.source.build:
        return f"{entry.source.build}, made on this machine"
    if entry.source.local:
        return f"{entry.source.reference}: not read, it does not exist here"
    return f"{entry.source.reference}: hub data, not read"


def count_steps_at_once(config: RootConfig) -> int:
    """Return the number of steps whose prompts are sampled at once: open-instruct's GRPO samples
    some steps ahead (grpo_fast.py:2247).
    """
    if config.trainer.launcher != Launcher.ray:
        return 1
    steps = config.flags.get("async_steps", 8)
    return steps if isinstance(steps, int) else 1


def count_rows(
    mixture: Sequence[MixtureEntry], structures: Sequence[DataStructure | None]
) -> int | None:
    """Return the rows that an epoch trains on; None where those of a data set are not known."""
    rows = 0
    for entry, structure in zip(mixture, structures, strict=True):
        if structure is None or structure.not_read_because or not structure.all_:
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
    """Return the optimizer steps of all epochs; None if the rows are not known, or are packed.

    `samples` is the number of samples that were tokenised, if they are counted. Ranks share an
    epoch's micro batches, and the last step may be short (accelerate's BatchSamplerShard, then
    finetune.py:684 and transformers' trainer.py). RLVR and dpo.py leave an incomplete step out
    (trl/trainer/utils.py, RepeatSampler; dpo.py:212).
    """
    rows = samples or count_rows(mixture, structures)
    if rows is None or config.recipe.packing == Packing.bins or config.trainer.always_packs:
        return None
    if config.stage.kind == Kind.rlvr or config.trainer.name == OLMO_CORE_DPO:
        steps = rows * (config.recipe.samples_per_prompt or 1) // batch.global_
    else:
        micro_batches = math.ceil(rows / batch.per_device)
        micro_batches_of_rank = math.ceil(micro_batches / batch.width)
        steps = math.ceil(micro_batches_of_rank / batch.accumulation)
    return steps * config.recipe.epochs


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


def describe_schedule(config: RootConfig) -> str | None:
    """Describe what is held out and when the trainer evaluates on it; None without validation
    data.
    """
    value = config.data.validation
    recipe = config.recipe
    if value is None:
        return None
    held_out = f"{value:.4g} of the rows" if isinstance(value, float) else str(value)
    if not config.trainer.validation_flags:
        trainer = config.trainer.name
        return f"{held_out}, kept for `launch eval`; {trainer} does not evaluate while it trains"
    schedule = f"{held_out}, evaluated "
    if recipe.eval_steps:
        schedule += f"every {recipe.eval_steps} steps and "
    schedule += "at the end"
    if recipe.early_stop:
        schedule += f"; stops after {recipe.early_stop} without a lower loss"
    return schedule


def _data_problems(config: RootConfig, origins: Origins) -> list[Finding]:
    """Check that data.validation is a share of the rows, or a path."""
    value: object = config.data.validation
    if value is None or (isinstance(value, str) and value):
        return []
    expected = "must be a fraction of the rows or a path"
    if is_number(value):
        if HELD_OUT_FRACTION.contains(value):
            return []
        expected = f"must be {HELD_OUT_FRACTION.describe(value)}"
    message = f"{_KEY} {expected}, got {value!r}"
    cure = f"for example {_KEY}=0.02"
    return [Finding.error("bad_validation", message, origins.of(_KEY).where, cure)]


def _schedule_problems(config: RootConfig, origins: Origins) -> list[Finding]:
    """Check that there is data to evaluate on, and an evaluation before the last step."""
    recipe = config.recipe
    problems = []
    # the recipe key itself is refused for a trainer that does not evaluate
    lacks_data = config.data.validation is None and bool(config.trainer.validation_flags)
    for key in ("eval_steps", "early_stop"):
        value = getattr(recipe, key)
        if value is not None and lacks_data:
            message = f"recipe.{key}={value} needs validation data"
            cure = Fix.of("set {0} or to a file, or remove {1}", f"{_KEY}=0.02", f"~recipe.{key}")
            where = origins.of(f"recipe.{key}").where
            problems.append(Finding.error("no_validation", message, where, cure))
    if recipe.eval_steps and recipe.max_steps and recipe.eval_steps > recipe.max_steps:
        message = (
            f"recipe.eval_steps={recipe.eval_steps} is more than "
            f"recipe.max_steps={recipe.max_steps}"
        )
        cure = Fix.of("set fewer; null evaluates at the end only", "recipe.eval_steps=null")
        where = origins.of("recipe.eval_steps").where
        problems.append(Finding.error("eval_never", message, where, cure))
    return problems


def _early_stop_problems(config: RootConfig, origins: Origins) -> list[Finding]:
    """Check that every evaluation has a checkpoint, as the best one becomes the model.

    Transformers loads it at the end, and requires the same of --save_steps and --eval_steps
    (training_args.py:1749-1775).
    """
    recipe = config.recipe
    if recipe.early_stop is None or config.data.validation is None:
        return []
    where = origins.of("recipe.early_stop").where
    needs = f"recipe.early_stop={recipe.early_stop} keeps the best checkpoint, so it needs"
    if recipe.eval_steps is None:
        steps = recipe.checkpoint_steps or 100
        cure = Fix.of("set {0}", f"recipe.eval_steps={steps} recipe.checkpoint_steps={steps}")
        return [Finding.error("early_stop_checkpoints", f"{needs} recipe.eval_steps", where, cure)]
    if recipe.checkpoint_steps != recipe.eval_steps:
        saved = "null" if recipe.checkpoint_steps is None else recipe.checkpoint_steps
        message = (
            f"{needs} one at each evaluation: recipe.checkpoint_steps is {saved}, eval_steps "
            f"{recipe.eval_steps}"
        )
        cure = Fix.of("set {0}", f"recipe.checkpoint_steps={recipe.eval_steps}")
        return [Finding.error("early_stop_checkpoints", message, where, cure)]
    return []
