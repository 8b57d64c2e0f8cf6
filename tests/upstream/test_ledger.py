"""The ledger: every rename and removal of upstream's history, and the explanations derived from
it.
"""

from __future__ import annotations

from typing import Any

import pytest

from launch.upstream.pin.ledger import LedgerEntry, explain_unknown_flag, load_ledger
from launch.upstream.pin.lock import load_lock, locked_schema
from launch.upstream.trainers import ENTRIES, OPEN_INSTRUCT

# Found by another tool from the same history, entry by entry: (trainers, flag, new name or None,
# pull request).
KNOWN = [
    ("dpo_tune_cache", "dataset_cache_mode", "cache_mode", 1375),
    ("dpo_tune_cache", "dataset_config_hash", "config_hash", 1375),
    ("dpo_tune_cache", "dataset_local_cache_dir", "local_cache_dir", 1375),
    ("dpo_tune_cache", "dataset_mixer_list", "mixer_list", 1375),
    ("dpo_tune_cache", "dataset_mixer_list_splits", "mixer_list_splits", 1375),
    ("dpo_tune_cache", "dataset_skip_cache", "skip_cache", 1375),
    ("dpo_tune_cache", "dataset_target_columns", "target_columns", 1375),
    ("dpo_tune_cache", "dataset_transform_fn", "transform_fn", 1375),
    ("dpo_tune_cache", "dpo_beta", "beta", 1375),
    ("dpo_tune_cache", "dpo_gamma_beta_ratio", "gamma_beta_ratio", 1375),
    ("dpo_tune_cache", "dpo_label_smoothing", "label_smoothing", 1375),
    ("dpo_tune_cache", "dpo_loss_type", "loss_type", 1375),
    ("dpo_tune_cache", "clip_grad_norm", "max_grad_norm", 1357),
    ("dpo_tune_cache", "num_train_epochs", "num_epochs", 1357),
    ("dpo_tune_cache", "wandb_project_name", "wandb_project", 1357),
    ("dpo_tune_cache", "report_to", None, 1353),
    ("dpo_tune_cache dpo", "gradient_checkpointing", "activation_memory_budget", 1444),
    ("finetune dpo_tune_cache dpo", "use_flash_attn", None, 1567),
    ("dpo_tune_cache dpo", "attn_backend", "attn_implementation", 1567),
    ("dpo_tune_cache dpo", "shard_degree", "fsdp_shard_degree", 1467),
    ("dpo_tune_cache dpo", "num_replicas", "fsdp_num_replicas", 1467),
    ("dpo_tune_cache dpo", "pipeline_parallel_degree", None, 1458),
    ("finetune dpo_tune_cache dpo", "add_seed_and_date_to_exp_name", None, 1468),
    ("finetune", "run_name", None, 747),
    ("finetune dpo_tune_cache", "overwrite_output_dir", None, 609),
    ("finetune dpo_tune_cache", "train_file", None, 641),
    ("finetune", "reduce_loss", None, 1024),
    ("dpo_tune_cache", "reduce_loss", None, 1048),
]
# (trainer, kind, flag, old, new, pull request)
KNOWN_VALUES = [
    ("finetune", "default", "chat_template_name", "tulu", "olmo", 765),
    ("finetune", "default", "chat_template_name", "olmo", "tulu", 810),
    ("finetune", "default", "chat_template_name", "tulu", None, 1035),
    ("finetune", "default", "verbose", True, False, 825),
    ("dpo", "default", "logging_steps", None, 1, 1576),
    ("dpo", "default", "num_epochs", 2, 1, 1547),
    ("dpo", "default", "warmup_ratio", 0.03, 0.1, 1547),
    ("dpo", "default", "beta", 0.1, 5.0, 1547),
    ("dpo_tune_cache", "default", "loss_type", "dpo", "dpo_norm", 1547),
    ("dpo_tune_cache", "default", "checkpointing_steps", None, 500, 1391),
    ("dpo", "default", "max_grad_norm", -1, None, 1591),
    ("dpo", "required", "model_name_or_path", False, True, 1671),
    ("dpo_tune_cache", "type", "dpo_loss_type", "str", "DPOLossType", 1374),
    (
        "dpo",
        "choices",
        "attn_implementation",
        ["flash_attention_3", "flash_attention_2", "sdpa", "eager"],
        ["torch", "flash_2", "flash_3", "flash_4", "te"],
        1569,
    ),
]


