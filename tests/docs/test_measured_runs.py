"""What docs/ says of runs on GPUs is what the files of benchmarks/ have."""

from __future__ import annotations

import json
from typing import Any

import pytest

from launch import resources

FOLDER = resources.ROOT / "benchmarks"
REFUTED_BY = {  # the key that a planted fault changes
    "seed": {"seed"},
    "rows": {"mixture"},
    "limit": {"max_seq_length"},
    "sampler": {"sampler_weights"},
    "schedule": {"lr_scheduler"},
}
NOISE = 1e-4  # of a loss: flash attention adds its gradients up in another order each time


def read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    return content


def test_a_planted_fault_stopped_its_run_and_a_sound_one_ended() -> None:
    faults = set()
    for run in read("h200_proofs.json")["runs"]:
        fault = run["fault"]
        if fault is None:
            assert (run["exit_code"], run["refuted"]) == (0, [])
            continue
        faults.add(fault)
        assert run["exit_code"] == 3
        assert REFUTED_BY[fault] <= set(run["refuted"])
    assert faults == set(REFUTED_BY)


def test_a_run_ended_with_its_killed_server() -> None:
    (run,) = read("h200_server_ends.json")["runs"]
    assert run["fault"] == "killed"
    assert (run["exit_code"], run["server_processes_left"]) == (1, 0)
    assert run["cause"].startswith("vLLM's server exited")


def test_an_exported_model_has_the_logits_of_olmo_core() -> None:
    """A preset that computes otherwise than the folder says is what `architecture` refutes."""
    equal, other = read("h200_export_logits.json")["models"]
    assert equal["tokens"] > equal["window"]
    assert equal["largest_difference"] < 2e-4 * equal["spread"]
    assert equal["mean_difference_without_window"] > 0.1 * equal["spread"]
    assert other["mean_difference"] > 0.1 * other["spread"]


def test_a_killed_run_went_on_from_its_checkpoint() -> None:
    run = read("h200_killed.json")
    checkpoint = int(run["resumed_from"][-1].removeprefix("step"))
    before, after = run["losses_killed"], run["losses_resumed"]
    repeated = [step for step in before if int(step) > checkpoint]
    assert len(repeated) == 2
    for step, loss in before.items():
        assert after[step] == pytest.approx(loss, rel=NOISE)
    assert run["exit_code"] == 0
    assert set(run["evidence"].values()) == {"proven", None}
