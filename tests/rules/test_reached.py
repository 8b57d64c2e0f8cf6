"""Each row of the table of rules is printed by a real plan of each trainer that the row names.

A row alone does not show that: a default of the trainer's, the table of recipe keys or a rule in
code may refuse the settings first, or keep the row's condition from ever being true.
"""

from __future__ import annotations

import re
from itertools import groupby

import pytest

from launch.errors import UserError
from launch.rules.facts import Place
from launch.rules.table import Rule, table
from launch.upstream.trainers import (
    OLMO_CORE_DPO,
    OLMO_CORE_SFT,
    OPEN_INSTRUCT,
    TRL,
    trainer_files,
)
from launch.worker.finding import Finding
from tests.conftest import planned

STAGES = {"sft": "sft", "dpo": "dpo", "kto": "kto", "rm": "rm", "rlvr": "rlvr"}
FAMILIES = {"open_instruct": tuple(OPEN_INSTRUCT), "trl": tuple(TRL)}
DEMO = "stage=demo device=cpu data.build=null data.mix=[{name:a/b}]"
MEANS = "recipe.loss_averaging=micro_batch_means"
NF4 = "recipe.lora.rank=8 recipe.lora.quantize=nf4"
PARAMETERS = "recipe.lora.rank=8 recipe.lora.targets=[q_proj] recipe.lora.target_parameters=[down_proj.weight]"
LIGER_LOSS = "flags.liger_kernel_config={fused_linear_cross_entropy:true} recipe.liger=true"

