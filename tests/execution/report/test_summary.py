"""The tables of a run's page that a record gives line by line."""

from __future__ import annotations

from launch.execution.report.summary import git_rows


def test_uncommitted_changes_that_nobody_could_ask_for_are_unknown() -> None:
    states = {
        "launch": {"commit": "a" * 40, "dirty": False},
        "open-instruct": {"commit": "b" * 40, "dirty": True},
        "mine": {"why": "no git", "dirty": None},
        "damaged": 3,
    }
    heading, *rows = git_rows(states)
    assert len(heading) == 3
    assert rows == [
        ["launch", "a" * 40, "none"],
        ["open-instruct", "b" * 40, "yes"],
        ["mine", "unknown: no git", "unknown"],
    ]
    assert git_rows({}) == []
