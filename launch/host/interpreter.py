"""Finds the trainer's interpreter and its installed packages, without importing any of them.

An interpreter is asked each question once per command: on a network file system it can take ten
seconds to start.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any

from launch.errors import did_you_mean
from launch.external import logged_call
from launch.files import read_file
from launch.resources import WITHOUT_CWD, WORKER
from launch.terminal import notify
from launch.worker.finding import Finding
from launch.worker.json_codec import encode

_TIMEOUT = 30.0  # seconds
_PATIENCE = 3.0  # seconds without an answer until a message explains the delay
_SET_PYTHON = "set python=PATH to a Python interpreter"
_SEARCH_PATH = "import json,sys;print(json.dumps(sys.path))"
_MISSING = """
import importlib.util, json, sys
def is_missing(name):
    try:
        return importlib.util.find_spec(name) is None
    except ModuleNotFoundError:  # the package of a module is missing
        return True
print(json.dumps([name for name in sys.argv[1:] if is_missing(name)]))
"""
_INVENTORY = """
import importlib.metadata, json, platform, sys
packages = {}
for distribution in importlib.metadata.distributions():
    name = distribution.metadata["Name"]
    if name:
        packages.setdefault(name.lower().replace("_", "-"), distribution.version)
print(json.dumps({"python": platform.python_version(), "packages": dict(sorted(packages.items()))}))
"""

_SILENT: set[str] = set()  # interpreters that did not answer in time


class InterpreterError(Exception):
    """The interpreter does not answer; the text is the reason."""


@dataclass(frozen=True)
class Inventory:
    """What is installed for an interpreter."""

    python: str  # version
    packages: dict[str, str]  # name, in lower case with dashes -> version


def trainer_python(configured: str | None) -> str:
    """Return the absolute path of the interpreter that `python=` names, or the name if it is not
    found.

    For None it is the launcher's own interpreter.
    """
    if configured is None:
        return sys.executable
    if configured.startswith("~"):
        configured = str(Path(configured).expanduser())
    program = shutil.which(configured)
    return str(Path(program).absolute()) if program else configured


def check_interpreter(
    configured: str | None, python: str, *, may_start: bool = True
) -> Finding | None:
    """Return the problem of a `python=` that is missing or does not answer; None if it works.

    Args:
        configured: the value of `python=`.
        python: the interpreter that `configured` resolves to.
        may_start: whether the interpreter may be started.
    """
    if configured is None or python == sys.executable:
        return None
    if shutil.which(python) is None:
        path = Path(python)
        state = "does not exist"
        if path.is_file():
            state = "is not executable"
        elif path.is_dir():
            state = "is a folder"
        message = f"python={configured} {state}"
        cure = _nearest_interpreters(path) or _SET_PYTHON
        return Finding.error("no_interpreter", message, None, cure)
    if not may_start:
        return None
    try:
        _ask(python, _SEARCH_PATH)
    except InterpreterError as error:
        message = f"python={configured} does not work: {error}"
        return Finding.error("no_interpreter", message, None, _SET_PYTHON)
    return None


def _nearest_interpreters(path: Path) -> str | None:
    """Suggest programs of a similar name: in the path's own folder, or on PATH for a bare name."""
    if path.is_dir() and (path / "bin" / "python").exists():  # a virtual environment
        return f"did you mean '{path}/bin/python'?"
    if path.name == str(path):
        folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep)]
        prefix = ""
    else:
        folders = [path.parent, path / "bin"]
        prefix = f"{path.parent}/"
    names: set[str] = set()
    for folder in folders:
        with contextlib.suppress(OSError):
            programs = [entry.name for entry in folder.iterdir()]
            names.update(name for name in programs if name.startswith(("python", "pypy")))
    return did_you_mean(path.name, sorted(names), prefix=prefix)


def package_folders(python: str) -> list[Path]:
    """Return the folders from which an interpreter imports installed packages.

    Those of the standard library are left out. There are none if the interpreter does not answer.
    """
    if python == sys.executable:
        return _without_standard_library(sys.path)
    try:
        return _without_standard_library(_ask(python, _SEARCH_PATH))
    except InterpreterError:
        return []


def find_package_folders(python: str) -> list[Path]:
    """Return the folders of packages of an interpreter without starting it.

    They are those of its virtual environment, or of its installation, and those that a .pth file
    names. A script that starts an interpreter has none.
    """
    environment = Path(python).parents[1]
    roots = [environment]
    if not (environment / "pyvenv.cfg").is_file():
        roots.append(Path(os.path.realpath(python)).parents[1])
    folders: list[Path] = []
    for root in roots:
        folders += sorted(root.glob("lib/python3.*/site-packages"))
    named_folders: list[Path] = []
    for folder in folders:
        for file in sorted(folder.glob("*.pth")):
            named_folders += _folders_of_pth(file)
    return folders + named_folders


def _folders_of_pth(file: Path) -> list[Path]:
    """Return the folders that a .pth file names, without executing its lines with `import`."""
    try:
        lines = read_file(file).decode().splitlines()
    except (OSError, ValueError):
        return []
    folders = []
    for line in lines:
        with contextlib.suppress(OSError, ValueError):
            if line.startswith("/") and Path(line).is_dir():
                folders.append(Path(line))
    return folders


def installed_version(name: str, folders: Iterable[Path]) -> str | None:
    """Return the version of one package, by the name of its `.dist-info` folder; None without one.

    It is faster than `installed_versions`, and needs the name with underscores.
    """
    for folder in folders:
        with contextlib.suppress(OSError):
            for info in sorted(folder.glob(f"{name}-*.dist-info")):
                return info.name.removesuffix(".dist-info").split("-", 1)[1]
    return None