# A row (its id, and its number among the rows of the id), trainers, and the line that gets it
# printed.
LINES: list[tuple[str, int, str, str]] = [
    (
        "liger_needs_gpu",
        1,
        "finetune dpo_tune_cache trl_sft trl_dpo",
        "device=cpu recipe.liger=true",
    ),
    (
        "flash_needs_gpu",
        1,
        "dpo_tune_cache trl_sft trl_dpo trl_kto trl_grpo",
        "device=cpu recipe.attention=flash_2",
    ),
    ("epochs_in_schedule", 1, "reward_modeling", "recipe.epochs=2"),
    (
        "schedule_needs_numbers",
        1,
        "trl_sft trl_dpo trl_kto trl_grpo",
        "recipe.lr_scheduler=cosine_with_min_lr",
    ),
    (
        "schedule_needs_numbers",
        2,
        "trl_sft trl_dpo trl_kto trl_grpo",
        "recipe.lr_scheduler=warmup_stable_decay",
    ),
    ("missing_rlvr_key", 1, "trl_grpo", "recipe.prompts_per_step=null recipe.global_batch_size=8"),
    (
        "missing_rlvr_key",
        2,
        "trl_grpo",
        "recipe.samples_per_prompt=null recipe.global_batch_size=8",
    ),
    ("missing_rlvr_key", 3, "trl_grpo", "recipe.response_length=null"),
    ("missing_rlvr_key", 4, "trl_grpo", "recipe.verifier=null"),
    ("tracking_unsupported", 1, "trl_sft", "tracking=wandb ~trainer.tracking.wandb"),
    ("tracking_unsupported", 2, "finetune dpo", "tracking=mlflow"),
    ("tracking_unsupported", 3, "dpo olmo_core_finetune", "tracking=wandb_offline"),
    ("packing_flag", 1, "trl_sft dpo", "flags.packing=true recipe.packing=none"),
    ("packing_flag", 2, "finetune dpo_tune_cache", "flags.packing=true recipe.packing=none"),
    ("packing_flag", 3, "trl_sft", "flags.padding_free=true recipe.packing=none"),
    ("lora_init_splits_weights", 1, "trl_sft", f"{NF4} recipe.lora.init=pissa"),
    (
        "lora_init_splits_weights",
        2,
        "trl_sft",
        "recipe.lora.rank=8 recipe.lora.init=pissa parallel=zero3",
    ),
    (
        "lora_of_parameters",
        1,
        "trl_sft trl_dpo trl_kto trl_grpo",
        f"{PARAMETERS} recipe.lora.dropout=0.1",
    ),
    (
        "lora_of_parameters",
        2,
        "trl_sft trl_dpo trl_kto trl_grpo",
        f"{PARAMETERS} recipe.lora.dora=true",
    ),
    ("optimizer_needs_qlora", 1, "finetune", "recipe.optimizer=paged_adamw_8bit"),
    ("optimizer_of_qlora", 1, "finetune dpo_tune_cache", f"{NF4} recipe.optimizer=adamw"),
    ("push_unsupported", 1, "olmo_core_finetune", "hub.push=me/model"),
    ("bad_hub_name", 1, "finetune dpo trl_sft", "hub.push=me/a..b"),
    ("not_generative", 1, "reward_modeling", "evaluate=true"),
    ("no_transformers_model", 1, "finetune", "evaluate=true trainer.output_glob=step*"),
    ("bins_change_the_batch", 1, "trl_sft dpo olmo_core_finetune", "recipe.packing=bins"),
    ("push_takes_checkpoints", 1, "dpo_tune_cache", "hub.push=me/model recipe.checkpoint_steps=5"),
    ("server_gpus_unused", 1, "trl_grpo", "recipe.server_gpus=1"),
    ("quantized_liger", 1, "finetune dpo_tune_cache", f"{NF4} recipe.liger=true"),
    ("quantized_parallel", 1, "finetune dpo_tune_cache", f"device=cpu {NF4}"),
    ("quantized_parallel", 2, "finetune dpo_tune_cache", f"parallel=zero2 {NF4}"),
    ("quantized_parallel", 3, "trl_sft trl_dpo trl_kto trl_grpo", f"parallel=zero3 {NF4}"),
    (
        "lora_checkpointing",
        1,
        "dpo_tune_cache",
        "recipe.lora.rank=8 recipe.gradient_checkpointing=true",
    ),
    (
        "balanced_sequence_parallel",
        1,
        "finetune dpo_tune_cache",
        "recipe.balanced=true flags.sequence_parallel_size=2",
    ),
    (
        "balanced_sequence_parallel",
        2,
        "finetune",
        "recipe.loss_averaging=tokens flags.sequence_parallel_size=2",
    ),
    (
        "weighted_auxiliary_loss",
        1,
        "finetune",
        "recipe.loss_averaging=tokens flags.load_balancing_loss=true",
    ),
    ("packing_needs_flash", 1, "olmo_core_finetune", "recipe.packing=bins recipe.attention=sdpa"),
    ("packing_needs_flash", 2, "dpo", "recipe.packing=bins recipe.attention=sdpa"),
    (
        "packing_needs_concatenation",
        1,
        "dpo",
        "recipe.packing=bins flags.concatenated_forward=false",
    ),
    (
        "checkpointing_needs_compile",
        1,
        "dpo olmo_core_finetune",
        "recipe.packing=bins recipe.gradient_checkpointing=true flags.compile_model=false",
    ),
    (
        "context_parallel_rows",
        1,
        "olmo_core_finetune",
        "recipe.packing=bins flags.cp_degree=2 recipe.per_device_batch_size=2",
    ),
    (
        "ulysses_rope_scaling",
        1,
        "olmo_core_finetune",
        "recipe.packing=bins flags.cp_strategy=ulysses flags.cp_degree=2 flags.rope_scaling_factor=8.0",
    ),
    (
        "budget_at_long_rows",
        1,
        "olmo_core_finetune",
        "model=olmo3_7b recipe.packing=bins recipe.max_seq_length=32768 recipe.gradient_checkpointing=true",
    ),
    ("vllm_correction", 1, "trl_grpo", "recipe.generation=vllm_colocate flags.top_p=0.9"),
    ("vllm_correction", 2, "trl_grpo", "recipe.generation=vllm_colocate flags.top_k=5"),
    ("vllm_correction", 3, "trl_grpo", "recipe.generation=vllm_colocate flags.min_p=0.1"),
    ("liger_dpo_loss", 1, "trl_dpo", LIGER_LOSS),
    ("liger_dpo_loss", 2, "trl_dpo", f"{LIGER_LOSS} flags.precompute_ref_log_probs=true"),
    ("liger_kto_loss", 1, "trl_kto", LIGER_LOSS),
    ("kto_batch_of_one", 1, "trl_kto", "recipe.per_device_batch_size=1"),
    ("kto_order", 1, "trl_kto", "flags.train_sampling_strategy=random"),
    ("ignored_flag", 18, "trl_sft trl_kto trl_grpo", "flags.do_train=true"),
    ("ignored_flag", 19, "trl_dpo trl_kto trl_grpo", "flags.label_smoothing_factor=0.1"),
    ("kto_pairs", 1, "trl_kto", "flags.dataset_num_proc=4"),
    ("kto_weights", 1, "trl_kto", "recipe.desirable_weight=0 recipe.undesirable_weight=0"),
    (
        "synced_reference",
        1,
        "trl_kto",
        "flags.sync_ref_model=true flags.precompute_ref_log_probs=true",
    ),
    ("synced_reference", 2, "trl_kto", "flags.sync_ref_model=true recipe.lora.rank=8"),
    ("high_learning_rate", 1, "finetune dpo reward_modeling trl_sft", "recipe.learning_rate=0.5"),
    ("refused_value", 1, "finetune", f"{MEANS} flags.sequence_parallel_size=2"),
    (
        "flag_over_recipe",
        1,
        "trl_sft trl_dpo trl_kto trl_grpo",
        "recipe.checkpoint_steps=5 flags.save_only_model=true",
    ),
    (
        "flag_over_recipe",
        2,
        "trl_sft trl_dpo trl_kto trl_grpo",
        "recipe.checkpoint_steps=5 flags.ignore_data_skip=true",
    ),
    (
        "flag_over_recipe",
        3,
        "trl_sft trl_dpo trl_kto",
        "data.validation=0.1 flags.eval_strategy=no",
    ),
    (
        "flag_over_recipe",
        4,
        "trl_sft trl_dpo trl_kto trl_grpo",
        "hub.push=me/model flags.push_to_hub=false",
    ),
    (
        "flag_over_recipe",
        5,
        "trl_sft",
        "recipe.loss_averaging=tokens flags.average_tokens_across_devices=false",
    ),
    (
        "flag_over_recipe",
        6,
        "trl_sft",
        f"{DEMO} data.train_on=last flags.assistant_only_loss=false",
    ),
    (
        "flag_over_recipe",
        7,
        "trl_sft",
        f"{DEMO} data.format=text recipe.packing=bins flags.assistant_only_loss=true",
    ),
    (
        "flag_over_recipe",
        8,
        "finetune",
        "data.train_on=last flags.dataset_transform_fn=[sft_tulu_tokenize_and_truncate_v1]",
    ),
    (
        "flag_over_recipe",
        9,
        "olmo_core_finetune",
        "recipe.packing=bins data.train_on=last flags.transform_fn=[sft_tulu_tokenize_and_truncate_v1]",
    ),
    (
        "liger_ignored",
        1,
        "finetune dpo_tune_cache",
        "flags.use_liger_kernel=true flags.use_qlora=true flags.use_lora=true",
    ),
    ("qlora_without_lora", 1, "finetune dpo_tune_cache", "flags.use_qlora=true"),
    ("optimizer_ignored", 1, "finetune dpo_tune_cache", "flags.use_8bit_optimizer=true"),
    (
        "packing_with_sequence_parallel",
        1,
        "finetune",
        f"allow=[refused_value] {MEANS} recipe.packing=flatten flags.sequence_parallel_size=2",
    ),
]


