"""What becomes of an earlier run: nothing to do, resume, or an error that explains how to start
over.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from launch.config.schema import Family
from launch.errors import UserError
from launch.execution.record.attempts import begin_attempt, has_several_widths
from launch.execution.record.checkpoints import Checkpoint, Layout, find_checkpoints
from launch.execution.record.written import CheckpointRecorder, record_found, writers_of
from launch.execution.resume import (
    clear_run_folder,
    converted_folder,
    decide_start,
    describe_next_attempt,
    is_finished,
    needs_conversion,
    resume_plan,
)
from launch.files import append_json
from launch.planning.plan import Plan
from launch.table import format_duration
from launch.worker.json_codec import versioned
from launch.worker.patches import UNIVERSAL_CHECKPOINT
from tests.conftest import fixed_machine, planned
from tests.execution.files import cut, model, saved_state, trl_checkpoint
from tests.messages import values_of


def plan_of(folder: Path, *overrides: str) -> Plan:
    usual = {"stage": "demo", "name": "one", "recipe.checkpoint_steps": "10"}
    chosen = usual | dict(override.split("=", 1) for override in overrides)
    return planned(
        *(f"{key}={value}" for key, value in chosen.items()), machine=fixed_machine(folder)
    )


def begin(plan: Plan, steps: int) -> None:
    """The folder of a run that was killed after `steps` logged steps."""
    plan.model_dir.mkdir(parents=True)
    (plan.folder / "plan.json").write_text(json.dumps(versioned(plan)))
    lines = [
        json.dumps({"schema_version": 1, "step": step, "loss": 1.0}) for step in range(1, steps + 1)
    ]
    (plan.folder / "metrics.jsonl").write_text("\n".join(lines))


def problem_of(plan: Plan) -> tuple[str, str]:
    with pytest.raises(UserError) as refused:
        if not is_finished(plan):
            decide_start(plan)
    [problem] = refused.value.problems
    return problem.id, str(problem)


def test_a_new_run_starts(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    assert not is_finished(plan)
    start = decide_start(plan)
    assert (start.checkpoint, start.restart_reason) == (None, None)
    assert resume_plan(plan, start) == plan


def test_a_finished_run_is_finished_until_restart(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    begin(plan, 30)
    (plan.folder / "DONE").write_text("{}")
    assert is_finished(plan)
    again = plan_of(tmp_path, "restart=true")
    assert not is_finished(again)
    lines: list[str] = []
    clear_run_folder(again, decide_start(again), lines.append)
    assert not plan.folder.exists()
    [archive] = plan.folder.parent.iterdir()
    assert (archive / "DONE").exists()
    assert str(archive) in lines[0]


def test_the_last_complete_checkpoint_is_taken_and_the_incomplete_ones_are_moved(
    tmp_path: Path,
) -> None:
    plan = plan_of(tmp_path)
    begin(plan, 47)
    for step in (10, 20, 30, 40):
        saved_state(plan.model_dir / f"step_{step}")
    cut(plan.model_dir / "step_40" / "optimizer.bin")
    (plan.model_dir / "step_40" / "COMPLETED").touch()
    start = decide_start(plan)
    assert start.checkpoint is not None
    assert start.checkpoint.path.name == "step_30"
    lines: list[str] = []
    clear_run_folder(plan, start, lines.append)
    assert "step_40" in lines[0] and "optimizer.bin" in lines[0]
    assert sorted(path.name for path in plan.model_dir.iterdir()) == [
        "step_10",
        "step_20",
        "step_30",
    ]
    assert (plan.model_dir / "step_30" / "COMPLETED").exists()  # upstream takes marked ones only
    resumed = resume_plan(plan, start)
    assert resumed.patches == (*plan.patches, "exact_resume=step_30")
    script = resumed.command.index("--script")
    assert resumed.command[script:] == plan.command[plan.command.index("--script") :]
    assert "exact_resume=step_30" in resumed.command[:script]


@pytest.mark.parametrize("name", ["incomplete", "model/step_30/COMPLETED", "model/config.json"])
def test_nothing_is_moved_through_a_link(name: str, tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    begin(plan, 47)
    for step in (30, 40):
        saved_state(plan.model_dir / f"step_{step}")
    cut(plan.model_dir / "step_40" / "optimizer.bin")
    victim = tmp_path / "victim"
    victim.mkdir()
    (plan.folder / name).symlink_to(victim)
    start = decide_start(plan)
    with pytest.raises(UserError, match=r"\[linked_record\]"):
        clear_run_folder(plan, start, print)
    assert list(victim.iterdir()) == []
    again = plan_of(tmp_path, "restart=true")
    clear_run_folder(again, decide_start(again), print)  # the folder as a whole is moved
    assert not plan.folder.exists()


def test_trl_gets_the_checkpoint_as_a_flag(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "trainer=trl_sft")
    begin(plan, 25)
    trl_checkpoint(plan.model_dir / "checkpoint-10", 10)
    trl_checkpoint(plan.model_dir / "checkpoint-20", 20)
    start = decide_start(plan)
    resumed = resume_plan(plan, start)
    assert resumed.command[-2:] == (
        "--resume_from_checkpoint",
        str(plan.model_dir / "checkpoint-20"),
    )
    assert (resumed.patches, resumed.options) == (plan.patches, plan.options)
    clear_run_folder(plan, start, print)
    assert not (plan.model_dir / "checkpoint-20" / "COMPLETED").exists()


def test_nothing_to_resume_explains_how_to_start_over(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "recipe.checkpoint_steps=null")
    begin(plan, 7)
    kind, text = problem_of(plan)
    assert kind == "nothing_to_resume"
    assert "7" in values_of(text)
    assert "restart=true" in text
    assert "recipe.checkpoint_steps=N" in text and "=None" not in text


def interrupted(plan: Plan, seconds: float, exit_code: int | None = 130) -> None:
    """The folder of a run that ended after two logged steps of so many seconds; without an exit
    code it was killed.
    """
    begin(plan, 2)
    steps = [
        {"schema_version": 1, "step": step, "loss": 1.0, "seconds": seconds} for step in (1, 2)
    ]
    (plan.folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, steps)))
    outcome = {
        "schema_version": 1,
        "exit_code": exit_code,
        "seconds": 2 * seconds,
        "steps": 2,
        "last_loss": 1.0,
    }
    if exit_code is not None:
        (plan.folder / "FAILED").write_text(
            json.dumps(outcome | {"cause": "interrupted by SIGINT"})
        )


@pytest.mark.parametrize("exit_code", [130, None])
@pytest.mark.parametrize("trainer", ["finetune", "trl_sft"])
def test_an_early_interruption_starts_again_by_itself(
    tmp_path: Path, trainer: str, exit_code: int | None
) -> None:
    plan = plan_of(tmp_path, f"trainer={trainer}")
    interrupted(plan, 280.0, exit_code)
    start = decide_start(plan)
    assert "9 min 20 s" in str(start.restart_reason)
    lines: list[str] = []
    clear_run_folder(plan, start, lines.append)
    [archive] = plan.folder.parent.iterdir()
    assert len(lines) == 1 and str(start.restart_reason) in lines[0] and str(archive) in lines[0]


@pytest.mark.parametrize(
    ("seconds", "exit_code"), [(310.0, 130), (310.0, None), (280.0, 1), (280.0, 3)]
)
def test_a_late_interruption_and_a_failure_are_refused_with_what_would_be_lost(
    tmp_path: Path, seconds: float, exit_code: int | None
) -> None:
    plan = plan_of(tmp_path)
    interrupted(plan, seconds, exit_code)
    kind, text = problem_of(plan)
    assert kind == "nothing_to_resume" and format_duration(2 * seconds) in text


def test_an_early_interruption_with_a_checkpoint_or_a_model_is_not_thrown_away(
    tmp_path: Path,
) -> None:
    plan = plan_of(tmp_path)
    interrupted(plan, 20.0)
    saved_state(plan.model_dir / "step_10")
    (plan.folder / "metrics.jsonl").write_text(
        json.dumps({"schema_version": 1, "step": 12, "loss": 1, "seconds": 9.0})
    )
    assert decide_start(plan).checkpoint is not None
    other = plan_of(tmp_path / "other")
    interrupted(other, 20.0)
    model(other.model_dir)
    assert problem_of(other)[0] == "nothing_to_resume"


def test_incomplete_checkpoints_are_reported_with_their_faults(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    begin(plan, 12)
    assert "recipe.checkpoint_steps=10" in problem_of(plan)[1]
    (saved_state(plan.model_dir / "step_10") / "scheduler.bin").unlink()
    assert "step_10: scheduler.bin" in problem_of(plan)[1]


def test_a_complete_model_without_a_recorded_exit_is_reported(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    begin(plan, 60)
    model(plan.model_dir)  # finetune removes its checkpoints when it has saved the model
    assert problem_of(plan)[0] == "nothing_to_resume"


def test_an_attempt_that_ended_before_its_first_step_is_simply_repeated(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    begin(plan, 0)
    start = decide_start(plan)
    assert (start.checkpoint, start.restart_reason, start.incomplete) == (None, None, ())
    (plan.model_dir / "step_10").mkdir()
    assert problem_of(plan)[0] == "nothing_to_resume"


def test_another_plan_in_the_folder_is_left_alone(tmp_path: Path) -> None:
    begin(plan_of(tmp_path), 5)
    kind, text = problem_of(plan_of(tmp_path, "recipe.learning_rate=1.0e-5", "recipe.epochs=3"))
    assert kind == "name_taken"
    assert "--learning_rate, --num_train_epochs" in text
    kind, text = problem_of(plan_of(tmp_path, "processes=2"))
    assert kind == "other_width"
    assert "1 cpu" in text and "2 cpu" in text
    assert problem_of(plan_of(tmp_path, "processes=2", "restart=true"))[0] == "other_width"


WIDTHS = ("trainer=trl_sft", "processes=1")
ADAPTER = ("recipe.lora.rank=4", "recipe.lora.alpha=16")


def begin_at(plan: Plan, step: int, *, is_recorded: bool) -> Path:
    """The folder of a run that was killed after a checkpoint, which its record has or not."""
    begin(plan, step)
    begin_attempt(plan.folder, None, (), plan)
    recorder = CheckpointRecorder(plan.folder, plan.model_dir)
    ranks = plan.parallel.width.world_size
    path = plan.model_dir / f"checkpoint-{step}"
    trl_checkpoint(path, step, ranks, plan.parallel.zero_stage)
    if is_recorded:
        recorder.record_new(is_whole=True)
    recorder.close(is_writing=False)
    return path


@pytest.mark.parametrize("is_recorded", [True, False])
@pytest.mark.parametrize(
    ("mode", "widths", "is_converted"),
    [
        ("auto", (1, 2), False),
        ("auto", (2, 1), False),
        ("zero2", (1, 2), True),
        ("zero2", (2, 2), False),
        ("zero3", (2, 4), True),
    ],
)
def test_a_run_goes_on_at_another_width(
    tmp_path: Path, mode: str, widths: tuple[int, int], is_converted: bool, is_recorded: bool
) -> None:
    first, second = widths
    line = ("trainer=trl_sft", f"parallel={mode}", "recipe.per_device_batch_size=8")
    before = plan_of(tmp_path, *line, f"processes={first}")
    path = begin_at(before, 20, is_recorded=is_recorded)
    plan = plan_of(tmp_path, *line, f"processes={second}")
    assert not is_finished(plan)
    start = decide_start(plan)
    assert start.checkpoint is not None and start.checkpoint.path == path
    resumed = resume_plan(plan, start)
    assert (UNIVERSAL_CHECKPOINT in resumed.patches) is is_converted
    assert (UNIVERSAL_CHECKPOINT in resumed.command) is is_converted
    target = converted_folder(plan) / path.name if is_converted else path
    assert resumed.command[-1] == str(target)
    described = describe_next_attempt(plan)
    assert described is not None and "step 20" in described
    assert (f"of {first} rank" in described) is (first != second)

    # A checkpoint is read by the width of the attempt that wrote it, whatever came after.
    record_found(plan.folder, path)
    begin_attempt(plan.folder, start.checkpoint, (), plan)
    (plan.folder / "plan.json").write_text(json.dumps(versioned(plan)))
    for again in (before, plan):
        chosen = decide_start(again).checkpoint
        assert chosen is not None and chosen.path == path
    assert has_several_widths(plan.folder) is (first != second)


def test_a_run_that_went_to_another_width_comes_back(tmp_path: Path) -> None:
    """Back at its first width it reads the newest checkpoint, which the other width wrote."""
    line = ("trainer=trl_sft", "parallel=zero2", "recipe.per_device_batch_size=8")
    first = plan_of(tmp_path, *line, "processes=1")
    begin_at(first, 20, is_recorded=True)
    second = plan_of(tmp_path, *line, "processes=2")
    begin_attempt(second.folder, decide_start(second).checkpoint, (), second)
    assert not needs_conversion(first, chosen_by(first))  # the second has written none yet
    recorder = CheckpointRecorder(second.folder, second.model_dir)
    trl_checkpoint(second.model_dir / "checkpoint-30", 30, 2, 2)
    recorder.record_new(is_whole=True)
    recorder.close(is_writing=False)
    lines = [{"schema_version": 1, "step": step, "loss": 1.0} for step in range(21, 31)]
    append_json(second.folder / "metrics.jsonl", *lines)
    assert chosen_by(first).number == 30 and needs_conversion(first, chosen_by(first))
    assert chosen_by(second).number == 30 and not needs_conversion(second, chosen_by(second))


def chosen_by(plan: Plan) -> Checkpoint:
    """The checkpoint that the next attempt of a plan begins with."""
    chosen = decide_start(plan).checkpoint
    assert chosen is not None
    return chosen


def test_an_attempt_that_recorded_no_width_had_the_same(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    plan.folder.mkdir(parents=True)
    begin_attempt(plan.folder, None, ())  # as an earlier version has it
    begin_attempt(plan.folder, None, (), plan)
    assert not has_several_widths(plan.folder)
    begin_attempt(plan.folder, None, (), plan_of(tmp_path, "processes=2"))
    assert has_several_widths(plan.folder)


def test_finetune_gets_the_path_of_the_converted_checkpoint(tmp_path: Path) -> None:
    line = ("parallel=zero2", "recipe.loss_averaging=tokens")
    before = plan_of(tmp_path, *line, "processes=2")
    begin(before, 10)
    begin_attempt(before.folder, None, (), before)
    saved_state(before.model_dir / "step_10", 2, 2)
    plan = plan_of(tmp_path, *line)
    resumed = resume_plan(plan, decide_start(plan))
    path = converted_folder(plan) / "step_10"
    assert resumed.patches[-2:] == (UNIVERSAL_CHECKPOINT, f"exact_resume={path}")


@pytest.mark.parametrize(
    ("first", "second", "value"),
    [
        (("trainer=finetune",), ("processes=2",), "micro batch"),
        (("parallel=zero2",), ("processes=2", "parallel=zero3"), "parallel=zero2"),
        (("parallel=zero2",), ("processes=2", "parallel=ddp"), "parallel=zero2"),
        (("parallel=single",), ("processes=2", "parallel=zero2"), "parallel=ddp"),
        ((), ("processes=2", "recipe.global_batch_size=128"), "global batch is 64"),
        ((), ("processes=2", "recipe.learning_rate=1.0e-5"), "--learning_rate"),
        (("recipe.packing=bins",), ("processes=2",), "bins"),
        # what differs, and not what else keeps this plan at its width
        ((), ("processes=2", "recipe.packing=bins"), "--packing"),
        ((), ("processes=2", "recipe.global_batch_size=128", "parallel=zero2"), "global batch"),
        (("parallel=zero3",), ("processes=2", *ADAPTER), "--lora_r"),
        ((*ADAPTER, "parallel=zero2"), ("processes=2", "parallel=ddp"), "parallel=zero2"),
        (("flags.neftune_noise_alpha=5",), ("processes=2",), "NEFTune"),
    ],
)
def test_a_run_of_another_training_does_not(
    tmp_path: Path, first: tuple[str, ...], second: tuple[str, ...], value: str
) -> None:
    begin(plan_of(tmp_path, *WIDTHS, *first), 20)
    kind, text = problem_of(plan_of(tmp_path, *WIDTHS, *first, *second))
    assert kind == "other_width" and value in text


def test_a_mode_is_a_cure_only_where_it_lets_the_run_go_on(tmp_path: Path) -> None:
    for name, first, is_cure in (("full", (), True), ("adapter", ADAPTER, False)):
        line = (*WIDTHS, *first, f"name={name}")
        begin(plan_of(tmp_path, *line, "parallel=zero2"), 20)
        _, text = problem_of(plan_of(tmp_path, *line, "processes=2", "parallel=ddp"))
        assert ("set parallel=zero2" in text) is is_cure, text


def test_a_changed_input_is_named_at_another_width(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, *WIDTHS)
    begin(plan, 20)
    file = plan.folder / "plan.json"
    recorded = json.loads(file.read_text())
    other = dict.fromkeys(recorded["inputs"], "0123456789abcdef") | {"/rows.jsonl": "0" * 16}
    file.write_text(json.dumps({**recorded, "inputs": other, "training_identity": "other"}))
    _, text = problem_of(plan_of(tmp_path, *WIDTHS, "processes=2"))
    assert "rows.jsonl" in text and "changed since" in text


def test_a_checkpoint_of_another_width_is_not_complete(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    begin(plan, 12)
    saved_state(plan.model_dir / "step_10", ranks=2)
    assert "2 random_states_*.pkl" in problem_of(plan)[1]


def test_an_untested_trainer_is_refused(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "stage=rm", "gpus=1", "recipe.checkpoint_steps=null")
    begin(plan, 12)
    assert problem_of(plan)[0] == "resume_unsupported"


@pytest.mark.parametrize(
    ("name", "state", "reason"),
    [
        ("checkpoint-20", {}, None),
        (
            "checkpoint-20",
            {"log_history": [{"step": 20, "loss": 1.0}, {"step": 20, "eval_loss": 9.0}]},
            None,
        ),
        ("checkpoint-50", {}, "26"),  # a copy of another one
        ("checkpoint-27", {}, "26"),
        ("checkpoint-30", {}, None),  # written after the launcher was killed
        ("checkpoint-20", {"log_history": [{"step": 10, "loss": 1.0}]}, "10"),
        ("checkpoint-20", {"log_history": [{"step": 20, "loss": 1.5}]}, "1.5"),
        (
            "checkpoint-20",
            {"log_history": [{"step": 5, "loss": 2.0}, {"step": 20, "loss": 1.0}]},
            "5",
        ),
    ],
)
def test_a_checkpoint_of_another_step_or_run_is_refused(
    tmp_path: Path, name: str, state: dict[str, object], reason: str | None
) -> None:
    plan = plan_of(tmp_path, "trainer=trl_sft")
    begin(plan, 26)
    folder = plan.model_dir / name
    step = int(name.rpartition("-")[2])
    trl_checkpoint(folder, step)
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step, **state}))
    if reason is None:
        assert decide_start(plan).checkpoint is not None
    else:
        id, text = problem_of(plan)
        assert id == "foreign_checkpoint" and reason in values_of(text)


def test_a_killed_launchers_trainer_may_write_several_checkpoints(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "trainer=trl_sft")
    begin(plan, 26)
    for step in (30, 40, 50):
        trl_checkpoint(plan.model_dir / f"checkpoint-{step}", step)
    start = decide_start(plan)
    assert start.checkpoint is not None and start.checkpoint.number == 50
    shutil.rmtree(plan.model_dir / "checkpoint-40")
    assert problem_of(plan)[0] == "foreign_checkpoint"


def write_attempt(plan: Plan, step: int, *, is_recorded: bool) -> Path:
    """Have an attempt write a checkpoint of TRL's; `is_recorded`: its launcher saw it."""
    begin_attempt(plan.folder, None, ())
    recorder = CheckpointRecorder(plan.folder, plan.model_dir)
    folder = plan.model_dir / f"checkpoint-{step}"
    trl_checkpoint(folder, step)
    recorder.close(is_writing=is_recorded)
    return folder


