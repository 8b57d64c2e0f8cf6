"""Translates the reward of another tool's file or line into a verifier, and GRPO's own numbers."""

from __future__ import annotations

import re
from pathlib import Path

from launch.config.other_tool_files import LINE
from launch.planning.other_tool_values import Translation
from launch.planning.rlvr import public_functions

_NAMES = (
    *("reward", "rewards", "reward_funcs", "reward_function", "reward_fn", "reward_functions"),
    *("reward_model", "reward_model_name_or_path", "reward_model_path", "reward_model_model_path"),
    *("reward_pretrain", "remote_rm_url", "verifier"),
)
_OF_THE_ANSWER = re.compile(r"accuracy\w*|correct\w*|exact\w*|answer\w*|match\w*")
# flags of TRL that vLLM reads, with their names in verl and OpenRLHF
_OF_VLLM = {
    "vllm_gpu_memory_utilization": ("gpu_memory_utilization",),
    "vllm_tensor_parallel_size": ("tensor_model_parallel_size", "tensor_parallel_size"),
}
_BUILT_IN = ("math", "gsm8k", "ifeval", "exact", "rows")


def translate_reward(t: Translation) -> None:
    """Set the verifier, the column that it compares, the penalty on the divergence, and vLLM's
    settings, which require recipe.generation.
    """
    _translate_verifier(t)
    for flag, names in _OF_VLLM.items():
        value = t.take(flag, *names)
        if value is not None:
            t.set(f"flags.{flag}", value)
            if t.tool == LINE:
                t.settings.setdefault("use_vllm", True)
    beta = t.take("beta", "kl_beta", "kl_coef", "kl_loss_coef")
    if beta is not None:
        t.set("recipe.kl_beta", beta)
    temperature = t.take("temperature")
    if temperature is not None:
        t.set("recipe.temperature", temperature)
    if t.rows is not None and t.rows.truth not in (None, "ground_truth"):
        t.set("data.columns.ground_truth", t.rows.truth)


def _translate_verifier(t: Translation) -> None:
    path = t.take("custom_reward_function_path")
    function = t.take("custom_reward_function_name") or "compute_score"  # verl's default
    given = f"{path}:{function}" if path else t.take(*_NAMES)
    rewards = [str(each) for each in (given if isinstance(given, list) else [given]) if each]
    if len(rewards) > 1:
        t.differences.append(f"the rewards {', '.join(rewards[1:])}: the first alone is used")
    reward = rewards[0] if rewards else ""
    file = _find_function(reward, t.file.parent)
    fitting = t.rows.verifier if t.rows is not None else None
    if file is not None:
        t.overrides["recipe.verifier"] = file
    elif reward in _BUILT_IN:
        t.set("recipe.verifier", reward)
    elif fitting is not None and (not reward or _OF_THE_ANSWER.fullmatch(reward)):
        t.set("recipe.verifier", fitting)
    elif reward or "data.mix" in t.overrides or t.tool != LINE:
        named = f", for {reward}" if reward else ""
        functions = public_functions(Path(reward)) if reward.endswith(".py") else []
        if functions:
            choices = " or ".join(f"recipe.verifier={reward}:{each}" for each in functions)
            t.missing.append(f"which function of {reward} is the reward: {choices}")
            return
        if ".py" in reward:
            named = f", as there is no file of {reward}"
        t.missing.append(
            f"a reward that launch can prove{named}: "
            "recipe.verifier=PATH.py:FUNCTION, or exact, math, ifeval, rows"
        )


def _find_function(reward: str, folder: Path) -> str | None:
    """Return PATH.py:FUNCTION for `rewards.py:f`, `rewards.f` or `rewards:f`; None if there is no
    such file in the current folder or beside the other tool's file.
    """
    if reward.endswith(".py"):
        functions = public_functions(Path(reward))
        return f"{reward}:{functions[0]}" if len(functions) == 1 else None
    parts = re.fullmatch(r"(.+?)(?:\.py)?[.:](\w+)", reward)
    if parts is None:
        return None
    module = parts[1].replace(".", "/") if not parts[1].endswith(".py") else parts[1]
    for path in (Path(f"{parts[1]}.py"), Path(f"{module}.py"), folder / f"{module}.py"):
        if path.is_file():
            return f"{path}:{parts[2]}"
    return None
