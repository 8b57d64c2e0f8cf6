"""A plan's identity, eight hex digits over whatever determines the run, the same on every machine.

It covers the content of local inputs by digests, on which the caches of tokenised data and log-probs depend too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.config.schema import Family, RootConfig
from launch.data.local import Digest
from launch.planning.inputs import Inputs, InputSource
from launch.planning.parallel import Parallel

DIGITS = 8
# of what the identity of an existing stage depends on, or of what is rendered for it: a change raises it, and folders
# of every version stay readable (launch.execution.same_run). It is recorded beside the identity, and not hashed.
# 2 of TRL's trainers: launch's own entry in place of TRL's patched scripts; it trains the same.
IDENTITY_VERSIONS = {Family.open_instruct: 1, Family.trl: 2}
# the files that transformers reads a tokenizer and its chat template from
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.model"),
    *("vocab.json", "vocab.txt", "merges.txt", "chat_template.jinja", "chat_template.json"),
)


def compute_identity(parts: Mapping[str, Any], places: Mapping[Path, str], content: Mapping[Path, str]) -> str:
    """Compute the identity of JSON-like `parts`, without the machine's paths.

    `places` are folders whose absolute paths become a placeholder (`{runs}`); `content` are local inputs, which become
    their name and content digest.
    """
    names = {str(path): f"{path.name}@{digest}" for path, digest in content.items()}
    names.update({str(path): placeholder for path, placeholder in places.items()})
    longest_first = sorted(names.items(), key=lambda item: len(item[0]), reverse=True)

    def neutral(value: Any) -> Any:
        if isinstance(value, str):
            for path, name in longest_first:
                value = value.replace(path, name)
            return value
        if isinstance(value, Mapping):
            return {str(key): neutral(inner) for key, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return [neutral(inner) for inner in value]
        return value

    text = json.dumps(neutral(parts), sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:DIGITS]  # names need not be UTF-8


def content_key(content: Mapping[Path, str]) -> str:
    """Return a short key over the content of local inputs, for caches that depend on it; `hub` without local inputs."""
    if not content:
        return "hub"
    joined = "\n".join(sorted(f"{path.name}@{digest}" for path, digest in content.items()))
    return hashlib.sha256(joined.encode("utf-8", "surrogateescape")).hexdigest()[:DIGITS]


@dataclass(frozen=True)
class InputContent:
    """The content of a plan's local inputs, and the folders, below the cache, of data that depends on it."""

    digests: Mapping[Path, str]
    tokenized: str
    reference: str  # log-probs of the reference model


def read_content(config: RootConfig, inputs: Inputs, parallel: Parallel, cwd: Path, digest: Digest) -> InputContent:
    """Digest the local inputs, and name the folders of what is cached of them."""
    content = _digest_inputs(inputs, digest)
    tokenizer = config.flags.get("tokenizer_name_or_path")
    tokenized = content_key(_digest_tokenized_inputs(inputs, tokenizer, content, digest, cwd))
    reference = _reference_key(content, config.trainer.name, parallel)
    return InputContent(content, f"tokenized/{tokenized}", f"reference_logprobs/{reference}")


def _reference_key(content: Mapping[Path, str], trainer: str, parallel: Parallel) -> str:
    """Return a folder name for reference log-probs, which upstream keys by names alone (dpo_utils.py:369-383).

    dpo.py's model is OLMo-core's and dpo_tune_cache.py's is transformers', and each reads the other's file. DeepSpeed's
    numerics differ, too: on two H200s the policy's first log-probs under ZeRO-3 were 0.4% off a reference that one GPU
    had computed without it, so that the first loss was not ln 2.
    """
    return f"{content_key(content)}-{trainer}-{'deepspeed' if parallel.zero_stage else 'plain'}"


def identify_by_run(model: InputSource, run: str, digest: Digest) -> Digest:
    """Return `digest` with the model identified by the plan whose run makes it, so that it is the same before and after
    that run."""

    def digest_or_run(path: Path) -> str | None:
        if path == model.content:
            return f"run-{run}"
        return None if model.content and path.is_relative_to(model.content) else digest(path)

    return digest_or_run


def _digest_inputs(inputs: Inputs, digest: Digest) -> dict[Path, str]:
    """Digest the local inputs that exist; what this machine builds is identified by its builder's key instead."""
    sources = [inputs.model, *(entry.source for entry in inputs.mixture if not entry.data)]
    digests = {entry.data.folder: entry.data.key for entry in inputs.mixture if entry.data}
    for source in sources:
        value = digest(source.content) if source.content else None
        if source.local and value:
            digests[source.local] = value
    return digests


def digest_flag_files(
    flags: Mapping[str, Any], digest: Digest, cwd: Path, made_later: Path | None = None
) -> dict[str, str]:
    """Digest the files, and the folders of tokenizers and models, that the user's own flags name, by flag.

    `made_later`: a model that another run makes, which is identified by that run whether it is there yet or not.
    """
    digests = {}
    for name, value in flags.items():
        for text in value if isinstance(value, list) else [value]:
            path = _named_path(text, cwd)
            content = digest(path) if path and not (made_later and path.is_relative_to(made_later)) else None
            if content:
                digests[f"{name}={text}"] = content
    return digests


def _named_path(text: object, cwd: Path) -> Path | None:
    """Return the file or the folder of a tokenizer or a model that a flag's value names; None for any other value."""
    if not isinstance(text, str) or not text:
        return None
    try:
        path = cwd / Path(text).expanduser()
        known = ("config.json", *TOKENIZER_FILES)
        is_input = path.is_file() or (path.is_dir() and any((path / name).is_file() for name in known))
    except (OSError, RuntimeError):  # longer than a path may be; a home that does not exist
        return None
    return path if is_input else None


def _digest_tokenized_inputs(
    inputs: Inputs, tokenizer: object, content: Mapping[Path, str], digest: Digest, cwd: Path
) -> dict[Path, str]:
    """Digest what tokenised data depends on: the data and the tokenizer's files, but not the model's weights.

    `tokenizer` is the trainer's own flag for another folder, if it is set. Upstream's key of this cache has neither the
    content of a local data file (dataset_transformation.py:1881) nor merges.txt and added_tokens.json.
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
