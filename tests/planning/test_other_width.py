"""Which runs are the same training at another width, and the unfinished one that a plan continues."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from launch.execution.record.attempts import begin_attempt
from launch.planning.build import build_plan, plan_on_this_machine
from launch.planning.plan import Plan
from launch.worker.json_codec import versioned
from tests.conftest import Launch, composed, fixed_machine, planned
from tests.execution.files import trl_checkpoint
from tests.messages import names

TRL = (
    *("stage=demo", "trainer=trl_sft", "recipe.checkpoint_steps=10", "processes=1"),
    "recipe.per_device_batch_size=8",
)
FINETUNE = ("stage=demo", "recipe.checkpoint_steps=10", "recipe.loss_averaging=tokens")
OLMO = ("trainer=olmo_core_finetune", "model=olmo2_1b", "recipe.packing=bins")
OLMO_DPO = ("stage=dpo", "trainer=dpo", "model=olmo2_1b")
PAIRS_AT_8 = "recipe.per_device_batch_size=16"  # the whole global batch in one pass of each rank
DPO_AT_8 = ("stage=dpo", "gpus=8", "trainer=trl_dpo")
VALIDATED = (*TRL, "data.validation=0.1", "recipe.eval_steps=10")
LORA = ("stage=demo_lora", "trainer=trl_sft", "recipe.checkpoint_steps=10")


@pytest.mark.parametrize(
    ("line", "changes", "is_same"),
    [
        (TRL, ("processes=2",), True),
        (TRL, ("processes=4", "recipe.per_device_batch_size=16"), True),
        (TRL, ("processes=1", "recipe.per_device_batch_size=16"), True),
        ((*TRL, "parallel=zero1"), ("processes=2", "parallel=zero2"), True),
        ((*TRL, "parallel=zero3"), ("processes=2",), True),
        ((*FINETUNE, "processes=2"), ("processes=1",), True),
        ((*FINETUNE, "recipe.balanced=true"), ("processes=2",), True),
        (("stage=demo_dpo",), ("processes=2",), True),
        (("stage=demo_dpo", "trainer=trl_dpo"), ("processes=2",), True),
        (("stage=demo_kto", "recipe.loss=apo_zero_unpaired"), ("processes=2",), True),
        (LORA, ("processes=2", "recipe.per_device_batch_size=8"), True),
        ((*TRL, "recipe.optimizer=adafactor"), ("processes=2",), True),
        (("stage=sft", "gpus=8"), ("gpus=4",), True),
        ((*OLMO_DPO, "gpus=8", PAIRS_AT_8), ("gpus=4", "recipe.per_device_batch_size=32"), True),
        (VALIDATED, ("processes=2", "recipe.per_device_batch_size=16"), True),
        (
            (*VALIDATED, "recipe.early_stop=2"),
            ("processes=2", "recipe.per_device_batch_size=16"),
            False,
        ),
        ((*VALIDATED, "recipe.early_stop=2"), ("processes=2",), True),
        (TRL, ("processes=2", "recipe.global_batch_size=128"), False),
        (TRL, ("processes=2", "recipe.learning_rate=1.0e-5"), False),
        (TRL, ("processes=2", "parallel=zero2"), False),
        ((*TRL, "parallel=zero2"), ("processes=2", "parallel=zero3"), False),
        ((*FINETUNE, "processes=2"), ("processes=1", "recipe.loss_averaging=sum"), False),
    ],
)
def test_how_the_ranks_share_the_work_is_no_part_of_the_training(
    line: tuple[str, ...], changes: tuple[str, ...], is_same: bool
) -> None:
    before = planned(*line)
    replaced = {change.split("=")[0] for change in changes}
    kept = (override for override in line if override.split("=")[0] not in replaced)
    after = planned(*kept, *changes)
    assert before.identity != after.identity
    assert before.training_identity is not None
    assert (before.training_identity == after.training_identity) is is_same


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (("stage=demo", "processes=2"), "short micro batch"),
        ((*TRL, "recipe.packing=bins"), "bins"),
        ((*LORA, "parallel=zero2"), "adapter"),
        ((*TRL, "parallel=zero2", "recipe.optimizer=adafactor"), "AdamW"),
        (("stage=dpo", "gpus=8", "flags.dpo_use_paged_optimizer=true"), "AdamW"),
        (("stage=sft", "gpus=8", *OLMO), "tokens of each rank"),
        (("stage=sft", "gpus=1", *OLMO), "tokens of each rank"),
        ((*OLMO_DPO, "gpus=8"), "long micro batch"),
        ((*OLMO_DPO, "gpus=1", "recipe.per_device_batch_size=128", "recipe.packing=bins"), "bins"),
        ((*OLMO_DPO, "gpus=8", PAIRS_AT_8, "flags.tensor_parallel_degree=2"), "share a row"),
        ((*DPO_AT_8, "flags.loss_type=[sigmoid,sft]"), "loss sft"),
        ((*DPO_AT_8, "flags.loss_type=[aot]"), "loss aot"),
        ((*DPO_AT_8, "flags.router_aux_loss_coef=0.01"), "load balancing"),
        (("stage=demo", "processes=2", "flags.load_balancing_loss=true"), "load balancing"),
        ((*LORA, "recipe.lora.dropout=0.1"), "dropout"),
        (("stage=demo_rlvr",), "completions"),
        (("stage=demo_kto",), "KL term"),
        ((*TRL, "flags.train_sampling_strategy=group_by_length"), "lengths"),
        ((*TRL, "flags.dataloader_drop_last=true"), "leaves out"),
        ((*TRL, "flags.accelerator_config={split_batches: true}"), "accelerator_config"),
        ((*TRL, "flags.neftune_noise_alpha=5"), "NEFTune"),
        (("stage=rm", "gpus=2", "recipe.checkpoint_steps=null"), "cannot be resumed"),
    ],
)
def test_what_depends_on_the_width_is_named(line: tuple[str, ...], reason: str) -> None:
    plan = planned(*line)
    assert plan.training_identity is None
    assert plan.width_obstacle is not None and reason in plan.width_obstacle


def begin(plan: Plan, *, checkpoint: bool = True, done: bool = False, age: float = 0) -> Path:
    """The folder of a run of a plan, which began `age` seconds ago."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    file = plan.folder / "plan.json"
    file.write_text(json.dumps(versioned(plan), default=str))
    os.utime(file, (1e9 - age, 1e9 - age))
    if checkpoint:
        (plan.model_dir / "checkpoint-10").mkdir(parents=True, exist_ok=True)
    if done:
        (plan.folder / "DONE").write_text("{}")
    return plan.folder


