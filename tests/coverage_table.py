"""What ./scripts/coverage runs: the suite under coverage.py, a table by folder of launch/, the
comparison.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from tests.paths import ROOT

BASELINE = ROOT / "tests" / "coverage.toml"
WHOLE, FILES = "launch", "launch/*.py"
_TOLERANCE = 1.0  # points that a folder may lose


@dataclass(frozen=True)
class Reached:
    """How much of a folder the tests reach."""

    lines: int = 0
    lines_reached: int = 0
    branches: int = 0
    branches_reached: int = 0

    def __add__(self, other: Reached) -> Reached:
        return Reached(
            self.lines + other.lines,
            self.lines_reached + other.lines_reached,
            self.branches + other.branches,
            self.branches_reached + other.branches_reached,
        )

    @property
    def percent(self) -> dict[str, float]:
        """Percent of the lines and of the branches; a folder without any has lost none."""
        counts = {
            "lines": (self.lines_reached, self.lines),
            "branches": (self.branches_reached, self.branches),
        }
        return {
            what: round(100 * reached / count, 1) if count else 100.0
            for what, (reached, count) in counts.items()
        }


def sum_folders(files: Mapping[str, Mapping[str, Mapping[str, int]]]) -> dict[str, Reached]:
    """Sum coverage.py's JSON by first-level folder of launch/; the files beside the folders and all
    of launch/ too.
    """
    folders: dict[str, Reached] = {}
    for name, file in sorted(files.items()):
        parts = Path(name).parts
        summary = file["summary"]
        names = ("num_statements", "covered_lines", "num_branches", "covered_branches")
        reached = Reached(*(summary[key] for key in names))
        for folder in (parts[1] if len(parts) > 2 else FILES, WHOLE):
            folders[folder] = folders.get(folder, Reached()) + reached
    return folders


def find_losses(now: Mapping[str, Reached], before: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Say which folders lost more than a point; one that is gone is part of launch/ as a whole."""
    return [
        f"{folder}: {what} fell from {value} to {now[folder].percent[what]} %"
        for folder, values in before.items()
        if folder in now
        for what, value in values.items()
        if now[folder].percent[what] < value - _TOLERANCE
    ]


def table(folders: Mapping[str, Reached]) -> list[str]:
    """The lines of the table."""
    rows = [f"{'folder':14}{'lines %':>9}{'branches %':>12}{'lines':>16}{'branches':>16}"]
    for folder, reached in sorted(folders.items(), key=lambda item: (item[0] == WHOLE, item[0])):
        lines, branches = reached.percent.values()
        of_lines = f"{reached.lines_reached}/{reached.lines}"
        rows.append(
            f"{folder:14}{lines:>9}{branches:>12}{of_lines:>16}{f'{reached.branches_reached}/{reached.branches}':>16}"
        )
    return rows


def baseline_text(folders: Mapping[str, Reached], suite: str) -> str:
    """The content of the baseline: percentages, and how they were measured."""
    made = (
        f"{suite} suite, Python {sys.version.split()[0]}, coverage {version('coverage')}, "
        f"{time.strftime('%Y-%m-%d')}"
    )
    head = [
        (
            "# What the tests reach, in percent by folder of launch/. Measured by "
            "./scripts/coverage: "
            f"{made}."
        ),
        "",
    ]
    rows = [
        f'"{folder}" = {{ lines = {reached.percent["lines"]}, branches = '
        f"{reached.percent['branches']} }}"
        for folder, reached in sorted(folders.items())
    ]
    return "\n".join([*head, f"[{suite}]", *rows, ""])


def measure(arguments: Iterable[str], processes: str) -> tuple[dict[str, Reached], int]:
    """Run pytest with these arguments in every measured process; the folders, and pytest's exit
    status.
    """
    with tempfile.TemporaryDirectory(prefix="coverage-") as folder:
        environ = {**os.environ, "COVERAGE_FILE": f"{folder}/data"}
        coverage = [sys.executable, "-m", "coverage"]
        options = ["--rcfile", str(ROOT / "tests" / "coverage.ini")]
        side_by_side = (
            ["-n", processes, "--maxprocesses", "4", "--dist", "loadfile"]
            if processes != "0"
            else []
        )
        suite = [*coverage, "run", *options, "-m", "pytest", "-q", *side_by_side, *arguments]
        status = subprocess.run(suite, cwd=ROOT, env=environ, check=False).returncode
        subprocess.run(
            [*coverage, "combine", "--quiet", *options], cwd=ROOT, env=environ, check=True
        )
        file = Path(folder) / "coverage.json"
        subprocess.run(
            [*coverage, "json", "--quiet", *options, "-o", str(file)],
            cwd=ROOT,
            env=environ,
            check=True,
        )
        return sum_folders(json.loads(file.read_text(encoding="utf-8"))["files"]), status


def main() -> int:
    """Measure, print the table, compare or renew."""
    parser = argparse.ArgumentParser(prog="./scripts/coverage")
    parser.add_argument("--all", action="store_true", help="the slow tests and a real Slurm too")
    parser.add_argument("--renew", action="store_true", help="write tests/coverage.toml")
    parser.add_argument("-n", default="auto", metavar="N", help="test processes side by side")
    options, tests = parser.parse_known_args()
    suite = "all" if options.all else "quick"
    folders, status = measure(
        tests if options.all else ["-m", "not slow and not slurm", *tests], options.n
    )
    print(*table(folders), sep="\n")
    if status > 1:
        print(
            f"coverage: pytest did not finish (exit {status}); nothing is compared", file=sys.stderr
        )
        return 2
    if status:
        print(
            "coverage: some tests failed, above; what they would have reached is missing",
            file=sys.stderr,
        )
    if options.renew:
        BASELINE.write_text(baseline_text(folders, suite), encoding="utf-8")
        return 0
    before = tomllib.loads(BASELINE.read_text(encoding="utf-8"))
    if suite not in before:
        print(f"coverage: {BASELINE.name} has no figures of the {suite} suite", file=sys.stderr)
        return 2
    losses = find_losses(folders, before[suite])
    print(*losses or ["no folder lost more than a point"], sep="\n")
    return 1 if losses else 0


if __name__ == "__main__":
    sys.exit(main())
