"""The data of a plan: the first rows of local data, and how many rows and steps an epoch has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from launch.config.kinds import Kind
from launch.config.recipe_keys import Packing, recipe_mapping
from launch.config.schema import BadRows, Launcher, RootConfig
from launch.planning.batch_split import Batch
from launch.planning.inputs import Inputs
from launch.planning.mixture import MixtureEntry
from launch.upstream.trainers import OLMO_CORE_DPO

if TYPE_CHECKING:
    from launch.data.structure import DataStructure
    from launch.planning.plan import Plan


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


def count_epoch_rows(
    mixture: Sequence[MixtureEntry], structures: Sequence[DataStructure | None]
) -> int | None:
    """Return the rows that an epoch trains on; None where those of a data set are not known."""
    rows = 0
    for entry, structure in zip(mixture, structures, strict=True):
        if structure is None or structure.not_read_because or not structure.all_:
            return None
        rows += int((structure.read - (structure.validation or 0)) * entry.share)
    return rows


def find_step_limit(plan: Plan) -> tuple[int | None, str | None]:
    """Return the number of steps that recipe.max_steps or the trainer's flag sets, and where it is
    set; None without one.

    Such a number replaces the epochs in each trainer, also where it is larger than all epochs
    (finetune.py:713, dpo_tune_cache.py:469, olmo_core_finetune.py:306, dpo.py:321, transformers'
    trainer.py, set_initial_training_values).
    """
    name = recipe_mapping(plan.config.trainer, "max_steps")
    flag = plan.flags.get(name) if isinstance(name, str) else None
    steps = flag.value if flag else plan.config.recipe.max_steps
    where = flag.provenance.where if flag else plan.origins.of("recipe.max_steps").where
    if not isinstance(steps, int) or steps < 1:  # -1 of transformers: all epochs
        return None, None
    return steps, where


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
    rows = samples or count_epoch_rows(mixture, structures)
    if rows is None or config.recipe.packing == Packing.bins or config.trainer.always_packs:
        return None
    if config.stage.kind == Kind.rlvr or config.trainer.name == OLMO_CORE_DPO:
        steps = rows * (config.recipe.samples_per_prompt or 1) // batch.global_
    else:
        micro_batches = math.ceil(rows / batch.per_device)
        micro_batches_of_rank = math.ceil(micro_batches / batch.width)
        steps = math.ceil(micro_batches_of_rank / batch.accumulation)
    return steps * config.recipe.epochs