def at(folder: Path, processes: int, *overrides: str) -> Plan:
    line = [override for override in TRL if not override.startswith("processes")]
    return planned(*line, f"processes={processes}", *overrides, machine=fixed_machine(folder))


def test_the_same_command_continues_in_the_folder_of_the_other_width(tmp_path: Path) -> None:
    first = at(tmp_path, 1)
    folder = begin(first)
    second = at(tmp_path, 2)
    assert (second.folder, second.name) == (folder, first.name)
    assert second.identity != first.identity and second.batch.width == 2
    assert second.flags["output_dir"].value == str(folder / "model")
    assert str(folder / "model") in second.command
    tracked = at(tmp_path, 2, "tracking=wandb_offline")
    assert str(tracked.flags["run_name"].value).endswith(first.name)
    assert tracked.env["LAUNCH_TRACKER_FILE"] == str(folder / "tracker.json")
    assert second.config.name is None and second.resolved["name"] is None
    begin(second)  # the record is now that of the second width
    assert at(tmp_path, 1).folder == at(tmp_path, 2).folder == at(tmp_path, 4).folder == folder
    begin(second, done=True)
    assert at(tmp_path, 2).folder == folder  # which reports that it is done
    assert at(tmp_path, 4).folder != folder


def test_the_newest_of_several_is_continued(tmp_path: Path) -> None:
    begin(at(tmp_path, 1), age=10)
    newer = at(tmp_path, 2, "name=x").renamed("cpu2-0123abcd")
    begin(newer)
    assert at(tmp_path, 4).name == "cpu2-0123abcd"


@pytest.mark.parametrize(
    ("earlier", "overrides"),
    [
        ({"checkpoint": False}, ()),  # nothing to go on from: a folder that is named by its width
        ({"done": True}, ()),
        ({}, ("name=mine",)),
        ({}, ("name=mine", "restart=true")),
        ({}, ("recipe.learning_rate=1.0e-5",)),
    ],
)
def test_other_runs_are_left_alone(
    tmp_path: Path, earlier: dict[str, bool], overrides: tuple[str, ...]
) -> None:
    folder = begin(at(tmp_path, 1), **earlier)
    assert at(tmp_path, 2, *overrides).folder != folder


def test_a_restart_starts_the_continued_run_over(tmp_path: Path) -> None:
    folder = begin(at(tmp_path, 1))
    assert at(tmp_path, 2, "restart=true").folder == folder
    begin(at(tmp_path, 2), done=True)  # it ended at the second width
    assert at(tmp_path, 2, "restart=true").folder == folder
    assert at(tmp_path, 4, "restart=true").folder != folder


