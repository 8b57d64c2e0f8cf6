"""The guards of time, processes and disk, at their borders."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from launch.config.guards import DeadRankLimits, DiskLimits, GuardsConfig, NonFiniteLimits, StallLimits
from launch.execution.facts import (
    DiskUsage,
    Fact,
    GuardContext,
    GuardFinding,
    LoggedStep,
    NewOutput,
    PhaseStarted,
    RankError,
    RankExited,
    Tick,
    TotalSteps,
)
from launch.execution.guards import DeadRank, DiskSpace, Stall
from launch.execution.reward_guards import build_guards
from launch.execution.supervise.watch import Watch, WatchConfig
from tests.execution.guards.facts import first, steps

GIB = 2**30


def ticks(start: float, end: float, *others: Fact) -> list[Fact]:
    """A tick a second from `start` to `end`, `others` between them in the order of time."""
    facts: list[Fact] = [Tick(float(at)) for at in range(int(start), int(end) + 1)]
    return sorted([*facts, *others], key=lambda fact: (fact.time, isinstance(fact, Tick)))


def stopped(guard: Stall | DeadRank, facts: Iterable[Fact]) -> tuple[float, GuardFinding] | None:
    """The time of the first finding, and the finding."""
    for fact in facts:
        finding = guard.observe(fact)
        if finding is not None:
            return fact.time, finding
    return None


@pytest.mark.parametrize(
    ("phase", "key"),
    [("import", "importing"), ("tokenize", "tokenize"), ("load", "load"), ("reference_logprobs", "reference_logprobs"),
     ("training", "first_step"), ("checkpoint", "checkpoint"), ("save", "save"), ("push", "push")],
)  # fmt: skip
def test_each_phase_has_its_own_patience(phase: str, key: str) -> None:
    config = StallLimits(**{key: 10})
    result = stopped(Stall(config, GuardContext()), ticks(0, 100, PhaseStarted(0.0, phase)))
    assert result is not None and result[0] == 11
    assert f"no progress for 11 s in {phase}" in result[1].message
    assert stopped(Stall(config, GuardContext()), ticks(0, 10, PhaseStarted(0.0, phase))) is None


def test_new_output_is_progress_but_not_in_training() -> None:
    config = StallLimits(load=10, training=10)
    noise = [NewOutput(at + 0.5) for at in range(0, 100, 5)]
    assert stopped(Stall(config, GuardContext()), ticks(0, 100, PhaseStarted(0.0, "load"), *noise)) is None
    result = stopped(Stall(config, GuardContext()), ticks(0, 100, LoggedStep(2.0, 7, {}), *noise))
    assert result is not None and result[0] == 13
    assert "the last logged step was 7" in result[1].message


def test_slow_steps_earn_patience() -> None:
    config = StallLimits(training=10, factor=3)
    slow = [LoggedStep(20.0 * at, at, {}) for at in range(1, 4)]
    guard = Stall(config, GuardContext())
    result = stopped(guard, ticks(0, 200, PhaseStarted(0.0, "training"), *slow))
    assert result is not None and result[0] == 121  # 60 + 3 x 20, and no longer


def test_a_watcher_that_stood_still_itself_starts_anew() -> None:
    guard = Stall(StallLimits(load=10), GuardContext())
    before = ticks(0, 5, PhaseStarted(0.0, "load"))
    assert stopped(guard, [*before, *ticks(5000, 5009)]) is None


def test_on_a_node_without_rank_0_training_is_not_judged() -> None:
    guard = Stall(StallLimits(first_step=5, training=5), GuardContext(ranks=(8, 9)))
    assert stopped(guard, ticks(0, 100, PhaseStarted(0.0, "training"))) is None


def test_a_run_does_not_outlive_an_error_for_long() -> None:
    result = stopped(
        DeadRank(DeadRankLimits(), GuardContext(ranks=(0, 1))), ticks(0, 60, RankError(5.0, 1), RankError(9.0, 0))
    )
    assert result is not None and result[0] == 16
    assert result[1].failed and result[1].numbers["rank"] == 1


def test_a_rank_that_vanished_while_the_others_wait() -> None:
    guard_context = GuardContext(ranks=(0, 1, 2))
    facts = ticks(0, 60, PhaseStarted(0.0, "training"), RankExited(5.0, 1))
    result = stopped(DeadRank(DeadRankLimits(silent=20), guard_context), facts)
    assert result is not None and result[0] == 26
    assert "rank 1 exited without an error while ranks 0, 2 waited" in result[1].message
    assert not result[1].failed
    going_on = [*facts, *[NewOutput(float(at)) for at in range(0, 60, 4)]]
    assert stopped(DeadRank(DeadRankLimits(), guard_context), sorted(going_on, key=lambda fact: fact.time)) is None


@pytest.mark.parametrize("end", [[PhaseStarted(1.0, "save")], [TotalSteps(0.5, 7), LoggedStep(1.0, 7, {})]])
def test_ranks_may_leave_at_the_end(end: list[Fact]) -> None:
    facts = ticks(0, 500, *end, RankExited(5.0, 1))
    assert stopped(DeadRank(DeadRankLimits(), GuardContext(ranks=(0, 1))), facts) is None


def test_when_every_rank_is_gone_nobody_waits() -> None:
    facts = ticks(0, 500, RankExited(5.0, 0), RankExited(5.0, 1))
    assert stopped(DeadRank(DeadRankLimits(), GuardContext(ranks=(0, 1))), facts) is None


def test_the_disk_warns_early_and_stops_when_the_checkpoint_is_near() -> None:
    guard = DiskSpace(DiskLimits(margin=1.1, ahead=120), GuardContext(checkpoint_every=1000, total_steps=5000))
    full = DiskUsage(0.0, free=10 * GIB, checkpoint=10 * GIB, model=1 * GIB)
    early = guard.observe(full)
    assert early is not None and not early.stops
    assert "10 GiB free and the next checkpoint needs 10 GiB (at step 1000)" in early.message
    stop = next(finding for fact in steps("loss", [1.0] * 1000) if (finding := guard.observe(fact)) and finding.stops)
    assert stop.numbers["step"] == 880  # 120 steps of a second before it
    assert "at step 1000, 120 steps from now" in stop.message


def test_a_disk_with_room_says_nothing() -> None:
    guard = DiskSpace(DiskLimits(margin=1.5), GuardContext(checkpoint_every=10, total_steps=100))
    assert first(guard, [DiskUsage(0.0, 15 * GIB, 10 * GIB, GIB), *steps("loss", [1.0] * 99)]) is None
    assert first(guard, [DiskUsage(0.0, 15 * GIB - 1, 10 * GIB, GIB)]) is not None


@pytest.mark.parametrize(("phase", "is_stopped"), [("checkpoint", False), ("save", False), ("training", True)])
def test_a_disk_is_not_measured_while_a_checkpoint_takes_the_place_of_the_last(phase: str, is_stopped: bool) -> None:
    """Of 25 GiB two checkpoints of 10 fit, and the older one goes when the newer one is complete."""
    guard = DiskSpace(DiskLimits(margin=1.1, ahead=120), GuardContext(checkpoint_every=10, total_steps=100))
    half_written = [PhaseStarted(10.5, phase), DiskUsage(11.0, 9 * GIB, 10 * GIB, GIB)]
    facts = [*steps("loss", [1.0] * 10), DiskUsage(10.0, 15 * GIB, 10 * GIB, GIB), *half_written]
    assert (stopped(guard, facts) is not None) == is_stopped
    resumed = [PhaseStarted(12.0, "training"), DiskUsage(12.5, 15 * GIB, 10 * GIB, GIB), *steps("loss", [1.0] * 9, 11)]
    assert is_stopped or stopped(guard, resumed) is None


def test_after_the_last_checkpoint_the_model_is_what_is_written() -> None:
    guard = DiskSpace(DiskLimits(), GuardContext(checkpoint_every=10, total_steps=25))
    facts = [DiskUsage(0.0, 2 * GIB, 10 * GIB, GIB), *steps("loss", [1.0] * 6, 20)]
    assert first(guard, facts[1:]) is None
    assert guard.observe(facts[0]) is None


def test_sizes_that_are_not_known_are_no_judgement() -> None:
    guard = DiskSpace(DiskLimits(), GuardContext(checkpoint_every=10, total_steps=100))
    assert first(guard, [DiskUsage(0.0, 0), *steps("loss", [1.0] * 99)]) is None


def test_every_guard_is_on_by_default_and_each_can_be_switched_off() -> None:
    names = [guard.id for guard in build_guards(GuardsConfig(), GuardContext())]
    assert names == list(GuardsConfig.__dataclass_fields__)
    for name in names:
        left = build_guards(GuardsConfig(**{name: None}), GuardContext())
        assert [guard.id for guard in left] == [other for other in names if other != name]
    assert build_guards(None, GuardContext()) == []


def test_a_guard_stops_once_and_allow_makes_it_a_warning(tmp_path: Path) -> None:
    def observe(*allow: str) -> list[GuardFinding]:
        watch = Watch(WatchConfig(GuardsConfig(non_finite=NonFiniteLimits()), allow), tmp_path, lambda: True)
        watch.start()
        for fact in steps("loss", [float("nan")] * 3):
            watch.observe(fact)
        watch.close()
        return list(watch.findings)

    assert [finding.stops for finding in observe()] == [True]
    [finding] = observe("non_finite")
    assert not finding.stops and str(finding).endswith("[non_finite], allowed")
