"""Slips of people with another tool's habits: each is answered at once, and the answer is followed as it stands.

slips.yaml has lines as they were typed, under the tool whose habit they are: `cure` is what `launch` answers, and
`then` what the line with each way of that answer gives: `plans`, or the id of another problem. `words`: the answer is
for the reader, who has to choose a value.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from launch.api.cures import apply_way, check_cures, exact_ways
from launch.api.planning import plan_composed
from launch.commands.verbs import VERBS
from launch.config.compose import compose_once
from launch.config.line import CommandLine, parse_line
from launch.errors import Problem, UserError

TABLE: dict[str, list[dict[str, Any]]] = yaml.safe_load(Path(__file__).with_name("slips.yaml").read_text("utf-8"))
SLIPS = [slip for slips in TABLE.values() for slip in slips]


def problems_of(line: CommandLine) -> tuple[Problem, ...]:
    try:
        plan_composed(compose_once(line))
    except UserError as error:
        return error.problems
    return ()


def follow(text: str) -> tuple[str | None, str]:
    """Return the answer to a line, and what becomes of the line that follows it."""
    try:
        line = parse_line(["plan", *shlex.split(text)], list(VERBS))
    except UserError as error:
        return error.problems[0].cure, "words"
    problem = check_cures(line, problems_of(line))[0]
    results = dict.fromkeys(
        after[0].id if (after := problems_of(apply_way(way, line))) else "plans" for way in exact_ways(problem.cure)
    )
    return problem.cure, ", ".join(results) or "words"


@pytest.mark.parametrize("slip", SLIPS, ids=[slip["line"] for slip in SLIPS])
def test_the_answer_works_as_it_stands(slip: dict[str, Any]) -> None:
    cure, then = follow(slip["line"])
    assert (cure, then) == (slip["cure"], slip["then"])


def test_the_table_is_of_strangers_habits() -> None:
    assert len(SLIPS) >= 60 and len(TABLE) >= 6
    assert sum(slip["then"] == "plans" for slip in SLIPS) >= 50, "most answers are a line that plans"
    assert len({slip["line"] for slip in SLIPS}) == len(SLIPS)
