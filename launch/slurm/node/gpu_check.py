"""The check of a node's GPUs before its ranks start: all that Slurm gave it respond and have no
memory error.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping

from launch.errors import UserError, refusal
from launch.external import run_command
from launch.worker.finding import Fix

_TIMEOUT = 60.0  # seconds; without persistence mode the driver first initialises all cards
_QUERY = "--query-gpu=index,ecc.errors.uncorrected.volatile.total"
# what nvidia-smi prints of a card that does not respond
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
    if broken := _BROKEN.search(done.stdout + done.stderr):
        raise _fault(broken[0].strip())
    cards = [
        [cell.strip() for cell in line.split(",")]
        for line in done.stdout.splitlines()
        if "," in line
    ]
    given = environ.get("SLURM_GPUS_ON_NODE", "")
    in_slices = "MIG-" in environ.get("CUDA_VISIBLE_DEVICES", "")  # of which Slurm counts each
    if cards and given.isdigit() and len(cards) < int(given) and not in_slices:
        raise _fault(f"nvidia-smi lists {len(cards)} of the {given} GPUs that Slurm gave this node")
    for index, errors in cards:
        if errors.isdigit() and int(errors):
            raise _fault(
                f"GPU {index} has {errors} uncorrected memory error{'s' * (errors != '1')}"
            )


def _fault(message: str) -> UserError:
    cure = Fix.of(
        "leave this node out (cluster.exclude) and report it, or set {0}", "allow=[gpu_fault]"
    )
    return refusal("gpu_fault", message, None, cure)
