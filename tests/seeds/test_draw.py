"""Drawn faults: each changes one place, a number gives the same ones, and tests are found by what
they reached.
"""

from __future__ import annotations

import ast

import coverage
import pytest

from tests.paths import ROOT
from tests.seeds.catalogue import Fault
from tests.seeds.contexts import Contexts, choose_tests
from tests.seeds.draw import LEAST, Room, draw, find_rooms, load_equivalent
from tests.seeds.operators import find_changes
from tests.seeds.runner import Result, Tested, judge, shares

PLANNED = "launch/planning/parallel.py"


@pytest.mark.parametrize(
    ("line", "kind", "changed"),
    [
        ("return a < b", "a comparison turned", "return (a <= b)"),
        ("return a not in b", "a comparison turned", "return (a in b)"),
        ("return a is None", "a comparison turned", "return (a is not None)"),
        ("return a + 1.5", "a constant moved", "return a + 2.5"),
        ("return a + 1", "an operator turned", "return (a - 1)"),
        ("return True", "a constant moved", "return False"),
        ("return not a", "a `not` gone", "return (a)"),
        ("return a and b", "`and` and `or` swapped", "return ((a) or (b))"),
        ("a(b)", "a call left out", "pass"),
        ("return 'é', a == b", "a comparison turned", "return 'é', (a != b)"),
    ],
)
def test_a_change_of_a_line(line: str, kind: str, changed: str) -> None:
    text = f"def function(a, b):\n    {line}\n"
    results = {change.kind: change.apply(text) for change in find_changes(text)}
    assert results[kind] == f"def function(a, b):\n    {changed}\n"


def test_a_branch_and_a_default() -> None:
    text = (
        "class Kind:\n    def method(self, most=3):\n        if most > self.count:\n            "
        "return most\n"
    )
    changes = {change.kind: change for change in find_changes(text)}
    assert {change.function for change in changes.values()} == {"Kind.method"}
    assert "if ((most > self.count) and False):" in changes["a branch left out"].apply(text)
    assert "def method(self, most=4):" in changes["a default swapped"].apply(text)


@pytest.mark.parametrize(
    "text",
    [
        # texts, and inside an f-string
        'def f(a):\n    """Not 1, and a < b."""\n    return f"{a < 1} of {a + 1}"\n',
        "LIMIT = 3\n",  # no function
        "def f(a):\n    return a, 'text'\n",
    ],
)
def test_what_is_not_changed(text: str) -> None:
    assert find_changes(text) == []


def test_every_change_of_a_module_is_another_valid_one() -> None:
    text = (ROOT / PLANNED).read_text(encoding="utf-8")
    before = ast.dump(ast.parse(text))
    changes = find_changes(text)
    assert len(changes) > 50
    assert all(ast.dump(ast.parse(change.apply(text))) != before for change in changes)


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> Contexts:
    """One test reaches every line of a module, another one half of them; a process that it started,
    the rest.
    """
    lines = range(1, 400)
    reached = {"tests/a.py::test_all": [*lines], "tests/b.py::test_half": [*lines[:150]]}
    data = coverage.CoverageData(str(tmp_path_factory.mktemp("contexts") / "data"))
    for context, numbers in reached.items():
        data.set_context(context)
        data.add_lines({str(ROOT / PLANNED): numbers})
    data.set_context("tests/b.py::test_half (call)")
    data.add_lines({str(ROOT / PLANNED): [*lines[200:]]})
    data.set_context("tests/gone.py::test_failed")
    data.add_lines({str(ROOT / PLANNED): [*lines]})
    return Contexts(
        "0", frozenset(), data, {"tests/a.py::test_all": 2.0, "tests/b.py::test_half": 0.5}
    )


@pytest.fixture(scope="module")
def planning(contexts: Contexts) -> dict[str, Room]:
    return find_rooms(contexts, "planning")


def test_tests_are_found_by_what_they_or_their_processes_reached(contexts: Contexts) -> None:
    # the quick one first; one that did not pass is not named
    both = ["tests/b.py::test_half", "tests/a.py::test_all"]
    assert contexts.find_tests(PLANNED, range(100, 120)) == both
    assert contexts.find_tests(PLANNED, range(160, 180)) == ["tests/a.py::test_all"]
    assert contexts.find_tests(PLANNED, range(250, 251)) == both
    assert contexts.find_tests("launch/files.py", range(1, 50)) == []


def test_the_tests_of_a_module_come_first_and_all_fit_the_time() -> None:
    seconds = {
        "tests/a.py::one": 5.0,
        "tests/b.py::two": 1.0,
        "tests/c.py::three": 8.0,
        "tests/d.py::four": 0.5,
    }
    assert choose_tests([*seconds], seconds, ["tests/c.py"], 9.0) == [
        "tests/c.py::three",
        "tests/b.py::two",
    ]
    # one at least
    assert choose_tests(["tests/c.py::three"], seconds, [], 1.0) == ["tests/c.py::three"]


def test_a_number_draws_the_same_faults_again(
    contexts: Contexts, planning: dict[str, Room]
) -> None:
    # nothing else was reached
    assert {file for file, _ in planning["planning"].functions} == {PLANNED}
    assert planning["planning"].unreached > 100
    first, again, other = (draw(planning, contexts, number, 20) for number in ("a1", "a1", "b2"))
    assert first == again != other
    assert len(first) >= LEAST and len({(fault.id, fault.difference) for fault in first}) == len(
        first
    )
    assert all(fault.tests for fault in first)


def test_a_fault_of_a_draw_is_caught_by_any_failure(
    contexts: Contexts, planning: dict[str, Room]
) -> None:
    fault: Fault = draw(planning, contexts, "a1", 10)[0]
    verdicts = {
        status: judge(fault, Tested(status, 1.0, (), "")).caught
        for status in (0, 1, 2, 4, -9, None)
    }
    # 4: no such test
    assert verdicts == {0: False, 1: True, 2: True, 4: False, -9: False, None: True}
    results = [
        Result("x", room, caught, 1.0, "")
        for room, caught in (("a", True), ("a", False), ("b", True))
    ]
    assert shares(results) == {"a": 0.5, "b": 1.0}


def test_equivalent_changes_exist() -> None:
    for equal in load_equivalent():
        text = (ROOT / equal["file"]).read_text(encoding="utf-8")
        old = equal["change"].partition(" -> ")[0]
        assert old in " ".join(text.split()) and equal["why"], equal