def entry(trainer: str, kind: str, flag: str, pull_request: int) -> LedgerEntry:
    sought = (kind, flag, pull_request)
    entries = (entry for entry in load_ledger().entries if trainer in entry.trainers)
    (change,) = (
        entry for entry in entries if (entry.kind, entry.flag, entry.pull_request) == sought
    )
    return change


@pytest.mark.parametrize(("trainers", "flag", "renamed_to", "pull_request"), KNOWN)
def test_every_known_rename_and_removal_is_recorded(
    trainers: str, flag: str, renamed_to: str | None, pull_request: int
) -> None:
    for trainer in trainers.split():
        change = entry(trainer, "renamed" if renamed_to else "removed", flag, pull_request)
        assert change.renamed_to == renamed_to


@pytest.mark.parametrize(
    "expected", KNOWN_VALUES, ids=lambda expected: f"{expected[0]}-{expected[2]}-{expected[5]}"
)
def test_known_changes_of_values(expected: tuple[str, str, str, Any, Any, int]) -> None:
    trainer, kind, flag, old, new, pull_request = expected
    change = entry(trainer, kind, flag, pull_request)
    assert (change.old, change.new) == (old, new)


def test_added_flags_are_recorded_too() -> None:
    assert entry("finetune", "added", "sequence_parallel_size", 1539).date == "2026-03-20"
    assert entry("finetune", "added", "use_liger_kernel", 601).date == "2025-03-11"


def test_the_ledger_ends_at_the_pin_and_explains_the_locked_schemas() -> None:
    ledger = load_ledger()
    assert ledger.tip == load_lock().pin
    for trainer in OPEN_INSTRUCT:
        fields = locked_schema(trainer).fields
        there: dict[str, bool] = {}
        for change in (e for e in ledger.entries if trainer in e.trainers):
            if change.kind in ("added", "removed", "renamed"):
                there[change.flag] = change.kind == "added"
            if change.renamed_to:
                there[change.renamed_to] = True
        assert {
            flag for flag, is_there in there.items() if is_there != (flag in fields)
        } == set(), trainer


def test_every_synonym_of_the_hints_is_a_real_flag() -> None:
    locked = {flag for trainer in ENTRIES for flag in locked_schema(trainer).fields}
    once = {entry.flag for entry in load_ledger().entries}
    for group in load_ledger().synonyms:
        assert set(group) - locked - once == set(), group
        assert len(group) > 1


@pytest.mark.parametrize(
    ("trainer", "flag", "use", "sentence"),
    [
        (
            "finetune",
            "use_flash_attn",
            None,
            "'use_flash_attn' was removed upstream in #1567 (2026-03-30): attention is ",
        ),
        ("finetune", "chat_template", "chat_template_name", "finetune uses 'chat_template_name'"),
        (
            "reward_modeling",
            "chat_template",
            "chat_template_name",
            "was renamed to 'chat_template_name' upstream in #619",
        ),
        (
            "finetune",
            "mixer_list",
            "dataset_mixer_list",
            "dpo_tune_cache uses 'mixer_list'; finetune uses",
        ),
        (
            "dpo_tune_cache",
            "dataset_mixer_list",
            "mixer_list",
            "was renamed to 'mixer_list' upstream in #1375",
        ),
        ("dpo", "dataset_mixer_list", "mixer_list", "dpo uses 'mixer_list'"),
        ("finetune", "use_peft", "use_lora", "finetune uses 'use_lora'"),
        ("finetune", "lora_r", "lora_rank", "finetune uses 'lora_rank'"),
        ("finetune", "num_epochs", "num_train_epochs", "finetune uses 'num_train_epochs'"),
        (
            "olmo_core_finetune",
            "num_train_epochs",
            "num_epochs",
            "olmo_core_finetune uses 'num_epochs'",
        ),
        (
            "dpo",
            "gradient_checkpointing",
            "activation_memory_budget",
            "in #1444 (2026-01-31): a number now",
        ),
        (
            "finetune",
            "activation_memory_budget",
            "gradient_checkpointing",
            "finetune uses 'gradient_checkpointing'",
        ),
        ("trl_sft", "max_seq_length", "max_length", "trl_sft uses 'max_length'"),
        ("trl_sft", "use_flash_attn", None, "finetune, dpo_tune_cache and dpo had it before #1567"),
        ("finetune", "beta", None, "not of finetune"),
        (
            "open_instruct/finetune.py",
            "run_name",
            None,
            "was removed upstream in #747",
        ),
    ],
)
def test_explanations(trainer: str, flag: str, use: str | None, sentence: str) -> None:
    explanation = explain_unknown_flag(trainer, flag, locked_schema(trainer).fields)
    assert explanation is not None
    assert explanation.use == use
    assert sentence in explanation.message
    assert explanation.cure == (
        f"write '{use}'"
        if use
        else "delete it"
        if "removed" in sentence or "had it" in sentence
        else None
    )


