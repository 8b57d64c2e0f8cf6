"""Run folders with damaged files: no verb waits for one, ends in a traceback or hides the other
runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launch.__main__ import main
from launch.execution.record.folder import RunFolder
from launch.execution.record.outcome import Outcome
from tests.execution.record.records import write_run
from tests.paths import ROOT

SECONDS = 20  # a verb that waits longer has met a FIFO, a loop or a device
PLACES = (
    *(
        "plan.json",
        "config.yaml",
        "FAILED",
        "DONE",
        "events.jsonl",
        "metrics.jsonl",
        "evidence.json",
        "patches.json",
    ),
    *("logs", "logs/rank-0.log", "../.bad.lock", "../../.jobs"),
)
WRONG_TYPES = (
    b'{"exit_code":"x","cause":[1],"detail":3,"steps":"a","seconds":{},"step":"x","loss":[1],"kind":[1],"rank":"x",'
    b'"time":"y","host":1,"pid":"q","items":3,"identity":[],"config":4}\n'
)
INFINITE = (
    b'{"exit_code":1,"steps":1e999,"seconds":NaN,"step":9e99,"loss":-Infinity,"kind":"total_steps","time":1e400,"pid":1e400,'
    b'"born":NaN,"host":"a","user":"b","machine":"","token":"x","last_loss":NaN,"ended_processes":0}\n'
)
ESCAPES = (
    b'{"exit_code":1,"steps":1,"seconds":1,"last_loss":1,"ended_processes":0,"cause":"\\u001b]0;x\\u0007\\u001b[2J",'
    b'"detail":["\\u001b[31m"],"cure":"\\u009b2J","kind":"phase","rank":0,"phase":"\\u001b[2J","host":"\\u001b[2J",'
    b'"user":"\\u001b[31m","pid":1,"born":1,"machine":"m","token":"../../x"}\n'
)
CONTENTS = {
    "empty": b"",
    "binary": b"\xff\xfe\x00" * 50,
    "deep": b'{"a":' * 100_000,
    "list": b"[1,2]\n",
    "null": b"null\n",
    "types": WRONG_TYPES,
    "infinite": INFINITE,
    "digits": b'{"step":' + b"9" * 5000 + b"}\n",
    "escapes": ESCAPES,
}


def _bind(path: Path) -> None:
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as server:
        server.bind(os.path.relpath(path))  # the address of a socket is short


KINDS: dict[str, Callable[[Path], object]] = {
    "dangling link": lambda path: path.symlink_to("nowhere"),
    "loop": lambda path: path.symlink_to(path.name),
    "folder": Path.mkdir,
    "FIFO": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "socket": _bind,
}
KINDS |= {
    name: lambda path, content=content: path.write_bytes(content)
    for name, content in CONTENTS.items()
}  # type: ignore[misc]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Three failed runs, `demo/bad` among them. A verb that waits is interrupted."""

    def interrupt(*_: object) -> None:
        raise TimeoutError(f"waited for {SECONDS} s")

    monkeypatch.chdir(tmp_path)
    for name in ("demo/bad", "demo/good1", "other/good2"):
        write_failed_run(tmp_path / "runs" / name)
    before = signal.signal(signal.SIGALRM, interrupt)
    yield tmp_path / "runs"
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def write_failed_run(folder: Path) -> None:
    write_run(folder, steps=2)
    RunFolder(folder).finish(Outcome(1, 75.0, 2, 2.0, cause="rank 0: it broke"))
    (folder / "patches.json").write_text("[]")


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@pytest.mark.parametrize("kind", KINDS)
def test_one_bad_file_hides_no_other_run(
    kind: str, runs: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    bad = runs / "demo" / "bad"
    for place in PLACES:
        for path in (bad, runs / ".jobs", *bad.parent.glob(".bad*")):
            remove(path)
        write_failed_run(bad)
        path = Path(os.path.normpath(bad / place))
        remove(path)
        KINDS[kind](path)
        for argv in (
            ["status"],
            ["status", "--json"],
            ["logs", "demo/bad"],
            ["logs", "demo/bad", "--rank", "0"],
        ):
            signal.alarm(SECONDS)
            assert main(argv) in (0, 2), (place, argv)
            output, errors = (
                stream.decode("utf-8", "replace") for stream in capsysbinary.readouterr()
            )
            assert not {"\x1b", "\x9b", "\x07"} & {*output, *errors}, (place, argv)
            if argv[0] == "status":
                assert "demo/good1" in output and "other/good2" in output, (place, output, errors)
            if "--json" in argv:
                json.loads(output, parse_constant=pytest.fail)  # NaN and infinities are not JSON
        for argv in (
            ["compare", "demo/bad", "demo/good1"],
            ["report", "demo/bad"],
            ["stop", "demo/bad"],
        ):
            signal.alarm(SECONDS)
            assert main(argv) in (0, 2), (place, argv)
        capsysbinary.readouterr()


RUN = ("run", "stage=demo", "trainer=trl_sft", "processes=1", "name=mine")


@pytest.mark.parametrize("kind", ["dangling link", "loop", "folder", "FIFO", "socket", "device"])
def test_a_run_refuses_what_is_in_the_place_of_its_lock(
    kind: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = runs / "demo" / ".mine.lock"
    KINDS[kind](lock)
    signal.alarm(SECONDS)
    assert main(RUN) == 2
    refusal = capsys.readouterr().err
    assert str(lock) in refusal and "[not_a_lock]" in refusal
    assert os.path.lexists(lock) and not (runs / "demo" / "mine").exists()


def test_a_launcher_does_not_wait_for_a_fifo(runs: Path) -> None:
    os.mkfifo(runs / "demo" / ".mine.lock")
    done = subprocess.run(
        [sys.executable, "-m", "launch", *RUN],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "a FIFO" in done.stderr
