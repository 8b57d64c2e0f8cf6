"""What a plan tells of its batches once the data's lengths are known."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from launch.api.planning import PlannedRun
from launch.commands.plan import describe_plan
from launch.config.kinds import Kind
from launch.config.recipe_keys import Packing, RecipeConfig
from launch.planning.batch_split import Batch
from launch.planning.batches import UNKNOWN_TRL, forecast_tokens
from launch.planning.lengths import Histogram, Lengths
from launch.planning.plan import Plan
from tests.conftest import fixed_machine, planned

DRAW = random.Random(0)
CHATS = Lengths(
    Kind.sft,
    Histogram.of(min(4096, max(8, int(DRAW.lognormvariate(6, 0.95)))) for _ in range(5000)),
    1_000_000,
)
EIGHT = Batch(128, 8, 2, 8)


def recipe(packing: Packing) -> RecipeConfig:
    return RecipeConfig(packing=packing)


def plan_of(*overrides: str, cwd: Path = Path("/cwd")) -> Plan:
    return planned("stage=sft", "gpus=8", *overrides, machine=fixed_machine(cwd))


def test_flattened_and_padded() -> None:
    flat = forecast_tokens(CHATS, recipe(Packing.flatten), EIGHT)
    assert (flat.samples, flat.padding_share) == (5000, 0.0)
    assert flat.tokens_per_step == pytest.approx(128 * CHATS.tokens.mean)
    assert flat.micro_batch == pytest.approx(8 * CHATS.tokens.mean)
    assert flat.micro_batch is not None and flat.micro_batch_p99 is not None
    assert flat.micro_batch < flat.micro_batch_p99
    assert flat.imbalance_upstream is not None and flat.imbalance_balanced is not None
    assert flat.imbalance_upstream > 1.4
    assert flat.imbalance_balanced < 1.02
    padded = forecast_tokens(CHATS, recipe(Packing.none), EIGHT)
    assert padded.padding_share is not None and 0.5 < padded.padding_share < 0.8
    assert padded == forecast_tokens(CHATS, recipe(Packing.none), EIGHT)  # the same draws


def test_a_rank_that_pads_its_whole_share_together() -> None:
    batch = Batch(128, 1, 16, 8)
    alone = forecast_tokens(CHATS, recipe(Packing.none), batch)
    together = forecast_tokens(
        CHATS, recipe(Packing.none), batch, padded_together=16, balances=False
    )
    assert alone.padding_share == pytest.approx(0.0) and together.padding_share is not None
    assert together.padding_share == pytest.approx(CHATS.expected_padding_share(16))
    assert together.micro_batch == pytest.approx(CHATS.padded_tokens(16) / 16)
    assert alone.imbalance_balanced is not None and together.imbalance_balanced is None


def test_dpo_py_is_such_a_one_and_what_cannot_deal_is_not_told_to(tmp_path: Path) -> None:
    content = {
        "schema_version": 1,
        "kind": "dpo",
        "label_tokens": None,
        "tokens": {"20": 50, "600": 5},
    }
    content |= {
        "chosen": {"10": 50, "300": 5},
        "rejected": {"10": 50, "300": 5},
        "longer": {"10": 50, "300": 5},
    }
    content |= {"pairs": [[10, 10]] * 50 + [[300, 300]] * 5}
    for trainer, deals in (("dpo", False), ("dpo_tune_cache", True)):
        overrides_of_trainer = (
            "stage=dpo",
            "gpus=8",
            f"trainer={trainer}",
            "recipe.per_device_batch_size=1",
        )
        plan = planned(*overrides_of_trainer, machine=fixed_machine(tmp_path))
        assert plan.lengths_file is not None and plan.batch.accumulation > 1
        plan.lengths_file.parent.mkdir(parents=True, exist_ok=True)
        plan.lengths_file.write_text(json.dumps(content), encoding="utf-8")
        forecast = PlannedRun(plan).tokens
        assert forecast is not None and forecast.padding_share is not None
        assert (forecast.padding_share > 0.5) == (trainer == "dpo")
        [line] = [
            line for line in describe_plan(PlannedRun(plan), {}) if line.startswith("balance")
        ]
        assert ("recipe.balanced" in line) == deals


def test_bins_and_a_rank_alone() -> None:
    bins = forecast_tokens(CHATS, recipe(Packing.bins), EIGHT)
    assert (bins.micro_batch, bins.padding_share, bins.imbalance_upstream) == (None, None, None)
    alone = forecast_tokens(CHATS, recipe(Packing.flatten), Batch(16, 8, 2, 1))
    assert alone.imbalance_upstream is None and alone.micro_batch is not None


def test_a_plan_says_what_it_does_not_know(tmp_path: Path) -> None:
    plan = plan_of(cwd=tmp_path)
    assert plan.lengths_file is not None
    [unknown] = [text for name, text in PlannedRun(plan).facts() if name == "lengths"]
    assert unknown.startswith("unknown: `launch run ") and "cache_only=true`" in unknown
    plan.lengths_file.parent.mkdir(parents=True)
    content = {"schema_version": 1, "kind": "sft", "label_tokens": 60, "tokens": {"10": 5, "30": 5}}
    plan.lengths_file.write_text(json.dumps(content), encoding="utf-8")
    # ten samples of a data set of the hub, of which nothing else says how many rows it has
    assert "few_steps" not in {warning.id for warning in plan.warnings}
    assert "few_steps" in {warning.id for warning in plan_of(cwd=tmp_path).warnings}
    lines = describe_plan(PlannedRun(plan), {})
    assert (
        "lengths     10 samples, mean 20, longest 30 tokens; 30% of the tokens carry loss" in lines
    )
    assert any(
        line.startswith("balance     tokens per rank, largest over mean: ") for line in lines
    )


def test_the_file_is_of_what_decides_the_tokens() -> None:
    plain = plan_of()
    for overrides in (
        ["recipe.learning_rate=1e-4"],
        ["recipe.packing=flatten"],
        ["parallel=zero2"],
        ["recipe.seed=3"],
    ):
        other = plan_of(*overrides)
        assert other.identity != plain.identity
        assert other.lengths_file == plain.lengths_file
    for overrides in (
        ["recipe.max_seq_length=1024"],
        ["data.fraction=0.5"],
        ["recipe.chat_template=null"],
    ):
        assert plan_of(*overrides).lengths_file != plain.lengths_file
    assert plan_of("flags.add_bos=true").lengths_file != plain.lengths_file
    assert (
        plan_of("flags.tokenizer_name_or_path=other/tokenizer").lengths_file != plain.lengths_file
    )


def test_trls_run_measures_them_itself() -> None:
    overrides = ("trainer=trl_sft", "data.mix=[{name: some/data}]")
    plan = plan_of(*overrides)
    assert plan.options == (f"lengths={plan.lengths_file}",)
    assert f"lengths     {UNKNOWN_TRL}" in describe_plan(PlannedRun(plan), {})
    assert plan_of(*overrides, "recipe.packing=flatten").lengths_file == plan.lengths_file
    assert plan_of(*overrides, "flags.assistant_only_loss=false").lengths_file != plan.lengths_file
    assert (
        plan_of("trainer=trl_sft", "data.mix=[{name: some/data, share: 0.5}]").lengths_file
        != plan.lengths_file
    )
    dpo = planned("stage=demo_dpo", "trainer=trl_dpo")
    assert dpo.lengths_file is None


def test_the_file_is_no_part_of_the_identity(tmp_path: Path) -> None:
    assert plan_of(cwd=tmp_path).identity == plan_of().identity
    assert plan_of(f"cache={tmp_path}").identity == plan_of().identity
