"""What the trainer imports, in the trainer's interpreter."""

from __future__ import annotations

import shutil
import subprocess
import time

from launch import resources
from launch.check.machine.rule import Host, failed, passed, rule, skipped
from launch.config.schema import Family, Quantization, Tracking
from launch.external import run_command
from launch.host.interpreter import InterpreterError, missing_modules
from launch.planning.plan import Plan
from launch.worker.finding import Finding
from launch.worker.patches import unused_imports

_IMPORT_TIMEOUT = 300.0  # seconds
_IMPORT = "import importlib,sys; importlib.import_module(sys.argv[1])"
_WITH_PLACEHOLDERS = (
    "import sys; sys.path.insert(0, sys.argv[2]); from launch.worker.patches import unused_imports as unused;"
    f"del sys.path[0]; sys.meta_path.append(unused.PlaceholderFinder(unused.find_missing())); {_IMPORT}"
)
_NEEDED = {
    Family.open_instruct: ("torch", "transformers", "accelerate", "datasets", "deepspeed", "ray", "olmo_core", "wandb"),
    Family.trl: ("torch", "transformers", "accelerate", "datasets", "trl"),
}


@rule("missing_packages", on_login_node=True)
def interpreter_has_packages(plan: Plan, host: Host) -> Finding:
    """The trainer's interpreter has the packages that the trainer imports; they are found without importing them."""
    python = plan.command[0]
    needed = [*_NEEDED[plan.config.trainer.family], *(["deepspeed"] if plan.parallel.zero_stage else [])]
    if plan.config.tracking in (Tracking.wandb, Tracking.wandb_offline):
        needed.append("wandb")
    if plan.lora is not None:
        needed += ["peft", *(["bitsandbytes"] if plan.lora.quantize == Quantization.nf4 else [])]
    if plan.config.evaluate:
        needed.append("lm_eval")
    needed = list(dict.fromkeys(needed))
    if shutil.which(python) is None:
        cure = "set python=PATH to an interpreter"
        return Finding("no_interpreter", "fail", f"{python} is not a program", cure, "python")
    try:
        missing = missing_modules(python, needed)
    except InterpreterError as error:
        return Finding("no_interpreter", "fail", f"{python} does not answer: {error}", where="python")
    if not missing:
        return passed(f"{len(needed)} packages in {python}")
    return failed(f"{python} lacks {', '.join(missing)}", install_hint(plan), "python")


@rule("import_fails", slow=True)
def trainer_can_be_imported(plan: Plan, host: Host) -> Finding:
    """An installed package may still fail to load: another CUDA, a missing library, two incompatible packages."""
    trainer = plan.config.trainer
    if trainer.family == Family.open_instruct and plan.upstream.checkout is None:
        return skipped("there is no checkout")
    module = trainer.entry.removesuffix(".py").replace("/", ".")
    program = _WITH_PLACEHOLDERS if unused_imports.PATCH.id in plan.patches else _IMPORT  # as the run does
    environ = run_environment(plan, host)
    began = time.monotonic()
    try:
        argv = [plan.command[0], "-c", f"{resources.WITHOUT_CWD}; {program}", module, str(resources.ROOT)]
        done = run_command(argv, env=environ, timeout=_IMPORT_TIMEOUT)
    except subprocess.TimeoutExpired:
        return failed(f"`import {module}` takes more than {_IMPORT_TIMEOUT:.0f} s", "is the file system slow?")
    except OSError as error:
        return skipped(f"{plan.command[0]} does not start: {error.strerror}")
    if done.returncode == 0:
        return passed(f"{module} in {time.monotonic() - began:.1f} s")
    lines = done.stderr.strip().splitlines()
    reason = lines[-1] if lines else f"exit status {done.returncode}"
    return failed(f"`import {module}`: {reason}", install_hint(plan), "python")


def install_hint(plan: Plan) -> str:
    """Return the command that installs the trainer's packages."""
    quantized = plan.lora is not None and plan.lora.quantize == Quantization.nf4  # bitsandbytes
    extras = "train,open-instruct" if plan.config.trainer.family == Family.open_instruct or quantized else "train"
    extras += ",eval" if plan.config.evaluate else ""
    return f"install them there: pip install -e '.[{extras}]' -c constraints.txt (scripts/setup does)"


def run_environment(plan: Plan, host: Host) -> dict[str, str]:
    """Return the environment that the run itself will have."""
    kept = {name: value for name, value in host.environ.items() if name not in plan.unset}
    return {**kept, **plan.env, **resources.SAFE_PATH}
