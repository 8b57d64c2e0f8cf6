"""A run is done after every planned step, with a complete model and all requested evidence."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from launch.digests import hash_file
from launch.execution.completion import (
    add_validation,
    check_first_loss,
    keep_finished_work,
    verify_completion,
    verify_evidence,
    verify_inputs,
)
from launch.execution.record.attempts import begin_attempt
from launch.execution.record.evidence import merge_events
from launch.execution.record.folder import RunFolder
from launch.execution.record.outcome import Outcome
from launch.execution.record.run import Run
from launch.planning.plan import Plan
from launch.planning.read_files import LoadedFiles, ReadFile, ReadFiles
from launch.worker.evidence import PROVEN, REFUTED, Evidence
from launch.worker.opened import file_state
from tests.conftest import fixed_machine, planned
from tests.execution.record.records import append, event

Judge = Callable[..., Outcome]


@pytest.fixture
def judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Judge:
    """What becomes of an exit status 0 after some steps, with a complete model; the trainer
    reported a total.
    """

    def verify(steps: int, total: int | None, *overrides: str) -> Outcome:
        events = tmp_path / "events.jsonl"
        events.unlink(missing_ok=True)
        append(events, [{"kind": "phase"}])
        if total:
            append(events, [event("total_steps", 1.0, steps=total)])
        plan = planned("stage=demo", "trainer=trl_sft", *overrides, machine=fixed_machine(tmp_path))
        return verify_completion(Outcome(0, 1.0, steps, 0.5), plan, Run(tmp_path))

    monkeypatch.setattr(Plan, "find_output_faults", lambda plan: [])
    return verify


@pytest.mark.parametrize(
    ("steps", "total", "override", "exit_code"),
    [
        (10, 10, "gpus=0", 0),
        (9, 10, "gpus=0", 1),
        (0, 10, "gpus=0", 1),
        (0, None, "recipe.max_steps=null", 1),
        (3, None, "recipe.max_steps=null", 0),
        (3, None, "recipe.max_steps=4", 1),
        (8, 10, "flags.logging_steps=4", 0),  # steps 9 and 10 are not logged
        (4, 10, "flags.logging_steps=4", 1),
    ],
)
def test_done_needs_every_planned_step(
    judge: Judge, steps: int, total: int | None, override: str, exit_code: int
) -> None:
    outcome = judge(steps, total, override)
    assert outcome.exit_code == exit_code
    if exit_code:
        assert outcome.cause_id == "too_few_steps" and f"after {steps}" in str(outcome.cause)
    else:
        assert outcome.planned_steps == total


@pytest.mark.parametrize(
    ("steps", "cause_id"),
    [
        ((6, 6, 6), None),
        ((6, 6, 4), "not_evaluated"),
        ((4, 6, 6), "too_few_steps"),  # of an earlier attempt
        ((None, 6, 6), "too_few_steps"),
        ((None, 10, 10), None),
        ((None, 10, None), "not_evaluated"),
    ],
)
def test_a_run_that_stops_early_is_done_and_one_without_its_last_evaluation_says_so(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    steps: tuple[int | None, int, int | None],
    cause_id: str | None,
) -> None:
    """`steps`: where the worker reported an early stop, how many were done, and which was evaluated
    last.
    """
    stopped_at, done, evaluated = steps
    monkeypatch.setattr(Plan, "find_output_faults", lambda plan: [])
    words = (
        "data.validation=0.1",
        "recipe.eval_steps=2",
        "recipe.checkpoint_steps=2",
        "recipe.early_stop=1",
    )
    plan = planned("stage=demo", "trainer=trl_sft", *words, machine=fixed_machine(tmp_path))
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    append(folder.events, [event("total_steps", 1.0, steps=10)])
    if stopped_at:
        stop = {"step": stopped_at, "best_step": 2, "best_loss": 1.0, "evaluations": 1}
        append(folder.events, [event("early_stop", 2.0, **stop)])
    if evaluated:
        folder.metrics.write_text(
            json.dumps({"step": evaluated, "eval_loss": 1.5}) + "\n", encoding="utf-8"
        )
    run = Run(folder.path)
    outcome = add_validation(verify_completion(Outcome(0, 1.0, done, 0.5), plan, run), plan, run)
    is_unmeasured = cause_id == "not_evaluated"
    assert (outcome.exit_code, outcome.cause_id) == (
        (0, None) if is_unmeasured else (1 if cause_id else 0, cause_id)
    )
    assert (f"did not evaluate its last step, {done}" in str(outcome.afterwards)) == is_unmeasured
    if not cause_id and stopped_at:
        assert outcome.validation is not None
        assert outcome.validation.early_stop == (
            "stopped early at step 6: 1 evaluation without an eval_loss below 1.0000 (step 2)"
        )


@pytest.mark.parametrize(
    ("recorded", "interval", "resumed", "exit_code"),
    [
        ([*range(1, 21), *range(47, 61)], 1, [None, "checkpoint-46"], 1),  # this was checkpoint-20
        ([*range(2, 61)], 1, [None, None], 1),
        ([*range(1, 61)], 1, [None, "checkpoint-20", "checkpoint-40"], 0),
        # written after the launcher was killed
        ([*range(1, 18), *range(21, 61)], 1, [None, "checkpoint-20"], 0),
        ([*range(1, 18), *range(21, 61)], 1, [None, "checkpoint-10"], 1),
        ([*range(1, 8), *range(21, 61)], 1, [None, "checkpoint-20"], 0),
        ([*range(1, 8), *range(22, 61)], 1, [None, "checkpoint-21"], 1),
        ([*range(5, 61, 5)], 5, [None, "checkpoint-20"], 0),
        ([*range(5, 26, 5), *range(35, 61, 5)], 5, [None, "checkpoint-20"], 1),
        # one attempt counts its steps itself; lines of its log may be lost
        ([1, 60], 1, [None], 0),
    ],
)
def test_every_step_of_a_resumed_run_is_in_the_record_of_an_attempt(  # noqa: PLR0917
    judge: Judge,
    tmp_path: Path,
    recorded: list[int],
    interval: int,
    resumed: list[str | None],
    exit_code: int,
) -> None:
    lines = "".join(json.dumps({"step": step, "loss": 1.0}) + "\n" for step in recorded)
    (tmp_path / "metrics.jsonl").write_text(lines, encoding="utf-8")
    attempts = [{"attempt": number, "resumed_from": name} for number, name in enumerate(resumed, 1)]
    (tmp_path / "attempts.jsonl").write_text(
        "".join(json.dumps(one) + "\n" for one in attempts), encoding="utf-8"
    )
    outcome = judge(60, 60, f"flags.logging_steps={interval}", "recipe.checkpoint_steps=10")
    assert outcome.exit_code == exit_code
    assert exit_code == 0 or (
        outcome.cause_id == "too_few_steps" and "no attempt recorded" in str(outcome.cause)
    )


def test_an_earlier_failure_stays() -> None:
    plan = planned("stage=demo", "trainer=trl_sft")
    failed = Outcome(1, 1.0, 0, None, cause="a reason")
    assert verify_completion(failed, plan, Run(Path("/no/such/run"))) == failed
    assert verify_evidence(failed, (), ()) == failed


@pytest.mark.parametrize("verdict", ["refuted", "unproven"])
def test_requested_evidence_that_is_not_proven_at_the_end_is_no_success(verdict: str) -> None:
    proven = Evidence("dtype", "bf16", None, "bf16", "proven")
    item = Evidence("liger", None, "somewhere", "rms_norm", verdict)
    done = Outcome(0, 1.0, 5, 0.5)
    outcome = verify_evidence(done, (proven, item), [])
    assert (outcome.exit_code, outcome.cause_id) == (3, f"{verdict}_liger")
    assert f"allow=[{verdict}_liger]" in str(outcome.cause)
    assert verify_evidence(done, (proven, item), [f"{verdict}_liger"]) == done
    assert verify_evidence(done, (proven, Evidence("balance", 2, None)), []) == done


def test_settings_that_the_trainer_never_reached_are_unmet_and_those_nothing_checks_are_not() -> (
    None
):
    done = Outcome(0, 1.0, 5, 0.5)
    assert (
        verify_evidence(done, merge_events([], {"grad_clip": "1.0"}, inspects=True), []).exit_code
        == 3
    )
    assert verify_evidence(done, merge_events([], {"grad_clip": "1.0"}, inspects=False), []) == done


@pytest.mark.parametrize(
    ("outcome", "saved_at", "verdict", "is_kept"),
    [
        # the last evaluation
        (Outcome(1, 1.0, 10, 0.5, cause="rank 0: KeyError: 'eval_loss'"), 10, "proven", True),
        (
            Outcome(1, 1.0, 10, 0.5, cause="rank 0: HfHubHTTPError: 401", cure="log in"),
            10,
            "proven",
            True,
        ),
        (
            Outcome(3, 1.0, 10, 0.5, cause="full", cause_id="disk", guard={"id": "disk"}),
            10,
            "proven",
            True,
        ),
        (
            Outcome(3, 1.0, 10, 0.5, cause="hangs", cause_id="stall", guard={"id": "stall"}),
            10,
            "proven",
            True,
        ),
        # the last step was not logged
        (Outcome(1, 1.0, 9, 0.5, cause="rank 0: killed"), 10, "proven", True),
        (Outcome(1, 1.0, 10, 0.5, cause="killed while it saved"), None, "proven", False),
        (Outcome(1, 1.0, 6, 0.5, cause="killed"), 6, "proven", False),  # of ten steps
        (
            Outcome(3, 1.0, 10, 0.5, cause="nan", cause_id="non_finite", guard={"id": "x"}),
            10,
            "proven",
            False,
        ),
        (Outcome(3, 1.0, 10, 0.5, cause="a finding"), 10, "refuted", False),
        (Outcome(130, 1.0, 10, 0.5, cause="interrupted by SIGINT"), 10, "proven", False),
    ],
)
def test_a_failure_after_the_model_was_saved_leaves_the_run_done(  # noqa: PLR0917
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    outcome: Outcome,
    saved_at: int | None,
    verdict: str,
    is_kept: bool,
) -> None:
    monkeypatch.setattr(Plan, "find_output_faults", lambda plan: [])
    append(tmp_path / "events.jsonl", [event("total_steps", 1.0, steps=10)])
    if saved_at:
        append(tmp_path / "events.jsonl", [event("saved", 2.0, step=saved_at)])
    plan = planned("stage=demo", "trainer=trl_sft", "gpus=0", machine=fixed_machine(tmp_path))
    evidence = [Evidence("grad_clip", "1.0", "read", "1.0", verdict)]
    kept = keep_finished_work(outcome, plan, Run(tmp_path), evidence)
    assert kept.exit_code == (0 if is_kept else outcome.exit_code)
    assert (str(outcome.cause) in str(kept.afterwards)) == is_kept
    assert not is_kept or (kept.steps, kept.cause, kept.guard) == (10, None, None)


@pytest.mark.parametrize(
    ("change", "allow", "exit_code"),
    [
        (None, (), 0),
        ("before", (), 3),
        ("before", ("input_changed",), 0),
        ("after", (), 0),
    ],
)
def test_a_run_that_loaded_other_files_than_planned_is_not_done(
    tmp_path: Path, change: str | None, allow: tuple[str, ...], exit_code: int
) -> None:
    """`change`: when the file was edited, before or after it was loaded."""
    base = tmp_path / "base.json"
    base.write_text("{}")
    planned_files = ReadFiles({base: ReadFile(file_state(base), hash_file(base))})
    inputs = LoadedFiles(planned_files, hash_file)
    if change == "before":
        base.write_text("other")
    else:
        inputs.add(base, file_state(base), "load")
    if change == "after":
        base.write_text("other")
    outcome = verify_inputs(Outcome(0, 1.0, 10, 0.5), inputs, allow)
    assert outcome.exit_code == exit_code
    assert outcome.cause_id == ("input_changed" if exit_code else None)
    assert inputs.find_later_changes() == ([f"{base} changed"] if change == "after" else [])


def test_a_model_that_an_earlier_attempt_saved_is_not_this_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although the clock was set back, so that its event looks like the later one."""
    monkeypatch.setattr(Plan, "find_output_faults", lambda plan: [])
    plan = planned("stage=demo", "trainer=trl_sft", "gpus=0", machine=fixed_machine(tmp_path))
    for _ in range(2):
        begin_attempt(tmp_path, None, ())
    saved = [event("total_steps", 1.0, steps=10), event("saved", 9000.0, step=10, attempt=1)]
    append(tmp_path / "events.jsonl", saved)
    failed = Outcome(1, 1.0, 10, 0.5, cause="killed while it saved")
    assert keep_finished_work(failed, plan, Run(tmp_path), []) == failed
    append(tmp_path / "events.jsonl", [event("saved", 5.0, step=10, attempt=2)])
    assert keep_finished_work(failed, plan, Run(tmp_path), []).exit_code == 0


