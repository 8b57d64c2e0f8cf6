"""No process outlives its run, whoever ends it and however: shown with real trees, some of which
ignore SIGTERM.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.execution.supervise.fake import alive, run, start_supervisor, wait_for
from tests.integration.faults import check
from tests.paths import ROOT
from tests.thorough import mark_others

# A rank that ignores SIGTERM, with a child and a child in a session of its own that ignore it too.
STUBBORN = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if len(sys.argv) == 1:
    for own_session in (False, True):
        subprocess.Popen([sys.executable, __file__, "child"], start_new_session=own_session)
    event("phase", phase="training")
open(f"ready-{RANK}-{os.getpid()}", "w").close()
time.sleep(600)
"""
POLITE = """
open(f"ready-{RANK}-{os.getpid()}", "w").close()
time.sleep(600)
"""
SAVING = """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(open(f"saved-{RANK}", "w").close()))
"""
ELASTIC = ("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1",
           "--mixed_precision", "no", "--dynamo_backend", "no")  # fmt: skip
ONE = ("-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1", "--num_machines", "1",
       "--mixed_precision", "no", "--dynamo_backend", "no")  # fmt: skip


@pytest.fixture(autouse=True)
def _on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")


def ready(folder: Path, count: int) -> bool:
    return len(list(folder.glob("ready-*"))) == count


def shown(folder: Path) -> str:
    return (folder / "shown.txt").read_text(encoding="utf-8")


def test_ctrl_c_ends_a_tree_that_ignores_sigterm_and_says_how_many(tmp_path: Path) -> None:
    supervisor = start_supervisor(tmp_path, STUBBORN)
    wait_for(lambda: ready(tmp_path, 3))
    supervisor.send_signal(signal.SIGINT)
    took = wait_for(lambda: supervisor.poll() is not None)
    check("Ctrl-C, and processes that ignore SIGTERM", shown(tmp_path), supervisor.returncode, took)
    assert alive(tmp_path) == []
    assert took < 15
    failed = json.loads((tmp_path / "run" / "FAILED").read_text(encoding="utf-8"))
    assert (failed["exit_code"], failed["ended_processes"]) == (130, 3)


def test_a_second_ctrl_c_is_faster(tmp_path: Path) -> None:
    supervisor = start_supervisor(tmp_path, STUBBORN)
    wait_for(lambda: ready(tmp_path, 3))
    supervisor.send_signal(signal.SIGINT)
    wait_for(lambda: "SIGINT" in shown(tmp_path))
    supervisor.send_signal(signal.SIGINT)
    took = wait_for(lambda: supervisor.poll() is not None)
    check("a second Ctrl-C", shown(tmp_path), supervisor.returncode, took)
    assert alive(tmp_path) == []
    assert took < 4


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_end_a_polite_tree_without_the_grace(
    tmp_path: Path, number: signal.Signals
) -> None:
    supervisor = start_supervisor(tmp_path, SAVING + POLITE)
    wait_for(lambda: ready(tmp_path, 1))
    supervisor.send_signal(number)
    took = wait_for(lambda: supervisor.poll() is not None)
    assert (supervisor.returncode, alive(tmp_path)) == (130, [])
    assert took < 5
    assert f"interrupted by {number.name}: 1 process ended" in shown(tmp_path)
    assert (tmp_path / "saved-0").exists()


def test_sigkill_of_the_supervisor_leaves_nothing(tmp_path: Path) -> None:
    supervisor = start_supervisor(tmp_path, STUBBORN)
    wait_for(lambda: ready(tmp_path, 3) and "training" in shown(tmp_path))
    channel = Path(alive(tmp_path)[0].environ()["LAUNCH_CHANNEL"])
    assert channel.is_dir()
    supervisor.kill()
    supervisor.wait()
    took = wait_for(lambda: not alive(tmp_path))
    check("the launcher is killed by SIGKILL", shown(tmp_path), 0, took)
    assert took < 15
    wait_for(lambda: not channel.exists())


