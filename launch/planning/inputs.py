"""The model and the data of a stage: hub ids, local folders and files, or what is built here when
it is missing.
"""

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
from launch.planning.estimate.shape import ModelShape, read_shape, shape_from_yaml
from launch.planning.find_runs import find_run, find_runs
from launch.planning.lora import MERGED, Adapter, check_adapter, read_adapter
from launch.planning.rlvr import resolve_verifiers
from launch.upstream.trainers import trainer_files
from launch.worker.finding import Finding, Fix
from launch.worker.json_codec import to_json
from launch.worker.trl_options import HoldsOut, MixturePart, is_own

MERGE = "merge"  # what builds the merged model of an adapter
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
    # the adapter that a model is (start=continue), or that its merged model is made of
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
    # of local data that is here: what its converted copy is made from
    data: LocalData | None = None


@dataclass(frozen=True)
class Inputs:
    """The model and the data of a stage."""

    model: InputSource
    mixture: tuple[MixtureEntry, ...]
    # a share of data that is not staged, which the trainer's process splits
    held_out: float | None = None
    # of RLVR: name, or path:function, and weight
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
    mixture = _mixture(config, origins, cache, cwd, digest)
    model, held_out = _model(config, origins, cache, cwd), _unstaged_share(config, origins, mixture)
    return Inputs(model, mixture, held_out, resolve_verifiers(config, origins, cwd))


def model_shape(config: RootConfig, inputs: Inputs) -> ModelShape | None:
    """Return the shape of a stage's model: that of its folder, else of its YAML; None where neither
    has it.
    """
    adapter = inputs.model.adapter
    if adapter is not None:
        return _base_shape(adapter, config)
    shape = read_shape(inputs.model.local) if inputs.model.local else None
    if shape or config.model.path or (inputs.model.local and not inputs.model.build):
        return shape  # the YAML describes another model
    return shape_from_yaml(config.model.shape)


def _base_shape(adapter: Adapter, config: RootConfig) -> ModelShape | None:
    """Return the shape of the model that an adapter was trained on."""
    if adapter.local_base is not None:
        return read_shape(adapter.local_base)
    return (
        shape_from_yaml(config.model.shape)
        if adapter.base in (config.model.base, config.model.sft)
        else None
    )


def _kind_mismatches(config: RootConfig, origins: Origins) -> list[Finding]:
    kind = config.stage.kind
    problems = []
    if config.trainer.kind != kind:
        message = (
            f"{config.trainer.name} trains {config.trainer.kind} stages, but this stage is {kind}"
        )
        problems.append(
            Finding.error("kind_mismatch", message, "trainer", set_any(*_trainers_of(kind)))
        )
    if config.data.kind != kind and not (kind == Kind.rm and config.data.kind == Kind.dpo):
        message = (
            f"data={origins.choices.get('data')} is {config.data.kind} data, but this stage "
            f"is {kind}"
        )
        problems.append(Finding.error("kind_mismatch", message, "data"))
    return problems


def _trainers_of(kind: Kind) -> list[str]:
    """Return the overrides that choose the shipped trainers of a kind of stage."""
    files = trainer_files().items()
    return [
        f"trainer={name}"
        for name, file in files
        if file.get("kind") == kind and not file.get("untried")
    ]


def _model(config: RootConfig, origins: Origins, cache: Path, cwd: Path) -> InputSource:
    model = config.model
    key = "model.path" if model.path else f"model.{config.stage.start}"
    if continues_adapter(config) and not model.path:
        raise _nothing_to_continue("model.path is not set", origins.of("recipe.lora.start").where)
    if model.build and not model.path:
        made = cache / "demo" / f"{'model' if model.build == 'demo' else 'trained'}-{DEMO_KEY}"
        return InputSource(
            str(made), made, _check_build(model.build, "model.build"), origins.of("model.build")
        )
    reference = model.path or getattr(model, config.stage.start)
    if not reference:
        message = f"model={origins.choices.get('model')} has no {config.stage.start} checkpoint"
        raise refusal("no_model", message, key, "set model.path to a folder or a hub id")
    local = _local(reference, cwd) or _run_folder(
        config, reference, cwd / Path(config.runs).expanduser()
    )
    if local is None and continues_adapter(config):
        raise _nothing_to_continue(f"{reference} is not a folder here", origins.of(key).where)
    if local is None or not model.path:
        return InputSource(str(local) if local else reference, local, None, origins.of(key))
    return _local_model(local, config, origins)


