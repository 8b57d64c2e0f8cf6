"""What nvidia-smi reports of a node before its ranks start, and what counts as a broken GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch.errors import UserError
from launch.slurm.node.gpu_check import check_gpus


def environ(folder: Path, does: str, given: str = "2") -> dict[str, str]:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{does}\n")
    program.chmod(0o755)
    return {"PATH": str(folder), "SLURM_GPUS_ON_NODE": given}


@pytest.mark.parametrize(
    ("does", "expected"),
    [
        ("echo '0, 0'; echo '1, 3'", "GPU 1 has 3 uncorrected memory errors"),
        ("echo '0, 0'", "nvidia-smi lists 1 of the 2 GPUs that Slurm gave this node"),
        (
            (
                "echo 'Unable to determine the device handle for GPU0000:03:00.0: Unknown Error'; "
                "exit "
                "255"
            ),
            "GPU0000:03:00.0",
        ),
    ],
)
def test_a_broken_gpu_is_found(does: str, expected: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="gpu_fault") as caught:
        check_gpus(environ(tmp_path, does))
    assert expected in caught.value.problems[0].message


@pytest.mark.parametrize(
    "does", ["echo '0, 0'; echo '1, [N/A]'", "echo 'no permission' >&2; exit 4"]
)
def test_what_proves_no_fault(does: str, tmp_path: Path) -> None:
    check_gpus(environ(tmp_path, does))
    check_gpus({"PATH": str(tmp_path / "empty")})
    check_gpus(
        {**environ(tmp_path, "echo '0, 0'", given="7"), "CUDA_VISIBLE_DEVICES": "MIG-1,MIG-2"}
    )
