"""The display of a terminal: history above, one line in place below, at any width and without
colour where asked.
"""

from __future__ import annotations

import io
import math
import random
import re

import pytest

from launch.execution.display import LiveDisplay, PlainDisplay, display_for
from launch.execution.display_text import sparkline
from launch.execution.record.events import Event
from launch.terminal import strip_escapes
from tests.execution.display.test_progress import Clock


class Terminal(io.TextIOWrapper):
    """A terminal of some encoding that keeps what is written to it."""

    def __init__(self, encoding: str = "utf-8") -> None:
        self.raw_bytes = io.BytesIO()
        super().__init__(self.raw_bytes, encoding=encoding, write_through=True)

    def isatty(self) -> bool:
        return True

    def text(self) -> str:
        return self.raw_bytes.getvalue().decode(self.encoding)

    def lines(self) -> list[str]:
        """Every line that was ever shown, the redrawn ones too."""
        return [line for line in re.split(r"[\r\n]+", strip_escapes(self.text())) if line.strip()]


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


def begin(terminal: Terminal, total: int = 100) -> tuple[LiveDisplay, Clock]:
    clock = Clock()
    display = LiveDisplay(terminal, clock)
    display.start(None)
    display.show(Event("total_steps", 0.0, 0, {"steps": total}))
    return display, clock


def train(display: LiveDisplay, clock: Clock, steps: int, seconds: float = 1.0) -> None:
    display.show(Event("phase", clock.now, 0, {"phase": "training"}))
    for step in range(1, steps + 1):
        clock.now += seconds
        values = {"step": step, "loss": 8.0 / step, "tokens_per_second": 12345.0}
        display.show(Event("step", clock.now, 0, values))
        display.refresh()


def test_only_a_capable_terminal_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(display_for(Terminal()), LiveDisplay)
    assert type(display_for(io.StringIO())) is PlainDisplay
    monkeypatch.setenv("TERM", "dumb")
    assert type(display_for(Terminal())) is PlainDisplay


def test_each_wait_says_what_it_waits_for_and_since_when() -> None:
    terminal = Terminal()
    display, clock = begin(terminal)
    clock.now = 3.0
    display.refresh()
    for phase in ("tokenize", "training", "save"):
        display.show(Event("phase", clock.now, 0, {"phase": phase}))
        clock.now += 75.0
        display.refresh()
        if phase == "tokenize":
            for done in (10, 40):
                display.show(Event("progress", clock.now + done, 0, {"done": done, "total": 90}))
            display.refresh()
        if phase == "training":
            display.show(Event("step", clock.now, 0, {"step": 1, "loss": 2.0}))
            clock.now += 31.0
            display.refresh()
    display.close()
    for part in (
        "starting the processes 3 s",
        "tokenizing 1 min 15 s",
        "waiting for the first step 1 min 15 s",
    ):
        assert part in terminal.text()
    assert "tokenizing 1 min 15 s: 40 of 90, 1 a second, 50 s left" in terminal.text()
    assert "no step for 31 s" in terminal.text()
    assert "saving the model 1 min 15 s" in terminal.text()


def test_the_history_is_what_a_plain_display_prints() -> None:
    terminal, plain = Terminal(), io.StringIO()
    display, clock = begin(terminal)
    reference = PlainDisplay(plain, clock)
    reference.start(100)
    show = display.show
    display.show = lambda event: (reference.show(event), show(event))[1]  # type: ignore[method-assign]
    train(display, clock, 100)
    display.say("a sentence [not markup]")
    display.close()
    reference.close()
    shown = plain.getvalue().splitlines()
    assert len(shown) > 20
    history = [line.rstrip() for line in terminal.lines()]
    assert [line for line in history if line in shown] == shown
    assert "a sentence [not markup]" in history


def test_the_course_of_the_loss_is_beside_the_step() -> None:
    terminal = Terminal()
    display, clock = begin(terminal)
    train(display, clock, 8)
    display.close()
    last = terminal.lines()[-1]
    assert re.search(r"step 8/100  loss 1\.0000 █[▁-█]{6}▁  12,345 tokens/s  1 min 32 s left", last)


@pytest.mark.parametrize("columns", [20, 40, 60, 80, 200])
def test_it_takes_one_line_of_any_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    terminal = Terminal()
    display, clock = begin(terminal, total=1_234_567)
    train(display, clock, 30, seconds=100.0)
    display.close()
    drawn = [line for line in terminal.lines() if "━" in line]
    assert drawn
    assert max(map(len, drawn)) <= columns
    if columns >= 80:
        assert re.search(r"step 30/1,?234,?567  loss 0\.2667", drawn[-1])
        assert "left" in drawn[-1]


def test_without_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    display, clock = begin(terminal)
    train(display, clock, 3)
    display.close()
    colours = re.compile(r"\x1b\[[\d;]*\b(?:[34][0-8]|9[0-7]|10[0-7])\b[\d;]*m")
    assert colours.search(terminal.text())
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal()
    display, clock = begin(terminal)
    train(display, clock, 3)
    display.close()
    assert "step 3/100" in terminal.text()
    assert not colours.search(terminal.text())


def test_a_terminal_without_unicode_gets_ascii() -> None:
    terminal = Terminal("ascii")
    display, clock = begin(terminal)
    train(display, clock, 30)
    display.close()
    assert "step 30/100  loss 0.2667  12,345 tokens/s" in terminal.text()


def test_rlvr_is_shown_by_its_reward() -> None:
    """Its loss is 0 by construction, and says nothing."""
    terminal = Terminal()
    display, clock = begin(terminal)
    for step in range(1, 9):
        clock.now += 1.0
        values = {"step": step, "loss": 1e-9, "reward": step / 8, "reward_std": 0.1}
        display.show(Event("step", clock.now, 0, values))
        display.refresh()
    display.close()
    assert "step 8/100  reward 1.0000 ▁▂▃▄▅▆▇█" in terminal.lines()[-1]
    assert "loss" not in terminal.text()


def test_a_second_run_begins_anew() -> None:
    terminal = Terminal()
    display, clock = begin(terminal)
    train(display, clock, 5)
    display.close()
    display.start(50)
    assert not display._values
    display.refresh()
    assert "starting the processes 0 s" in terminal.lines()[-1]
    train(display, clock, 1)
    display.close()
    assert sum(line.startswith("step 1/50") for line in terminal.lines()) == 1


def test_a_sparkline_keeps_its_course() -> None:
    source = random.Random(0)
    losses = [10.0 - step / 10_000 + source.random() / 10 for step in range(100_000)]
    assert sparkline(losses, 8) == "█▇▆▅▄▃▂▁"
    assert sparkline(losses, 0) == sparkline([], 8) == ""


def test_a_sparkline_shows_what_is_not_finite() -> None:
    assert sparkline([1.0, 2.0, math.nan, math.inf], 4) == "▁█!!"
    assert sparkline([1.0, 2.0, math.nan, math.inf, -math.inf], 1) == "!", (
        "both infinities in one part"
    )
    assert sparkline([3.0, 3.0], 4) == "▁▁"
