"""Checks before the ranks start that a node's GPUs respond and have no memory errors."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping

from launch.errors import UserError, refusal
from launch.external import run_command
from launch.worker.finding import Fix

_TIMEOUT = 60.0  # seconds; without persistence mode the driver first initialises all GPUs
_QUERY = "--query-gpu=index,ecc.errors.uncorrected.volatile.total"
# What nvidia-smi prints about a GPU that does not respond.
_BROKEN = re.compile(
    r"Unable to determine the device handle.*|.*GPU is lost.*|.*fallen off the bus.*"
)


def check_gpus(environ: Mapping[str, str]) -> None:
    """Check the GPUs with nvidia-smi; nothing is checked where it is not installed.

    Raises UserError: gpu_fault.
    """
    program = shutil.which("nvidia-smi", path=environ.get("PATH"))
    if program is None:
        return
    argv = [program, _QUERY, "--format=csv,noheader,nounits"]
    try:
        done = run_command(argv, timeout=_TIMEOUT)
    except subprocess.TimeoutExpired:
        raise _fault(f"nvidia-smi does not answer within {_TIMEOUT:.0f} s") from None
    match = _BROKEN.search(done.stdout + done.stderr)
    if match:
        raise _fault(match[0].strip())
    rows = [line.split(",") for line in done.stdout.splitlines() if "," in line]
    allocated = environ.get("SLURM_GPUS_ON_NODE", "")
    # Slurm counts each MIG slice as a GPU.
    has_slices = "MIG-" in environ.get("CUDA_VISIBLE_DEVICES", "")
    if rows and allocated.isdigit() and not has_slices and len(rows) < int(allocated):
        listed = f"nvidia-smi lists {len(rows)} of the {allocated} GPUs"
        raise _fault(f"{listed} that Slurm gave this node")
    for index, error_count in rows:
        errors = error_count.strip()
        if errors.isdigit() and int(errors):
            plural = "" if errors == "1" else "s"
            raise _fault(f"GPU {index.strip()} has {errors} uncorrected memory error{plural}")


def _fault(message: str) -> UserError:
    cure = Fix.of(
        "leave this node out (cluster.exclude) and report it, or set {0}", "allow=[gpu_fault]"
    )
    return refusal("gpu_fault", message, None, cure)
