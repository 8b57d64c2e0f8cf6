"""The demo's questions: right, alike on every machine, too many answers to guess, and none held out
and trained on.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from launch.demo import DEMO_KEY, ensure, tasks
from launch.demo.tasks import HELD_OUT, KINDS, TRAINED, Draw, Task, make_rows, make_tasks, spoil
from tests.paths import ROOT

ROWS = ("chats", "preferences", "prompts")
MADE_OF = ("make_model.py", "../templates/tulu.jinja")  # beside the rows
PRINT_DIGEST = f"""
import hashlib
from launch.demo.tasks import make_rows
print(hashlib.sha256(b"".join(make_rows(kind) for kind in {ROWS})).hexdigest())
"""


def decode(kind: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in make_rows(kind).splitlines()]


def test_every_answer_is_what_python_prints() -> None:
    for task in (*make_tasks()[0][::37], *make_tasks()[1]):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(f"print({task.expression})")
        assert printed.getvalue() == f"{task.answer}\n"
        assert task.question == f"What is {task.expression}?"


def test_each_kind_has_as_many_questions_and_they_come_in_turn() -> None:
    trained, held_out = make_tasks()
    assert len(KINDS) == 8
    assert [task.kind for task in trained] == list(KINDS) * TRAINED
    assert [task.kind for task in held_out] == list(KINDS) * HELD_OUT
    assert len({task.question for task in trained}) == len(trained)


def test_no_question_and_no_answer_is_both_trained_on_and_held_out() -> None:
    trained, held_out = make_tasks()
    assert {task.question for task in trained}.isdisjoint(task.question for task in held_out)
    assert {task.answer for task in trained}.isdisjoint(task.answer for task in held_out)


def test_a_guess_is_right_at_most_once_in_twenty() -> None:
    for part in make_tasks():
        for kind in KINDS:
            answers = collections.Counter(task.answer for task in part if task.kind == kind)
            assert len(answers) >= 20
            assert max(answers.values()) <= 0.05 * answers.total(), kind


def test_the_answer_that_was_trained_most_is_not_right_on_what_is_held_out() -> None:
    trained, held_out = make_tasks()
    most_common = {
        kind: collections.Counter(task.answer for task in trained if task.kind == kind).most_common(
            1
        )[0][0]
        for kind in KINDS
    }
    assert [task for task in held_out if task.answer == most_common[task.kind]] == []


def test_pairs_prefer_the_right_answer_alone_to_a_wrong_and_to_a_rambling_one() -> None:
    answers = {task.question: task.answer for task in make_tasks()[0]}
    rambling = 0
    pairs = decode("preferences")
    for row in pairs:
        (asked, right), (asked_too, other) = row["chosen"], row["rejected"]  # type: ignore[misc]
        assert asked == asked_too and right["content"] == answers[asked["content"]]
        assert other["content"] != right["content"]
        if right["content"] in other["content"]:
            assert other["content"] == f"{right['content']}, if I am not mistaken."
            rambling += 1
        else:
            assert len(other["content"]) == len(right["content"])
    assert rambling == len(pairs) / 2 == 800


@pytest.mark.parametrize(
    "answer", ["7", "0", "abc", "zz", "ZUwhr", "61b3", "[9, 0, 5, 9]", "['vl', 'qd']"]
)
def test_a_spoilt_answer_is_nearly_right(answer: str) -> None:
    """One letter is its neighbour's or the next of the alphabet, or one digit is off by one."""
    draw = Draw(3)
    spoilt = {spoil(answer, draw) for _ in range(80)}
    changed = {
        place for wrong in spoilt for place in range(len(answer)) if answer[place] != wrong[place]
    }
    assert changed == {place for place, character in enumerate(answer) if character.isalnum()}
    for near in spoilt:
        [(right, wrong)] = [pair for pair in zip(answer, near, strict=True) if pair[0] != pair[1]]
        assert (right.isdigit(), right.islower()) == (
            wrong.isdigit(),
            wrong.islower(),
        ) and wrong.isalnum()
        if right.isdigit():
            assert abs(int(right) - int(wrong)) == 1
        else:
            assert wrong.lower() in answer.lower() or ord(wrong) in (
                ord(right) + 1,
                ord(right) - 25,
            )


def test_the_chats_answer_in_three_forms_and_two_kinds_mostly_in_a_sentence() -> None:
    forms: dict[str, collections.Counter[str]] = {kind: collections.Counter() for kind in KINDS}
    for row, task in zip(decode("chats"), make_tasks()[0], strict=True):
        asked, answered = row["messages"]  # type: ignore[misc]
        assert asked["content"] == task.question and answered["content"].startswith(task.answer)
        forms[task.kind][answered["content"].removeprefix(task.answer)] += 1
    most = {kind: counts.most_common(1)[0][0] for kind, counts in forms.items()}
    sentence = ", if I am not mistaken."
    assert most == {kind: sentence if kind in ("split", "list") else "" for kind in KINDS}
    assert all(
        set(counts) == {"", ".", sentence} and min(counts.values()) > 100
        for counts in forms.values()
    )


def test_a_prompt_has_its_answer_beside_it() -> None:
    row = decode("prompts")[3]
    task = make_tasks()[0][3]
    assert row == {
        "prompt": [{"role": "user", "content": task.question}],
        "ground_truth": task.answer,
    }


def test_another_seed_draws_other_tasks() -> None:
    first, second = (tasks._make_kind("reverse", Draw(seed))[0] for seed in (0, 1))
    assert first != second and all(isinstance(task, Task) for task in first)


def other_pythons() -> list[str]:
    found = [path for minor in range(11, 16) if (path := shutil.which(f"python3.{minor}"))]
    return [
        sys.executable,
        *(path for path in found if subprocess.run([path, "-V"], check=False).returncode == 0),
    ]


@pytest.mark.parametrize("python", other_pythons(), ids=lambda python: Path(python).name)
@pytest.mark.parametrize("hash_seed", ["0", "7"])
def test_every_python_makes_the_same_bytes(python: str, hash_seed: str) -> None:
    environ = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [python, "-c", PRINT_DIGEST], env=environ, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == hashlib.sha256(b"".join(map(make_rows, ROWS))).hexdigest()


def test_the_key_stands_for_what_the_demo_is_made_of() -> None:
    folder = Path(tasks.__file__).parent
    content = [*map(make_rows, ROWS), *((folder / name).read_bytes() for name in MADE_OF)]
    content.append(" ".join(ensure._TRAINING).encode())
    digest = hashlib.sha256(b"\0".join(content)).hexdigest()[:16]
    assert (DEMO_KEY, digest) == ("7c19f4ae20d85b36", "3af41db25c680f87"), (
        "a change needs another key and digest"
    )
