"""What the trainer runs from: open-instruct's source, the packages, and what DeepSpeed builds."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from launch import resources
from launch.check.machine.rule import Host, rule
from launch.config.kinds import KINDS
from launch.config.recipe_keys import Quantization
from launch.config.schema import Family, Launcher
from launch.host.interpreter import (
    InterpreterError,
    installed_version,
    missing_modules,
    unmet_requirements,
)
from launch.planning.estimate.optimizers import find_optimizer
from launch.planning.flags import values_of
from launch.planning.plan import Plan
from launch.planning.rlvr import ray_needs, uses_vllm
from launch.planning.trackers import find_tracker
from launch.rules.code import failed, passed, skipped, warned
from launch.upstream.pin.checkout import fetch_command
from launch.worker.finding import Finding, Fix
from launch.worker.trl_options import TRL_VERSION

_NEEDED = {
    Family.open_instruct: (
        "torch",
        "transformers",
        "accelerate",
        "datasets",
        "deepspeed",
        "ray",
        "olmo_core",
        "wandb",
    ),
    Family.trl: ("torch", "transformers", "accelerate", "datasets", "trl"),
}
_MUON = "git+https://github.com/microsoft/dion.git"  # as OLMo-core names it
_BUILD_SECONDS = 600.0  # longer than any build takes


@rule("no_checkout", "checkout", on_login_node=True)
def checkout_exists(plan: Plan, host: Host) -> Finding:
    """An open-instruct trainer runs from open-instruct's source: the lock file holds its schema,
    not its code.
    """
    if plan.config.trainer.family != Family.open_instruct:
        return skipped(f"{plan.trainer} needs no checkout")
    if plan.upstream.checkout:
        return passed(str(plan.upstream.checkout))
    other = KINDS[plan.config.stage.kind].trainer
    fetch = f"run `{fetch_command()}`, or set OPEN_INSTRUCT_DIR or upstream.dir to a checkout"
    cure = fetch if other is None else Fix.of(f"{fetch}; without one: {{0}}", f"trainer={other}")
    return failed(f"{plan.trainer} needs a checkout of open-instruct, and none was found", cure)


@rule("upstream_mismatch", "pin", on_login_node=True)
def checkout_matches_pin(plan: Plan, host: Host) -> Finding:
    """Patches, hazards and the trainers' flags were read from the pinned commit; another commit may
    differ.
    """
    if plan.upstream.matches_pin:
        return passed(plan.upstream.description)
    sentence = "check out the pin, or set {0}; {1} lists the files that differ"
    cure = Fix.of(sentence, "allow=[upstream_mismatch]", "$ launch upstream status --json")
    return failed(plan.upstream.description, cure)


@rule("missing_packages", "packages", on_login_node=True)
def interpreter_has_packages(plan: Plan, host: Host) -> Finding:
    """The trainer's interpreter has the packages that the trainer imports, and the TRL that
    launch's entry is written for; they are found without importing them.
    """
    python = plan.command[0]
    needed = _needed_packages(plan)
    if shutil.which(python) is None:
        cure = Fix.of("set {0} to an interpreter", "python=PATH")
        return Finding.error("no_interpreter", f"{python} is not a program", "python", cure)
    try:
        missing = missing_modules(python, needed)
    except InterpreterError as error:
        return Finding.error("no_interpreter", f"{python} does not answer: {error}", "python")
    if missing:
        return failed(f"{python} lacks {', '.join(missing)}", install_hint(plan), "python")
    if plan.config.trainer.family == Family.trl:
        problem = _trl_version_problem(plan, python)
        if problem is not None:
            return problem
    return passed(f"{len(needed)} packages in {python}")


def _needed_packages(plan: Plan) -> list[str]:
    """List the packages that the run imports."""
    needed = list(_NEEDED[plan.config.trainer.family])
    if plan.parallel.zero_stage:
        needed.append("deepspeed")
    if uses_vllm(plan.config):
        needed.append("vllm")
    tracker = find_tracker(plan.config.tracking)
    if tracker is not None and tracker.package:
        needed.append(tracker.package)
    if plan.lora is not None:
        needed.append("peft")
    if _needs_bitsandbytes(plan):
        needed.append("bitsandbytes")
    if _has_muon(plan):
        needed.append("dion")
    if plan.config.evaluate:
        needed.append("lm_eval")
    return list(dict.fromkeys(needed))


def _needs_bitsandbytes(plan: Plan) -> bool:
    """Whether frozen weights are kept in 4 bit, or the optimizer is bitsandbytes'."""
    if plan.lora is not None and plan.lora.quantize == Quantization.nf4:
        return True
    optimizer = find_optimizer(plan.config.trainer, values_of(plan.flags))
    return optimizer is not None and optimizer.package == "bitsandbytes"


