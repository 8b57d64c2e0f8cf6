"""Which flags a run has, who said them, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from launch.errors import UserError
from launch.planning.build import build_plan
from launch.planning.recipe import map_recipe_key
from tests.conftest import composed, fixed_machine, planned, problem, problem_ids
from tests.messages import values_of
from tests.paths import ROOT


def test_every_origin() -> None:
    flags = planned("stage=sft_25pct", "gpus=8", "recipe.epochs=1", "flags.timeout=60").flags
    origins = {name: flag.provenance.origin.value for name, flag in flags.items()}
    assert origins["learning_rate"] == "recipe"
    assert origins["num_train_epochs"] == "override"
    assert origins["timeout"] == "override"
    assert origins["model_name_or_path"] == "model"
    assert origins["dataset_mixer_list"] == "data"
    assert origins["gradient_accumulation_steps"] == "launcher"
    for name in ("push_to_hub", "try_launch_beaker_eval_jobs", "logging_steps"):
        assert origins[name] == "launcher"
    assert planned("stage=demo", "trainer=trl_sft").flags["use_cpu"].provenance.origin == "trainer"


def test_the_flag_of_a_template_is_the_text_that_the_run_stages() -> None:
    """The recipe has a name; TRL reads a file."""
    line = ("stage=demo", "trainer=trl_sft", "recipe.chat_template=tulu")
    value = planned(*line).flags["chat_template_path"].value
    assert Path(str(value)).name == "tulu.jinja" and Path(str(value)).is_file()


def test_a_flag_said_in_a_stage_file_has_the_stage_as_origin(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "stage"
    folder.mkdir()
    text = "# @package _global_\ndefaults:\n  - sft\n  - _self_\nflags:\n  timeout: 7200\n"
    (folder / "mine.yaml").write_text(text, encoding="utf-8")
    monkeypatch.setenv("LAUNCH_CONFIG_DIR", str(tmp_path))
    provenance = planned("stage=mine").flags["timeout"].provenance
    assert (provenance.origin, provenance.where) == ("stage", f"{folder / 'mine.yaml'}:6")


def test_where_names_the_line_that_says_it() -> None:
    where = planned("stage=sft_25pct").flags["learning_rate"].provenance.where
    assert where is not None
    name, _, line = where.rpartition(":")
    assert name == "configs/tulu/stage/sft.yaml"
    root = ROOT
    assert "learning_rate" in (root / name).read_text(encoding="utf-8").splitlines()[int(line) - 1]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["flags.gradient_accumulation_steps=4"], ["owned_flag"]),
        (
            ["flags.output_dir=x", "flags.per_device_train_batch_size=2"],
            ["owned_flag", "owned_flag"],
        ),
        (["flags.dataset_name=x"], ["refused_flag"]),
        (["trainer=trl_sft", "flags.auto_find_batch_size=true"], ["refused_flag"]),
        (
            ["trainer=trl_sft", "flags.deepspeed=x.json", "flags.fsdp=true"],
            ["refused_flag", "refused_flag"],
        ),
        (
            ["trainer=trl_sft", "flags.adam_beta1=1", "flags.adam_epsilon=-1"],
            ["out_of_range", "out_of_range"],
        ),
        (["trainer=trl_sft", "flags.dataloader_num_workers=-1"], ["out_of_range"]),
        (["flags.timeout=-1"], ["out_of_range"]),
        (["recipe.packing=bins"], ["unsupported_recipe"]),
        (["recipe.attention=flash_2"], ["unsupported_recipe"]),
        (["recipe.beta=0.1", "recipe.loss=simpo"], ["unsupported_recipe", "unsupported_recipe"]),
        (["trainer=trl_sft", "recipe.beta=0.1"], ["unsupported_recipe"]),
        # a trainer of the user's own, which is in no row by its name: packing, balanced,
        # loss_averaging and liger
        (["trainer.name=mine"], ["unmapped_recipe"] * 4),
        (["recipe.clip=0.2", "recipe.verifier=math"], ["unsupported_recipe"] * 2),
        (["recipe.precision=fp32"], ["unsupported_precision"]),
        (["recipe.packing=bins", "flags.output_dir=x"], ["unsupported_recipe", "owned_flag"]),
        (["trainer=dpo_tune_cache"], ["kind_mismatch"]),
        (["data=tulu3_dpo_8b"], ["kind_mismatch"]),
        (["gpus=3"], ["batch_not_divisible"]),
        (["recipe.max_grad_norm=-1"], ["out_of_range"]),
        (["name=../x"], ["bad_name"]),
        (["name=/a"], ["bad_name"]),
        # only a rollout, a bench and a search have folders with runs in them
        (["name=a/b"], ["bad_name"]),
        (["name=a/../../b"], ["bad_name"]),
        (["name=.hidden"], ["bad_name"]),
        (["gpus=-1"], ["out_of_range"]),
        (["gpus=2", "device=cpu"], ["device_conflict"]),
        (["gpus=0", "device=cuda"], ["device_conflict"]),
        (["gpus=2", "processes=2"], ["device_conflict"]),
        (["gpus=0", "recipe.liger=true"], ["liger_needs_gpu"]),
        (["gpus=2", "parallel=single"], ["parallel_width"]),
        (["gpus=1", "parallel=ddp"], ["parallel_width"]),
        (["data.fraction=0"], ["out_of_range"]),
        (["model=demo", "model.build=other"], ["unknown_build"]),
        (["data.mix=[]"], ["no_data"]),
        (["data=demo_chats", "data.mix=[]"], ["no_data"]),
        (["flags.packing=true"], ["packing_flag"]),
        (["trainer=trl_sft", "flags.packing=true"], ["packing_flag"]),
        (["trainer=trl_sft", "flags.padding_free=true"], ["packing_flag"]),
        (["data.mix=[{name: /no/such/*.jsonl}]"], ["data_no_files"]),
    ],
)
def test_what_cannot_work_is_refused_all_at_once(overrides: list[str], expected: list[str]) -> None:
    assert problem_ids("stage=sft", *overrides) == expected


def test_an_owned_flag_names_its_key() -> None:
    with pytest.raises(UserError, match=r"recipe\.global_batch_size.*\[owned_flag\]"):
        planned("stage=sft", "flags.gradient_accumulation_steps=4")


def test_a_refused_flag_is_a_warning_when_allowed() -> None:
    plan = planned("stage=sft", "flags.tokenizer_name=x", "allow=[refused_flag]")
    assert plan.flags["tokenizer_name"].value == "x"
    (warning,) = [each for each in plan.warnings if each.id == "refused_flag"]
    assert warning.allowed and not warning.stops


def test_warnings_name_what_is_odd() -> None:
    plan = planned("stage=sft", "flags.max_train_samples=5", "flags.learning_rate=1e-5")
    assert [warning.id for warning in plan.warnings] == ["ignored_flag", "flag_over_recipe"]
    assert plan.flags["learning_rate"].value == 1e-5
    bins = planned("stage=sft", "trainer=trl_sft", "recipe.packing=bins")
    assert [warning.id for warning in bins.warnings] == ["bins_change_the_batch"]


def test_gpus_of_the_command_line_beat_a_stage_on_cpu() -> None:
    plan = planned("stage=demo", "gpus=1")
    assert plan.parallel.width.device == "cuda"
    assert "CUDA_VISIBLE_DEVICES" not in plan.env


def test_two_cpu_processes_are_asked_of_accelerate_by_its_variable() -> None:
    """accelerate's own --cpu silently starts one process."""
    plan = planned("stage=demo", "processes=2")
    assert plan.env["ACCELERATE_USE_CPU"] == "true"
    assert "--cpu" not in plan.command
    sharded = planned("stage=demo", "processes=2", "parallel=zero3")
    assert "ACCELERATE_USE_CPU" not in sharded.env
    assert sharded.patches[0] == "deepspeed_on_cpu"


