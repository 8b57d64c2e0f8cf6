"""The converted copy is complete or absent, is keyed by content, and nothing of the user's is
changed.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launch.config.kinds import DataFormat, Kind
from launch.data import staging
from launch.data.conversion import Conversion
from launch.data.sources import LocalData, find_files
from launch.data.staging import load_staged, stage
from launch.data.structure import read_structure
from launch.errors import UserError
from launch.planning.digest_cache import DigestCache
from tests.data.files import CHAT, chat, local, write_lines
from tests.messages import values_of


def staged(data: LocalData) -> staging.StagedRows | None:
    return stage(data, DigestCache(data.cache / "digests.json").of)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_the_copy_holds_the_converted_rows(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"prompt": "Größe?", "completion": "groß"}])
    before = path.read_bytes()
    data = local(path)
    found = staged(data)
    assert found is not None
    assert (
        found.describe() == "1 row: prompt_completion (prompt, completion), converted to messages"
    )
    assert read(data.train_file) == [chat("Größe?", "groß")]
    assert staged(data) is None  # it is there
    assert path.read_bytes() == before
    assert sorted(path.name for path in data.folder.parent.iterdir()) == [data.key]


def test_the_key_follows_what_decides_the_rows(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [CHAT] * 3)
    elsewhere = write_lines(tmp_path / "other" / "b.jsonl", [CHAT] * 3)
    edited = write_lines(tmp_path / "c.jsonl", [CHAT, CHAT, chat("Hi", "Hullo")])
    first = local(path)
    assert local(elsewhere).key == first.key
    different = [
        local(edited),
        local(path, edited),
        local(path, kind=Kind.dpo),
        local(path, form=DataFormat.chat),
        local(path, columns={"prompt": "frage"}),
        local(path, validation=0.5),
        local(path, validation=0.25),
        local(path, validation=edited),
        local(path, skips=True),
    ]
    assert len({data.key for data in (first, *different)}) == len(different) + 1


def test_a_bad_row_leaves_nothing(tmp_path: Path) -> None:
    data = local(write_lines(tmp_path / "a.jsonl", [CHAT] * 300 + [{"messages": []}]))
    with pytest.raises(UserError) as refused:
        staged(data)
    assert places(refused.value) == [("data_no_answer", f"{tmp_path / 'a.jsonl'}:301")]
    assert list(data.folder.parent.iterdir()) == []


def places(error: UserError) -> list[tuple[str, str | None]]:
    return [(problem.id, problem.where) for problem in error.problems]


def counted(text: str, path: Path) -> list[str]:
    """Return the values of a sentence that ends with the first row of a file."""
    assert f"{path}:1" in text
    return values_of(text.replace(f"{path}:1", ""))


EMPTY, OTHER = {"prompt": "Hi", "completion": ""}, {"text": "Hi"}
MIXED = [OTHER, *[EMPTY, {"prompt": "Hi", "completion": "Yes"}, EMPTY] * 3]
COUNTED = ["1", "10", "6", "7", "text"]  # 7 of 10 rows: 6 for one reason, 1 for its column `text`


def test_bad_rows_are_counted_by_reason_and_named(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", MIXED)
    for read in (read_structure, staged):
        with pytest.raises(UserError) as refused:
            read(local(path))
        [problem] = refused.value.problems
        assert problem.id == "bad_rows" and counted(problem.message, path) == COUNTED
        assert "data.bad_rows=skip" in values_of(str(problem.cure))
    for rows in ([EMPTY] * 5, [OTHER] * 5):  # nothing would be left
        with pytest.raises(UserError) as refused:
            read_structure(local(write_lines(tmp_path / "b.jsonl", rows)))
        [(id, place), *_] = places(refused.value)
        assert id != "bad_rows" and place == f"{tmp_path / 'b.jsonl'}:1"
    with pytest.raises(UserError) as refused:
        staged(local(tmp_path / "b.jsonl", skips=True))
    assert places(refused.value)[0] == ("data_columns", f"{tmp_path / 'b.jsonl'}:1")


@pytest.mark.parametrize(("row", "id"), [({"a": 1}, "data_columns"), ([1, 2], "data_row")])
def test_a_row_that_is_nothing_known_is_faulty_in_itself(
    tmp_path: Path, row: object, id: str
) -> None:
    """Among rows of a known kind: the file is not said to have two kinds of rows."""
    with pytest.raises(UserError) as caught:
        stage(
            local(write_lines(tmp_path / "rows.jsonl", [CHAT, row, CHAT])),
            DigestCache(tmp_path / "digests").of,
        )
    [problem] = caught.value.problems
    assert (problem.id, problem.where) == (id, f"{tmp_path}/rows.jsonl:2")


def test_a_file_without_a_row_that_is_known_is_not_read_to_its_end(tmp_path: Path) -> None:
    data = local(write_lines(tmp_path / "rows.jsonl", [{"a": 1}] * 1500))
    conversion = Conversion(data)
    with pytest.raises(UserError, match="data_columns"):
        list(conversion.rows(data.files.paths))
    assert sum(conversion.faults.values()) == 1000


def test_bad_rows_are_left_out_on_request_and_recorded(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", MIXED)
    path.write_text(path.read_text(encoding="utf-8") + "{not JSON\n", encoding="utf-8")
    data = local(path, skips=True)
    [note] = read_structure(data, rows=None).notes  # all are read, to count them
    # the one that is not JSON is told with the character
    assert counted(note, path) == ["1", "11", "2", "6", "8", "text"]
    rows = staged(data)
    assert (
        rows is not None and rows.train == 3 and rows.notes == (note,) and note in rows.describe()
    )
    assert load_staged(data) == rows
    assert len(read(data.train_file)) == 3 and note in read_structure(data).describe()


def test_a_row_that_outweighs_all_others_is_named(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [chat("Hi", "Hello")] * 5)
    held = write_lines(tmp_path / "held.jsonl", [chat("Hi", "Hello"), chat("Hi", "x" * 500)])
    data = local(path, validation=held)
    structure = read_structure(data)
    [note] = structure.notes
    assert note.endswith(f"{held}:2") and {"502", "509", "2"} <= set(values_of(note))
    rows = staged(data)
    assert rows is not None and f"{data.folder / 'validation.jsonl'}:2" in rows.describe()


@pytest.mark.parametrize(
    ("kind", "row"),
    [
        (Kind.sft, {**CHAT, "tools": [{"type": "function"}]}),
        (Kind.rlvr, {"prompt": "a", "words": ["b"]}),
    ],
)
def test_lists_beside_the_conversation_are_no_turns(
    tmp_path: Path, kind: Kind, row: dict[str, Any]
) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{**row, "ground_truth": "b"}] * 2)
    assert "2 rows read" in read_structure(local(path, kind=kind)).describe()


def test_a_file_that_changes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_lines(tmp_path / "a.jsonl", [CHAT] * 3)
    data = local(path)
    write = staging._write_rows

    def append_meanwhile(*arguments: Any) -> Any:
        rows = write(*arguments)
        with path.open("a") as stream:
            stream.write(json.dumps(CHAT) + "\n")
        return rows

    monkeypatch.setattr(staging, "_write_rows", append_meanwhile)
    with pytest.raises(UserError) as refused:
        staged(data)
    assert places(refused.value) == [("data_changed", "data.mix")]
    assert str(path) in refused.value.problems[0].message
    assert load_staged(data) is None
    monkeypatch.undo()
    with pytest.raises(UserError, match="data_changed"):  # it is no longer what was planned
        staged(data)


def cut_rows(folder: Path) -> None:
    file = folder / "train.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:1]))


def edit_row(folder: Path) -> None:
    file = folder / "train.jsonl"
    file.write_text(file.read_text().replace("Hello", "Howdy"))


def add_file(folder: Path) -> None:
    (folder / "test.jsonl").write_text("{}")


def remove_rows(folder: Path) -> None:
    (folder / "train.jsonl").unlink()


def forget_digests(folder: Path) -> None:
    about = json.loads((folder / "about.json").read_text())
    del about["digests"]
    (folder / "about.json").write_text(json.dumps(about))


@pytest.mark.parametrize("change", [cut_rows, edit_row, add_file, remove_rows, forget_digests])
def test_rows_that_are_no_longer_those_that_were_staged_are_staged_again(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    data = local(write_lines(tmp_path / "a.jsonl", [chat("Hi", "Hello")] * 3))
    assert staged(data) is not None
    before = data.train_file.read_bytes()
    assert staged(data) is None  # they are there
    change(data.folder)
    assert staged(data) is not None
    assert data.train_file.read_bytes() == before
    assert sorted(path.name for path in data.folder.iterdir()) == ["about.json", "train.jsonl"]
    assert staged(data) is None


def test_a_disk_that_is_too_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = local(write_lines(tmp_path / "a.jsonl", [CHAT] * 3))
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(100, 0, 100))
    with pytest.raises(UserError, match="data_disk_full"):
        staged(data)
    monkeypatch.undo()

    def fill(*arguments: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(staging, "_write_rows", fill)
    with pytest.raises(UserError) as refused:
        staged(data)
    [problem] = refused.value.problems
    assert problem.id == "data_disk_full" and os.strerror(errno.ENOSPC) in problem.message
    assert list(data.folder.parent.iterdir()) == []


def test_a_cache_that_cannot_be_written_to(tmp_path: Path) -> None:
    data = local(write_lines(tmp_path / "a.jsonl", [CHAT] * 3))
    data.cache.write_text("a file")
    digests = DigestCache(tmp_path / "elsewhere.json")
    with pytest.raises(UserError) as refused:
        stage(data, digests.of)
    [problem] = refused.value.problems
    assert (problem.id, problem.where) == ("data_not_staged", "cache")
    assert str(data.folder.parent) in problem.message
    elsewhere = stage(replace(data, cache=tmp_path / "other"), digests.of)
    assert elsewhere is not None and elsewhere.train == 3


def test_an_unfinished_folder_is_replaced(tmp_path: Path) -> None:
    data = local(write_lines(tmp_path / "a.jsonl", [CHAT] * 3))
    data.folder.mkdir(parents=True)
    data.train_file.write_text("{}\n")
    staged(data)
    assert read(data.train_file) == [CHAT] * 3


def test_a_split_is_never_trained_on_and_always_the_same(tmp_path: Path) -> None:
    rows = [chat(f"Question {number % 90}", "Answer") for number in range(100)]  # ten of them twice
    data = local(write_lines(tmp_path / "a.jsonl", rows), validation=0.1)
    counts = staged(data)
    assert counts is not None
    train, held_out = read(data.train_file), read(data.folder / "validation.jsonl")
    assert (counts.train, counts.validation) == (len(train), len(held_out))
    assert 10 <= len(held_out) <= 11  # a row and its duplicate stay together
    assert not [row for row in held_out if row in train]
    again = local(write_lines(tmp_path / "again" / "a.jsonl", rows), validation=0.1)
    staged(again)
    assert read(again.folder / "validation.jsonl") == held_out


TWO = [CHAT, chat("a", "b")]


@pytest.mark.parametrize(
    ("rows", "share", "outcome"),
    [
        (TWO, 0.5, (1, 1)),
        ([CHAT, CHAT], 0.5, ["2", "data.validation=0.5"]),
        (TWO, 0.9, ["0.9", "2", "data.validation=0.9"]),
        (TWO, 0.1, ["0.1", "2", "data.validation=0.1"]),
    ],
)
def test_a_split_leaves_rows_on_both_sides(
    tmp_path: Path, rows: list[object], share: float, outcome: tuple[int, int] | list[str]
) -> None:
    """The rows of both sides, or the values of the refusal."""
    data = local(write_lines(tmp_path / "a.jsonl", rows), validation=share)
    if isinstance(outcome, tuple):
        counts = staged(data)
        assert counts is not None and (counts.train, counts.validation) == outcome
        return
    with pytest.raises(UserError) as refused:
        staged(data)
    [problem] = refused.value.problems
    assert (problem.id, values_of(problem.message)) == ("data_split", outcome)
    assert list(data.folder.parent.iterdir()) == []


def test_a_file_for_validation(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [CHAT] * 3)
    held_out = write_lines(tmp_path / "held_out.jsonl", [{"prompt": "a", "completion": "b"}])
    data = local(path, validation=held_out)
    staged(data)
    assert read(data.folder / "validation.jsonl") == [chat("a", "b")]
    assert len(read(data.train_file)) == 3


def test_the_first_rows_are_described(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [CHAT] * 500)
    structure = read_structure(local(path))
    assert structure.describe() == (
        "a.jsonl: the first 200 rows read: chat (messages), taken as it is; 2 turns (user, "
        "assistant)"
    )
    assert read_structure(local(path), 500).all_
    single = write_lines(tmp_path / "b.jsonl", [{"prompt": "?", "ground_truth": "1"}])
    described = read_structure(local(single, kind=Kind.rlvr)).describe()
    assert described.startswith("b.jsonl: 1 row read: ") and "; 1 turn (user)" in described
    staged(local(path))
    assert read_structure(local(path)).read == 500  # known from the copy


# the files of a folder, what is named, and the files that are found or the id of the refusal
FIND = {
    "a folder": (["a.jsonl", "b/c.csv", ".hidden.jsonl"], ".", ["a.jsonl", "b/c.csv"]),
    "a folder with a split": (
        ["train.jsonl", "train-2.jsonl", "test.jsonl", "x.txt"],
        ".",
        ["train-2.jsonl", "train.jsonl"],
    ),
    "other files": (["a.jsonl", "x.txt.bak"], ".", ["a.jsonl"]),
    "a split is a whole word": (
        ["chats.jsonl", "trainers.csv"],
        ".",
        ["chats.jsonl", "trainers.csv"],
    ),
    "folders of splits": (["train/data.jsonl", "test/data.jsonl"], ".", ["train/data.jsonl"]),
    "splits at the end of names": (
        ["chats_train.jsonl", "chats-test.jsonl"],
        ".",
        ["chats_train.jsonl"],
    ),
    "rows beside held-out ones": (["chats.jsonl", "dev.jsonl"], ".", ["chats.jsonl"]),
    "held-out rows alone": (["test/a.jsonl", "dev.jsonl"], ".", ["dev.jsonl", "test/a.jsonl"]),
    "a pattern": (["a/1.jsonl", "b/2.jsonl"], "*/*.jsonl", ["a/1.jsonl", "b/2.jsonl"]),
    "a pattern of nothing": (["a.jsonl"], "nothing*", "data_no_files"),
    "a folder of nothing": (["a.jsonl", "c/.hidden.jsonl"], "c", "data_no_files"),
    "a document": (["rows.docx"], "rows.docx", "data_file_type"),
    # it is not left out
    "packed JSON lines": (["a.jsonl", "more.jsonl.zst"], ".", "data_file_type"),
    "packed CSV": (["a.jsonl", "more.csv.zip"], ".", "data_file_type"),
}


@pytest.mark.parametrize("case", FIND)
def test_files_are_found(tmp_path: Path, case: str) -> None:
    files, reference, expected = FIND[case]
    for name in files:
        write_lines(tmp_path / name, [CHAT])
    if isinstance(expected, list):
        assert find_files(tmp_path / reference, "train", None) == tuple(
            tmp_path / name for name in expected
        )
        return
    with pytest.raises(UserError) as refused:
        find_files(tmp_path / reference, "train", "data.mix")
    [problem] = refused.value.problems
    assert problem.id == expected
    assert not case.startswith("packed") or (files[-1] in problem.message and problem.cure)


def test_validation_rows_that_are_also_trained_on_are_counted_by_content(tmp_path: Path) -> None:
    """Whatever the file's name and its format: a conversation in ShareGPT's form is the same
    conversation.
    """
    asked = [f"question {number}" for number in range(4)]
    chats = [
        {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "a"}]}
        for text in asked
    ]
    turns = [
        {"conversations": [{"from": "human", "value": text}, {"from": "gpt", "value": "a"}]}
        for text in asked
    ]
    held_out = write_lines(tmp_path / "held_out.jsonl", [turns[0], turns[3], *({"messages": [
        {"role": "user", "content": "new"}, {"role": "assistant", "content": "a"}]},)])  # fmt: skip
    counts = staged(local(write_lines(tmp_path / "a.jsonl", chats), validation=held_out))
    assert counts is not None and (counts.validation, counts.shared) == (3, 2)
