"""The rules. Each takes a plan and returns its problem, or None."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping

from launch.config.schema import Device, Family
from launch.errors import Problem
from launch.planning.plan import Plan
from launch.upstream.source import GET_SUBMODULE

Rule = Callable[[Plan], Problem | None]

_TIMEOUT = 30.0  # seconds; a cold network file system has been seen to take ten to start an interpreter
_ASK = (
    "import importlib.util,json,sys;"
    "print(json.dumps([name for name in sys.argv[1:] if importlib.util.find_spec(name) is None]))"
)
_NEEDED = {
    Family.open_instruct: ("torch", "transformers", "accelerate", "datasets", "deepspeed", "ray", "olmo_core", "wandb"),
    Family.trl: ("torch", "transformers", "accelerate", "datasets", "trl"),
}


def preflight(plan: Plan) -> list[Problem]:
    """Every problem of this machine for this plan; those that `allow` names are left out."""
    found = (
        rule(plan)
        for rule in (checkout_is_here, checkout_is_the_pin, interpreter_has_packages, enough_gpus, inputs_are_here)
    )
    return [problem for problem in found if problem and problem.id not in plan.config.allow]


def checkout_is_here(plan: Plan) -> Problem | None:
    """An open-instruct trainer needs open-instruct's source: the lock has its schema, not its code."""
    if plan.config.trainer.family != Family.open_instruct or plan.upstream.checkout:
        return None
    other = {"sft": "trl_sft", "dpo": "trl_dpo"}.get(plan.config.stage.kind.value)
    cure = f"run `{GET_SUBMODULE}`, or set OPEN_INSTRUCT_DIR or upstream.dir to a checkout"
    cure += f"; trainer={other} needs none" if other else ""
    return Problem("no_checkout", f"{plan.trainer} needs a checkout of open-instruct and there is none", None, cure)


def checkout_is_the_pin(plan: Plan) -> Problem | None:
    """Patches, hazards and the recipe's words were read from the pin; another commit may differ in any of them."""
    if plan.upstream.matches_pin:
        return None
    cure = "check out the pin, or say allow=[upstream_mismatch]; `launch upstream diff` shows what differs"
    return Problem("upstream_mismatch", plan.upstream.description, None, cure)


def interpreter_has_packages(plan: Plan) -> Problem | None:
    """The trainer's interpreter has what the trainer imports; found without importing it."""
    python = plan.command[0]
    needed = [*_NEEDED[plan.config.trainer.family], *(["deepspeed"] if plan.parallel.zero_stage else [])]
    if shutil.which(python) is None:
        return Problem("no_interpreter", f"{python} is no program", "python", "say python=PATH of an interpreter")
    try:
        asked = subprocess.run(
            [python, "-c", _ASK, *dict.fromkeys(needed)], capture_output=True, text=True, timeout=_TIMEOUT, check=True
        )
        missing = json.loads(asked.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return Problem("no_interpreter", f"{python} does not answer: {error}", "python")
    if not missing:
        return None
    extras = "train,open-instruct" if plan.config.trainer.family == Family.open_instruct else "train"
    cure = f"install them there: pip install -e '.[{extras}]' -c constraints.txt (scripts/setup does)"
    return Problem("missing_packages", f"{python} lacks {', '.join(missing)}", "python", cure)


def enough_gpus(plan: Plan) -> Problem | None:
    """As many GPUs as ranks, among those that CUDA_VISIBLE_DEVICES shows."""
    width = plan.parallel.width
    if width.device != Device.cuda:
        return None
    seen = visible_gpus(os.environ)
    if seen >= width.world_size:
        return None
    cure = (
        f"say gpus={seen}" if seen else "say gpus=0 for one CPU process (the demo stages), or use a machine with GPUs"
    )
    has = {0: "no GPU", 1: "one GPU"}.get(seen, f"{seen} GPUs")
    return Problem("too_few_gpus", f"the plan has {width.world_size} GPU ranks and this machine has {has}", None, cure)


def inputs_are_here(plan: Plan) -> Problem | None:
    """Local models and files exist; what is built on the machine is built after preflight."""
    sources = [plan.inputs.model, *(entry.source for entry in plan.inputs.mixture)]
    for source in sources:
        if source.local and not source.build and not source.local.exists():
            return Problem("no_such_input", f"{source.local} does not exist", source.said.where, "check the path")
    return None


def visible_gpus(environ: Mapping[str, str]) -> int:
    """How many GPUs a process sees: nvidia-smi's list, cut down by CUDA_VISIBLE_DEVICES; 0 without a driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return 0
    try:
        listed = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=_TIMEOUT, check=False).stdout
    except (OSError, subprocess.SubprocessError):
        return 0
    present = sum(line.startswith("GPU ") for line in listed.splitlines())
    named = environ.get("CUDA_VISIBLE_DEVICES")
    return present if named is None else min(present, _named(named.split(",")))


def _named(devices: Iterable[str]) -> int:
    """How many devices a list names: CUDA stops at the first invalid one."""
    count = 0
    for device in devices:
        if not device.strip() or device.strip().startswith("-"):
            break
        count += 1
    return count
