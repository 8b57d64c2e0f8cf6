"""The caches that open-instruct's trainers share between runs: complete, written by one run at a
time, group-writable.

launch/planning/identity.py computes their keys. Upstream takes any existing folder for a finished
data set (dataset_transformation.py:2202) and any existing file for a finished one
(dpo_utils.py:436), so files that a killed run left half-written are found and removed before the
start. `cache_only=true` tokenises in one plain CPU process, since upstream tokenises inside a
process group, which times out after 30 minutes (finetune.py:376).
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from launch import resources
from launch.check.machine.disk import nearest_existing
from launch.config.schema import Device, Family, Mode
from launch.errors import UserError, refusal
from launch.execution.record import lock
from launch.execution.record.run import Run
from launch.files import load_json
from launch.planning.model_folder import BrokenFileError, check_torch_file
from launch.planning.parallel import Width
from launch.planning.plan import TOKENIZE_ONLY_FLAG, Plan
from launch.worker.finding import Finding

_DATASET_NAME = re.compile(r"[0-9a-f]{10}")  # dataset_transformation.py:2074
_ARROW_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # of an Arrow stream
_NUMPY_FOLDER = "numpy_sft"  # olmo_core_finetune.py:57
_LOCKS_FOLDER = ".users"


def tokenized_folder(plan: Plan) -> Path | None:
    """Return where the plan's trainer keeps tokenised data; None for a trainer that keeps none
    (TRL's).
    """
    flag = plan.flags.get(plan.config.trainer.launch.get("tokenized_cache", ""))
    return Path(str(flag.value)) if flag else None


def reference_folder(plan: Plan) -> Path | None:
    """Return where the plan's trainer keeps reference log-probabilities; None for one that keeps
    none.
    """
    folder = plan.env.get("REFERENCE_LOGPROBS_CACHE_PATH")
    return Path(folder) if folder else None


@contextlib.contextmanager
def cache_lock(plan: Plan, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the plan's caches during a run: create them, share them, and remove what was left
    half-written.

    Raises UserError: cache_busy, when another run is building the tokenised data that this one
    needs; broken_cache, when half-written data can't be removed.
    """
    tokenized = tokenized_folder(plan)
    if tokenized is None:
        yield
        return
    reference = reference_folder(plan)
    share_with_group(plan.cache)
    for folder in (tokenized, reference):
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
    if reference is not None:
        _remove([*find_broken_references(reference)], say)
    locks = tokenized.parent / _LOCKS_FOLDER
    own_lock = locks / f"{tokenized.name}.{lock.this_process().token}.lock"
    with lock.file_lock(own_lock, lambda holder, _: _busy(tokenized, holder), say):
        other_locks = [path for path in locks.glob(f"{tokenized.name}.*.lock") if path != own_lock]
        _remove_half_written(tokenized, other_locks, say)
        yield


def find_half_written(tokenized: Path) -> list[tuple[Path, str]]:
    """Return the incomplete data sets below `tokenized`, each with what is missing."""
    folders = [
        path for path in tokenized.iterdir() if path.is_dir() and _DATASET_NAME.fullmatch(path.name)
    ]
    datasets = [(path, _dataset_fault(path)) for path in sorted(folders)]
    datasets += [
        (path, _numpy_fault(path)) for path in sorted(tokenized.glob(f"{_NUMPY_FOLDER}/*"))
    ]
    return [(path, fault) for path, fault in datasets if fault is not None]


def find_broken_references(reference: Path) -> Iterator[tuple[Path, str]]:
    """Yield the files of reference log-probabilities that can't be read completely, each with its
    fault.
    """
    for path in sorted(reference.glob("*.pt")):
        try:
            check_torch_file(path)
        except BrokenFileError as broken:
            yield path, str(broken)


def share_with_group(cache: Path) -> None:
    """Make new files group-writable, in this process and those it starts, when the cache's folder
    is shared.

    A folder is shared with a group when it is group-writable and its files inherit the group.
    """
    shared = stat.S_ISGID | stat.S_IWGRP
    if nearest_existing(cache).stat().st_mode & shared == shared:
        os.umask(os.umask(0) & ~stat.S_IRWXG)


def _dataset_fault(dataset: Path) -> str | None:
    """Return what a data set of save_to_disk lacks. Upstream writes dataset_statistics.json last
    (:2283-2285).
    """
    for name in ("state.json", "dataset_info.json", "config.json", "dataset_statistics.json"):
        try:
            content = load_json(dataset / name)
        except (OSError, ValueError):
            return f"{name} is missing or truncated"
        if name == "state.json":
            files = [str(entry["filename"]) for entry in content.get("_data_files", ())]
            broken = next(
                (file for file in files if not _ends_as_arrow_stream(dataset / file)), None
            )
            if broken is not None:
                return f"{broken} is missing or truncated"
    return None


def _numpy_fault(folder: Path) -> str | None:
    """Return what olmo_core_finetune.py's pass left out.

    It writes dataset_statistics.json last (numpy_dataset_conversion.py:500), and takes a folder
    with one file of each kind for complete (:71).
    """
    statistics = folder / "dataset_statistics.json"
    return None if statistics.is_file() else f"{statistics.name} is missing"


def _ends_as_arrow_stream(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            stream.seek(-len(_ARROW_END), os.SEEK_END)
            return stream.read() == _ARROW_END
    except OSError:
        return False


def _remove_half_written(
    tokenized: Path, other_locks: list[Path], say: Callable[[str], None]
) -> None:
    """Remove what no living run is writing. Raises UserError: cache_busy, broken_cache."""
    living = [found[0] for found in map(lock.find_holder, other_locks) if found is not None]
    for path in other_locks:
        if lock.find_holder(path) is None:
            path.unlink(missing_ok=True)
    broken = find_half_written(tokenized)
    has_complete = any(
        _DATASET_NAME.fullmatch(path.name)
        for path in tokenized.iterdir()
        if path not in dict(broken)
    )
    for holder in living:
        # a living run is writing what is newer than itself; without a complete data set it is about
        # to start
        if not has_complete or any(_newest_change(path) >= holder.born for path, _ in broken):
            raise UserError(_busy(tokenized, holder))
    _remove(broken, say)


def _newest_change(folder: Path) -> float:
    return max((path.stat().st_mtime for path in (folder, *folder.iterdir())), default=0.0)


def _remove(broken: list[tuple[Path, str]], say: Callable[[str], None]) -> None:
    for path, fault in broken:
        try:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        except OSError as error:
            reason = error.strerror or error
            message = f"the half-written cache {path} ({fault}) can't be removed: {reason}"
            raise refusal("broken_cache", message, "cache", "ask its owner to remove it") from error
        say(f"removed the half-written cache {path} ({fault}); it will be built again")


def _busy(tokenized: Path, holder: lock.Holder) -> Finding:
    message = f"another run ({holder}) may be building the tokenised data in {tokenized}"
    return Finding.error(
        "cache_busy",
        message,
        "cache",
        "wait for it; cache_only=true builds it once, before several runs",
    )


# they let the trainer be imported, report its tokenised data, and write its samples' lengths
_KEPT_PATCHES = ("unused_imports", "dataset_cache", "olmo_core_packed_data", "lengths")


@dataclass(frozen=True)
class TokenizedData:
    """The data set that a trainer reports."""

    path: Path
    built: bool  # False: it was in the cache already


def plan_cache_pass(plan: Plan) -> Plan:
    """Plan the pass: the same flags without accelerate, with an output folder of its own.

    Raises UserError: no_cache_pass, for a trainer that keeps no tokenised data.
    """
    tokenized = tokenized_folder(plan)
    if tokenized is None or not supports_cache_pass(plan):
        message = f"{plan.trainer} tokenises when it starts and keeps no tokenised data of its own"
        cure = "leave cache_only out; only the open-instruct trainers have such a cache"
        raise refusal("no_cache_pass", message, "cache_only", cure)
    runs, name = tokenized.parent / ".passes", tokenized.name
    separator = plan.command.index("--")
    python, script = plan.command[0], plan.command[separator - 1]
    output = str(runs / plan.stage / name / "model")
    arguments = [
        output if argument == str(plan.model_dir) else argument
        for argument in plan.command[separator:]
    ]
    patches = tuple(patch for patch in plan.patches if patch.partition("=")[0] in _KEPT_PATCHES)
    worker = [
        str(resources.WORKER),
        *(option for patch in patches for option in ("--patch", patch)),
    ]
    return replace(
        plan,
        name=name,
        runs=runs,
        parallel=replace(plan.parallel, mode=Mode.single, width=Width(Device.cpu, 1)),
        batch=replace(plan.batch, width=1),
        command=(
            python,
            *worker,
            "--script",
            script,
            *arguments,
            f"--{TOKENIZE_ONLY_FLAG}",
            "true",
        ),
        env={**plan.env, "CUDA_VISIBLE_DEVICES": ""},
        patches=patches,
    )


def read_dataset_event(run: Run) -> TokenizedData | None:
    """Return the data set that the last `dataset_cache` event of a run reports."""
    reported = [event.data for event in run.events("evidence")]
    caches = [found for found in reported if found["what"] == "dataset_cache" and "path" in found]
    if not caches:
        return None
    return TokenizedData(Path(str(caches[-1]["path"])), built=caches[-1].get("value") == "built")


def supports_cache_pass(plan: Plan) -> bool:
    """Whether the plan's trainer can tokenise before it trains."""
    return plan.config.trainer.family == Family.open_instruct and tokenized_folder(plan) is not None


def find_tokenized_data(plan: Plan) -> Path | None:
    """Return the complete data set that an earlier pass built with the same command.

    None also where only a run built it, which leaves no record of a pass.
    """
    cache_pass, tokenized = plan_cache_pass(plan), tokenized_folder(plan)
    assert tokenized is not None  # plan_cache_pass raises without it
    record = Run(cache_pass.folder)
    dataset = read_dataset_event(record)
    if record.plan.get("command") != list(cache_pass.command) or dataset is None:
        return None
    incomplete = [path for path, _ in find_half_written(tokenized)]
    return dataset.path if dataset.path.is_dir() and dataset.path not in incomplete else None
