from __future__ import annotations

from dataclasses import replace
from typing import Any

from launch.config.schema import Device
from launch.execution.record.outcome import Outcome
from launch.worker.finding import TOO_SHORT
from tests.trials.rollout.cases import PROVEN, falling, gate_result, measured, verdict


def item(what: str, verdict: str | None, requested: str | None = "true", result: Any = "false") -> dict[str, Any]:
    return {"what": what, "requested": requested, "found": result, "verdict": verdict}


def test_everything_proven_passes_and_says_what_is_in_force() -> None:
    result = gate_result("evidence_complete", measured(evidence=[PROVEN, item("liger", None, None, "rms_norm,rope")]))
    assert result is not None and result.level == "pass"
    assert "all 1 proven" in result.message and "liger rms_norm,rope" in result.message


def test_liger_that_was_requested_and_is_not_there_fails() -> None:
    evidence = [PROVEN, item("liger", "refuted", "rms_norm,rope", "none")]
    result = gate_result("evidence_complete", measured(evidence=evidence))
    assert result is not None and result.stops
    assert result.message == "liger=rms_norm,rope was requested, but is none"


def test_what_the_line_allows_is_not_required() -> None:
    evidence = [PROVEN, item("complete_answers", "refuted", "above 10%", "0%")]
    now = measured(evidence=evidence)
    allowing = replace(now, plan=replace(now.plan, config=replace(now.plan.config, allow=["refuted_complete_answers"])))
    result = gate_result("evidence_complete", allowing)
    assert verdict("evidence_complete", now) == "fail"
    assert result is not None and result.level == "pass" and "all 1 proven" in result.message


def test_refuted_is_reported_of_a_run_that_it_ended() -> None:
    dead = Outcome(1, 9.0, 0, None, cause="stopped at the first step")
    assert verdict("evidence_complete", measured([], outcome=dead, evidence=[item("liger", "refuted")])) == "fail"


def test_unproven_fails_for_a_finished_run_alone() -> None:
    unproven = [PROVEN, item("packing", "unproven", "flatten", None)]
    assert verdict("evidence_complete", measured(evidence=unproven)) == "fail"
    dead = Outcome(1, 9.0, 0, None, cause="out of luck")
    assert verdict("evidence_complete", measured(falling(1), outcome=dead, evidence=unproven, requested=9)) is None


def test_what_a_step_or_two_can_not_prove_is_not_required() -> None:
    open_ = {**item("first_update", "unproven", "adapter", None), "how": TOO_SHORT}
    result = gate_result("evidence_complete", measured(evidence=[PROVEN, open_]))
    assert result is not None and result.level == "pass" and "all 1 proven" in result.message


def test_every_rank_must_have_stepped() -> None:
    assert verdict("all_ranks_step", measured(ranks=1)) is None
    assert verdict("all_ranks_step", measured(ranks=4)) == "pass"
    result = gate_result("all_ranks_step", measured(ranks=4, inspected_ranks=[0, 1, 3]))
    assert result is not None and result.stops and "rank 2" in result.message
    assert verdict("all_ranks_step", measured(ranks=2, inspected_ranks=[], trainer="olmo_core_finetune")) == "fail"


def test_several_gpus_talk_through_nccl() -> None:
    def through(backend: str, device: Device = Device.cuda) -> str | None:
        spoken = {"what": "backend", "requested": None, "found": backend, "verdict": None}
        return verdict("all_ranks_step", measured(ranks=2, evidence=[PROVEN, spoken], device=device))

    assert through("cuda:nccl") == "pass"
    assert through("cpu:gloo,cuda:nccl") == "pass"
    assert through("cpu:gloo,cuda:gloo") == "fail"
    assert through("cpu:gloo,cuda:gloo", Device.cpu) == "pass"
    assert "unknown backend" in str(gate_result("all_ranks_step", measured(ranks=2)))
