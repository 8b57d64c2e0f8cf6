"""Every command in the README, the tutorial and the how-to pages is one that `launch` accepts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from launch.api.planning import plan_composed
from launch.commands.verbs import VERBS
from launch.config.compose import Composed, compose
from launch.config.line import CommandLine, parse_line
from launch.errors import EXIT_DONE, UserError
from launch.trials.bench.engine import read_bench_request as read_bench
from launch.trials.rollout.request import read_rollout_request as read_rollout
from launch.trials.tune.engine import read_tune_line as read_tune
from tests.paths import ROOT

PAGES = (
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("tutorial/*.md")),
    *sorted((ROOT / "docs").glob("how-to/*.md")),
)
# what a reader has and this test has not: stages and clusters of the user's own, an overlay of
# `tune`
STAGES = {
    "mine": "sft",
    "mine_lora": "sft",
    "guesses": "sft",
    "rl": "demo_rlvr",
    "colours": "demo_rlvr",
    "polite": "dpo",
    "thumbs": "kto",
    "sft_1b": "sft",
    "S": "sft",
}
_NOT_HERE = re.compile(r"^(cluster=(mine|uni)|trainer=trl_reward|\+tuned=.*|python=.*)$")
MISTAKE = "recipe.learning_rat="  # on purpose
# keys of a pipeline, `submit` and `rollout`, which their own tests cover
_OWN = ("pipeline", "stop_if_worse", "dry_run", "tokenize_first", "submit")


def commands(page: Path, *, with_mistakes: bool = False) -> Iterator[tuple[str, list[str]]]:
    """Yield the page's commands: the text, and the arguments after `launch`."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    for line in text.splitlines():
        match = re.match(r"^(?: {4,}|\t)(?:\$ )?(launch .*)$", line)
        if match and "<TAB>" not in line and (with_mistakes or MISTAKE not in line):
            yield match[1], shlex.split(match[1], comments=True)[1:]


ALL = [
    pytest.param(argv, id=text)
    for text, argv in {text: argv for page in PAGES for text, argv in commands(page)}.items()
]


def test_there_are_commands() -> None:
    assert len(ALL) > 60


@pytest.mark.parametrize("argv", ALL)
def test_the_command_is_accepted(
    argv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    verb = VERBS.get(argv[0]) if argv else None
    if not argv or argv[0].startswith("-") or (verb is not None and not verb.composes):
        return  # their own tests call these verbs
    line = parse_line(argv, list(VERBS))
    planned: list[str] = []

    def plan_stage(composed: Composed) -> int:
        try:
            planned.append(plan_composed(composed).folder.name)
        except UserError as error:  # the reader's data is not here
            if {problem.id for problem in error.problems} != {"data_no_files"}:
                raise
            planned.append("data_no_files")
        return EXIT_DONE

    for each in stage_lines(line):
        compose(each, plan_stage)
    assert planned or line.verb == "bench"


def test_the_mistake_of_the_tutorial_is_refused() -> None:
    line = parse_line(["plan", "stage=demo", "recipe.learning_rat=1e-3"], list(VERBS))
    with pytest.raises(UserError, match=r"'recipe\.learning_rate=1e-3'.*\[unknown_key\]"):
        compose(line, lambda composed: EXIT_DONE)


def stage_lines(line: CommandLine) -> Iterator[CommandLine]:
    """Yield the line of each stage that the verb would plan."""
    pipeline = next(
        (word.partition("=")[2].split(",") for word in line.argv if word.startswith("pipeline=")),
        [],
    )
    argv = [
        word
        for word in line.argv
        if not _NOT_HERE.match(word) and not re.match(r"^\w+:[\w.]+=", word)
    ]
    argv = [
        f"stage={STAGES.get(word[6:], word[6:])}" if word.startswith("stage=") else word
        for word in argv
    ]
    bare = CommandLine(
        "plan", False, tuple(word for word in argv if word not in ("--cfg", "job", "[both]"))
    )
    if line.verb == "bench":
        if not any("'" in word or "overrides]" in word for word in argv):
            request = read_bench(bare)
            yield from (request.line(side) for side in (0, 1))
    elif line.verb == "rollout":
        request = read_rollout(bare)
        yield from (request.stage_line(width) for width in request.widths)
    elif line.verb == "tune":
        yield read_tune(bare)
    elif line.verb == "submit" or pipeline:
        _, stage = bare.pop_overrides(_OWN)
        stages = [stage.with_overrides(f"stage={STAGES.get(name, name)}") for name in pipeline]
        yield from stages or [stage]
    else:
        yield bare.pop_overrides(("n",))[1]  # of `preview`
