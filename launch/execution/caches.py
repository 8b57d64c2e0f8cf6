"""Keep the caches that open-instruct's trainers share between runs complete.

Each is written by one run at a time, and is group-writable. launch/planning/identity.py computes
their keys. Upstream uses any existing folder as a finished data set (dataset_transformation.py:2202)
and any existing file as finished log-probabilities (dpo_utils.py:436), so half-written data of a
killed run is found and removed before the start.

`cache_only=true` tokenises in one plain CPU process. Upstream tokenises inside a process group,
which times out after 30 minutes (finetune.py:376).
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
from launch.planning.parallel import Width
from launch.planning.plan import TOKENIZE_ONLY_FLAG, Plan
from launch.planning.weight_files import BrokenFileError, check_torch_file
from launch.worker.finding import Finding

_DATASET_NAME = re.compile(r"[0-9a-f]{10}")  # dataset_transformation.py:2074
_ARROW_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # the last bytes of a complete Arrow stream
_NUMPY_FOLDER = "numpy_sft"  # olmo_core_finetune.py:57
_LOCKS_FOLDER = ".users"


def tokenized_folder(plan: Plan) -> Path | None:
    """Return where the plan's trainer keeps tokenised data; None for a trainer that keeps none
    (TRL's).
    """
    flag = plan.flags.get(plan.config.trainer.launch.get("tokenized_cache", ""))
    return Path(str(flag.value)) if flag else None


def reference_folder(plan: Plan) -> Path | None:
    """Return where the plan's trainer keeps reference log-probabilities; None for a trainer that
    keeps none.
    """
    folder = plan.env.get("REFERENCE_LOGPROBS_CACHE_PATH")
    return Path(folder) if folder else None


@contextlib.contextmanager
def cache_lock(plan: Plan, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the plan's caches during a run: create them, share them, and remove half-written data.

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
        _remove_caches(list(find_broken_references(reference)), say)
    locks = tokenized.parent / _LOCKS_FOLDER
    lock_path = locks / f"{tokenized.name}.{lock.this_process().token}.lock"
    with lock.file_lock(lock_path, lambda holder, _: _cache_busy_problem(tokenized, holder), say):
        all_locks = locks.glob(f"{tokenized.name}.*.lock")
        other_locks = [path for path in all_locks if path != lock_path]
        _remove_half_written(tokenized, other_locks, say)
        yield


def find_half_written(tokenized: Path) -> list[tuple[Path, str]]:
    """Return the incomplete data sets below `tokenized`, each with what is missing."""
    faults: dict[Path, str | None] = {}
    for path in sorted(tokenized.iterdir()):
        if path.is_dir() and _DATASET_NAME.fullmatch(path.name):
            faults[path] = _dataset_fault(path)
    for path in sorted(tokenized.glob(f"{_NUMPY_FOLDER}/*")):
        faults[path] = _numpy_fault(path)
    return [(path, fault) for path, fault in faults.items() if fault is not None]


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
    """Make new files group-writable if the cache's folder is shared with a group.

    It is shared if it is group-writable and its files inherit the group. The umask changes in this
    process and in those that it starts.
    """
    shared = stat.S_ISGID | stat.S_IWGRP
    if nearest_existing(cache).stat().st_mode & shared != shared:
        return
    mask = os.umask(0)
    os.umask(mask & ~stat.S_IRWXG)


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
            for entry in content.get("_data_files", ()):
                file = str(entry["filename"])
                if not _ends_as_arrow_stream(dataset / file):
                    return f"{file} is missing or truncated"
    return None


def _numpy_fault(folder: Path) -> str | None:
    """Return what a data set of olmo_core_finetune.py lacks.

    The script writes dataset_statistics.json last (numpy_dataset_conversion.py:500), and uses any
    folder with one file of each kind (:71).
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
    """Remove the half-written data sets that no living run is writing.

    Raises UserError: cache_busy, broken_cache.
    """
    holders = []
    for path in other_locks:
        holding = lock.find_holder(path)
        if holding is None:
            path.unlink(missing_ok=True)
        else:
            holder, _ = holding
            holders.append(holder)
    broken = find_half_written(tokenized)
    broken_paths = [path for path, _ in broken]
    has_complete = any(
        _DATASET_NAME.fullmatch(path.name) and path not in broken_paths
        for path in tokenized.iterdir()
    )
    for holder in holders:
        # A living run writes the data set that is newer than itself. Without a complete data set,
        # it will write one soon.
        is_writing = any(_newest_change(path) >= holder.born for path in broken_paths)
        if is_writing or not has_complete:
            raise UserError(_cache_busy_problem(tokenized, holder))
    _remove_caches(broken, say)


def _newest_change(folder: Path) -> float:
    """Return when the folder or a file in it was last changed, in unix seconds."""
    return max((path.stat().st_mtime for path in (folder, *folder.iterdir())), default=0.0)


def _remove_caches(broken: list[tuple[Path, str]], say: Callable[[str], None]) -> None:
    """Remove caches, which are given with their faults. Raises UserError: broken_cache."""
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


def _cache_busy_problem(tokenized: Path, holder: lock.Holder) -> Finding:
    message = f"another run ({holder}) may be building the tokenised data in {tokenized}"
    return Finding.error(
        "cache_busy",
        message,
        "cache",
        "wait for it; cache_only=true builds it once, before several runs",
    )


# The patches that a tokenising pass keeps: they let the trainer be imported, give it the chat
# template of the run, report its tokenised data, and write the lengths of its samples.
_KEPT_PATCHES = (
    "unused_imports",
    "registered_models",
    "chat_template",
    "dataset_cache",
    "olmo_core_packed_data",
    "lengths",
)


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
    runs = tokenized.parent / ".passes"
    name = tokenized.name
    model_dir = str(plan.model_dir)
    pass_model_dir = str(runs / plan.stage / name / "model")
    python = plan.command[0]
    separator = plan.command.index("--")
    script = plan.command[separator - 1]
    patches = tuple(patch for patch in plan.patches if patch.partition("=")[0] in _KEPT_PATCHES)
    command = [python, str(resources.WORKER)]
    for patch in patches:
        command += ["--patch", patch]
    command += ["--script", script]
    for argument in plan.command[separator:]:
        command.append(pass_model_dir if argument == model_dir else argument)
    command += [f"--{TOKENIZE_ONLY_FLAG}", "true"]
    return replace(
        plan,
        name=name,
        runs=runs,
        parallel=replace(plan.parallel, mode=Mode.single, width=Width(Device.cpu, 1)),
        batch=replace(plan.batch, width=1),
        command=tuple(command),
        env={**plan.env, "CUDA_VISIBLE_DEVICES": ""},
        patches=patches,
    )


def read_dataset_event(run: Run) -> TokenizedData | None:
    """Return the data set that the last `dataset_cache` event of a run reports; None without one."""
    dataset = None
    for event in run.events("evidence"):
        if event.data["what"] == "dataset_cache" and "path" in event.data:
            path = Path(str(event.data["path"]))
            dataset = TokenizedData(path, built=event.data.get("value") == "built")
    return dataset


def supports_cache_pass(plan: Plan) -> bool:
    """Return whether the plan's trainer can tokenise before it trains."""
    return plan.config.trainer.family == Family.open_instruct and tokenized_folder(plan) is not None


def find_tokenized_data(plan: Plan) -> Path | None:
    """Return the complete data set that an earlier pass built with the same command.

    None is also returned if a training run built the data set, since no pass is recorded then.
    """
    cache_pass = plan_cache_pass(plan)
    tokenized = tokenized_folder(plan)
    assert tokenized is not None  # plan_cache_pass raises without it
    record = Run(cache_pass.folder)
    dataset = read_dataset_event(record)
    if dataset is None or record.plan.get("command") != list(cache_pass.command):
        return None
    incomplete = [path for path, _ in find_half_written(tokenized)]
    if not dataset.path.is_dir() or dataset.path in incomplete:
        return None
    return dataset.path
