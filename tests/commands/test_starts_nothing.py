"""`plan`, `lint`, `flags`, `status` and `report` start no program that a file names; an audit hook
lists the starts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.execution.record.records import write_run
from tests.paths import ROOT

# runs a command of launch, and prints every program that its process starts, and every file that it
# executes as Python
AUDITED = f"""
import json, runpy, sys
started = []
def note(event, arguments):
    if event in ("subprocess.Popen", "os.exec", "os.posix_spawn"):
        started.append(str(arguments[0]))
    elif event == "os.system":
        started.append(arguments[0])
    elif event == "compile" and str(arguments[1]).startswith(FOLDER):
        started.append(arguments[1])
FOLDER = sys.argv.pop(1)
sys.path.insert(0, {str(ROOT)!r})
sys.addaudithook(note)
try:
    runpy.run_module("launch", run_name="__main__", alter_sys=True)
except SystemExit as end:
    print(json.dumps({{"code": end.code, "started": started}}), file=sys.stderr)
"""
ALLOWED = ("nvidia-smi", "squeue", "scontrol")  # on the PATH of the tests


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


def audited(home: Path, *argv: str) -> tuple[int, list[str], str]:
    """Return the exit code, the programs and files of the user's that were executed, and the
    output.
    """
    done = subprocess.run(
        [sys.executable, "-c", AUDITED, str(home), *argv],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    report = json.loads(done.stderr.splitlines()[-1])
    started = [program for program in report["started"] if Path(program).name not in ALLOWED]
    if (home / "executed").exists():
        started.append("executed")
    return report["code"], started, done.stdout + done.stderr


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
    home: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    value, shown = VARIANTS[name]
    monkeypatch.setenv("HOME", str(home / "work"))
    text = value.format(work=home / "work")
    write(home, "stage/mine.yaml", f'{STAGE}python: "{text}"\nstage:\n  description: ./evil\n')
    for trainer in ("trl_sft", "finetune"):
        code, started, output = audited(home, "plan", "stage=mine", f"trainer={trainer}")
        assert started == [] and shown in output, output
        assert code == (0 if shown in (SHOWN, "read from their folders") else 2), output


@pytest.mark.parametrize("place", ["base", "cluster", "tuned", "model", "config"])
def test_the_interpreter_of_another_file(home: Path, place: str) -> None:
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
    _, started, output = audited(home, *argv)
    assert started == [], output


def test_upstreams_folder_of_a_stage_file_is_read_and_not_executed(home: Path) -> None:
    checkout = home / "work" / "checkout" / "open_instruct"
    checkout.mkdir(parents=True)
    for name in ("__init__", "utils", "finetune", "dataset_transformation", "dataset_processor"):
        (checkout / f"{name}.py").write_text(f"open({str(home / 'executed')!r}, 'w')\n")
    write(home, "stage/mine.yaml", f"{STAGE}upstream:\n  dir: ./checkout\n")
    _, started, output = audited(home, "plan", "stage=mine")
    # parsed, which is what `compile` notes
    assert started in ([], [str(checkout / "finetune.py")]), output


def test_an_interpreter_that_the_command_line_names_is_asked(home: Path) -> None:
    code, started, output = audited(home, "plan", "stage=demo", "trainer=trl_sft", "python=./evil")
    assert (code, started) == (0, [str(home / "work" / "evil"), "executed"]), output
    assert SHOWN not in output


def test_check_starts_the_interpreter_of_a_stage_file(home: Path) -> None:
    write(home, "stage/mine.yaml", f"{STAGE}python: ./evil\n")
    _, started, output = audited(home, "check", "stage=mine", "trainer=trl_sft")
    assert "executed" in started, output


def test_the_other_verbs(home: Path) -> None:
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
        _, started, output = audited(home, *argv)
        assert started == [], (argv, output)
