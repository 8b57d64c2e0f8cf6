"""Runs whose terminal, folder or exception is hostile: the outcome is recorded, in sentences, and
nothing hangs.

The launcher is real; the trainer is a small script that an interpreter of the test starts in its
place.
"""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from launch import resources
from launch.__main__ import main
from tests.execution.supervise.fake import wait_for
from tests.integration import warm
from tests.integration.faults import PRELUDE
from tests.paths import ROOT
from tests.thorough import mark_others

pytestmark = pytest.mark.slow
_PATIENCE = 300  # seconds that an end may take on a machine which others load
ESCAPES = "\\x1b]0;owned\\x07\\x1b[2J\\x1b[31mred\\x9b31m\\u202egnp.exe\\x08"
RAW = {"\x1b", "\x07", "\x08", "\x9b", "\u202e"}
TRAIN = """
from pathlib import Path
event("phase", phase="training")
for number in range(1, 4):
    step(number)
Path("training").touch()
while Path("wait").exists():
    time.sleep(0.02)
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path, home: Path) -> Start:
    """Start `launch run` in `tmp_path` with `body` as its trainer."""

    def start(
        body: str, *overrides: str, stdout: int | None = subprocess.PIPE, shell: str = ""
    ) -> subprocess.Popen[str]:
        trainer, python = tmp_path / "trainer.py", tmp_path / "python"
        trainer.write_text(PRELUDE + body, encoding="utf-8")
        worker = f"{sys.executable} {resources.WORKER} --script {trainer} --"
        other = warm.python_with_cold_ranks()  # asks the parser
        python.write_text(
            f'#!/bin/sh\ncase "$*" in *accelerate.commands.launch*) exec {worker};; esac\nexec '
            f'{other} "$@"\n',
            encoding="utf-8",
        )
        python.chmod(0o755)
        command = [
            sys.executable,
            "-m",
            "launch",
            "run",
            "stage=demo",
            "trainer=trl_sft",
            "processes=1",
            "name=r",
        ]
        command += [f"python={python}", f"cache={home}/runs/.cache", *overrides]
        if shell:
            command = ["sh", "-c", f'exec "$@" {shell}', "sh", *command]
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        errors = subprocess.PIPE if stdout == subprocess.PIPE else stdout
        return subprocess.Popen(
            command, cwd=tmp_path, env=environ, text=True, stdout=stdout, stderr=errors
        )

    return start


def end(process: subprocess.Popen[str], code: int) -> str:
    """Wait for the end and return what was shown; it ends with `code`, without a traceback of the
    launcher.
    """
    output, errors = process.communicate(timeout=_PATIENCE)
    assert process.returncode == code, output + errors
    assert "Traceback" not in (errors or ""), errors
    return (output or "") + (errors or "")


def outcome(home: Path) -> dict[str, object]:
    content: dict[str, object] = json.loads((home / "runs" / "demo" / "r" / "FAILED").read_text())
    return content


@pytest.mark.thorough
def test_escape_codes_do_not_reach_the_terminal(
    start: Start,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    body = (
        f'event("phase", phase="{ESCAPES}")\nevent("warning", text="{ESCAPES}")\nerror = '
        f'ValueError("{ESCAPES}")\n'
    )
    body += f'error.add_note("{ESCAPES}")\nraise error\n'
    shown = end(start(body), 1)
    assert "red" in shown and not RAW & {*shown}
    monkeypatch.chdir(tmp_path)
    for argv in (["status"], ["status", "--json"], ["logs", "r"], ["logs", "r", "--rank", "0"]):
        assert main(argv) == 0
        printed = b"".join(capsysbinary.readouterr()).decode("utf-8")
        assert "red" in printed and not RAW & {*printed}, argv


@pytest.mark.thorough
@pytest.mark.parametrize("shell", [">&- 2>&-", ">/dev/full 2>&1"])
def test_a_run_without_a_place_to_print(start: Start, tmp_path: Path, shell: str) -> None:
    end(start(TRAIN, shell=shell), 1)
    assert "is not a complete model" in str(outcome(tmp_path)["cause"])


@pytest.mark.thorough
def test_a_terminal_that_is_closed(start: Start, tmp_path: Path) -> None:
    (tmp_path / "wait").touch()
    terminal, inner = pty.openpty()
    process = start(TRAIN, stdout=inner)
    os.close(inner)
    reader = threading.Thread(target=lambda: os.read(terminal, 1 << 16))
    reader.start()
    wait_for((tmp_path / "training").exists)
    reader.join()
    os.close(terminal)
    (tmp_path / "wait").unlink()
    assert process.wait(timeout=_PATIENCE) == 1
    assert "is not a complete model" in str(outcome(tmp_path)["cause"])


@pytest.mark.parametrize("replaced_by", mark_others([None, "file"], ["file"]))
def test_a_run_folder_that_is_removed_while_it_trains(
    start: Start, tmp_path: Path, replaced_by: str | None
) -> None:
    (tmp_path / "wait").touch()
    process = start(TRAIN)
    wait_for((tmp_path / "training").exists)
    shutil.rmtree(tmp_path / "runs")
    if replaced_by:
        (tmp_path / "runs").write_text("")
    (tmp_path / "wait").unlink()
    shown = end(process, 1)
    assert "the run failed" in shown and "runs/demo/r" in shown


def handles_sigterm(process: subprocess.Popen[str]) -> bool:
    status = Path(f"/proc/{process.pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) & 1 << signal.SIGTERM - 1)


@pytest.mark.parametrize(
    "when", mark_others(["the handler is set", "the run is locked"], ["the handler is set"])
)
def test_sigterm_in_the_first_second(start: Start, tmp_path: Path, when: str) -> None:
    process = start(TRAIN)
    lock = tmp_path / "runs" / "demo" / ".r.lock"
    wait_for(lambda: handles_sigterm(process) if when == "the handler is set" else lock.exists())
    process.send_signal(signal.SIGTERM)
    assert "interrupted by SIGTERM" in end(process, 130)
    assert not lock.exists()
    assert not (tmp_path / "runs").exists() or outcome(tmp_path)["exit_code"] == 130


IN_EXEC = """
from launch import __main__ as command

