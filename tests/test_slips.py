"""Slips of people with another tool's habits: each is answered at once, and the answer is followed as it stands.

slips.yaml has lines as they were typed, under the tool whose habit they are: `code` is the exit code, `first` the first
line that is printed, with the cure, and `then` what the line with each way of that cure gives: `plans`, or the id of
another problem. `words`: the answer is for the reader, who has to choose a value or to type a command.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from launch.__main__ import main
from launch.api.cures import apply_way, check_cures, exact_ways
from launch.api.planning import plan_composed
from launch.commands.verbs import VERBS
from launch.config.compose import compose_once
from launch.config.line import CommandLine, parse_line
from launch.errors import Problem, UserError

FILE = Path(__file__).with_name("slips.yaml")
TABLE: dict[str, list[dict[str, Any]]] = yaml.safe_load(FILE.read_text("utf-8"))
SLIPS = [slip for slips in TABLE.values() for slip in slips]


def problems_of(line: CommandLine) -> tuple[Problem, ...]:
    try:
        plan_composed(compose_once(line))
    except UserError as error:
        return error.problems
    return ()


def arguments_of(text: str) -> list[str]:
    """Return the arguments of a slip: a line that begins with a key or an option is one of `plan`."""
    words = shlex.split(text)
    return ["plan", *words] if "=" in words[0] or words[0].startswith("-") else words


def follow(text: str) -> str:
    """Return what becomes of the line that follows the first answer."""
    try:
        line = parse_line(arguments_of(text), list(VERBS))
    except UserError:
        return "words"
    problem = check_cures(line, problems_of(line))[0]
    results = dict.fromkeys(
        after[0].id if (after := problems_of(apply_way(way, line))) else "plans" for way in exact_ways(problem.cure)
    )
    return ", ".join(results) or "words"


@pytest.mark.parametrize("slip", SLIPS, ids=[slip["line"] for slip in SLIPS])
def test_the_answer_works_as_it_stands(slip: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    code = main(arguments_of(slip["line"]))
    printed = capsys.readouterr().err.splitlines()
    assert (code, printed[0], follow(slip["line"])) == (slip["code"], slip["first"], slip["then"])


def test_the_table_is_of_strangers_habits() -> None:
    assert len(SLIPS) >= 120 and len(TABLE) >= 8
    assert sum(slip["then"] == "plans" for slip in SLIPS) >= 90, "most answers are a line that plans"
    assert len({slip["line"] for slip in SLIPS}) == len(SLIPS)
    assert {slip["code"] for slip in SLIPS} == {2}, "a slip starts nothing"