def _has_muon(plan: Plan) -> bool:
    """Whether the optimizer is Muon, which OLMo-core takes from another package
    (olmo_core/optim/muon.py:24).
    """
    return values_of(plan.flags).get("optimizer_type") == "muon"


def _trl_version_problem(plan: Plan, python: str) -> Finding | None:
    """Return the problem of an unsupported version of TRL, or of vLLM if the run uses it.

    The run itself would refuse such a TRL before it loads a model.
    """
    trl = installed_version("trl", plan.machine.packages)
    if trl is None:
        return None
    if not trl.startswith(f"{TRL_VERSION}."):
        message = f"launch's entry is written for TRL {TRL_VERSION}, and {python} has TRL {trl}"
        return failed(message, install_hint(plan), "python")
    if not uses_vllm(plan.config):
        return None
    packages = plan.machine.packages
    unmet = unmet_requirements(packages, "trl", of=["vllm"], extra="vllm")
    unmet += unmet_requirements(packages, "vllm", of=["torch", "transformers"])
    if not unmet:
        return None
    cure = Fix.of("install versions that go together, or set {0}", "recipe.generation=transformers")
    return failed(f"in {python} {'; '.join(unmet)}", cure, "python")


@rule("few_cpus", "ray")
def ray_finds_cpus(plan: Plan, host: Host) -> Finding:
    """Ray waits 1,200 s for the CPUs that open-instruct's GRPO reserves, with the GPUs allocated
    (its issue 1431).
    """
    if plan.config.trainer.launcher != Launcher.ray or plan.only_tokenizes:
        return skipped("only open-instruct's GRPO reserves CPUs")
    available = len(psutil.Process().cpu_affinity())
    needs = ray_needs(values_of(plan.flags))
    if available < needs.cpus:
        message = f"Ray needs {needs} (grpo_fast_resource_plan.py); here are {available}"
        return failed(message, "use a larger machine")
    return passed(f"{needs}; {available} here")


def install_hint(plan: Plan) -> Fix:
    """Return the command that installs the trainer's packages."""
    # vLLM pins torch, so that GRPO of open-instruct needs an environment for itself.
    if plan.config.trainer.launcher == Launcher.ray:
        sync = f"$ uv sync --project {plan.upstream.checkout}"
        return Fix.of("{0} installs them; set {1}", sync, "python=PATH")
    extras = "train"
    if plan.config.trainer.family == Family.open_instruct or _needs_bitsandbytes(plan):
        extras += ",open-instruct"
    if plan.config.evaluate:
        extras += ",eval"
    command = f"$ pip install {resources.requirement(extras)}"
    if uses_vllm(plan.config):
        command += " 'trl[vllm]'"
    tracker = find_tracker(plan.config.tracking)
    if tracker is not None and tracker.package:
        command += f" {tracker.package}"
    if _has_muon(plan):
        command += f" {_MUON}"
    setup = " (scripts/setup does)" if resources.IN_CLONE else ""
    return Fix.of(f"install them there: {{0}}{setup}", command)


def run_environment(plan: Plan, host: Host) -> dict[str, str]:
    """Return the environment that the run itself will have."""
    inherited = {name: value for name, value in host.environ.items() if name not in plan.unset}
    return {**inherited, **plan.env, **resources.PYTHON_VARIABLES}


@rule("stale_build_lock", "builds")
def no_build_was_killed(plan: Plan, host: Host) -> Finding:
    """Torch waits without end for the lock of an extension's build, and a build that was killed
    leaves it behind.
    """
    if plan.parallel.zero_stage is None:
        return skipped("DeepSpeed is not used")
    folder = _extensions_folder(host.environ)
    stale: dict[str, float] = {}  # path of the lock -> its age in seconds
    is_building = False
    for lock in (*folder.glob("*/lock"), *folder.glob("*/*/lock")):
        with contextlib.suppress(FileNotFoundError):  # the build has ended
            age = time.time() - lock.stat().st_mtime
            if _is_held(lock):
                is_building = True
            else:
                stale[str(lock)] = age
    if not stale:
        return passed("a build is under way" if is_building else "no build under way")
    first_lock = next(iter(stale))
    facts = f"{first_lock} exists, but no process on this machine holds it"
    cure = f"unless another machine is building there: rm {' '.join(stale)}"
    if max(stale.values()) > _BUILD_SECONDS:
        return failed(facts, cure)
    return warned(facts, cure)


def _extensions_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of the builds (torch/utils/cpp_extension.py, _get_build_directory)."""
    if environ.get("TORCH_EXTENSIONS_DIR"):
        return Path(environ["TORCH_EXTENSIONS_DIR"])
    cache = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "torch_extensions"


def _is_held(lock: Path) -> bool:
    """Return whether a process has the lock open.

    The process that builds has it open until the build ends (torch/utils/file_baton.py).
    """
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            open_files = [Path(file.path) for file in process.open_files()]
            if lock in open_files:
                return True
    return False