@pytest.mark.parametrize(
    ("step", "is_recorded", "is_killed", "is_refused"),
    [
        (20, True, True, False),
        (20, True, False, False),
        (20, False, True, True),  # steps were logged after it: its launcher lived
        (20, False, False, True),
        (26, False, True, False),  # the launcher was killed right after it
        (30, False, True, False),  # or before it
        (26, False, False, True),
    ],
)
def test_a_checkpoint_that_no_attempt_recorded_is_refused(
    tmp_path: Path, step: int, is_recorded: bool, is_killed: bool, is_refused: bool
) -> None:
    plan = plan_of(tmp_path, "trainer=trl_sft")
    begin(plan, 26)
    write_attempt(plan, step, is_recorded=is_recorded)
    if not is_killed:
        ended = {"exit_code": 1, "seconds": 1.0, "steps": 26, "last_loss": 1.0}
        (plan.folder / "FAILED").write_text(json.dumps(ended))
    if is_refused:
        assert problem_of(plan)[0] == "foreign_checkpoint"
    else:
        assert decide_start(plan).checkpoint is not None


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "rng_state.pth"])
def test_a_checkpoint_whose_files_are_others_is_refused(tmp_path: Path, name: str) -> None:
    plan = plan_of(tmp_path, "trainer=trl_sft")
    begin(plan, 26)
    folder = write_attempt(plan, 20, is_recorded=True)
    assert decide_start(plan).checkpoint is not None
    file = folder / name
    content = bytearray(file.read_bytes())
    content[-20 if file.suffix == ".safetensors" else -500] ^= 1  # of a tensor's data
    file.write_bytes(content)
    assert not find_checkpoints(plan.model_dir, Layout(Family.trl, 1, None))[0].faults
    id, text = problem_of(plan)
    assert id == "foreign_checkpoint" and name in text


