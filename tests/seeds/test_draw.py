"""Drawn faults: each changes one place, a number gives the same ones, and tests are found by imports
and words.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT
from tests.seeds.choice import choose_files, find_subjects, weigh_text, weigh_words
from tests.seeds.draw import LEAST, Mutant, Probe, draw, find_rooms, load_equivalent
from tests.seeds.operators import find_changes
from tests.seeds.runner import Result, Tested, judge, shares, table

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


MODULE = """
def share(a):
    return a

def _split(a):
    return share(a)

class Plan:
    def width(self):
        return _split(2)

def other(a):
    return a
"""


@pytest.mark.parametrize(
    ("function", "subjects"),
    [
        ("share", ("share", "Plan")),  # Plan uses it by way of a private function
        ("_split", ("Plan",)),
        ("Plan.width", ("width", "Plan")),
        ("other", ("other",)),
    ],
)
def test_a_function_is_reached_by_its_name_or_those_that_use_it(
    function: str, subjects: tuple[str, ...]
) -> None:
    assert find_subjects(MODULE, function) == subjects


def test_a_text_has_the_weights_of_its_words() -> None:
    texts = ("Plan(share, plan, plans)", "Plan", "shared plans", "")
    weights = {"share": 2.0, "Plan": 1.0}
    assert [weigh_text(text, weights) for text in texts] == [3.0 / 2, 1.0, 0.0, 0.0]


def test_rare_words_of_a_function_weigh_more() -> None:
    text = (ROOT / "launch/planning/batch_split.py").read_text(encoding="utf-8")
    [change, *_] = [one for one in find_changes(text) if one.function == "share_batch"]
    weights = weigh_words(text, "share_batch", change.lines)
    assert weights["global_batch_tokens"] > weights["recipe"] > 0
    files = choose_files("launch/planning/batch_split.py", weights)
    assert "tests/planning/test_olmo3.py" in files  # it sets the key, and names no function


@pytest.mark.parametrize(
    ("file", "function", "first"),
    [
        ("launch/planning/loss.py", "weigh_loss", "tests/planning/test_loss.py"),  # of its name
        ("launch/worker/evidence/precision.py", "check_zero", "worker/evidence/test_"),  # names it
        ("launch/commands/verbs.py", "gone", "tests/"),  # imports it
        ("launch/trials/tune/engine.py", "gone", "tests/"),
        ("launch/redact.py", "gone", "tests/test_redact.py"),
    ],
)
def test_the_likeliest_tests_of_a_function_come_first(file: str, function: str, first: str) -> None:
    files = choose_files(file, {function: 1.0})
    assert first in files[0] and 1 < len(files) < 10
    assert all((ROOT / name).is_file() for name in files)


def test_a_test_of_a_command_is_one_of_the_modules_that_it_imports() -> None:
    assert "tests/commands/test_tune.py" in choose_files(
        "launch/trials/tune/engine.py", {"dry_run": 1.0}
    )


def test_a_number_draws_the_same_faults_again() -> None:
    rooms = find_rooms(["host", "rules"])
    first, again, other = (draw(rooms, number, 20) for number in ("a1", "a1", "b2"))
    assert first == again != other
    assert {fault.area for fault in first} == {"host", "rules"}
    assert len({(fault.id, fault.difference) for fault in first}) == len(first) >= 2 * LEAST
    assert all(fault.tests for fault in first)


CHANGE = find_changes("def f(a):\n    if a < 3:\n        return 1\n")[0]
FAULT = Mutant("planning", PLANNED, CHANGE, {"f": 1.0}, ("tests/a.py",))


def test_a_fault_of_a_draw_is_caught_by_any_failure() -> None:
    verdicts = {
        status: judge(FAULT, Tested(status, 1.0, (), "")).caught
        for status in (0, 1, 2, 4, -9, None)
    }
    # 4: no such test
    assert verdicts == {0: False, 1: True, 2: True, 4: False, -9: False, None: True}


def test_the_rate_is_of_the_faults_whose_function_a_test_runs() -> None:
    results = [
        Result("x", room, caught, 1.0, "", reached)
        for room, caught, reached in (
            ("a", True, True),
            ("a", False, True),
            ("a", False, False),
            ("b", True, True),
            ("c", False, False),
        )
    ]
    assert shares(results) == {"a": 0.5, "b": 1.0}
    assert [row.split()[:4] for row in table(results)[1:]] == [
        ["a", "2", "1", "50%"],
        ["b", "1", "0", "100%"],
        ["all", "3", "2", "67%"],
    ]


def test_a_probe_ends_the_process_where_the_function_is_called() -> None:
    text = Probe(**vars(FAULT)).mutate("def f(a):\n    if a < 3:\n        return 1\n")
    for call, status in (("f(1)", 99), ("f", 0)):
        assert subprocess.run([sys.executable, "-c", f"{text}{call}"], check=False).returncode == (
            status
        )


def test_tests_with_the_words_come_first_and_none_starts_when_the_time_is_over(
    tmp_path: Path,
) -> None:
    busy = (
        "import time\nimport pytest\n\n@pytest.mark.parametrize('case', [0, 1])\n"
        "def test_{}(case, monkeypatch):\n    monkeypatch.delenv('SEEDS_REPORT')\n"
        "    end = time.process_time() + case * {}\n"
        "    while time.process_time() < end:\n        {}\n"
    )
    for name, seconds, subject in (("b", 0.3, "pass"), ("a", 0, "pass"), ("c", 0, "weigh = 1")):
        (tmp_path / f"test_{name}.py").write_text(busy.format(name, seconds, subject))
    environ = {
        **os.environ,
        "SEEDS_REPORT": str(tmp_path / "report"),
        "SEEDS_WEIGHTS": '{"weigh": 1.0}',
        "SEEDS_SECONDS": "0.2",
    }
    files = [f"test_{name}.py" for name in "bac"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.seeds.plugin", "--rootdir=."]
    paths = {"PYTHONPATH": str(ROOT)}
    subprocess.run(
        [*command, *files], cwd=tmp_path, env=environ | paths, check=True, stdout=subprocess.DEVNULL
    )
    lines = (tmp_path / "report").read_text().splitlines()
    ran = [json.loads(line)["test"].partition("::test_")[2] for line in lines]
    assert ran == ["c[0]", "c[1]", "b[0]", "a[0]", "b[1]"]


def test_equivalent_changes_exist() -> None:
    for equal in load_equivalent():
        text = (ROOT / equal["file"]).read_text(encoding="utf-8")
        old = equal["change"].partition(" -> ")[0]
        assert old in " ".join(text.split()) and equal["why"], equal