def installed_versions(folders: Sequence[Path], names: Sequence[str]) -> dict[str, str]:
    """Return {name: version} of the named packages that are installed in the folders."""
    from importlib import metadata  # slow to import; a plan does not need it

    path = [str(folder) for folder in folders]
    versions: dict[str, str] = {}
    for name in names:
        for distribution in metadata.distributions(name=name, path=path):
            versions.setdefault(name, distribution.version)
    return versions


def unmet_requirements(
    folders: Sequence[Path], package: str, *, of: Sequence[str], extra: str = ""
) -> list[str]:
    """Return what an installed package requires of others and does not find, a sentence each.

    `of` names the packages that are looked at; one that is not installed is not among the
    sentences. `extra` is one of the package's extras (`vllm` of TRL). Nothing is imported.
    """
    from importlib import metadata  # slow to import; a plan does not need it

    from packaging.requirements import Requirement

    path = [str(folder) for folder in folders]
    distribution = next(iter(metadata.distributions(name=package, path=path)), None)
    if distribution is None:
        return []
    installed = installed_versions(folders, of)
    unmet = []
    for line in distribution.requires or ():
        requirement = Requirement(line)
        version = installed.get(requirement.name)
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": extra})
        if version is None or not applies:
            continue
        # 2.11.0+cu130 is torch 2.11.0
        if not requirement.specifier.contains(version.partition("+")[0], prereleases=True):
            required = f"{requirement.name}{requirement.specifier}"
            found = f"{requirement.name} {version}"
            unmet.append(f"{package} {distribution.version} requires {required}, found {found}")
    return unmet


def missing_modules(python: str, names: Sequence[str]) -> list[str]:
    """Return the named modules that an interpreter cannot find.

    Raises InterpreterError.
    """
    return [str(name) for name in _ask(python, _MISSING, *names)]


def inventory(python: str) -> Inventory:
    """Return the version and all packages of an interpreter. Raises InterpreterError."""
    answer = _ask(python, _INVENTORY)
    return Inventory(answer["python"], answer["packages"])


@cache
def _ask(python: str, program: str, *arguments: str) -> Any:
    """Return the JSON that a program prints under that interpreter. Raises InterpreterError.

    An interpreter that did not answer in time is not started again.
    """
    if python in _SILENT:
        raise InterpreterError(f"no answer within {_TIMEOUT:.0f} s")
    argv = [python, "-c", f"{WITHOUT_CWD}\n{program}", *arguments]
    with logged_call(argv) as call:
        try:
            process = subprocess.Popen(
                argv,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        except FileNotFoundError as error:
            raise InterpreterError("not found") from error
        except (OSError, ValueError) as error:
            raise InterpreterError(getattr(error, "strerror", None) or str(error)) from error
        call.outcome = "no answer"
        output, errors = _communicate(process, python)
        call.outcome = f"exit code {process.returncode}"
    lines = errors.decode(errors="replace").strip().splitlines()
    if process.returncode:
        raise InterpreterError(lines[-1] if lines else f"exit status {process.returncode}")
    try:
        return json.loads(output)
    except ValueError as error:
        raise InterpreterError("it is not Python: unexpected output") from error


def _communicate(process: subprocess.Popen[bytes], python: str) -> tuple[bytes, bytes]:
    """Return the stdout and stderr of the process; a message explains a long silence.

    Raises InterpreterError after the time limit.
    """
    try:
        return process.communicate(timeout=_PATIENCE)
    except subprocess.TimeoutExpired:
        notify(f"{python} has not answered for {_PATIENCE:.0f} s; waiting")
    try:
        return process.communicate(timeout=_TIMEOUT - _PATIENCE)
    except subprocess.TimeoutExpired as error:
        _SILENT.add(python)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # a wrapper's children hold the pipes
        process.communicate()
        raise InterpreterError(f"no answer within {_TIMEOUT:.0f} s") from error


def _without_standard_library(search_path: list[str]) -> list[Path]:
    """Return the folders of a search path that do not belong to the standard library."""
    folders = []
    for text in search_path:
        folder = Path(text)
        is_standard = folder.name == "lib-dynload" or (folder / "os.py").is_file()
        if text and not is_standard:
            folders.append(folder)
    return folders


def worker_command(python: str, module: str, request: object) -> list[str]:
    """Return the command that calls `main(request)` of a module of launch.worker in an interpreter.

    `request` is a dataclass of that module.
    """
    return [python, str(WORKER), "--call", module, encode(request)]


class WorkerProcess:
    """A running module of launch.worker, which exchanges lines with the launcher."""

    def __init__(self, process: subprocess.Popen[str], errors: IO[str]) -> None:
        assert process.stdin is not None and process.stdout is not None
        self.process = process
        self.requests = process.stdin
        self.answers = process.stdout
        self._errors = errors

    def wait(self) -> str | None:
        """Wait for the end. Return the last line of stderr if the process failed, else None."""
        status = self.process.wait()
        self._errors.seek(0)
        lines = self._errors.read().strip().splitlines()
        if status == 0:
            return None
        return lines[-1] if lines else f"exit status {status}"


@contextmanager
def open_worker(python: str, module: str, request: object) -> Iterator[WorkerProcess]:
    """Start the process of `worker_command`, and kill it at the end of the context."""
    argv = worker_command(python, module, request)
    environ = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "PYTHONUTF8": "1"}
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            encoding="utf-8",
            errors="replace",
            env=environ,
        )
        try:
            yield WorkerProcess(process, errors)
        finally:
            process.kill()
            process.communicate()