def replace_weights(folder: Path) -> None:
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-20] ^= 1
    (folder / "model.safetensors").write_bytes(content)


def begin_with_checkpoints(plan: Plan, *steps: int) -> list[Path]:
    begin(plan, 26)
    begin_attempt(plan.folder, None, ())
    recorder = CheckpointRecorder(plan.folder, plan.model_dir)
    folders = [plan.model_dir / f"checkpoint-{step}" for step in steps]
    for folder, step in zip(folders, steps, strict=True):
        trl_checkpoint(folder, step)
    recorder.close(is_writing=True)
    return folders


def test_the_cures_of_a_foreign_checkpoint_work(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "trainer=trl_sft")
    own, *foreign = begin_with_checkpoints(plan, 5, 10, 20)
    for folder in foreign:
        replace_weights(folder)
    id, text = problem_of(plan)
    assert id == "foreign_checkpoint"
    assert "move checkpoint-20, checkpoint-10 out" in text and "resumes from checkpoint-5" in text
    assert "restart=true" in text and "allow=[foreign_checkpoint]" in text
    allowed = plan_of(tmp_path, "trainer=trl_sft", "allow=[foreign_checkpoint]")
    start = decide_start(allowed)
    assert start.checkpoint is not None and start.checkpoint.path == foreign[-1]
    assert start.foreign is not None and not start.foreign.stops
    over = decide_start(plan_of(tmp_path, "trainer=trl_sft", "restart=true"))
    assert over.restart_reason == "restart=true"
    for folder in foreign:
        shutil.move(folder, tmp_path / folder.name)
    start = decide_start(plan)
    assert start.checkpoint is not None and start.checkpoint.path == own and start.foreign is None