@pytest.mark.parametrize(
    ("name", "is_found"),
    [
        *(("checkpoint-10", True), ("step_10", True), ("epoch_0", True), ("step7", True)),
        *(("step7-tmp", False), ("checkpoint-", False), ("step_x", False)),
    ],
)
def test_checkpoints_of_every_trainer_are_seen(tmp_path: Path, name: str, is_found: bool) -> None:
    folder = begin(at(tmp_path, 1), checkpoint=False)
    (folder / "model" / name).mkdir(parents=True)
    assert (at(tmp_path, 2).folder == folder) is is_found


def test_a_sweep_of_widths_gives_each_its_own_run(tmp_path: Path) -> None:
    folder = begin(at(tmp_path, 1))
    line = (*TRL[:3], TRL[-1], "processes=2")
    swept = build_plan(composed(*line), fixed_machine(tmp_path), is_swept=True)
    assert swept.folder != folder


def test_a_named_run_is_continued_by_its_name_alone(tmp_path: Path) -> None:
    folder = begin(at(tmp_path, 1, "name=mine"))
    assert at(tmp_path, 2).folder != folder
    assert at(tmp_path, 2, "name=mine").folder == folder


def said_by_plan(
    launch: Launch, processes: int | str, *overrides: str
) -> tuple[dict[str, str], str]:
    """The facts and the notes that `plan` prints for a width, or a list of widths."""
    line = [override for override in TRL if not override.startswith("processes")]
    done = launch("plan", *line, f"processes={processes}", *overrides)
    assert done.returncode == 0, done.stderr
    facts = (row.split(maxsplit=1) for row in done.stdout.splitlines() if not row.startswith(" "))
    return {row[0]: row[1] for row in facts if len(row) == 2}, done.stderr


def test_plan_says_which_run_goes_on_and_which_cannot(tmp_path: Path, launch: Launch) -> None:
    """The step at another width; why an unfinished run is left, and nothing of a finished one."""
    said, _ = said_by_plan(launch, 1)
    assert "continues" not in said
    begun = plan_on_this_machine(composed(*TRL))
    folder = begin(begun)
    (folder / "metrics.jsonl").write_text('{"step": 10, "loss": 1.0, "seconds": 1.0}\n')
    (folder / "config.yaml").write_text(json.dumps(begun.resolved, default=str))
    begin_attempt(folder, None, (), begun)
    trl_checkpoint(folder / "model" / "checkpoint-10", 10)
    said, noted = said_by_plan(launch, 2)
    assert names(said["continues"], begun.name) and names(said["continues"], "checkpoint-10")
    assert "step 10" in said["continues"] and "1 rank" in said["continues"]
    assert str(folder) not in noted
    line = [override for override in TRL if not override.startswith("processes")]
    done = launch("plan", *line, "processes=2", "--json")
    assert json.loads(done.stdout)["continues"] == said["continues"]
    said, noted = said_by_plan(launch, 2, "parallel=zero2")
    assert "continues" not in said
    assert str(folder) in noted and "parallel=zero2" in noted and "1 cpu" in noted
    said, noted = said_by_plan(launch, 2, "recipe.global_batch_size=32")
    assert "continues" not in said
    assert str(folder) in noted and "batch is 64" in noted and "32" in noted
    said, noted = said_by_plan(launch, "2,4", "sweep=true")
    assert "continues" not in said
    (folder / "DONE").write_text("{}")
    said, noted = said_by_plan(launch, 2)
    assert "continues" not in said and str(folder) not in noted


@pytest.mark.parametrize(
    ("overrides", "id", "reason"),
    [
        (("processes=2", "recipe.global_batch_size=128"), "other_width", "global batch is 64"),
        (("processes=2", "parallel=zero3", "recipe.lora.rank=4"), "other_width", "--lora_r"),
        (("processes=2", "recipe.packing=bins"), "other_width", "--packing"),
        (("processes=2", "parallel=zero2"), "other_width", "parallel=zero2"),
        (("processes=1", "recipe.learning_rate=1.0e-5"), "name_taken", "--learning_rate"),
    ],
)
def test_plan_refuses_a_named_run_that_it_would_not_continue(
    launch: Launch, overrides: tuple[str, ...], id: str, reason: str
) -> None:
    line = [override for override in TRL if not override.startswith("processes")]
    begin(plan_on_this_machine(composed(*line, "processes=1", "name=mine")))
    for json_flag in ((), ("--json",)):
        done = launch("plan", *line, *overrides, "name=mine", *json_flag)
        assert (done.returncode, done.stdout) == (2, "")
        assert f"[{id}]" in done.stderr and reason in done.stderr
