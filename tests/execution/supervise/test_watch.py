"""What the guards' thread measures: the last good checkpoint, the room on the disk, signs of
life.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import cast

import psutil
import pytest

from launch.config.guards import DeadRankLimits, GuardsConfig, StallLimits
from launch.config.schema import Family
from launch.digests import hash_file
from launch.execution.facts import (
    Fact,
    FileUsed,
    GuardContext,
    LoggedStep,
    NewOutput,
    PhaseStarted,
)
from launch.execution.record.attempts import begin_attempt
from launch.execution.record.checkpoints import Layout
from launch.execution.record.events import Event
from launch.execution.record.evidence import read_evidence
from launch.execution.record.folder import RunFolder
from launch.execution.record.run import Run
from launch.execution.supervise.observer import Observer
from launch.execution.supervise.stacks import PeerNodes, Stacks
from launch.execution.supervise.watch import Watch, WatchConfig, free_bytes
from launch.external import wait_until
from launch.planning.read_files import LoadedFiles, ReadFile, ReadFiles
from launch.worker.opened import UsedFile, file_state

torch = pytest.importorskip("torch", reason="checkpoints are written by the real libraries")


def checkpoint(output: Path, step: int, age: float, *, whole: bool = True) -> None:
    """A checkpoint of TRL's on one rank, last written `age` seconds ago."""
    from safetensors.torch import save_file

    folder = output / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    save_file({"w": torch.zeros(4)}, folder / "model.safetensors")
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        torch.save({"x": torch.zeros(2)}, folder / name)
    (folder / "config.json").write_text("{}")
    if whole:
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    for path in folder.iterdir():
        os.utime(path, (time.time() - age, time.time() - age))


def watch(output: Path) -> tuple[Watch, list[str]]:
    stops: list[str] = []

    def end() -> bool:
        stops.append("end")
        return True

    watch_config = WatchConfig(
        guards=GuardsConfig(), output=output, layout=Layout(Family.trl, 1, None)
    )
    return Watch(watch_config, output / "stacks", end), stops


def test_the_last_good_checkpoint_is_the_one_that_a_good_step_proved(tmp_path: Path) -> None:
    for step, age in ((10, 30.0), (20, 20.0), (30, 10.0)):
        checkpoint(tmp_path, step, age)
    checkpoint(tmp_path, 40, 5.0, whole=False)
    watching, stops = watch(tmp_path)
    watching.start()
    now = time.monotonic()
    watching.put(LoggedStep(now - 15.0, 25, {"loss": 2.0}))  # between the second and the third
    watching.put(LoggedStep(now - 1.0, 35, {"loss": float("nan")}))
    watching.close()
    assert stops == ["end"]
    assert watching.stopped_by is not None and watching.stopped_by.id == "non_finite"
    good, later = watching.last_good_checkpoint()
    assert good is not None and good.path.name == "checkpoint-20"
    assert [one.path.name for one in later] == ["checkpoint-30"]


@pytest.mark.parametrize(
    ("written", "found"), [(0.0, "disk"), (0.5, "disk"), (0.99, None), (1.0, None)]
)
def test_what_is_written_of_the_model_needs_no_space(
    tmp_path: Path, written: float, found: str | None
) -> None:
    """On the real disk: a model three times its free space, of which a sparse file holds a part."""
    size = 3 * (free_bytes(tmp_path) or 0)
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(int(size * written))
    (tmp_path / "checkpoint-1").mkdir()  # a checkpoint's weights are no part of it
    with (tmp_path / "checkpoint-1" / "model.safetensors").open("wb") as file:
        file.truncate(size)
    context = GuardContext(total_steps=2)
    watch_config = WatchConfig(
        guards=GuardsConfig(), guard_context=context, output=tmp_path, model_bytes=size
    )
    watching = Watch(watch_config, tmp_path / "stacks", lambda: True)
    watching.start()
    for step in (1, 2):
        watching.put(LoggedStep(time.monotonic(), step, {"loss": 2.0}))
    time.sleep(1.2)  # the disk is looked at between two facts
    watching.close()
    assert (watching.stopped_by.id if watching.stopped_by else None) == found


def test_a_run_that_was_never_well_has_no_good_checkpoint(tmp_path: Path) -> None:
    checkpoint(tmp_path, 10, 30.0)
    watching, _ = watch(tmp_path)
    watching.start()
    watching.put(LoggedStep(time.monotonic(), 1, {"loss": float("nan")}))
    watching.close()
    assert watching.last_good_checkpoint()[0] is None


