from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from launch.config.recipe_keys import Precision
from launch.config.schema import Device
from launch.planning.build import build_plan
from launch.planning.plan import Plan
from launch.trials.card_rate import card_name, measure_card_rate
from tests.conftest import composed, fixed_machine


@pytest.fixture(scope="module")
def plan() -> Plan:
    return build_plan(composed("stage=demo", "trainer=trl_sft", "device=cpu"), fixed_machine())


def fake_python(tmp_path: Path, script: str) -> str:
    """A program that takes the place of the trainer's interpreter."""
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return str(program)


def test_the_rate_is_what_the_trainers_interpreter_says(plan: Plan, tmp_path: Path) -> None:
    output = json.dumps({"flops": 5e10, "size": 1024, "torch": "2.13.0"})
    python = fake_python(tmp_path, f"echo a warning; echo \"$@\" >&2; echo '{output}'")
    rate = measure_card_rate(replace(plan, command=(python, *plan.command[1:])), "a processor")
    assert (rate.measured_tflops, rate.matrix, rate.torch, rate.message) == (
        0.05,
        1024,
        "2.13.0",
        None,
    )
    assert (rate.device, rate.precision, rate.card) == (Device.cpu, Precision.fp32, None)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 'No module named torch' >&2; exit 1", "No module named torch"),
        ("exit 3", "exit status 3"),
        ("echo", ""),
    ],
)
def test_a_rate_that_cannot_be_measured_says_why(
    plan: Plan, tmp_path: Path, script: str, why: str
) -> None:
    python = fake_python(tmp_path, script)
    rate = measure_card_rate(replace(plan, command=(python, *plan.command[1:])), "a processor")
    assert rate.measured_tflops is None and rate.message and why in rate.message
    missing = measure_card_rate(
        replace(plan, command=("/nowhere/python", *plan.command[1:])), "a processor"
    )
    assert (
        missing.measured_tflops is None and missing.message and "/nowhere/python" in missing.message
    )


def test_what_a_plan_runs_on_has_a_name(plan: Plan) -> None:
    assert card_name(plan).endswith(" cores")
    words = ("stage=sft", "trainer=trl_sft", "data.mix=[{name: some/data}]", "gpus=1")
    for card, name in (("NVIDIA H200", "NVIDIA H200"), (None, "unknown")):
        assert card_name(build_plan(composed(*words), replace(fixed_machine(), card=card))) == name
