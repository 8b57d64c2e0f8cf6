"""The GPUs: there are enough, nobody else uses them, and the ranks on them can communicate."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from launch.check.machine.rule import Host, rule
from launch.check.machine.trainer import run_environment
from launch.config.schema import Device
from launch.files import load_json
from launch.host.nvidia import Gpu, Gpus
from launch.planning.plan import Plan
from launch.planning.vllm_server import server_gpus
from launch.rules.code import failed, passed, skipped, warned
from launch.worker.finding import Finding, Fix

_IN_USE_SHARE = 0.03  # share of a GPU's memory; the driver itself takes up to some hundred MiB
_BUSY_PERCENT = 20.0
_TIMEOUT = 120.0  # seconds, importing torch in every rank included


@rule("too_few_gpus", "GPUs")
def enough_gpus(plan: Plan, host: Host) -> Finding:
    """Each rank takes a GPU of its own; one GPU too few shows only when the last rank dies at its
    start.
    """
    width = plan.parallel.width
    if width.device != Device.cuda:
        return skipped("device=cpu")
    gpus = host.gpus or Gpus()
    seen = len(gpus.seen)
    of_server = server_gpus(plan)
    taken = width.local + of_server
    if seen >= taken:
        names = sorted({gpu.name for gpu in gpus.seen[:taken]})
        return passed(f"{taken} of {seen}: {', '.join(names)}, driver {gpus.seen[0].driver}")
    needed = "one GPU rank" if width.local == 1 else f"{width.local} GPU ranks"
    if of_server:
        needed += f" and vLLM's server on {of_server} more"
    available = {0: "no GPU", 1: "one GPU"}.get(seen, f"{seen} GPUs")
    hidden = len(gpus.present) - seen
    reason = ""
    if gpus.why:
        reason = f": {gpus.why}"
    elif hidden > 0:
        reason = f" (CUDA_VISIBLE_DEVICES hides {hidden})"
    if seen > of_server:
        cure = Fix.of("set {0}", f"gpus={seen - of_server}")
    elif seen:
        cure = Fix.of("set {0}", "recipe.generation=vllm_colocate")
    else:
        sentence = "set {0} for one CPU process (the demo stages), or use a machine with GPUs"
        cure = Fix.of(sentence, "gpus=0")
    return failed(f"the plan has {needed} and this machine has {available}{reason}", cure)


@rule("gpus_busy", "GPU use")
def gpus_are_free(plan: Plan, host: Host) -> Finding:
    """A GPU that another process uses may run out of memory, or slow down every other rank."""
    width = plan.parallel.width
    gpus = host.gpus or Gpus()
    taken = width.local + server_gpus(plan)
    selected = gpus.seen[:taken]
    if width.device != Device.cuda:
        return skipped("device=cpu")
    if not selected:
        return skipped(gpus.why or "no GPU is visible")
    in_use = [gpu for gpu in selected if _is_in_use(gpu)]
    if in_use:
        free = [gpu.index for gpu in gpus.seen if not _is_in_use(gpu) and gpu.index]
        cure = Fix.of("stop what runs there, or set {0}", "allow=[gpus_busy]")
        if len(free) >= taken:
            export = f"$ export CUDA_VISIBLE_DEVICES={','.join(free[:taken])}"
            sentence = "{0} to use free ones; or stop what runs there, or set {1}"
            cure = Fix.of(sentence, export, "allow=[gpus_busy]")
        return failed("; ".join(_describe_use(gpu) for gpu in in_use), cure)
    busy = [gpu for gpu in selected if (gpu.utilisation or 0.0) >= _BUSY_PERCENT]
    if busy:
        facts = ", ".join(f"GPU {gpu.index} is {gpu.utilisation:.0f}% busy" for gpu in busy)
        message = f"{facts} and none of its processes is visible"
        return warned(message, "run nvidia-smi on the host, not in the container")
    used = max((gpu.used or 0.0) for gpu in selected)
    return passed(f"{len(selected)} idle, at most {used:.0f} MiB in use")


def _is_in_use(gpu: Gpu) -> bool:
    """Return whether a process uses the GPU, or its memory, where these are known."""
    if gpu.processes:
        return True
    if gpu.used is None or not gpu.total:
        return False
    return gpu.used > _IN_USE_SHARE * gpu.total


def _describe_use(gpu: Gpu) -> str:
    used = f"{gpu.used or 0:.0f} of {gpu.total or 0:.0f} MiB in use"
    users = []
    for process in gpu.processes[:3]:
        program = process.name.rsplit("/", 1)[-1]
        users.append(f"process {process.pid} ({program})")
    by_whom = ", ".join(users) or "a process that is not visible from here"
    return f"GPU {gpu.index}: {used} by {by_whom}"


@rule("no_collective", "collectives", slow=True)
def ranks_can_communicate(plan: Plan, host: Host) -> Finding:
    """An incompatible driver, a dead link or a container without shared memory shows at the first
    collective.
    """
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
    cure = None
    if cuda:
        command = f"{' '.join(argv[:-1])} /tmp/all_reduce.json"
        cure = f"for details run NCCL_DEBUG=INFO {command}"
    if status is None:
        message = f"an all-reduce over {width.local} ranks did not finish within {_TIMEOUT:.0f} s"
        return failed(message, cure)
    return failed(f"an all-reduce over {width.local} ranks failed: {_first_error(output)}", cure)


def _describe(measurement: Mapping[str, float]) -> str:
    """Describe what all_reduce.py has measured."""
    library = f"NCCL {measurement['nccl']}" if measurement["nccl"] else "gloo"
    rate = measurement["bytes"] / measurement["each"] / 1e9 if measurement["each"] else 0.0
    size = f"{int(measurement['bytes']) >> 20} MiB"
    count = measurement["done"]
    ranks = measurement["ranks"]
    return f"{ranks} ranks, {library}: {count} all-reduces of {size}, {rate:.1f} GB/s each"


def _run(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[int | None, str]:
    """Return the exit status, which is None after a timeout, and the output.

    After a timeout, the process and its descendants are killed.
    """
    with tempfile.TemporaryFile(mode="w+", encoding="utf-8", errors="replace") as output:
        process = subprocess.Popen(
            argv,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
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
    """Kill a process with its descendants: torch elastic's workers have their own sessions."""
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(process.pid)
        for member in [*root.children(recursive=True), root]:
            with contextlib.suppress(psutil.Error):
                member.kill()
    process.wait()


def _first_error(output: str) -> str:
    """Return the first error that a rank raised, else the last line.

    An error is a line `SomethingError: ...` outside the summary of torch elastic.
    """
    stripped = [line.strip() for line in output.splitlines()]
    lines = [line for line in stripped if line]
    for line in lines:
        name = line.removeprefix("[rank0]: ").split(":")[0]
        is_error = name.endswith(("Error", "Exception")) and " " not in name
        if is_error and "ChildFailedError" not in name:
            return line[:300]
    return lines[-1][:300] if lines else "there is no output"