def test_clipping_is_explicit_with_and_without_deepspeed() -> None:
    single, eight = planned("stage=sft", "gpus=1"), planned("stage=sft", "gpus=8")
    assert single.flags["clip_grad_norm"].value == eight.flags["clip_grad_norm"].value == 1.0
    assert eight.command[eight.command.index("--gradient_clipping") + 1] == "1.0"
    off = planned("stage=sft", "gpus=8", "recipe.max_grad_norm=null")
    assert off.command[off.command.index("--gradient_clipping") + 1] == "0.0"
    assert "clip_grad_norm" not in off.flags


def test_the_identity_is_the_same_on_every_machine(tmp_path: Path) -> None:
    config = composed("stage=sft_25pct", "gpus=8")
    plan = build_plan(config, fixed_machine())
    there = replace(
        fixed_machine(cwd=tmp_path, checkout=tmp_path / "checkout"), python="/other/python"
    )
    assert build_plan(config, there).name == plan.name
    assert (
        build_plan(composed("stage=sft_25pct", "gpus=8", "recipe.seed=9"), fixed_machine()).name
        != plan.name
    )
    assert build_plan(composed("stage=sft_25pct", "gpus=4"), fixed_machine()).name != plan.name


def test_the_identity_follows_the_content_of_local_inputs(tmp_path: Path) -> None:
    config = composed("stage=sft", "model.path=./model", "data.mix=[{name: ./chats.jsonl}]")
    names = []
    for folder, content in (("a", "one"), ("b", "one"), ("c", "two")):
        machine = fixed_machine(cwd=tmp_path / folder, digest=lambda path, content=content: content)
        names.append(build_plan(config, machine).name)
    assert names[0] == names[1] != names[2]


