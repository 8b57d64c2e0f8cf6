"""An interpreter is asked each question once a command, and its failures have a reason."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pytest

from launch.host import interpreter
from launch.host.interpreter import (
    InterpreterError,
    check_interpreter,
    inventory,
    missing_modules,
    open_worker,
    package_folders,
    trainer_python,
)
from launch.worker.json_codec import encode
from launch.worker.model_loading import ModelRequest


def install_python(folder: Path, body: str) -> str:
    program = folder / "python"
    program.write_text(f"#!/bin/sh\necho run >> {folder}/runs\n{body}\n", encoding="utf-8")
    program.chmod(0o755)
    return str(program)


def test_an_interpreter_is_asked_once(tmp_path: Path) -> None:
    python = install_python(tmp_path, f'exec {sys.executable} "$@"')
    assert package_folders(python) == package_folders(python)
    assert missing_modules(python, ["json", "no_such_module"]) == ["no_such_module"]
    assert inventory(python) == inventory(python)
    assert (tmp_path / "runs").read_text(encoding="utf-8").count("run") == 3


def test_the_inventory_is_the_interpreters_own() -> None:
    installed = inventory(sys.executable)
    assert (
        installed.python == ".".join(map(str, sys.version_info[:3]))
        and "psutil" in installed.packages
    )


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("echo 'libpython is missing' >&2; exit 1", "libpython is missing"),
        ("exit 3", "exit status 3"),
        ("", "unexpected"),
    ],
)
def test_a_failure_has_a_reason(tmp_path: Path, body: str, reason: str) -> None:
    python = install_python(tmp_path, body)
    with pytest.raises(InterpreterError, match=reason):
        inventory(python)
    assert package_folders(python) == []


def test_an_interpreter_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(InterpreterError, match="not found"):
        inventory("/no/such/python")
    with pytest.raises(InterpreterError, match="Permission denied"):
        inventory(str(tmp_path))
    assert trainer_python(None) == sys.executable
    assert trainer_python("/no/such/python") == "/no/such/python"


def test_a_wrong_interpreter_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def problem(configured: str) -> str:
        found = check_interpreter(configured, trainer_python(configured))
        assert found is not None and found.id == "no_interpreter"
        return str(found)

    environment = tmp_path / "venv"
    (environment / "bin").mkdir(parents=True)
    python = install_python(environment / "bin", f'exec {sys.executable} "$@"')
    assert (
        check_interpreter(python, trainer_python(python)) is None
        and check_interpreter(None, "/x") is None
    )
    assert f"'{python}'" in problem(str(environment))
    assert f"'{python}'" in problem(str(environment / "bin" / "pyton"))
    monkeypatch.setenv("PATH", str(environment / "bin"))
    assert "python=pythom" in problem("pythom") and "'python'" in problem("pythom")
    (tmp_path / "text").write_text("x", encoding="utf-8")
    assert str(tmp_path / "text") in problem(str(tmp_path / "text"))
    assert "/bin/echo" in problem("/bin/echo")


def test_a_silent_interpreter_is_explained_and_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(interpreter, "_PATIENCE", 0.2)
    monkeypatch.setattr(interpreter, "_TIMEOUT", 0.6)
    monkeypatch.setattr(interpreter, "_SILENT", set())
    python = install_python(tmp_path, "sleep 60 & wait")
    began = time.monotonic()
    found = check_interpreter(python, python)
    assert found is not None and found.id == "no_interpreter"
    assert package_folders(python) == []
    assert time.monotonic() - began < 10
    assert (tmp_path / "runs").read_text(encoding="utf-8").count("run") == 1
    assert "has not answered" in capsys.readouterr().err


def test_a_worker_answers_lines_and_its_failure_has_a_reason(tmp_path: Path) -> None:
    python = install_python(
        tmp_path, 'read line; echo "$line $TOKENIZERS_PARALLELISM $2 $3 $4"; echo lost >&2; exit 3'
    )
    request = ModelRequest("/model", quantized=False)
    with open_worker(python, "generating", request) as worker:
        worker.requests.write("hello\n")
        worker.requests.flush()
        assert worker.answers.readline() == f"hello false --call generating {encode(request)}\n"
        assert worker.wait() == "lost"
    with open_worker(install_python(tmp_path, "exec sleep 60"), "generating", request) as worker:
        assert worker.process.poll() is None
    assert worker.process.returncode == -signal.SIGKILL
