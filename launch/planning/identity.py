"""Computes a plan's identity, eight hex digits over all that determines the run.

The name and the folder of a run contain its identity, which is the same on every machine. It covers
the content of local inputs by digests, on which the caches of tokenised data and log-probs depend
too. Each file is read once, as digests are cached by path, size and times.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.config.schema import RootConfig
from launch.data.sources import Digest
from launch.files import load_json, open_file, write_exact
from launch.planning.chat_template import ChatTemplate
from launch.planning.inputs import Inputs, InputSource
from launch.planning.parallel import Parallel, Width
from launch.worker.json_codec import versioned

DIGITS = 8
# Stands for a run's name until its identity, a digest of what was rendered, is known.
NAME = "{name}"
# The longest name in a tracker, in characters. wandb refuses longer tags, and open-instruct makes
# the run's name a tag (finetune.py:465).
_LONGEST_TAG = 64
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


def default_name(width: Width, identity: str) -> str:
    """Return the name of a run that `name=` does not name: `gpu8-1a2b3c4d`."""
    return f"{width}-{identity}"


def run_folder(runs: Path, stage: str, name: str) -> Path:
    """Return a run's folder: `<runs>/<stage>/<name>`."""
    return runs / stage / name


def tracked_name(stage: str, name: str) -> str:
    """Return the name of a run in an experiment tracker."""
    return f"{stage}-{name}"[:_LONGEST_TAG]


def texts_with_name(runs: Path, stage: str, name: str) -> tuple[str, ...]:
    """Return the texts that carry a run's name: its folder, its model's and its name in a
    tracker.
    """
    folder = run_folder(runs, stage, name)
    return str(folder), str(folder / "model"), tracked_name(stage, name)


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
    # names need not be UTF-8
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:DIGITS]


def content_key(content: Mapping[Path, str]) -> str:
    """Return a short key over the content of local inputs, for caches that depend on it; `hub`
    without local inputs.
    """
    if not content:
        return "hub"
    joined = "\n".join(sorted(f"{path.name}@{digest}" for path, digest in content.items()))
    return hashlib.sha256(joined.encode("utf-8", "surrogateescape")).hexdigest()[:DIGITS]


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
    content = _digest_inputs(inputs, digest)
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


def _digest_inputs(inputs: Inputs, digest: Digest) -> dict[Path, str]:
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


_BLOCK = 1 << 20  # bytes
_READERS = 4  # files at once; hashing lets other threads run
_LARGE = 64 << 20  # bytes
# The least number of bytes read for which a folder is created to cache their digests.
_WORTH_A_FOLDER = 16 << 20
# A file that changed less than so many seconds ago may change again within the resolution of its
# times, and is not cached.
_SETTLED = 2.0


class DigestCache:
    """Digests files and folders. Results are cached in `file`, which may be missing, stale or not
    writable.

    `await_other` returns once another process has cached the digests of the same files; it is
    called once, before a large file is read.
    """

    def __init__(self, file: Path, await_other: Callable[[], None] | None = None) -> None:
        self._file = file
        self._await_other = await_other
        self._cached: dict[str, list[object]] = {}
        self._changed = False
        self._bytes_read = 0
        self._lock = threading.Lock()
        self._load()

    def _load(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            loaded = load_json(self._file)
            if isinstance(loaded, dict) and isinstance(loaded.get("files"), dict):
                self._cached |= loaded["files"]

    def of(self, path: Path) -> str | None:
        """Digest a file's bytes, or the names and bytes of a folder's files except hidden ones:
        sixteen hex digits.

        None if there is nothing. The subfolders of a folder with a model or an adapter are left
        out: they hold checkpoints, or the same weights in another format.
        """
        if path.is_file():
            return self._of_file(path)
        if not path.is_dir():
            return None
        # slow to import; a plan without local inputs doesn't need it
        from concurrent.futures import ThreadPoolExecutor

        recursive = not any(
            (path / name).exists() for name in ("config.json", "adapter_config.json")
        )
        files = sorted(_files(path, recursive))
        with ThreadPoolExecutor(_READERS) as readers:
            digests = list(readers.map(self._of_file, files))
        parts = [
            f"{file.relative_to(path).as_posix()}:{digest}"
            for file, digest in zip(files, digests, strict=True)
        ]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]

    def save(self, *, create_folder: bool = True) -> None:
        """Write the cache, if anything is new; a folder that is not writable only costs time later.

        A missing folder is created only after much was read.
        """
        creates = create_folder and self._bytes_read >= _WORTH_A_FOLDER
        if not self._changed or not (creates or self._file.parent.is_dir()):
            return
        with contextlib.suppress(OSError):
            write_exact(self._file, json.dumps(versioned({"files": self._cached})))

    def _of_file(self, path: Path) -> str:
        stat = path.stat()
        key = str(path.resolve())
        # ctime too: a copy that preserves the modification time still sets it
        state = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]
        cached_digest = self._find(key, state)
        if cached_digest is not None:
            return cached_digest
        with self._lock:
            if self._await_other is not None and stat.st_size > _LARGE:
                self._await_other()
                self._await_other = None
                self._load()
        cached_digest = self._find(key, state)
        if cached_digest is not None:
            return cached_digest
        hasher = hashlib.sha256()
        with open_file(path) as stream:
            while block := stream.read(_BLOCK):
                hasher.update(block)
        digest = hasher.hexdigest()[:16]
        self._bytes_read += stat.st_size
        if time.time() - max(stat.st_mtime, stat.st_ctime) > _SETTLED:
            self._cached[key] = [*state, digest]
            self._changed = True
        return digest

    def _find(self, key: str, state: list[int]) -> str | None:
        cached = self._cached.get(key)
        is_current = isinstance(cached, list) and cached[:3] == state and len(cached) == 4
        return str(cached[3]) if cached and is_current else None


def _files(folder: Path, recursive: bool) -> Iterator[Path]:
    """Yield the files of a folder that are not hidden."""
    for path in folder.iterdir():
        if path.name.startswith("."):
            continue
        if path.is_file():
            yield path
        elif recursive and path.is_dir():
            yield from _files(path, recursive)
