from __future__ import annotations

import pytest

from launch.execution.diagnosis.causes import CauseFinder
from launch.execution.record.events import Event

FIRST = """[rank1]: Traceback (most recent call last):
[rank1]:   File "<frozen runpy>", line 88, in _run_code
[rank1]:   File "train.py", line 5, in <module>
[rank1]:     step()
[rank1]: RuntimeError: shapes do not match""".splitlines()
LATER = """Traceback (most recent call last):
  File "train.py", line 9, in <module>
torch.distributed.DistBackendError: Connection closed by peer""".splitlines()
ELASTIC = """============================================================
train.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-08-20_09:00:00
  host      : node
  rank      : {rank} (local_rank: {rank})
  exitcode  : {code} (pid: 123)
  error_file: <N/A>
============================================================""".splitlines()


def elastic(rank: int, code: int) -> list[str]:
    return [line.format(rank=rank, code=code) for line in ELASTIC]


def test_the_earliest_traceback_is_the_cause() -> None:
    finder = CauseFinder([0, 1, 2])
    finder.add_lines(1, FIRST, 5.0)
    finder.add_lines(0, LATER, 6.0)
    finder.add_lines(2, LATER, 5.5)
    cause = finder.find_cause(1)
    assert (cause.rank, cause.line) == (1, "RuntimeError: shapes do not match")
    assert cause.detail[:2] == (
        "Traceback (most recent call last):",
        '  File "train.py", line 5, in <module>',
    )


def test_an_earlier_traceback_that_was_survived_is_not() -> None:
    finder = CauseFinder([0, 1])
    finder.add_lines(0, LATER, 1.0)
    finder.add_lines(0, ["training goes on"], 2.0)
    finder.add_lines(1, FIRST, 5.0)
    finder.add_lines(0, LATER, 6.0)
    assert finder.find_cause(1).rank == 1


def test_torch_elastic_knows_better() -> None:
    finder = CauseFinder([0, 1])
    finder.add_lines(0, LATER, 1.0)
    finder.add_lines(1, ["step 5"], 2.0)
    finder.add_launcher_lines(elastic(rank=1, code=-9), 3.0)
    cause = finder.find_cause(1)
    assert cause.rank == 1
    assert cause.line == "rank 1 was killed by SIGKILL"
    assert cause.cure is not None and cause.cure.text.startswith("possibly: the kernel")


def test_the_rank_that_the_system_ended_comes_before_those_that_lost_it() -> None:
    """Rank 0 sees its connection break, and elastic sees rank 0's end first."""
    table = elastic(rank=0, code=1)
    others = [
        "Failures:",
        "[1]:",
        "  rank      : 1 (local_rank: 1)",
        "  exitcode  : -9 (pid: 124) <NA>",
        "-----",
    ]
    for message, cause in (
        (
            "[../gloo/pair.cc:525] Connection closed by peer [127.0.0.1]:5",
            "rank 1 was killed by SIGKILL",
        ),
        ("shapes do not match", "DistBackendError: shapes do not match"),
    ):
        finder = CauseFinder([0, 1])
        finder.add_lines(1, ["step 5"], 1.0)
        finder.add_error(Event("error", 2.0, 0, {"message": message, "type": "DistBackendError"}))
        finder.add_launcher_lines([*table[:3], *others, *table[3:]], 3.0)
        assert finder.find_cause(1).line.startswith(cause)


def test_an_error_event_comes_first_and_the_earliest_one() -> None:
    finder = CauseFinder([0, 1])
    finder.add_lines(1, FIRST, 5.0)
    finder.add_error(Event("error", 7.0, 0, {"message": "later", "type": "DistBackendError"}))
    finder.add_error(
        Event("error", 6.0, 1, {"message": "shapes do not match", "type": "RuntimeError"})
    )
    cause = finder.find_cause(1)
    assert (cause.rank, cause.line) == (1, "RuntimeError: shapes do not match")
    assert len(cause.detail) == 4


