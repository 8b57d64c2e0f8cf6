"""The machine's GPUs, as nvidia-smi reports them.

`find_gpus` runs nvidia-smi once a command; `query_gpus` runs it again, for readings that change:
memory in use, processes, utilisation.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from launch.external import run_command

_TIMEOUT = 10.0  # seconds; without persistence mode the driver first initialises all eight GPUs
_FIELDS = "index,uuid,name,memory.total,memory.used,utilization.gpu,driver_version"


@dataclass(frozen=True)
class GpuProcess:
    """A process that computes on a GPU."""

    pid: str
    name: str
    mib: float | None  # memory in use; None where nvidia-smi does not report it


@dataclass(frozen=True)
class Gpu:
    """One GPU. A number is None where nvidia-smi does not report it."""

    index: str
    uuid: str
    name: str
    total: float | None = None  # memory, MiB
    used: float | None = None  # memory, MiB
    utilisation: float | None = None  # per cent
    driver: str = ""  # version
    processes: tuple[GpuProcess, ...] = ()


@dataclass(frozen=True)
class Gpus:
    """The GPUs of this machine, or the reason why none is known."""

    seen: tuple[Gpu, ...] = ()  # those that CUDA_VISIBLE_DEVICES shows, in its order
    present: tuple[Gpu, ...] = ()  # all of the machine
    why: str = ""  # the reason why none is known
    installed: bool = True  # whether nvidia-smi is on the search path


_memo: dict[tuple[str, str | None], Gpus] = {}


def find_gpus(environ: Mapping[str, str]) -> Gpus:
    """Return the GPUs of this machine, as of the last query in this process."""
    program = _find_program(environ)
    if program is None:
        return query_gpus(environ)
    return _memo.get((program, environ.get("CUDA_VISIBLE_DEVICES"))) or query_gpus(environ)


def query_gpus(environ: Mapping[str, str]) -> Gpus:
    """Run the nvidia-smi of the search path now. `find_gpus` returns the answer from then on."""
    program = _find_program(environ)
    if program is None:
        return Gpus(why="nvidia-smi is not installed", installed=False)
    visible_devices = environ.get("CUDA_VISIBLE_DEVICES")
    gpus = _query_gpus(program, visible_devices)
    _memo[program, visible_devices] = gpus
    return gpus


def visible_gpus(present: Sequence[Gpu], visible_devices: str | None) -> tuple[Gpu, ...]:
    """Return the GPUs that this CUDA_VISIBLE_DEVICES shows.

    As in CUDA, the list ends at the first entry that matches no GPU.
    """
    if visible_devices is None:
        return tuple(present)
    visible: list[Gpu] = []
    for part in visible_devices.split(","):
        entry = part.strip()
        if entry.startswith("MIG-"):
            visible.append(Gpu("", entry, "MIG slice"))
            continue
        gpu = _find_gpu(present, entry)
        if gpu is None or gpu in visible:
            break
        visible.append(gpu)
    return tuple(visible)


def _find_gpu(present: Sequence[Gpu], entry: str) -> Gpu | None:
    """Return the GPU with this index, or whose UUID begins with the entry; None without one."""
    if not entry:
        return None
    for gpu in present:
        if gpu.index == entry or gpu.uuid.startswith(entry):
            return gpu
    return None


def _find_program(environ: Mapping[str, str]) -> str | None:
    return shutil.which("nvidia-smi", path=environ.get("PATH"))


def _query_gpus(program: str, visible_devices: str | None) -> Gpus:
    try:
        gpu_rows = _query_table(program, f"--query-gpu={_FIELDS}")
        process_fields = "gpu_uuid,pid,process_name,used_memory"
        process_rows = _query_table(program, f"--query-compute-apps={process_fields}")
    except subprocess.TimeoutExpired:
        return Gpus(why=f"nvidia-smi did not answer within {_TIMEOUT:.0f} s: the driver hangs")
    except (OSError, subprocess.SubprocessError) as error:
        return Gpus(why=f"nvidia-smi failed: {_error_line(error)}")
    complete_rows = [row for row in gpu_rows if len(row) == len(_FIELDS.split(","))]
    present = tuple(_parse_gpu(row, process_rows) for row in complete_rows)
    return Gpus(visible_gpus(present, visible_devices), present)


def _query_table(program: str, query: str) -> list[list[str]]:
    """Return the cells of each row that nvidia-smi prints."""
    argv = [program, query, "--format=csv,noheader,nounits"]
    done = run_command(argv, timeout=_TIMEOUT, check=True)
    rows = []
    for line in done.stdout.splitlines():
        if "," in line:
            cells = [cell.strip() for cell in line.split(",")]
            rows.append(cells)
    return rows


def _parse_gpu(row: list[str], process_rows: list[list[str]]) -> Gpu:
    index, uuid, name, total, used, utilisation, driver = row
    processes = []
    for cells in process_rows:
        if len(cells) >= 4 and cells[0] == uuid:
            program = ",".join(cells[2:-1])  # a program's name may contain commas
            processes.append(GpuProcess(cells[1], program, _parse_number(cells[-1])))
    return Gpu(
        index,
        uuid,
        name,
        total=_parse_number(total),
        used=_parse_number(used),
        utilisation=_parse_number(utilisation),
        driver=driver,
        processes=tuple(processes),
    )


def _parse_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:  # [N/A], [Not Supported]
        return None


def _error_line(error: Exception) -> str:
    """Return the reason why nvidia-smi failed, in one line."""
    if isinstance(error, subprocess.CalledProcessError):
        lines = f"{error.stderr or ''}{error.stdout or ''}".strip().splitlines()
        return lines[-1] if lines else f"exit status {error.returncode}"
    return str(error)
