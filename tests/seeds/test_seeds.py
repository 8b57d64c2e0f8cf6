"""The list of seeded faults still applies; ./scripts/seeds runs them, outside of this suite."""

from __future__ import annotations

import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.seeds.catalogue import AREAS, Seed, find_faults, load_seeds
from tests.seeds.runner import judge, run_tests
from tests.seeds.sandbox import Sandbox

SEEDS = load_seeds()
LEAST = 136  # none is dropped: a fault whose place is gone is seeded where the behaviour lives then

CODE = "def double(number):\n    return 2 * number\n"
TEST = "from launch.doubles import double\n\n\ndef test_double():\n    assert double(3) == 6\n"
SEED = Seed(
    "twice", "planner", "3", "6", "9", "launch/doubles.py", "2 *", "3 *", ("tests/test_doubles.py",)
)


def test_no_seed_is_dropped_and_every_area_has_some() -> None:
    assert len(SEEDS) >= LEAST
    assert [name for name, count in Counter(seed.id for seed in SEEDS).items() if count > 1] == []
    assert {seed.area for seed in SEEDS} == set(AREAS)


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: seed.id)
def test_a_seed_applies_where_the_behaviour_lives(seed: Seed) -> None:
    faults = seed.find_faults()
    if faults:
        pytest.fail("\n".join(faults), pytrace=False)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of one function and its test."""
    for name, text in {"launch/doubles.py": CODE, "tests/test_doubles.py": TEST}.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_seed_whose_place_or_test_moved_is_named_with_its_behaviour(project: Path) -> None:
    assert find_faults([SEED], project) == []
    moved = {
        "the file is gone": replace(SEED, file="launch/gone.py"),
        "occurs 0 times": replace(SEED, old="4 *"),
        "occurs 2 times": replace(SEED, old="number"),
        "which is gone": replace(SEED, tests=("tests/test_doubles.py::test_half",)),
        "syntax error": replace(SEED, new="2 2"),
        "changes nothing": replace(SEED, new="2  *"),
        "names no test": replace(SEED, tests=()),
    }
    for reason, seed in moved.items():
        [fault] = find_faults([seed], project)
        assert "seed twice" in fault and reason in fault
    [fault] = find_faults([moved["the file is gone"]], project)
    assert (
        "seed the same behaviour anew where it lives now" in fault and "3: 6; the fault: 9" in fault
    )


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Sandbox:
    """A copy of this project, with one more module and its test."""
    sandbox = Sandbox(tmp_path_factory.mktemp("seeds").resolve() / "copy")
    (sandbox.folder / "launch" / "doubles.py").write_text(CODE)
    (sandbox.folder / "tests" / "test_doubles.py").write_text(TEST)
    return sandbox


def test_the_copy_is_what_its_processes_import(sandbox: Sandbox) -> None:
    sandbox.check()
    version = Seed(
        "version",
        "config",
        "",
        "",
        "",
        "launch/__init__.py",
        '__version__ = "',
        '__version__ = "99.',
        (),
    )
    command = [str(sandbox.folder / ".venv" / "bin" / "launch"), "--version"]
    with sandbox.apply(version):
        shown = subprocess.run(
            command, cwd="/", env={}, capture_output=True, text=True, check=True
        ).stdout
    assert "99." in shown


@pytest.mark.slow
def test_only_a_failed_assertion_catches_a_fault(sandbox: Sandbox) -> None:
    def verdict(seed: Seed) -> tuple[bool, str]:
        with sandbox.apply(seed):
            result = judge(seed, run_tests(sandbox, seed.tests))
        return result.caught, result.by

    assert run_tests(sandbox, SEED.tests).status == 0
    assert verdict(SEED) == (True, "tests/test_doubles.py::test_double")
    caught, why = verdict(replace(SEED, old="2 * number", new="number + number"))
    assert not caught and "its tests pass (1 ran)" in why
    caught, why = verdict(replace(SEED, new="(1 // 0) *"))
    assert not caught and "did not fail by an assertion (call): ZeroDivisionError" in why
    caught, why = verdict(replace(SEED, old="double(", new="triple("))
    # an ImportError as the test is collected
    assert not caught and "pytest ended with status 2" in why
    assert (sandbox.folder / SEED.file).read_text() == CODE
    assert run_tests(sandbox, SEED.tests).status == 0