@pytest.mark.parametrize("loaded_in", ["the phase", "a report"])
@pytest.mark.parametrize(
    ("is_changed", "allow", "stops"),
    [(False, (), False), (True, (), True), (True, ("input_changed",), False)],
)
def test_a_run_whose_inputs_changed_before_they_were_loaded_is_ended_then(
    tmp_path: Path, is_changed: bool, allow: tuple[str, ...], stops: bool, loaded_in: str
) -> None:
    file = tmp_path / "base"
    file.write_text("planned")
    inputs = LoadedFiles(ReadFiles({file: ReadFile(file_state(file), hash_file(file))}), hash_file)
    config = WatchConfig(allow=allow, inputs=inputs)
    watching = Watch(config, tmp_path / "stacks", lambda: True)
    watching.start()
    if is_changed:
        file.write_text("another")
    watching.put(PhaseStarted(time.monotonic(), "load"))
    if loaded_in == "a report":
        watching.put(FileUsed(time.monotonic(), UsedFile(str(file), file_state(file))))
    for phase in ("training", "checkpoint", "training"):
        watching.put(PhaseStarted(time.monotonic(), phase))
    watching.close()
    assert (watching.stopped_by is not None) == stops
    assert [finding.id for finding in watching.findings] == ["input_changed"] * is_changed


def test_a_file_that_changes_after_it_was_loaded_is_only_reported(tmp_path: Path) -> None:
    file = tmp_path / "table.json"
    file.write_text("first")
    inputs = LoadedFiles(ReadFiles({}), hash_file)
    watching = Watch(WatchConfig(inputs=inputs), tmp_path / "stacks", lambda: True)
    watching.start()
    for text in ("first", "second"):
        file.write_text(text)
        used = UsedFile(str(file), file_state(file), "read")
        watching.put(FileUsed(time.monotonic(), used))
        if text == "first":
            assert wait_until(lambda: file in inputs.used, 10.0)
    watching.close()
    assert watching.stopped_by is None
    assert [(each.id, each.stops) for each in watching.findings] == [("input_changed", False)]
    assert str(file) in watching.messages[0]


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        psutil.AccessDenied(1),
        UnicodeDecodeError("utf-8", b"x", 0, 1, "reason"),
        RuntimeError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_stalled_run_is_ended_whatever_goes_wrong_with_its_stacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> Stacks:
        raise error

    monkeypatch.setattr("launch.execution.supervise.watch.dump_stacks", fail)
    ended = threading.Event()
    guards = GuardsConfig(stall=StallLimits(training=0.1, factor=1.0, first_step=0.1))
    watching = Watch(WatchConfig(guards=guards), tmp_path, lambda: ended.set() or True)
    watching.start()
    watching.put(PhaseStarted(time.monotonic(), "training"))
    try:
        assert ended.wait(10.0)
    finally:
        watching.close()
    assert watching.stopped_by is not None and watching.stopped_by.id == "stall"
    assert watching.stacks is not None and watching.stacks.files == ()
    assert watching.stacks.summary[0].startswith("no stacks: ")
    assert watching.stacks.summary[0] != "no stacks: "


def test_a_node_that_cannot_dump_its_stacks_is_still_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = threading.Event()

    def fail(*_: object) -> Stacks:
        failed.set()
        raise psutil.AccessDenied(1)

    class StalledJob:
        progress = "stalled"

        def publish_stacks(self, _: Stacks) -> None:
            raise AssertionError("there are none")

    monkeypatch.setattr("launch.execution.supervise.watch.dump_stacks", fail)
    ended = threading.Event()
    watching = Watch(
        WatchConfig(guards=GuardsConfig()),
        tmp_path,
        lambda: ended.set() or True,
        cast(PeerNodes, StalledJob()),
    )
    watching.start()
    assert failed.wait(10.0)
    watching.put(LoggedStep(time.monotonic(), 1, {"loss": float("nan")}))
    watching.close()
    assert ended.is_set()


def test_free_bytes_of_a_folder_that_is_not_made_yet(tmp_path: Path) -> None:
    free = free_bytes(tmp_path / "a" / "b" / "model")
    assert free is not None and free > 0


class _Facts:
    def __init__(self) -> None:
        self.seen: list[Fact] = []

    def put(self, fact: Fact) -> None:
        self.seen.append(fact)

    def add_process(self, rank: int, pid: int) -> None:
        raise AssertionError("no rank has started")


def test_a_line_that_repeats_itself_is_no_sign_of_life(tmp_path: Path) -> None:
    facts = _Facts()
    now = [0.0]

    def clock() -> float:
        now[0] += 2.0
        return now[0]

    observer = Observer([0], RunFolder(tmp_path), facts, clock)
    for _ in range(50):
        observer.lines(0, ["waiting for a lock"], 1.0)
    assert [type(fact) for fact in facts.seen] == [NewOutput]
    for percent in range(50):
        observer.lines(0, [f"tokenizing {percent}%"], 1.0)
    assert len(facts.seen) == 51
    observer.close()


def test_a_bar_of_the_first_rank_is_shown_until_the_training(tmp_path: Path) -> None:
    now = [0.0]

    def clock() -> float:
        now[0] += 2.0
        return now[0]

    observer = Observer([0, 1], RunFolder(tmp_path), _Facts(), clock)
    bar = (
        "Computing reference log probs for train dataset:  {0}%|##   | {0}/200 [00:01<00:20,  "
        "9.91it/s]"
    )
    for rank, done in ((0, 24), (1, 30), (0, 50)):
        observer.lines(rank, [bar.format(done)], 1.0)
    observer.event(Event("step", 1.0, 0, {"step": 1, "loss": 2.0}))
    observer.lines(0, ["  1%|          | 1/100 [00:01<01:39,  1.0it/s]"], 1.0)
    shown = [event.data for event in observer.display_events if event.kind == "progress"]
    assert shown == [{"done": 24, "total": 200}, {"done": 50, "total": 200}]
    assert "progress" not in RunFolder(tmp_path).events.read_text(encoding="utf-8")
    observer.close()


