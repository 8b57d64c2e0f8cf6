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

_PATCH = "the patch deepspeed_on_cpu"


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
    ("requested", "built", "expected"),
    [
        (
            {"distributed": "DEEPSPEED", "world_size": "2", "zero_stage": "3"},
            accelerator("MULTI_CPU", 2),
            [
                ("refuted_distributed", ("DEEPSPEED", "MULTI_CPU", _PATCH)),
                ("refuted_zero_stage", ("stage 3", "stage 0", _PATCH)),
            ],
        ),
        (
            {"world_size": "2"},
            accelerator("NO", 1),
            [("refuted_world_size", ("2 ranks", "counts 1", "would train alone"))],
        ),
        (
            {"distributed": "NO", "device": "cuda"},
            accelerator("NO", 1),
            [("refuted_device", ("on cuda", "uses cpu", "torch sees no GPU"))],
        ),
        (
            {"distributed": "DEEPSPEED", "world_size": "8", "zero_stage": "3"},
            accelerator("DEEPSPEED", 8, 2, "cuda"),
            [("refuted_zero_stage", ("stage 3", "stage 2", "(seen in Accelerator.state)"))],
        ),
        ({"zero_stage": "0", "packing": "none"}, accelerator("NO", 1), []),
        ({}, accelerator("NO", 1), []),
    ],
)
def test_each_mismatch_is_one_sentence(
    requested: dict[str, str], built: Any, expected: list[tuple[str, tuple[str, ...]]]
) -> None:
    evidence = check_state(built, requested)
    findings = [item.finding(()) for item in evidence]
    shown = [finding for finding in findings if finding is not None]
    assert [finding.id for finding in shown] == [id for id, _ in expected]
    for finding, (_, parts) in zip(shown, expected, strict=True):
        assert finding.cure is not None
        assert all(part in finding.message for part in parts), finding.message
    assert {item.what for item in evidence} == requested.keys() & set(STATE)


def test_a_mismatch_that_is_allowed_only_warns(capsys: pytest.CaptureFixture[str]) -> None:
    evidence = check_state(accelerator("NO", 1), {"world_size": "2", "device": "cuda"})
    report_evidence(evidence, {"refuted_world_size", "refuted_device"}, EventWriter(None, 0))
    warned = capsys.readouterr().err
    assert "launch: warning: the plan has 2 ranks, and the trainer counts 1: " in warned
    assert "[refuted_world_size], allowed" in warned
    with pytest.raises(UnmetExpectation):
        report_evidence(evidence, {"refuted_device"}, EventWriter(None, 0))
    stopped = capsys.readouterr().err
    assert stopped.endswith("; allow=[refuted_world_size] runs it anyway\n")
    assert stopped.count("refuted_world_size") == 1
