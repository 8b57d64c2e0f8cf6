"""Between two stages: the GPUs of the next one are waited for, as nvidia-smi shows them; what an
evaluation decides.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from launch.check.machine import rules
from launch.check.machine.rules import wait_for_gpus
from launch.execution.display import PlainDisplay
from launch.pipelines import engine
from launch.planning.plan import Plan
from tests.conftest import planned

# a card that the stage before holds for so many queries
SMI = """#!/bin/sh
case "$1" in
--query-gpu*)
    left=$(cat {left})
    echo $((left > 0 ? left - 1 : 0)) >{left}
    echo "0, GPU-0aaa, NVIDIA H100 80GB HBM3, 81559, $((left > 0 ? 70000 : 4)), 0, 570.86" ;;
esac
"""


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    program = tmp_path / "nvidia-smi"
    program.write_text(SMI.format(left=tmp_path / "left"))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(rules, "_POLL", 0.01)
    return planned("stage=sft", "gpus=1")


def test_the_memory_of_the_stage_before_is_waited_for(
    plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "left").write_text("3")
    wait_for_gpus(plan, print)
    assert (tmp_path / "left").read_text().strip() == "0"
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith(
        "waiting for the GPU memory of the run before: GPU 0: 70000 of 81559 MiB in use"
    )


def test_free_memory_is_not_waited_for(
    plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "left").write_text("0")
    wait_for_gpus(plan, print)
    assert capsys.readouterr().out == ""


def test_it_waits_no_longer_than_its_patience(plan: Plan, tmp_path: Path) -> None:
    """Preflight then names what holds the memory."""
    (tmp_path / "left").write_text("1000000")
    wait_for_gpus(plan, print, patience=0.2)
    assert 999_000 < int((tmp_path / "left").read_text()) < 1_000_000


JUDGED = {
    "better": ([{"task": "a", "models": [{}, {"verdict_against_previous": "better"}]}], 0, ""),
    "worse": (
        [
            {"task": "a", "models": [{}, {"verdict_against_previous": "worse"}], "broken": []},
            {"task": "b", "models": [{}]},
        ],
        3,
        "is worse than the model that it started from on a",
    ),
    "broken": (
        [
            {
                "task": "a",
                "models": [{}, {"verdict_against_previous": "better"}],
                "broken": ["equal answers"],
            }
        ],
        3,
        "has a broken evaluation on a",
    ),
    "nothing": ([], 3, "was not evaluated"),
}


@pytest.mark.parametrize("case", JUDGED)
def test_an_evaluation_ends_a_pipeline(
    case: str, plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks, code, sentence = JUDGED[case]
    plan = replace(plan, runs=tmp_path / "runs")
    plan.folder.mkdir(parents=True)
    (plan.folder / "evaluation.json").write_text(json.dumps({"schema_version": 1, "tasks": tasks}))
    assert engine._judge(plan, PlainDisplay(sys.stdout)) == code
    assert sentence in capsys.readouterr().out
