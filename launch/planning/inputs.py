"""Resolves the model and the data of a stage: hub ids, local paths, or what is built when missing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from launch.config.line import override_key
from launch.config.origins import Origins, Provenance
from launch.config.schema import (
    AdapterStart,
    BadRows,
    Family,
    Kind,
    Launcher,
    RootConfig,
    TrainerConfig,
)
from launch.data.sources import (
    DataFiles,
    Digest,
    LocalData,
    digest_files,
    file_format,
    find_files,
    is_pattern,
)
from launch.demo import DEMO_KEY
from launch.errors import UserError, path_problem, refusal, set_any
from launch.planning.adapter import MERGED, Adapter, check_adapter, read_adapter
from launch.planning.estimate.shape import ModelShape, read_shape, shape_from_yaml
from launch.planning.find_runs import find_run, find_runs
from launch.planning.folders import runs_folder
from launch.planning.rlvr import resolve_verifiers
from launch.upstream.trainers import trainer_files
from launch.worker.finding import Finding, Fix
from launch.worker.json_codec import to_json
from launch.worker.trl_options import HoldsOut, MixturePart, is_own

MERGE = "merge"  # the build of an adapter's merged model
# What `model.build` and `data.build` may name. A data set has the kind of stage that it is for.
BUILDS = {
    **dict.fromkeys(("demo", "demo_trained")),
    "demo_chats": Kind.sft,
    "demo_preferences": Kind.dpo,
    "demo_prompts": Kind.rlvr,
}


@dataclass(frozen=True)
class InputSource:
    """A model or a data set."""

    reference: str  # what the trainer is given
    local: Path | None  # the path behind it; None for a hub id
    build: str | None  # what builds it when it is missing
    provenance: Provenance  # where it is set
    # the adapter that is trained further (start=continue), or that the merged model is made of
    adapter: Adapter | None = None

    @property
    def content(self) -> Path | None:
        """The path whose content identifies the input; None for a hub id and for what this project
        builds itself.
        """
        if self.adapter is not None:
            return self.adapter.folder
        return None if self.build else self.local


@dataclass(frozen=True)
class MixtureEntry:
    """One data set of the mixture."""

    source: InputSource
    share: float  # of the split's rows; above 1 repeats rows
    split: str
    # what the converted copy of local data is made from; None for data that is not on this machine
    data: LocalData | None = None


@dataclass(frozen=True)
class Inputs:
    """The model and the data of a stage."""

    model: InputSource
    mixture: tuple[MixtureEntry, ...]
    # the share that the trainer's process splits off data that is not staged
    held_out: float | None = None
    # RLVR's verifiers: the weight by name, or by path:function
    verifiers: Mapping[str, float] = field(default_factory=dict)

    @property
    def verifier_files(self) -> tuple[Path, ...]:
        return tuple(Path(name.rpartition(":")[0]) for name in self.verifiers if is_own(name))


def resolve_inputs(
    config: RootConfig, origins: Origins, cache: Path, cwd: Path, digest: Digest
) -> Inputs:
    """Resolve what a stage starts from.

    Raises UserError: no_model, no_data, unknown_build, kind_mismatch, data_no_files,
    data_file_type; those of `resolve_verifiers`.
    """
    problems = _kind_mismatches(config, origins)
    if problems:
        raise UserError(problems)
    mixture = _resolve_mixture(config, origins, cache, cwd, digest)
    model = _resolve_model(config, origins, cache, cwd)
    held_out = _share_of_unstaged_data(config, origins, mixture)
    verifiers = resolve_verifiers(config, origins, cwd)
    return Inputs(model, mixture, held_out, verifiers)


def model_shape(config: RootConfig, inputs: Inputs) -> ModelShape | None:
    """Return the shape of a stage's model: that of its folder, else of its YAML; None where neither
    has it.
    """
    model = inputs.model
    if model.adapter is not None:
        return _base_shape(model.adapter, config)
    shape = read_shape(model.local) if model.local else None
    if shape is not None:
        return shape
    is_another_than_yaml = config.model.path or (model.local and not model.build)
    return None if is_another_than_yaml else shape_from_yaml(config.model.shape)


def _base_shape(adapter: Adapter, config: RootConfig) -> ModelShape | None:
    """Return the shape of the model that an adapter was trained on."""
    if adapter.local_base is not None:
        return read_shape(adapter.local_base)
    if adapter.base in (config.model.base, config.model.sft):
        return shape_from_yaml(config.model.shape)
    return None


def _kind_mismatches(config: RootConfig, origins: Origins) -> list[Finding]:
    kind = config.stage.kind
    problems = []
    if config.trainer.kind != kind:
        message = (
            f"{config.trainer.name} trains {config.trainer.kind} stages, but this stage is {kind}"
        )
        cure = set_any(*_trainers_of(kind))
        problems.append(Finding.error("kind_mismatch", message, "trainer", cure))
    # a reward model is trained on the preferences of DPO
    data_kind = Kind.dpo if kind == Kind.rm else kind
    if config.data.kind not in (kind, data_kind):
        message = (
            f"data={origins.choices.get('data')} is {config.data.kind} data, but this stage "
            f"is {kind}"
        )
        problems.append(Finding.error("kind_mismatch", message, "data"))
    return problems


def _trainers_of(kind: Kind) -> list[str]:
    """Return the overrides that choose the shipped trainers of a kind of stage."""
    overrides = []
    for name, file in trainer_files().items():
        if file.get("kind") == kind and not file.get("untried"):
            overrides.append(f"trainer={name}")
    return overrides


def _resolve_model(config: RootConfig, origins: Origins, cache: Path, cwd: Path) -> InputSource:
    """Return the model that the stage starts from: model.path, a build, or a checkpoint of `model=`.

    Raises UserError: no_model, unknown_build, nothing_to_continue; those of `_find_run_folder` and
    `_resolve_local_model`.
    """
    model = config.model
    start = config.stage.start
    if not model.path:
        if continues_adapter(config):
            where = origins.of("recipe.lora.start").where
            raise _nothing_to_continue("model.path is not set", where)
        if model.build:
            return _built_model(model.build, cache, origins)
    key = "model.path" if model.path else f"model.{start}"
    reference = model.path or getattr(model, start)
    if not reference:
        message = f"model={origins.choices.get('model')} has no {start} checkpoint"
        raise refusal("no_model", message, key, "set model.path to a folder or a hub id")
    local = _local_path(reference, cwd)
    if local is None:
        local = _find_run_folder(config, reference, runs_folder(config, cwd))
    if local is None:
        if continues_adapter(config):
            raise _nothing_to_continue(f"{reference} is not a folder here", origins.of(key).where)
        return InputSource(reference, None, None, origins.of(key))
    if not model.path:
        return InputSource(str(local), local, None, origins.of(key))
    return _resolve_local_model(local, config, origins)


def _built_model(build: str, cache: Path, origins: Origins) -> InputSource:
    """Return the demo's model, untrained (`demo`) or trained. Raises UserError: unknown_build."""
    _check_build(build, "model.build")
    name = "model" if build == "demo" else "trained"
    folder = cache / "demo" / f"{name}-{DEMO_KEY}"
    return InputSource(str(folder), folder, build, origins.of("model.build"))


