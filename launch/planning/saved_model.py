"""Whether a model can be started from: a folder is complete, and a run's model is the one that the
run saved.

The run's DONE holds digests of the model's files, which every later use of the model compares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

from launch.config.origins import Origins
from launch.config.schema import Launcher, RootConfig
from launch.data.sources import Digest, file_format, suggest_neighbours
from launch.errors import UserError
from launch.files import read_json_object
from launch.planning.inputs import MERGE, InputSource
from launch.planning.model_folder import NO_TOKENIZER, find_model_faults, hub_snapshot
from launch.worker.finding import Finding, Fix

# what is loaded of a model: weights, configuration, tokenizer, chat template, code
_PATTERNS = (
    *(
        "*.safetensors",
        "*.safetensors.index.json",
        "pytorch_model*",
        "adapter_model.bin",
        "config.json",
        "*.py",
    ),
    *(
        "adapter_config.json",
        "generation_config.json",
        "chat_template*",
        "tokenizer*",
        "special_tokens_map.json",
    ),
    *("added_tokens.json", "vocab.*", "merges.txt", "spiece.model", "*.tiktoken"),
)
EXPORT = "hf_model"  # the folder that dpo.py exports into, at most one below its output (dpo.py:97)
_CURE = "restore the file, or move the changed model to a folder of its own and name that"


def digest_model(folder: Path, digest: Digest) -> dict[str, str]:
    """Return the digest of each file that a model, or an adapter, is loaded from; {} for a hub
    id.
    """
    files = (
        path
        for place in ("*", f"{EXPORT}/*", f"*/{EXPORT}/*")
        for path in folder.glob(place)
        if path.is_file()
    )
    loaded = (path for path in files if any(fnmatch(path.name, pattern) for pattern in _PATTERNS))
    names = sorted(path.relative_to(folder).as_posix() for path in loaded)
    return {name: value for name in names if (value := digest(folder / name)) is not None}


def run_of(model: Path) -> Path | None:
    """Return the finished run that a model's folder is of: beside its DONE, or below as an export
    of it.
    """
    above = model.parents if model.name == EXPORT else (model.parent,)
    return next((folder for folder in above if (folder / "DONE").is_file()), None)


def find_changes(run: Path, digest: Digest) -> list[Finding]:
    """Return how the model of a finished run, or its adapter's base, differs from what its DONE
    holds.

    [] for a run of a version that recorded no digests. The ids are model_changed and base_changed.
    """
    recorded = read_json_object(run / "DONE").get("model")
    if not isinstance(recorded, dict):
        return []
    problems = []
    output, base = run / "model", Path(str(recorded.get("base")))
    if changed := _compare(recorded.get("files"), output, digest):
        message = f"the model in {output} is not the one that this run saved: {changed}"
        problems.append(Finding.error("model_changed", message, None, _CURE))
    if changed := _compare(recorded.get("base_files"), base, digest):
        message = f"{base} is not the model that the adapter in {output} was trained on: {changed}"
        problems.append(
            Finding.error(
                "base_changed", message, None, "restore the base: on another one it means nothing"
            )
        )
    return problems


def _compare(recorded: object, folder: Path, digest: Callable[[Path], str | None]) -> str | None:
    if not isinstance(recorded, dict) or not recorded:
        return None
    if not folder.is_dir():
        return "the folder is gone"
    now = digest_model(folder, digest)
    names = sorted({*recorded, *now})
    states = {True: "changed", False: "was added"}
    changed = [
        f"{name} {'is gone' if name not in now else states[name in recorded]}"
        for name in names
        if now.get(name) != recorded.get(name)
    ]
    more = f" and {len(changed) - 2} more" if len(changed) > 2 else ""
    return f"{', '.join(changed[:2])}{more}" if changed else None


def check_model_folder(
    config: RootConfig,
    origins: Origins,
    model: InputSource,
    digest: Digest,
    environ: Mapping[str, str],
) -> None:
    """Check that a local model is complete: the trainer would find out after it has tokenised the
    data. A run's has to be the one that the run saved.

    A model that another run is still to make (model.trained_by) is checked when that run ends.

    Raises UserError: incomplete_model, model_changed, base_changed, short_context.
    """
    if (
        "incomplete_model" in config.allow
        or config.model.trained_by
        or config.trainer.launcher != Launcher.accelerate
    ):
        return
    folders = [model.local] if model.build is None else []
    if model.adapter is not None:
        folders += [model.adapter.folder, model.adapter.local_base]
    problems = []
    for folder in dict.fromkeys(folders):
        if (
            folder is not None
            and not folder.exists()
            and folder.parent.is_dir()
            and folder == model.local
        ):
            message = f"model.path={folder} does not exist"
            problems.append(
                Finding.error(
                    "incomplete_model", message, model.provenance.where, suggest_neighbours(folder)
                )
            )
        if folder is None or not folder.exists():
            continue
        faults = find_model_faults(folder)
        if folder != model.local or "tokenizer_name_or_path" in config.flags:
            faults = [fault for fault in faults if fault != NO_TOKENIZER]
        if faults:
            more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
            message = f"{folder} is not a complete model: {faults[0]}{more}"
            of_folder = Fix.of(
                "complete the folder, or set {0} to plan without it", "allow=[incomplete_model]"
            )
            of_file = _of_file(folder)
            cure = of_folder if folder.is_dir() else of_file
            problems.append(
                Finding.error("incomplete_model", message, model.provenance.where, cure)
            )
    source = model.adapter.folder if model.adapter is not None else model.local
    run = run_of(source) if source and model.build in (None, MERGE) else None
    changes = find_changes(run, digest) if run else []
    problems += [
        replace(p, where=model.provenance.where) for p in changes if p.id not in config.allow
    ]
    if not problems:
        problems = find_short_context(config, origins, model, model.reference, environ)
    if problems:
        raise UserError(problems)


def find_short_context(
    config: RootConfig, origins: Origins, model: InputSource, whose: str, environ: Mapping[str, str]
) -> list[Finding]:
    """Return the problem short_context of samples longer than the positions of a model whose files
    are here.
    """
    folder = (model.adapter.local_base if model.adapter else model.local) or hub_snapshot(
        model.reference, environ
    )
    context, limit = read_context(folder) if folder else None, config.recipe.max_seq_length
    if context is None or limit <= context or "short_context" in config.allow:
        return []
    message = (
        f"recipe.max_seq_length={limit:,} is longer than the context of {whose}, {context:,} tokens"
    )
    cure = Fix.of("set {0}, or {1}", f"recipe.max_seq_length={context}", "allow=[short_context]")
    return [
        Finding.error("short_context", message, origins.of("recipe.max_seq_length").where, cure)
    ]


def read_context(folder: Path | str) -> int | None:
    """Return the positions of the model in a folder; None where its configuration does not give
    them.
    """
    context = read_json_object(Path(folder, "config.json")).get("max_position_embeddings")
    return context if isinstance(context, int) else None


def _of_file(file: Path) -> str:
    if file_format(file)[0]:
        return "it is a data file: set data.mix to it, and model.path to a hub id or a folder"
    return "set model.path to a hub id, or a folder that transformers can load, unlike a GGUF"
