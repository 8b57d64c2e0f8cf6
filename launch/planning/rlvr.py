"""What a stage of RLVR adds to a plan: groups of completions, the window of prompt and response,
verifiers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch import resources
from launch.config.guards import VerifierLimits
from launch.config.origins import Origins
from launch.config.schema import Kind, Launcher, RootConfig
from launch.errors import UserError, did_you_mean, path_problem, refusal
from launch.planning.parallel import Parallel, Width
from launch.worker.finding import Finding, Fix
from launch.worker.json_codec import to_json
from launch.worker.trl_options import BY_ROW, VerifierOption, is_own

# the others have defaults
_REQUIRED = ("prompts_per_step", "samples_per_prompt", "response_length", "verifier")


def check_rlvr(config: RootConfig, origins: Origins) -> None:
    """Check the arithmetic of a stage of RLVR.

    Raises UserError: missing_rlvr_key, partial_groups, no_room_for_prompts.
    """
    if config.stage.kind != Kind.rlvr:
        return
    recipe = config.recipe
    missing = [key for key in _REQUIRED if getattr(recipe, key) is None]
    if missing:
        message = f"an rlvr stage needs recipe.{missing[0]}"
        raise refusal("missing_rlvr_key", message, "recipe", f"set {', '.join(missing)} in recipe")
    prompts, samples, response = (
        recipe.prompts_per_step,
        recipe.samples_per_prompt,
        recipe.response_length,
    )
    assert prompts and samples and response
    if prompts * samples != recipe.global_batch_size:
        message = (
            f"recipe.global_batch_size={recipe.global_batch_size} counts completions, and "
            f"{prompts} prompts x "
        )
        message += f"{samples} samples are {prompts * samples}"
        where = origins.of("recipe.global_batch_size").where
        fitting = f"recipe.prompts_per_step={max(1, recipe.global_batch_size // samples)}"
        cure = Fix.of("remove it, or set {1}", "~recipe.global_batch_size", fitting)
        raise refusal("partial_groups", message, where, cure)
    if response >= recipe.max_seq_length:
        message = (
            f"recipe.response_length={response} leaves no room for a prompt in "
            "recipe.max_seq_length="
        )
        where = origins.of("recipe.response_length").where
        message += str(recipe.max_seq_length)
        raise refusal(
            "no_room_for_prompts", message, where, "max_seq_length is prompt plus response"
        )


def resolve_verifiers(config: RootConfig, origins: Origins, cwd: Path) -> dict[str, float]:
    """Return the verifiers of a stage and their weights; an own function as
    ABSOLUTE_PATH.py:FUNCTION.

    Raises UserError: unknown_verifier, no_verifier_file.
    """
    given = config.recipe.verifier
    if config.stage.kind != Kind.rlvr or given is None:
        return {}
    return dict(_entries(given, origins.of("recipe.verifier").where, cwd))


def calls_open_instruct(config: RootConfig) -> bool:
    """Whether rows may name functions of open-instruct, as those of the Tulu 3 mixture do."""
    given = str(config.recipe.verifier)
    return config.stage.kind == Kind.rlvr and (BY_ROW in given or "ifeval" in given)


def verifier_option(config: RootConfig, verifiers: Mapping[str, float]) -> str | None:
    """Return the value of the entry's option `verifier`, a VerifierOption in JSON."""
    if not verifiers:
        return None
    guard = (config.guards.verifier if config.guards else None) or VerifierLimits()
    recipe = config.recipe
    option = VerifierOption(
        verifiers, guard.seconds, recipe.max_seq_length, recipe.truncated_reward
    )
    content = {key: value for key, value in to_json(option).items() if value is not None}
    return json.dumps(content, separators=(",", ":"))