def _find_run_folder(config: RootConfig, reference: str, runs: Path) -> Path | None:
    """Return the folder that a run's name means; None if no run has the name, as for a hub id.

    The name is `STAGE/NAME`, with or without a path below it. For model.path the beginning of a
    finished run's name is enough. Raises UserError: ambiguous_run.
    """
    stage_and_name = Path(*Path(reference).parts[:2])
    if (runs / stage_and_name / "plan.json").is_file():
        return runs / reference
    if not config.model.path:
        return None
    finished = [run for run in find_runs(runs) if (run / "DONE").is_file()]
    return find_run(reference, finished, "model.path")


def continues_adapter(config: RootConfig) -> bool:
    """Return whether an adapter is trained further, by a trainer that supports it."""
    lora = config.recipe.lora
    if lora.rank is None or lora.start == AdapterStart.merged:
        return False
    supported = config.trainer.recipe.get("lora.start") or {}
    return lora.start.value in supported


def _nothing_to_continue(why: str, where: str | None) -> UserError:
    message = f"recipe.lora.start=continue resumes training an adapter, and {why}"
    cure = Fix.of(
        "set model.path to a LoRA run or an adapter's folder, or remove {0}", "~recipe.lora.start"
    )
    return refusal("nothing_to_continue", message, where, cure)


def _resolve_local_model(path: Path, config: RootConfig, origins: Origins) -> InputSource:
    """Return the model in a folder: a whole model, a run's, or an adapter, which is merged first or
    trained further.

    Raises UserError: run_without_model, nothing_to_continue, bad_adapter, adapter_base.
    """
    provenance = origins.of("model.path")
    if (path / "plan.json").is_file():
        if not (path / "DONE").is_file():
            message = f"the run in {path} is not finished, so it has no model"
            raise _unfinished_run(message, provenance)
        path = path / "model"
    is_merged = path.name == MERGED
    # RUN/merged is made from RUN/model, which may still be to come
    folder = path.with_name("model") if is_merged else path
    # the model of a run that is still to finish may be half written
    is_pending = bool(config.model.trained_by) and not (folder.parent / "DONE").is_file()
    adapter = None if is_pending else read_adapter(folder)
    if adapter is not None:
        return _resolve_adapter(adapter, config, origins)
    if continues_adapter(config):
        if path.is_dir() and not is_pending:
            raise _nothing_to_continue(f"{path} has none", provenance.where)
        if is_merged:
            path = folder
    return InputSource(str(path), path, None, provenance)


