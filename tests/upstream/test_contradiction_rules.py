"""launch's own rules about what `__post_init__` refuses, each broken once: the real class refuses
it too.
"""

from __future__ import annotations

import random
import shlex
from collections.abc import Callable
from dataclasses import replace

import pytest

from launch.upstream.rules.argv import check_argv
from launch.upstream.rules.contradictions import load_rules
from launch.upstream.schema import Field, Schema
from tests.upstream.real_parsers import RealParsers

RULES = {
    f"{known['file']}:{rule['line']}": rule for known in load_rules() for rule in known["rules"]
}
NEEDED = {
    "dpo_tune_cache": ("--model_name_or_path", "m"),
    "grpo_fast": ("--model_name_or_path", "m"),
}
ON_CPU = "--use_cpu true --bf16 false"

# file: trainer, {line: a command line that breaks the rule of that line}
BROKEN = {
    "open_instruct/finetune.py": (
        "finetune",
        {
            333: "--dataset_name d",
            335: "--push_to_hub false",
            338: "--final_lr_ratio 0.1 --lr_scheduler_type cosine",
            340: "--final_lr_ratio 1.5 --lr_scheduler_type linear",
            348: "--additional_model_arguments {",
        },
    ),
    "open_instruct/dpo_utils.py": (
        "dpo_tune_cache",
        {
            344: "--dataset_name d",
            346: "--no_push_to_hub",
            351: "--additional_model_arguments {",
            357: "--zero_stage 4",
            359: "--zero_stage 2 --offload_param true",
        },
    ),
    "open_instruct/data_loader.py": (
        "grpo_fast",
        {
            501: "--pack_length 100",
            504: "--num_samples_per_prompt_rollout 0",
            509: "--active_sampling true --async_steps 1 --filter_zero_std_samples true",
            514: "--active_sampling true --async_steps 2 --filter_zero_std_samples false",
            519: "--num_samples_per_prompt_rollout 1 --filter_zero_std_samples true",
            524: "--async_steps 0",
            526: "--apply_verifiable_reward false --apply_r1_style_format_reward false "
            "--non_stop_penalty false",
            543: "--save_traces true --rollouts_save_path ''",
        },
    ),
    "open_instruct/grpo_utils.py": (
        "grpo_fast",
        {
            247: "--use_vllm_logprobs true --use_rho_correction true",
            252: "--loss_denominator -2",
            256: "--checkpoint_state_dir d --checkpoint_state_freq -1",
            267: "--gs_checkpoint_state_dir d",
            269: "--eval_on_step_0 true --local_eval_every -1",
            274: "--gs_bucket_path d --gs_checkpoint_state_dir gs://d",
            276: "--sequence_parallel_size 2 --deepspeed_stage 2",
            282: "--fsdp_shard_degree 2 --fsdp_num_replicas 2 --num_learners_per_node 3",
            289: "--fsdp_shard_degree 2 --num_learners_per_node 3",
            295: "--fsdp_num_replicas 2 --num_learners_per_node 2 1",
            302: "--gs_bucket_path gs://d",
            319: "--load_ref_policy false --beta 0.1",
            324: "--eval_top_p 0",
            327: "--use_rho_correction true --rho_mask_lower_bound 1.5",
            331: "--use_rho_correction true --rho_mask_upper_bound 0.5",
            333: "--use_rho_correction true --rho_clamp_lower_bound 1",
            337: "--use_rho_correction true --rho_clamp_upper_bound 1",
        },
    ),
    "open_instruct/environments/tools/utils.py": (
        "grpo_fast",
        {
            71: "--max_steps 0",
            84: "--tools a b --tool_call_names a",
            89: "--tools a b --tool_configs {}",
            101: "--tools a --tool_configs {",
        },
    ),
    "trl/trainer/model_config.py": (
        "trl_sft",
        {175: f"--load_in_8bit true --load_in_4bit true {ON_CPU}"},
    ),
    "trl/trainer/dpo_config.py": (
        "trl_dpo",
        {361: f"--loss_type sigmoid hinge --loss_weights 1 {ON_CPU}"},
    ),
    "trl/trainer/grpo_config.py": (
        "trl_grpo",
        {
            1081: f"--log_completions_hub_repo a/b {ON_CPU}",
            1090: f"--auto_find_batch_size true {ON_CPU}",
            1114: f"--generation_batch_size 8 --steps_per_generation 1 {ON_CPU}",
            1138: f"--num_generations 1 {ON_CPU}",
        },
    ),
    "transformers/training_args.py": (
        "trl_sft",
        {
            1727: f"--torch_empty_cache_steps 0 {ON_CPU}",
            1733: f"--logging_steps 0 {ON_CPU}",
            1737: f"--logging_steps 1.5 {ON_CPU}",
            1741: f"--eval_strategy steps --eval_steps 2.5 {ON_CPU}",
            1745: f"--save_steps 1.25 {ON_CPU}",
            1751: f"--load_best_model_at_end true --save_strategy epoch {ON_CPU}",
            1785: "--use_cpu true --bf16 true --fp16 true",
            1788: f"--fp16_full_eval true --bf16_full_eval true {ON_CPU}",
            1792: f"--lr_scheduler_type reduce_lr_on_plateau {ON_CPU}",
            1798: f"--lr_scheduler_type greedy {ON_CPU}",
            1801: f"--warmup_steps -1 {ON_CPU}",
            1804: f"--dataloader_prefetch_factor 2 {ON_CPU}",
        },
    ),
}
# no command line breaks these: the lists of data are empty by default, and not None
NOT_REACHED = ("open_instruct/finetune.py:329", "open_instruct/dpo_utils.py:340")