def test_the_root_of_a_chain_is_the_cause() -> None:
    finder = CauseFinder([0])
    chained = [
        *LATER,
        "",
        "During handling of the above exception, another exception occurred:",
        "",
        *LATER[:2],
    ]
    finder.add_lines(0, [line for line in chained if line] + ["ValueError: the last one"], 1.0)
    cause = finder.find_cause(1)
    assert (
        cause.line == "DistBackendError: Connection closed by peer (then ValueError: the last one)"
    )
    assert sum("Traceback" in line for line in cause.detail) == 2


def test_without_a_traceback_the_last_line_is_quoted_and_a_progress_bar_never() -> None:
    finder = CauseFinder([0])
    finder.add_lines(
        0,
        [*(f"line {number}" for number in range(100)), "  3%|x   | 3/100 [00:04<02:10,  1.3s/it]"],
        1.0,
    )
    cause = finder.find_cause(1)
    assert (
        cause.line
        == "the launcher exited with status 1, for an unknown reason; the last line of rank 0: "
        "line 99"
    )
    assert len(cause.detail) == 15
    killed = finder.find_cause(-9)
    assert killed.line == "the launcher was killed by SIGKILL" and killed.rank is None


def test_accelerate_knows_how_its_only_process_ended() -> None:
    finder = CauseFinder([0])
    finder.add_lines(0, ["  3%|x   | 3/100 [00:04<02:10,  1.3s/it]"], 1.0)
    command = ", ".join(f"'--flag{number}', 'value'" for number in range(200))
    error = f"subprocess.CalledProcessError: Command '[{command}]' died with <Signals.SIGSEGV: 11>."
    finder.add_launcher_lines(["Traceback (most recent call last):", "  File x", error], 2.0)
    assert finder.find_cause(1).line == "rank 0 was killed by SIGSEGV"


def test_escape_codes_are_removed() -> None:
    finder = CauseFinder([0])
    message = "\x1b]0;owned\x07\x1b[2Jbad \x1b[31mred\x1b[0m \x9b5n\x08"
    finder.add_error(Event("error", 1.0, 0, {"message": message, "type": "ValueError"}))
    finder.add_lines(
        0, ["Traceback (most recent call last):", "  File x", f"ValueError: {message}"], 1.0
    )
    cause = finder.find_cause(1)
    assert cause.line == "ValueError: bad red \\x08"
    assert "\x1b" not in "".join(cause.detail)


def test_a_launcher_that_died_alone() -> None:
    finder = CauseFinder([0])
    lines = [
        "Traceback (most recent call last):",
        "  File x",
        "ModuleNotFoundError: No module named 'accelerate'",
    ]
    finder.add_launcher_lines(lines, 1.0)
    assert finder.find_cause(1).line == "ModuleNotFoundError: No module named 'accelerate'"
    assert finder.find_cause(1).rank is None


def test_nothing_said_at_all() -> None:
    assert CauseFinder([0]).find_cause(-11).line == "the launcher was killed by SIGSEGV"
    assert (
        CauseFinder([0]).find_cause(3).line
        == "the launcher exited with status 3, for an unknown reason"
    )
    assert "disappeared" in CauseFinder([0]).find_cause(None).line


WARNINGS = [
    "/env/torch/nn/modules/module.py:1501: FutureWarning: `x` is going away",
    "  warnings.warn(",
    "[W820 socket.cpp:464] The server socket has failed to bind",
    "2026-11-23 10:00:00 WARNING the cache is old",
    "[INFO|trainer.py:100] 2026-11-23 >> this is deprecated",
]


@pytest.mark.parametrize("signal_number", [9, 11, 15])
def test_a_killed_rank_is_shown_without_warnings(signal_number: int) -> None:
    finder = CauseFinder([0, 1])
    finder.add_lines(1, ["step 5, loss 2.0", *WARNINGS, "step 6, loss 1.9"], 2.0)
    finder.add_launcher_lines(elastic(rank=1, code=-signal_number), 3.0)
    assert finder.find_cause(1).detail == ("step 5, loss 2.0", "step 6, loss 1.9")