def _run_folder(config: RootConfig, reference: str, runs: Path) -> Path | None:
    """Return the folder in or below a run that `STAGE/NAME` means, and the finished run that
    model.path begins the name of; None for another name, as of a hub id. Raises UserError:
    ambiguous_run.
    """
    stage_and_name = Path(*Path(reference).parts[:2])
    if (runs / stage_and_name / "plan.json").is_file():
        return runs / reference
    finished = [run for run in find_runs(runs) if (run / "DONE").is_file()]
    return find_run(reference, finished, "model.path") if config.model.path else None


def continues_adapter(config: RootConfig) -> bool:
    """Whether an adapter is trained further, by a trainer that can."""
    lora, starts = config.recipe.lora, config.trainer.recipe.get("lora.start") or {}
    return (
        lora.rank is not None and lora.start != AdapterStart.merged and lora.start.value in starts
    )


def _nothing_to_continue(why: str, where: str | None) -> UserError:
    message = f"recipe.lora.start=continue resumes training an adapter, and {why}"
    cure = Fix.of(
        "set model.path to a LoRA run or an adapter's folder, or remove {0}", "~recipe.lora.start"
    )
    return refusal("nothing_to_continue", message, where, cure)


def _local_model(path: Path, config: RootConfig, origins: Origins) -> InputSource:
    """A model in a folder: a whole one, a run's, or an adapter, which is merged first or gone on
    with.

    Raises UserError: run_without_model, nothing_to_continue, bad_adapter, adapter_base.
    """
    provenance = origins.of("model.path")
    if (path / "plan.json").is_file():
        if not (path / "DONE").is_file():
            message = f"the run in {path} is not finished, so it has no model"
            raise refusal(
                "run_without_model", message, provenance.where, "start it again to its end"
            )
        path = path / "model"
    # RUN/merged is made from RUN/model, now or before
    folder = path.with_name("model") if path.name == MERGED else path
    # it may be half written
    is_pending = bool(config.model.trained_by) and not (folder.parent / "DONE").is_file()
    adapter = None if is_pending else read_adapter(folder)
    if adapter is None:
        if continues_adapter(config) and path.is_dir() and not is_pending:
            raise _nothing_to_continue(f"{path} has none", provenance.where)
        if continues_adapter(config) and path.name == MERGED:  # of a run that is still to come
            path = path.with_name("model")
        return InputSource(str(path), path, None, provenance)
    run = adapter.folder.parent
    if (run / "plan.json").is_file() and not (run / "DONE").is_file():
        message = f"the run in {run} is not finished, so its adapter may be incomplete"
        raise refusal("run_without_model", message, provenance.where, "start it again to its end")
    if any(override_key(override) == "model" for override in origins.overrides):
        _refuse_other_base(adapter, config, provenance)
    check_adapter(adapter, _base_shape(adapter, config))
    if continues_adapter(config):
        return InputSource(str(adapter.folder), adapter.folder, None, provenance, adapter)
    return InputSource(str(adapter.merged), adapter.merged, MERGE, provenance, adapter)


