"""Interpreters whose ranks start warm: forked from a process that has imported the trainers'
libraries.

Importing them takes most of a run of a few steps. `python()` is a virtual environment's interpreter
like the tests' own in all but one thing: ranks, their accelerate, other modules of launch/worker,
the jobs of `tests/integration/jobs.py` and the programs that ask a trainer's own parser are handed
to `server.py`, which forks for each and runs it with its arguments, variables, folder and streams.
The trainer's own modules, open_instruct's too, are imported by each rank, after the patches. What
is about processes (signals, memory, stacks) belongs on `python_with_cold_ranks()`, where only the
parsers are asked in a fork, or on `sys.executable`.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

_HERE = Path(__file__).parent
_SECONDS = 500.0  # until the libraries are imported, on a machine that others load
_STUB = """#!/bin/bash
case " $* " in
*"/launch/worker/entry.py --call verifiers "*) ;; # inherits a pipe, and a server has none of its client's
{forked})
    exec {real} -I -S {client} {socket} "$0" "$@" ;;
esac
exec -a "$0" {real} "$@"
"""
_PARSER = '*"/launch/upstream/capture/program.py "* | *"/tests/upstream/parser_server.py "*'
_RANK = '*"/launch/worker/entry.py "*'
_JOBS = '*"/tests/integration/forked_workers.py "*'


@cache
def python() -> str:
    """Return the path of the interpreter; the first call starts its server, which ends with this
    process.

    Without Linux it is the tests' own interpreter.
    """
    return _make_interpreter("warm", f"{_PARSER} | {_RANK} | {_JOBS}")


@cache
def python_with_cold_ranks() -> str:
    """Return the path of an interpreter that a rank starts in as in a user's, and whose parsers are
    asked in a fork.
    """
    return _make_interpreter("cold", _PARSER)


def _make_interpreter(name: str, forked: str) -> str:
    """Make a virtual environment whose interpreter hands the command lines that match `forked` to
    the server.
    """
    if not sys.platform.startswith("linux"):
        return sys.executable
    socket, environment = _start_server(), Path(sys.prefix)
    folder = socket.with_name(name)
    (folder / "bin").mkdir(parents=True)
    for part in ("lib", "lib64", "include", "share"):
        if (environment / part).exists():
            (folder / part).symlink_to(environment / part)
    shutil.copy(environment / "pyvenv.cfg", folder)
    stub = folder / "bin" / "python"
    stub.write_text(
        _STUB.format(real=sys.executable, client=_HERE / "client.py", socket=socket, forked=forked)
    )
    stub.chmod(0o755)
    return str(stub)


@cache
def _start_server() -> Path:
    """Start the server and return its socket, once it has imported the libraries."""
    folder = Path(tempfile.mkdtemp(prefix="warm-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
    }
    checkout = os.environ.get("OPEN_INSTRUCT_DIR") or str(
        _HERE.parents[2] / "external" / "open-instruct"
    )
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, str(_HERE / "server.py"), str(folder / "socket"), checkout],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    atexit.register(server.kill)
    began = time.monotonic()
    while not (folder / "socket").exists():
        assert server.poll() is None and time.monotonic() - began < _SECONDS, (
            folder / "log"
        ).read_text()
        time.sleep(0.1)
    return folder / "socket"
