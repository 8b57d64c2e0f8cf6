"""Finds the data files of a reference: a file, a folder or a glob pattern.

It also has the formats of these files, and the folder of their converted copy.
"""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from launch.config.kinds import DataFormat, Kind
from launch.config.schema import TrainOn
from launch.digests import Digest, digest_text
from launch.errors import UserError, did_you_mean, path_problem, refusal

FORMATS = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".arrow")
_UNPACKED = (".parquet", ".arrow")  # files that are compressed inside, if at all
COMPRESSIONS = (".gz", ".bz2", ".xz")
READABLE = f"{', '.join(FORMATS)}, the text ones also as {', '.join(COMPRESSIONS)}"
_UNPACKERS = {
    ".zst": "zstd -d",
    ".zip": "unzip",
    ".lz4": "lz4 -d",
    ".7z": "7z x",
    ".tar": "tar xf",
    ".tgz": "tar xf",
}
# files beside the rows of a data set that datasets wrote: what describes it, and its own cache
_DESCRIPTIONS = re.compile(r"state\.json|dataset_info\.json|dataset_dict\.json|cache-.*\.arrow")
# names that folders and files of data sets have for the same split
SPLITS = (
    ("train", "training"),
    ("validation", "valid", "val", "dev"),
    ("test", "testing", "eval"),
)
_WILDCARDS = frozenset("*?[")
_MOST_NEIGHBOURS = 2000  # files beside a missing one, with which its name is compared
# The version of the conversion. Raise it when the same files would be converted to other rows.
CONVERTER = 8
TRAIN_FILE = "train.jsonl"
VALIDATION_FILE = "validation.jsonl"


def is_pattern(reference: str) -> bool:
    """Return whether `reference` is written as a glob pattern."""
    return not _WILDCARDS.isdisjoint(reference)


def file_format(path: Path) -> tuple[str, str]:
    """Return the suffix of the format (`.jsonl`) and of the compression (`.gz`).

    An unknown or missing one is empty.
    """
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    compression = suffixes.pop() if suffixes and suffixes[-1] in COMPRESSIONS else ""
    form = suffixes[-1] if suffixes and suffixes[-1] in FORMATS else ""
    return form, compression


def unpack_cure(suffix: str) -> str | None:
    """Return how to unpack a kind of file that launch does not read; None for another suffix."""
    if suffix not in _UNPACKERS:
        return None
    return f"unpack it: {_UNPACKERS[suffix]} FILE"


def find_files(path: Path, split: str, where: str | None) -> tuple[Path, ...]:
    """Return the data files of `path`, sorted.

    They are the file itself, those of a folder (at any depth, without hidden ones), or those that
    match a pattern. If files of a folder, or the folders that they are in, are named after splits
    (`train.jsonl`, `chats_test.jsonl`, `test/data.arrow`), only those of `split` are taken, or else
    those of no other split. `where` names the key that has the path.

    Raises UserError: bad_path, data_no_files, data_file_type.
    """
    try:
        files = _list_files(path, split)
    except OSError as error:
        raise UserError(path_problem(error, str(path), where)) from error
    if not files:
        if not path.exists() and not is_pattern(str(path)):
            cure = suggest_neighbours(path)
            raise refusal("data_no_files", f"{path} does not exist", where, cure)
        cure = f"launch reads {READABLE}"
        raise refusal("data_no_files", f"{path} has no data files", where, cure)
    for file in files:
        form, compression = file_format(file)
        if not form or (form in _UNPACKED and compression):
            message = f"{file} is not a data file that launch can read"
            cure = unpack_cure(file.suffix.lower()) or f"launch reads {READABLE}"
            raise refusal("data_file_type", message, where, cure)
    return tuple(sorted(files))


def _list_files(path: Path, split: str) -> list[Path]:
    if path.is_file():
        return [path]
    if path.is_dir():
        files = [file for file in path.rglob("*") if _is_data_file(file, path)]
        if any(file.suffix.lower() == ".arrow" for file in files):  # of datasets' save_to_disk
            files = [file for file in files if not _DESCRIPTIONS.fullmatch(file.name)]
        return _files_of_split(files, path, split)
    matches = (Path(name) for name in glob.glob(str(path), recursive=True))  # noqa: PTH207 - an absolute pattern
    return [match for match in matches if match.is_file()]


