"""What the trainer runs from: open-instruct's source, the packages, and what DeepSpeed builds."""

from __future__ import annotations

import contextlib
import shutil
import socket
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from launch import resources
from launch.check.machine.rule import Host, failed, passed, rule, skipped, warned
from launch.config.schema import Family, Launcher, Quantization, Tracking
from launch.host.interpreter import InterpreterError, missing_modules
from launch.planning.flags import values_of
from launch.planning.plan import Plan
from launch.planning.rlvr import VLLM, ray_needs, uses_vllm
from launch.upstream.libraries.library_keys import installed_version
from launch.upstream.pin.checkout import fetch_command
from launch.worker.finding import Finding, Fix
from launch.worker.trl_options import TRL

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
    other = {"sft": "trl_sft", "dpo": "trl_dpo"}.get(plan.config.stage.kind.value)
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
    needed = [
        *_NEEDED[plan.config.trainer.family],
        *(["deepspeed"] if plan.parallel.zero_stage else []),
    ]
    if uses_vllm(plan.config):
        needed.append("vllm")
    if plan.config.tracking in (Tracking.wandb, Tracking.wandb_offline):
        needed.append("wandb")
    if plan.lora is not None:
        needed += ["peft", *(["bitsandbytes"] if plan.lora.quantize == Quantization.nf4 else [])]
    if plan.config.evaluate:
        needed.append("lm_eval")
    needed = list(dict.fromkeys(needed))
    if shutil.which(python) is None:
        cure = Fix.of("set {0} to an interpreter", "python=PATH")
        return Finding.error("no_interpreter", f"{python} is not a program", "python", cure)
    try:
        missing = missing_modules(python, needed)
    except InterpreterError as error:
        return Finding.error("no_interpreter", f"{python} does not answer: {error}", "python")
    if missing:
        return failed(f"{python} lacks {', '.join(missing)}", install_hint(plan), "python")
    trl = (
        installed_version("trl", plan.machine.packages)
        if plan.config.trainer.family == Family.trl
        else None
    )
    # the run would refuse it, before a model is loaded
    if trl is not None and not trl.startswith(f"{TRL}."):
        message = f"launch's entry is written for TRL {TRL}, and {python} has TRL {trl}"
        return failed(message, install_hint(plan), "python")
    vllm = (
        installed_version("vllm", plan.machine.packages)
        if trl is not None and "vllm" in needed
        else None
    )
    if vllm is not None and not VLLM[0] <= tuple(map(int, vllm.split(".")[:2])) <= VLLM[1]:
        message = (
            f"TRL {TRL}, torch and transformers leave vLLM 0.27 to 0.30, and {python} has "
            f"vLLM {vllm}"
        )
        return failed(
            message,
            Fix.of("install one of these, or set {0}", "recipe.generation=transformers"),
            "python",
        )
    return passed(f"{len(needed)} packages in {python}")


@rule("no_vllm_server", "vLLM")
def vllm_server_answers(plan: Plan, host: Host) -> Finding:
    """TRL waits 240 s for vLLM's server, with the GPUs allocated (trl/trainer/grpo_config.py,
    vllm_server_timeout).
    """
    flags = values_of(plan.flags)
    if flags.get("vllm_mode") != "server" or flags.get("vllm_server_base_url"):
        return skipped("no vLLM server is planned")
    place = str(flags.get("vllm_server_host", "0.0.0.0")), int(flags.get("vllm_server_port", 8000))
    try:
        socket.create_connection(place, timeout=2.0).close()
    except OSError as error:
        start = (
            "$ CUDA_VISIBLE_DEVICES=OTHERS trl vllm-serve --model "
            f"{plan.inputs.model.reference} --port {place[1]}"
        )
        return failed(
            f"nothing answers at {place[0]}:{place[1]}: {error}",
            Fix.of("{0}, on other GPUs", start),
        )
    return passed(f"something answers at {place[0]}:{place[1]}")


@rule("few_cpus", "ray")
def ray_finds_cpus(plan: Plan, host: Host) -> Finding:
    """Ray waits 1,200 s for the CPUs that open-instruct's GRPO reserves, with the GPUs allocated
    (its issue 1431).
    """
    if plan.config.trainer.launcher != Launcher.ray or plan.only_tokenizes:
        return skipped("only open-instruct's GRPO reserves CPUs")
    here, needs = len(psutil.Process().cpu_affinity()), ray_needs(values_of(plan.flags))
    if here < needs.cpus:
        return failed(
            f"Ray needs {needs} (grpo_fast_resource_plan.py); here are {here}",
            "use a larger machine",
        )
    return passed(f"{needs}; {here} here")


def install_hint(plan: Plan) -> Fix:
    """Return the command that installs the trainer's packages."""
    # in an environment of their own: vLLM pins torch
    if plan.config.trainer.launcher == Launcher.ray:
        return Fix.of(
            "{0} installs them; set {1}",
            f"$ uv sync --project {plan.upstream.checkout}",
            "python=PATH",
        )
    quantized = plan.lora is not None and plan.lora.quantize == Quantization.nf4  # bitsandbytes
    extras = (
        "train,open-instruct"
        if plan.config.trainer.family == Family.open_instruct or quantized
        else "train"
    )
    extras += ",eval" if plan.config.evaluate else ""
    vllm = " 'vllm>=0.27,<0.31'" if uses_vllm(plan.config) else ""
    setup = " (scripts/setup does)" if resources.IN_CLONE else ""
    return Fix.of(
        f"install them there: {{0}}{setup}", f"$ pip install {resources.requirement(extras)}{vllm}"
    )


def run_environment(plan: Plan, host: Host) -> dict[str, str]:
    """Return the environment that the run itself will have."""
    kept = {name: value for name, value in host.environ.items() if name not in plan.unset}
    return {**kept, **plan.env, **resources.SAFE_PATH}


@rule("stale_build_lock", "builds")
def no_build_was_killed(plan: Plan, host: Host) -> Finding:
    """Torch waits without end for the lock of an extension's build, and a build that was killed
    leaves it behind.
    """
    if plan.parallel.zero_stage is None:
        return skipped("DeepSpeed is not used")
    stale, held = {}, 0
    for lock in (
        path
        for pattern in ("*/lock", "*/*/lock")
        for path in _extensions(host.environ).glob(pattern)
    ):
        with contextlib.suppress(FileNotFoundError):  # the build has ended
            age = time.time() - lock.stat().st_mtime
            if _is_held(lock):
                held += 1
            else:
                stale[str(lock)] = age
    if not stale:
        return passed("a build is under way" if held else "no build under way")
    facts = f"{next(iter(stale))} exists, but no process on this machine holds it"
    cure = f"unless another machine is building there: rm {' '.join(stale)}"
    return failed(facts, cure) if max(stale.values()) > _BUILD_SECONDS else warned(facts, cure)


def _extensions(environ: Mapping[str, str]) -> Path:
    """The folder of the builds (torch/utils/cpp_extension.py, _get_build_directory)."""
    set_by_user = environ.get("TORCH_EXTENSIONS_DIR")
    return Path(
        set_by_user
        or Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torch_extensions"
    )


def _is_held(lock: Path) -> bool:
    """Whether a process has the lock open, as its maker does until the build ends
    (torch/utils/file_baton.py).
    """
    for process in psutil.process_iter():
        try:
            if any(Path(file.path) == lock for file in process.open_files()):
                return True
        except psutil.Error:
            continue
    return False