def test_a_foreign_checkpoint_without_an_earlier_one_is_not_told_to_be_moved(
    tmp_path: Path,
) -> None:
    plan = plan_of(tmp_path, "trainer=trl_sft")
    [folder] = begin_with_checkpoints(plan, 20)
    replace_weights(folder)
    _, text = problem_of(plan)
    assert "move" not in text and "restart=true" in text and "allow=[foreign_checkpoint]" in text


def test_no_attempt_has_shown_anything_about_an_accepted_checkpoint(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "trainer=trl_sft")
    [folder] = begin_with_checkpoints(plan, 20)
    assert writers_of(plan.folder, folder.name) == [1]
    replace_weights(folder)
    record_found(plan.folder, folder, is_foreign=True)
    assert writers_of(plan.folder, folder.name) == []
    assert decide_start(plan).foreign is None  # it is recorded as it is


def test_a_launcher_that_recorded_the_end_saw_every_checkpoint(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "trainer=trl_sft")
    begin(plan, 26)
    trl_checkpoint(plan.model_dir / "checkpoint-30", 30)
    (plan.folder / "FAILED").write_text(
        '{"exit_code": 1, "seconds": 1.0, "steps": 26, "last_loss": 1.0}'
    )
    id, text = problem_of(plan)
    assert id == "foreign_checkpoint" and "26" in values_of(text)