def test_known_flags_typos_and_other_scripts_have_no_explanation() -> None:
    fields = locked_schema("finetune").fields
    assert explain_unknown_flag("finetune", "learning_rate", fields) is None
    assert explain_unknown_flag("finetune", "learnin_rate", fields) is None
    assert explain_unknown_flag("train.py", "use_flash_attn", fields) is None


def test_explanations_suggest_only_flags_of_the_schema() -> None:
    names = {name for e in load_ledger().entries for name in (e.flag, e.renamed_to) if name}
    for trainer in ENTRIES:
        fields = locked_schema(trainer).fields
        for name in names:
            explanation = explain_unknown_flag(trainer, name, fields)
            assert explanation is None or explanation.use is None or explanation.use in fields


def test_an_older_checkout_gets_the_older_names() -> None:
    old_flags = set(locked_schema("dpo_tune_cache").fields) - {
        "mixer_list",
        "activation_memory_budget",
        "cp_degree",
    }
    old_flags |= {"dataset_mixer_list", "gradient_checkpointing"}
    explanation = explain_unknown_flag("dpo_tune_cache", "mixer_list", old_flags)
    assert explanation is not None
    assert explanation.use == "dataset_mixer_list"
    added = explain_unknown_flag("dpo_tune_cache", "cp_degree", old_flags)
    assert added is not None
    assert "was added upstream in #" in added.message


# Removed flags without which a trainer trains the same: names of runs, trackers, speed, evaluation,
# and settings that never had an effect.
HARMLESS = {
    "saved_tokenizer_type", "run_name", "eval_freq", "num_evals", "report_to",
    "accumulate_inference_batches_timeout", "inference_batch_size",
    "use_fp8_kv_cache", "update_progress_every", "allow_world_padding", "pipeline_parallel_degree",
    "shuffle_eval_dataset", "use_flash_attn", "batched", "num_proc", "load_from_cache_file", "ncols",
    # of a class that reward_modeling shared with other trainers, and did not read itself
    "sft_messages_key", "ground_truths_key", "dataset_source_key", "binary_messages_key", "label",
    "convert_preference_to_binary_dataset", "train_only_on_prompt",
}  # fmt: skip


def test_a_removed_flag_that_changes_the_training_is_never_just_left_out() -> None:
    for change in load_ledger().entries:
        if change.kind != "removed" or change.flag in HARMLESS:
            continue
        for trainer in change.trainers:
            if (change.flag, trainer) == ("reduce_loss", "dpo_tune_cache"):
                continue  # it never had an effect there
            known = locked_schema(trainer).fields
            explained = explain_unknown_flag(trainer, change.flag, known)
            assert explained is not None
            assert explained.use or explained.changes_training, (trainer, change.flag)
            assert explained.cure != "delete it", (trainer, change.flag)


@pytest.mark.parametrize(
    ("flag", "cure"),
    [("train_file", "`launch flags trl_sft` lists its own"), ("use_flash_attn", "delete it")],
)
def test_a_flag_of_open_instruct_has_another_cure_in_trl(flag: str, cure: str) -> None:
    explained = explain_unknown_flag("trl_sft", flag, locked_schema("trl_sft").fields)
    assert explained is not None and explained.cure == cure


def test_what_is_written_in_place_of_a_removed_flag_exists() -> None:
    for flag, trainer, line in (
        ("train_file", "finetune", "write --dataset_mixer_list a.jsonl 1.0"),
        ("train_file", "dpo_tune_cache", "write --mixer_list a.jsonl 1.0"),
        ("cliprange", "grpo_fast", "write --clip_lower a.jsonl --clip_higher a.jsonl"),
    ):
        explained = explain_unknown_flag(trainer, flag, locked_schema(trainer).fields)
        assert explained is not None
        assert explained.replacement("a.jsonl") == line


@pytest.mark.parametrize(
    ("value", "flag"),
    [("", "0.5"), ("--packing", "0.5"), ("True", "0.5"), ("false", "1.0"), ("$GC", None)],
)
def test_a_renamed_flag_gets_the_value_that_the_new_one_takes(value: str, flag: str | None) -> None:
    fields = locked_schema("dpo").fields
    explained = explain_unknown_flag("dpo", "gradient_checkpointing", fields)
    assert explained is not None
    name = "activation_memory_budget"
    assert explained.renamed(value) == (f"{name} {flag}" if flag else name)
