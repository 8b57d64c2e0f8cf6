"""A pytest plugin that writes each test's outcome as a JSON line into the file that SEEDS_REPORT
names.

It ends the session at the first test that fails by an assertion, unless SEEDS_KEEP_GOING is set.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Record a test that was called, and a fixture that was not made or was skipped."""
    report = yield
    if report.when == "call" or report.outcome != "passed":
        error = call.excinfo.value if call.excinfo is not None and report.failed else None
        timed_out = str(error).startswith("Timeout ")  # pytest-timeout's
        is_assertion = (
            isinstance(error, AssertionError | pytest.fail.Exception) and report.when == "call"
        )
        entry = {
            "test": item.nodeid,
            "outcome": report.outcome,
            "when": report.when,
            "by_assertion": is_assertion and not timed_out,
            "error": None if error is None else f"{type(error).__name__}: {error}"[:300],
        }
        with Path(os.environ["SEEDS_REPORT"]).open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
        if entry["by_assertion"] and not os.environ.get("SEEDS_KEEP_GOING"):
            item.session.shouldfail = "a test has failed by an assertion"
    return report
