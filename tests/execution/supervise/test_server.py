"""A server beside a run: started before it, watched, and ended after it. The server is a small HTTP
server in a process of its own, with a process below it, as vLLM's has its engine.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from launch.execution.supervise.processes import ServerProgram
from tests.execution.supervise.fake import Finished, run, script
from tests.paths import ROOT

SERVER = """
import http.server, os, subprocess, sys, time
port, folder = int(sys.argv[1]), sys.argv[2]
engine = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
with open(f"{folder}/pids", "w") as file:
    file.write(f"{os.getpid()} {engine.pid}")
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
    def log_message(self, *_):
        pass
print("(APIServer pid=1) loading, token", os.environ.get("HF_TOKEN"), flush=True)
BODY
http.server.HTTPServer(("127.0.0.1", port), Health).serve_forever()
"""
ASKS = """
import urllib.request
print("health", urllib.request.urlopen(f"http://127.0.0.1:{os.environ['PORT']}/health").status)
event("total_steps", steps=1)
event("phase", phase="training")
"""
FAILS_TO_START = """
print("(EngineCore pid=2) ERROR 11-28 18:04:11 [core.py:9] Traceback (most recent call last):")
print("(EngineCore pid=2) ERROR 11-28 18:04:11 [core.py:9]   File 'engine.py', line 3, in start")
print("(EngineCore pid=2) ERROR 11-28 18:04:11 [core.py:9] ValueError: Free memory on device is less")
print("(APIServer pid=1) Traceback (most recent call last):")
print("(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above.")
sys.exit(1)
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def server(folder: Path, body: str = "", seconds: float = 60.0) -> ServerProgram:
    """The server, which runs `body` before it answers."""
    file = folder / "server.py"
    file.write_text(SERVER.replace("BODY", textwrap.dedent(body)), encoding="utf-8")
    port = free_port()
    argv = (sys.executable, str(file), str(port), str(folder))
    return ServerProgram(argv, port, {"HF_TOKEN": "hf_" + 30 * "x"}, seconds)


def run_beside(folder: Path, program: ServerProgram, body: str) -> Finished:
    return run(folder, body, env={"PORT": str(program.port)}, server=program)


def alive(folder: Path) -> list[int]:
    """The processes of the server that live."""
    living = []
    for pid in map(int, (folder / "pids").read_text().split()):
        with contextlib.suppress(psutil.Error):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                living.append(pid)
    return living


def test_a_server_answers_before_the_run_starts_and_ends_after_it(tmp_path: Path) -> None:
    program = server(tmp_path, "time.sleep(1)")
    finished = run_beside(tmp_path, program, ASKS)
    assert finished.outcome.exit_code == 0 and b"health 200" in finished.log()
    assert not alive(tmp_path)
    assert finished.outcome.ended_processes == 0, "the trainer left none behind"
    log = (finished.folder.logs / "vllm-server.log").read_text()
    assert "loading" in log and "hf_x" not in log, "its log is masked"
    shown = finished.shown.splitlines()
    assert any(line.startswith("vLLM's server answers after") for line in shown)
    assert str(finished.folder.logs / "vllm-server.log") in shown[0]
    assert shown[1].startswith("vLLM's server answers") and "import" in shown[2]


def test_a_server_that_cannot_start_is_the_cause(tmp_path: Path) -> None:
    """Its engine's error is named, not what the server says of it; the trainer never starts."""
    finished = run_beside(tmp_path, server(tmp_path, FAILS_TO_START), ASKS)
    outcome = finished.outcome
    assert (outcome.exit_code, outcome.cause_id) == (1, "vllm_server_died")
    assert outcome.cause == (
        "vLLM's server exited with status 1: ValueError: Free memory on device is less"
    )
    assert not alive(tmp_path) and not finished.log()
    failed = json.loads((finished.folder.path / "FAILED").read_text())
    assert failed["cause_id"] == "vllm_server_died"
    assert "vllm-server.log" in finished.shown.splitlines()[-1]


@pytest.mark.parametrize("trainer", ["waits", "fails"])
def test_a_server_that_dies_is_the_cause_whatever_the_trainer_says(
    tmp_path: Path, trainer: str
) -> None:
    body = f"""
    {textwrap.indent(textwrap.dedent(ASKS), "    ").lstrip()}
    os.kill(int(open({str(tmp_path / "pids")!r}).read().split()[0]), signal.SIGKILL)
    time.sleep({600 if trainer == "waits" else 2})
    raise ConnectionError("the server does not answer")
    """
    finished = run_beside(tmp_path, server(tmp_path), body)
    assert finished.outcome.cause_id == "vllm_server_died"
    assert finished.outcome.cause == "vLLM's server was ended by SIGKILL"
    assert not alive(tmp_path)


def test_a_server_that_never_answers_is_given_up(tmp_path: Path) -> None:
    finished = run_beside(tmp_path, server(tmp_path, "time.sleep(600)", seconds=1.0), ASKS)
    assert finished.outcome.cause == "vLLM's server did not answer in time"
    assert not alive(tmp_path) and not finished.log()
    assert '"import"' not in (finished.folder.path / "events.jsonl").read_text()


def test_a_failed_run_takes_its_server_along(tmp_path: Path) -> None:
    finished = run_beside(tmp_path, server(tmp_path), ASKS + 'raise ValueError("the rows are bad")')
    assert finished.outcome.cause == "rank 0: ValueError: the rows are bad"
    assert finished.outcome.cause_id is None and not alive(tmp_path)


def test_a_server_ends_with_a_launcher_that_is_killed(tmp_path: Path) -> None:
    program = server(tmp_path)
    trainer = script(tmp_path, "event('phase', phase='training'); time.sleep(600)")
    source = f"""
import sys
from pathlib import Path
from launch.execution.display import PlainDisplay
from launch.execution.record.folder import RunFolder
from launch.execution.supervise.processes import ServerProgram
from launch.execution.supervise.supervisor import Execution, supervise
folder = RunFolder(Path({str(tmp_path / "run")!r}))
folder.create()
server = ServerProgram({program.argv!r}, {program.port})
supervise(Execution(argv={(sys.executable, str(trainer))!r}, server=server), folder, PlainDisplay(sys.stdout))
"""
    launcher = subprocess.Popen([sys.executable, "-c", source], cwd=ROOT)
    events = tmp_path / "run" / "events.jsonl"
    wait_until(lambda: events.is_file() and "training" in events.read_text())
    assert len(alive(tmp_path)) == 2
    os.kill(launcher.pid, 9)
    launcher.wait()
    wait_until(lambda: not alive(tmp_path))


def wait_until(is_true: object, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_true():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.05)
