"""Slips of people with another tool's habits: each is answered at once, and the answer is followed
as it stands.

slips.yaml has lines as they were typed, under the tool whose habit they are. Each has the outline
of the first message (tests/messages.py), and behind `->` what the line that follows the cure gives:
`plans`, or the id of another problem. `words`: the answer is for the reader, who has to choose a
value or to type a command.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from launch.__main__ import main
from launch.api.cures import apply_action, exact_actions, explain_problems
from launch.api.planning import plan_composed
from launch.commands.verbs import VERBS
from launch.config import compose
from launch.config.compose import Composed
from launch.config.line import CommandLine, parse_line
from launch.errors import EXIT_REFUSED, UserError, actions_of
from launch.planning.typed_line import PLAN_VERBS as PLANNED
from launch.worker.finding import Finding
from tests.messages import outline

FILE = Path(__file__).with_name("slips.yaml")
TABLE: dict[str, dict[str, str]] = yaml.safe_load(FILE.read_text("utf-8"))
SLIPS = [slip for slips in TABLE.values() for slip in slips.items()]


@pytest.fixture(autouse=True, scope="module")
def compositions() -> Iterator[None]:
    """Compose each line once: the command, the check of its cures and the tests share it."""
    compose_anew = compose.compose_once
    kept: dict[CommandLine, Composed | UserError] = {}

    def compose_or_raise(line: CommandLine) -> Composed:
        if line not in kept:
            try:
                kept[line] = compose_anew(line)
            except UserError as error:
                kept[line] = error
        result = kept[line]
        if isinstance(result, UserError):
            raise result
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compose, "compose_once", compose_or_raise)
        yield


def problems_of(line: CommandLine) -> tuple[Finding, ...]:
    try:
        plan_composed(compose.compose_once(line))
    except UserError as error:
        return error.problems
    return ()


def arguments_of(text: str) -> list[str]:
    """Return the arguments of a slip: a line that begins with a key or an option is one of
    `plan`.
    """
    words = shlex.split(text)
    return ["plan", *words] if "=" in words[0] or words[0].startswith("-") else words


def follow(text: str) -> str:
    """Return what becomes of the line that follows the first answer."""
    arguments = arguments_of(text)
    line = None
    try:
        line = parse_line(arguments, list(VERBS))
        problems = problems_of(line)
    except UserError as error:
        problems = error.problems
    problem = explain_problems(arguments, line, problems)[0]
    if problem.id == "other_tool":
        commands = [shlex.split(str(action.runs))[1:] for action in actions_of(problem.cure)[:1]]
        advised = [parse_line(words, list(VERBS)) for words in commands if words[0] in PLANNED]
    else:
        advised = (
            [apply_action(action, line) for action in exact_actions(problem.cure)] if line else []
        )
    results = dict.fromkeys(
        after[0].id if (after := problems_of(changed)) else "plans" for changed in advised
    )
    return ", ".join(results) or "words"


@pytest.mark.parametrize(("line", "answer"), SLIPS, ids=[line for line, _ in SLIPS])
def test_the_answer_works_as_it_stands(
    line: str, answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments_of(line)) == EXIT_REFUSED, "a slip starts nothing"
    first = capsys.readouterr().err.splitlines()[0]
    assert f"{outline(first)} -> {follow(line)}" == answer


def test_the_table_is_of_strangers_habits() -> None:
    assert len(SLIPS) >= 120 and len(TABLE) >= 8
    assert sum(answer.endswith("-> plans") for _, answer in SLIPS) >= 90, (
        "most answers are a line that plans"
    )
    assert len({line for line, _ in SLIPS}) == len(SLIPS)
