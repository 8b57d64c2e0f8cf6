"""ZeRO's gradients, buckets, gathered weights and step, against what two CPU ranks of DeepSpeed
really hold.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from launch import resources


@pytest.mark.slow
@pytest.mark.parametrize("stage", [pytest.param(2, marks=pytest.mark.thorough), 3])
def test_what_a_rank_holds(stage: int) -> None:
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    script = ["-m", "tests.planning.estimate.zero_memory", str(stage)]
    environ = {**os.environ, "PYTHONPATH": str(resources.ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command, *script],
        cwd=resources.ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    line = next((line for line in done.stdout.splitlines() if "COUNTED " in line), None)
    assert line is not None, done.stderr[-3000:]
    counted = json.loads(line.partition("COUNTED ")[2])
    assert counted["backward"] == pytest.approx(counted["predicted_backward"], rel=0.02)
    assert counted["step"] == pytest.approx(counted["predicted_step"], rel=0.02)
