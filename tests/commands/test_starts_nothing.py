"""`plan`, `lint`, `flags`, `status` and `report` start no program that a file names; an audit hook
lists the starts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from launch.__main__ import main
from tests.execution.record.records import write_run
from tests.paths import ROOT

ALLOWED = ("nvidia-smi", "squeue", "scontrol")  # on the PATH of the tests


class Audit:
    """Notes every program that this process starts, and every file of a folder that it compiles,
    while it has a folder; an audit hook cannot be removed.
    """

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.started: list[str] = []

    def note(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.folder is None:
            return
        if event in ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system"):
            self.started.append(str(arguments[0]))
        elif event == "compile" and str(arguments[1]).startswith(str(self.folder)):
            self.started.append(str(arguments[1]))


@cache
def audit() -> Audit:
    """The one audit of this process."""
    installed = Audit()
    sys.addaudithook(installed.note)
    return installed


Audited = Callable[..., tuple[int, list[str], str]]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder of stages, and a working folder with a program `evil`."""
    config, work = tmp_path / "config", tmp_path / "work"
    for folder in (
        config / "stage",
        config / "cluster",
        config / "model",
        config / "tuned",
        work / "venv" / "bin",
    ):
        folder.mkdir(parents=True)
    for path in (work / "evil", work / "venv" / "bin" / "python"):
        path.write_text(f'#!/bin/sh\ntouch {tmp_path}/executed\nexec {sys.executable} "$@"\n')
        path.chmod(0o755)
    (work / "evil.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\n")
    (work / "venv" / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.12.0\n")
    packages = work / "venv" / "lib" / "python3.12" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "evil.pth").write_text(
        f"import os; open({str(tmp_path / 'executed')!r}, 'w')\n{ROOT}\n/no/such\n"
    )
    monkeypatch.setenv("LAUNCH_CONFIG_DIR", str(config))
    monkeypatch.setenv("EVIL", str(work / "evil"))
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:{work}")
    monkeypatch.delenv("OPEN_INSTRUCT_DIR", raising=False)
    monkeypatch.chdir(work)
    return tmp_path


@pytest.fixture
def audited(home: Path, capsys: pytest.CaptureFixture[str]) -> Audited:
    """Run a command of launch, and return its exit code, the programs and files of the user's that
    were executed, and its output.
    """

    def run(*argv: str) -> tuple[int, list[str], str]:
        audit().folder, audit().started = home, []
        try:
            code = main(list(argv))
        finally:
            audit().folder = None
        programs = audit().started
        started = [program for program in programs if Path(program).name not in ALLOWED]
        if (home / "executed").exists():
            started.append("executed")
        return code, started, "".join(capsys.readouterr())

    return run


def write(home: Path, file: str, text: str) -> None:
    (home / "config" / file).write_text(text, encoding="utf-8")


STAGE = "# @package _global_\ndefaults:\n  - demo\n  - _self_\n"
SHOWN = "not started"
VARIANTS = {
    "relative": ("./evil", SHOWN),
    "on_the_path": ("evil", SHOWN),
    "home": ("~/evil", SHOWN),
    "absolute": ("{work}/evil", SHOWN),
    "a_variable": ("${{oc.env:EVIL}}", SHOWN),
    "an_environment": ("venv/bin/python", "read from their folders"),
    "another_key": ("${{stage.description}}", SHOWN),
    "a_script": ("./evil.py", "no_interpreter"),
    "a_folder": ("./venv", "venv/bin/python'"),
    "missing": ("./evill", "no_interpreter"),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_the_interpreter_of_a_stage_file(
    home: Path, audited: Audited, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    value, shown = VARIANTS[name]
    monkeypatch.setenv("HOME", str(home / "work"))
    text = value.format(work=home / "work")
    write(home, "stage/mine.yaml", f'{STAGE}python: "{text}"\nstage:\n  description: ./evil\n')
    for trainer in ("trl_sft", "finetune"):
        code, started, output = audited("plan", "stage=mine", f"trainer={trainer}")
        assert started == [] and shown in output, output
        assert code == (0 if shown in (SHOWN, "read from their folders") else 2), output


@pytest.mark.parametrize("place", ["base", "cluster", "tuned", "model", "config"])
def test_the_interpreter_of_another_file(home: Path, audited: Audited, place: str) -> None:
    header, argv = "# @package _global_\n", ["plan", "stage=demo", "trainer=trl_sft"]
    if place == "base":
        write(home, "stage/first.yaml", f"{STAGE}python: ./evil\n")
        write(home, "stage/mine.yaml", f"{header}defaults:\n  - first\n  - _self_\n")
        argv[1] = "stage=mine"
    elif place == "config":
        shipped = (ROOT / "configs" / "tulu" / "config.yaml").read_text(encoding="utf-8")
        write(home, "config.yaml", f"{shipped}\npython: ./evil\n")
    else:
        name = "tiny" if place == "model" else "mine"
        write(home, f"{place}/{name}.yaml", f"{header}python: ./evil\n")
        argv.append(f"{'+' if place == 'tuned' else ''}{place}={name}")
    _, started, output = audited(*argv)
    assert started == [], output


def test_upstreams_folder_of_a_stage_file_is_read_and_not_executed(
    home: Path, audited: Audited
) -> None:
    checkout = home / "work" / "checkout" / "open_instruct"
    checkout.mkdir(parents=True)
    for name in ("__init__", "utils", "finetune", "dataset_transformation", "dataset_processor"):
        (checkout / f"{name}.py").write_text(f"open({str(home / 'executed')!r}, 'w')\n")
    write(home, "stage/mine.yaml", f"{STAGE}upstream:\n  dir: ./checkout\n")
    _, started, output = audited("plan", "stage=mine")
    # parsed, which is what `compile` notes
    assert started in ([], [str(checkout / "finetune.py")]), output


def test_an_interpreter_that_the_command_line_names_is_asked(home: Path, audited: Audited) -> None:
    code, started, output = audited("plan", "stage=demo", "trainer=trl_sft", "python=./evil")
    assert (code, started) == (0, [str(home / "work" / "evil"), "executed"]), output
    assert SHOWN not in output


def test_check_starts_the_interpreter_of_a_stage_file(home: Path, audited: Audited) -> None:
    write(home, "stage/mine.yaml", f"{STAGE}python: ./evil\n")
    (home / "work" / "evil").write_text(f"#!/bin/sh\ntouch {home}/executed\nexit 1\n")
    _, started, output = audited("check", "stage=mine", "trainer=trl_sft")
    assert "executed" in started, output


def test_the_other_verbs(home: Path, audited: Audited) -> None:
    run = write_run(home / "work" / "runs" / "demo" / "mine", steps=2)
    (run / "config.yaml").write_text("python: ./evil\nupstream: {dir: ./evil}\n")
    (run / "command.sh").write_text("touch ../../../executed\n")
    (home / "work" / "job.sh").write_text(
        "$(./evil) python open_instruct/finetune.py; ./evil; source ./evil\n"
    )
    for argv in (
        ["lint", "job.sh"],
        ["flags", "trl_sft"],
        ["status"],
        ["report", "mine"],
        ["logs", "mine"],
    ):
        _, started, output = audited(*argv)
        assert started == [], (argv, output)
