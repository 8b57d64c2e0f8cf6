"""Merge an adapter into its base model, and check that the merged model computes the same."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.errors import UserError, refusal
from launch.execution.completion import refuse_changes
from launch.execution.record.outcome import folder_status
from launch.execution.record.run import Run
from launch.external import failure_reason, run_command
from launch.files import read_json_object, write_json
from launch.host.interpreter import InterpreterError, missing_modules, worker_command
from launch.planning.adapter import Adapter, check_adapter
from launch.planning.digest_cache import DigestCache, open_digests
from launch.planning.estimate.shape import read_shape
from launch.planning.identity import TOKENIZER_FILES
from launch.planning.model_folder import find_model_faults
from launch.planning.saved_model import digest_model
from launch.worker.json_codec import SCHEMA_VERSION, from_json, versioned
from launch.worker.merging import MergeRequest

RECORD = "merge.json"  # a file in the folder of the merged model
# The largest mean difference of logits that is accepted, as a share of their standard deviation.
# The merged weights are rounded to their type; an adapter's base in 4 bit is much less exact.
TOLERANCES = {"float32": 1e-4, "bfloat16": 0.02, "float16": 0.005}
QUANTIZED_TOLERANCE = 0.25


@dataclass(frozen=True)
class Training:
    """The settings of an adapter's training that a merge depends on."""

    python: str  # the interpreter that has its libraries
    dtype: str  # type of the base: bfloat16, float32, or auto for the one of its checkpoint
    quantized: bool  # whether the base was in 4 bit
    # The token ids of the run's first samples; empty if they are unknown.
    rows: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Merged:
    """A merged model, and how far its logits are from those of base + adapter."""

    folder: Path
    error: float  # mean difference of logits, as a share of their standard deviation
    tolerance: float
    adapter_effect: float  # the same measure between the base with and without the adapter
    tokens: int  # number of tokens that were compared
    built: bool  # False if it existed already
    # The same measure between the merged model and the 4-bit base + adapter that was trained.
    quantized_error: float | None = None


def merge_adapter(adapter: Adapter, training: Training) -> Merged:
    """Merge `adapter` into `adapter.merged`; a merged model of the same adapter is kept.

    Raises UserError: adapter_base, bad_adapter, model_changed, base_changed, merged_folder_taken,
    missing_packages, merge_failed, merge_differs.
    """
    check_adapter(adapter, read_shape(adapter.local_base) if adapter.local_base else None)
    refuse_changes(adapter.folder.parent)
    target = adapter.merged
    digests = open_digests(adapter.folder.parent)
    adapter_digest = digests.of(adapter.folder)
    base_digest = digests.of(adapter.local_base) if adapter.local_base else None
    record = _read_record(target)
    made_of = (adapter_digest, base_digest)
    if record is not None and (record.get("adapter"), record.get("base_digest")) == made_of:
        is_unchanged = record.get("files") == digest_model(target, digests.of)
        digests.save()
        before = _read_merged(target, record)
        if before is not None and is_unchanged and not find_model_faults(target):
            return before
    if target.exists() and record is None:
        message = f"{target} exists and was not written by launch merge"
        raise refusal("merged_folder_taken", message, None, "rename it, or remove it")
    required_modules = ["torch", "transformers", "peft"]
    if training.quantized:
        required_modules.append("bitsandbytes")
    require_modules(training.python, required_modules)
    _remove_abandoned(target)
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    held = _lock_folder(staging)
    try:
        report = _run_merge(adapter, training, staging)
        merged = _as_merged(target, report, built=True)
        refuse_difference(merged)
        _refuse_change_meanwhile(adapter, made_of)
        new_record = {
            "adapter": adapter_digest,
            "base": adapter.base,
            "base_digest": base_digest,
            # The files are renamed below, so that their paths are kept out of the runs' cache.
            "files": digest_model(staging, DigestCache(staging).of),
            "report": report,
        }
        write_json(staging / RECORD, versioned(new_record))
        staging.chmod(0o755)  # mkdtemp's 0700 would hide the model from other users
        if target.exists():
            shutil.rmtree(target)
        staging.rename(target)
        digests.save()
        return merged
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        if held is not None:
            os.close(held)


def _refuse_change_meanwhile(adapter: Adapter, made_of: tuple[str | None, ...]) -> None:
    """Refuse a merge whose adapter or base was replaced while it was loaded.

    `made_of` is the digest of each before. Raises UserError: merge_failed.
    """
    digests = open_digests(adapter.folder.parent)
    for folder, before in zip((adapter.folder, adapter.local_base), made_of, strict=True):
        if folder is not None and digests.of(folder) != before:
            message = f"{folder} was changed while it was merged"
            raise refusal("merge_failed", message, None, "merge again")


