"""The table of recipe keys: one row a key, with everything that is known of it.

`flags` is what a trainer calls the key: a flag, or flags by the key's value. There "*" is any other
value, "{value}" the value itself, and "null" a key that is not set. A value that is not listed is
refused, with the reason under `unsupported_because`; a trainer that has only a reason takes the
default. `fallback` replaces a value of a shipped stage that a trainer lacks. `proof` is the evidence
that shows the value in the running trainer, with what it is compared with (`Requested`), and
`unproven_because` the reason where none does.
launch/config/recipe_key.py says which trainers a selector names.

The name of an evidence leads to all parts of its proof (`grep -rn grad_clip launch`): its row here,
what computes the requested value (launch/planning/expectations.py), the list of all evidence
(launch/worker/expectations.py), the function in the trainer's process that reads it
(launch/worker/evidence/), and the sentences of a run that is stopped
(launch/worker/evidence/sentences.py).
"""

# without `from __future__ import annotations`, as schema.py is
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from omegaconf import MISSING

from launch.config.ranges import (
    BELOW_ONE,
    COUNT,
    COUNT_OR_ZERO,
    GROUP,
    LENGTH,
    NOT_NEGATIVE,
    POSITIVE,
    REWARD,
    SEED,
)
from launch.config.recipe_key import Mapped, Proof, Requested, TrainerNames, key, recipe_rows


class Packing(StrEnum):
    """`none` pads; `flatten` concatenates the same samples unpadded; `bins` fills a token
    budget.
    """

    none = "none"
    flatten = "flatten"
    bins = "bins"


class LossAveraging(StrEnum):
    """Of an optimizer step's SFT loss: the sum over a sample's tokens, then the mean over the
    samples (the gradient is clipped as the sum's); the mean over all its tokens; or the mean of its
    micro batches' means.
    """

    sum = "sum"
    tokens = "tokens"
    micro_batch_means = "micro_batch_means"


class Quantization(StrEnum):
    """How the frozen weights under an adapter are stored: as they are, or in 4 bit (QLoRA)."""

    none = "none"
    nf4 = "nf4"


# What a stage does with a model that is an adapter; `continue` is a keyword, so this is not a
# class.
AdapterStart = StrEnum("AdapterStart", {"merged": "merged", "continue": "continue"})


class Precision(StrEnum):
    auto = "auto"
    bf16 = "bf16"
    fp32 = "fp32"


# The reasons of a key that only trainers of one kind have.
_ONLY_RLVR = {"SFT DPO KTO RM": "only RLVR samples answers"}
_ONLY_KTO = {"SFT DPO RM RLVR": "only the rows of KTO have labels"}
_NO_EVALUATION = "it does not evaluate while it trains"
_ONLY_IN_RUN_FOLDER = {"*": "it changes no step; the run folder shows it"}
_SCHEDULES = {
    "linear": {"lr_scheduler_type": "linear"},
    "cosine": {"lr_scheduler_type": "cosine"},
    "constant": {"lr_scheduler_type": "constant"},
}
_PLAIN_LORA = {
    "finetune": "its adapters are plain LoRA (finetune.py:626)",
    "dpo_tune_cache": "its adapters are plain LoRA (dpo_tune_cache.py:367)",
    "open_instruct": "it has no adapters",
}
_RATES = "the rates of the optimizer's groups at every step"
_STEPS = "the steps that the trainer counts before the first one"