def _resolve_adapter(adapter: Adapter, config: RootConfig, origins: Origins) -> InputSource:
    """Return an adapter that is trained further, or its merged model.

    Raises UserError: run_without_model, bad_adapter, adapter_base.
    """
    provenance = origins.of("model.path")
    run = adapter.folder.parent
    if (run / "plan.json").is_file() and not (run / "DONE").is_file():
        message = f"the run in {run} is not finished, so its adapter may be incomplete"
        raise _unfinished_run(message, provenance)
    if any(override_key(override) == "model" for override in origins.overrides):
        _refuse_other_base(adapter, config, provenance)
    check_adapter(adapter, _base_shape(adapter, config))
    if continues_adapter(config):
        return InputSource(str(adapter.folder), adapter.folder, None, provenance, adapter)
    return InputSource(str(adapter.merged), adapter.merged, MERGE, provenance, adapter)


def _unfinished_run(message: str, provenance: Provenance) -> UserError:
    return refusal("run_without_model", message, provenance.where, "start it again to its end")


def _refuse_other_base(adapter: Adapter, config: RootConfig, provenance: Provenance) -> None:
    """Refuse an adapter of another model than `model=` names. Folders are compared by their shapes.

    Raises UserError: adapter_base.
    """
    model = config.model
    requested = shape_from_yaml(model.shape)
    base = _base_shape(adapter, config)
    if requested and base:
        is_other = (requested.layers, requested.hidden) != (base.layers, base.hidden)
    elif adapter.local_base is not None or not model.base:
        is_other = False
    else:
        is_other = adapter.base not in (model.base, model.sft)
    if is_other:
        message = (
            f"the adapter in {adapter.folder} was trained on {adapter.base}, and model= "
            f"names {model.base}"
        )
        cure = Fix.of("remove {0}=, or set it to the same model", "~model")
        raise refusal("adapter_base", message, provenance.where, cure)


def _resolve_mixture(
    config: RootConfig, origins: Origins, cache: Path, cwd: Path, digest: Digest
) -> tuple[MixtureEntry, ...]:
    """Return the data sets that the stage trains on.

    Raises UserError: no_data, unknown_build, data_no_files, data_file_type, data_unreadable,
    path_wildcards.
    """
    data = config.data
    held_out = _find_validation(config, origins, cwd, digest)
    if data.build and not data.mix:
        return (_built_data(data.build, data.fraction, cache, origins),)
    if not data.mix:
        cure = Fix.of("set {0}, or {1}", "data=NAME", "data.mix=FILE")
        raise refusal("no_data", "the stage has no data", "data.mix", cure)
    provenance = origins.of("data.mix")
    entries: list[MixtureEntry] = []
    for entry in data.mix:
        share = entry.share * data.fraction
        path = _local_path(entry.name, cwd) or _misspelt_file(entry.name, cwd)
        if path is None:
            hub_data = InputSource(entry.name, None, None, provenance)
            entries.append(MixtureEntry(hub_data, share, entry.split))
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
                held_out,
                skips=data.bad_rows == BadRows.skip,
            )
        entries.append(MixtureEntry(source, share, entry.split, local_data))
    if config.trainer.family == Family.trl and len(entries) > 1:
        entries = _merge_local_entries(entries, digest)
    return tuple(_use_converted_copy(entry, origins) for entry in entries)


def _built_data(build: str, share: float, cache: Path, origins: Origins) -> MixtureEntry:
    """Return the demo's data set. Raises UserError: path_wildcards, unknown_build."""
    file = cache / "demo" / f"{build.removeprefix('demo_')}-{DEMO_KEY}" / "train.jsonl"
    _refuse_wildcards(file, origins)
    _check_build(build, "data.build")
    source = InputSource(str(file), file, build, origins.of("data.build"))
    return MixtureEntry(source, share, "train")


def _use_converted_copy(entry: MixtureEntry, origins: Origins) -> MixtureEntry:
    """Return local data with its converted copy as its source. Raises UserError: path_wildcards."""
    if entry.data is None:
        return entry
    copy = entry.data.train_file
    _refuse_wildcards(copy, origins)
    source = replace(entry.source, reference=str(copy), local=copy)
    return replace(entry, source=source, split="train")


