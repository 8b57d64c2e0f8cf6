"""Which files of the user's a verifier's process reports: those that it imports or reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from launch.worker.opened import FileState, UsedFile, file_state
from launch.worker.verifiers import VerifierCall, VerifierError, VerifierProcess

OWN = """
import json, os, subprocess, sys
import helper

def reads(completions, **columns):
    with open(columns["file"][0]) as stream:
        stream.read()
    return [helper.SCORE]

def writes(completions, **columns):
    with open(columns["file"][0], "w") as stream:
        stream.write("kept")
    with open(columns["file"][0]) as stream:
        stream.read()
    return [1.0]

def reads_by_other_names(completions, **columns):
    path = columns["file"][0]
    for name in (path.encode(), os.path.relpath(path), os.path.dirname(path) + "/./table.json"):
        with open(name) as stream:
            stream.read()
    return [1.0]

calls = []

def reads_then(change, path):
    # the second call changes the file after it has read it
    calls.append(path)
    with open(path) as stream:
        stream.read()
    if len(calls) == 2:
        change(path)
    return [1.0]

def reads_then_writes(completions, **columns):
    return reads_then(lambda path: open(path, "w").close(), columns["file"][0])

def reads_then_replaces(completions, **columns):
    def replace(path):
        with open(path + ".new", "w") as stream:
            stream.write("new")
        os.replace(path + ".new", path)
    return reads_then(replace, columns["file"][0])

def reads_then_is_edited(completions, **columns):
    path = columns["file"][0]
    with open(path) as stream:
        stream.read()
    subprocess.run([sys.executable, "-c", f"open({path!r}, 'a').write('x')"])
    return [1.0]

def writes_own_code(completions, **columns):
    with open(helper.__file__, "a") as stream:
        stream.write("# more")
    return [1.0]

def imports(completions, **columns):
    import later
    return [later.SCORE]
"""


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder of a verifier; that for temporary files is another."""
    for name, variable in (("temporary", "TMPDIR"), ("cache", "XDG_CACHE_HOME")):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(variable, str(tmp_path / name))
    (tmp_path / "own.py").write_text(OWN, encoding="utf-8")
    for name in ("helper", "later", "unused"):
        (tmp_path / f"{name}.py").write_text("SCORE = 0.5", encoding="utf-8")
    for name in ("table.json", "temporary/table.json", "cache/table.json"):
        (tmp_path / name).write_text("{}", encoding="utf-8")
    return tmp_path


def uses_of(folder: Path, function: str, file: str = "table.json") -> list[dict[str, str]]:
    """Return the use of each file that is reported: at the start, and with each of two calls."""
    reports: list[Sequence[UsedFile]] = []
    name = f"{folder / 'own.py'}:{function}"
    process = VerifierProcess([name], seconds=30.0, on_files=reports.append)
    try:
        for _ in range(2):
            outcome = process.score(VerifierCall(name, "p", "c", {"file": str(folder / file)}))
            assert outcome.failure is None
    finally:
        process.close()
    return [
        {Path(used.path).relative_to(folder).as_posix(): used.use for used in report}
        for report in reports
    ]


@pytest.mark.parametrize(
    ("function", "file", "reported"),
    [
        ("reads", "table.json", {"table.json": "read"}),
        ("reads_by_other_names", "table.json", {"table.json": "read"}),
        ("imports", "table.json", {"later.py": "import"}),
        ("writes", "written.json", {}),
        ("writes", "table.json", {}),
        ("reads", "temporary/table.json", {}),
        ("reads", "cache/table.json", {}),
    ],
)
def test_each_file_is_reported_once_when_it_is_first_used(
    outside: Path, function: str, file: str, reported: dict[str, str]
) -> None:
    at_start = {"helper.py": "import", "own.py": "import"}
    assert uses_of(outside, function, file) == [at_start, reported, {}]


@pytest.mark.parametrize(
    ("function", "second"),
    [
        ("reads_then_writes", {"table.json": "write"}),
        ("reads_then_replaces", {"table.json": "write"}),
        ("reads_then_is_edited", {"table.json": "read"}),
        ("writes_own_code", {}),
    ],
)
def test_a_file_that_is_read_and_then_written_is_reported_again(
    outside: Path, function: str, second: dict[str, str]
) -> None:
    """What another program writes is read again; what the verifier writes has that as its use."""
    _, first, later = uses_of(outside, function)
    expected = {"table.json": "read"}
    if function == "writes_own_code":
        expected = {"helper.py": "write"}
    assert (first, later) == (expected, second)


def test_a_file_is_reported_in_the_state_in_which_it_was_opened(outside: Path) -> None:
    table = outside / "table.json"
    before = file_state(table)
    states: dict[str, FileState] = {}
    name = f"{outside / 'own.py'}:reads_then_is_edited"
    process = VerifierProcess(
        [name], 30.0, on_files=lambda files: states.update((f.path, f.state) for f in files)
    )
    try:
        process.score(VerifierCall(name, "p", "c", {"file": str(table)}))
    finally:
        process.close()
    assert states[str(table)] == before != file_state(table)


def test_a_verifier_that_fails_to_load_reports_what_it_has_imported(outside: Path) -> None:
    (outside / "helper.py").write_text("raise ValueError", encoding="utf-8")
    files: list[str] = []
    name = f"{outside / 'own.py'}:reads"
    process = VerifierProcess(
        [name], 30.0, on_files=lambda found: files.extend(file.path for file in found)
    )
    with pytest.raises(VerifierError):
        process.start()
    assert str(outside / "helper.py") in files
