"""The model that a stage starts from: a hub id, a folder, a run's model, an adapter, or a build."""

from __future__ import annotations

from pathlib import Path

from launch.config.line import override_key
from launch.config.origins import Origins, Provenance
from launch.config.recipe_keys import AdapterStart, recipe_mapping
from launch.config.schema import RootConfig
from launch.demo import DEMO_KEY
from launch.errors import UserError, refusal
from launch.planning.adapter import MERGED, Adapter, check_adapter, read_adapter
from launch.planning.estimate.shape import ModelShape, read_shape, shape_from_yaml
from launch.planning.find_runs import find_run, find_runs
from launch.planning.folders import runs_folder
from launch.planning.input_source import MERGE, InputSource, check_build, local_path
from launch.planning.model_folder import EXPORT, find_saved_model, read_tensor_names
from launch.worker.finding import Fix


def resolve_model(config: RootConfig, origins: Origins, cache: Path, cwd: Path) -> InputSource:
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
    local = local_path(reference, cwd)
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
    check_build(build, "model.build")
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
    supported = recipe_mapping(config.trainer, "lora.start") or {}
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
    path = find_saved_model(path)
    is_merged = path.name == MERGED
    # RUN/merged is made from RUN/model, which may still be to come
    folder = path.with_name("model") if is_merged else path
    # the model of a run that is still to finish may be half written
    run = folder.parents[1] if folder.name == EXPORT else folder.parent
    is_pending = bool(config.model.trained_by) and not (run / "DONE").is_file()
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


def model_shape(config: RootConfig, model: InputSource) -> ModelShape | None:
    """Return the shape of a stage's model: that of its folder, else of its YAML; None where neither
    has it.
    """
    if model.adapter is not None:
        return _base_shape(model.adapter, config)
    shape = read_shape(model.local) if model.local else None
    if shape is not None:
        return shape
    is_another_than_yaml = config.model.path or (model.local and not model.build)
    return None if is_another_than_yaml else shape_from_yaml(config.model.shape)


def model_tensors(model: InputSource, shape: ModelShape | None) -> list[str] | None:
    """Return the names of the tensors of a stage's model: those of its folder's files, and those
    that a model of its shape has; None where neither is known.
    """
    folder = model.local if model.adapter is None else model.adapter.local_base
    stored = read_tensor_names(folder) if folder is not None else None
    if shape is None:
        return stored
    return [*shape.tensors, *(stored or ())]


def _base_shape(adapter: Adapter, config: RootConfig) -> ModelShape | None:
    """Return the shape of the model that an adapter was trained on."""
    if adapter.local_base is not None:
        return read_shape(adapter.local_base)
    if adapter.base in (config.model.base, config.model.sft):
        return shape_from_yaml(config.model.shape)
    return None
