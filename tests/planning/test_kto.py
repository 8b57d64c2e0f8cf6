"""Plans of KTO: what the stages become, and the labels of the rows against the batch and the weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from launch.config.schema import Mode
from launch.errors import UserError
from launch.execution.prepare import prepare_inputs
from launch.planning.data import describe_data
from launch.planning.estimate.memory import estimate_memory
from launch.planning.estimate.out_of_memory import find_remedy
from launch.planning.estimate.planned_setting import planned_setting
from launch.planning.expectations import requested_settings
from launch.planning.plan import Plan
from launch.trials.tune.space import Candidate, SplitWeighting, compare_loss
from tests.conftest import machine_in, planned, problem_ids, problems
from tests.data.files import write_lines

DEMO = ("stage=demo_kto", "data.mix=[{name: ./rows.jsonl}]")


def write_rows(folder: Path, good: int, bad: int) -> None:
    rows = [
        {"prompt": f"{number}?", "completion": "Yes", "label": number < good}
        for number in range(good + bad)
    ]
    write_lines(folder / "rows.jsonl", rows)


@pytest.mark.parametrize(
    ("line", "flags"),
    [
        (
            ("stage=kto", "gpus=8"),
            {
                "per_device_train_batch_size": 4,
                "gradient_accumulation_steps": 4,
                "learning_rate": 5e-7,
                "beta": 0.1,
                "loss_type": "kto",
                "max_length": 1024,
                "gradient_checkpointing": True,
            },
        ),
        (("stage=lora_kto", "gpus=1"), {"use_peft": True, "lora_r": 16, "lora_alpha": 16}),
        (("stage=demo_kto",), {"use_cpu": True, "seed": 0, "max_steps": 25}),
        (
            ("stage=kto", "gpus=1", "recipe.undesirable_weight=1.5", "recipe.desirable_weight=0.5"),
            {"undesirable_weight": 1.5, "desirable_weight": 0.5},
        ),
        (
            ("stage=kto", "gpus=1", "recipe.loss=apo_zero_unpaired", "data.validation=0.1"),
            {"loss_type": "apo_zero_unpaired", "eval_strategy": "steps"},
        ),
    ],
)
def test_a_stage_is_these_flags(line: tuple[str, ...], flags: dict[str, object]) -> None:
    plan = planned(*line)
    assert plan.trainer == "trl_kto"
    assert {name: plan.flags[name].value for name in flags} == flags


def test_the_weights_left_open_are_no_flags_and_those_set_are_proven() -> None:
    plan = planned("stage=kto", "gpus=1")
    assert not {"desirable_weight", "undesirable_weight"} & plan.flags.keys()
    plan = planned("stage=kto", "gpus=1", "recipe.undesirable_weight=1.5")
    requested = requested_settings(plan.config, plan.parallel)
    assert requested["undesirable_weight"] == "1.5" and "desirable_weight" not in requested
    assert (requested["beta"], requested["loss"]) == ("0.1", "kto")
    assert requested["global_batch"] == "128 samples"


@pytest.mark.parametrize(
    ("words", "id"),
    [
        (("stage=kto", "recipe.per_device_batch_size=1"), "kto_batch_of_one"),
        (("stage=kto", "flags.train_sampling_strategy=random"), "kto_order"),
        (("stage=lora_kto", "flags.sync_ref_model=true"), "synced_reference"),
        (("stage=kto", "data=demo_preferences"), "kind_mismatch"),
        (("stage=dpo", "data=demo_labels"), "kind_mismatch"),
        (("stage=dpo", "recipe.desirable_weight=2"), "unsupported_recipe"),
        (("stage=kto", "recipe.packing=flatten"), "unsupported_recipe"),
        (("stage=kto", "data.train_on=last"), "learning_unsupported"),
    ],
)
def test_what_kto_cannot_do_is_one_sentence(words: tuple[str, ...], id: str) -> None:
    [problem] = problems(*words, "gpus=1")
    assert problem.id == id


def test_a_batch_of_one_is_enough_without_a_kl_term() -> None:
    words = ("stage=kto", "gpus=1", "recipe.per_device_batch_size=1")
    assert planned(*words, "recipe.loss=apo_zero_unpaired").batch.per_device == 1


@pytest.mark.parametrize(
    ("good", "bad", "words", "ids"),
    [
        (64, 64, (), []),
        (70, 64, (), []),
        (96, 32, (), ["label_weights"]),
        (96, 32, ("recipe.undesirable_weight=2.6",), []),
        (32, 96, ("recipe.desirable_weight=3.4",), []),
        (64, 64, ("recipe.undesirable_weight=2",), ["label_weights"]),
        (127, 1, ("recipe.undesirable_weight=110", "recipe.global_batch_size=96"), []),
        (
            127,
            1,
            ("recipe.undesirable_weight=110", "allow=[one_kind_batches]"),
            ["one_kind_batches"],
        ),
    ],
)
def test_the_labels_of_the_rows_are_judged(
    tmp_path: Path, good: int, bad: int, words: tuple[str, ...], ids: list[str]
) -> None:
    write_rows(tmp_path, good, bad)
    plan = planned(*DEMO, *words, machine=machine_in(tmp_path))
    judged = {"label_weights", "one_label", "one_kind_batches"}
    found = [warning.id for warning in plan.warnings if warning.id in judged]
    assert found == ids


@pytest.mark.parametrize(
    ("good", "bad", "words", "id"),
    [
        (128, 0, (), "one_label"),
        (0, 128, (), "one_label"),
        (127, 1, ("recipe.undesirable_weight=110",), "one_kind_batches"),
    ],
)
def test_labels_that_teach_nothing_are_refused(
    tmp_path: Path, good: int, bad: int, words: tuple[str, ...], id: str
) -> None:
    write_rows(tmp_path, good, bad)
    assert problem_ids(*DEMO, *words, machine=machine_in(tmp_path)) == [id]


@pytest.mark.parametrize(
    ("good", "bad", "batch"),
    [(127, 1, 32), (127, 1, 80), (1, 127, 16), (70, 64, 2), (70, 64, 1), (64, 64, 1), (99, 1, 4)],
)
def test_the_batch_that_the_refusal_names_has_both_labels(
    tmp_path: Path, good: int, bad: int, batch: int
) -> None:
    write_rows(tmp_path, good, bad)
    line = (*DEMO, "recipe.loss=apo_zero_unpaired", "recipe.per_device_batch_size=1")
    [problem] = problems(*line, f"recipe.global_batch_size={batch}", machine=machine_in(tmp_path))
    assert problem.id == "one_kind_batches" and problem.cure is not None
    larger = problem.cure.actions[0].sets
    plan = planned(*line, *larger, machine=machine_in(tmp_path))
    assert plan.batch.global_ > batch
    assert "one_kind_batches" not in [found.id for found in plan.warnings]


def test_the_weight_that_the_warning_names_ends_it(tmp_path: Path) -> None:
    write_rows(tmp_path, 150, 20)
    plan = planned(*DEMO, machine=machine_in(tmp_path))
    [warning] = [found for found in plan.warnings if found.id == "label_weights"]
    assert warning.cure is not None
    [override] = warning.cure.actions[0].sets
    followed = planned(*DEMO, override, machine=machine_in(tmp_path))
    assert "label_weights" not in [found.id for found in followed.warnings]
    assert followed.identity != plan.identity


def test_all_rows_are_judged_once_they_are_staged(tmp_path: Path) -> None:
    """The first 200 rows of a sorted file have one label, which says nothing of the others."""
    write_rows(tmp_path, 300, 100)
    plan = planned(*DEMO, machine=machine_in(tmp_path))
    assert "label_weights" not in [found.id for found in plan.warnings]
    said: list[str] = []
    prepare_inputs(_with_local_inputs(plan), said.append)
    assert any("[label_weights]" in line for line in said)
    write_rows(tmp_path, 300, 0)
    plan = planned(*DEMO, machine=machine_in(tmp_path))
    with pytest.raises(UserError) as refused:
        prepare_inputs(_with_local_inputs(plan), said.append)
    assert [problem.id for problem in refused.value.problems] == ["one_label"]


def _with_local_inputs(plan: Plan) -> Plan:
    """Return the plan with a model that need not be built."""
    model = replace(plan.inputs.model, build=None)
    return replace(plan, inputs=replace(plan.inputs, model=model))


def test_the_plan_shows_the_labels_and_what_they_weigh(tmp_path: Path) -> None:
    write_rows(tmp_path, 96, 32)
    plan = planned(*DEMO, "recipe.undesirable_weight=2.6", machine=machine_in(tmp_path))
    assert "96 answers are labelled good, 32 bad" in " ".join(describe_data(plan.inputs, plan.data))
    assert "good ones times 1, bad ones times 2.6" in plan.loss_weighting.text


@pytest.mark.parametrize(
    ("words", "reference", "passes"),
    [
        ((), True, 3),
        (("flags.precompute_ref_log_probs=true",), False, 1),
        (("recipe.lora.rank=16",), False, 3),
        (("recipe.loss=apo_zero_unpaired",), True, 1),
        (("recipe.loss=apo_zero_unpaired", "flags.precompute_ref_log_probs=true"), False, 0),
    ],
)
def test_the_forecast_has_the_reference_and_the_further_passes(
    words: tuple[str, ...], reference: bool, passes: int
) -> None:
    plan = planned("stage=kto", "gpus=8", *words)
    setting = planned_setting(plan, {}, flash=False)
    assert (setting.reference, setting.extra_passes) == (reference, passes)
    assert setting.sequences == plan.batch.per_device


def test_what_would_fit_has_two_rows_in_a_micro_batch() -> None:
    setting = planned_setting(planned("stage=kto", "gpus=8"), {}, flash=False)
    two = replace(setting, micro_batch=2, tokens=setting.tokens // 2)
    peak = estimate_memory(two).total
    remedy = find_remedy(setting, peak, liger=False)
    assert remedy is not None and remedy.setting.micro_batch == 2
    smaller = find_remedy(setting, peak - 0.1, liger=False)
    assert smaller is None or smaller.setting.micro_batch >= 2


def test_another_micro_batch_has_another_kl_term() -> None:
    plan = planned("stage=kto", "gpus=8")
    base = Candidate(4, Mode.zero3)
    assert compare_loss(Candidate(8, Mode.zero3), base, plan) == SplitWeighting.micro_batches
    assert compare_loss(Candidate(4, Mode.zero2), base, plan) == SplitWeighting.same