def ray_flags(config: RootConfig, width: Width) -> dict[str, Any]:
    """Return what the recipe and the GPUs imply for open-instruct's GRPO, by flag; the user's own
    flags win.

    Three GPUs of eight learn, and the others hold vLLM, as 6 and 10 did
    (scripts/train/tulu3/grpo_fast_8b.sh:37-39).
    """
    recipe, flags = config.recipe, config.flags
    if config.trainer.launcher != Launcher.ray:
        return {}
    assert recipe.response_length
    learners = max(1, width.world_size * 3 // 8)
    nodes = [min(width.local, learners - first) for first in range(0, learners, width.local)]
    needs = ray_needs({"num_learners_per_node": nodes, **flags})
    sampling = max(1, (width.world_size - needs.learners) // (needs.engines or 1))
    implied = {
        "num_learners_per_node": nodes,
        "vllm_num_engines": sampling,
        "single_gpu_mode": width.world_size == 1,
        "max_prompt_token_length": recipe.max_seq_length - recipe.response_length,
    }
    if recipe.max_steps:
        implied["total_episodes"] = recipe.max_steps * recipe.global_batch_size
    return implied


@dataclass(frozen=True)
class RayNeeds:
    """What open-instruct's GRPO waits 1,200 s for (grpo_fast.py:161, its issue 1431), by
    grpo_fast_resource_plan.py.
    """

    learners: int  # GPUs
    engines: int  # GPUs of vLLM, where it has its own

    @property
    def cpus(self) -> int:
        return 10 * self.learners + self.engines + 3

    def __str__(self) -> str:
        return (
            f"{self.cpus} CPUs: 10 for each of {self.learners} learners, {self.engines} for "
            "vLLM's GPUs, 3 more"
        )


def ray_needs(flags: Mapping[str, Any]) -> RayNeeds:
    """Return the needs of these flags."""
    learners, single = flags["num_learners_per_node"], flags.get("single_gpu_mode") is True
    sizes = [flags.get(name, 1) for name in ("vllm_num_engines", "vllm_tensor_parallel_size")]
    # others are refused with their type
    counts = [size if isinstance(size, int) else 1 for size in sizes]
    learning = [
        size
        for size in (learners if isinstance(learners, list) else [learners])
        if isinstance(size, int)
    ]
    return RayNeeds(sum(learning), 0 if single else counts[0] * counts[1])


def check_generation(config: RootConfig, parallel: Parallel, flags: Mapping[str, Any]) -> None:
    """Check what samples the completions of a stage of RLVR: Ray's GPUs, vLLM, or transformers.

    `flags` are the trainer's values by name. Raises UserError: rl_gpus, vllm_correction,
    vllm_ports, bf16_sampling.
    """
    if config.trainer.launcher == Launcher.ray:
        _check_ray_gpus(ray_needs(flags), parallel.width)
    elif uses_vllm(config):
        _check_vllm(flags)
    problem = _find_rounded_updates(parallel, flags)
    if problem is not None and problem.id not in config.allow:
        raise UserError(problem)


def generation_warnings(
    config: RootConfig, parallel: Parallel, flags: Mapping[str, Any]
) -> tuple[Finding, ...]:
    """Return the warnings few_cpus, vllm_untried and bf16_sampling, where they apply."""
    warnings: list[Finding] = []
    if config.trainer.launcher == Launcher.ray:
        warnings += _few_cpus(config, parallel.width, ray_needs(flags))
    elif uses_vllm(config):
        message = "generation with vLLM is planned and checked, and no run of it has been made here"
        cure = "watch sampling/sampling_logp_difference"
        warnings.append(Finding.warning("vllm_untried", message, "recipe.generation", cure))
    problem = _find_rounded_updates(parallel, flags)
    if problem is not None:
        warnings.append(problem.as_warning())
    return tuple(warnings)


def _check_ray_gpus(needs: RayNeeds, width: Width) -> None:
    """Check that learners and vLLM's engines take all GPUs of the plan. Raises UserError:
    rl_gpus.
    """
    if needs.learners + needs.engines == width.world_size:
        return
    message = (
        f"{needs.learners} learners and {needs.engines} GPUs of vLLM are not the "
        f"{width.world_size} GPUs of the plan"
    )
    cure = Fix.of(
        "remove them, or set {1}", "~flags.num_learners_per_node", "flags.vllm_num_engines=N"
    )
    raise refusal("rl_gpus", message, "flags.num_learners_per_node", cure)


def _few_cpus(config: RootConfig, width: Width, needs: RayNeeds) -> list[Finding]:
    """Return the warning of a Slurm allocation with too few CPUs for Ray."""
    allocated = (config.cluster.cpus_per_rank or needs.cpus) * width.world_size
    if allocated >= needs.cpus:
        return []
    message = (
        f"a Slurm job would have {allocated}, and Ray waits 1,200 s for {needs} "
        "(grpo_fast_resource_plan.py)"
    )
    cpus_per_rank = math.ceil(needs.cpus / width.world_size)
    cure = Fix.of("set {0}", f"cluster.cpus_per_rank={cpus_per_rank}")
    return [Finding.warning("few_cpus", message, "cluster.cpus_per_rank", cure)]


def refuse_untried(config: RootConfig) -> None:
    """Refuse to start what is only planned and checked. Raises UserError: untried_trainer."""
    if config.trainer.untried and not config.cache_only:
        message = (
            f"launch plans and checks {config.trainer.name} but does not start it: "
            f"{config.trainer.untried}"
        )
        cure = Fix.of(
            "{0} prints its command; {1} trains with TRL", "$ launch plan", "trainer=trl_grpo"
        )
        raise refusal("untried_trainer", message, "trainer", cure)


# first and last version beside TRL 1.16, torch 2.13 and transformers 5.23, with numpy 2.3
VLLM = ((0, 27), (0, 30))
# TRL's defaults of the flags that cut the distribution, which leave it whole
_WHOLE_DISTRIBUTION = {"top_p": 1.0, "top_k": 0, "min_p": None}


def uses_vllm(config: RootConfig) -> bool:
    """Whether vLLM samples, in the trainer's process or on GPUs of its own."""
    return config.trainer.launcher == Launcher.ray or (config.recipe.generation or "").startswith(
        "vllm_"
    )


def _check_vllm(flags: Mapping[str, Any]) -> None:
    """Check the flags of TRL with vLLM. Raises UserError: vllm_correction, vllm_ports."""
    is_corrected = bool(flags.get("vllm_importance_sampling_correction", True))
    for name, whole in _WHOLE_DISTRIBUTION.items():
        value = flags.get(name, whole)
        if value == whole or not is_corrected:
            continue
        message = (
            f"--{name} {value} cuts the distribution that vLLM samples from, and not the one that "
            "corrects it"
        )
        cure = Fix.of(
            "remove it, or set {1} (trl #6789)",
            f"~flags.{name}",
            "flags.vllm_importance_sampling_correction=false",
        )
        raise refusal("vllm_correction", message, f"flags.{name}", cure)
    server_port = flags.get("vllm_server_port", 8000)
    group_port = flags.get("vllm_group_port", 51216)
    if server_port == group_port:
        message = f"vLLM's server and the group that sends it weights can't share port {group_port}"
        raise refusal("vllm_ports", message, "flags.vllm_group_port", "set another port")


def _find_rounded_updates(parallel: Parallel, flags: Mapping[str, Any]) -> Finding | None:
    """Return the problem bf16_sampling if sampling casts the trained fp32 weights to bf16.

    DeepSpeed trains fp32 copies of bf16 weights. PEFT keeps an adapter in fp32, whatever --dtype
    its base has.
    """
    samples_continuously = flags.get("use_transformers_continuous_batching") is True
    if not samples_continuously or flags.get("bf16") is not True or parallel.zero_stage:
        return None
    if flags.get("dtype") == "bfloat16" and not flags.get("use_peft"):
        return None
    message = (
        "continuous batching casts the trained fp32 weights to bf16, in which small updates are "
        "rounded away (trl/trainer/grpo_trainer.py:1797)"
    )
    cure = Fix.of(
        "set {0} or {1}, or accept it: {2}",
        "recipe.generation=transformers",
        "recipe.precision=fp32",
        "allow=[bf16_sampling]",
    )
    return Finding.error("bf16_sampling", message, "recipe.generation", cure)


def _entries(given: Any, where: str | None, cwd: Path) -> Iterator[tuple[str, float]]:
    """Yield name and weight: of one name, or of a list of names and `{name: ..., weight: ...}`."""
    # with what calls them, of which other stages need nothing
    from launch.worker.verifiers import BUILT_IN

    names = (BY_ROW, *BUILT_IN)
    for entry in given if isinstance(given, list) else [given]:
        content = entry if isinstance(entry, Mapping) else {"name": entry}
        name, weight = content.get("name"), content.get("weight", 1.0)
        is_weight = isinstance(weight, int | float) and not isinstance(weight, bool) and weight > 0
        if not isinstance(name, str) or not is_weight or set(content) - {"name", "weight"}:
            cure = (
                "write NAME, or a list such as '[exact, {name: rules.py:short, weight: 0.5}]' "
                "with weights above 0"
            )
            raise refusal(
                "unknown_verifier", f"recipe.verifier: {entry!r} is not a verifier", where, cure
            )
        if name not in names and not is_own(name):
            cure = (
                did_you_mean(name, names)
                or f"choose from {', '.join(names)}, or name your own as PATH.py:FUNCTION"
            )
            raise refusal("unknown_verifier", f"recipe.verifier: there is no '{name}'", where, cure)
        yield _own_file(name, cwd, where) if is_own(name) else name, float(weight)


def _own_file(name: str, cwd: Path, where: str | None) -> str:
    path, _, function = name.rpartition(":")
    try:
        file = cwd / Path(path.replace("{project}", str(resources.ROOT))).expanduser()
        is_here = file.is_file()
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(path_problem(error, path)) from error
    if not is_here or not function.isidentifier():
        what = (
            f"{file} does not exist"
            if not is_here
            else f"'{function}' is not the name of a function"
        )
        raise refusal(
            "no_verifier_file", f"recipe.verifier={name}: {what}", where, "write PATH.py:FUNCTION"
        )
    return f"{file}:{function}"
