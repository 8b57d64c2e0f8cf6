"""Find the data files behind a reference: a file, a folder, or a glob pattern."""

from __future__ import annotations

import glob
import re
from itertools import islice
from pathlib import Path

from launch.errors import did_you_mean, refusal

FORMATS = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")
COMPRESSIONS = (".gz", ".bz2", ".xz")
READABLE = f"{', '.join(FORMATS)}, the text ones also as {', '.join(COMPRESSIONS)}"
_UNPACKERS = {".zst": "zstd -d", ".zip": "unzip", ".lz4": "lz4 -d", ".7z": "7z x", ".tar": "tar xf", ".tgz": "tar xf"}
_WILDCARDS = frozenset("*?[")
_MOST_NEIGHBOURS = 2000  # of a missing file, that its name is compared with


def is_pattern(reference: str) -> bool:
    """Return whether `reference` is written as a glob pattern."""
    return not _WILDCARDS.isdisjoint(reference)


def file_format(path: Path) -> tuple[str, str]:
    """Return the format's suffix (`.jsonl`) and the compression's (`.gz`); empty where there is none that is known."""
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    compression = suffixes.pop() if suffixes and suffixes[-1] in COMPRESSIONS else ""
    form = suffixes[-1] if suffixes and suffixes[-1] in FORMATS else ""
    return form, compression


def unpack_cure(suffix: str) -> str | None:
    """Return how to unpack an archive or a compressed file that is not read; None for another suffix."""
    return f"unpack it: {_UNPACKERS[suffix]} FILE" if suffix in _UNPACKERS else None


def find_files(path: Path, split: str, where: str | None) -> tuple[Path, ...]:
    """Return the data files of `path`, sorted: itself, those of a folder (at any depth, hidden ones left out), or those
    that match a pattern.

    Where files of a folder are named after splits (`train.jsonl`, `test.jsonl`), only those of `split` are taken.
    `where` names the key that the path is from.

    Raises UserError: data_no_files, data_file_type.
    """
    if path.is_file():
        files = [path]
    elif path.is_dir():
        files = [found for found in path.rglob("*") if _is_data_file(found, path)]
        of_split = re.compile(rf"{re.escape(split)}(?![a-z])", re.IGNORECASE)  # not `trainers.csv`
        files = [found for found in files if of_split.match(found.name)] or files
    else:
        matches = (Path(name) for name in glob.glob(str(path), recursive=True))  # noqa: PTH207 - an absolute pattern
        files = [match for match in matches if match.is_file()]
    if not files:
        if not path.exists() and not is_pattern(str(path)):
            raise refusal("data_no_files", f"{path} does not exist", where, suggest_neighbours(path))
        raise refusal("data_no_files", f"{path} has no data files", where, f"launch reads {READABLE}")
    for file in files:
        form, compression = file_format(file)
        if not form or (form == ".parquet" and compression):
            message = f"{file} is not a data file that launch can read"
            cure = unpack_cure(file.suffix.lower()) or f"launch reads {READABLE}"
            raise refusal("data_file_type", message, where, cure)
    return tuple(sorted(files))


def suggest_neighbours(path: Path) -> str | None:
    """Return which names in the folder of a missing path are like its own."""
    try:
        return did_you_mean(path.name, [found.name for found in islice(path.parent.iterdir(), _MOST_NEIGHBOURS)])
    except OSError:
        return None


def _is_data_file(path: Path, root: Path) -> bool:
    is_hidden = any(part.startswith(".") for part in path.relative_to(root).parts)
    is_data = bool(file_format(path)[0] or (path.suffix.lower() in _UNPACKERS and file_format(path.with_suffix(""))[0]))
    return not is_hidden and path.is_file() and is_data
