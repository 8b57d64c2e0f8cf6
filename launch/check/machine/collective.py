"""The ranks of this node can communicate: a second of all-reduces, with the trainer's interpreter and environment."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from launch.check.machine.packages import run_environment
from launch.check.machine.rule import Host, failed, passed, rule, skipped
from launch.config.schema import Device
from launch.files import load_json
from launch.host.nvidia import Gpus
from launch.planning.plan import Plan
from launch.worker.finding import Finding

_TIMEOUT = 120.0  # seconds, importing torch in every rank included


@rule("no_collective", slow=True)
def ranks_can_communicate(plan: Plan, host: Host) -> Finding:
    """An incompatible driver, a dead link or a container without shared memory shows at the first collective."""
    width = plan.parallel.width
    cuda = width.device == Device.cuda
    if not cuda and width.local == 1:
        return skipped("one CPU process")
    if cuda and len((host.gpus or Gpus()).seen) < width.local:
        return skipped("too few GPUs")
    backend = "nccl" if cuda else "gloo"
    with tempfile.TemporaryDirectory(prefix="launch-") as folder:
        file = Path(folder) / "all_reduce.json"
        script = Path(__file__).with_name("all_reduce.py")
        argv = [plan.command[0], "-m", "torch.distributed.run", "--standalone"]
        argv += ["--nproc_per_node", str(width.local), str(script), backend, str(file)]
        status, output = _run(argv, run_environment(plan, host))
        if status == 0 and file.is_file():
            return passed(_describe(load_json(file)))
    cure = f"for details run NCCL_DEBUG=INFO {' '.join(argv[:-1])} /tmp/all_reduce.json" if cuda else None
    if status is None:
        return failed(f"an all-reduce over {width.local} ranks did not finish within {_TIMEOUT:.0f} s", cure)
    return failed(f"an all-reduce over {width.local} ranks failed: {_first_error(output)}", cure)


def _describe(measurement: Mapping[str, float]) -> str:
    library = f"NCCL {measurement['nccl']}" if measurement["nccl"] else "gloo"
    rate = measurement["bytes"] / measurement["each"] / 1e9 if measurement["each"] else 0.0
    size = f"{int(measurement['bytes']) >> 20} MiB"
    return f"{measurement['ranks']} ranks, {library}: {measurement['done']} all-reduces of {size}, {rate:.1f} GB/s each"


def _run(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[int | None, str]:
    """Return the exit status and the output. The status is None after a timeout; no process is left behind."""
    with tempfile.TemporaryFile(mode="w+", encoding="utf-8", errors="replace") as output:
        process = subprocess.Popen(
            argv, env=dict(environ), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
        status: int | None = None
        try:
            status = process.wait(_TIMEOUT)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if status is None:
                _kill_tree(process)
        output.seek(0)
        return status, output.read()


def _kill_tree(process: subprocess.Popen[bytes]) -> None:
    """Kill a process with its descendants: torch elastic's workers are in sessions of their own."""
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(process.pid)
        for member in [*root.children(recursive=True), root]:
            with contextlib.suppress(psutil.Error):
                member.kill()
    process.wait()


def _first_error(output: str) -> str:
    """Return the first error that a rank raised: a line `SomethingError: ...` outside of elastic's own summary."""
    lines = [line.strip() for line in output.splitlines()]
    for line in lines:
        name = line.removeprefix("[rank0]: ").split(":")[0]
        if name.endswith(("Error", "Exception")) and "ChildFailedError" not in name and " " not in name:
            return line[:300]
    lines = [line for line in lines if line]
    return lines[-1][:300] if lines else "there is no output"
