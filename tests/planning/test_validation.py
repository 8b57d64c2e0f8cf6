"""Validation in a plan: what is held out, when it is measured, what can't work, and the
identity.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from launch.errors import actions_of
from launch.planning.plan import Plan
from launch.planning.validation import describe_schedule
from launch.worker.finding import Finding
from launch.worker.trl_data import read_parts
from tests.conftest import machine_in, planned, problems
from tests.data.files import CHAT, PAIR, chat, write_lines

DEMO = ("stage=demo", "trainer=trl_sft", "gpus=1")


def plan_of(folder: Path, *words: str) -> Plan:
    return planned(*words, machine=machine_in(folder))


def refusal(folder: Path, *words: str) -> Finding:
    [problem] = problems(*words, machine=machine_in(folder))
    return problem


@pytest.fixture
def mine(tmp_path: Path) -> tuple[str, ...]:
    """A stage on 100 local rows, with files for validation beside them."""
    write_lines(
        tmp_path / "mine.jsonl", [chat(f"What is {number}?", "A number.") for number in range(100)]
    )
    write_lines(tmp_path / "held.jsonl", [chat("Who?", "Nobody."), chat("Why?", "Because.")])
    write_lines(
        tmp_path / "pairs.jsonl", [{**PAIR, "chosen": PAIR["rejected"], "rejected": PAIR["chosen"]}]
    )
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "notes.txt").write_text("no data")
    return (*DEMO, "data.build=null", "data.mix=[{name: ./mine.jsonl}]")


def test_trl_evaluates_on_the_split_at_the_end(tmp_path: Path, mine: tuple[str, ...]) -> None:
    plan = plan_of(tmp_path, *mine, "data.validation=0.1")
    flags = {name: flag.value for name, flag in plan.flags.items()}
    assert (flags["eval_strategy"], flags["dataset_test_split"]) == ("steps", "validation")
    assert flags["eval_steps"] > 2**30
    assert flags["per_device_eval_batch_size"] == plan.batch.per_device
    assert "load_best_model_at_end" not in flags
    assert not [
        option for option in plan.options if option.startswith(("validation", "early_stop"))
    ]
    data = plan.inputs.mixture[0].data
    assert data is not None
    assert data.validation == 0.1
    assert not {"eval_strategy", "dataset_test_split"} & plan_of(tmp_path, *mine).flags.keys()


@pytest.mark.parametrize("build", ["stage=demo", "stage=demo_dpo"])
def test_data_that_is_not_staged_is_split_as_it_is_loaded(tmp_path: Path, build: str) -> None:
    trainer = "trl_sft" if build == "stage=demo" else "trl_dpo"
    words = (build, f"trainer={trainer}", "gpus=1", "data.validation=0.02")
    for more in ((), ("data.build=null", "data.mix=[{name: allenai/some-data}]")):
        assert plan_of(tmp_path, *words, "data.fraction=0.5", *more).options[:2] == (
            "validation=0.02",
            "subset=0.5",
        )


@pytest.mark.parametrize("more", [(), ("data.build=null", "data.mix=[{name: allenai/some-data}]")])
def test_a_file_that_does_not_exist_is_reported_before_what_it_could_be_used_for(
    tmp_path: Path, mine: tuple[str, ...], more: tuple[str, ...]
) -> None:
    """The demo's data is made later, and hub data is not here: neither goes with a file for
    validation.
    """
    problem = refusal(tmp_path, *DEMO, *more, "data.validation=./nothere.jsonl")
    assert problem.id == "data_no_files" and str(tmp_path / "nothere.jsonl") in problem.message
    assert (
        refusal(tmp_path, *DEMO, *more, "data.validation=./held.jsonl").id
        == "validation_needs_local"
    )


def test_open_instruct_keeps_own_rows_for_eval_and_does_not_evaluate(
    tmp_path: Path, mine: tuple[str, ...]
) -> None:
    words = [word for word in mine if not word.startswith("trainer=")]
    plan = plan_of(tmp_path, *words, "trainer=finetune", "data.validation=0.1")
    assert plan.inputs.mixture[0].data is not None and plan.inputs.mixture[0].data.validation == 0.1
    assert "`launch eval`" in str(describe_schedule(plan.config))
    assert not [name for name in plan.flags if name.startswith("eval")]
    whole = plan_of(tmp_path, *words, "trainer=finetune")
    assert plan.identity != whole.identity and plan.flags.keys() == whole.flags.keys()


def test_samples_while_training_are_an_option_of_trl_alone(
    tmp_path: Path, mine: tuple[str, ...]
) -> None:
    assert "samples=20" in plan_of(tmp_path, *mine, "recipe.sample_every=20").options
    assert not [
        option for option in plan_of(tmp_path, *mine).options if option.startswith("samples")
    ]
    problem = refusal(
        tmp_path, "stage=demo", "trainer=finetune", "gpus=1", "recipe.sample_every=20"
    )
    assert problem.id == "unsupported_recipe" and problem.where == "recipe.sample_every"


def test_early_stop_loads_the_best_checkpoint(tmp_path: Path, mine: tuple[str, ...]) -> None:
    words = (
        "data.validation=./held.jsonl",
        "recipe.eval_steps=5",
        "recipe.checkpoint_steps=5",
        "recipe.early_stop=2",
    )
    plan = plan_of(tmp_path, *mine, *words)
    assert "early_stop=2" in plan.options
    assert plan.flags["load_best_model_at_end"].value is True
    assert plan.flags["eval_steps"].value == plan.flags["save_steps"].value == 5
    assert plan.warnings == ()


def test_an_evaluation_without_a_checkpoint_is_a_warning(
    tmp_path: Path, mine: tuple[str, ...]
) -> None:
    words = ("data.validation=0.1", "recipe.eval_steps=6", "recipe.checkpoint_steps=4")
    assert [warning.id for warning in plan_of(tmp_path, *mine, *words).warnings] == [
        "best_not_saved"
    ]
    assert not plan_of(tmp_path, *mine, "data.validation=0.1", "recipe.checkpoint_steps=4").warnings


@pytest.mark.parametrize(
    ("stage", "trainer"),
    [
        *(("demo_rlvr", name) for name in ("trl_grpo", "grpo_fast", "grpo")),
        ("demo_rlvr_lora", "trl_grpo"),
        ("rlvr", "grpo_fast"),
        ("rm", "reward_modeling"),
    ],
)
@pytest.mark.parametrize("value", ["0.2", "20%", "./held_out.jsonl"])
def test_stages_whose_loss_on_held_out_rows_says_nothing_refuse_with_what_works(
    tmp_path: Path, stage: str, trainer: str, value: str
) -> None:
    write_lines(tmp_path / "held_out.jsonl", [CHAT])
    problem = refusal(
        tmp_path, f"stage={stage}", f"trainer={trainer}", "gpus=8", f"data.validation={value}"
    )
    assert problem.id == "validation_unsupported" and "data.validation" in str(problem.where)
    assert problem.message.startswith(f"{trainer} ")
    assert "launch eval" in str(problem.cure) and "trainer=" not in str(problem.cure)


@pytest.mark.parametrize(
    "trainer", ["finetune", "dpo_tune_cache", "dpo", "olmo_core_finetune", "reward_modeling"]
)
@pytest.mark.parametrize(
    ("override", "id"),
    [
        ("data.validation=0.1", "validation_unsupported"),
        ("recipe.eval_steps=5", "unsupported_recipe"),
        ("recipe.early_stop=2", "unsupported_recipe"),
    ],
)
def test_trainers_without_an_evaluation_refuse_with_the_reason(
    tmp_path: Path, trainer: str, override: str, id: str
) -> None:
    stage = {"finetune": "demo", "olmo_core_finetune": "sft", "reward_modeling": "rm"}.get(
        trainer, "demo_dpo"
    )
    packing = ("recipe.packing=bins",) if trainer == "olmo_core_finetune" else ()
    model = ("model=olmo2_1b",) if trainer in ("dpo", "olmo_core_finetune") else ()
    words = (f"stage={stage}", f"trainer={trainer}", "gpus=1", *model, *packing)
    clip = () if trainer == "reward_modeling" else ("recipe.lr_scheduler=linear",)
    problem = refusal(tmp_path, *words, *clip, override)
    assert problem.id == id
    assert trainer in problem.message
    assert override.partition("=")[0] in str(problem.where)


@pytest.mark.parametrize(
    ("words", "id", "part"),
    [
        (["data.validation=0"], "bad_validation", " 0"),
        (["data.validation=1"], "bad_validation", " 1"),
        (["data.validation=1.0"], "bad_validation", " 1.0"),
        (["data.validation=-0.1"], "bad_validation", " -0.1"),
        (["data.validation=nan"], "bad_validation", " nan"),
        (["data.validation=true"], "bad_validation", "True"),
        (["data.validation=[0.1]"], "bad_validation", ""),
        (["data.validation=''"], "empty_value", "data.validation"),
        (["data.validation=0.001"], "data_split", "100"),
        (["data.validation=0.999"], "data_split", "100"),
        (["data.validation=0.9"], "data_small_epoch", "90"),
        (["data.validation=./missing.jsonl"], "data_no_files", "missing.jsonl"),
        (["data.validation=./notes.txt"], "data_file_type", "notes.txt"),
        (["data.validation=./empty.jsonl"], "data_empty", ""),
        (["data.validation=./pairs.jsonl"], "data_columns", ""),
        (["data.validation=./mine.jsonl"], "validation_trained", "mine.jsonl"),
        (["data.validation='./*.jsonl'"], "validation_trained", "mine.jsonl"),
        (["recipe.eval_steps=5"], "no_validation", "recipe.eval_steps=5"),
        (["recipe.early_stop=5"], "no_validation", "recipe.early_stop=5"),
        (["data.validation=0.1", "recipe.eval_steps=0"], "out_of_range", "recipe.eval_steps"),
        (["data.validation=0.1", "recipe.early_stop=0"], "out_of_range", "recipe.early_stop"),
        (["data.validation=0.1", "recipe.eval_steps=301"], "eval_never", "recipe.max_steps=300"),
        (
            ["data.validation=0.1", "recipe.early_stop=2"],
            "early_stop_checkpoints",
            "recipe.eval_steps",
        ),
        (
            [
                "data.validation=0.1",
                "recipe.early_stop=2",
                "recipe.eval_steps=5",
                "recipe.checkpoint_steps=null",
            ],
            "early_stop_checkpoints",
            "null",
        ),
        (
            [
                "data.validation=0.1",
                "recipe.early_stop=2",
                "recipe.eval_steps=5",
                "recipe.checkpoint_steps=10",
            ],
            "early_stop_checkpoints",
            "10",
        ),
    ],
)
def test_what_cannot_work_is_refused(
    tmp_path: Path, mine: tuple[str, ...], words: list[str], id: str, part: str
) -> None:
    problem = refusal(tmp_path, *mine, *words)
    assert (problem.id, part in problem.message) == (id, True), problem
    assert problem.where
    assert not (tmp_path / "runs").exists()


def test_data_elsewhere_takes_a_share_alone(tmp_path: Path, mine: tuple[str, ...]) -> None:
    for mix, held_out, id in (
        ("allenai/some-data", "./held.jsonl", "validation_needs_local"),
        ("./gone.jsonl", "0.1", "data_no_files"),
    ):
        words = (*mine[:-1], f"data.mix=[{{name: {mix}}}]", f"data.validation={held_out}")
        assert refusal(tmp_path, *words).id == id


def test_the_identity_covers_what_is_held_out_and_when_it_is_measured(
    tmp_path: Path, mine: tuple[str, ...]
) -> None:
    def identity(*words: str) -> str:
        return plan_of(tmp_path, *mine, *words).identity

    save = "recipe.checkpoint_steps=5"
    different = [
        identity(save),
        identity(save, "data.validation=0.1"),
        identity(save, "data.validation=0.2"),
        identity(save, "data.validation=./held.jsonl"),
        identity(save, "data.validation=0.1", "recipe.eval_steps=5"),
        identity(save, "data.validation=0.1", "recipe.eval_steps=5", "recipe.early_stop=2"),
        identity(save, "data.validation=0.1", "recipe.eval_steps=5", "recipe.early_stop=3"),
    ]
    assert len(set(different)) == len(different)
    write_lines(tmp_path / "held.jsonl", [chat("Who?", "Somebody."), chat("Why?", "Because.")])
    assert identity(save, "data.validation=./held.jsonl") not in different
    hub = [plan_of(tmp_path, *DEMO, f"data.validation={share}").identity for share in (0.1, 0.2)]
    assert len({*hub, plan_of(tmp_path, *DEMO).identity}) == 3


@pytest.mark.parametrize(
    "words",
    [
        ("flags.eval_strategy=steps",),
        ("flags.eval_strategy=epoch",),
        ("flags.eval_on_start=true",),
        ("flags.eval_strategy=steps", "flags.dataset_test_split=validation"),
        ("flags.eval_strategy=epoch", "flags.dataset_test_split=dev", "data.validation=0.1"),
    ],
)
def test_a_flag_that_evaluates_needs_data_for_it(
    tmp_path: Path, mine: tuple[str, ...], words: tuple[str, ...]
) -> None:
    for data in (mine, DEMO):
        problem = refusal(tmp_path, *data, *words)
        assert problem.id == "no_split_to_evaluate" and "data.validation=0.02" in str(problem.cure)
        assert words[0] in problem.message
    for more in ("data.validation=0.1", "flags.dataset_test_split=train"):
        assert plan_of(tmp_path, *mine, "flags.eval_strategy=epoch", more)
    hub = ("data.build=null", "data.mix=[{name: allenai/some-data}]")
    assert plan_of(tmp_path, *DEMO, *hub, "flags.eval_strategy=epoch")


def two_sets(folder: Path) -> tuple[str, ...]:
    """A stage on two files; `held_out` is what data.validation lists."""
    for name in ("sums", "maths"):
        rows = [chat(f"{name} {number}?", "A number.") for number in range(100)]
        write_lines(folder / f"{name}.jsonl", rows)
    mix = "data.mix=[{name: ./sums.jsonl}, {name: ./maths.jsonl}]"
    return (*DEMO, "data.build=null", mix)


def listed(*items: str) -> str:
    return f"data.validation=[{', '.join(items)}]"


SUMS = "{name: ./sums.jsonl, share: 0.1}"
MATHS = "{name: ./maths.jsonl, share: 0.2}"


def test_each_listed_data_set_is_a_validation_set_with_a_curve(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, *two_sets(tmp_path), listed(SUMS, MATHS))
    assert [entry.data and entry.data.validation for entry in plan.inputs.mixture] == [0.1, 0.2]
    [option] = [text for text in plan.options if text.startswith("mixture=")]
    parts = read_parts(option.removeprefix("mixture="))
    assert [(part.curve, part.validation) for part in parts] == [("sums", "0.1"), ("maths", "0.2")]
    assert {part.holds_out for part in parts} == {"staged"}
    described = str(describe_schedule(plan.config))
    assert "eval_loss/sums" in described and "eval_loss/maths" in described


def test_a_data_set_that_is_not_listed_is_trained_on_completely(tmp_path: Path) -> None:
    words = two_sets(tmp_path)
    plan = plan_of(tmp_path, *words, listed(MATHS))
    assert [entry.data and entry.data.validation for entry in plan.inputs.mixture] == [None, 0.2]
    [option] = [text for text in plan.options if text.startswith("mixture=")]
    first, second = read_parts(option.removeprefix("mixture="))
    assert (first.curve, first.holds_out) == (None, "none")
    assert (second.curve, second.holds_out) == ("maths", "staged")
    # a share of all data sets has one curve, and their files are staged as one
    whole = plan_of(tmp_path, *words, "data.validation=0.1")
    assert len(whole.inputs.mixture) == 1 and "mixture=" not in "".join(whole.options)


def test_hub_data_is_split_as_it_is_loaded_by_its_own_share(tmp_path: Path) -> None:
    mix = "data.mix=[{name: allenai/one}, {name: allenai/two}, {name: other/two}]"
    sets = listed("{name: allenai/two, share: 0.1}", "{name: other/two, share: 0.2}")
    plan = plan_of(tmp_path, *DEMO, "data.build=null", mix, sets)
    assert not [text for text in plan.options if text.startswith("validation=")]
    [option] = [text for text in plan.options if text.startswith("mixture=")]
    parts = read_parts(option.removeprefix("mixture="))
    assert [(part.holds_out, part.validation, part.curve) for part in parts] == [
        ("none", None, None),
        ("split", "0.1", "two"),
        ("split", "0.2", "two_2"),
    ]


@pytest.mark.parametrize(
    ("sets", "named"),
    [
        (listed(), "empty"),
        (listed("{name: ./sums.jsonl}"), "share"),
        (listed("{name: ./sums.jsonl, share: 0.1, split: test}"), "split"),
        (listed("{name: ./sum.jsonl, share: 0.1}"), "./sums.jsonl"),
        (listed(SUMS, SUMS), "twice"),
        (listed("{name: ./sums.jsonl, share: 1.5}"), "1.5"),
        (listed("{name: ./sums.jsonl, share: many}"), "many"),
    ],
)
def test_a_list_that_can_not_be_is_refused(tmp_path: Path, sets: str, named: str) -> None:
    problem = refusal(tmp_path, *two_sets(tmp_path), sets)
    assert (problem.id, problem.where) == ("bad_validation", "override data.validation")
    assert named in problem.message


def test_a_trainer_that_does_not_evaluate_names_one_that_does(tmp_path: Path) -> None:
    words = [word for word in two_sets(tmp_path) if not word.startswith("trainer=")]
    problem = refusal(tmp_path, *words, "trainer=finetune", listed(SUMS))
    assert problem.id == "validation_unsupported"
    assert "trainer=trl_sft" in [str(action) for action in actions_of(problem.cure)]
    assert plan_of(tmp_path, *words, "trainer=trl_sft", listed(SUMS))
