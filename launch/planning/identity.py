"""Computes a plan's identity, eight hex digits over all that determines the run.

The name and the folder of a run contain its identity, which is the same on every machine. It covers
the content of local inputs by digests, on which the caches of tokenised data and log-probs depend
too. A second identity leaves out how the ranks share the work: runs that share it are the same
training, which can be resumed at another width.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.config.schema import Family, RootConfig
from launch.digests import Digest, digest_text
from launch.planning.batch_split import Batch
from launch.planning.chat_template import ChatTemplate
from launch.planning.command import is_decisive
from launch.planning.environment import ALLOCATOR_VARIABLES
from launch.planning.flags import Flag, values_of
from launch.planning.folders import cache_folder, machine_places, runs_folder
from launch.planning.input_source import InputSource
from launch.planning.inputs import Inputs
from launch.planning.machine import Machine
from launch.planning.other_width import ShardedState, find_obstacle, split_flags
from launch.planning.parallel import Parallel
from launch.planning.tracking import TRACKING_VARIABLES

DIGITS = 8
# Variables that differ between machines, or that change nothing in what is trained.
_NOT_DECISIVE = ("PYTHONPATH", *ALLOCATOR_VARIABLES, *TRACKING_VARIABLES)
# Variables and patches that follow from the width and the parallel mode.
_OF_THE_WIDTH = (
    "ACCELERATE_USE_CPU",
    "deepspeed_on_cpu",
    "dpo_single_process_group",
    "olmo_core_single_step",
)
# The files that transformers reads a tokenizer and its chat template from.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)


@dataclass(frozen=True)
class RunIdentity:
    """The identities of a plan, and the digests of its local inputs by path."""

    run: str  # covers everything that decides what a run trains
    # The same without the width, the parallel mode and the batch per device; None for a run that
    # cannot be resumed at another width.
    training: str | None
    digests: Mapping[str, str]


def identify_run(
    config: RootConfig,
    machine: Machine,
    *,
    inputs: Inputs,
    content: InputContent,
    template: ChatTemplate | None,
    parallel: Parallel,
    batch: Batch,
    flags: Mapping[str, Flag],
    env: Mapping[str, str],
    patches: Sequence[str],
    options: Sequence[str],
) -> RunIdentity:
    """Return the identities of a plan: digests of everything that decides what a run trains,
    without the machine's paths and with its inputs by content.

    `flags` are those of `build_flags`: without an automatic choice of attention, as the same plan
    may be made where the packages are not, and without tracking, which changes nothing in the
    training.
    """
    digest = machine.digests.of
    trainer = config.trainer
    identified = content
    # A model that another run makes is identified by that run, so that the identity is the same before
    # and after it. The names of the caches in `content` still follow the model's own files.
    if config.model.trained_by:
        by_run = identify_by_run(inputs.model, config.model.trained_by, digest)
        identified = read_content(config, inputs, parallel, machine.cwd, by_run, template=template)
    made_later = inputs.model.content if config.model.trained_by else None
    flag_files = digest_flag_files(config.flags, digest, machine.cwd, made_later)
    parallel_files = {path: digest(path) for path in parallel.files}
    decisive: dict[str, Any] = {
        "trainer": [trainer.name, trainer.entry],
        "upstream": machine.upstream.commit,
        "flags": values_of(flags),
        "batch": _batch_facts(batch),
        "parallel": [parallel.mode.value, parallel.precision.value, str(parallel.width)],
        "clip": config.recipe.max_grad_norm,
        "env": {name: value for name, value in env.items() if name not in _NOT_DECISIVE},
        "patches": list(filter(is_decisive, patches)),
        "files": list(parallel_files.values()),
    }
    if trainer.family == Family.trl:
        decisive["options"] = list(filter(is_decisive, options))
    if flag_files:
        decisive["flag_files"] = flag_files
    places = _name_places(config, machine.cwd, content, identified)
    can_go_on = find_obstacle(config, parallel, batch, values_of(flags)) is None
    shared = _without_width(decisive, config, parallel)
    input_digests = _digests_by_path(inputs, {**identified.digests, **parallel_files})
    return RunIdentity(
        run=compute_identity(decisive, places, identified.digests),
        training=compute_identity(shared, places, identified.digests) if can_go_on else None,
        digests={**input_digests, **flag_files},
    )


def _batch_facts(batch: Batch) -> dict[str, int]:
    return {
        "global": batch.global_,
        "per_device": batch.per_device,
        "accumulation": batch.accumulation,
        "width": batch.width,
    }


def _name_places(
    config: RootConfig, cwd: Path, content: InputContent, identified: InputContent
) -> dict[Path, str]:
    """Return the folders whose paths are rendered, with what stands for them in an identity: the
    caches of `content` by the names of the content that is `identified`.
    """
    cache = cache_folder(config, cwd)
    places = machine_places(runs_folder(config, cwd), cache)
    places[cache / content.tokenized] = f"{{cache}}/{identified.tokenized}"
    places[cache / content.reference] = f"{{cache}}/{identified.reference}"
    return places


def _without_width(
    decisive: Mapping[str, Any], config: RootConfig, parallel: Parallel
) -> dict[str, Any]:
    """Return what decides a training, without how the ranks share the model and the global batch.

    Which form a checkpoint has stays: a trainer reads no other form, and open-instruct has fp32
    weights under DeepSpeed alone.
    """
    split = split_flags(config)
    return {
        **decisive,
        "flags": {name: value for name, value in decisive["flags"].items() if name not in split},
        "batch": decisive["batch"]["global"],
        "parallel": [ShardedState.of(parallel), parallel.precision.value],
        "env": {
            name: value for name, value in decisive["env"].items() if name not in _OF_THE_WIDTH
        },
        "patches": [name for name in decisive["patches"] if name not in _OF_THE_WIDTH],
        "files": [],
    }


def _digests_by_path(inputs: Inputs, digests: Mapping[Path, str | None]) -> dict[str, str]:
    """Return the digests of local inputs by path. The path of data that is staged is that of its
    first file.
    """
    staged = {
        entry.data.folder: entry.data.files.paths[0] for entry in inputs.mixture if entry.data
    }
    return {str(staged.get(path, path)): digest for path, digest in digests.items() if digest}


def compute_identity(
    parts: Mapping[str, Any], places: Mapping[Path, str], content: Mapping[Path, str]
) -> str:
    """Compute the identity of JSON-like `parts`, without the machine's paths.

    `places` are folders whose absolute paths become a placeholder (`{runs}`); `content` are local
    inputs, which become their name and content digest.
    """
    names = {str(path): f"{path.name}@{digest}" for path, digest in content.items()}
    names.update({str(path): placeholder for path, placeholder in places.items()})
    longest_first = sorted(names.items(), key=lambda item: len(item[0]), reverse=True)

    def replace_paths(value: Any) -> Any:
        if isinstance(value, str):
            for path, name in longest_first:
                value = value.replace(path, name)
            return value
        if isinstance(value, Mapping):
            return {str(key): replace_paths(inner) for key, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return [replace_paths(inner) for inner in value]
        return value

    portable = replace_paths(parts)
    text = json.dumps(
        portable, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str
    )
    return digest_text(text)[:DIGITS]


def content_key(content: Mapping[Path, str]) -> str:
    """Return a short key over the content of local inputs, for caches that depend on it; `hub`
    without local inputs.
    """
    if not content:
        return "hub"
    joined = "\n".join(sorted(f"{path.name}@{digest}" for path, digest in content.items()))
    return digest_text(joined)[:DIGITS]


@dataclass(frozen=True)
class InputContent:
    """The content of a plan's local inputs, and the folders, below the cache, of data that depends
    on it.
    """

    digests: Mapping[Path, str]
    tokenized: str
    reference: str  # log-probs of the reference model


def read_content(
    config: RootConfig,
    inputs: Inputs,
    parallel: Parallel,
    cwd: Path,
    digest: Digest,
    *,
    template: ChatTemplate | None,
) -> InputContent:
    """Digest the local inputs and a chat template that is TRL's or the user's, and name the folders
    of what is cached of them.
    """
    content = digest_inputs(inputs, digest)
    if template is not None and template.file is not None:
        value = None
        if template.trl is not None:
            value = template.trl.digest
        elif Path(template.name).is_absolute():  # a file of the user's
            value = digest(template.file)
        if value:
            content[template.file] = value
    tokenizer = config.flags.get("tokenizer_name_or_path")
    tokenized = content_key(_digest_tokenized_inputs(inputs, tokenizer, content, digest, cwd))
    reference = _reference_key(content, config.trainer.name, parallel)
    return InputContent(content, f"tokenized/{tokenized}", f"reference_logprobs/{reference}")


def _reference_key(content: Mapping[Path, str], trainer: str, parallel: Parallel) -> str:
    """Return a folder name for reference log-probs, which upstream keys by names alone
    (dpo_utils.py:369-383).

    dpo.py's model is OLMo-core's and dpo_tune_cache.py's is transformers', and each reads the
    other's file. DeepSpeed's numerics differ, too: on two H200s the policy's first log-probs under
    ZeRO-3 were 0.4% off a reference that one GPU had computed without it, so that the first loss
    was not ln 2.
    """
    return f"{content_key(content)}-{trainer}-{'deepspeed' if parallel.zero_stage else 'plain'}"


def identify_by_run(model: InputSource, run: str, digest: Digest) -> Digest:
    """Return `digest` with the model identified by the plan whose run makes it, so that it is the
    same before and after that run.
    """

    def digest_or_run(path: Path) -> str | None:
        if path == model.content:
            return f"run-{run}"
        if model.content and path.is_relative_to(model.content):
            return None
        return digest(path)

    return digest_or_run


def digest_inputs(inputs: Inputs, digest: Digest) -> dict[Path, str]:
    """Digest the local inputs that exist. Inputs that this machine builds are identified by their
    names, which contain the builder's key.
    """
    digests: dict[Path, str] = {}
    sources = [inputs.model]
    for entry in inputs.mixture:
        if entry.data is not None:
            digests[entry.data.folder] = entry.data.key
        else:
            sources.append(entry.source)
    for source in sources:
        value = digest(source.content) if source.content else None
        if source.local and value:
            digests[source.local] = value
    for file in inputs.verifier_files:
        value = digest(file)
        if value:
            digests[file] = value
    return digests


def digest_flag_files(
    flags: Mapping[str, Any], digest: Digest, cwd: Path, made_later: Path | None = None
) -> dict[str, str]:
    """Digest the files, and the folders of tokenizers and models, that the user's own flags name,
    by flag.

    `made_later` is a model that another run makes. It is identified by that run, whether it exists
    yet or not.
    """
    digests = {}
    for name, value in flags.items():
        for text in value if isinstance(value, list) else [value]:
            path = _named_path(text, cwd)
            if path is None or (made_later and path.is_relative_to(made_later)):
                continue
            content = digest(path)
            if content:
                digests[f"{name}={text}"] = content
    return digests


def _named_path(text: object, cwd: Path) -> Path | None:
    """Return the file or the folder of a tokenizer or a model that a flag's value names; None for
    any other value.
    """
    if not isinstance(text, str) or not text:
        return None
    try:
        path = cwd / Path(text).expanduser()
        files = (path, path / "config.json", *(path / name for name in TOKENIZER_FILES))
        is_input = any(file.is_file() for file in files)
    except (OSError, RuntimeError):  # longer than a path may be; a home that does not exist
        return None
    return path if is_input else None


def _digest_tokenized_inputs(
    inputs: Inputs, tokenizer: object, content: Mapping[Path, str], digest: Digest, cwd: Path
) -> dict[Path, str]:
    """Digest what tokenised data depends on: the data and the tokenizer's files, but not the
    model's weights.

    `tokenizer` is the trainer's own flag for another folder, if it is set. Upstream's key of this
    cache has neither the content of a local data file (dataset_transformation.py:1881) nor
    merges.txt and added_tokens.json.
    """
    digests = {path: value for path, value in content.items() if path != inputs.model.local}
    folders = [inputs.model.content] if inputs.model.content else []
    if isinstance(tokenizer, str) and tokenizer:
        folders.append(cwd / Path(tokenizer).expanduser())
    for folder in folders:
        for name in TOKENIZER_FILES:
            value = digest(folder / name)
            if value:
                digests[folder / name] = value
    return digests