def run_verb(arguments):
    exec("import os, signal, time; os.kill(os.getpid(), signal.SIGTERM); time.sleep(600)")

command._run_verb = run_verb
command.console()
"""


@pytest.mark.thorough
def test_sigterm_while_a_dataclass_is_made(tmp_path: Path) -> None:
    """By `exec`, after which `python -m` would end by SIGINT for a KeyboardInterrupt."""
    (tmp_path / "in_exec.py").write_text(IN_EXEC)
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    command = [sys.executable, "-m", "in_exec"]
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=_PATIENCE, check=False
    )
    assert (done.returncode, done.stderr) == (130, "launch: interrupted by SIGTERM\n")


def test_a_stopped_reaper_does_not_keep_ctrl_c_from_ending_the_run(
    start: Start, tmp_path: Path
) -> None:
    (tmp_path / "wait").touch()
    process = start(TRAIN)
    wait_for((tmp_path / "training").exists)
    descendants = psutil.Process(process.pid).children(recursive=True)
    (reaper,) = [child for child in descendants if "reaper.py" in " ".join(child.cmdline())]
    assert len(descendants) > 1
    reaper.suspend()
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    assert any("SIGINT: ending every process" in line for line in process.stdout)
    process.send_signal(signal.SIGINT)
    shown = end(process, 130)
    assert "the reaper is unresponsive; terminating all processes directly" in shown
    assert "none left" in shown
    assert outcome(tmp_path)["cause"] == "interrupted by SIGINT"
    assert [
        child
        for child in descendants
        if child.is_running() and child.status() != psutil.STATUS_ZOMBIE
    ] == []


@pytest.mark.thorough
def test_status_and_logs_show_the_cause_and_the_cure_as_the_end_of_the_run_did(
    start: Start,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = end(start('raise OSError(28, "No space left on device", "model/weights")'), 1)
    failed = outcome(tmp_path)
    assert failed["cause_id"] == "disk_full"
    cause, cure = str(failed["cause"]), f"{failed['cure']} [disk_full]"
    assert cause.endswith("OSError: [Errno 28] No space left on device: 'model/weights'")
    monkeypatch.chdir(tmp_path)
    for argv in ([], ["status"], ["logs", "r"]):
        assert not argv or main(argv) == 0
        text = capsys.readouterr().out if argv else shown
        assert cause in text and cure in text, argv


def test_a_run_that_stop_ends_is_stopped(
    start: Start,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "wait").touch()
    process = start(TRAIN)
    wait_for((tmp_path / "training").exists)
    monkeypatch.chdir(tmp_path)
    threading.Thread(target=process.communicate).start()  # its end is seen once it is no zombie
    assert main(["stop", "r"]) == 0
    assert process.wait(timeout=_PATIENCE) == 130
    capsys.readouterr()
    assert main(["status", "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)
    assert (run["state"], run["exit_code"], run["cause"]) == (
        "stopped",
        130,
        "interrupted by SIGTERM",
    )


# leaves a complete model, as a trainer does
LEAVES_MODEL = """
import glob, shutil
shutil.copytree(glob.glob(f"{CACHE}/demo/model-*")[0], "runs/demo/r/model", dirs_exist_ok=True)
"""
_WEIGHTS = ("first_update", "gradients", "last_update", "saved_weights")
_BATCHES = ("dtype", "packing", "gradient_checkpointing", "grad_clip", "global_batch")
_RATES = ("learning_rate", "lr_scheduler", "warmup_ratio", "weight_decay", "max_steps")
_ROWS = ("seed", "max_seq_length", "mixture")
_SETTINGS = (*_BATCHES, *_RATES, *_ROWS, *_WEIGHTS)
# the script holds no trainer
UNSEEN = f"allow=[{','.join(f'unproven_{setting}' for setting in _SETTINGS)}]"


def test_done_is_written_before_what_is_printed_and_an_empty_one_is_none(
    start: Start,
    tmp_path: Path,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    body = TRAIN + LEAVES_MODEL.replace("{CACHE}", f"{home}/runs/.cache")
    done = tmp_path / "runs" / "demo" / "r" / "DONE"
    end(start(body, "recipe.max_steps=3", UNSEEN, shell=">/dev/full 2>&1"), 0)
    assert json.loads(done.read_text())["steps"] == 3
    done.write_text("")
    monkeypatch.chdir(tmp_path)
    assert main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["state"] == "unfinished"
    (tmp_path / "training").unlink()
    printed = end(start(body, "recipe.max_steps=3", UNSEEN), 2)
    assert "restart=true" in printed
    process = start(body, "recipe.max_steps=3", UNSEEN, "restart=true")
    assert process.stdout is not None
    was_there = {
        line.split(":")[0]: done.exists() and done.read_text() != "" for line in process.stdout
    }
    assert process.wait(timeout=_PATIENCE) == 0
    assert (tmp_path / "training").exists(), "it has trained again"
    assert was_there["evidence"] and was_there["done"] and not was_there["batch"]


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="a small tmpfs needs root")
def test_a_disk_that_is_full_at_a_checkpoint(start: Start, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(runs)], check=False
    ).returncode:
        pytest.skip("mounting a tmpfs is not allowed here")
    fills = """
os.makedirs("runs/demo/r/model/checkpoint-3")
open("runs/demo/r/model/checkpoint-3/model.safetensors", "wb").write(bytes(2**25))
"""
    try:
        # the guard would stop the run first, where the trainer takes long to end
        shown = end(start(TRAIN + fills, "allow=[disk_full]", "guards.disk=null"), 1)
        assert shutil.disk_usage(runs).free < 2**16
        failed = outcome(tmp_path)
    finally:
        subprocess.run(["umount", "--lazy", str(runs)], check=True)
    assert failed["cause_id"] == "disk_full" and failed["steps"] == 3
    assert "No space left on device" in str(failed["cause"]) and str(failed["cause"]) in shown
    assert "free some space where" in str(failed["cure"]) and str(failed["cure"]) in shown
