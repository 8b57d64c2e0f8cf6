"""Small files: whole or not at all, and lines that a crash truncated."""

from __future__ import annotations

import os
import stat
import threading
import time
from pathlib import Path

import pytest

from launch.files import (
    append_json,
    archive_folder,
    iterate_json_lines,
    load_json,
    read_file,
    read_json_lines,
    read_json_object,
    write_file,
)


def test_missing_folders_are_made_and_the_mode_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "script.sh"
    write_file(path, "прогон\n", 0o755, durable=True)
    assert path.read_text(encoding="utf-8") == "прогон\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o755


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(IsADirectoryError):
        write_file(tmp_path / "taken", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_threads_that_write_the_same_file_never_mix(tmp_path: Path) -> None:
    path = tmp_path / "file"
    texts = [letter * 200_000 for letter in "abcdefgh"]
    threads = [
        threading.Thread(target=write_file, args=(path, text)) for text in texts for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_text() in texts
    assert list(tmp_path.iterdir()) == [path]


def test_only_whole_objects_are_read(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(
        b'{"step": 1}\n[2]\n\xff\xfe\n' + b"[" * 100_000 + b'\n{"step": 2}\n{"step": 3'
    )
    assert read_json_lines(path) == [{"step": 1}, {"step": 2}]
    assert read_json_lines(tmp_path / "none") == read_json_lines(tmp_path) == []


def test_a_line_that_a_crash_cut_short_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text('{"step": 1}\n{"step": 2, "lo', encoding="utf-8")
    append_json(path, {"step": 3})
    append_json(path, {"step": 4})
    assert read_json_lines(path) == [{"step": 1}, {"step": 3}, {"step": 4}]


@pytest.mark.parametrize("is_nested", [False, True])
def test_archives_of_the_same_second_have_names_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_nested: bool
) -> None:
    """As after a clock that was set back."""
    monkeypatch.setattr(time, "strftime", lambda form: "20261129-080000")
    into = tmp_path / "below" if is_nested else None
    for text in "abc":
        folder = tmp_path / "run"
        folder.mkdir()
        (folder / "file").write_text(text)
        archived = archive_folder(folder, into)
        assert not folder.exists() and (archived / "file").read_text() == text
    names = sorted(path.name for path in (into or tmp_path).iterdir())
    stamped = "run.20261129-080000"
    assert names == [stamped, f"{stamped}-2", f"{stamped}-3"]


def test_lines_are_read_from_the_end(tmp_path: Path) -> None:
    path, count = tmp_path / "lines.jsonl", 30_000  # of several blocks
    lines = [b'{"step": %d, "text": "%b"}' % (step, b"a" * 200) for step in range(count)]
    path.write_bytes(b"\n".join([*lines, b'{"step":']))
    found = [value["step"] if value else None for value in iterate_json_lines(path, backwards=True)]
    assert found == [None, *range(count - 1, -1, -1)]


def test_what_is_not_a_regular_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for name in ("fifo", "."):
        with pytest.raises(OSError):
            read_file(tmp_path / name)


@pytest.mark.parametrize("text", ["", "{", "[1]", "[" * 100_000, "\x00"])
def test_what_holds_no_object_is_empty(tmp_path: Path, text: str) -> None:
    (tmp_path / "file").write_text(text)
    assert read_json_object(tmp_path / "file") == read_json_object(tmp_path / "none") == {}
    (tmp_path / "file").write_text('{"a": 1}')
    assert read_json_object(tmp_path / "file") == {"a": 1}


def test_a_json_file_is_a_value_or_a_value_error(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    for text in ("", "{", "[" * 100_000, '{"a":' * 100_000, "1" * 5000, "\xff"):
        path.write_bytes(text.encode("latin-1"))
        with pytest.raises(ValueError):
            load_json(path)
    path.write_text("[1]")
    assert load_json(path) == [1]