def test_only_an_open_instruct_trainer_gets_the_checkout_on_its_path() -> None:
    machine = replace(fixed_machine(), environ={"PYTHONPATH": "/mine"})
    assert build_plan(composed("stage=sft"), machine).env["PYTHONPATH"] == "/upstream:/mine"
    assert "PYTHONPATH" not in build_plan(composed("stage=sft", "trainer=trl_sft"), machine).env


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["flags.learning_rate=-0.1"], ["out_of_range"]),
        (["flags.learning_rate=nan", "flags.num_train_epochs=0"], ["out_of_range", "out_of_range"]),
        (["flags.max_train_steps=0"], ["out_of_range"]),
        (["flags.warmup_ratio=1.5"], ["out_of_range"]),
        (["flags.clip_grad_norm=nan"], ["out_of_range"]),
        (["flags.clip_grad_norm=-2"], ["refused_value"]),
        (["flags.seed=-1"], ["out_of_range"]),
        (["trainer=trl_sft", "flags.warmup_steps=-1"], ["out_of_range"]),
        (["trainer=trl_sft", "flags.save_steps=0"], ["out_of_range"]),
        (["trainer=trl_sft", "flags.max_steps=0"], ["out_of_range"]),
    ],
)
def test_a_flag_that_stands_for_a_recipe_key_has_its_range(
    overrides: list[str], expected: list[str]
) -> None:
    assert problem_ids("stage=sft", *overrides) == expected


@pytest.mark.parametrize(
    "overrides",
    [
        ("flags.clip_grad_norm=-1",),
        ("trainer=trl_sft", "flags.warmup_steps=100"),
        ("trainer=trl_sft", "flags.max_steps=-1"),
        ("trainer=trl_sft", "flags.num_train_epochs=0.5"),
        ("trainer=trl_sft", "flags.save_steps=0.1"),
    ],
)
def test_a_flag_may_have_a_range_of_its_own(overrides: tuple[str, ...]) -> None:
    assert planned("stage=sft", *overrides).flags


@pytest.mark.parametrize("override", ["recipe.learning_rate=1", "flags.learning_rate=0.5"])
def test_a_high_learning_rate_is_a_warning(override: str) -> None:
    [warning] = [
        each for each in planned("stage=sft", override).warnings if each.id == "high_learning_rate"
    ]
    assert warning.where == f"override {override.partition('=')[0]}"
    assert "high_learning_rate" not in {each.id for each in planned("stage=demo_lora").warnings}


