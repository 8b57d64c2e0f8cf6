"""Runs code of upstream in a separate process with a time limit, without network, tokens or GPU."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launch.external import logged_call
from launch.files import read_json_object
from launch.secret_names import is_sensitive_name
from launch.terminal import notify

_LOOK_EVERY = 15.0  # seconds
_LEAST_PROGRESS = 0.1  # seconds of the processor between two looks
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_NO_GPUS = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
_ISOLATION = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # litellm downloads it otherwise
    "WANDB_MODE": "disabled",
    "PYTHONDONTWRITEBYTECODE": "1",  # the checkout stays as it is
    "PYTHONUNBUFFERED": "1",
    "no_proxy": "",
    "NO_PROXY": "",
    # discard: nothing listens there
    **dict.fromkeys([*_PROXIES, *map(str.upper, _PROXIES)], "http://127.0.0.1:9"),
}


def run_isolated(
    python: str,
    program: str,
    arguments: Sequence[str],
    seconds: float,
    request: str = "",
    *,
    environ: Mapping[str, str] = os.environ,
    has_gpus: bool = False,
) -> dict[str, Any]:
    """Run `python program RESULT ARGUMENTS...` to its end and return the JSON object that it wrote
    to RESULT.

    It is ended once it has computed for `seconds`, or has waited as long without computing: a busy
    machine alone ends nothing. Without a result, the object is {"error": the reason}. `request` is
    the standard input of the program, and `environ` the environment from which its own is made. At
    the end every process that it started is killed, and its files are removed.
    """
    with tempfile.TemporaryDirectory(
        prefix="launch-capture-", ignore_cleanup_errors=True
    ) as folder:
        home = Path(folder, "home")
        result = Path(folder, "result.json")
        errors = Path(folder, "errors.txt")
        home.mkdir()
        argv = [python, program, str(result), *arguments]
        environment = isolated_environment(environ, home, has_gpus=has_gpus)
        with logged_call(argv) as call, errors.open("wb") as stderr:
            try:
                process = subprocess.Popen(
                    argv,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=stderr,
                    cwd=home,
                    env=environment,
                    start_new_session=True,
                )
            except (OSError, ValueError) as error:
                return {"error": f"{python} can't be started: {error}"}
            try:
                _wait(process, request.encode(), seconds)
                call.outcome = f"exit code {process.returncode}"
            except subprocess.TimeoutExpired:
                call.outcome = "no answer"
                return {"error": f"it did not end within {seconds:.0f} s", "timed_out": True}
            finally:
                _kill_all(process, home)
        content = read_json_object(result)
        if content:
            return content
        lines = errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last_line = f": {lines[-1].strip()}" if lines else ""
        return {"error": f"it ended with {call.outcome}{last_line}"}


def _wait(process: subprocess.Popen[bytes], request: bytes, seconds: float) -> None:
    """Wait for the end of a process that computes, and report every few seconds how far it is.

    Raises TimeoutExpired.
    """
    began = moved = time.monotonic()
    computed = 0.0  # seconds on the processor, when it was last seen to compute
    unsent: bytes | None = request  # only the first call may have it
    while True:
        try:
            process.communicate(unsent, timeout=min(seconds, _LOOK_EVERY))
            return
        except subprocess.TimeoutExpired:
            unsent = None
            now = time.monotonic()
            used = _processor_seconds(process.pid)
            if used > computed + _LEAST_PROGRESS:
                moved = now
                computed = used
            if used > seconds or now - moved >= seconds:
                raise
            if now - began > 2 * _LOOK_EVERY:
                elapsed = f"{now - began:.0f} s ({used:.0f} s of processor time)"
                limit = f"it is stopped after {seconds:.0f} s of processor time, or of none at all"
                notify(f"the trainer's flags are still being read after {elapsed}; {limit}")


def _processor_seconds(pid: int) -> float:
    """Return how long a process and its children have computed; 0 if it has ended."""
    import psutil  # a plan from the lock doesn't need it

    total = 0.0
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for part in (process, *process.children(recursive=True)):
            times = part.cpu_times()
            total += times.user + times.system
    return total


def _kill_all(process: subprocess.Popen[bytes], home: Path) -> None:
    """Kill a process and every process that it has started.

    These are in its session, or have its home folder, which no other process has.
    """
    import psutil  # a plan from the lock doesn't need it

    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for other in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if other.environ().get("HOME") == str(home):
                other.kill()


def isolated_environment(
    environ: Mapping[str, str], home: Path, *, has_gpus: bool = False
) -> dict[str, str]:
    """Return the environment of such a process: `environ` without tokens, and an empty home folder."""
    variables = {name: value for name, value in environ.items() if not is_sensitive_name(name)}
    variables |= _ISOLATION
    if not has_gpus:
        variables |= _NO_GPUS
    variables |= dict.fromkeys(("HOME", "XDG_CACHE_HOME", "HF_HOME", "TMPDIR"), str(home))
    # packages that the user has installed stay visible in spite of the other home folder
    user_home = Path(environ.get("HOME", "~")).expanduser()
    variables["PYTHONUSERBASE"] = environ.get("PYTHONUSERBASE") or str(user_home / ".local")
    return variables
