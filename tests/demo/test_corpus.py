from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.demo import corpus
from launch.demo.documentation import DocEntry, read_entries, stdlib_folder
from launch.redact import Redactor
from tests.paths import ROOT

JOIN = DocEntry("os.path.join", "function", "os.path.join(a, *p)", "Join two or more pathname components.")
SPLIT = DocEntry("os.path.split", "function", "os.path.split(p)", "Split a pathname in two.")


@pytest.fixture(scope="module")
def entries() -> list[DocEntry]:
    return read_entries(stdlib_folder())


def test_a_chat_asks_about_the_name_and_answers_with_signature_and_text() -> None:
    [chat] = corpus.build_chats([JOIN])
    user, assistant = chat["messages"]
    assert user["role"] == "user" and "`os.path.join`" in user["content"]
    assert assistant == {
        "role": "assistant",
        "content": "`os.path.join(a, *p)`\n\nJoin two or more pathname components.",
    }


def test_every_wording_is_used_and_the_seed_chooses(entries: list[DocEntry]) -> None:
    functions = [entry for entry in entries if entry.kind == "function"]
    used = {corpus.phrase_question(entry).replace(entry.name, "{}") for entry in functions}
    assert used == set(corpus.QUESTIONS["function"])
    assert [corpus.phrase_question(entry, 0) for entry in functions] != [
        corpus.phrase_question(entry, 1) for entry in functions
    ]


def test_the_corpus_of_this_python(entries: list[DocEntry]) -> None:
    rows = corpus.build_chats(entries)
    assert 2000 < len(rows) < 20000
    for row in rows:
        user, assistant = row["messages"]
        assert (user["role"], assistant["role"]) == ("user", "assistant")
        assert 0 < len(assistant["content"]) <= corpus.MAX_ANSWER_LENGTH
        assert assistant["content"] == assistant["content"].strip()
    assert len({row["messages"][0]["content"] for row in rows}) == len(rows)


def test_no_row_looks_like_a_secret(entries: list[DocEntry]) -> None:
    redactor = Redactor({})
    text = [message["content"] for row in corpus.build_chats(entries) for message in row["messages"]]
    assert [line for line in text if redactor.redact_text(line) != line] == []


def test_an_entry_less_changes_no_other_chat(entries: list[DocEntry]) -> None:
    with_it, without_it = corpus.build_chats(entries[:50]), corpus.build_chats(entries[1:50])
    assert [row for row in with_it if row in without_it] == without_it


def test_preferences_differ_in_the_answer_only(entries: list[DocEntry]) -> None:
    rows = corpus.build_preferences(entries)
    assert len(rows) == corpus.MAX_PREFERENCES
    shuffled = 0
    for row in rows:
        assert row["chosen"][0] == row["rejected"][0]
        right, wrong = row["chosen"][1], row["rejected"][1]
        assert right["role"] == wrong["role"] == "assistant"
        assert right["content"] != wrong["content"]
        assert max(len(right["content"]), len(wrong["content"])) <= corpus.MAX_PREFERENCE_LENGTH
        shuffled += sorted(right["content"].split()) == sorted(wrong["content"].split())
    assert 0.7 < shuffled / len(rows) < 0.8


def test_a_preference_never_rejects_the_right_answer() -> None:
    twin = DocEntry("os.path.join", "function", JOIN.signature, JOIN.text)
    assert all(row["chosen"] != row["rejected"] for row in corpus.build_preferences([JOIN, twin, SPLIT]))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("short", "short"),
        ("One sentence here. Another that is cut off", "One sentence here."),
        ("a line of text\nand a second line cut off", "a line of text"),
        ("words without any border to cut at", "words without any border"),
        ("x" * 40, "x" * 25),
        ("A. " + "y" * 40, "A. " + "y" * 22),
    ],
)
def test_truncate_cuts_at_the_tidiest_boundary(text: str, expected: str) -> None:
    assert corpus.truncate(text, 25) == expected


@given(st.text(), st.integers(min_value=1, max_value=80))
def test_truncate_is_a_short_enough_beginning(text: str, limit: int) -> None:
    cut = corpus.truncate(text, limit)
    assert len(cut) <= limit
    assert text.startswith(cut)


def test_same_bytes_in_another_process(tmp_path: Path) -> None:
    library = tmp_path / "library"  # a part of it: reading all takes seconds in each process
    shutil.copytree(stdlib_folder() / "json", library / "json")
    for name in ("argparse.py", "posixpath.py", "random.py", "textwrap.py"):
        shutil.copy(stdlib_folder() / name, library)
    entries = read_entries(library)
    assert len(entries) > 50
    digest = corpus.write_rows(tmp_path / "here.jsonl", corpus.build_preferences(entries))
    program = (
        "import sys; from pathlib import Path; from launch.demo import corpus, documentation as d\n"
        "rows = corpus.build_preferences(d.read_entries(Path(sys.argv[2])))\n"
        "print(corpus.write_rows(Path(sys.argv[1]), rows))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "there.jsonl"), str(library)],
        cwd=ROOT,
        env={"PYTHONHASHSEED": "7", "PYTHONPATH": "."},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == digest
    assert (tmp_path / "here.jsonl").read_bytes() == (tmp_path / "there.jsonl").read_bytes()


def test_rows_survive_the_file(tmp_path: Path) -> None:
    odd = DocEntry("m.f", "function", "m.f(a='\u2028')", "Line\u2028separator and caf\u00e9, in one docstring.")
    corpus.write_rows(tmp_path / "train.jsonl", corpus.build_chats([odd]))
    lines = (tmp_path / "train.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == corpus.build_chats([odd])
