"""An interpreter whose ranks start warm: forked from a process that has imported the trainers' libraries.

Importing them takes most of a run of a few steps. `python()` is a virtual environment's interpreter like the tests' own
in all but one thing: ranks, their accelerate and other modules of launch/worker are handed to `server.py`, which forks
for each and runs it with its arguments, variables, folder and streams. The trainer's own modules, open_instruct's too,
are imported by each rank, after the patches. What is about processes (signals, memory, stacks) belongs on
`sys.executable`.
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
case " $* " in *"/launch/worker/entry.py "*)
    exec {real} -I -S {client} {socket} "$0" "$@" ;;
esac
exec -a "$0" {real} "$@"
"""


@cache
def python() -> str:
    """Return the path of the interpreter; the first call starts its server, which ends with this process.

    Without Linux it is the tests' own interpreter.
    """
    if not sys.platform.startswith("linux"):
        return sys.executable
    folder = Path(tempfile.mkdtemp(prefix="warm-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    environment = Path(sys.prefix)
    for name in ("lib", "lib64", "include", "share"):
        if (environment / name).exists():
            (folder / name).symlink_to(environment / name)
    shutil.copy(environment / "pyvenv.cfg", folder)
    (folder / "bin").mkdir()
    stub = folder / "bin" / "python"
    stub.write_text(_STUB.format(real=sys.executable, client=_HERE / "client.py", socket=folder / "socket"))
    stub.chmod(0o755)
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
    }
    checkout = os.environ.get("OPEN_INSTRUCT_DIR") or str(_HERE.parents[2] / "external" / "open-instruct")
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
        assert server.poll() is None and time.monotonic() - began < _SECONDS, (folder / "log").read_text()
        time.sleep(0.1)
    return str(stub)