def _remove_abandoned(target: Path) -> None:
    """Remove the unfinished models of merges whose launcher was killed."""
    for folder in target.parent.glob(f".{target.name}.*"):
        # One that is empty may belong to a merge that has not locked it yet.
        is_ours = folder.is_dir() and not folder.is_symlink() and any(folder.iterdir())
        held = _lock_folder(folder) if is_ours else None
        if held is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(held)


def _lock_folder(folder: Path) -> int | None:
    """Lock a folder for as long as this process lives; None if another process holds the lock, or
    the file system has none.
    """
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def read_training(adapter: Adapter) -> Training:
    """Return how an adapter was trained, from the plan.json of its run; defaults without one."""
    run = Run(adapter.folder.parent)
    try:
        python = str(run.plan["command"][0])
        precision = run.plan["parallel"]["precision"]
        precision_dtype = {"bf16": "bfloat16", "fp32": "float32"}.get(precision, "auto")
    except (LookupError, TypeError):
        return Training(sys.executable, "auto", quantized=False, rows=())
    rows = next((event.data["rows"] for event in run.events("first_rows")), ())
    return Training(
        python if shutil.which(python) else sys.executable,
        str(run.flags.get("dtype") or precision_dtype),
        quantized=bool(run.flags.get("load_in_4bit") or run.flags.get("use_qlora")),
        rows=tuple(tuple(row) for row in rows),
    )


def refuse_unfinished(run: Path) -> None:
    """Refuse a run whose adapter may be half written. Raises UserError: merge_unfinished,
    other_format.
    """
    problem = Run(run).other_format
    if problem is not None:
        raise UserError(problem)
    status = folder_status(run)
    if status != "done":
        message = f"the run in {run} is {status}, so its adapter may be incomplete"
        raise refusal("merge_unfinished", message, None, "start it again to its end, then merge")


def _run_merge(adapter: Adapter, training: Training, staging: Path) -> dict[str, Any]:
    """Merge in the run's Python, into the folder `staging`; return the worker's report."""
    request = MergeRequest(
        adapter.folder,
        staging,
        training.rows,
        training.dtype,
        training.quantized,
        copied=TOKENIZER_FILES,
    )
    argv = worker_command(training.python, "merging", request)
    environ = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "PYTHONUTF8": "1"}
    done = run_command(argv, env=environ)
    if done.returncode:
        message = f"merging {adapter.folder} into {adapter.base} failed: {failure_reason(done)}"
        raise refusal("merge_failed", message)
    report: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return report


def refuse_difference(merged: Merged) -> None:
    """Raise UserError (merge_differs) for a merged model whose logits are not those of base +
    adapter.
    """
    errors = [(merged.error, merged.tolerance, "base + adapter")]
    if merged.quantized_error is not None:
        errors.append((merged.quantized_error, QUANTIZED_TOLERANCE, "the 4-bit base + adapter"))
    for error, tolerance, other in errors:
        if not error <= tolerance:  # an error may be NaN, which is never smaller
            message = (
                f"the merged model's logits differ from those of {other} by {error:.2g}, "
                f"above {tolerance:g}"
            )
            cure = "use the adapter on its base; this model was not kept"
            raise refusal("merge_differs", message, None, cure)


def require_modules(python: str, names: Sequence[str], where: str | None = None) -> None:
    """Refuse an interpreter that lacks a module. Raises UserError: no_interpreter,
    missing_packages.
    """
    try:
        missing = missing_modules(python, names)
    except InterpreterError as error:
        message = f"{python} does not answer: {error}"
        raise refusal("no_interpreter", message, where or "python") from error
    if missing:
        message = f"{python} lacks {', '.join(missing)}"
        raise refusal("missing_packages", message, where, f"install {' '.join(missing)} there")


def _as_merged(folder: Path, report: Mapping[str, Any], *, built: bool) -> Merged:
    tolerance = TOLERANCES.get(report["dtype"], TOLERANCES["bfloat16"])
    fields = {**report, "folder": str(folder), "tolerance": tolerance, "built": built}
    return from_json(Merged, fields)


def _read_merged(folder: Path, record: Mapping[str, Any]) -> Merged | None:
    """Return the merged model that a record describes; None if the record is damaged."""
    try:
        return _as_merged(folder, record["report"], built=False)
    except (LookupError, TypeError, ValueError):
        return None


def _read_record(folder: Path) -> dict[str, Any] | None:
    record = read_json_object(folder / RECORD)
    return record if record.get("schema_version") == SCHEMA_VERSION else None
