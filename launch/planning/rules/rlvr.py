"""The rules of RLVR: groups of completions, the window of prompt and response, and what samples."""

from __future__ import annotations

import math
from collections.abc import Iterator

from launch.config.kinds import Kind
from launch.config.schema import Device, Launcher
from launch.planning.plan import Plan
from launch.planning.rlvr import ray_needs
from launch.planning.rules.plan_rule import FlagsCase, SettingsCase, plan_rule
from launch.planning.vllm_server import GENERATION_BY_SERVER, group_port, server_port, starts_server
from launch.rules.code import failed, warned
from launch.worker.finding import Finding, Fix


@plan_rule("partial_groups")
def batch_holds_whole_groups(case: SettingsCase) -> Iterator[Finding]:
    """GRPO compares the completions of a prompt with each other, so a batch has to hold all of them."""
    recipe = case.config.recipe
    prompts = recipe.prompts_per_step
    samples = recipe.samples_per_prompt
    if case.config.stage.kind != Kind.rlvr or not prompts or not samples:
        return
    completions = prompts * samples
    if completions == recipe.global_batch_size:
        return
    message = (
        f"recipe.global_batch_size={recipe.global_batch_size} counts completions, and "
        f"{prompts} prompts x {samples} samples are {completions}"
    )
    fitting = f"recipe.prompts_per_step={max(1, recipe.global_batch_size // samples)}"
    cure = Fix.of("remove it, or set {1}", "~recipe.global_batch_size", fitting)
    yield failed(message, cure, case.locate("recipe.global_batch_size"))


@plan_rule("no_room_for_prompts")
def window_has_room_for_prompts(case: SettingsCase) -> Iterator[Finding]:
    """recipe.max_seq_length is prompt plus response, so a response as long as it leaves no prompt."""
    recipe = case.config.recipe
    response = recipe.response_length
    if case.config.stage.kind != Kind.rlvr or not response or response < recipe.max_seq_length:
        return
    message = (
        f"recipe.response_length={response} leaves no room for a prompt in "
        f"recipe.max_seq_length={recipe.max_seq_length}"
    )
    cure = Fix.of(
        "max_seq_length is prompt plus response: set {0}",
        f"recipe.response_length={max(1, recipe.max_seq_length // 2)}",
    )
    yield failed(message, cure, case.locate("recipe.response_length"))


@plan_rule("rl_gpus")
def learners_and_engines_take_all_gpus(case: FlagsCase) -> Iterator[Finding]:
    """Ray waits 1,200 s for GPUs that do not exist, and GPUs that neither learners nor engines take
    stay idle (grpo_fast.py:161).
    """
    if case.trainer.launcher != Launcher.ray:
        return
    needs = ray_needs(case.values)
    gpus = case.parallel.width.world_size
    if needs.learners + needs.engines == gpus:
        return
    message = (
        f"{needs.learners} learners and {needs.engines} GPUs of vLLM are not the {gpus} GPUs of "
        "the plan"
    )
    cure = Fix.of(
        "remove them, or set {1}", "~flags.num_learners_per_node", "flags.vllm_num_engines=N"
    )
    yield failed(message, cure, "flags.num_learners_per_node")


@plan_rule("vllm_ports")
def server_has_two_ports(case: FlagsCase) -> Iterator[Finding]:
    """TRL talks to vLLM's server at one port, and sends it weights at another one."""
    port = server_port(case.values)
    if case.config.recipe.generation == GENERATION_BY_SERVER and port == group_port(case.values):
        message = f"vLLM's server and the group that sends it weights can't share port {port}"
        yield failed(message, "set another port", "flags.vllm_group_port")


@plan_rule("no_server_gpu")
def server_has_a_gpu(case: FlagsCase) -> Iterator[Finding]:
    """A plan without a GPU has none for vLLM's server: vLLM waits for one, and then fails."""
    if not starts_server(case.config, case.values):
        return
    if case.parallel.width.device == Device.cpu:
        message = "vLLM's server needs a GPU, and this plan has none"
        yield failed(message, "set gpus=N", "recipe.generation")


@plan_rule("vllm_server_nodes")
def server_is_on_the_only_machine(case: FlagsCase) -> Iterator[Finding]:
    """A run starts vLLM's server on its own machine, so it can't have several."""
    nodes = case.parallel.width.nodes
    if not starts_server(case.config, case.values) or nodes == 1:
        return
    message = f"the run starts vLLM's server on one machine, got nodes={nodes}"
    cure = "name a server of your own: flags.vllm_server_base_url=http://HOST:8000"
    yield failed(message, cure, "nodes")


@plan_rule("shared_server_gpu")
def server_shares_the_only_gpu(case: FlagsCase) -> Iterator[Finding]:
    """vLLM's server can share the GPU of one rank: another one's is not the server's."""
    gpus = case.parallel.width.world_size
    shares = case.config.recipe.server_gpus == 0
    if not starts_server(case.config, case.values) or not shares or gpus == 1:
        return
    message = f"vLLM's server can share the GPU of one rank, got gpus={gpus}"
    yield failed(message, "set recipe.server_gpus=1", "recipe.server_gpus")


@plan_rule("bf16_sampling", allow=True)
def sampling_sees_small_updates(case: FlagsCase) -> Iterator[Finding]:
    """Continuous batching samples with bf16 copies of fp32 weights, in which a small update is
    rounded away.

    DeepSpeed trains fp32 copies of bf16 weights. PEFT keeps an adapter in fp32, whatever --dtype
    its base has.
    """
    flags = case.values
    samples_continuously = flags.get("use_transformers_continuous_batching") is True
    if not samples_continuously or flags.get("bf16") is not True or case.parallel.zero_stage:
        return
    if flags.get("dtype") == "bfloat16" and not flags.get("use_peft"):
        return
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
    yield failed(message, cure, "recipe.generation")


@plan_rule("few_cpus", severity="warning")
def slurm_has_cpus_for_ray(plan: Plan) -> Iterator[Finding]:
    """Ray waits 1,200 s for more CPUs than a Slurm job of these settings gets."""
    config = plan.config
    if config.trainer.launcher != Launcher.ray:
        return
    gpus = plan.parallel.width.world_size
    needs = ray_needs({name: flag.value for name, flag in plan.flags.items()})
    allocated = (config.cluster.cpus_per_rank or needs.cpus) * gpus
    if allocated >= needs.cpus:
        return
    message = (
        f"a Slurm job would have {allocated}, and Ray waits 1,200 s for {needs} "
        "(grpo_fast_resource_plan.py)"
    )
    cure = Fix.of("set {0}", f"cluster.cpus_per_rank={math.ceil(needs.cpus / gpus)}")
    yield warned(message, cure, "cluster.cpus_per_rank")