def test_every_rule_has_an_example() -> None:
    places = {f"{file}:{line}" for file, (_, examples) in BROKEN.items() for line in examples}
    assert places | {*NOT_REACHED} == RULES.keys()


@pytest.mark.parametrize("file", BROKEN, ids=lambda file: file.rpartition("/")[2])
def test_what_breaks_a_rule_is_refused(file: str, schema_of: Callable[[str], Schema]) -> None:
    """With and without upstream's text here the rule is reported once, in its own words."""
    trainer, examples = BROKEN[file]
    schema = schema_of(trainer)
    for line, text in examples.items():
        place = f"{file}:{line}"
        argv = [*shlex.split(text), *NEEDED.get(trainer, ())]
        for known in (schema, replace(schema, sources=())):
            report = check_argv(known, argv)
            texts = [
                problem.message for _, problem in report.problems if f"({place})" in problem.message
            ]
            assert len(texts) == 1, (place, report)
            assert RULES[place]["message"] in texts[0]
            assert report.refused


@pytest.mark.slow
@pytest.mark.parametrize("file", BROKEN, ids=lambda file: file.rpartition("/")[2])
def test_what_breaks_a_rule_is_refused_by_the_real_class_too(
    file: str, real_parsers: RealParsers
) -> None:
    trainer, examples = BROKEN[file]
    for line, text in examples.items():
        argv = [*shlex.split(text), *NEEDED.get(trainer, ())]
        assert real_parsers.query(trainer=trainer, argv=argv)["raised"], f"{file}:{line}"


def draw_argv(schema: Schema, drawn: random.Random) -> list[str]:
    """Return values near what the rules compare, for some of the fields that they name."""
    named = " ".join(rule["if"] for rule in RULES.values())
    fields = [field for field in schema.fields.values() if field.in_parser and field.name in named]
    chosen = drawn.sample(fields, min(len(fields), drawn.randint(1, 6)))
    return [f"--{field.name}={drawn.choice(values_of(field))}" for field in chosen]


def values_of(field: Field) -> list[str]:
    if field.choices:
        return [str(choice) for choice in field.choices]
    numbers = ["-1", "0", "1", "2", "3", "8"]
    kinds = {"bool": ["true", "false"], "int": numbers, "float": [*numbers, "0.5", "1.5", "nan"]}
    return kinds.get(field.kind, ["token", "gs://d", "x", "0.5", "{}", "none", ""])


@pytest.mark.slow
@pytest.mark.parametrize(
    "trainer", ["finetune", "dpo_tune_cache", "trl_sft", "grpo_fast", "trl_dpo", "trl_grpo"]
)
def test_the_rules_refuse_only_what_the_real_class_refuses(
    trainer: str, schema_of: Callable[[str], Schema], real_parsers: RealParsers
) -> None:
    schema = schema_of(trainer)
    drawn = random.Random(0)
    refused = 0
    for _ in range(150):
        argv = [*draw_argv(schema, drawn), *NEEDED.get(trainer, ())]
        if trainer.startswith("trl"):
            argv.append("--use_cpu=true")
        real = real_parsers.query(trainer=trainer, argv=argv)
        for known in (schema, replace(schema, sources=())):
            raised = [
                problem
                for _, problem in check_argv(known, argv).problems
                if problem.id == "contradiction"
            ]
            if raised and real["parse"] is None:
                refused += 1
                assert real["raised"], (argv, raised)
    assert refused > 40