def test_sigkill_of_the_reaper_ends_the_run_as_failed(tmp_path: Path) -> None:
    supervisor = start_supervisor(tmp_path, STUBBORN)
    wait_for(lambda: ready(tmp_path, 3))
    (reaper,) = psutil.Process(supervisor.pid).children()
    reaper.kill()
    took = wait_for(lambda: supervisor.poll() is not None)
    check(
        "the process that supervises the run is killed",
        shown(tmp_path),
        supervisor.returncode,
        took,
    )
    assert alive(tmp_path) == []


def test_a_launcher_that_ends_takes_what_it_left_behind_along(tmp_path: Path) -> None:
    body = """
    child = [sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"]
    subprocess.Popen(child, start_new_session=True)
    time.sleep(0.5)
    """
    finished = run(tmp_path, body, env={"FAKE": str(tmp_path)})
    assert finished.outcome.exit_code == 0
    assert finished.outcome.ended_processes == 1
    assert "ended 1 process that the trainer left behind" in finished.shown
    assert alive(tmp_path) == []


def test_helpers_that_end_by_themselves_are_not_counted(tmp_path: Path) -> None:
    finished = run(
        tmp_path, 'subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.3)"])\n'
    )
    assert (finished.outcome.exit_code, finished.outcome.ended_processes) == (0, 0)


def test_a_shell_in_between_changes_nothing(tmp_path: Path) -> None:
    body = 'subprocess.Popen(["sh", "-c", "trap : TERM; while true; do sleep 1; done"])\n' + POLITE
    supervisor = start_supervisor(tmp_path, body)
    wait_for(lambda: ready(tmp_path, 1))
    supervisor.send_signal(signal.SIGINT)
    assert wait_for(lambda: supervisor.poll() is not None) < 15
    assert alive(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "ranks"),
    mark_others([(ELASTIC, 2), (ONE, 1)], [(ELASTIC, 2)]),
    ids=["elastic", "one"],
)
@pytest.mark.parametrize("number", mark_others([signal.SIGINT, signal.SIGKILL], [signal.SIGINT]))
def test_under_accelerate(
    tmp_path: Path, launcher: tuple[str, ...], ranks: int, number: signal.Signals
) -> None:
    pytest.importorskip("accelerate", reason="the trainer's packages are not installed here")
    supervisor = start_supervisor(tmp_path, STUBBORN, before=launcher, ranks=ranks)
    wait_for(lambda: ready(tmp_path, 3 * ranks), 120)
    supervisor.send_signal(number)
    assert wait_for(lambda: supervisor.poll() is not None and not alive(tmp_path)) < 15
    assert supervisor.returncode == (130 if number == signal.SIGINT else -signal.SIGKILL)


def test_the_terminal_s_ctrl_c_does_not_reach_the_trainer_directly(tmp_path: Path) -> None:
    body = (
        """
    signal.signal(signal.SIGINT, lambda *_: open("interrupted", "w").close())
    """
        + POLITE
    )
    supervisor = start_supervisor(tmp_path, body)
    wait_for(lambda: ready(tmp_path, 1))
    (trainer,) = alive(tmp_path)
    assert os.getsid(trainer.pid) != os.getsid(supervisor.pid)
    supervisor.send_signal(signal.SIGINT)
    supervisor.wait(30)
    assert not (tmp_path / "interrupted").exists()


def test_a_trainer_starts_with_the_default_signal_handlers(tmp_path: Path) -> None:
    body = """
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        print(name, signal.getsignal(getattr(signal, name)) == signal.SIG_IGN)
    """
    assert run(tmp_path, body).log() == b"SIGINT False\nSIGTERM False\nSIGHUP False\n"


def test_stdin_of_the_trainer_is_empty(tmp_path: Path) -> None:
    assert run(tmp_path, "print(repr(sys.stdin.read()))\n").log() == b"''\n"


def test_a_reaper_without_an_order_ends(tmp_path: Path) -> None:
    reaper = ROOT / "launch" / "execution" / "supervise" / "reaper.py"
    done = subprocess.run(
        [sys.executable, str(reaper)], stdin=subprocess.DEVNULL, timeout=30, check=False
    )
    assert done.returncode == 0
