"""What a plan asks of the trainer, as the worker can check it in the trainer's own objects at the first step.

The keys and values are those of launch/worker/expectations.py. What the recipe leaves open is not asked for.
"""

from __future__ import annotations

from launch.config.schema import Launcher, RootConfig, TrainerConfig
from launch.planning.parallel import Parallel

_LAYERS = "rms_norm,rope,swiglu"
# open-instruct's SFT has the loss fused too (finetune.py:586). Its DPO needs the logits and says
# fused_linear_cross_entropy=False (dpo_tune_cache.py:328), and TRL has a fused head of its own (sft_trainer.py:1140).
_LIGER = {"finetune": f"{_LAYERS},fused_linear_cross_entropy"}
_WORDS = {"max_grad_norm": "clip"}  # recipe word -> expectation, where they differ


def expectations(config: RootConfig, parallel: Parallel) -> dict[str, str]:
    """The `--expect` pairs of a plan: accelerate's state, and what can be seen in the model, optimizer and batches.

    OLMo-core's trainers, which torchrun starts, have no Accelerator: of their state the ranks and the device count.
    """
    state = parallel.expectations()
    if config.trainer.launcher == Launcher.torchrun:
        state = {name: state[name] for name in ("world_size", "device")}
    return {**state, **requested(config, parallel)}


def requested(config: RootConfig, parallel: Parallel) -> dict[str, str]:
    """What the recipe asks for, by the keys of the evidence.

    A recipe word whose flag the user set by `flags.NAME=` is not among it: the flag wins over the recipe.
    """
    recipe = config.recipe
    asked = {
        "packing": recipe.packing.value,
        "gradient_checkpointing": str(recipe.gradient_checkpointing).lower(),
        "clip": repr(float(recipe.max_grad_norm)) if recipe.max_grad_norm else "none",
    }
    if recipe.liger:
        asked["liger"] = _LIGER.get(config.trainer.name, _LAYERS)
    if recipe.balanced:
        asked["balanced"] = "true"
    if recipe.loss_averaging is not None:
        asked["loss_averaging"] = recipe.loss_averaging.value
    if recipe.attention != "auto":
        asked["attention"] = recipe.attention
    if recipe.chat_template:
        asked["chat_template"] = recipe.chat_template
    for word in _overridden(config.trainer, set(config.flags)):
        asked.pop(_WORDS.get(word, word), None)
    return {"dtype": parallel.precision.value, **asked}


def _overridden(trainer: TrainerConfig, said: set[str]) -> set[str]:
    """The recipe words that stand for a flag which the user said himself."""
    words = set()
    for word, meaning in trainer.recipe.items():
        carried = {meaning} if isinstance(meaning, str) else {name for flags in meaning.values() for name in flags}
        if carried & said:
            words.add(word)
    return words


def allowed(config: RootConfig) -> tuple[str, ...]:
    """The ids in `allow` that are about an expectation: it is then warned of, and the run goes on."""
    return tuple(name for name in config.allow if name.startswith(("refuted_", "unproven_")))