def _refuse_wildcards(copy: Path, origins: Origins) -> None:
    """Refuse a cache whose path the trainers' data loader (datasets.load_dataset) would take for a
    glob pattern.

    Raises UserError: path_wildcards.
    """
    if is_pattern(str(copy)):
        message = f"the data loader expands * ? [ in the path of the cache, {copy.parent}"
        where = origins.of("cache").where or origins.of("runs").where
        cure = "set cache to a folder without them in its path"
        raise refusal("path_wildcards", message, where, cure)


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
    """Return what is held out: files, or a share of the rows; None: nothing.

    Raises UserError: data_no_files, data_file_type, data_unreadable.
    """
    value: float | str | None = config.data.validation
    if not isinstance(value, str):
        return value
    where = origins.of("data.validation").where
    path = _local_path(value, cwd) or cwd / value
    files = find_files(path, "validation", where)
    content = digest_files(files, digest)
    if content is None:
        raise refusal("data_unreadable", f"{path} can't be read", where)
    return DataFiles(files, content)


def _share_of_unstaged_data(
    config: RootConfig, origins: Origins, mixture: tuple[MixtureEntry, ...]
) -> float | None:
    """Return the share to hold out of data that is not staged; None without any.

    Raises UserError: validation_unsupported, data_no_files, validation_trained,
    validation_needs_local.
    """
    validation = config.data.validation
    if validation is None:
        return None
    where = origins.of("data.validation").where
    unstaged = [entry for entry in mixture if entry.data is None]
    trainer = config.trainer
    kind = config.stage.kind
    trl_evaluates = kind in (Kind.sft, Kind.dpo)
    if not trainer.validation_flags and (unstaged or not trl_evaluates):
        reason = trainer.why.get("validation", "its file has no validation_flags")
        message = f"{trainer.name} does not evaluate while it trains: {reason}"
        sentence = "remove {0} and score the finished model with {1}"
        if trl_evaluates:
            sentence += ", or train with TRL ({2})"
        cure = Fix.of(sentence, "~data.validation", "$ launch eval", f"trainer=trl_{kind.value}")
        raise refusal("validation_unsupported", message, where, cure)
    for entry in mixture:
        if entry.data is not None:
            _refuse_trained_validation(entry.data, where)
    if not unstaged:
        return None
    source = unstaged[0].source
    if source.local and not source.build:
        message = f"data.validation is split off {source.reference}, which does not exist here"
        raise refusal("data_no_files", message, source.provenance.where)
    if not isinstance(validation, float):
        message = (
            f"data.validation={validation} needs local training data, and {source.reference} is not"
        )
        cure = Fix.of(
            "set {0} to hold out a share, or download the data set and name its files in data.mix",
            "data.validation=0.02",
        )
        raise refusal("validation_needs_local", message, where, cure)
    return validation


def _refuse_trained_validation(data: LocalData, where: str | None) -> None:
    """Refuse a validation file that is trained on. Raises UserError: validation_trained."""
    if not isinstance(data.validation, DataFiles):
        return
    shared = set(data.files.paths) & set(data.validation.paths)
    if shared:
        message = f"{min(shared)} is also in data.mix: its rows would be trained on"
        cure = "name the training files without it"
        raise refusal("validation_trained", message, where, cure)


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
    return [replace(entries[0], data=merged)]


def _check_build(build: str, key: str) -> None:
    """Check what `model.build` or `data.build` names. Raises UserError: unknown_build."""
    if build not in BUILDS:
        cure = f"choose from {', '.join(BUILDS)}"
        raise refusal("unknown_build", f"nothing builds '{build}'", key, cure)


def _local_path(reference: str, cwd: Path) -> Path | None:
    """Return the absolute path of a reference that exists on this machine or is written as a path;
    None for a hub id.
    """
    try:
        path = cwd / Path(reference).expanduser()
        exists = path.exists()
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(path_problem(error, reference)) from error
    if exists or reference.startswith(("/", "./", "../", "~")) or is_pattern(reference):
        return path
    return None


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
    if len(parts) > 1:
        return flags, None, json.dumps(to_json(parts), ensure_ascii=False)
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
    for entry in mixture:
        reference = entry.source.reference
        is_local = entry.data is not None or entry.source.build is not None
        # TRL is given a folder, and takes the split from a file's name
        name = str(Path(reference).parent) if is_local else reference
        holds_out: HoldsOut = "staged" if is_local else "split"
        # files that are held out are staged with each data set; only the first copy is evaluated on
        has_files = entry.data is not None and isinstance(entry.data.validation, DataFiles)
        if has_files and parts:
            holds_out = "none"
        parts.append(MixturePart(name, entry.split, repr(float(entry.share)), holds_out))
    return parts
