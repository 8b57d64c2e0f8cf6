"""A pytest plugin that writes each test's outcome as a JSON line into the file that SEEDS_REPORT
names.

It ends the session at the first test that fails by an assertion, unless SEEDS_KEEP_GOING is set.
Tests with more of the words that SEEDS_WEIGHTS weighs come first, and a test's first case before its
others; none is started after SEEDS_SECONDS of processor time.
"""

from __future__ import annotations

import inspect
import json
import os
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.seeds.choice import weigh_text

# read before a test changes the environment
_REPORT = Path(os.environ["SEEDS_REPORT"])
_KEEPS_GOING = bool(os.environ.get("SEEDS_KEEP_GOING"))
_WEIGHTS: dict[str, float] = json.loads(os.environ.get("SEEDS_WEIGHTS") or "{}")
_SECONDS = float(os.environ.get("SEEDS_SECONDS") or "inf")
_began: list[float] = []  # when the first test was started


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
        with _REPORT.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
        if entry["by_assertion"] and not _KEEPS_GOING:
            item.session.shouldfail = "a test has failed by an assertion"
    return report


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the likeliest tests first; each further case of a test is less likely than the one before
    it to notice what those have not.
    """
    if not _WEIGHTS:
        return
    files = [config.rootpath / argument for argument in config.args]
    cases: Counter[str] = Counter()
    ranks: dict[pytest.Item, tuple[float, int, int]] = {}
    for item in items:
        test = item.nodeid.partition("[")[0]
        cases[test] += 1
        source = inspect.getsource(item.obj) if isinstance(item, pytest.Function) else ""
        likely = weigh_text(source, _WEIGHTS) / cases[test]
        ranks[item] = -likely, cases[test], files.index(item.path)
    items.sort(key=ranks.__getitem__)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Leave out a test when the time is over."""
    spent = sum(os.times()[:4])  # of this process and those that it started
    _began[:] = _began or [spent]
    return True if spent - _began[0] > _SECONDS else None
