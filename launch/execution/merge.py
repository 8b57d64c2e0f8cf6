"""Merge an adapter into the model that it was trained on, and prove that the merged model computes
the same.
"""

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
from launch.planning.estimate.shape import read_shape
from launch.planning.identity import TOKENIZER_FILES, DigestCache
from launch.planning.lora import Adapter, check_adapter
from launch.planning.model_folder import find_model_faults
from launch.planning.saved_model import digest_model
from launch.worker.json_codec import SCHEMA_VERSION, from_json, versioned
from launch.worker.merging import MergeRequest

RECORD = "merge.json"  # in the folder of the merged model
# Largest mean difference of logits, as a share of their standard deviation: rounding of the type
# that the merged weights are stored in, and what 4 bits take away.
TOLERANCES = {"float32": 1e-4, "bfloat16": 0.02, "float16": 0.005}
QUANTIZED_TOLERANCE = 0.25


@dataclass(frozen=True)
class Training:
    """How an adapter was trained, as far as merging depends on it."""

    python: str  # the interpreter that has its libraries
    dtype: str  # of the base: bfloat16, float32, or auto for the checkpoint's own
    quantized: bool  # whether the base was in 4 bit
    # tokens of the run's first samples; empty when they are unknown
    rows: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Merged:
    """A merged model, and how far its logits are from those of base + adapter."""

    folder: Path
    error: float  # mean difference of logits, as a share of their standard deviation
    tolerance: float
    adapter_effect: float  # the same between the base with and without the adapter
    tokens: int  # that were compared
    built: bool  # False if it existed already
    quantized_error: float | None = None  # against the 4-bit base + adapter that was trained


def merge_adapter(adapter: Adapter, training: Training) -> Merged:
    """Merge `adapter` into `adapter.merged`; a merged model of the same adapter is kept.

    Raises UserError: adapter_base, bad_adapter, model_changed, base_changed, merged_folder_taken,
    missing_packages, merge_failed, merge_differs.
    """
    check_adapter(adapter, read_shape(adapter.local_base) if adapter.local_base else None)
    refuse_changes(adapter.folder.parent)
    target = adapter.merged
    digests = DigestCache(target / "digests.json")
    digest, existing = digests.of(adapter.folder), _read_record(target)
    is_same = existing is not None and existing.get("files") in (
        None,
        digest_model(target, digests.of),
    )
    if (
        existing is not None
        and is_same
        and existing.get("adapter") == digest
        and not find_model_faults(target)
    ):
        return _as_merged(target, existing["report"], built=False)
    if target.exists() and existing is None:
        message = f"{target} exists and was not written by launch merge"
        raise refusal("merged_folder_taken", message, None, "rename it, or remove it")
    needed = ["torch", "transformers", "peft", *(["bitsandbytes"] if training.quantized else [])]
    require_modules(training.python, needed)
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        report = _run(adapter, training, staging)
        merged = _as_merged(target, report, built=True)
        refuse_difference(merged)
        made = {
            "adapter": digest,
            "base": adapter.base,
            "files": digest_model(staging, DigestCache(target).of),
        }
        write_json(staging / RECORD, versioned({**made, "report": report}))
        staging.chmod(0o755)  # mkdtemp's 0700 would hide the model from other users
        if target.exists():
            shutil.rmtree(target)
        staging.rename(target)
        return merged
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def read_training(adapter: Adapter) -> Training:
    """Return how the run trained that an adapter is of; defaults for an adapter without a run's
    whole plan.json.
    """
    run = Run(adapter.folder.parent)
    try:
        python = str(run.plan["command"][0])
        precision = {"bf16": "bfloat16", "fp32": "float32"}.get(
            run.plan["parallel"]["precision"], "auto"
        )
    except (LookupError, TypeError):
        return Training(sys.executable, "auto", quantized=False, rows=())
    rows = next((event.data["rows"] for event in run.events("first_rows")), ())
    return Training(
        python if shutil.which(python) else sys.executable,
        str(run.flags.get("dtype") or precision),
        quantized=bool(run.flags.get("load_in_4bit") or run.flags.get("use_qlora")),
        rows=tuple(map(tuple, rows)),
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


def _run(adapter: Adapter, training: Training, staging: Path) -> dict[str, Any]:
    request = MergeRequest(
        adapter.folder,
        staging,
        training.rows,
        training.dtype,
        training.quantized,
        copied=TOKENIZER_FILES,
    )
    argv = worker_command(training.python, "merging", request)
    environ = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
    done = run_command(argv, env=environ)
    if done.returncode:
        message = f"merging {adapter.folder} into {adapter.base} failed: {failure_reason(done)}"
        raise refusal("merge_failed", message)
    report: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return report


def refuse_difference(merged: Merged) -> None:
    """Raise UserError (merge_differs) for a merged model that computes something else than base +
    adapter.
    """
    errors = [(merged.error, merged.tolerance, "base + adapter")]
    if merged.quantized_error is not None:
        errors.append((merged.quantized_error, QUANTIZED_TOLERANCE, "the 4-bit base + adapter"))
    for error, tolerance, other in errors:
        if not error <= tolerance:
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
        raise refusal(
            "no_interpreter", f"{python} does not answer: {error}", where or "python"
        ) from error
    if missing:
        message = f"{python} lacks {', '.join(missing)}"
        raise refusal("missing_packages", message, where, f"install {' '.join(missing)} there")


def _as_merged(folder: Path, report: Mapping[str, Any], *, built: bool) -> Merged:
    tolerance = TOLERANCES.get(report["dtype"], TOLERANCES["bfloat16"])
    return from_json(
        Merged, {**report, "folder": str(folder), "tolerance": tolerance, "built": built}
    )


def _read_record(folder: Path) -> dict[str, Any] | None:
    record = read_json_object(folder / RECORD)
    return record if record.get("schema_version") == SCHEMA_VERSION else None
