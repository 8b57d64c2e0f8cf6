"""open-instruct's own GRPO: planned and checked from its source, and never started."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from launch.check.machine.rule import Host
from launch.check.machine.trainer import interpreter_has_packages, ray_finds_cpus
from launch.errors import UserError
from launch.planning.digest_cache import DigestCache
from launch.planning.rlvr import ray_needs, refuse_untested_trainer
from tests.conftest import fixed_machine, planned, problem
from tests.messages import values_of

TULU = ("stage=rlvr", "trainer=grpo_fast", "nodes=2", "gpus=8")


def test_tulu_3_1_has_the_learners_and_engines_of_upstreams_script() -> None:
    """scripts/train/tulu3/grpo_fast_8b.sh:12-44."""
    plan = planned(*TULU)
    expected = {
        "num_learners_per_node": [6],
        "vllm_num_engines": 10,
        "single_gpu_mode": False,
        "pack_length": 4096,
    }
    expected |= {
        "max_prompt_token_length": 2048,
        "response_length": 2048,
        "beta": 0.01,
        "learning_rate": 5e-7,
    }
    expected |= {
        "num_unique_prompts_rollout": 48,
        "num_samples_per_prompt_rollout": 16,
        "deepspeed_stage": 2,
    }
    expected |= {"push_to_hub": False, "rollouts_save_path": "rollouts", "save_freq": 40}
    assert {name: plan.flags[name].value for name in expected} == expected
    assert plan.flags["total_episodes"].value == 2604 * 768
    assert "--expect" not in plan.command and "PYTORCH_ALLOC_CONF" not in plan.env
    assert ray_needs({name: flag.value for name, flag in plan.flags.items()}).cpus == 73


@pytest.mark.parametrize(("gpus", "learners", "engines"), [(1, 1, 1), (2, 1, 1), (8, 3, 5)])
def test_three_gpus_of_eight_train_and_at_least_one(gpus: int, learners: int, engines: int) -> None:
    flags = planned("stage=rlvr", "trainer=grpo_fast", f"gpus={gpus}").flags
    assert flags["num_learners_per_node"].value == [learners]
    assert flags["vllm_num_engines"].value == engines
    assert flags["single_gpu_mode"].value is (gpus == 1)


@pytest.mark.parametrize("trainer", ["grpo_fast", "grpo"])
@pytest.mark.parametrize(
    ("overrides", "id", "values"),
    [
        (("flags.vllm_num_engines=9",), "rl_gpus", "3, 8, 9"),
        (("flags.pack_length=4095",), "contradiction", "data_loader.py:501"),
        (("flags.async_steps=0",), "contradiction", "data_loader.py:524"),
        (
            ("flags.async_steps=1", "flags.active_sampling=true"),
            "contradiction",
            "data_loader.py:509",
        ),
        (("recipe.lora.rank=8",), "unsupported_recipe", ""),
        (("recipe.verifier=math",), "unsupported_recipe", "ground_truth_utils.py:1188"),
        (("recipe.generation=transformers",), "unsupported_recipe", ""),
        (("parallel=zero3",), "parallel_trainer", ""),
    ],
)
def test_what_upstream_would_refuse_later_is_refused_here(
    trainer: str, overrides: tuple[str, ...], id: str, values: str
) -> None:
    found, message = problem("stage=rlvr", "gpus=8", f"trainer={trainer}", *overrides)
    assert found == id and all(value in message for value in values.split(", "))


@pytest.mark.parametrize(
    ("trainer", "flag"), [("grpo_fast", "use_peft=true"), ("grpo", "save_freq=40")]
)
def test_flags_that_are_read_nowhere_are_named(trainer: str, flag: str) -> None:
    warnings = planned("stage=rlvr", "gpus=8", f"trainer={trainer}", f"flags.{flag}").warnings
    assert [warning.id for warning in warnings] == ["ignored_flag"]


def test_rows_are_counted_against_the_steps_that_are_sampled_ahead(tmp_path: Path) -> None:
    """grpo_fast.py:2247."""
    row = {
        "messages": [{"role": "user", "content": "2+2?"}],
        "ground_truth": "4",
        "dataset": "gsm8k",
    }
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{json.dumps(row)}\n" * 383)
    data = f"data.mix=[{{name: {path}}}]"
    machine = fixed_machine(tmp_path, digest=DigestCache(tmp_path / "digests.json").of)
    with pytest.raises(UserError) as caught:
        planned(*TULU, data, machine=machine)
    (found,) = caught.value.problems
    assert found.id == "data_small_epoch"
    assert {"383", "384", "8", "flags.async_steps"} <= set(values_of(found.message))
    mixer = (
        planned(*TULU, data, "flags.async_steps=7", machine=machine)
        .flags["dataset_mixer_list"]
        .value
    )
    assert mixer == [str(path), "1.0"], "upstream reads the user's own columns"


def test_an_allocation_with_too_few_cpus_is_named_before_ray_waits() -> None:
    plan = planned("stage=rlvr", "trainer=grpo_fast", "gpus=8", "flags.num_learners_per_node=[7]")
    (warning,) = plan.warnings
    assert warning.id == "few_cpus" and {"74", "10", "7", "1"} <= set(values_of(warning.message))
    assert "cluster.cpus_per_rank=10" in str(warning.cure)
    enough = (*TULU[:2], "gpus=8", "flags.num_learners_per_node=[7]", "cluster.cpus_per_rank=10")
    assert planned(*enough).warnings == ()
    here = ray_finds_cpus.judge(planned(*TULU[:2], "gpus=512"), Host({}))
    assert here.severity == "fail" and {"10", "192"} <= set(values_of(here.message))


def test_it_is_not_started_and_tokenising_names_the_missing_package() -> None:
    with pytest.raises(UserError) as caught:
        refuse_untested_trainer(planned(*TULU).config)
    assert caught.value.problems[0].id == "untested_trainer"
    plan = planned(*TULU, "cache_only=true")
    refuse_untested_trainer(plan.config)
    found = interpreter_has_packages.judge(
        replace(plan, command=(sys.executable, *plan.command[1:])), Host({})
    )
    assert found.severity == "fail" and "vllm" in found.message