@pytest.mark.parametrize(
    ("loss", "suggested"),
    [("dpo_nrm", {"dpo_norm"}), ("wpo", {"recipe.loss=dpo", "recipe.loss=dpo_norm"})],
)
def test_only_a_name_that_is_near_is_suggested(loss: str, suggested: set[str]) -> None:
    with pytest.raises(UserError) as caught:
        map_recipe_key("loss", loss, {"dpo": {}, "dpo_norm": {}}, "wpo fails", "dpo_tune_cache")
    [problem] = caught.value.problems
    assert suggested <= set(values_of(str(problem.cure))) and ("wpo fails" in problem.message) == (
        loss == "wpo"
    )


SFT, DPO = (
    ("stage=demo", "trainer=trl_sft", "gpus=0"),
    ("stage=demo_dpo", "trainer=trl_dpo", "gpus=0"),
)
HUB = ("data.build=null", "data.mix=[{name: a/b}]")
TEXT = (*SFT, *HUB, "data.format=text", "recipe.packing=bins")
OLMO = ("stage=sft", "trainer=olmo_core_finetune", "recipe.packing=bins", "model=olmo2_1b")
ALL_ANSWERS = "sft_tulu_tokenize_and_truncate_v1,sft_tulu_filter_v1"
SAVED, UNSAVED = "recipe.checkpoint_steps=10", "recipe.checkpoint_steps=null"


@pytest.mark.parametrize(
    ("line", "undone"),
    [
        # a flag that no key maps to
        ((*SFT, SAVED, "flags.save_only_model=true"), "recipe.checkpoint_steps=10"),
        ((*SFT, SAVED, "flags.ignore_data_skip=true"), "recipe.checkpoint_steps=10"),
        # one of several flags of a key
        ((*SFT, SAVED, "flags.save_strategy=no"), "recipe.checkpoint_steps=10"),
        ((*SFT, SAVED, "flags.save_steps=3"), "recipe.checkpoint_steps=10"),
        (
            (*SFT, "recipe.learning_rate=1e-4", "flags.learning_rate=1e-5"),
            "recipe.learning_rate=0.0001",
        ),
        ((*SFT, "recipe.packing=flatten", "flags.padding_free=false"), "recipe.packing=flatten"),
        ((*SFT, "recipe.packing=bins", "flags.packing=false"), "recipe.packing=bins"),
        ((*SFT, "data.validation=0.1", "flags.eval_strategy=no"), "data.validation=0.1"),
        (
            (*SFT, "recipe.loss_averaging=tokens", "flags.average_tokens_across_devices=false"),
            "recipe.loss_averaging",
        ),
        ((*SFT, "hub.push=me/mine", "flags.push_to_hub=false"), "hub.push=me/mine"),
        ((*DPO, "recipe.loss=dpo", "flags.loss_type=[ipo]"), "recipe.loss=dpo"),
        ((*DPO, "recipe.beta=0.1", "flags.beta=5"), "recipe.beta=0.1"),
        (("stage=sft", SAVED, "flags.checkpointing_steps=epoch"), "recipe.checkpoint_steps=10"),
        ((*SFT, "data.train_on=last", "flags.assistant_only_loss=false"), "data.train_on=last"),
        ((*SFT, "flags.assistant_only_loss=false"), None),
        ((*TEXT, "flags.assistant_only_loss=true"), "data.format=text"),
        (
            ("stage=sft", "data.train_on=last", f"flags.dataset_transform_fn=[{ALL_ANSWERS}]"),
            "data.train_on=last",
        ),
        (
            (*OLMO, "data.train_on=last", f"flags.transform_fn=[{ALL_ANSWERS}]"),
            "data.train_on=last",
        ),
        ((*SFT, SAVED, "flags.save_total_limit=1"), None),  # a default beside the key's value
        ((*SFT, SAVED, "flags.save_steps=10"), None),
        ((*SFT, UNSAVED, "flags.save_only_model=true"), None),  # nothing is to be resumed
        ((*SFT, "flags.learning_rate=1e-5"), None),  # the shipped recipe's value is no request
        ((*SFT, "recipe.checkpoint_steps=null", "flags.save_total_limit=1"), None),
    ],
)
def test_a_flag_that_undoes_a_requested_key_is_refused(
    line: tuple[str, ...], undone: str | None
) -> None:
    if undone is None:
        planned(*line)
        return
    id, message = problem(*line)
    assert id == "flag_over_recipe" and f"undoes {undone}" in message
    planned(*line, "allow=[flag_over_recipe]")


