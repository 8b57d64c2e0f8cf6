from __future__ import annotations

import io
import os

from launch.execution.display import PlainDisplay
from launch.execution.display_text import Pace
from launch.execution.record.events import Event


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def show_steps(seconds: float, total: int, last: int | None = None) -> list[str]:
    """What a run of `total` steps prints, each taking `seconds`."""
    out, clock = io.StringIO(), Clock()
    display = PlainDisplay(out, clock)
    display.start(None)
    display.show(Event("total_steps", 0.0, 0, {"steps": total}))
    display.show(Event("phase", 0.0, 0, {"phase": "training"}))
    for number in range(1, (last or total) + 1):
        clock.now = number * seconds
        display.show(
            Event("step", clock.now, 0, {"step": number, "loss": 2.0, "tokens_per_second": 1234.5})
        )
    display.close()
    return out.getvalue().splitlines()


def test_a_fast_run_prints_the_first_and_the_last_step() -> None:
    assert show_steps(0.01, 50) == [
        "training",
        "step 1/50  loss 2.0000  1,234 tokens/s",
        "step 50/50  loss 2.0000  1,234 tokens/s  0 s left",
    ]


def test_a_slow_run_prints_every_twentieth_part() -> None:
    lines = show_steps(1.0, 1000)
    assert len(lines) in range(30, 40)  # never 30 s without a line
    assert lines[-1].startswith("step 1000/1000")
    assert "step 31/1000" in lines[2]
    assert "16 min 9 s left" in lines[2]


def test_a_run_that_stops_early_prints_its_last_step() -> None:
    assert show_steps(0.01, 50, last=7)[-1].startswith("step 7/50")


def test_time_left_needs_two_steps_and_a_total() -> None:
    pace = Pace(10)
    pace.add(1, 100.0)
    assert pace.seconds_left() is None
    pace.add(3, 104.0)
    assert pace.seconds_left() == 14.0


def test_a_warning_is_shown() -> None:
    out = io.StringIO()
    display = PlainDisplay(out)
    display.show(Event("warning", 0.0, 1, {"message": "slow disk"}))
    assert out.getvalue() == "warning (rank 1): slow disk\n"


def test_an_evaluation_is_shown_after_its_step() -> None:
    out = io.StringIO()
    display = PlainDisplay(out, Clock())
    for step in (1, 2):
        display.show(Event("step", 0.0, 0, {"step": step, "loss": 2.0}))
    display.show(Event("evaluation", 0.0, 0, {"step": 2, "eval_loss": 1.5}))
    display.show(
        Event("evaluation", 0.0, 0, {"step": 3, "eval_loss": None, "eval_loss_text": "nan"})
    )
    assert out.getvalue().splitlines()[1:] == [
        "step 2  loss 2.0000",
        "evaluation at step 2: eval_loss 1.5000",
        "evaluation at step 3: eval_loss nan",
    ]


def test_a_reader_that_went_away_stops_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream:
        display = PlainDisplay(stream)
        display.say("nobody reads this")
        display.say("nor this")


def test_a_long_phase_shows_what_its_bar_counts_and_how_fast() -> None:
    out, clock = io.StringIO(), Clock()
    display = PlainDisplay(out, clock)
    display.start(None)
    display.show(Event("phase", 0.0, 0, {"phase": "reference_logprobs"}))
    for done in range(0, 201, 2):  # two a second, for 100 s
        clock.now = done / 2
        display.show(Event("progress", clock.now, 0, {"done": done, "total": 200}))
    assert out.getvalue().splitlines() == [
        "reference log-probs",
        "reference log-probs: 60 of 200, 2 a second, 1 min 10 s left",
        "reference log-probs: 120 of 200, 2 a second, 40 s left",
        "reference log-probs: 180 of 200, 2 a second, 10 s left",
    ]
