"""A file that is one object around its rows is refused with the command that writes each by itself."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launch.config.kinds import Kind
from launch.data.draft import read_for_draft
from launch.errors import UserError
from tests.data.files import CHAT, chat, converted, problems, write_lines

ASKED = ("What is tea?", "What is salt?")
ANSWERED = ("A drink.", "A mineral.")
ROWS = [{"instruction": q, "output": a} for q, a in zip(ASKED, ANSWERED, strict=True)]
CHATS = [chat(q, a) for q, a in zip(ASKED, ANSWERED, strict=True)]
SQUAD = {
    "version": "1",
    "data": [
        {
            "title": "Kitchen",
            "paragraphs": [
                {
                    "context": "About the kitchen.",
                    "qas": [
                        {"id": str(number), "question": asked, "answer": ANSWERED[number]}
                        for number, asked in enumerate(ASKED)
                    ],
                }
            ],
        }
    ],
}
IN_CONTEXT = [chat(f"About the kitchen.\n\n{q}", a) for q, a in zip(ASKED, ANSWERED, strict=True)]
# what a file holds, and the conversations that the rows of its cure are
OBJECTS: dict[str, tuple[object, list[Any]]] = {
    "a list under a key": ({"data": ROWS}, CHATS),
    "a list beside other keys": ({"version": "2", "meta": {"n": 2}, "examples": ROWS}, CHATS),
    "splits": ({"train": ROWS, "test": ROWS[:1]}, CHATS),
    "one split": ({"train": CHATS}, CHATS),
    "columns": ({"instruction": list(ASKED), "output": list(ANSWERED)}, CHATS),
    "columns with an index": (
        {
            "instruction": {"0": ASKED[0], "1": ASKED[1]},
            "output": {"0": ANSWERED[0], "1": ANSWERED[1]},
        },
        CHATS,
    ),
    "a column of chats": ({"messages": [row["messages"] for row in CHATS]}, CHATS),
    "values beside names": (
        {
            "columns": ["prompt", "completion"],
            "data": [[q, a] for q, a in zip(ASKED, ANSWERED, strict=True)],
        },
        CHATS,
    ),
    "rows by their ids": ({"a1": ROWS[0], "a2": ROWS[1]}, CHATS),
    "rows of the dataset viewer": (
        {"features": [], "rows": [{"row_idx": n, "row": row} for n, row in enumerate(ROWS)]},
        CHATS,
    ),
    "chats below their own name": ({"conversations": [{"id": 1, **row} for row in CHATS]}, CHATS),
    "SQuAD": (SQUAD, IN_CONTEXT),
    "an instruction above its instances": (
        {"instruction": "Translate.", "instances": [{"input": "tea", "output": "Tee"}]},
        [chat("Translate.\n\ntea", "Tee")],
    ),
}


def refusal(path: Path, kind: Kind | None = None) -> Any:
    with pytest.raises(UserError) as refused:
        read_for_draft(path, {}, kind)
    return refused.value.problems[0]


def run_cure(cure: str, folder: Path) -> Path:
    """Run the command of a cure as it is printed; return the file that it writes."""
    command = cure.partition("with: ")[2]
    command = command.replace("python -m", f"{sys.executable} -m", 1)
    subprocess.run(command, shell=True, cwd=folder, check=True)
    return folder / shlex.split(command)[-1]


@pytest.mark.parametrize(
    ("name", "suffix"),
    [*((name, "jsonl") for name in OBJECTS), ("a list under a key", "json"), ("SQuAD", "json")],
)
@pytest.mark.skipif(shutil.which("jq") is None, reason="the cure is a command of jq")
def test_the_command_of_the_cure_writes_the_rows(tmp_path: Path, name: str, suffix: str) -> None:
    content, chats = OBJECTS[name]
    path = tmp_path / f"my rows.{suffix}"
    text = json.dumps(content, indent=1 if suffix == "json" else None)
    path.write_text(f"{text}\n", encoding="utf-8")
    problem = refusal(path)
    assert problem.id == "data_columns" and problem.where == f"{path}:1"
    written = run_cure(str(problem.cure), tmp_path)
    assert converted(written) == chats
    # a stage refuses it as `new` does
    assert [each.id for each in problems(path)] == ["data_columns"]
    assert refusal(path, Kind.sft).cure == problem.cure


def test_lists_of_messages_get_a_name(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps([CHAT["messages"]] * 2), encoding="utf-8")
    problem = problems(path)[0]
    assert problem.id == "data_row" and "'{messages: .}'" in str(problem.cure)


@pytest.mark.parametrize(
    "row",
    [
        {**CHAT, "meta": [{"prompt": "Hi", "completion": "No"}]},
        {"prompt": "Hi", "completion": "Hello", "examples": ROWS},
        {"prompt": [{"role": "user", "content": "Hi"}], "completion": "Hello"},
        {"conversation": [{"input": "Hi", "output": "Hello"}]},
    ],
)
def test_a_row_with_lists_of_its_own_is_one_row(tmp_path: Path, row: dict[str, Any]) -> None:
    path = write_lines(tmp_path / "a.jsonl", [row])
    assert converted(path) == [CHAT]


def test_objects_over_many_lines_are_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    text = "\n".join(json.dumps(row, indent=2) for row in ROWS)
    path.write_text(f"\n{text}\n", encoding="utf-8")
    assert converted(path) == CHATS
    path.write_text(f"{text}\n{{'a'", encoding="utf-8")
    [problem] = problems(path)
    assert (problem.id, problem.where) == ("data_not_parsed", f"{path}:9")
