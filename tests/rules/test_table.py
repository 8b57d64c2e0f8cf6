"""Each row of the table of rules: where it applies and where it does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from launch.check.lint.flag_rules import GivenFlags, find_flag_warnings
from launch.check.lint.trainer_commands import TrainerScript
from launch.rules.conditions import CONDITIONS
from launch.rules.engine import apply_rules, rules_for
from launch.rules.facts import UNKNOWN, Place
from launch.rules.table import is_flag, table
from launch.upstream.trainers import ENTRIES, OPEN_INSTRUCT, TRL
from tests.check.lint.helpers import locked_checker
from tests.rules.test_engine import WrittenFacts

NAMES = {"chat_template_name": ("tulu", "zephyr")}
DPO = {"mixer_list": ["d", "1.0"]}
Values = Mapping[str, Any]


def kinds(
    values: Values,
    trainer: str = "finetune",
    names: Mapping[str, Sequence[str]] = NAMES,
    is_complete: bool = True,
) -> list[str]:
    """Return the warnings; None among the values takes away one that every command here has."""
    values = {**({"logging_steps": 1} if trainer == "finetune" else DPO), **values}
    given = {flag: value for flag, value in values.items() if value is not None}
    return [
        it.id
        for it in find_flag_warnings(GivenFlags(TrainerScript(trainer), given, is_complete, names))
    ]


CASES: list[
    tuple[str, str, Values, list[Values]]
] = [  # id, trainer, where it warns, where it does not
    (
        "mixer_pairs",
        "finetune",
        {"dataset_mixer_list": ["a", "1.0", "b"]},
        [{"dataset_mixer_list": ["a", "1.0"]}, {"dataset_mixer_list": ["a", UNKNOWN, "b"]}],
    ),
    ("mixer_pairs", "dpo", {"mixer_list": ["a"]}, [DPO]),
    (
        "mixer_pairs",
        "finetune",
        {"dataset_mixer_eval_list": ["a"]},
        [{"dataset_mixer_eval_list": ["a", "1"]}],
    ),
    (
        "mixer_count",
        "finetune",
        {"dataset_mixer_list": ["a", "1.0", "b", "10"]},
        [{"dataset_mixer_list": ["a", "11"]}, {"dataset_mixer_list": ["a", "1.0"]}],
    ),
    (
        "mixer_count",
        "dpo_tune_cache",
        {"mixer_list": [UNKNOWN, "1"]},
        [{"mixer_list": ["a", UNKNOWN]}],
    ),
    (
        "refused_value",
        "dpo",
        {"max_grad_norm": -1.0},
        [{"max_grad_norm": 0.0}, {"max_grad_norm": UNKNOWN}],
    ),
    ("refused_value", "finetune", {"hf_repo_id": "me/model"}, [{"hf_repo_id": "model"}]),
    ("refused_flag", "finetune", {"tokenizer_name": UNKNOWN}, [{}]),
    ("ignored_flag", "finetune", {"use_slow_tokenizer": True}, [{}]),
    ("tracking_without_wandb", "finetune", {"with_tracking": True}, [{"with_tracking": False}]),
    (
        "tracking_without_wandb",
        "finetune",
        {"with_tracking": True, "report_to": ["tensorboard"]},
        [
            {"with_tracking": True, "report_to": ["all"]},
            {"with_tracking": True, "report_to": [UNKNOWN]},
        ],
    ),
    (
        "no_logging_steps",
        "finetune",
        {"logging_steps": None},
        [{}, {"logging_steps": None, "cache_dataset_only": True}],
    ),
    ("no_data", "dpo", {"mixer_list": None}, [DPO, {"mixer_list": UNKNOWN}]),
    (
        "liger_ignored",
        "dpo_tune_cache",
        {"use_liger_kernel": True, "use_qlora": True, "use_lora": True},
        [{}],
    ),
    (
        "qlora_without_lora",
        "finetune",
        {"use_qlora": True},
        [{"use_qlora": True, "use_lora": UNKNOWN}],
    ),
    (
        "optimizer_ignored",
        "finetune",
        {"use_8bit_optimizer": True},
        [{"use_8bit_optimizer": True, "use_qlora": UNKNOWN}],
    ),
    (
        "packing_with_sequence_parallel",
        "finetune",
        {"packing": True, "sequence_parallel_size": 2},
        [{"packing": True, "sequence_parallel_size": 1}],
    ),
    (
        "traces_path",
        "grpo_fast",
        {"save_traces": True},
        [{"save_traces": True, "rollouts_save_path": "rollouts"}],
    ),
    (
        "unknown_chat_template",
        "finetune",
        {"chat_template_name": "tulo"},
        [{"chat_template_name": "tulu"}],
    ),
]


@pytest.mark.parametrize(("id", "trainer", "warned", "silent"), CASES)
def test_each_row_of_flags(id: str, trainer: str, warned: Values, silent: list[Values]) -> None:
    assert kinds(warned, trainer) == [id]
    assert [values for values in silent if id in kinds(values, trainer)] == []


# id, trainer, settings of a plan with which it applies, and with which it does not
PLANS: list[tuple[str, str, Values, list[Values]]] = [
    ("out_of_range", "trl_sft", {"max_steps": 0}, [{"max_steps": -1}, {"max_steps": 1}]),
    ("out_of_range", "finetune", {"clip_grad_norm": -0.5}, [{"clip_grad_norm": -1}]),
    ("out_of_range", "trl_sft", {"adam_beta1": 1.0}, [{"adam_beta1": 0.9}]),
    ("refused_flag", "trl_grpo", {"use_vllm": True}, [{}]),
    (
        "refused_value",
        "finetune",
        {"sequence_parallel_size": 2, "recipe.balanced": False, "recipe.loss_averaging": None},
        [{"sequence_parallel_size": 1, "recipe.balanced": False, "recipe.loss_averaging": None}],
    ),
    ("refused_value", "finetune", {"checkpointing_steps": "abc"}, [{"checkpointing_steps": 5}]),
    ("refused_value", "dpo", {"optimizer_type": "sgd"}, [{"optimizer_type": "muon"}]),
    ("refused_value", "dpo_tune_cache", {"loss_type": "wpo"}, [{"loss_type": "dpo"}]),
    (
        "flag_over_recipe",
        "trl_sft",
        {"eval_strategy": "no", "data.validation": 0.1},
        [
            {"eval_strategy": "no", "data.validation": None},
            {"eval_strategy": "epoch", "data.validation": 0.1},
        ],
    ),
    (
        "ineffective_flag",
        "trl_dpo",
        {"label_smoothing": 0.1, "loss_type": ["sigmoid"]},
        [{"label_smoothing": 0.1, "loss_type": ["robust"]}],
    ),
    ("ineffective_flag", "trl_sft", {"lora_r": 8}, [{"lora_r": 8, "use_peft": True}]),
    (
        "liger_needs_gpu",
        "trl_sft",
        {"recipe.liger": True, "device": "cpu"},
        [{"recipe.liger": True, "device": "cuda"}, {"recipe.liger": False, "device": "cpu"}],
    ),
    (
        "flash_needs_gpu",
        "trl_sft",
        {"recipe.attention": "flash_2", "device": "cpu"},
        [
            {"recipe.attention": "sdpa", "device": "cpu"},
            {"recipe.attention": "flash_2", "device": "cuda"},
        ],
    ),
    (
        "epochs_in_schedule",
        "reward_modeling",
        {"recipe.epochs": 2, "recipe.lr_scheduler": "linear"},
        [
            {"recipe.epochs": 1, "recipe.lr_scheduler": "linear"},
            {"recipe.epochs": 2, "recipe.lr_scheduler": "constant_with_warmup"},
        ],
    ),
    (
        "schedule_needs_numbers",
        "trl_sft",
        {"recipe.lr_scheduler": "cosine_with_min_lr"},
        [
            {"recipe.lr_scheduler": "cosine"},
            {
                "recipe.lr_scheduler": "cosine_with_min_lr",
                "lr_scheduler_kwargs": {"min_lr_rate": 0.1},
            },
        ],
    ),
    (
        "schedule_needs_numbers",
        "trl_dpo",
        {"recipe.lr_scheduler": "warmup_stable_decay"},
        [{"recipe.lr_scheduler": "linear"}],
    ),
    (
        "not_generative",
        "reward_modeling",
        {"evaluate": True, "kind": "rm", "trainer.output_glob": "**/config.json"},
        [{"evaluate": False, "kind": "rm"}],
    ),
    (
        "no_transformers_model",
        "olmo_core_finetune",
        {"evaluate": True, "kind": "sft", "trainer.output_glob": "step*"},
        [{"evaluate": True, "kind": "sft", "trainer.output_glob": "**/config.json"}],
    ),
    ("bins_change_the_batch", "trl_sft", {"recipe.packing": "bins"}, [{"recipe.packing": "none"}]),
    (
        "push_takes_checkpoints",
        "dpo_tune_cache",
        {"trainer.push_takes_checkpoints": True, "hub.push": "a/b", "recipe.checkpoint_steps": 5},
        [{"trainer.push_takes_checkpoints": True, "hub.push": None, "recipe.checkpoint_steps": 5}],
    ),
    (
        "server_gpus_unused",
        "trl_grpo",
        {"recipe.server_gpus": 1, "recipe.generation": "vllm_colocate"},
        [
            {"recipe.generation": "vllm_colocate"},
            {"recipe.server_gpus": 1, "recipe.generation": "vllm_server"},
        ],
    ),
    (
        "quantized_liger",
        "finetune",
        {"recipe.lora.rank": 8, "recipe.lora.quantize": "nf4", "recipe.liger": True},
        [
            {"recipe.lora.rank": 8, "recipe.lora.quantize": "none", "recipe.liger": True},
            {"recipe.lora.rank": None, "recipe.lora.quantize": "nf4", "recipe.liger": True},
        ],
    ),
    (
        "quantized_parallel",
        "finetune",
        {"recipe.lora.rank": 8, "recipe.lora.quantize": "nf4", "device": "cpu"},
        [{"recipe.lora.rank": 8, "recipe.lora.quantize": "nf4", "device": "cuda"}],
    ),
    (
        "quantized_parallel",
        "dpo_tune_cache",
        {"recipe.lora.rank": 8, "recipe.lora.quantize": "nf4", "parallel_zero": 2},
        [
            {"recipe.lora.rank": 8, "recipe.lora.quantize": "nf4", "parallel_zero": 0},
            {"recipe.lora.rank": 8, "recipe.lora.quantize": "none", "parallel_zero": 2},
        ],
    ),
    (
        "quantized_parallel",
        "trl_sft",
        {"recipe.lora.rank": 8, "recipe.lora.quantize": "nf4", "parallel_zero": 3},
        [{"recipe.lora.rank": 8, "recipe.lora.quantize": "nf4", "parallel_zero": 2}],
    ),
    (
        "missing_rlvr_key",
        "trl_grpo",
        {"kind": "rlvr", "recipe.samples_per_prompt": None},
        [
            {"kind": "rlvr", "recipe.samples_per_prompt": 4},
            {"kind": "sft", "recipe.samples_per_prompt": None},
        ],
    ),
    (
        "tracking_unsupported",
        "reward_modeling",
        {"tracking": "wandb", "cache_only": False},
        [
            {"tracking": "wandb", "cache_only": False, "trainer.tracking.wandb": {"a": 1}},
            {"tracking": "wandb", "cache_only": True},
            {"tracking": "tensorboard", "cache_only": False},
        ],
    ),
    (
        "tracking_unsupported",
        "dpo",
        {
            "tracking": "wandb_offline",
            "cache_only": False,
            "trainer.tracking.wandb": {"with_tracking": True},
        },
        [
            {
                "tracking": "wandb",
                "cache_only": False,
                "trainer.tracking.wandb": {"with_tracking": True},
            }
        ],
    ),
    (
        "push_unsupported",
        "olmo_core_finetune",
        {"cache_only": False, "hub.push": "me/model", "trainer.push": {}},
        [
            {"cache_only": False, "hub.push": None, "trainer.push": {}},
            {"cache_only": False, "hub.push": "me/model", "trainer.push": {"push_to_hub": True}},
        ],
    ),
    (
        "bad_hub_name",
        "trl_sft",
        {"cache_only": False, "hub.push": "me/a..b", "trainer.push": {"push_to_hub": True}},
        [
            {"cache_only": False, "hub.push": "me/a.b", "trainer.push": {"push_to_hub": True}},
            {"cache_only": False, "hub.push": "me", "trainer.push": {}},
        ],
    ),
    (
        "lora_checkpointing",
        "dpo_tune_cache",
        {
            "recipe.lora.rank": 8,
            "recipe.lora.quantize": "none",
            "recipe.gradient_checkpointing": True,
        },
        [
            {
                "recipe.lora.rank": 8,
                "recipe.lora.quantize": "nf4",
                "recipe.gradient_checkpointing": True,
            }
        ],
    ),
    (
        "balanced_sequence_parallel",
        "dpo_tune_cache",
        {"sequence_parallel_size": 2, "recipe.balanced": True},
        [{"sequence_parallel_size": 1, "recipe.balanced": True}, {"recipe.balanced": True}],
    ),
    (
        "balanced_sequence_parallel",
        "dpo_tune_cache",
        {
            "sequence_parallel_size": 2,
            "recipe.balanced": False,
            "recipe.loss_averaging": "sum",
        },
        [
            {
                "sequence_parallel_size": 2,
                "recipe.balanced": False,
                "recipe.loss_averaging": None,
            }
        ],
    ),
    (
        "weighted_auxiliary_loss",
        "finetune",
        {"load_balancing_loss": True, "recipe.loss_averaging": "tokens"},
        [{"load_balancing_loss": True, "recipe.loss_averaging": "micro_batch_means"}],
    ),
    (
        "packing_needs_flash",
        "dpo",
        {"attn_implementation": "torch", "packing": True},
        [{"attn_implementation": "torch"}, {"attn_implementation": "flash_2", "packing": True}],
    ),
    ("packing_needs_flash", "olmo_core_finetune", {"attn_implementation": "torch"}, [{}]),
    (
        "packing_needs_concatenation",
        "dpo",
        {"concatenated_forward": False, "packing": True},
        [{"concatenated_forward": False}, {"packing": True}],
    ),
    (
        "checkpointing_needs_compile",
        "dpo",
        {"activation_memory_budget": 0.5, "compile_model": False},
        [
            {"activation_memory_budget": 1.0, "compile_model": False},
            {"activation_memory_budget": 0.5},
            {
                "activation_memory_budget": 0.5,
                "compile_model": False,
                "activation_checkpointing_mode": "selected_modules",
            },
        ],
    ),
    (
        "context_parallel_rows",
        "olmo_core_finetune",
        {"cp_degree": 2, "recipe.per_device_batch_size": 2},
        [{"cp_degree": 2}, {"cp_degree": 1, "recipe.per_device_batch_size": 2}],
    ),
    (
        "ulysses_rope_scaling",
        "olmo_core_finetune",
        {"cp_strategy": "ulysses", "cp_degree": 2, "rope_scaling_factor": 8},
        [
            {"cp_strategy": "ulysses", "cp_degree": 2},
            {"cp_strategy": "llama3", "cp_degree": 2, "rope_scaling_factor": 8},
            {"cp_strategy": "ulysses", "rope_scaling_factor": 8},
        ],
    ),
    (
        "budget_at_long_rows",
        "olmo_core_finetune",
        {"activation_memory_budget": 0.5, "recipe.max_seq_length": 32768},
        [
            {"activation_memory_budget": 0.5, "recipe.max_seq_length": 16384},
            {"activation_memory_budget": 0.5, "recipe.max_seq_length": 32768, "cp_degree": 2},
            {
                "activation_memory_budget": 0.5,
                "recipe.max_seq_length": 32768,
                "activation_checkpointing_mode": "selected_modules",
            },
        ],
    ),
    (
        "liger_dpo_loss",
        "trl_dpo",
        {
            "liger_kernel_config": {"fused_linear_cross_entropy": True},
            "use_liger_kernel": True,
            "precompute_ref_log_probs": True,
        },
        [
            {
                "liger_kernel_config": {"fused_linear_cross_entropy": False, "rope": True},
                "use_liger_kernel": True,
            }
        ],
    ),
    ("high_learning_rate", "trl_sft", {"learning_rate": 1.0}, [{"learning_rate": 1e-5}]),
    (
        "liger_kto_loss",
        "trl_kto",
        {"liger_kernel_config": {"fused_linear_cross_entropy": True}, "use_liger_kernel": True},
        [{"liger_kernel_config": {"rope": True}, "use_liger_kernel": True}],
    ),
    (
        "kto_batch_of_one",
        "trl_kto",
        {"per_device_train_batch_size": 1},
        [
            {"per_device_train_batch_size": 2},
            {"per_device_train_batch_size": 1, "loss_type": "apo_zero_unpaired"},
        ],
    ),
    (
        "kto_order",
        "trl_kto",
        {"train_sampling_strategy": "random"},
        [
            {"train_sampling_strategy": "sequential"},
            {"train_sampling_strategy": "random", "loss_type": "apo_zero_unpaired"},
        ],
    ),
    (
        "kto_pairs",
        "trl_kto",
        {"dataset_num_proc": 4},
        [{"dataset_num_proc": 1}, {"dataset_num_proc": 4, "loss_type": "apo_zero_unpaired"}],
    ),
    (
        "kto_weights",
        "trl_kto",
        {"desirable_weight": 0.0, "undesirable_weight": 0},
        [{"desirable_weight": 0.0}, {"desirable_weight": 0.0, "undesirable_weight": 0.5}],
    ),
    (
        "synced_reference",
        "trl_kto",
        {"sync_ref_model": True, "precompute_ref_log_probs": True},
        [{"sync_ref_model": True}, {"sync_ref_model": False, "precompute_ref_log_probs": True}],
    ),
    (
        "synced_reference",
        "trl_kto",
        {"sync_ref_model": True, "recipe.lora.rank": 8},
        [{"sync_ref_model": True, "recipe.lora.rank": None}],
    ),
    (
        "packing_flag",
        "trl_sft",
        {"packing": True, "recipe.packing": "none"},
        [
            {"packing": False, "recipe.packing": "none"},
            {"packing": True, "recipe.packing": "bins"},
        ],
    ),
    ("packing_flag", "trl_sft", {"padding_free": True, "recipe.packing": "none"}, [{}]),
    ("packing_flag", "finetune", {"packing": True, "recipe.packing": "none"}, [{}]),
    (
        "optimizer_needs_qlora",
        "finetune",
        {"recipe.optimizer": "paged_adamw_8bit", "recipe.lora.quantize": "none"},
        [
            {"recipe.optimizer": "paged_adamw_8bit", "recipe.lora.quantize": "nf4"},
            {"recipe.optimizer": "adamw", "recipe.lora.quantize": "none"},
        ],
    ),
    (
        "optimizer_of_qlora",
        "dpo_tune_cache",
        {"recipe.optimizer": "adamw", "recipe.lora.quantize": "nf4"},
        [{"recipe.optimizer": "adamw", "recipe.lora.quantize": "none"}],
    ),
    (
        "lora_init_splits_weights",
        "trl_sft",
        {"recipe.lora.rank": 8, "recipe.lora.init": "pissa", "recipe.lora.quantize": "nf4"},
        [{"recipe.lora.rank": 8, "recipe.lora.init": "pissa", "recipe.lora.quantize": "none"}],
    ),
    (
        "lora_of_parameters",
        "trl_sft",
        {
            "recipe.lora.rank": 8,
            "recipe.lora.target_parameters": ["a"],
            "recipe.lora.dropout": 0.1,
        },
        [{"recipe.lora.rank": 8, "recipe.lora.target_parameters": ["a"]}],
    ),
]
WITH_VLLM = {"recipe.generation": "vllm_colocate"}
for flag, cutting, whole in (("top_p", 0.9, 1.0), ("top_k", 5, 0), ("min_p", 0.1, None)):
    kept = {"vllm_importance_sampling_correction": False, flag: cutting}
    PLANS.append(
        ("vllm_correction", "trl_grpo", {**WITH_VLLM, flag: cutting}, [{flag: cutting}, kept])
    )
    PLANS[-1][3].append({**WITH_VLLM, flag: whole})


@pytest.mark.parametrize(("id", "trainer", "applies", "silent"), PLANS)
def test_each_row_of_plans(id: str, trainer: str, applies: Values, silent: list[Values]) -> None:
    def ids(values: Values) -> list[str]:
        family = "trl" if trainer in TRL else "open_instruct"
        facts = WrittenFacts(values, trainer=trainer, family=family)
        return [finding.id for finding in apply_rules(facts, rules_for(facts))]

    assert ids(applies) == [id]
    assert [values for values in silent if id in ids(values)] == []


@pytest.mark.parametrize(
    ("id", "values"),
    [
        (
            "flag_over_recipe",
            {"save_only_model": True, "save_strategy": "steps", "recipe.checkpoint_steps": 5},
        ),
        ("flag_over_recipe", {"ignore_data_skip": True, "recipe.checkpoint_steps": 5}),
        ("flag_over_recipe", {"eval_strategy": "no", "data.validation": 0.1}),
        ("flag_over_recipe", {"push_to_hub": False, "hub.push": "me/model"}),
        ("ignored_flag", {"do_eval": True}),
        ("ignored_flag", {"label_smoothing_factor": 0.1}),
        ("ineffective_flag", {"liger_kernel_config": {"rope": True}}),
        ("ineffective_flag", {"ref_model_sync_steps": 5}),
        ("ineffective_flag", {"precompute_ref_batch_size": 5}),
        ("flash_needs_gpu", {"recipe.attention": "flash_2", "device": "cpu"}),
    ],
)
def test_a_trainer_of_the_users_own_has_the_rules_of_its_family(id: str, values: Values) -> None:
    facts = WrittenFacts(values, trainer="trl_own", family="trl")
    assert [finding.id for finding in apply_rules(facts, rules_for(facts))] == [id]


def test_no_row_lists_the_trainers_of_a_family() -> None:
    """A new one would have to be added to each: the row names the family."""
    listed = [rule.id for rule in table() if len(set(TRL) & set(rule.trainers)) > 1]
    assert listed == []


def test_every_row_has_a_case() -> None:
    assert {case[0] for case in (*CASES, *PLANS)} == {rule.id for rule in table()}


def test_every_word_of_a_row_is_one_that_the_head_explains() -> None:
    for rule in table():
        assert rule.only in (None, *Place), rule.id
        used = {condition for conditions in rule.when.values() for condition in conditions}
        assert used <= CONDITIONS.keys(), rule.id


def test_a_row_on_what_a_command_does_not_have_is_of_plan_alone() -> None:
    of_plan = {rule.id for rule in table() if rule.places == (Place.plan,)}
    assert {"liger_needs_gpu", "context_parallel_rows", "flag_over_recipe"} <= of_plan
    for rule in table():
        names = {name for name in rule.when if not is_flag(name)} - {"trainer", "family"}
        assert not names or rule.places == (Place.plan,), (rule.id, names)
    flags = {"cp_degree": 2, "recipe.per_device_batch_size": 2}
    for place, ids in ((Place.plan, ["context_parallel_rows"]), (Place.lint, [])):
        facts = WrittenFacts(flags, place, trainer="olmo_core_finetune")
        assert [finding.id for finding in apply_rules(facts, rules_for(facts))] == ids


def test_the_flags_of_every_row_exist() -> None:
    """The row's flag in each trainer that it names, and in one of a family; others in one."""
    schemas = locked_checker().schemas
    fields = {name: schemas.fields(TrainerScript(name)).keys() for name in ENTRIES}
    families = {"open_instruct": OPEN_INSTRUCT, "trl": TRL}
    for rule in table():
        trainers = {name: families.get(name, [name]) for name in rule.trainers or families}
        everywhere = {
            flag for names in trainers.values() for name in names for flag in fields[name]
        }
        named = {name for name in (rule.flag, *rule.when, *rule.needs) if name and is_flag(name)}
        assert named <= everywhere, (rule.id, named - everywhere)
        for name in rule.trainers:
            having = [each for each in trainers[name] if rule.flag in fields[each]]
            assert rule.flag is None or having, (rule.id, rule.flag, name)


def test_a_shell_variable_decides_nothing() -> None:
    assert kinds({"with_tracking": True}, is_complete=False) == []
    assert kinds({"use_qlora": True}, is_complete=False) == []
    assert kinds({"chat_template_name": UNKNOWN}) == []
    assert kinds({"chat_template_name": "tulo"}, names={}) == [], (
        "without a checkout nothing is known"
    )
