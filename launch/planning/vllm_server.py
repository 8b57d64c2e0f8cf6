"""vLLM's server of a stage of RLVR, which the run starts before its trainer and ends after it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from launch import resources
from launch.config.schema import RootConfig
from launch.planning.flags import values_of
from launch.planning.plan import Plan

GENERATION_BY_SERVER = "vllm_server"  # of recipe.generation
# The flags that name a server which somebody else has started.
_NAMED_BY = ("vllm_server_base_url", "vllm_server_host")
# TRL's default ports (trl/trainer/grpo_config.py).
_PORT = 8000
_GROUP_PORT = 51216
# TRL's default shares of a GPU's memory.
_OWN_SHARE = 0.9  # of a server (trl/scripts/vllm_serve.py)
_COMMON_SHARE = 0.3  # beside a trainer (trl/trainer/grpo_config.py)


@dataclass(frozen=True)
class VllmServer:
    """A server that the run starts on the machine of its trainer."""

    command: tuple[str, ...]
    port: int
    gpus: int  # its own, behind the trainer's; 0: it shares the trainer's only GPU
    env: Mapping[str, str]

    def visible_devices(self, trainer_gpus: int, environ: Mapping[str, str]) -> str:
        """Return CUDA_VISIBLE_DEVICES of the server."""
        visible = [name for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
        first = trainer_gpus if self.gpus else 0
        count = self.gpus or 1
        names = visible or [str(number) for number in range(first + count)]
        return ",".join(names[first : first + count])

    def describe(self, trainer_gpus: int) -> str:
        """Describe it in a plan."""
        place = "on the trainer's GPU"
        if self.gpus == 1:
            place = f"on GPU {trainer_gpus}"
        elif self.gpus:
            place = f"on GPUs {trainer_gpus} to {trainer_gpus + self.gpus - 1}"
        return f"vLLM's, {place}, port {self.port}; it starts and ends with the run"


def starts_server(config: RootConfig, flags: Mapping[str, Any]) -> bool:
    """Return whether the run starts vLLM's server itself. `flags` are the trainer's values by name."""
    is_named = any(flags.get(name) is not None for name in _NAMED_BY)
    return config.recipe.generation == GENERATION_BY_SERVER and not is_named


def server_gpus(plan: Plan) -> int:
    """Return the number of GPUs of the server that the run starts, besides the trainer's."""
    server = planned_server(plan)
    return server.gpus if server is not None else 0


def server_port(flags: Mapping[str, Any]) -> int:
    return int(flags.get("vllm_server_port", _PORT))


def group_port(flags: Mapping[str, Any]) -> int:
    """Return the port over which TRL sends weights to a server on GPUs of its own."""
    return int(flags.get("vllm_group_port", _GROUP_PORT))


def planned_server(plan: Plan) -> VllmServer | None:
    """Return the server that the run starts; None if it starts none."""
    flags = values_of(plan.flags)
    if not starts_server(plan.config, flags):
        return None
    recipe = plan.config.recipe
    gpus = 1 if recipe.server_gpus is None else recipe.server_gpus
    share = flags.get("vllm_gpu_memory_utilization", _OWN_SHARE if gpus else _COMMON_SHARE)
    port = server_port(flags)
    command = [plan.command[0], "-m", "trl.scripts.vllm_serve"]
    command += ["--model", str(flags["model_name_or_path"])]
    if flags.get("model_revision") is not None:
        command += ["--revision", str(flags["model_revision"])]
    # TRL's own default accepts connections from other machines
    command += ["--host", "127.0.0.1", "--port", str(port)]
    command += ["--tensor_parallel_size", str(max(1, gpus))]
    command += ["--gpu_memory_utilization", str(share)]
    command += ["--max_model_len", str(recipe.max_seq_length)]
    if flags.get("trust_remote_code"):
        command += ["--trust_remote_code", "true"]
    # so that its weights can be compared with the trained ones
    command += ["--worker-extension-cls", "launch_weights.ServerWeights"]
    env = {"PYTHONPATH": _search_path(plan)}
    if not gpus:
        # NCCL takes each GPU once in a group, so that the weights of a shared one go through CUDA's
        # own handles, which vLLM unpickles (vllm/distributed/weight_transfer/ipc_engine.py:114).
        # vLLM's parser takes the last of two, and TRL's own comes first.
        command += ["--weight-transfer-config", '{"backend": "ipc"}']
        env["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
    return VllmServer(tuple(command), port, gpus, env)


def _search_path(plan: Plan) -> str:
    """Return the PYTHONPATH of the run, with the folder of what the server imports of launch."""
    inherited = plan.env.get("PYTHONPATH", os.environ.get("PYTHONPATH"))
    folders = [str(resources.IN_VLLM), *([inherited] if inherited else [])]
    return os.pathsep.join(folders)


def server_environment(
    server: VllmServer, plan: Plan, environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the variables that the server has besides the trainer's."""
    devices = server.visible_devices(plan.parallel.width.local, environ)
    return {**server.env, "CUDA_VISIBLE_DEVICES": devices}
