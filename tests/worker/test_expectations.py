"""What a plan asks of the trainer's state: read, compared, and said in one sentence."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from launch.worker.channel import EventWriter
from launch.worker.expectations import (
    STATE,
    UnmetExpectation,
    check_state,
    report_evidence,
)

_ALONE = (
    "requested world_size=2, but the trainer has 1 (the processes did not find each other, "
    "so "
    "each would train alone)"
)
_PATCH = "(without a GPU accelerate needs the patch deepspeed_on_cpu to connect DeepSpeed's ranks)"


def accelerator(distributed: str, world_size: int, zero_stage: int = 0, device: str = "cpu") -> Any:
    """Return what of accelerate's Accelerator is read."""
    plugin = SimpleNamespace(zero_stage=zero_stage) if zero_stage else None
    return SimpleNamespace(
        state=SimpleNamespace(deepspeed_plugin=plugin),
        distributed_type=SimpleNamespace(name=distributed),
        num_processes=world_size,
        device=SimpleNamespace(type=device),
    )


@pytest.mark.parametrize(
    ("requested", "built", "sentences"),
    [
        (
            {"distributed": "DEEPSPEED", "world_size": "2", "zero_stage": "3"},
            accelerator("MULTI_CPU", 2),
            [
                (
                    f"requested distributed=DEEPSPEED, but the trainer has MULTI_CPU {_PATCH} "
                    "[refuted_distributed]"
                ),
                f"requested zero_stage=3, but the trainer has 0 {_PATCH} [refuted_zero_stage]",
            ],
        ),
        ({"world_size": "2"}, accelerator("NO", 1), [f"{_ALONE} [refuted_world_size]"]),
        (
            {"distributed": "NO", "device": "cuda"},
            accelerator("NO", 1),
            [
                (
                    "requested device=cuda, but the trainer has cpu (torch sees no GPU on this "
                    "machine) [refuted_device]"
                )
            ],
        ),
        (
            {"distributed": "DEEPSPEED", "world_size": "8", "zero_stage": "3"},
            accelerator("DEEPSPEED", 8, 2, "cuda"),
            [
                (
                    "requested zero_stage=3, but the trainer has 2 (Accelerator.state) "
                    "[refuted_zero_stage]"
                )
            ],
        ),
        ({"zero_stage": "0", "packing": "none"}, accelerator("NO", 1), []),
        ({}, accelerator("NO", 1), []),
    ],
)
def test_each_mismatch_is_one_sentence(
    requested: dict[str, str], built: Any, sentences: list[str]
) -> None:
    evidence = check_state(built, requested)
    assert [str(finding) for item in evidence if (finding := item.finding(()))] == sentences
    assert {item.what for item in evidence} == requested.keys() & set(STATE)


def test_a_mismatch_that_is_allowed_only_warns(capsys: pytest.CaptureFixture[str]) -> None:
    evidence = check_state(accelerator("NO", 1), {"world_size": "2", "device": "cuda"})
    report_evidence(evidence, {"refuted_world_size", "refuted_device"}, EventWriter(None, 0))
    assert f"launch: warning: {_ALONE} [refuted_world_size], allowed" in capsys.readouterr().err
    with pytest.raises(UnmetExpectation):
        report_evidence(evidence, {"refuted_device"}, EventWriter(None, 0))
    assert capsys.readouterr().err.endswith(
        "[refuted_world_size]; allow=[refuted_world_size] runs it anyway\n"
    )