def rows() -> dict[tuple[str, int], list[Rule]]:
    """Return the rules of each row, by its id and its number among the rows of the id."""
    found: dict[tuple[str, int], list[Rule]] = {}
    numbers: dict[str, int] = {}
    for _, rules in groupby(table(), key=lambda rule: rule.row):
        of_row = list(rules)
        id = of_row[0].id
        numbers[id] = numbers.get(id, 0) + 1
        found[id, numbers[id]] = of_row
    return found


ROWS = rows()


def findings_of(trainer: str, line: str) -> tuple[Finding, ...]:
    """Return the problems of a line, or the warnings of its plan."""
    stage = STAGES[str(trainer_files()[trainer]["kind"])]
    words = line.split()
    if not any(word.startswith("stage=") for word in words):
        words.insert(0, f"stage={stage}")
    if "device=cpu" not in words:
        words.append("gpus=8")
    if trainer in (OLMO_CORE_SFT, OLMO_CORE_DPO) and "model=olmo3_7b" not in words:
        words.append("model=olmo2_1b")
    try:
        return planned(f"trainer={trainer}", *words).warnings
    except UserError as error:
        return error.problems


def is_of_row(finding: Finding, rules: list[Rule]) -> bool:
    """Whether a finding has the id and the message of a row."""
    for rule in rules:
        text = rule.text_for(Place.plan).replace("{flag}", str(rule.flag))
        parts = re.split(r"\{[a-z_][\w.]*\}", text)
        pattern = ".*".join(map(re.escape, parts))
        if finding.id == rule.id and re.fullmatch(pattern, finding.message):
            return True
    return False


