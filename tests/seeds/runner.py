"""What ./scripts/seeds runs: each fault of seeds.toml, or each drawn one, alone, in a copy, until
its tests fail.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tests.paths import ROOT
from tests.seeds.catalogue import Fault, Seed, find_faults, load_seeds
from tests.seeds.draw import Mutant, Probe, draw, find_rooms, load_equivalent
from tests.seeds.sandbox import Sandbox

_LIMIT = 300.0  # seconds of one seed's tests
_SECONDS = 12  # of processor time, after which no test of a drawn fault is started
_QUICK = "not slow and not slurm and not equivalence and not planted and not thorough"
_FAILED = (1, 2, None)  # pytest's: a test failed, one could not be imported; and no end
_NOT_REACHED = (0, 5)  # pytest's: the tests passed, or none was selected
RATES = Path(__file__).with_name("rates.toml")
_LEAST_DRAWN = 0.9  # share of the drawn faults of a room that are caught
_running: set[int] = set()  # process groups of tests
_PYTEST = (
    "-m",
    "pytest",
    "-q",
    "--maxfail=20",
    "-p",
    "no:cacheprovider",
    "-p",
    "tests.seeds.plugin",
)


@dataclass(frozen=True)
class Tested:
    """How a run of some tests ended."""

    __test__ = False  # for pytest, which takes the name for a test's
    status: int | None  # pytest's exit status; None if it ran past the limit
    seconds: float
    outcomes: tuple[dict[str, Any], ...]  # the lines of tests/seeds/plugin.py
    output: str

    @property
    def failure(self) -> dict[str, Any] | None:
        """The first failure by an assertion, else the first one."""
        failures = [outcome for outcome in self.outcomes if outcome["outcome"] == "failed"]
        return next(
            (outcome for outcome in failures if outcome["by_assertion"]), next(iter(failures), None)
        )

    @property
    def skipped(self) -> int:
        return sum(outcome["outcome"] == "skipped" for outcome in self.outcomes)


@dataclass(frozen=True)
class Result:
    """What the tests said of one seed."""

    id: str
    area: str
    caught: bool
    seconds: float
    by: str  # the test that caught it, or why it was not caught
    reached: bool = True  # whether its tests run the function


def run_tests(
    sandbox: Sandbox,
    tests: Sequence[str],
    limit: float | None = None,
    *options: str,
    **variables: str,
) -> Tested:
    """Run tests in the copy, with more options of pytest and variables for its plugin, until one
    fails by an assertion; all of them with SEEDS_KEEP_GOING.
    """
    with tempfile.TemporaryDirectory(prefix="seeds-report-") as folder:
        report = Path(folder) / "report"
        environ = {**sandbox.environ(), "SEEDS_REPORT": str(report), **variables}
        began = time.monotonic()
        process = subprocess.Popen(
            [str(sandbox.python), *_PYTEST, *options, *tests],
            cwd=sandbox.folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        status: int | None = None
        _running.add(process.pid)
        try:
            output, _ = process.communicate(timeout=limit)
            status = process.returncode
        except subprocess.TimeoutExpired:
            output = ""
        finally:
            if status is None:
                _kill_group(process.pid)
                process.wait()
            _running.discard(process.pid)
        lines = report.read_text(encoding="utf-8").splitlines() if report.is_file() else []
        seconds = time.monotonic() - began
        return Tested(status, seconds, tuple(json.loads(line) for line in lines), output)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def judge(seed: Fault, tested: Tested) -> Result:
    """Decide whether the tests caught the fault.

    One has to fail by an assertion, after a collection without errors; of a drawn fault any failure
    counts, and that it never ends.
    """
    if isinstance(seed, Mutant) and tested.status in _FAILED:
        by = tested.failure["test"] if tested.failure else f"pytest's status {tested.status}"
        return Result(seed.id, seed.area, caught=True, seconds=round(tested.seconds, 1), by=by)
    failure = tested.failure
    if tested.status is None:
        reason = f"its tests ran past {_LIMIT:.0f} s"
    elif tested.status == 0:
        skipped = f", {tested.skipped} skipped" if tested.skipped else ""
        reason = f"its tests pass ({len(tested.outcomes)} ran{skipped})"
    elif tested.status != 1 or failure is None:
        reason = f"pytest ended with status {tested.status}: {_last_line(tested.output)}"
    elif not failure["by_assertion"]:
        reason = (
            f"{failure['test']} did not fail by an assertion ({failure['when']}): "
            f"{failure['error']}"
        )
    else:
        return Result(
            seed.id, seed.area, caught=True, seconds=round(tested.seconds, 1), by=failure["test"]
        )
    return Result(seed.id, seed.area, caught=False, seconds=round(tested.seconds, 1), by=reason)


def _last_line(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no output"


def run_seeds(
    seeds: Sequence[Fault], sandboxes: Sequence[Sandbox], show: Callable[[str], None]
) -> list[Result]:
    """Apply each seed alone, as many side by side as there are copies; `show` gets a line of
    each.
    """
    idle: queue.SimpleQueue[Sandbox] = queue.SimpleQueue()
    for sandbox in sandboxes:
        idle.put(sandbox)

    def run_one(seed: Fault) -> Result:
        sandbox = idle.get()
        try:
            result = judge(seed, _try_fault(sandbox, seed))
            if isinstance(seed, Mutant) and not result.caught:
                probe = _try_fault(sandbox, Probe(**vars(seed)))
                result = replace(result, reached=probe.status not in _NOT_REACHED)
        finally:
            idle.put(sandbox)
        show(_row(result))
        if isinstance(seed, Mutant) and not result.caught:
            show(f"    {seed.behaviour}")
        return result

    with ThreadPoolExecutor(len(sandboxes)) as pool:
        try:
            return list(pool.map(run_one, seeds))
        except BaseException:  # an interrupt, too: the pool waits for the tests that run
            for pid in tuple(_running):
                _kill_group(pid)
            raise


def _try_fault(sandbox: Sandbox, fault: Fault) -> Tested:
    """Run the tests of a fault in a copy that has it."""
    with sandbox.apply(fault):
        if not isinstance(fault, Mutant):
            return run_tests(sandbox, fault.tests, _LIMIT)
        variables = {"SEEDS_SECONDS": str(_SECONDS), "SEEDS_WEIGHTS": json.dumps(fault.weights)}
        options = ("--maxfail=1", "-m", _QUICK)
        return run_tests(sandbox, fault.tests, _LIMIT, *options, **variables)


def _row(result: Result) -> str:
    verdict = "caught" if result.caught else "MISSED" if result.reached else "not run"
    return f"{result.id:38}{result.area:12}{verdict:8}{result.seconds:>7}  {result.by}"


def _select(seeds: Sequence[Seed], names: Sequence[str]) -> list[Seed]:
    """Return the seeds of these ids or areas; all without any."""
    unknown = [name for name in names if not any(name in (seed.id, seed.area) for seed in seeds)]
    if unknown:
        raise SystemExit(f"seeds: unknown id or area: {', '.join(unknown)} (--list shows them)")
    return [seed for seed in seeds if not names or {seed.id, seed.area} & set(names)]


def _list_seeds(seeds: Sequence[Seed]) -> None:
    for seed in seeds:
        print(f"{seed.id}  ({seed.area}; {seed.file})\n    {seed.behaviour}")


def _draw(options: argparse.Namespace) -> list[Mutant]:
    """Draw faults; those that are known to change nothing are left out. Raises SystemExit."""
    rooms = find_rooms(options.room)
    if unknown := [name for name in options.room if name not in rooms]:
        raise SystemExit(f"seeds: launch/ has no folder with code {', '.join(unknown)}")
    number = options.number or _read_commit()
    drawn = draw(rooms, number, options.draw)
    known = {(equal["file"], equal["function"], equal["change"]) for equal in load_equivalent()}
    mutants = [
        mutant
        for mutant in drawn
        if (mutant.file, mutant.change.function, mutant.difference) not in known
    ]
    print(
        f"seeds: {len(drawn)} faults by the number {number}, {len(drawn) - len(mutants)} of them "
        "change nothing",
        file=sys.stderr,
    )
    return mutants


def _read_commit() -> str:
    command = ["git", "rev-parse", "HEAD"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./scripts/seeds", description=main.__doc__)
    parser.add_argument(
        "seeds", nargs="*", metavar="ID", help="ids or areas of the list; all without any"
    )
    parser.add_argument("--list", action="store_true", help="print the list and run nothing")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument(
        "-j",
        type=int,
        default=1,
        metavar="N",
        help="faults side by side, each in a copy of its own",
    )
    parser.add_argument(
        "--draw", type=int, metavar="N", help="draw about N faults instead of the list"
    )
    parser.add_argument("--number", help="what the draw depends on; the commit without it")
    parser.add_argument(
        "--room",
        action="append",
        default=[],
        help="draw in this folder of launch/ only; repeatable",
    )
    return parser.parse_args()


def main() -> int:
    """Put each fault of the list, or each drawn one, alone into a copy and run its tests.

    Exit status 0 if all of the list are caught, or 90% of the drawn ones in each room.
    """
    options = _parse()
    seeds: list[Fault]
    if options.draw:
        seeds = [*_draw(options)]
    else:
        listed = _select(load_seeds(), options.seeds)
        if options.list:
            _list_seeds(listed)
            return 0
        if faults := find_faults(listed):
            print(*faults, sep="\n", file=sys.stderr)
            return 2
        seeds = [*listed]

    def show(line: str) -> None:
        print(line, file=sys.stderr if options.json else sys.stdout, flush=True)

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="launch-seeds-") as folder:
        sandboxes = [
            Sandbox(Path(folder).resolve() / str(number)) for number in range(max(1, options.j))
        ]
        for sandbox in sandboxes:
            sandbox.check()
        if not options.draw and not _pass_without_a_fault(seeds, sandboxes[0]):
            return 2
        show(f"{'id':38}{'area':12}{'':8}{'seconds':>7}  test")
        results = run_seeds(seeds, sandboxes, show)
        if options.draw:
            results = _judge_again([*zip(seeds, results, strict=True)], sandboxes, show)
    caught, seconds = sum(result.caught for result in results), round(time.monotonic() - began)
    if options.json:
        print(
            json.dumps(
                {"seeds": [asdict(result) for result in results], "seconds": seconds}, indent=1
            )
        )
    elif options.draw:
        print(*table(results), sep="\n")
    else:
        print(f"{caught} of {len(results)} faults caught in {seconds} s")
    least = _LEAST_DRAWN if options.draw else 1.0
    return 0 if all(share >= least for share in shares(results).values()) else 1


def _pass_without_a_fault(seeds: Sequence[Fault], sandbox: Sandbox) -> bool:
    tests = list(dict.fromkeys(test for seed in seeds for test in seed.tests))
    print(f"seeds: {len(tests)} tests and files without a fault", file=sys.stderr, flush=True)
    clean = run_tests(sandbox, tests)
    if clean.status != 0:
        print(clean.output[-4000:], "seeds: they fail without a fault too", file=sys.stderr)
        return False
    print(f"seeds: passed in {clean.seconds:.0f} s", file=sys.stderr, flush=True)
    return True


def _judge_again(
    judged: Sequence[tuple[Fault, Result]],
    sandboxes: Sequence[Sandbox],
    show: Callable[[str], None],
) -> list[Result]:
    """Return the results of drawn faults, without the tests that fail in a copy that has no fault.

    Such a test needs what a copy lacks, or is broken by load. The faults that it caught are tried
    again by the other tests.
    """
    judged = [*judged]
    useless: set[str] = set()
    options = ("-n", str(len(sandboxes)), "--maxfail=100000")
    while True:
        catchers = sorted(
            {result.by for _, result in judged if result.caught and "::" in result.by}
        )
        clean = run_tests(sandboxes[0], catchers, None, *options, SEEDS_KEEP_GOING="1")
        failed = {found["test"] for found in clean.outcomes if found["outcome"] == "failed"}
        if not failed:
            return [result for _, result in judged]
        useless |= failed
        print(f"seeds: without a fault these fail too: {sorted(failed)}", file=sys.stderr)
        again: list[Fault] = []
        for fault, result in judged:
            if result.by in failed and isinstance(fault, Mutant):
                again.append(fault.without_tests(useless))
        kept = [(fault, result) for fault, result in judged if result.by not in failed]
        judged = [*kept, *zip(again, run_seeds(again, sandboxes, show), strict=True)]


def shares(results: Sequence[Result]) -> dict[str, float]:
    """Return the share of the faults of each area that were caught, of those that tests ran."""
    caught: dict[str, list[bool]] = {}
    for result in results:
        if result.reached:
            caught.setdefault(result.area, []).append(result.caught)
    return {area: sum(found) / len(found) for area, found in sorted(caught.items())}


def table(results: Sequence[Result]) -> list[str]:
    """Return how many drawn faults of each room were caught, beside the rates of rates.toml."""
    kept = tomllib.loads(RATES.read_text(encoding="utf-8"))["percent"]
    rows = [f"{'room':14}{'faults':>8}{'not run':>9}{'caught':>8}{'kept':>8}"]
    faults = Counter(result.area for result in results if result.reached)
    not_run = Counter(result.area for result in results if not result.reached)
    for area, share in shares(results).items():
        rows.append(
            f"{area:14}{faults[area]:>8}{not_run[area]:>9}{share:>8.0%}{kept.get(area, '-'):>7}%"
        )
    share = sum(result.caught for result in results) / max(1, faults.total())
    return [*rows, f"{'all':14}{faults.total():>8}{not_run.total():>9}{share:>8.0%}"]


if __name__ == "__main__":
    sys.exit(main())
