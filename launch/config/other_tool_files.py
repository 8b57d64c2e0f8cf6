"""Recognises a file of axolotl, LLaMA-Factory, TRL, torchtune or verl, which launch translates and does
not read.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from launch.resources import GROUPS

AXOLOTL = "axolotl"
LLAMA_FACTORY = "LLaMA-Factory"
TRL_TOOL = "TRL"
TORCHTUNE = "torchtune"
VERL = "verl"
# Their settings are nested; what they leave out is what a line leaves out, as their own recipes have it.
READ_AS_LINES = (TORCHTUNE, VERL)
LINE = "a command line"  # in the words of any tool: what it leaves out has the stage's value
# Keys that only files of the tool have, and how many of them make a file its own.
_KEYS = {
    AXOLOTL: re.compile(
        r"base_model|base_model_config|sequence_len|micro_batch_size|sample_packing|val_set_size"
        r"|dataset_prepared_path|train_on_inputs|strict|pad_to_sequence_len|adapter|datasets"
        r"|num_epochs|rl"
    ),
    LLAMA_FACTORY: re.compile(
        r"finetuning_type|cutoff_len|template|stage|lora_target|lora_rank|dataset_dir|max_samples"
        r"|val_size|plot_loss|do_train|dataset|pref_beta|pref_loss|quantization_bit|export_.+|infer_backend"
    ),
}
_NEEDED = 3
_TRL_DATA = frozenset(("dataset_name", "dataset_splits", "dataset_mixture", "datasets"))
# Keys of alignment-handbook and open-r1, whose files are those of TRL with data of their own.
_OF_HANDBOOK = frozenset(("dataset_splits", "dataset_mixture"))
_TRL_TRAINING = re.compile(
    r"learning_rate|num_train_epochs|max_steps|per_device_train_batch_size|use_peft|packing"
    r"|max_length|max_seq_length|lr_scheduler_type|gradient_accumulation_steps|beta|loss_type"
)
# Keys of launch's files, and flags that only open-instruct's trainers have.
_OWN = frozenset(
    (
        *(*GROUPS, "recipe", "defaults", "dataset_mixer_list", "dataset_mixer"),
        *("with_tracking", "checkpointing_steps", "use_slow_tokenizer", "exp_name"),
    )
) - {"stage"}


def recognise_tool(names: Collection[str]) -> str | None:
    """Return the tool whose file has these keys at its top; None for any other file."""
    if "actor_rollout_ref" in names or {"optim", "trainer", "data"} <= set(names):
        return VERL
    if "checkpointer" in names and not {"tokenizer", "dataset"}.isdisjoint(names):
        return TORCHTUNE
    own = _OWN - {"dataset_mixer"} if has_other_data(names) else _OWN
    if not own.isdisjoint(names):
        return None
    for tool, keys in _KEYS.items():
        if sum(keys.fullmatch(name) is not None for name in names) >= _NEEDED:
            return tool
    trains = any(_TRL_TRAINING.fullmatch(name) for name in names)
    if trains and "model_name_or_path" in names and not _TRL_DATA.isdisjoint(names):
        return TRL_TOOL
    return None


def has_other_data(names: Collection[str]) -> bool:
    """Return whether a file like TRL's names data as TRL's own scripts do not."""
    return not _OF_HANDBOOK.isdisjoint(names)