@dataclass
class LoraConfig:
    """A low-rank adapter, trained in place of the model's weights."""

    rank: int | None = key(
        None,
        COUNT,
        help="rank of the adapter's two matrices, 8 to 256 as a rule; null: no adapter, all "
        "weights are trained",
        flags={
            "trl": {"*": {"use_peft": True, "lora_r": "{value}"}},
            "finetune dpo_tune_cache": {"*": {"use_lora": True, "lora_rank": "{value}"}},
            "*": {},
        },
        unsupported_because={
            "dpo": "dpo.py refuses it (dpo.py:143); trainer=dpo_tune_cache and trl_dpo have LoRA",
            "olmo_core_finetune": "OLMo-core trains all weights; trainer=trl_sft and finetune have "
            "LoRA",
            "reward_modeling": "reward_modeling.py trains all weights and has no adapters",
            "ray": "use_peft and its companions are read nowhere (model_utils.py:194)",
        },
        proof=Proof(
            "lora",
            "the rank of the adapted layers, and that nothing else is trained",
            Requested.computed,
        ),
        other_names={
            "axolotl trl": "lora_r",
            "llama_factory": "lora_rank",
            "others": "r rank peft_r",
        },
    )
    alpha: int | None = key(
        None,
        COUNT,
        help="the adapter's output is multiplied by alpha / rank; null: twice the rank",
        flags={"trl finetune dpo_tune_cache": "lora_alpha"},
        proof=Proof("lora_alpha", "the scaling of the adapted layers", Requested.computed),
        other_names={"axolotl trl llama_factory": "lora_alpha", "others": "alpha"},
    )
    dropout: float = key(
        0.0,
        BELOW_ONE,
        help="fraction of the adapter's inputs that is dropped at random while it trains, 0 to "
        "0.1 as a rule",
        flags={"trl finetune dpo_tune_cache": "lora_dropout"},
        proof=Proof("lora_dropout", "the dropout of the adapted layers", Requested.computed),
        other_names={"axolotl trl llama_factory": "lora_dropout"},
    )
    targets: Any = key(
        "all-linear",
        help="layers that get an adapter: all-linear (all but the output layer), or a list of "
        "names such as [q_proj,v_proj]",
        flags={
            "trl": {
                "all-linear": {"lora_target_modules": ["all-linear"]},
                "*": {"lora_target_modules": "{value}"},
            },
            "finetune dpo_tune_cache": {"all-linear": {}},
        },
        unsupported_because={
            "finetune": "it adapts all linear layers but the output layer (finetune.py:632)",
            "dpo_tune_cache": "it adapts all linear layers but the output layer "
            "(dpo_tune_cache.py:373)",
        },
        proof=Proof("lora_targets", "the names of the adapted layers", Requested.computed),
    )
    quantize: Quantization = key(
        Quantization.none,
        help="nf4 keeps the frozen weights in 4 bit (QLoRA), in about a quarter of the memory "
        "of bf16",
        flags={
            "trl": {
                "none": {},
                "nf4": {
                    "load_in_4bit": True,
                    "bnb_4bit_quant_type": "nf4",
                    "use_bnb_nested_quant": True,
                },
            },
            "finetune dpo_tune_cache": {"none": {}, "nf4": {"use_qlora": True}},
        },
        proof=Proof(
            "base_dtype",
            "the type of the weights that the adapted layers keep frozen",
            Requested.computed,
        ),
    )
    start: AdapterStart = key(
        AdapterStart.merged,
        help="when model.path is an adapter: train a new one on the merged model, or resume "
        "training it",
        flags={
            "trl": {"merged": {}, "continue": {}},  # continue: the option continue_adapter
            "finetune dpo_tune_cache": {"merged": {}},
        },
        unsupported_because={
            "finetune": "finetune.py always begins a new adapter (finetune.py:634)",
            "dpo_tune_cache": "dpo_tune_cache.py always begins a new adapter "
            "(dpo_tune_cache.py:375)",
        },
        proof=Proof(
            "lora_start",
            "whether the adapter's second matrices are zero before a step",
            Requested.computed,
        ),
    )
    dora: bool = key(
        False,
        help="DoRA: a trained length for each output of an adapted layer; closer to full training, "
        "and a slower step",
        flags={"trl": {"false": {}, "true": {"use_dora": True}}},
        unsupported_because=_PLAIN_LORA,
        proof=Proof("lora_dora", "the magnitudes of the adapted layers", Requested.computed),
    )
    rslora: bool = key(
        False,
        help="rsLoRA: the adapter's output is multiplied by alpha / sqrt(rank), in place of "
        "alpha / rank, for high ranks",
        flags={"trl": {"false": {}, "true": {"use_rslora": True}}},
        unsupported_because=_PLAIN_LORA,
        proof=Proof("lora_rslora", "the scaling of the adapted layers", Requested.computed),
    )
    init: str | None = key(
        None,
        help="what a new adapter starts from: pissa (the largest singular values of the weights) "
        "or olora (their QR decomposition); null: from nothing",
        flags={
            "open_instruct DPO KTO RLVR": {"null": {}},
            "trl": {"null": {}, "pissa": {}, "olora": {}},  # the option adapter_init
        },
        unsupported_because={
            **_PLAIN_LORA,
            "DPO KTO RLVR": "its reference is the model without the adapter, and these starts change "
            "that model",
            "trl": "launch has pissa and olora",
        },
        proof=Proof("lora_init", "the adapter's matrices before a step", Requested.computed),
    )
    modules_to_save: Any = key(
        None,
        help="modules that are trained as a whole beside the adapter, such as "
        "[embed_tokens,lm_head]; null: none",
        flags={"trl": {"null": {}, "*": {"lora_modules_to_save": "{value}"}}},
        unsupported_because=_PLAIN_LORA,
        proof=Proof("lora_modules", "the modules that are trained as a whole", Requested.computed),
    )
    target_parameters: Any = key(
        None,
        help="parameters that get an adapter though they are no layer's own, such as "
        "[mlp.experts.gate_up_proj] of a mixture of experts; null: none",
        flags={"trl": {"null": {}, "*": {"lora_target_parameters": "{value}"}}},
        unsupported_because=_PLAIN_LORA,
        proof=Proof("lora_parameters", "the parameters with an adapter", Requested.computed),
    )


