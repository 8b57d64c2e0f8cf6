from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from launch.demo import BuiltFolder, demo_key, ensure, ensure_chats, ensure_model, ensure_preferences
from launch.errors import UserError
from tests.paths import ROOT


def bare_python(folder: Path) -> Path:
    """An interpreter with nothing but the standard library."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder / "bin" / "python"


def problem_of(error: pytest.ExceptionInfo[UserError]) -> tuple[str, str]:
    [problem] = error.value.problems
    return problem.id, str(problem)


def test_chats_then_preferences(tmp_path: Path) -> None:
    chats = ensure_chats(tmp_path / "chats")
    content = (tmp_path / "chats" / "train.jsonl").read_bytes()
    lines = content.splitlines()
    assert chats.built and chats.facts["rows"] == len(lines) > 2000
    assert chats.facts["digest"] == hashlib.sha256(content).hexdigest()
    assert set(json.loads(lines[0])) == {"messages"}
    assert ensure_chats(tmp_path / "chats") == BuiltFolder(chats.facts, built=False)

    pairs = ensure_preferences(tmp_path / "preferences")
    assert pairs.built and pairs.facts["digest"] != chats.facts["digest"]
    assert set(json.loads((tmp_path / "preferences" / "train.jsonl").read_bytes().splitlines()[0])) == {
        "chosen",
        "rejected",
    }
    assert ensure_preferences(tmp_path / "chats").built  # another kind in the same place is replaced


def test_model_is_made_once_by_the_interpreter_that_was_named(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the train group is not installed")
    model = ensure_model(tmp_path / "model", sys.executable)
    assert model.built and 500_000 < model.facts["parameters"] < 5_000_000
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {
        path.name for path in (tmp_path / "model").iterdir()
    }
    bare = tmp_path / "never-started"
    again = ensure_model(tmp_path / "model", bare)
    assert (again.built, again.facts) == (False, model.facts)


def test_an_interpreter_without_torch_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    python = bare_python(tmp_path / "venv")
    with pytest.raises(UserError) as refused:
        ensure_model(tmp_path / "demo" / "model", python)
    identity, text = problem_of(refused)
    assert identity == "demo_packages_missing"
    assert "no package 'torch'" in text and str(python) in text
    assert list((tmp_path / "demo").iterdir()) == []


def test_an_interpreter_that_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        ensure_model(tmp_path / "model", tmp_path / "no-python")
    assert problem_of(refused)[0] == "demo_python_not_started"


def test_an_interpreter_that_fails_is_quoted(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho libgomp.so.1: cannot open shared object file >&2\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(UserError) as refused:
        ensure_model(tmp_path / "model", python)
    identity, text = problem_of(refused)
    assert identity == "demo_model_failed"
    assert "libgomp.so.1: cannot open shared object file" in text


def test_a_library_without_sources_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lib").mkdir()
    monkeypatch.setattr("launch.demo.documentation.stdlib_folder", lambda: tmp_path / "lib")
    with pytest.raises(UserError) as refused:
        ensure_chats(tmp_path / "chats")
    assert problem_of(refused)[0] == "demo_no_documentation"
    assert not (tmp_path / "chats").exists()


def test_key_is_stable_and_free_of_side_effects(tmp_path: Path) -> None:
    program = (
        "import sys; from launch.demo import demo_key; print(demo_key())\n"
        "heavy = {'torch', 'transformers', 'tokenizers', 'launch.demo.corpus'} & set(sys.modules)\n"
        "print(*sorted(heavy))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{demo_key()}\n\n"
    assert list(tmp_path.iterdir()) == []


def test_key_names_every_builder() -> None:
    folder = Path(ensure.__file__).parent
    others = {path.name for path in folder.glob("*.py")} - set(ensure.BUILDERS)
    assert others == {"__init__.py", "ensure.py", "folders.py"}  # they affect where the demo is kept, not its content
