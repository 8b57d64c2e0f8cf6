"""What every gate has in common."""

from __future__ import annotations

import json

from launch.config.trials import GatesConfig
from launch.execution.record.outcome import Outcome
from launch.trials.rollout.gates import GateCase
from launch.trials.rollout.gates_across import GATES, apply_gates, gate_json
from tests.trials.rollout.cases import gate_result, measured


def test_ids_are_stable() -> None:
    """Users have them in `allow=`, and records in `gate`."""
    assert {gate.id for gate in GATES} >= {
        *("finished_steps", "loss_finite", "memory_room", "evidence_complete", "all_ranks_step", "grad_norm_sane"),
        *("loss_falls", "first_dpo_loss", "reference_cached", "reward_accuracy", "chosen_above_rejected"),
        *("margins_finite", "same_data", "same_schedule", "loss_parity", "throughput_steady", "padding", "scaling"),
    }


def test_every_threshold_is_of_a_gate() -> None:
    assert set(GatesConfig.__dataclass_fields__) <= {gate.id for gate in GATES}


def test_allow_is_visible_and_stops_nothing() -> None:
    red = measured([1.0, float("nan")])
    plain = gate_result("loss_finite", red)
    allowed = gate_result("loss_finite", red, allow=["loss_finite"])
    assert plain is not None and plain.stops
    assert allowed is not None and not allowed.stops
    assert allowed.level == "fail" and allowed.allowed is True


def test_a_width_that_died_is_not_judged_by_what_it_did_not_do() -> None:
    dead = measured([2.0, 2.1], outcome=Outcome(1, 5.0, 2, 2.1, cause="rank 0: boom"), requested=10)
    ids = [result.id for result in apply_gates(GateCase(dead, measured(), GatesConfig()))]
    assert ids[0] == "finished_steps"
    assert not {"loss_falls", "loss_parity", "scaling", "throughput_steady"} & set(ids)


def test_a_judgement_is_json() -> None:
    for result in apply_gates(GateCase(measured(), None, GatesConfig())):
        as_json = json.loads(json.dumps(gate_json(result)))
        assert as_json["verdict"] in ("pass", "warn", "fail")
        assert as_json["message"] and as_json["reason"] and as_json["source"]


def test_the_gates_of_dpo_leave_sft_alone() -> None:
    ids = {result.id for result in apply_gates(GateCase(measured(), None, GatesConfig()))}
    assert not ids & {"first_dpo_loss", "reward_accuracy", "reference_cached"}