def test_a_step_begins_the_training_and_ends_a_checkpoint(tmp_path: Path) -> None:
    facts = _Facts()
    observer = Observer([0, 1], RunFolder(tmp_path), facts)
    sent = [
        ("phase", {"phase": "load"}),
        ("phase", {"phase": "load"}),
        ("step", {"step": 1}),
        ("phase", {"phase": "checkpoint"}),
        ("step", {"step": 2}),
        ("phase", {"phase": "save"}),
    ]
    for second, (kind, data) in enumerate(sent):
        observer.event(Event(kind, float(second), 0, data))
    observer.event(Event("phase", 9.0, 1, {"phase": "import"}))  # a rank that tells its process
    observer.close()
    recorded = [
        (event["phase"], event["rank"], event["time"])
        for event in map(json.loads, RunFolder(tmp_path).events.read_text().splitlines())
    ]
    assert recorded == [
        ("load", 0, 0.0),
        ("training", 0, 2.0),
        ("checkpoint", 0, 3.0),
        ("training", 0, 4.0),
        ("save", 0, 5.0),
        ("import", 1, 9.0),
    ]
    began = [fact.phase for fact in facts.seen if isinstance(fact, PhaseStarted)]
    assert began == ["load", "training", "checkpoint", "training", "save"]


def test_events_have_the_number_of_their_attempt_whatever_the_clock_shows(tmp_path: Path) -> None:
    """The clock is set back an hour between two attempts; a rank cannot name another attempt."""
    folder = RunFolder(tmp_path)
    for number, clock in ((1, 4000.0), (2, 400.0)):
        assert begin_attempt(tmp_path, None, ()) == number
        observer = Observer([0], folder, _Facts())
        for what in ("dtype", "grad_clip"):
            observer.event(Event("evidence", clock, 0, {"what": what, "value": f"{number}"}, 7))
        observer.close()
    for number in (1, 2):
        values = [item.value for item in read_evidence(Run(tmp_path), {}, number)]
        assert values == [f"{number}", f"{number}"]
    assert read_evidence(Run(tmp_path), {}, 7) == ()


def test_phases_of_an_attempt_after_a_clock_that_was_set_back_end_in_it(tmp_path: Path) -> None:
    observer = Observer([0], RunFolder(tmp_path), _Facts())
    phases = ((4000.0, "import"), (4010.0, "training"), (400.0, "import"), (410.0, "training"))
    for moment, phase in phases:
        observer.event(Event("phase", moment, 0, {"phase": phase}))
    observer.record(Event("warning", 420.0, 0, {"message": "late"}))
    observer.event(Event("phase", 100.0, 0, {"phase": "import"}))
    observer.close()
    first, second, _ = Run(tmp_path).event_summary.attempts
    assert [(phase.began, phase.ended) for phase in first] == [(4000.0, 4010.0), (4010.0, 4010.0)]
    assert [(phase.began, phase.ended) for phase in second] == [(400.0, 410.0), (410.0, 420.0)]


def test_what_looks_like_a_step_in_the_output_is_none(tmp_path: Path) -> None:
    observer = Observer([0], RunFolder(tmp_path), _Facts())
    lines = [
        "***** Running training *****",
        "  Step: 1, LR: 5e-06, Loss: 1.25, TPS: 100.0",
        "metrics_to_log={'total_tokens': 100}",
        "[step=2/12,epoch=1]",
        "    train/CE loss=2.51",
        "Configuration saved in x",
    ]
    observer.lines(0, lines, 1.0)
    observer.close()
    assert RunFolder(tmp_path).metrics.read_text() == RunFolder(tmp_path).events.read_text() == ""
    assert list(observer.display_events) == []


def test_a_rank_that_left_before_it_was_looked_at_is_gone(tmp_path: Path) -> None:
    """Its hello waits in a FIFO: the process behind it may have ended by the time it is read."""
    left = subprocess.Popen([sys.executable, "-c", ""])
    left.wait()
    ended = threading.Event()
    guard_context = GuardContext(ranks=(0, 1))
    watch_config = WatchConfig(
        guards=GuardsConfig(dead_rank=DeadRankLimits(silent=0.1)), guard_context=guard_context
    )
    watch = Watch(watch_config, tmp_path, lambda: ended.set() or True)
    watch.start()
    watch.add_process(0, os.getpid())
    watch.add_process(1, left.pid)
    try:
        assert ended.wait(10.0)
    finally:
        watch.close()
    assert watch.stopped_by is not None and watch.stopped_by.id == "dead_rank"
    assert "the process of rank 1 exited" in watch.stopped_by.message