def _refuse_other_base(adapter: Adapter, config: RootConfig, provenance: Provenance) -> None:
    """Refuse an adapter of another model than the one that `model=` names; a folder is compared by
    its shape.
    """
    model = config.model
    described, found = shape_from_yaml(model.shape), _base_shape(adapter, config)
    is_other = (
        adapter.local_base is None
        and bool(model.base)
        and adapter.base not in (model.base, model.sft)
    )
    if described and found:
        is_other = (described.layers, described.hidden) != (found.layers, found.hidden)
    if is_other:
        message = (
            f"the adapter in {adapter.folder} was trained on {adapter.base}, and model= "
            f"names {model.base}"
        )
        cure = Fix.of("remove {0}=, or set it to the same model", "~model")
        raise refusal("adapter_base", message, provenance.where, cure)


def _mixture(
    config: RootConfig, origins: Origins, cache: Path, cwd: Path, digest: Digest
) -> tuple[MixtureEntry, ...]:
    data = config.data
    held_out = _find_validation(config, origins, cwd, digest)
    if data.build and not data.mix:
        made = cache / "demo" / f"{data.build.removeprefix('demo_')}-{DEMO_KEY}" / "train.jsonl"
        _refuse_wildcards(made, origins)
        build = _check_build(data.build, "data.build")
        return (
            MixtureEntry(
                InputSource(str(made), made, build, origins.of("data.build")),
                data.fraction,
                "train",
            ),
        )
    if not data.mix:
        cure = Fix.of("set {0}, or {1}", "data=NAME", "data.mix=FILE")
        raise refusal("no_data", "the stage has no data", "data.mix", cure)
    provenance = origins.of("data.mix")
    entries: list[MixtureEntry] = []
    for entry in data.mix:
        local = _local(entry.name, cwd) or _misspelt_file(entry.name, cwd)
        source = InputSource(str(local) if local else entry.name, local, None, provenance)
        files = _find_data(local, entry.split, provenance.where, digest) if local else None
        local_data = (
            config.stage.kind,
            data.format,
            dict(data.columns),
            cache,
            provenance.where,
            held_out,
        )
        staged = (
            LocalData(files, *local_data, skips=data.bad_rows == BadRows.skip) if files else None
        )
        entries.append(MixtureEntry(source, entry.share * data.fraction, entry.split, staged))
    if config.trainer.family == Family.trl and len(entries) > 1:
        entries = _merge(entries, digest)
    for number, named in enumerate(entries):
        if named.data:  # the source of local data is its converted copy
            copy = named.data.train_file
            source = replace(named.source, reference=str(copy), local=copy)
            entries[number] = replace(named, source=source, split="train")
            _refuse_wildcards(copy, origins)
    return tuple(entries)


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
    """Return the data files of a local path; None for one whose folder is not on this machine, but
    may be on another.

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
    """Return what is held out: files, or a share of the rows. Raises UserError: data_no_files,
    data_file_type.
    """
    value: float | str | None = config.data.validation
    if not isinstance(value, str):
        return value
    where = origins.of("data.validation").where
    path = _local(value, cwd) or cwd / value
    files = find_files(path, "validation", where)
    content = digest_files(files, digest)
    if content is None:
        raise refusal("data_unreadable", f"{path} can't be read", where)
    return DataFiles(files, content)


def _unstaged_share(
    config: RootConfig, origins: Origins, mixture: tuple[MixtureEntry, ...]
) -> float | None:
    """Return the share to hold out of data that is not staged; None without any.

    Raises UserError: validation_unsupported, data_no_files, validation_trained,
    validation_needs_local.
    """
    value, where = config.data.validation, origins.of("data.validation").where
    unstaged = [entry for entry in mixture if entry.data is None]
    if value is None:
        return None
    trainer, kind = config.trainer, config.stage.kind
    if not trainer.validation_flags and (unstaged or kind not in (Kind.sft, Kind.dpo)):
        reason = trainer.why.get("validation", "its file has no validation_flags")
        message = f"{trainer.name} does not evaluate while it trains: {reason}"
        also = ", or train with TRL ({2})" if kind in (Kind.sft, Kind.dpo) else ""
        sentence = f"remove {{0}} and score the finished model with {{1}}{also}"
        cure = Fix.of(sentence, "~data.validation", "$ launch eval", f"trainer=trl_{kind.value}")
        raise refusal("validation_unsupported", message, where, cure)
    for entry in mixture:
        files, held_out = (entry.data.files, entry.data.validation) if entry.data else (None, None)
        shared = (
            set(files.paths) & set(held_out.paths)
            if files and isinstance(held_out, DataFiles)
            else ()
        )
        if shared:
            message = f"{min(shared)} is also in data.mix: its rows would be trained on"
            raise refusal(
                "validation_trained", message, where, "name the training files without it"
            )
    if not unstaged:
        return None
    source = unstaged[0].source
    if source.local and not source.build:
        message = f"data.validation is split off {source.reference}, which does not exist here"
        raise refusal("data_no_files", message, source.provenance.where)
    if not isinstance(value, float):
        message = (
            f"data.validation={value} needs local training data, and {source.reference} is not"
        )
        cure = Fix.of(
            "set {0} to hold out a share, or download the data set and name its files in data.mix",
            "data.validation=0.02",
        )
        raise refusal("validation_needs_local", message, where, cure)
    return value


def _merge(entries: list[MixtureEntry], digest: Digest) -> list[MixtureEntry]:
    """Return local entries with equal shares as one; launch's entry over TRL mixes the others."""
    data = [entry.data for entry in entries if entry.data]
    paths = tuple(path for local in data for path in local.files.paths)
    content = digest_files(paths, digest)
    if (
        len(data) == len(entries)
        and len({entry.share for entry in entries}) == 1
        and content is not None
    ):
        return [replace(entries[0], data=replace(data[0], files=DataFiles(paths, content)))]
    return entries


