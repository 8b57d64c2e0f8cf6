"""What lint finds in realistic mistakes, by id, place and values, and its verdicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from launch.check.lint.checker import CommandChecker
from launch.commands.lint import format_verdicts
from tests.check.lint.helpers import check_text, locked_checker
from tests.check.lint.mistakes import MISTAKES
from tests.messages import outlines

# Commands that parse: ok is true, with warnings at most.
ACCEPTED = {
    "broken_continuation",
    "comment_in_the_middle",
    "one_sample",
    "odd_mixer",
    "tokenizer_name",
    "negative_norm",
    "hub_namespace",
    "tracking_without_wandb",
    "tensorboard",
    "silent_run",
    "no_data",
    "qlora_alone",
    "paged_alone",
    "max_train_samples",
    "packing_with_sequence_parallel",
}
UNDECIDED = {"unbalanced_quote", "unknown_value", "unknown_arguments", "removed_script"}


@pytest.fixture(scope="module")
def checker() -> CommandChecker:
    return locked_checker()


def test_messages(
    tmp_path: Path,
    checker: CommandChecker,
    golden: Callable[[str, Sequence[str]], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines: list[str] = []
    for name, (file, text) in MISTAKES.items():
        verdicts = check_text(tmp_path, text, file, checker)
        messages = [line.removeprefix(f"{tmp_path}/") for line in format_verdicts(verdicts)]
        lines += [
            f"== {name}: {', '.join(str(verdict.ok) for verdict in verdicts)}",
            *outlines(messages),
        ]
    golden("lint_mistakes", lines)


@pytest.mark.parametrize("name", MISTAKES)
def test_verdicts(name: str, tmp_path: Path, checker: CommandChecker) -> None:
    file, text = MISTAKES[name]
    verdicts = check_text(tmp_path, text, file, checker)
    expected = True if name in ACCEPTED else None if name in UNDECIDED else False
    assert [verdict.ok for verdict in verdicts] == [expected] * (2 if name == "two_commands" else 1)
    for verdict in verdicts:
        assert bool(verdict.problems) == (verdict.ok is False)
        assert verdict.ok is False or verdict.warnings
        assert all(
            1 <= remark.line <= text.count("\n")
            for remark in (*verdict.problems, *verdict.warnings)
        )
