"""Every trainer with every number of ranks: what it would die of is refused by the plan, and what
works is not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from launch.api.planning import PlannedRun
from launch.commands.plan import describe_plan
from launch.config.schema import Device
from launch.errors import UserError
from launch.planning.build import build_plan
from launch.planning.machine import Machine
from launch.resources import group_options
from launch.upstream.trainers import trainer_files
from tests.conftest import composed, composed_at, fixed_machine, machine_in, planned
from tests.data.files import CHAT, PAIR, write_lines

TRAINERS = {
    "finetune": ("stage=sft",),
    "dpo_tune_cache": ("stage=dpo",),
    "dpo": ("stage=dpo", "trainer=dpo", "model=olmo2_1b"),
    "olmo_core_finetune": (
        "stage=sft",
        "trainer=olmo_core_finetune",
        "model=olmo2_1b",
        "recipe.packing=bins",
    ),
    "reward_modeling": ("stage=rm",),
    "trl_sft": ("stage=sft", "trainer=trl_sft"),
    "trl_dpo": ("stage=dpo", "trainer=trl_dpo"),
}
GPUS: dict[str, dict[str, Any]] = {
    "1": {"gpus": 1},
    "2": {"gpus": 2},
    "2x8": {"nodes": 2, "gpus": 8},
}
CPUS: dict[str, dict[str, Any]] = {
    "cpu1": {"device": Device.cpu},
    "cpu2": {"device": Device.cpu, "processes": 2},
}


def verdict(width: dict[str, Any], *overrides: str) -> str | None:
    """The id of the first problem of a plan at a width; None if it is planned."""
    try:
        build_plan(composed_at(width, *overrides), fixed_machine())
    except UserError as error:
        return error.problems[0].id
    return None


WIDTHS = {**GPUS, **CPUS}
ONE, MANY = ("1", "cpu1"), ("2", "2x8", "cpu2")
# with activation checkpointing by torch.compile, which is off on a CPU
OLMO_CORE = ("dpo", "olmo_core_finetune")
UNSUPPORTED = "unsupported_recipe"


def everywhere(
    problem: str, *trainers: str, widths: tuple[str, ...] = tuple(WIDTHS)
) -> dict[tuple[str, str], str]:
    return {(trainer, width): problem for trainer in trainers or TRAINERS for width in widths}


def without(*trainers: str) -> tuple[str, ...]:
    return tuple(trainer for trainer in TRAINERS if trainer not in trainers)


CPU_OLMO = everywhere("checkpointing_needs_compile", *OLMO_CORE, widths=tuple(CPUS))
ACCELERATE = without(*OLMO_CORE)
PARALLEL_OLMO = everywhere("parallel_trainer", *OLMO_CORE)
NF4 = ("recipe.lora.rank=8", "recipe.lora.quantize=nf4", "recipe.gradient_checkpointing=false")
# overrides -> (trainer, width) -> the problem; what is not listed is planned
CASES: dict[tuple[str, ...], dict[tuple[str, str], str]] = {
    (): CPU_OLMO,
    ("parallel=single",): {
        **everywhere("parallel_width", *ACCELERATE, widths=MANY),
        **PARALLEL_OLMO,
    },
    ("parallel=ddp",): {**everywhere("parallel_width", *ACCELERATE, widths=ONE), **PARALLEL_OLMO},
    **{
        (f"parallel={mode}",): PARALLEL_OLMO
        for mode in ("zero1", "zero2", "zero3", "zero3_offload")
    },
    ("recipe.global_batch_size=7",): {**CPU_OLMO, **everywhere("batch_not_divisible", widths=MANY)},
    ("recipe.liger=true",): {
        **everywhere(UNSUPPORTED, *OLMO_CORE, "reward_modeling"),
        **everywhere("liger_needs_gpu", widths=tuple(CPUS)),
    },
    ("recipe.balanced=true",): everywhere(UNSUPPORTED, *without("finetune", "dpo_tune_cache")),
    ("recipe.loss_averaging=tokens",): everywhere(UNSUPPORTED, *without("finetune", "trl_sft")),
    ("recipe.loss_averaging=sum",): everywhere(UNSUPPORTED, *without("finetune")),
    ("recipe.lr_scheduler=polynomial",): everywhere(UNSUPPORTED, *OLMO_CORE),
    ("recipe.max_steps=5",): {**CPU_OLMO, **everywhere(UNSUPPORTED, "reward_modeling")},
    ("recipe.precision=fp32",): everywhere("unsupported_precision", *without("trl_sft", "trl_dpo")),
    ("recipe.attention=flash_2",): {
        **CPU_OLMO,
        **everywhere("flash_needs_gpu", "dpo_tune_cache", "trl_sft", "trl_dpo", widths=tuple(CPUS)),
        **everywhere(UNSUPPORTED, "finetune", "reward_modeling"),
    },
    ("recipe.early_stop=2",): {
        **everywhere(UNSUPPORTED),
        **everywhere("no_validation", "trl_sft", "trl_dpo"),
    },
    ("recipe.lora.rank=8", "recipe.gradient_checkpointing=false"): everywhere(
        UNSUPPORTED, *OLMO_CORE, "reward_modeling"
    ),
    NF4: {
        **everywhere("quantized_parallel", "finetune", "dpo_tune_cache", widths=("cpu1", "cpu2")),
        **everywhere("quantized_parallel", widths=("2", "2x8")),
        **everywhere(UNSUPPORTED, *OLMO_CORE, "reward_modeling"),
    },
}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("trainer", TRAINERS)
def test_what_a_trainer_would_die_of_is_refused_and_the_rest_is_planned(
    trainer: str, width: str
) -> None:
    verdicts = {case: verdict(WIDTHS[width], *TRAINERS[trainer], *case) for case in CASES}
    assert verdicts == {case: refused.get((trainer, width)) for case, refused in CASES.items()}


@pytest.mark.parametrize("width", ["1", "2"])
@pytest.mark.parametrize(
    ("trainer", "override", "problem"),
    [
        ("finetune", "flags.sequence_parallel_size=2", "balanced_sequence_parallel"),
        ("finetune", "flags.sequence_parallel_size=1", None),
        ("finetune", "flags.checkpointing_steps=abc", "refused_value"),
        ("finetune", "flags.checkpointing_steps=epoch", None),
        ("finetune", "flags.logging_steps=0", "refused_value"),
        ("finetune", "flags.additional_model_arguments=abc", "refused_value"),
        ("dpo_tune_cache", "flags.loss_type=wpo", "refused_value"),
        ("dpo_tune_cache", "flags.loss_type=simpo", None),
        ("dpo", "flags.context_parallel_degree=2", "refused_value"),
        ("dpo", "flags.use_8bit_optimizer=true", "refused_value"),
        ("dpo", "flags.use_8bit_optimizer=false", None),
        ("dpo", "flags.optimizer_type=sgd", "refused_value"),
        ("dpo", "flags.optimizer_type=muon", None),
        ("olmo_core_finetune", "flags.add_bos=false", "olmo_begin_token"),
        ("trl_sft", "flags.auto_find_batch_size=true", "refused_flag"),
    ],
)
def test_flags_that_a_trainer_dies_of(
    trainer: str, override: str, problem: str | None, width: str
) -> None:
    assert verdict(GPUS[width], *TRAINERS[trainer], override) == problem


@pytest.mark.parametrize("model", ["olmo2_1b", "llama3_1_8b"])
def test_open_instruct_gets_the_begin_token_that_it_insists_on(model: str) -> None:
    plan = planned("stage=sft", "gpus=8", f"model={model}")
    assert ("add_bos" in plan.flags) == (model == "olmo2_1b")


def combinations(stages: list[str]) -> list[tuple[str, str]]:
    """Every stage with every shipped trainer of its kind."""
    kinds = {stage: composed(f"stage={stage}").config.stage.kind for stage in stages}
    files = trainer_files().items()
    return [
        (stage, name)
        for stage, kind in kinds.items()
        for name, file in files
        if file.get("kind") == kind
    ]


def first_problem(stage: str, trainer: str, *overrides: str, machine: Machine) -> str | None:
    """The problem of a plan, which is shown where there is none; anything but a refusal is an
    error.
    """
    try:
        plan = planned(f"stage={stage}", f"trainer={trainer}", *overrides, machine=machine)
    except UserError as error:
        [problem, *_] = error.problems
        assert problem.id and problem.message and (problem.where or problem.cure), problem
        return problem.id
    shown = PlannedRun(plan)
    assert describe_plan(shown, {}) and shown.as_json()
    return None


# what somebody may write of each key that a trainer, or the kind of a stage, may lack
PLAUSIBLE: tuple[tuple[str, ...], ...] = (
    ("data.mix=[{name: ./chats.jsonl}]", "data.validation=0.2"),
    ("data.mix=[{name: ./pairs.jsonl}]", "data.validation=./held_out.jsonl"),
    ("data.mix=[{name: owner/name}]", "data.validation=0.1"),
    ("recipe.eval_steps=5", "data.validation=0.2"),
    ("data.build=demo_preferences", "data.columns.prompt=question"),
    ("recipe.max_steps=1", "recipe.warmup_ratio=0", "recipe.lr_scheduler=cosine"),
    ("recipe.lora.rank=8", "recipe.lora.targets=[q_proj]", "recipe.precision=fp32"),
    ("recipe.loss=dpo", "recipe.beta=null", "recipe.prompts_per_step=2", "recipe.verifier=exact"),
    (
        "recipe.packing=bins",
        "recipe.balanced=true",
        "recipe.loss_averaging=tokens",
        "recipe.generation=vllm_server",
    ),
)


@pytest.mark.parametrize("stage", ["sft", "demo_dpo", "rm", "demo_rlvr"])
def test_no_key_of_another_trainer_or_kind_is_a_traceback(tmp_path: Path, stage: str) -> None:
    for name, row in {"chats": CHAT, "pairs": PAIR, "held_out": PAIR}.items():
        write_lines(tmp_path / f"{name}.jsonl", [row] * 200)
    machine = machine_in(tmp_path)
    for stage_name, trainer in combinations([stage]):
        for overrides in PLAUSIBLE:
            first_problem(stage_name, trainer, *overrides, machine=machine)


def test_rows_are_held_out_of_each_stage_or_refused_with_what_works(tmp_path: Path) -> None:
    machine = machine_in(tmp_path)
    stages = [stage for stage in group_options("stage") if not stage.startswith("olmo3_")]
    found = {
        pair: first_problem(*pair, "gpus=1", "data.validation=0.2", machine=machine)
        for pair in combinations(stages)
        if first_problem(*pair, "gpus=1", machine=machine) is None
    }
    evaluating = ("trl_sft", "trl_dpo", "trl_kto")
    works = {pair: id for pair, id in found.items() if pair[1] in evaluating}
    assert works and set(works.values()) == {None}
    assert {id for pair, id in found.items() if pair not in works} == {"validation_unsupported"}