def _check_build(build: str, key: str) -> str:
    if build not in BUILDS:
        raise refusal(
            "unknown_build", f"nothing builds '{build}'", key, f"choose from {', '.join(BUILDS)}"
        )
    return build


def _local(reference: str, cwd: Path) -> Path | None:
    """Return the absolute path of a reference that exists here or is written as a path; None for a
    hub id.
    """
    try:
        path = cwd / Path(reference).expanduser()
        is_here = path.exists()
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(path_problem(error, reference)) from error
    if is_here or reference.startswith(("/", "./", "../", "~")) or is_pattern(reference):
        return path
    return None


def _misspelt_file(reference: str, cwd: Path) -> Path | None:
    """Return the path of a missing data file in a folder that is here, which is not a hub id; None
    for another name.
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
        # a share needs its decimal point: "1" would be one sample
        # (dataset_transformation.py:2341-2343)
        # reads the user's files (dataset_transformation.py:1881, :1616)
        own = trainer.launcher == Launcher.ray
        names = [
            (str(path), entry)
            for entry in mixture
            for path in (entry.data.files.paths if own and entry.data else [entry.source.reference])
        ]
        mixer = [text for path, entry in names for text in (path, repr(float(entry.share)))]
        return {"mixer": mixer, "splits": [entry.split for _, entry in names]}, None, None
    parts: list[MixturePart] = []
    for entry in mixture:
        is_here = entry.data is not None or entry.source.build is not None
        reference = entry.source.reference
        # TRL reads folders, and takes a split from the file's name
        name = str(Path(reference).parent) if is_here else reference
        # held-out files are staged with each data set: the first one's copy is evaluated on
        is_file = entry.data is not None and isinstance(entry.data.validation, DataFiles)
        holds_out: HoldsOut = (
            "split" if not is_here else "staged" if not (is_file and parts) else "none"
        )
        parts.append(MixturePart(name, entry.split, repr(float(entry.share)), holds_out))
    flags: dict[str, object] = {"dataset": parts[0].name, "split": parts[0].split}
    if len(parts) > 1:
        return flags, None, json.dumps(to_json(parts), ensure_ascii=False)
    return flags, None if mixture[0].share == 1.0 else parts[0].share, None