def trainers_of(rule: Rule) -> set[str]:
    """Return the trainers that a row names, those of a family one by one."""
    names: set[str] = set()
    for name in rule.trainers:
        names.update(FAMILIES.get(name, (name,)))
    return names


def unshown(rule: Rule, shown: set[str]) -> list[str]:
    """Return what a row names and no line shows; one trainer of a family shows the family."""
    return [name for name in rule.trainers if shown.isdisjoint(FAMILIES.get(name, (name,)))]


CASES = [
    pytest.param(id, number, trainer, line, id=f"{id}-{number}-{trainer}")
    for id, number, trainers, line in LINES
    for trainer in trainers.split()
]


@pytest.mark.parametrize(("id", "number", "trainer", "line"), CASES)
def test_a_row_is_printed_by_a_plan(id: str, number: int, trainer: str, line: str) -> None:
    findings = findings_of(trainer, line)
    assert any(is_of_row(finding, ROWS[id, number]) for finding in findings), findings


def depends_on_settings(rule: Rule) -> bool:
    """Whether a row depends on more than a flag that the user sets and its value."""
    others = [name for name in rule.when if name not in (rule.flag, "trainer")]
    return rule.flag is None or bool(others) or rule.undoes is not None


def test_every_row_of_plans_has_a_line_for_each_trainer_that_it_names() -> None:
    shown: dict[tuple[str, int], set[str]] = {}
    for id, number, trainers, _ in LINES:
        shown.setdefault((id, number), set()).update(trainers.split())
    for key, (rule, *_) in ROWS.items():
        if Place.plan in rule.places and depends_on_settings(rule):
            assert shown.get(key), key
            assert not unshown(rule, shown[key]), key


def test_no_row_is_about_a_flag_that_launch_computes() -> None:
    """Such a flag is refused as owned_flag, before a row that waits for the user's is asked."""
    for rule in table():
        is_of_user = rule.flag is not None and rule.when.get(rule.flag, {}).get("from") == "user"
        if not is_of_user or Place.plan not in rule.places:
            continue
        for trainer in trainers_of(rule):
            computed = trainer_files()[trainer]["launch"].values()
            assert rule.flag not in computed, (rule.id, rule.flag, trainer)