@dataclass
class RecipeConfig:
    global_batch_size: int = key(
        MISSING,
        COUNT,
        help="samples (DPO: pairs, RLVR: completions) in one optimizer step, over all ranks; "
        "128 is usual",
        proof=Proof(
            "global_batch",
            "the rows of the forward passes of a step, over all ranks",
            Requested.computed,
        ),
        unproven_because={
            "olmo_core_finetune": "its rows are not samples: `global_tokens` counts their tokens"
        },
        other_names={
            "others": "train_batch_size batch_size total_batch_size effective_batch_size batch bs"
        },
    )
    global_batch_tokens: int | None = key(
        None,
        COUNT,
        help="tokens of one optimizer step, padding included, over all ranks, such as 1048576; in "
        "place of global_batch_size, where all rows are max_seq_length long; null: not used",
        flags={"olmo_core_finetune": {"null": {}, "*": {}}},  # launch/config/token_batch.py
        unsupported_because={
            "*": "its rows differ in length, so that no number of rows makes a number of tokens"
        },
        proof=Proof(
            "global_tokens",
            "the tokens that OLMo-core's data loader deals in a step",
            Requested.computed,
        ),
        other_names={"others": "batch_tokens tokens_per_batch tokens_per_step"},
    )
    per_device_batch_size: int = key(
        1,
        COUNT,
        help="samples in one forward pass of one rank, as many as its memory takes; the other "
        "samples of a step are accumulated",
        unproven_because={
            "*": "it changes memory and speed: `global_batch` counts the samples of all passes"
        },
        other_names={
            "axolotl": "micro_batch_size",
            "trl llama_factory": "per_device_train_batch_size",
            "others": "train_micro_batch_size_per_gpu per_gpu_train_batch_size device_batch_size "
            "ppo_micro_batch_size_per_gpu ppo_micro_batch_size micro_train_batch_size micro_bs mbs "
            "micro_batch_size_per_gpu train_micro_batch_size_per_device",
        },
    )
    learning_rate: float = key(
        MISSING,
        POSITIVE,
        help="highest learning rate of the schedule: about 5e-6 to 2e-5 for SFT, 5e-7 for DPO, "
        "1e-4 with an adapter",
        flags={"*": "learning_rate"},
        proof=Proof("learning_rate", _RATES, Requested.always),
        other_names={
            "axolotl trl llama_factory": "learning_rate",
            "others": "lr max_lr actor_learning_rate",
        },
    )
    lr_scheduler: str = key(
        "linear",
        help="how the learning rate falls after the warm-up: linear, cosine, constant, or "
        "another one of the trainer's",
        flags={"torchrun grpo": _SCHEDULES, "*": "lr_scheduler_type"},
        unsupported_because={
            "dpo": "dpo.py builds linear, cosine and constant ones (olmo_core_utils.py:279-288)",
            "olmo_core_finetune": "it builds linear, cosine and constant ones "
            "(olmo_core_utils.py:279-288)",
            "grpo": "it builds linear, cosine and constant ones (grpo_olmo_core_actor.py:154-161)",
        },
        proof=Proof("lr_scheduler", _RATES, Requested.always),
        other_names={
            "axolotl": "lr_scheduler",
            "trl llama_factory": "lr_scheduler_type",
            "others": "scheduler lr_schedule",
        },
    )
    warmup_ratio: float | None = key(
        None,
        BELOW_ONE,
        help="fraction of the optimizer steps in which the learning rate rises from 0, such as "
        "0.03; below 1; null: the trainer's default",
        flags={
            # below 1 it is a share of the steps (transformers training_args.py, warmup_steps)
            "trl": "warmup_steps",
            "reward_modeling": {"null": {}},
            "*": "warmup_ratio",
        },
        unsupported_because={
            "reward_modeling": "it counts warm-up in steps; use flags.warm_up_steps"
        },
        proof=Proof("warmup_ratio", _RATES, Requested.computed),
        other_names={"axolotl llama_factory": "warmup_ratio", "others": "warmup"},
    )
    weight_decay: float | None = key(
        None,
        NOT_NEGATIVE,
        help="weight decay of AdamW, 0 to 0.1 as a rule; null: the trainer's default",
        flags={"reward_modeling": {"null": {}}, "*": "weight_decay"},
        unsupported_because={
            "reward_modeling": "it leaves AdamW its default (reward_modeling.py:309)"
        },
        proof=Proof(
            "weight_decay", "the optimizer's groups of trained matrices", Requested.computed
        ),
        other_names={"axolotl trl llama_factory": "weight_decay", "others": "wd"},
    )
    optimizer: str | None = key(
        None,
        help="adamw, adamw_8bit (states in about a quarter of fp32's memory), paged_adamw_8bit (on "
        "the host where the GPU is full), adafactor, muon; null: the trainer's own",
        flags={
            "trl": {
                "null": {},
                "adamw": {"optim": "adamw_torch_fused"},
                "adamw_8bit": {"optim": "adamw_8bit"},
                "paged_adamw_8bit": {"optim": "paged_adamw_8bit"},
                "adafactor": {"optim": "adafactor"},
            },
            # With QLoRA alone; see the rule optimizer_needs_qlora.
            "finetune": {
                "null": {},
                "adamw": {},
                "paged_adamw_8bit": {"use_8bit_optimizer": True},
            },
            "dpo_tune_cache": {
                "null": {},
                "adamw": {},
                "paged_adamw_8bit": {
                    "use_8bit_optimizer": True,
                    "dpo_use_paged_optimizer": True,
                },
            },
            "dpo": {
                "null": {},
                "adamw": {"optimizer_type": "adamw"},
                "muon": {"optimizer_type": "muon"},
            },
            "*": {"null": {}, "adamw": {}},
        },
        unsupported_because={
            "trl": "TRL's other optimizers are set with flags.optim=NAME",
            "finetune": "finetune.py has AdamW, and bitsandbytes' paged one with QLoRA "
            "(finetune.py:670)",
            "dpo_tune_cache": "dpo_tune_cache.py has AdamW, and bitsandbytes' paged one "
            "(dpo_tune_cache.py:419)",
            "dpo": "dpo.py has OLMo-core's AdamW and Muon (dpo.py:259)",
            "*": "it has AdamW alone",
        },
        proof=Proof("optimizer", "the optimizer's class, and its states after a step"),
    )
    epochs: int = key(
        1,
        COUNT,
        help="number of passes over the data, 1 to 3 as a rule",
        flags={
            # total_episodes ends the run; num_epochs repeats each rollout (grpo_fast.py:651)
            "ray": {"*": {}},
            "dpo dpo_tune_cache olmo_core_finetune": "num_epochs",
            "*": "num_train_epochs",
        },
        proof=Proof("epochs", _STEPS + ", against the rows and the batch", Requested.computed),
        other_names={
            "axolotl": "num_epochs",
            "trl llama_factory": "num_train_epochs",
            "others": "epoch n_epochs max_epochs total_epochs num_episodes",
        },
    )
    max_steps: int | None = key(
        None,
        COUNT,
        help="optimizer steps after which the run ends, whether `epochs` would be fewer or more; "
        "null: all epochs",
        flags={
            # total_episodes is max_steps x global_batch_size (grpo_fast.py:1032)
            "ray": {"*": {}},
            "trl": "max_steps",
            "reward_modeling": {"null": {}},
            "*": "max_train_steps",
        },
        unsupported_because={"reward_modeling": "it trains whole epochs; use data.fraction"},
        proof=Proof("max_steps", _STEPS, Requested.computed),
        other_names={
            "axolotl trl llama_factory": "max_steps",
            "others": "max_train_steps num_steps total_steps train_iters total_training_steps",
        },
    )
    max_seq_length: int = key(
        MISSING,
        LENGTH,
        help="tokens of the longest sample (RLVR: prompt plus response), such as 4096; a "
        "longer one is truncated or dropped",
        flags={
            # GRPOConfig has no limit on prompts: the reward proof checks every row against it
            "trl_grpo": {"*": {}},
            "trl": "max_length",
            "ray": "pack_length",
            "reward_modeling": {
                "*": {"max_token_length": "{value}", "max_prompt_token_length": "{value}"}
            },
            "*": "max_seq_length",
        },
        proof=Proof(
            "max_seq_length",
            "the longest row that is dealt, and those that are truncated",
            Requested.always,
        ),
        unproven_because={
            "trl_grpo": "the reward proof checks every prompt against it before the run",
        },
        other_names={
            "axolotl": "sequence_len",
            "trl": "max_length",
            "llama_factory": "cutoff_len",
            "others": "max_seq_len seq_length seq_len model_max_length block_size context_length "
            "max_len",
        },
    )
    max_grad_norm: float | None = key(
        1.0,
        NOT_NEGATIVE,
        help="norm that the gradients of a step are clipped at; null: no clipping",
        flags={
            "trl grpo_fast": {"null": {"max_grad_norm": 0.0}, "*": {"max_grad_norm": "{value}"}},
            "grpo": {"*": {"max_grad_norm": "{value}"}},
            "finetune": "clip_grad_norm",
            "reward_modeling": {"null": {}},
            "*": "max_grad_norm",
        },
        unsupported_because={"reward_modeling": "it does not clip without DeepSpeed"},
        proof=Proof("grad_clip", "the norm that the first step is clipped at", Requested.computed),
        other_names={
            "axolotl trl llama_factory": "max_grad_norm",
            "others": "gradient_clipping clip_grad_norm grad_clip gradient_clip_val",
        },
    )
    seed: int = key(
        42,
        SEED,
        help="seed of the order of the rows and of all other random draws",
        flags={"*": "seed"},
        proof=Proof("seed", "the order in which the rows are dealt", Requested.always),
        other_names={"axolotl trl llama_factory": "seed"},
    )
    precision: Precision = key(
        Precision.auto,
        help="number format of the computation; auto: bf16 where the trainer supports it",
        proof=Proof("dtype", "the type that the model computes in", Requested.computed),
    )
    chat_template: str | None = key(
        None,
        help="how messages become one text: the name of a template, such as tulu, or a .jinja "
        "file; null: the tokenizer's own",
        flags={
            "trl_sft": {"null": {}, "*": {"chat_template_path": "{value}"}},  # the template's file
            "trl": {"null": {}, "*": {}},  # the option chat_template
            "*": "chat_template_name",  # and the patch chat_template, for one that it lacks
        },
        proof=Proof("chat_template", "the text of the tokenizer's template"),
        other_names={
            "axolotl": "chat_template",
            "trl": "chat_template_path",
            "llama_factory": "template",
            "others": "chat_template_name",
        },
    )
    packing: Packing = key(
        Packing.none,
        help="how samples fill a micro batch. none: each padded to the longest; flatten: the "
        "same samples end to end, without padding; bins: as many samples as fit "
        "max_seq_length",
        flags={
            "trl_sft": {
                "none": {},
                "flatten": {"padding_free": True},
                "bins": {"packing": True, "packing_strategy": "bfd"},
            },
            "finetune dpo_tune_cache": {"none": {}, "flatten": {"packing": True}},
            "dpo": {"none": {}, "bins": {"packing": True}},
            "olmo_core_finetune": {"bins": {}},
            "trl reward_modeling": {"none": {}},
        },
        unsupported_because={
            "finetune": "finetune.py flattens per_device_batch_size samples (finetune.py:640) and "
            "has no token budget",
            "dpo_tune_cache": "dpo_tune_cache.py concatenates per_device_batch_size pairs "
            "(dpo_tune_cache.py:406) and has no token budget",
            "dpo": "dpo.py packs up to a token budget (data_loader.py:327)",
            "olmo_core_finetune": "it always packs into sequences of max_seq_length "
            "(olmo_core_finetune.py:232)",
            "trl_dpo": "TRL 1.16 takes padding_free for DPO and pads all the same "
            "(trl/trainer/dpo_trainer.py:733)",
            "trl_kto": "KTOTrainer pads (trl/trainer/kto_trainer.py:181)",
            "trl_grpo": "GRPOTrainer pads (trl/trainer/grpo_trainer.py)",
            "ray": "it always packs, and a step has the same completions all the same "
            "(data_loader.py:410)",
        },
        proof=Proof(
            "packing", "the collator, and the documents in the first forward pass", Requested.always
        ),
    )
    balanced: bool = key(
        False,
        help="distribute the samples of a global batch by length, so that all ranks get about the "
        "same number of tokens",
        flags={"finetune dpo_tune_cache": {"false": {}, "true": {}}},  # the patch balanced_batches
        unsupported_because={
            "trl": "the load-balancing patch is written for open-instruct's finetune.py and "
            "dpo_tune_cache.py",
            "reward_modeling": "the load-balancing patch is written for finetune.py and "
            "dpo_tune_cache.py",
            "dpo": "dpo.py has a data loader of its own, and its bins have a token budget already",
            "olmo_core_finetune": "its rows are all max_seq_length long",
            "ray": "it packs completions of any length",
        },
        proof=Proof("balanced", "the tokens of the first micro batch, as they were dealt"),
    )
    loss_averaging: LossAveraging | None = key(
        None,
        help="how the SFT loss weighs the tokens of a step. tokens, sum: all the same (sum has "
        "the gradient norm of a sum); micro_batch_means: those of a short micro batch "
        "more; null: the trainer's default",
        flags={
            # the patches token_weighting and token_sums
            "finetune": {"micro_batch_means": {}, "tokens": {}, "sum": {}},
            # its own way (transformers trainer.py, num_items_in_batch)
            "trl_sft": {"tokens": {}},
        },
        unsupported_because={
            "trl_sft": "transformers' Trainer divides by the tokens of all micro batches, before "
            "it clips",
            "dpo": "dpo.py weighs each micro batch of pairs by its tokens "
            "(olmo_core_train_modules.py:236) and has no other way",
            "DPO": "DPO averages over pairs, each of which counts the same",
            "KTO": "KTO averages over rows, which the weights of their labels weigh",
            "olmo_core_finetune": "OLMo-core takes the mean over each rank's tokens (olmo_core "
            "train_module.py:402) and has no other way",
            "RM": "a reward model's loss is a mean over pairs",
            "trl_grpo": "recipe.loss says how GRPO averages",
            "ray": "flags.loss_denominator sets it (grpo_utils.py:141)",
        },
        fallback={"trl_sft": "tokens", "olmo_core_finetune": None},
        proof=Proof("loss_averaging", "how the loss of the first micro batch was weighted"),
    )
    liger: bool = key(
        False,
        help="use Liger's fused Triton kernels, which take less memory; on GPUs only",
        flags={"trl_grpo": {"false": {}}, "finetune dpo_tune_cache trl": "use_liger_kernel"},
        unsupported_because={
            "dpo": "dpo.py accepts use_liger_kernel and never reads it",
            "olmo_core_finetune": "its kernels are OLMo-core's own",
            "trl_grpo": "Liger's GRPO loss is deprecated in TRL 1.16 "
            "(trl/trainer/grpo_trainer.py:1051)",
            "reward_modeling ray": "it has no such flag",
        },
        proof=Proof("liger", "the kernels that replace functions of the model", Requested.computed),
        other_names={
            "axolotl": "liger_rope liger_rms_norm liger_glu_activation liger_fused_linear_cross_entropy",
            "trl": "use_liger_kernel",
            "llama_factory": "enable_liger_kernel",
            "others": "use_liger liger_kernel",
        },
    )
    attention: str = key(
        "auto",
        help="implementation of attention: sdpa, eager, flash_2, or another one of the "
        "trainer's; auto: the trainer's choice",
        flags={
            "trl": {
                "auto": {},
                "sdpa": {"attn_implementation": "sdpa"},
                "eager": {"attn_implementation": "eager"},
                "flash_2": {"attn_implementation": "flash_attention_2"},
            },
            "finetune reward_modeling": {"auto": {}},
            "*": {
                "auto": {},
                "sdpa": {"attn_implementation": "torch"},
                "flash_2": {"attn_implementation": "flash_2"},
            },
        },
        unsupported_because={
            "finetune": "finetune.py takes flash attention when it is installed and SDPA otherwise "
            "(model_utils.py:77-89)",
            "reward_modeling": "it leaves the choice to transformers (reward_modeling.py:293)",
        },
        proof=Proof("attention", "the implementation that the model's layers call"),
    )
    gradient_checkpointing: bool = key(
        False,
        help="recompute activations in the backward pass: much less memory, and a slower step",
        flags={
            # 0.1: with the logits of long packed rows upstream ran out of memory above it (its pull
            # request 1466, scripts/train/olmo3/7b_instruct_dpo_olmocore.sh:58)
            "dpo": {"false": {}, "true": {"activation_memory_budget": 0.1}},
            # below 1 is full checkpointing
            "dpo_tune_cache grpo olmo_core_finetune": {
                "false": {},
                "true": {"activation_memory_budget": 0.5},
            },
            "grpo_fast": {"true": {}},
            "*": "gradient_checkpointing",
        },
        unsupported_because={"grpo_fast": "it always checkpoints (grpo_fast.py:370)"},
        proof=Proof(
            "gradient_checkpointing", "the switch that the layers read in a pass", Requested.always
        ),
        other_names={
            "axolotl trl": "gradient_checkpointing",
            "others": "activation_checkpointing enable_gradient_checkpointing "
            "use_gradient_checkpointing",
        },
    )
    checkpoint_steps: int | None = key(
        None,
        COUNT,
        help="optimizer steps between checkpoints, which a stopped run resumes from; null: "
        "none before the end, but every 500 steps of dpo, dpo_tune_cache and olmo_core_finetune",
        flags={
            # the last three are kept, as in open-instruct; `flags.save_total_limit=` overrides
            "trl": {
                "null": {"save_strategy": "no"},
                "*": {"save_strategy": "steps", "save_steps": "{value}", "save_total_limit": 3},
            },
            # grpo_olmo_core_actor.py:378
            "grpo": {
                "null": {"checkpoint_state_freq": -1},
                "*": {"checkpoint_state_freq": "{value}"},
            },
            # whole models (grpo_fast.py:1664)
            "grpo_fast": {"null": {"save_freq": -1}, "*": {"save_freq": "{value}"}},
            "reward_modeling": {"null": {}},
            "*": "checkpointing_steps",
        },
        unsupported_because={"reward_modeling": "it saves at the end only"},
        unproven_because=_ONLY_IN_RUN_FOLDER,
    )
    eval_steps: int | None = key(
        None,
        COUNT,
        help="optimizer steps between evaluations on data.validation; null: at the end only",
        flags={"trl_grpo": {"null": {}}, "trl": "eval_steps"},
        unsupported_because={
            "trl_grpo": "a GRPO loss on held-out rows says nothing; `launch eval` scores the model",
            "ray": "flags.local_eval_every samples an evaluation of its own",
            "reward_modeling": "flags.num_evals sets how often it evaluates its own "
            "flags.dataset_mixer_eval_list",
            "open_instruct": _NO_EVALUATION,
        },
        unproven_because=_ONLY_IN_RUN_FOLDER,
        other_names={"axolotl trl llama_factory": "eval_steps", "others": "eval_every test_freq"},
    )
    early_stop: int | None = key(
        None,
        COUNT,
        help="number of evaluations without a lower loss after which the run stops; the best "
        "checkpoint is kept; null: never",
        flags={
            "trl_grpo": {"null": {}},
            "trl": {"null": {}, "*": {"load_best_model_at_end": True}},  # and the option early_stop
        },
        unsupported_because={
            "trl_grpo": "a GRPO loss is 0 by construction, so it has no best step",
            "ray reward_modeling": "it never stops early",
            "open_instruct": _NO_EVALUATION,
        },
        unproven_because=_ONLY_IN_RUN_FOLDER,
        other_names={"axolotl": "early_stopping_patience"},
    )
    sample_every: int | None = key(
        None,
        COUNT,
        help="optimizer steps between recorded answers to three fixed prompts; null: none",
        flags={"RM": {"null": {}}, "trl": {"*": {}}},  # the option samples
        unsupported_because={
            "RM": "a reward model generates no text",
            "ray": "its process is not watched from within",
            "open_instruct": "it does not generate while it trains; TRL's trainers do",
        },
        unproven_because=_ONLY_IN_RUN_FOLDER,
    )
    beta: float | None = key(
        None,
        POSITIVE,
        help="DPO's and KTO's weight of staying close to the starting model: 0.1 is usual, 5 with "
        "loss=dpo_norm; null: the trainer's default",
        flags={"DPO KTO": "beta"},
        unsupported_because={
            "SFT": "the loss of SFT has none",
            "RM": "the loss of a reward model has none",
            "RLVR": "it is DPO's; recipe.kl_beta weighs the KL divergence",
        },
        proof=Proof("beta", "the rewards of the first pairs, or what TRL's loss reads"),
    )
    desirable_weight: float | None = key(
        None,
        NOT_NEGATIVE,
        help="weight of the good answers in KTO's loss; times their number it should be 1 to 1.33 "
        "times that of the bad ones; null: 1",
        flags={"KTO": "desirable_weight"},
        unsupported_because=_ONLY_KTO,
        proof=Proof("desirable_weight", "what TRL's loss reads"),
        other_names={
            "axolotl": "kto_desirable_weight",
            "trl": "desirable_weight",
            "llama_factory": "kto_chosen_weight",
        },
    )
    undesirable_weight: float | None = key(
        None,
        NOT_NEGATIVE,
        help="weight of the bad answers in KTO's loss; null: 1",
        flags={"KTO": "undesirable_weight"},
        unsupported_because=_ONLY_KTO,
        proof=Proof("undesirable_weight", "what TRL's loss reads"),
        other_names={
            "axolotl": "kto_undesirable_weight",
            "trl": "undesirable_weight",
            "llama_factory": "kto_rejected_weight",
        },
    )
    loss: str | None = key(
        None,
        help="loss function. DPO: dpo, dpo_norm (log-probs per token), ...; KTO: kto, ...; RLVR: "
        "grpo, dapo, ...; null: the trainer's default",
        flags={
            "dpo": {"dpo": {"loss_type": "dpo"}, "dpo_norm": {"loss_type": "dpo_norm"}},
            "dpo_tune_cache": {
                "dpo": {"loss_type": "dpo"},
                "dpo_norm": {"loss_type": "dpo_norm"},
                "simpo": {"loss_type": "simpo"},
            },
            "trl_dpo": {
                "dpo": {"loss_type": ["sigmoid"]},
                "dpo_norm": {"loss_type": ["sigmoid_norm"]},
            },
            "trl_kto": {
                "kto": {"loss_type": "kto"},
                "apo_zero_unpaired": {"loss_type": "apo_zero_unpaired"},
            },
            "trl_grpo": {
                "grpo": {"loss_type": "grpo"},
                "dr_grpo": {"loss_type": "dr_grpo"},
                "dapo": {"loss_type": "dapo"},
                "bnpo": {"loss_type": "bnpo"},
            },
            "ray": {"dapo": {"loss_fn": "dapo"}, "cispo": {"loss_fn": "cispo"}},
        },
        unsupported_because={
            "dpo": "of its others simpo needs no reference and dpo.py builds one all the same "
            "(dpo.py:310); wpo fails (dpo_utils.py:599)",
            "dpo_tune_cache": "its other loss, wpo, fails for more than one pair in a micro batch "
            "(dpo_utils.py:599)",
            "trl_dpo": "launch maps dpo and dpo_norm; TRL's other losses are set with "
            "flags.loss_type=[NAME]",
            "trl_kto": "TRL has no other loss for labels (trl/trainer/kto_config.py:198)",
            "trl_grpo": "TRL's other losses are set with flags.loss_type",
            "SFT RM": "only DPO, KTO and RLVR have a choice of losses",
        },
        proof=Proof(
            "loss",
            "the loss of the first pairs, or the name that TRL's loss reads",
            Requested.computed,
        ),
    )
    prompts_per_step: int | None = key(
        None,
        COUNT,
        help="prompts in one optimizer step of RLVR; times samples_per_prompt it is "
        "global_batch_size",
        flags={
            # global_batch_size is prompts_per_step x samples_per_prompt
            "trl_grpo": {"*": {}},
            "ray": "num_unique_prompts_rollout",
        },
        unsupported_because=_ONLY_RLVR,
        proof=Proof(
            "global_batch",
            "the completions of a step, which are those of its prompts",
            Requested.elsewhere,
        ),
        other_names={"others": "data_train_batch_size rollout_batch_size"},
    )
    samples_per_prompt: int | None = key(
        None,
        GROUP,
        help="completions that RLVR samples for each prompt, to compare them with each other; "
        "4 to 16 as a rule",
        flags={"trl_grpo": "num_generations", "ray": "num_samples_per_prompt_rollout"},
        unsupported_because=_ONLY_RLVR,
        proof=Proof(
            "samples_per_prompt",
            "the completions of each prompt in the first step",
            Requested.elsewhere,
        ),
        other_names={
            "trl": "num_generations",
            "others": "rollout_n actor_rollout_ref_rollout_n num_samples_per_prompt_rollout "
            "num_return_sequences n_samples_per_prompt rloo_k num_sample_generations",
        },
    )
    response_length: int | None = key(
        None,
        COUNT,
        help="maximum tokens of a completion of RLVR, such as 1024; it is cut there",
        flags={"trl_grpo": "max_completion_length", "ray": "response_length"},
        unsupported_because=_ONLY_RLVR,
        proof=Proof("response_length", "what TRL's sampling reads"),
        other_names={
            "trl": "max_completion_length",
            "others": "max_new_tokens max_response_length generate_max_len max_tokens_to_sample",
        },
    )
    temperature: float | None = key(
        None,
        POSITIVE,
        help="temperature that RLVR samples with; 1 is the model's own distribution; null: the "
        "trainer's default",
        flags={"RLVR": "temperature"},
        unsupported_because=_ONLY_RLVR,
        proof=Proof("temperature", "what TRL's sampling reads"),
    )
    kl_beta: float | None = key(
        None,
        NOT_NEGATIVE,
        help="weight of the KL divergence from the starting model in RLVR's loss, such as "
        "0.05; 0: none; null: the trainer's default",
        flags={
            "trl_grpo": "beta",
            "ray": {"0.0": {"beta": 0.0, "load_ref_policy": False}, "*": {"beta": "{value}"}},
        },
        unsupported_because=_ONLY_RLVR,
        proof=Proof("kl_beta", "what TRL's loss reads"),
        other_names={"others": "kl_coef kl_loss_coef init_kl_coef kl_penalty_coef"},
    )
    clip: float | None = key(
        None,
        POSITIVE,
        help="how far RLVR's ratio of new to old probabilities may be from 1 before it is "
        "clipped; 0.2 is usual; null: the trainer's default",
        flags={
            "trl_grpo": "epsilon",
            "ray": "clip_lower",  # its upper bound is clip_higher, 0.272 (grpo_utils.py:108)
        },
        unsupported_because=_ONLY_RLVR,
        proof=Proof("clip_range", "what TRL's loss reads"),
        other_names={"trl": "epsilon", "others": "clip_ratio cliprange clip_eps"},
    )
    generation: str | None = key(
        None,
        help="what samples RLVR's completions: transformers, continuous (its continuous "
        "batching), vllm_colocate or vllm_server; null: transformers",
        flags={
            "trl_grpo": {
                "null": {},
                "transformers": {},
                "continuous": {"use_transformers_continuous_batching": True},
                "vllm_colocate": {"use_vllm": True, "vllm_mode": "colocate"},
                "vllm_server": {"use_vllm": True, "vllm_mode": "server"},
            }
        },
        unsupported_because={"ray": "it generates with vLLM, on GPUs of its own", **_ONLY_RLVR},
        unproven_because={
            "*": "an answer does not show what sampled it; `sampler_weights` compares the weights"
        },
    )
    server_gpus: int | None = key(
        None,
        COUNT_OR_ZERO,
        help="GPUs of vLLM's server, besides the trainer's `gpus` (generation=vllm_server); null: 1; "
        "0: it shares the trainer's only GPU",
        flags={"trl_grpo": {"*": {}}},  # of the server, which the run starts
        unsupported_because={"ray": "flags.vllm_num_engines sets its engines", **_ONLY_RLVR},
        unproven_because={"*": "the trainer has no part in it; the preflight sees the GPUs"},
    )
    truncated_reward: float | None = key(
        None,
        REWARD,
        help="reward of a completion of RLVR that response_length cuts; null: the verifiers "
        "score it",
        flags={
            "trl_grpo": {"*": {}},  # part of the option verifier
            "ray": {
                "null": {},
                "*": {"non_stop_penalty": True, "non_stop_penalty_value": "{value}"},
            },
        },
        unsupported_because=_ONLY_RLVR,
        proof=Proof("rewards", "the rewards of the first step, one by one", Requested.elsewhere),
    )
    verifier: Any = key(
        None,
        help="what scores RLVR's answers: rows, math, gsm8k, ifeval, exact or "
        "PATH.py:FUNCTION; or a list of them (docs/rlvr.md)",
        flags={"trl_grpo": {"*": {}}, "ray": {"rows": {}}},  # trl_grpo: the option verifier
        unsupported_because={
            "ray": "its verifiers are its own, and each row names one in its column dataset "
            "(ground_truth_utils.py:1188); recipe.verifier=rows",
            **_ONLY_RLVR,
        },
        proof=Proof("rewards", "the rewards of the first step, one by one", Requested.elsewhere),
    )
    lora: LoraConfig = field(default_factory=LoraConfig)