@pytest.mark.parametrize(
    ("words", "loss", "verdict"),
    [
        (("recipe.beta=0.1",), 0.6931, PROVEN),
        (("recipe.beta=0.1",), 0.6956, PROVEN),  # precomputed in another shape, in bf16
        (("recipe.beta=0.1",), 0.75, REFUTED),
        (("recipe.beta=0.1",), math.nan, REFUTED),
        # the noise of the log-probs counts 20 times
        (("recipe.beta=2", "recipe.loss=dpo"), 0.75, PROVEN),
        (("recipe.beta=2", "recipe.loss=dpo"), 1.2, REFUTED),
        (("trainer=dpo_tune_cache", "recipe.loss=simpo"), 1.2, None),
        # means: less noise
        (("trainer=dpo_tune_cache", "recipe.loss=dpo_norm", "recipe.beta=5"), 0.75, REFUTED),
        (("flags.ld_alpha=0.5",), 5.0, REFUTED),
        (("flags.f_divergence_type=js_divergence",), 5.0, REFUTED),
        (("flags.use_weighting=true",), 0.1, None),
        (("flags.loss_type=[ipo]",), 25.0, None),
        (("recipe.lora.rank=4", "recipe.beta=0.1"), 0.75, REFUTED),
        (("stage=demo",), 5.0, None),
        (("stage=demo_kto",), 0.5, PROVEN),
        (("stage=demo_kto",), 0.6931, REFUTED),
        (("stage=demo_kto", "recipe.loss=apo_zero_unpaired"), 0.5, PROVEN),
        (("stage=demo_kto", "recipe.undesirable_weight=2"), 0.75, None),
    ],
)
def test_the_first_loss_of_dpo_is_that_of_the_reference(
    words: tuple[str, ...], loss: float, verdict: str | None, tmp_path: Path
) -> None:
    line = (
        ("stage=demo_dpo", "trainer=trl_dpo", *words)
        if "stage=demo" not in words
        else (*words, "trainer=trl_sft")
    )
    line = line if "trainer=dpo_tune_cache" not in words else ("stage=demo_dpo", *words)
    line = words if "stage=demo_kto" in words else line
    plan = planned(*line, machine=fixed_machine(tmp_path))
    plan.folder.mkdir(parents=True)
    metrics = plan.folder / "metrics.jsonl"
    metrics.write_text(json.dumps({"step": 1, "loss": loss}) + "\n", encoding="utf-8")
    found = check_first_loss(plan, Run(plan.folder))
    assert [item.verdict for item in found] == ([] if verdict is None else [verdict])
    metrics.write_text(json.dumps({"step": 2, "loss": 9.0}) + "\n", encoding="utf-8")
    assert check_first_loss(plan, Run(plan.folder)) == ()  # the first step is not recorded