@pytest.mark.parametrize(
    ("line", "other"),
    [
        ((*DPO, "flags.label_smoothing=0.3"), "--loss_type sigmoid_norm"),
        ((*DPO, "recipe.loss=dpo", "flags.label_smoothing=0.3"), "--loss_type sigmoid"),
        ((*DPO, "flags.loss_type=[robust]", "flags.label_smoothing=0.3"), None),
        ((*DPO, "flags.loss_type=[sigmoid,aot]", "flags.label_smoothing=0.3"), None),
        ((*DPO, "flags.discopop_tau=0.1"), "--loss_type sigmoid_norm"),
        ((*DPO, "flags.ref_model_mixup_alpha=0.5"), "--sync_ref_model"),
        ((*DPO, "flags.sync_ref_model=true", "flags.ref_model_mixup_alpha=0.5"), None),
        ((*SFT, "flags.packing_strategy=wrapped"), "--packing"),
        ((*SFT, UNSAVED, "flags.save_total_limit=1"), "--save_strategy no"),
        ((*SFT, SAVED, "flags.save_total_limit=1"), None),
        ((*SFT, "flags.eval_steps=5"), "--eval_strategy"),
        ((*SFT, "flags.metric_for_best_model=loss"), "--eval_strategy"),
        ((*SFT, "flags.eval_packing=true"), "--eval_strategy"),
        ((*SFT, "data.validation=0.1", "flags.eval_delay=2"), None),
        ((*SFT, SAVED, "flags.save_total_limit=0"), "--save_total_limit 0"),
        ((*SFT, UNSAVED, "flags.save_only_model=true"), "--save_strategy no"),
        ((*SFT, "flags.greater_is_better=true"), "--eval_strategy"),
        ((*SFT, "flags.prediction_loss_only=true"), "--eval_strategy"),
        ((*SFT, "flags.logging_first_step=true"), "--logging_steps 1"),
        ((*SFT, "flags.logging_steps=5", "flags.logging_first_step=true"), None),
        (
            (*SFT, "flags.lr_scheduler_type=constant", "flags.warmup_steps=5"),
            "--lr_scheduler_type constant",
        ),
        ((*SFT, "flags.lr_scheduler_type=constant_with_warmup", "flags.warmup_steps=5"), None),
        ((*SFT, "recipe.max_steps=2", "flags.num_train_epochs=3"), "--max_steps 2"),
        ((*SFT, "recipe.max_steps=null", "flags.num_train_epochs=3"), None),
        ((*SFT, "flags.hub_strategy=end"), "--push_to_hub"),
        ((*SFT, "flags.length_column_name=size"), "--train_sampling_strategy"),
        ((*DPO, "flags.lora_r=4"), "--use_peft"),
        ((*DPO, "flags.use_dora=true"), "--use_peft"),
        ((*DPO, "recipe.lora.rank=4", "flags.use_dora=true"), None),
    ],
)
def test_a_flag_without_an_effect_is_marked(line: tuple[str, ...], other: str | None) -> None:
    found = [
        warning.message for warning in planned(*line).warnings if warning.id == "ineffective_flag"
    ]
    assert (other in found[0]) if other else not found


@pytest.mark.parametrize("flag", ["do_eval", "do_train", "do_predict"])
def test_a_flag_that_no_trainer_of_trl_reads_is_marked(flag: str) -> None:
    found = [warning.message for warning in planned(*SFT, f"flags.{flag}=false").warnings]
    assert "trl_sft" in found[0] and f"--{flag}" in found[0]