KEYS = recipe_rows(RecipeConfig)
# the keys that a trainer has flags for; launch itself turns the others into the batch and the
# launcher's arguments
MAPPED_KEYS = tuple(name for name, row in KEYS.items() if row.flags)


def recipe_mapping(trainer: TrainerNames, key: str) -> Mapped | None:
    """Return what a recipe key is for a trainer; None if the table has no entry for it."""
    return KEYS[key].mapping(trainer)


def recipe_mappings(trainer: TrainerNames) -> dict[str, Mapped]:
    """Return what the recipe keys are for a trainer, without those that have no entry for it."""
    mappings = {}
    for name in MAPPED_KEYS:
        mapping = recipe_mapping(trainer, name)
        if mapping is not None:
            mappings[name] = mapping
    return mappings


@dataclass(frozen=True)
class FlagOfKey:
    """The recipe key that a trainer's flag stands for."""

    key: str
    has_value: bool  # the flag's value is that of the key


def keys_by_flag(trainer: TrainerNames) -> dict[str, FlagOfKey]:
    """Return the recipe key of each flag that a trainer has for one."""
    keys: dict[str, FlagOfKey] = {}
    for flag, name, value in recipe_flags_of(trainer):
        known = keys.get(flag)
        has_value = value in (None, "{value}") or (known is not None and known.has_value)
        keys[flag] = FlagOfKey(name, has_value)
    return keys


def recipe_flags_of(trainer: TrainerNames) -> Iterator[tuple[str, str, Any]]:
    """Yield every flag that a trainer has for a recipe key: its name, the key, and the value that it
    gets; None for the value of the key itself.
    """
    for name, mapping in recipe_mappings(trainer).items():
        if isinstance(mapping, str):
            yield mapping, name, None
            continue
        for flags in mapping.values():
            for flag, value in flags.items():
                yield flag, name, value
