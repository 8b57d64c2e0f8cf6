"""The GPUs that are visible, against a program that answers like nvidia-smi, and what a model takes
of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from launch.check.machine.memory import state_bytes
from launch.host.nvidia import query_gpus
from tests.check.machine.driver import install_driver
from tests.conftest import planned


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (None, ["0", "1", "2"]),
        ("2,0", ["2", "0"]),
        ("1,7,2", ["1"]),
        ("", []),
        ("GPU-1a", ["1"]),
        ("-1", []),
        ("1,1", ["1"]),
    ],
)
def test_visible_cards_are_those_that_cuda_would_show(
    tmp_path: Path, shown: str | None, expected: list[str]
) -> None:
    environ = install_driver(tmp_path, [0, 0, 0]) | (
        {} if shown is None else {"CUDA_VISIBLE_DEVICES": shown}
    )
    assert [gpu.index for gpu in query_gpus(environ).seen] == expected


@pytest.mark.parametrize(
    ("overrides", "gib"),
    [
        (["gpus=1"], 8.03 * 8),  # bf16 weights, gradients and two moments
        (["gpus=8", "parallel=zero1"], 8.03 * (4 + 12 / 8)),
        (["gpus=8", "parallel=zero2"], 8.03 * (2 + 14 / 8)),
        (["gpus=8"], 8.03 * 16 / 8),
        (["gpus=8", "parallel=zero3_offload"], 0),
    ],
)
def test_the_state_of_8b_by_how_it_is_shared(overrides: list[str], gib: float) -> None:
    assert state_bytes(planned("stage=sft", *overrides), 8.03e9)[0] == pytest.approx(gib * 1e9)
