"""The data sets that a stage trains on, what is held out of them, and the flags that name them."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from launch.config.origins import Origins
from launch.config.schema import (
    BadRows,
    Family,
    Launcher,
    RootConfig,
    SystemTurns,
    TrainerConfig,
)
from launch.data.sources import (
    DataFiles,
    LocalData,
    digest_files,
    file_format,
    find_files,
    is_pattern,
)
from launch.demo import DEMO_KEY
from launch.digests import Digest
from launch.errors import refusal
from launch.planning.input_source import InputSource, check_build, local_path
from launch.planning.rlvr import needs_ground_truth
from launch.planning.validation import ValidationSet, validation_sets
from launch.worker.finding import Fix
from launch.worker.json_codec import to_json, without_none
from launch.worker.trl_options import HoldsOut, MixturePart


@dataclass(frozen=True)
class MixtureEntry:
    """One data set of the mixture."""

    source: InputSource
    share: float  # of the split's rows; above 1 repeats rows
    split: str
    # what the converted copy of local data is made from; None for data that is not on this machine
    data: LocalData | None = None
    # the validation set that is held out of it, where data.validation lists them
    held_out: ValidationSet | None = None
    merged: tuple[LocalData, ...] = ()  # the data sets that are staged as this one


def resolve_mixture(
    config: RootConfig, origins: Origins, cache: Path, cwd: Path, digest: Digest
) -> tuple[MixtureEntry, ...]:
    """Return the data sets that the stage trains on.

    Raises UserError: no_data, unknown_build, data_no_files, data_file_type, data_unreadable.
    """
    data = config.data
    held_out = _find_validation(config, origins, cwd, digest)
    sets = {one.name: one for one in validation_sets(config)}
    if not data.mix and origins.of("data.mix").where is not None:
        cure = Fix.of("set {0}, or remove {1}", "data.mix=FILE", "~data.mix")
        raise refusal("no_data", "data.mix is empty", "data.mix", cure)
    if data.build and not data.mix:
        return (_built_data(data.build, data.fraction, cache, origins),)
    if not data.mix:
        cure = Fix.of("set {0}, or {1}", "data=NAME", "data.mix=FILE")
        raise refusal("no_data", "the stage has no data", "data.mix", cure)
    provenance = origins.of("data.mix")
    entries: list[MixtureEntry] = []
    for entry in data.mix:
        share = entry.share * data.fraction
        own_set = sets.get(entry.name)
        path = local_path(entry.name, cwd) or _misspelt_file(entry.name, cwd)
        if path is None:
            hub_data = InputSource(entry.name, None, None, provenance)
            entries.append(MixtureEntry(hub_data, share, entry.split, held_out=own_set))
            continue
        source = InputSource(str(path), path, None, provenance)
        files = _find_data(path, entry.split, provenance.where, digest)
        local_data = None
        if files is not None:
            local_data = LocalData(
                files,
                config.stage.kind,
                data.format,
                dict(data.columns),
                cache,
                provenance.where,
                own_set.share if own_set else held_out,
                skips=data.bad_rows == BadRows.skip,
                merges_system_turns=data.system_turns == SystemTurns.merge,
                train_on=data.train_on,
                needs_truth=needs_ground_truth(config),
            )
        entries.append(MixtureEntry(source, share, entry.split, local_data, own_set))
    if config.trainer.family == Family.trl and len(entries) > 1 and not sets:
        entries = _merge_local_entries(entries, digest)
    return tuple(_use_converted_copy(entry) for entry in entries)


def _built_data(build: str, share: float, cache: Path, origins: Origins) -> MixtureEntry:
    """Return the demo's data set. Raises UserError: unknown_build."""
    file = cache / "demo" / f"{build.removeprefix('demo_')}-{DEMO_KEY}" / "train.jsonl"
    check_build(build, "data.build")
    source = InputSource(str(file), file, build, origins.of("data.build"))
    return MixtureEntry(source, share, "train")


def _use_converted_copy(entry: MixtureEntry) -> MixtureEntry:
    """Return local data with its converted copy as its source."""
    if entry.data is None:
        return entry
    copy = entry.data.train_file
    source = replace(entry.source, reference=str(copy), local=copy)
    return replace(entry, source=source, split="train")


def _find_data(path: Path, split: str, where: str | None, digest: Digest) -> DataFiles | None:
    """Return the data files of a local path; None if its folder is not on this machine, as it may be
    on another.

    Raises UserError: data_no_files, data_file_type.
    """
    if not path.exists() and not path.parent.is_dir() and not is_pattern(str(path)):
        return None
    files = find_files(path, split, where)
    content = digest_files(files, digest)
    return DataFiles(files, content) if content else None


