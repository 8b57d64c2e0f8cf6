"""A folder as one value: the digest of each of its files, by name. What was written is what is found.

Staged data, the demo's inputs, checkpoints and models are compared by it. Where a folder is not
to count as a whole, the caller lists what does not belong to it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from launch.files import open_file

# Returns a digest of a local path's content; None for a path that is not on this machine.
Digest = Callable[[Path], str | None]
_BLOCK = 1 << 20  # bytes
_DIGITS = 16
# which torch.distributed.checkpoint unpickles, and that of OLMo-core
_INDEXES = (".metadata", ".metadata.json")
_SHOWN = 2  # changes that a sentence names


def digest_text(text: str) -> str:
    """Return sixteen hex digits of the SHA-256 of a text; file names in it need not be UTF-8."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:_DIGITS]


def hash_file(path: Path, on_block: Callable[[int], None] = lambda size: None) -> str:
    """Return sixteen hex digits of the SHA-256 of a file's bytes. Raises OSError.

    `on_block` is called with the size of each block, and may raise to end the reading.
    """
    hasher = hashlib.sha256()
    with open_file(path) as stream:
        while block := stream.read(_BLOCK):
            hasher.update(block)
            on_block(len(block))
    return hasher.hexdigest()[:_DIGITS]


def files_below(
    folder: Path, is_left_out: Callable[[str], bool] = lambda name: False
) -> Iterator[str]:
    """Yield the names of all files below a folder, relative to it and in order.

    Hidden files and folders are left out, except the index of a sharded checkpoint, and so are those
    for which `is_left_out`, called with the relative name of each, returns true.
    """
    yield from _files_in(folder, "", is_left_out)


def _files_in(folder: Path, above: str, is_left_out: Callable[[str], bool]) -> Iterator[str]:
    for path in sorted(folder.iterdir()):
        name = f"{above}{path.name}"
        is_hidden = path.name.startswith(".") and path.name not in _INDEXES
        if is_hidden or is_left_out(name):
            continue
        if path.is_dir():
            yield from _files_in(path, f"{name}/", is_left_out)
        elif path.is_file():
            yield name


def digest_folder(
    folder: Path, digest: Digest, is_left_out: Callable[[str], bool] = lambda name: False
) -> dict[str, str]:
    """Return the digest of each file below a folder, by its name; {} without the folder."""
    if not folder.is_dir():
        return {}
    digests = {}
    for name in files_below(folder, is_left_out):
        value = digest(folder / name)
        if value is not None:
            digests[name] = value
    return digests


def key_of(digests: Mapping[str, str]) -> str:
    """Return one digest of a folder: sixteen hex digits over its names and digests."""
    lines = "\n".join(f"{name}:{digest}" for name, digest in sorted(digests.items()))
    return digest_text(lines)


def describe_file_changes(recorded: Mapping[str, object], now: Mapping[str, object]) -> str | None:
    """Describe how the files of a folder differ from the recorded ones; None if they do not."""
    changes = []
    for name in sorted({*recorded, *now}):
        if name not in now:
            changes.append(f"{name} no longer exists")
        elif name not in recorded:
            changes.append(f"{name} was added")
        elif now[name] != recorded[name]:
            changes.append(f"{name} changed")
    if not changes:
        return None
    more = f" and {len(changes) - _SHOWN} more" if len(changes) > _SHOWN else ""
    return f"{', '.join(changes[:_SHOWN])}{more}"
