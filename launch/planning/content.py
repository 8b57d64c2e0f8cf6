"""Digests of a plan's local inputs, for its identity and for the caches that depend on their content."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.data.local import Digest
from launch.planning.inputs import Inputs, InputSource

# the files that transformers reads a tokenizer and its chat template from
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.model"),
    *("vocab.json", "vocab.txt", "merges.txt", "chat_template.jinja", "chat_template.json"),
)


@dataclass(frozen=True)
class InputContent:
    """The content of a plan's local inputs, and the folders, below the cache, of data that depends on it."""

    digests: Mapping[Path, str]
    tokenized: str
    reference: str  # log-probs of the reference model


def identify_by_run(model: InputSource, run: str, digest: Digest) -> Digest:
    """Return `digest` with the model identified by the plan whose run makes it, so that it is the same before and after
    that run."""

    def digest_or_run(path: Path) -> str | None:
        if path == model.content:
            return f"run-{run}"
        return None if model.content and path.is_relative_to(model.content) else digest(path)

    return digest_or_run


def digest_inputs(inputs: Inputs, digest: Digest) -> dict[Path, str]:
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


def digest_tokenized_inputs(
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
