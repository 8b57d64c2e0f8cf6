"""Read the first rows of a plan's local data, and compare the rows of an epoch with the global batch."""

from __future__ import annotations

from launch.config.schema import Packing, RootConfig
from launch.data.structure import FIRST_ROWS, DataStructure, read_structure
from launch.errors import Problem, UserError
from launch.planning.batch import Batch
from launch.planning.inputs import Inputs, MixtureEntry
from launch.planning.packing import REFERENCE_ROWS
from launch.planning.packing import TRAINER as DPO


def read_local_data(config: RootConfig, inputs: Inputs, batch: Batch) -> tuple[DataStructure | None, ...]:
    """Return what the first rows of each entry of the mixture are; None for one that is not local.

    Reads FIRST_ROWS rows, and as many more as it takes to know that an epoch fills a global batch.

    Raises UserError: data_split, data_small_epoch, data_small_reference, and those of
    `launch.data.local.Conversion.rows`.
    """
    smallest = min(entry.share for entry in inputs.mixture)
    rows = max(FIRST_ROWS, int(2 * batch.global_ / smallest) + 2)
    found = tuple(
        read_structure(entry.data, rows) if entry.data and not entry.source.build else None for entry in inputs.mixture
    )
    _check_split(inputs, found)
    _check_epoch(config, inputs, batch, found)
    return found


def describe_data(inputs: Inputs, structures: tuple[DataStructure | None, ...]) -> list[str]:
    """Describe each entry of the mixture in a line."""
    return [_describe(entry, found) for entry, found in zip(inputs.mixture, structures, strict=True)]


def _describe(entry: MixtureEntry, structure: DataStructure | None) -> str:
    if structure is not None:
        return structure.describe()
    if entry.source.build:
        return f"{entry.source.build}, made on this machine"
    if entry.source.local:
        return f"{entry.source.reference}: not read, it does not exist here"
    return f"{entry.source.reference}: hub data, not read"


def _check_split(inputs: Inputs, structures: tuple[DataStructure | None, ...]) -> None:
    """Raise UserError (data_split) if all rows are known and the share to hold out leaves a side without any."""
    for entry, structure in zip(inputs.mixture, structures, strict=True):
        if structure is None or entry.data is None or not isinstance(entry.data.validation, float):
            continue
        if structure.all_ and structure.validation in (0, structure.read):
            share, empty = entry.data.validation, "to validate" if structure.validation == 0 else "to train"
            message = f"data.validation={share:g} of {structure.read} rows leaves none {empty} on"
            cure = "set another share, or name a file with data.validation=FILE"
            raise UserError(Problem("data_split", message, entry.source.provenance.where, cure))


def _check_epoch(
    config: RootConfig, inputs: Inputs, batch: Batch, structures: tuple[DataStructure | None, ...]
) -> None:
    """Raise UserError (data_small_epoch) if the rows are known, and fewer than one optimizer step takes."""
    if config.recipe.packing == Packing.bins:
        return  # a packed row holds several samples
    rows = 0
    for entry, structure in zip(inputs.mixture, structures, strict=True):
        if structure is None or structure.unread or not structure.all_:
            return
        rows += int((structure.read - (structure.validation or 0)) * entry.share)
    where = inputs.mixture[0].source.provenance.where
    if rows < batch.global_ and "data_small_epoch" not in config.allow:
        held_out = sum(structure.validation or 0 for structure in structures if structure)
        message = f"an epoch has {rows} rows{f' ({held_out} are held out)' if held_out else ''}, which is less than "
        message += f"the global batch of {batch.global_}"
        cure = f"set recipe.global_batch_size to at most {rows}" if rows else "add rows"
        raise UserError(Problem("data_small_epoch", message, where, f"{cure}, or allow=[data_small_epoch]"))
    _check_reference_pass(config, batch, rows, where)


def _check_reference_pass(config: RootConfig, batch: Batch, rows: int, where: str | None) -> None:
    """dpo.py fills the last batch of its reference pass up with the first rows, once (data_loader.py:288): fewer rows
    than half of that batch fail in a reshape. Raises UserError: data_small_reference."""
    size = REFERENCE_ROWS * batch.per_device * batch.width
    if config.trainer.name == DPO and 2 * rows < size:
        message = f"dpo.py's reference pass takes {size} rows at a time and fails with fewer than half: data has {rows}"
        most = 2 * rows // (REFERENCE_ROWS * batch.width)
        cure = f"set recipe.per_device_batch_size to at most {most}" if most else f"add rows: at least {size // 2}"
        raise UserError(Problem("data_small_reference", message, where, cure))
