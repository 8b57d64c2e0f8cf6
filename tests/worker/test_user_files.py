"""Which files of the user's a verifier's process reports: those that it imports or reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from launch.worker.opened import FileState, file_state
from launch.worker.verifiers import VerifierCall, VerifierError, VerifierProcess

OWN = """
import json, os
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

def imports(completions, **columns):
    import later
    return [later.SCORE]
"""


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder of a verifier; that for temporary files is another."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "own.py").write_text(OWN, encoding="utf-8")
    for name in ("helper", "later", "unused"):
        (tmp_path / f"{name}.py").write_text("SCORE = 0.5", encoding="utf-8")
    for name in ("table.json", "temporary/table.json"):
        (tmp_path / name).write_text("{}", encoding="utf-8")
    return tmp_path


def files_of(folder: Path, function: str, file: str = "table.json") -> list[list[str]]:
    """Return the names of what is reported: at the start, and with each of two calls."""
    reports: list[dict[Path, FileState]] = []

    def note(files: Sequence[tuple[str, FileState]]) -> None:
        reports.append({Path(path): state for path, state in files})

    name = f"{folder / 'own.py'}:{function}"
    process = VerifierProcess([name], seconds=30.0, on_files=note)
    try:
        for _ in range(2):
            outcome = process.score(VerifierCall(name, "p", "c", {"file": str(folder / file)}))
            assert outcome.failure is None
    finally:
        process.close()
    for report in reports:
        assert all(state == file_state(path) for path, state in report.items())
    return [sorted(path.relative_to(folder).as_posix() for path in report) for report in reports]


@pytest.mark.parametrize(
    ("function", "file", "reported"),
    [
        ("reads", "table.json", ["table.json"]),
        ("imports", "table.json", ["later.py"]),
        ("writes", "written.json", []),
        ("reads", "temporary/table.json", []),
    ],
)
def test_each_file_is_reported_once_when_it_is_first_used(
    outside: Path, function: str, file: str, reported: list[str]
) -> None:
    assert files_of(outside, function, file) == [["helper.py", "own.py"], reported, []]


def test_a_verifier_that_fails_to_load_reports_what_it_has_imported(outside: Path) -> None:
    (outside / "helper.py").write_text("raise ValueError", encoding="utf-8")
    files: list[str] = []
    name = f"{outside / 'own.py'}:reads"
    process = VerifierProcess(
        [name], 30.0, on_files=lambda found: files.extend(path for path, _ in found)
    )
    with pytest.raises(VerifierError):
        process.start()
    assert str(outside / "helper.py") in files