def _files_of_split(files: list[Path], root: Path, split: str) -> list[Path]:
    """Return the files of a split; without any, those of no other split; without any, all."""
    own_names = next((names for names in SPLITS if split in names), (split,))
    other_names = [name for names in SPLITS if names != own_names for name in names]
    own = [file for file in files if _is_named_after(file.relative_to(root), own_names)]
    if own:
        return own
    rest = [file for file in files if not _is_named_after(file.relative_to(root), other_names)]
    return rest or files


def _is_named_after(path: Path, splits: Sequence[str]) -> bool:
    """Return whether a file, or a folder that it is in, begins or ends with the name of a split.

    `train.csv`, `train-1.csv` and `chats_train.csv` do, and `trainers.csv` does not.
    """
    names = "|".join(map(re.escape, splits))
    begins = re.compile(rf"(?:{names})(?![a-z])", re.IGNORECASE)
    ends = re.compile(rf"[-_. ](?:{names})(?:\.|$)", re.IGNORECASE)
    return any(begins.match(part) or ends.search(part) for part in path.parts)


def suggest_neighbours(path: Path) -> str | None:
    """Return a suggestion of similar names in the folder of a missing path; None without one."""
    try:
        neighbours = [file.name for file in islice(path.parent.iterdir(), _MOST_NEIGHBOURS)]
    except OSError:
        return None
    return did_you_mean(path.name, neighbours)


def _is_data_file(path: Path, root: Path) -> bool:
    """Return whether a file of the folder `root` holds data.

    A packed file counts as data, so that `find_files` refuses it instead of ignoring it.
    """
    if any(part.startswith(".") for part in path.relative_to(root).parts):
        return False
    is_packed = path.suffix.lower() in _UNPACKERS
    form, _ = file_format(path.with_suffix("") if is_packed else path)
    return bool(form) and path.is_file()


@dataclass(frozen=True)
class DataFiles:
    """Files, and a digest of their content."""

    paths: tuple[Path, ...]
    digest: str


def digest_files(paths: Sequence[Path], digest: Digest) -> str | None:
    """Return a digest of the bytes of files and of their formats; None if a file is missing."""
    parts = []
    for path in paths:
        content = digest(path)
        if not content:
            return None
        form, compression = file_format(path)
        parts.append(f"{form}{compression}:{content}")
    return digest_text("\n".join(parts))


@dataclass(frozen=True)
class LocalData:
    """Local data, of which a converted copy is staged as `folder/train.jsonl` before a run.

    The folder's name is a digest of the files' content and of everything that decides the converted
    rows. An edited row therefore gives another folder, another tokenised cache and another identity
    of the plan. The user's files are not changed.
    """

    files: DataFiles
    kind: Kind
    format: DataFormat
    columns: Mapping[str, str]  # name that launch knows -> name in the rows
    cache: Path
    where: str | None = None  # the configuration key that names the data
    validation: DataFiles | float | None = None  # files, or a share of the rows
    skips: bool = False  # whether rows that can't be used are left out
    # whether system turns become the beginning of the first user turn
    merges_system_turns: bool = False
    train_on: TrainOn = TrainOn.all  # which answers are learnt
    needs_truth: bool = True  # whether a row of prompts is refused without a ground truth

    @property
    def key(self) -> str:
        """A digest of the files' content and of all that decides the converted rows."""
        held_out: DataFiles | str | float | None = self.validation
        if isinstance(held_out, DataFiles):
            held_out = held_out.digest
        parts = [
            CONVERTER,
            self.files.digest,
            self.kind.value,
            self.format.value,
            dict(self.columns),
            held_out,
        ]
        if self.skips:
            parts.append("skip")
        if self.merges_system_turns:
            parts.append("merged system turns")
        if self.train_on != TrainOn.all:
            parts.append(f"train_on={self.train_on}")
        if not self.needs_truth:
            parts.append("ground truths as they are")
        return digest_text(json.dumps(parts, sort_keys=True))

    @property
    def folder(self) -> Path:
        return self.cache / "data" / self.key

    @property
    def train_file(self) -> Path:
        return self.folder / TRAIN_FILE

    @property
    def sources(self) -> tuple[Path, ...]:
        held_out = self.validation.paths if isinstance(self.validation, DataFiles) else ()
        return (*self.files.paths, *held_out)
