"""Which tests reach a function, and how long each takes: measured once for a commit by the quick
suite under coverage.

A test's own process names the test that runs; a process that a test starts takes the name from
PYTEST_CURRENT_TEST.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import coverage
import pytest

from tests.paths import ROOT

FOLDER = ROOT / "build" / "seeds"
_QUICK = "not slow and not slurm and not equivalence"
_SECONDS = "SEEDS_SECONDS"  # names the file for the seconds of each test


@dataclass(frozen=True)
class Contexts:
    """What the quick suite reached."""

    commit: str
    # files that differ from it: modules that are not drawn, tests that are run whole
    changed: frozenset[str]
    data: coverage.CoverageData
    seconds: dict[str, float]  # by test
    # tests by file and line
    _read: dict[str, dict[int, list[str]]] = field(default_factory=dict, compare=False)

    def find_tests(self, file: str, lines: range) -> list[str]:
        """Return the tests that run any of the lines of a file, quick ones first."""
        reached = self._contexts_of(file)
        names = {
            _test_of(context) for line in lines for context in reached.get(line, ())
        } & self.seconds.keys()
        return sorted(names, key=lambda name: (self.seconds[name], name))

    def _contexts_of(self, file: str) -> dict[int, list[str]]:
        if file not in self._read:
            self._read[file] = self.data.contexts_by_lineno(str(ROOT / file))
        return self._read[file]


def _test_of(context: str) -> str:
    """Return the test of a context; PYTEST_CURRENT_TEST has its phase behind the name."""
    return context.removesuffix(" (call)").removesuffix(" (setup)")


def load_contexts(anew: bool = False) -> Contexts:
    """Return what the tests reach, as measured at this commit or an earlier one. Raises
    SystemExit.
    """
    commits = _git("rev-list", "HEAD").split()
    commit = next((commit for commit in commits if (FOLDER / commit / "done").is_file()), None)
    if anew or commit is None:
        commit = commits[0]
        if _git("status", "--porcelain", "--untracked-files=no"):
            raise SystemExit(
                "seeds: commit your changes first: what the tests reach is kept for a commit"
            )
        _measure(FOLDER / commit)
    data = coverage.CoverageData(str(FOLDER / commit / "data"))
    data.read()
    lines = (FOLDER / commit / "seconds").read_text(encoding="utf-8").splitlines()
    changed = _git("diff", "--name-only", commit, "--", "launch", "tests").split()
    new = _git("ls-files", "--others", "--exclude-standard", "--", "launch", "tests").split()
    return Contexts(
        commit, frozenset([*changed, *new]), data, dict(json.loads(line) for line in lines)
    )


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


def _measure(folder: Path) -> None:
    print(
        "seeds: which tests reach what: the quick suite under coverage, once for this commit",
        file=sys.stderr,
    )
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    options = ["--rcfile", str(Path(__file__).with_name("coverage.ini"))]
    workers = ["-n", "auto", "--maxprocesses", "4", "--dist", "loadfile"]
    pytest_options = ["-q", *workers, "-p", "tests.seeds.contexts"]
    environ = {
        **os.environ,
        "COVERAGE_FILE": str(folder / "data"),
        _SECONDS: str(folder / "seconds"),
    }
    program = [sys.executable, "-m", "coverage"]
    suite = [*program, "run", *options, "-m", "pytest", *pytest_options, "-m", _QUICK]
    # what a test reached that did not pass is not counted: see pytest_runtest_logreport
    status = subprocess.run(suite, cwd=ROOT, env=environ, stdout=sys.stderr, check=False).returncode
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise SystemExit(f"seeds: the quick suite could not be run (exit {status})")
    subprocess.run([*program, "combine", "--quiet", *options], cwd=ROOT, env=environ, check=True)
    (folder / "done").touch()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Name the test to coverage while it runs."""
    measured = coverage.Coverage.current()
    if measured is not None:
        measured.switch_context(item.nodeid)
    try:
        return (yield)
    finally:
        if measured is not None:
            measured.switch_context("")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Record how long a test took, in the process that ran it."""
    is_worker = "PYTEST_XDIST_WORKER" in os.environ
    if report.when == "call" and report.passed and is_worker:
        with Path(os.environ[_SECONDS]).open("a", encoding="utf-8") as file:
            file.write(json.dumps([report.nodeid, round(report.duration, 3)]) + "\n")


def choose_tests(
    tests: Sequence[str], seconds: dict[str, float], own: Sequence[str], budget: float
) -> list[str]:
    """Return tests of at most `budget` seconds: those of the files `own` first, else the
    quickest.
    """
    ordered = sorted(tests, key=lambda test: test.partition("::")[0] not in own)
    chosen, spent = list[str](), 0.0
    for test in ordered:
        if chosen and spent + seconds[test] > budget:
            continue
        chosen.append(test)
        spent += seconds[test]
    return chosen
