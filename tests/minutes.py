"""Prints how long the tests of each folder took: `python -m tests.minutes FILE...`, for
`scripts/test --all`.

The files are JUnit XML of pytest's sessions. Times are added up over the processes that run side by
side, so that their sum is more than the time that passed.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree


def minutes_by_folder(files: Sequence[Path]) -> list[tuple[str, int, float]]:
    """Return (folder below tests/, cases, minutes with their fixtures), the longest first; files
    that are missing are sessions that did not end.
    """
    cases, seconds = Counter[str](), Counter[str]()
    for file in files:
        for case in ElementTree.parse(file).iter("testcase") if file.is_file() else ():
            module = case.get("classname", "").split(".")
            folder = module[1] if len(module) > 2 else "tests"
            cases[folder] += 1
            seconds[folder] += float(case.get("time", 0))
    return [(folder, cases[folder], taken / 60) for folder, taken in seconds.most_common()]


def describe(rows: Sequence[tuple[str, int, float]]) -> Iterator[str]:
    """Yield a line for each folder, and one for all."""
    total = ("all", sum(cases for _, cases, _ in rows), sum(minutes for _, _, minutes in rows))
    for folder, cases, minutes in (*rows, total):
        yield f"{minutes:6.1f} minutes  {folder} ({cases} cases)"


if __name__ == "__main__":
    print(*describe(minutes_by_folder([Path(file) for file in sys.argv[1:]])), sep="\n")
