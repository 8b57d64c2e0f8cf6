"""A sweep: every combination is planned before the first run, each run is taken once, and one
report has them all.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from launch.config.compose import Composed, compose_all, expand_sweep
from launch.config.line import CommandLine, parse_line
from launch.errors import UserError
from launch.execution.display import PlainDisplay
from launch.execution.record.outcome import Outcome
from launch.planning.plan import Plan
from launch.trials.record import State
from launch.trials.sweep import SweepRecord, plan_sweep, run_sweep
from launch.worker.finding import Finding
from tests.trials.records import check, read
from tests.trials.rollout.plans import leave_run, steps

VERBS = ("run", "plan", "trial")
WORDS = ("stage=demo", "trainer=trl_sft", "device=cpu", "report=false")
DONE = Outcome(exit_code=0, seconds=9.0, steps=3, last_loss=2.8)


def line(*words: str, verb: str = "trial") -> CommandLine:
    return parse_line([verb, *words], VERBS)


def settings(*words: str) -> list[tuple[str, ...]]:
    return [single.argv for single in expand_sweep(line(*words))]


def test_a_comma_list_is_a_sweep_with_the_verb_or_with_the_key() -> None:
    for swept in (line("recipe.seed=1,2"), line("recipe.seed=1,2", "sweep=true", verb="run")):
        assert swept.sweeps and [single.argv for single in expand_sweep(swept)] == [
            ("recipe.seed=1",),
            ("recipe.seed=2",),
        ]
    assert (
        not line("recipe.seed=1", verb="run").sweeps and not line("sweep=false", "stage=sft").sweeps
    )
    with pytest.raises(UserError, match=r"^override sweep: .*sweep=true"):
        line("sweep=maybe", verb="run")
    with pytest.raises(UserError, match=r"sweep=true.*\[several_values\]"):
        compose_all(line("stage=sft", "recipe.seed=1,2", "sweep=false"))


def test_every_combination_and_what_is_no_comma_list() -> None:
    assert settings("stage=sft", "recipe.seed=1,2", "gpus=8", "recipe.beta=1,5") == [
        ("stage=sft", f"recipe.seed={seed}", "gpus=8", f"recipe.beta={beta}")
        for seed in (1, 2)
        for beta in (1, 5)
    ]
    listed = ("stage=sft", "allow=[a,b]", "name='x,y'", "data.mix=[{name: a, share: 1}]")
    assert settings(*listed) == [listed]
    assert settings("data.mix=[{name: a}],[{name: b}]") == [
        ("data.mix=[{name:a}]",),
        ("data.mix=[{name:b}]",),
    ]


def test_the_options_of_a_group_by_a_pattern() -> None:
    assert settings("stage=dpo", "data=glob(tulu3_dpo_*)") == [
        ("stage=dpo", "data=tulu3_dpo_70b"),
        ("stage=dpo", "data=tulu3_dpo_8b"),
    ]


@functools.cache
def _configurations(*words: str) -> tuple[Composed, ...]:
    return tuple(compose_all(line(*WORDS, *words)))


def swept(
    home: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[[Plan], int], *words: str
) -> tuple[SweepRecord, int]:
    monkeypatch.chdir(home)
    monkeypatch.setattr(
        "launch.trials.sweep.refuse_failing_preflight", lambda plans, asks_parser: list(plans)
    )
    return run_sweep(_configurations(*words), PlainDisplay(io.StringIO()), run)


def leaving(outcome: Outcome = DONE, **of_seed: Outcome) -> Callable[[Plan], int]:
    """A run that is made up; `of_seed` are the outcomes of other seeds, `s2` that of 2."""

    def run(plan: Plan) -> int:
        ended = of_seed.get(f"s{plan.config.recipe.seed}", outcome)
        leave_run(
            plan,
            ended,
            steps([3.0, 2.9, 2.8][: ended.steps]),
        )
        return ended.exit_code

    return run


def test_all_are_run_and_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record, code = swept(
        tmp_path, monkeypatch, leaving(), "recipe.seed=1,2", "recipe.learning_rate=1e-3,2e-3"
    )
    assert (code, record.state) == (0, State.done)
    assert [run.label for run in record.runs] == [
        f"seed={seed} learning_rate={rate}" for seed in (1, 2) for rate in (0.001, 0.002)
    ]
    document = read(record)
    check(document)
    assert (
        document["keys"] == ["recipe.seed", "recipe.learning_rate"]
        and document["summary"][0] == "4 of 4 runs are done"
    )
    assert {Path(run["folder"]).parent for run in document["runs"]} == {tmp_path / "runs" / "demo"}
    again, code = swept(
        tmp_path, monkeypatch, leaving(), "recipe.seed=1,2", "recipe.learning_rate=1e-3,2e-3"
    )
    assert code == 0 and again.folder == record.folder and all(run.reused for run in again.runs)


def test_every_run_is_the_one_that_was_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that changes while an earlier run trains gives no later run another folder."""
    taken: list[Plan] = []

    def run(plan: Plan) -> int:
        taken.append(plan)
        return leaving()(plan)

    record, _ = swept(tmp_path, monkeypatch, run, "recipe.seed=1,2")
    assert [run.plan for run in record.runs] == taken and len(taken) == 2


def test_a_run_that_fails_ends_no_other_and_an_interrupt_ends_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    diverged = replace(DONE, exit_code=3, steps=2, cause="the loss diverged", cause_id="divergence")
    record, code = swept(tmp_path, monkeypatch, leaving(s1=diverged), "recipe.seed=1,2")
    assert code == 3 and [run.state for run in record.runs] == [State.failed, State.done]
    assert "seed=1 failed: the loss diverged" in record.summary
    interrupted = replace(DONE, exit_code=130, steps=1)
    record, code = swept(tmp_path, monkeypatch, leaving(s3=interrupted), "recipe.seed=3,4")
    assert code == 130 and [run.state for run in record.runs] == [State.interrupted, State.planned]


def test_a_run_that_cannot_start_is_reported_and_the_next_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(plan: Plan) -> int:
        if plan.config.recipe.seed == 1:
            raise UserError(Finding.error("gpus_busy", "GPU 0 is held", None, "wait"))
        return leaving()(plan)

    record, code = swept(tmp_path, monkeypatch, run, "recipe.seed=1,2")
    assert code == 1 and [run.state for run in record.runs] == [State.failed, State.done]
    assert "[gpus_busy]" in record.summary[1]


def test_every_impossible_setting_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as error:
        plan_sweep(_configurations("recipe.per_device_batch_size=3,8,5"))
    assert [problem.id for problem in error.value.problems] == ["batch_not_divisible"] * 2
    with pytest.raises(UserError) as error:
        compose_all(line(*WORDS, "recipe.seed=1,x", "recipe.lerning_rate=1"))
    assert len(error.value.problems) == 2
    for name in ("name=mine", "name=mine,yours"):  # with two seeds each name has two runs
        with pytest.raises(UserError, match=r"name=mine.*\[sweep_folder\]"):
            plan_sweep(_configurations("recipe.seed=1,2", name))


def test_the_same_setting_twice_is_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    record = plan_sweep(_configurations("recipe.learning_rate=1e-3,0.001,2e-3"))
    assert [run.label for run in record.runs] == ["learning_rate=0.001", "learning_rate=0.002"]
    assert record.notes == ["learning_rate=0.001 is the same run as learning_rate=0.001"]
