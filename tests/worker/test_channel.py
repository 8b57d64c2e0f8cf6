"""EventWriter: always whole lines, never too long, never in training's way."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.worker.channel import EVENT_BYTES, EventWriter, encode_event


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A real pipe, both ends non-blocking."""
    read, write = os.pipe2(os.O_NONBLOCK)
    yield read, write
    os.close(read)
    os.close(write)


def test_an_event_says_what_when_and_who(pipe: tuple[int, int]) -> None:
    EventWriter(pipe[1], 3).emit("step", step=1, loss=0.5)
    line = os.read(pipe[0], 1 << 16)
    assert line.endswith(b"\n")
    event = json.loads(line)
    assert event.pop("time") > 1.6e9
    assert event == {"schema_version": 1, "kind": "step", "rank": 3, "step": 1, "loss": 0.5}


def test_a_full_pipe_drops_events_whole_and_does_not_block(pipe: tuple[int, int]) -> None:
    fcntl.fcntl(pipe[1], fcntl.F_SETPIPE_SZ, 4096)
    events = EventWriter(pipe[1], 0)
    for step in range(500):
        events.emit("step", step=step, text="x" * 50)
    kept = [json.loads(line)["step"] for line in os.read(pipe[0], 1 << 20).splitlines()]
    assert kept == list(range(len(kept)))
    assert 10 < len(kept) < 60
    events.emit("step", step=500)  # the reader caught up: it goes on
    assert json.loads(os.read(pipe[0], 1 << 16))["step"] == 500


def test_a_reader_that_is_gone_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    EventWriter(write, 0).emit("step", step=1)
    os.close(write)


def test_an_event_that_can_never_fit_is_dropped(pipe: tuple[int, int]) -> None:
    events = EventWriter(pipe[1], 0)
    events.emit("step", values=list(range(5000)))
    events.emit("step", step=1)
    assert json.loads(os.read(pipe[0], 1 << 16))["step"] == 1


@given(st.text(max_size=9000), st.text(max_size=9000))
def test_long_texts_are_shortened_until_the_line_fits(message: str, path: str) -> None:
    event = {"kind": "error", "message": message, "where": path}
    line = encode_event(event)
    assert len(line) <= EVENT_BYTES
    assert line.count(b"\n") == 1
    got = json.loads(line)
    for key, text in event.items():
        cut = got[key].removesuffix("...")
        assert got[key] == text or text.startswith(cut)
    if len(json.dumps(event)) < EVENT_BYTES:
        assert got == event


def test_a_step_with_too_many_metrics_keeps_the_first(pipe: tuple[int, int]) -> None:
    many = {f"train/block {layer}/load imbalance": layer / 7 for layer in range(500)}
    events = EventWriter(pipe[1], 0)
    events.emit("step", step=1, loss=0.5, **many)
    events.emit("step", step=2, loss=0.25)
    read = [json.loads(line) for line in os.read(pipe[0], 1 << 16).splitlines()]
    assert [(event["step"], event["loss"]) for event in read] == [(1, 0.5), (2, 0.25)]
    kept = [name for name in read[0] if name in many]
    assert kept == list(many)[: len(kept)] and len(kept) > 50


@pytest.mark.parametrize(("local_rank", "phases"), [("0", ["load"]), ("1", []), (None, ["load"])])
def test_one_process_of_a_machine_tells_the_phases(
    local_rank: str | None,
    phases: list[str],
    pipe: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if local_rank is not None:
        monkeypatch.setenv("LOCAL_RANK", local_rank)
    EventWriter(pipe[1], 9).begin("load")
    os.write(pipe[1], b"\n")
    told = [json.loads(line) for line in os.read(pipe[0], 1 << 16).split(b"\n") if line]
    assert [event["phase"] for event in told] == phases


def test_a_warning_is_also_said_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    EventWriter(None, 0).warn("mind the gap")
    assert capsys.readouterr().err == "launch: warning: mind the gap\n"