def _find_validation(
    config: RootConfig, origins: Origins, cwd: Path, digest: Digest
) -> DataFiles | float | None:
    """Return what is held out of each data set: files, or a share of the rows; None where nothing
    is, or where data.validation lists data sets.

    Raises UserError: data_no_files, data_file_type, data_unreadable.
    """
    value: float | str | list[object] | None = config.data.validation
    if isinstance(value, list):
        return None
    if not isinstance(value, str):
        return value
    where = origins.of("data.validation").where
    path = local_path(value, cwd) or cwd / value
    files = find_files(path, "validation", where)
    content = digest_files(files, digest)
    if content is None:
        raise refusal("data_unreadable", f"{path} can't be read", where)
    return DataFiles(files, content)


def share_of_unstaged_data(config: RootConfig, mixture: tuple[MixtureEntry, ...]) -> float | None:
    """Return the share that the trainer's process holds out of data that is not staged; None
    without such data or share.
    """
    validation = config.data.validation
    is_unstaged = any(entry.data is None for entry in mixture)
    return validation if is_unstaged and isinstance(validation, float) else None


def _merge_local_entries(entries: list[MixtureEntry], digest: Digest) -> list[MixtureEntry]:
    """Return local entries with equal shares as one entry; others as they are, which launch's entry
    over TRL mixes.
    """
    local = [entry.data for entry in entries if entry.data]
    shares = {entry.share for entry in entries}
    paths = tuple(path for data in local for path in data.files.paths)
    content = digest_files(paths, digest)
    if len(local) < len(entries) or len(shares) > 1 or content is None:
        return entries
    merged = replace(local[0], files=DataFiles(paths, content))
    return [replace(entries[0], data=merged, merged=tuple(local))]


def _misspelt_file(reference: str, cwd: Path) -> Path | None:
    """Return the path of a missing data file whose folder exists, and which is therefore not a hub
    id; None for another name.
    """
    path = cwd / reference
    return path if file_format(path)[0] and path.parent.is_dir() else None


def build_data_flags(
    mixture: tuple[MixtureEntry, ...], trainer: TrainerConfig
) -> tuple[dict[str, object], str | None, str | None]:
    """Return the values of the data's flags, by computed key (`mixer`, `splits`; `dataset`,
    `split`), and two options of the entry over TRL: the subset of a data set, and the mixture of
    several, in JSON.
    """
    if trainer.family == Family.open_instruct:
        return _open_instruct_data_flags(mixture, trainer), None, None
    parts = _trl_mixture(mixture)
    flags: dict[str, object] = {"dataset": parts[0].name, "split": parts[0].split}
    if len(parts) > 1 or parts[0].curve is not None:
        known = [without_none(to_json(part)) for part in parts]
        return flags, None, json.dumps(known, ensure_ascii=False)
    subset = None if mixture[0].share == 1.0 else parts[0].share
    return flags, subset, None


def _open_instruct_data_flags(
    mixture: tuple[MixtureEntry, ...], trainer: TrainerConfig
) -> dict[str, object]:
    """Return `mixer`, which alternates data sets and shares, and `splits`.

    The trainer on Ray reads the user's files instead of their converted copies
    (dataset_transformation.py:1881, :1616).
    """
    mixer: list[str] = []
    splits: list[str] = []
    for entry in mixture:
        names = [entry.source.reference]
        if trainer.launcher == Launcher.ray and entry.data is not None:
            names = [str(path) for path in entry.data.files.paths]
        # a share needs its decimal point: "1" would be one sample
        # (dataset_transformation.py:2341-2343)
        share = repr(float(entry.share))
        for name in names:
            mixer += [name, share]
            splits.append(entry.split)
    return {"mixer": mixer, "splits": splits}


def _trl_mixture(mixture: tuple[MixtureEntry, ...]) -> list[MixturePart]:
    """Return the data sets as launch's entry over TRL loads them, with what it holds out of each."""
    parts: list[MixturePart] = []
    has_sets = any(entry.held_out for entry in mixture)
    for entry in mixture:
        reference = entry.source.reference
        is_local = entry.data is not None or entry.source.build is not None
        # TRL is given a folder, and takes the split from a file's name
        name = str(Path(reference).parent) if is_local else reference
        holds_out: HoldsOut = "staged" if is_local else "split"
        # files that are held out are staged with each data set; only the first copy is evaluated on
        has_files = entry.data is not None and isinstance(entry.data.validation, DataFiles)
        if (has_files and parts) or (has_sets and entry.held_out is None):
            holds_out = "none"
        part = MixturePart(name, entry.split, repr(float(entry.share)), holds_out)
        if entry.held_out is not None:
            validation = repr(float(entry.held_out.share))
            part = replace(part, validation=validation, curve=entry.held_out.curve)
        parts.append(part)
    return parts
