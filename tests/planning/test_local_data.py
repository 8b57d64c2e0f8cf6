"""Local data in a plan: every trainer reads the converted copy, and the identity follows its
content.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from launch.api.plan_facts import plan_facts
from launch.errors import UserError
from launch.planning.data import describe_data
from launch.planning.plan import Plan
from launch.worker.trl_data import read_parts
from launch.worker.trl_options import MixturePart
from tests.conftest import machine_in, planned, problem_ids
from tests.data.files import CHAT, PAIR, chat, write_lines

# of the demo's chats, for the few rows of a test
SMALL = ("recipe.global_batch_size=16", "recipe.per_device_batch_size=8", "recipe.epochs=1")


def small(words: Sequence[str]) -> list[str]:
    """Return a line's words, and SMALL of a demo's line as far as it has no other."""
    keys = {word.partition("=")[0] for word in words}
    added = SMALL if "stage=demo" in words else ()
    return [*words, *(word for word in added if word.partition("=")[0] not in keys)]


def plan_of(folder: Path, *words: str) -> Plan:
    return planned(*small(words), machine=machine_in(folder))


def refusal(folder: Path, *words: str) -> list[str]:
    return problem_ids(*small(words), machine=machine_in(folder))


@pytest.mark.parametrize(
    ("trainer", "flag"),
    [
        ("finetune", "dataset_mixer_list"),
        ("trl_sft", "dataset_name"),
        ("dpo_tune_cache", "mixer_list"),
        ("trl_dpo", "dataset_name"),
        ("reward_modeling", "dataset_mixer_list"),
    ],
)
def test_every_trainer_reads_the_copy_and_an_edited_row_is_another_run(
    tmp_path: Path, trainer: str, flag: str
) -> None:
    is_sft, stage = trainer in ("finetune", "trl_sft"), {"reward_modeling": "rm"}.get(trainer)
    stage = stage or ("demo" if is_sft else "demo_dpo")
    row = CHAT if is_sft else PAIR
    words = [f"stage={stage}", f"trainer={trainer}", "gpus=1", "data.mix=[{name: ./mine.jsonl}]"]
    write_lines(tmp_path / "mine.jsonl", [row] * 300)
    before = plan_of(tmp_path, *words)
    data = before.inputs.mixture[0].data
    assert data is not None
    value = before.flags[flag].value
    place = data.folder if flag == "dataset_name" else data.train_file
    assert str(place) == (value if isinstance(value, str) else value[0])
    write_lines(
        tmp_path / "mine.jsonl",
        [row] * 299 + [chat("Hi", "Hullo") if is_sft else {**PAIR, "prompt": "Hi"}],
    )
    assert plan_of(tmp_path, *words).identity != before.identity
    write_lines(tmp_path / "mine.jsonl", [row] * 300)
    assert plan_of(tmp_path, *words).identity == before.identity


def test_several_local_entries_are_one_for_trl(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", [CHAT] * 10)
    write_lines(tmp_path / "b.jsonl", [CHAT] * 10)
    words = ("stage=demo", "trainer=trl_sft")
    plan = plan_of(
        tmp_path, *words, "data.mix=[{name: ./a.jsonl}, {name: ./b.jsonl}]", "data.fraction=0.9"
    )
    (entry,) = plan.inputs.mixture
    assert entry.data is not None
    assert [path.name for path in entry.data.files.paths] == ["a.jsonl", "b.jsonl"]
    assert "subset=0.9" in plan.options


def test_trl_mixes_data_sets_with_shares(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_lines(tmp_path / f"{name}.jsonl", [{"prompt": name, "completion": "Hello"}] * 40)
    write_lines(tmp_path / "held.jsonl", [{"prompt": "Hm", "completion": "Hello"}] * 4)
    words = ("stage=demo", "trainer=trl_sft", "data.build=null", "data.fraction=0.5")
    hub = "{name: allenai/tulu-3-sft-mixture, share: 0.1, split: rest}"
    both = "{name: ./a.jsonl}, {name: ./b.jsonl, share: 0.5}"
    plan = plan_of(tmp_path, *words, f"data.mix=[{both}, {hub}]", "data.validation=0.1")
    mixture, validation = parts_of(plan)
    assert [(part.share, part.split, part.holds_out) for part in mixture] == [
        ("0.5", "train", "staged"),
        ("0.25", "train", "staged"),
        ("0.05", "rest", "split"),
    ]
    assert validation == "0.1" and mixture[2].name == "allenai/tulu-3-sft-mixture"
    assert [Path(part.name) for part in mixture[:2]] == [
        entry.data.folder for entry in plan.inputs.mixture[:2] if entry.data
    ]
    plan = plan_of(tmp_path, *words, f"data.mix=[{both}]", "data.validation=held.jsonl")
    assert [part.holds_out for part in parts_of(plan)[0]] == ["staged", "none"]
    other = plan_of(
        tmp_path, *words, f"data.mix=[{both.replace('0.5', '0.6')}]", "data.validation=held.jsonl"
    )
    assert other.identity != plan.identity and other.lengths_file != plan.lengths_file


def parts_of(plan: Plan) -> tuple[list[MixturePart], str | None]:
    options = dict(option.partition("=")[::2] for option in plan.options)
    return read_parts(options["mixture"]), options.get("validation")


def test_a_plan_reads_the_rows_and_describes_them(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", [{"prompt": "Hi", "completion": "Hello"}] * 50)
    mix = (
        "data.mix=[{name: ./a.jsonl}, {name: allenai/tulu-3-sft-mixture}, {name: "
        "./elsewhere/missing.jsonl}]"
    )
    plan = plan_of(tmp_path, "stage=demo", mix)
    shape = (
        "prompt_completion (prompt, completion), converted to messages; 2 turns (user, assistant)"
    )
    assert describe_data(plan.inputs, plan.data) == [
        f"a.jsonl: 50 rows read: {shape}",
        "allenai/tulu-3-sft-mixture: hub data, not read",
        f"{tmp_path}/elsewhere/missing.jsonl: not read, it does not exist here",
    ]
    write_lines(tmp_path / "a.jsonl", [CHAT, {"messages": []}])
    assert refusal(tmp_path, "stage=demo", mix) == ["data_no_answer"]


@pytest.mark.parametrize(
    ("rows", "words", "is_refused"),
    [
        (1, [], True),
        (15, [], True),
        (16, [], False),
        (20, ["data.fraction=0.5"], True),
        (8, ["data.fraction=2.0"], False),
        (250, ["recipe.global_batch_size=512"], True),
        (2000, ["recipe.global_batch_size=2000"], False),
        (1, ["allow=[data_small_epoch]"], False),
        (1, ["trainer=trl_sft", "recipe.packing=bins"], False),
    ],
)
def test_an_epoch_smaller_than_a_batch_is_refused(
    tmp_path: Path, rows: int, words: list[str], is_refused: bool
) -> None:
    write_lines(tmp_path / "a.jsonl", [CHAT] * rows)
    line = ["stage=demo", "data.mix=[{name: ./a.jsonl}]", *words]
    if is_refused:
        assert refusal(tmp_path, *line) == ["data_small_epoch"]
    else:
        plan_of(tmp_path, *line)


@pytest.mark.parametrize(
    ("rows", "words", "is_refused"), [(15, [], True), (16, [], False), (16, ["processes=2"], True)]
)
def test_a_reference_pass_of_dpo_py_that_would_fail_is_refused(
    tmp_path: Path, rows: int, words: list[str], is_refused: bool
) -> None:
    """data_loader.py:288 has only the rows themselves to fill a batch of 4 x 8 pairs a rank up
    with.
    """
    write_lines(tmp_path / "a.jsonl", [PAIR] * rows)
    line = [
        "stage=demo_dpo",
        "data.mix=[{name: ./a.jsonl}]",
        "model=olmo2_1b",
        "recipe.precision=bf16",
    ]
    batch = f"recipe.global_batch_size={16 if words else 8}"
    if is_refused:
        assert refusal(tmp_path, *line, "trainer=dpo", batch, *words) == ["data_small_reference"]
    else:
        plan_of(tmp_path, *line, "trainer=dpo", batch, *words)
    plan_of(tmp_path, *line, "trainer=dpo_tune_cache", batch, *words)


@pytest.mark.parametrize("override", ["cache='./a[z]b'", "runs=./a*", "cache=./what?"])
def test_a_cache_that_the_data_loader_would_glob_is_refused(tmp_path: Path, override: str) -> None:
    write_lines(tmp_path / "a.jsonl", [CHAT] * 100)
    words = ("stage=demo", "trainer=trl_sft", override)
    assert refusal(tmp_path, *words, "data.mix=[{name: ./a.jsonl}]") == ["path_wildcards"]
    assert refusal(tmp_path, *words) == ["path_wildcards"]


def test_a_folder_with_wildcards_in_its_name_is_read(tmp_path: Path) -> None:
    (tmp_path / "a[z]*?").mkdir()
    write_lines(tmp_path / "a[z]*?" / "train.jsonl", [CHAT] * 100)
    plan = plan_of(
        tmp_path, "stage=demo", "trainer=trl_sft", "data.mix=[{name: './a[z]*?/train.jsonl'}]"
    )
    assert plan.inputs.mixture[0].data is not None


def test_a_missing_file_in_a_folder_that_is_here_is_refused_with_the_nearest_names(
    tmp_path: Path,
) -> None:
    """With its folder missing too it may be another machine's, and an id without a data file's
    suffix is the hub's.
    """
    write_lines(tmp_path / "chats.jsonl", [CHAT] * 20)
    for name in ("./chat.jsonl", "chat.jsonl", f"{tmp_path}/chat.jsonl"):
        with pytest.raises(UserError) as refused:
            plan_of(tmp_path, "stage=demo", f"data.mix=[{{name: {name}}}]")
        (problem,) = refused.value.problems
        assert (problem.id, problem.message) == (
            "data_no_files",
            f"{tmp_path}/chat.jsonl does not exist",
        )
        assert (problem.where, str(problem.cure)) == (
            "override data.mix",
            "did you mean 'chats.jsonl'?",
        )
    for name in ("./elsewhere/chat.jsonl", "owner/chat.jsonl", "chats"):
        plan = plan_of(tmp_path, "stage=demo", f"data.mix=[{{name: {name}}}]")
        assert "not read" in describe_data(plan.inputs, plan.data)[0]


@pytest.mark.parametrize(
    ("overrides", "schedule"),
    [
        # 203 rows: 26 micro batches, 13 steps with a short last one
        (("recipe.epochs=2",), "2 epochs, 26 steps"),
        (("recipe.epochs=1", "processes=2"), "1 epoch, 13 steps"),
        (("recipe.epochs=1", "data.fraction=0.1"), "1 epoch, 2 steps"),
        (("recipe.epochs=1", "data.validation=0.5"), "1 epoch, 7 steps"),
        (("recipe.epochs=1", "recipe.packing=bins"), "1 epoch; packing makes"),
    ],
)
def test_the_steps_are_known_with_the_rows(
    tmp_path: Path, overrides: tuple[str, ...], schedule: str
) -> None:
    write_lines(
        tmp_path / "a.jsonl",
        [{"prompt": "Hi", "completion": f"Hello {number}"} for number in range(203)],
    )
    words = (
        "stage=demo",
        "trainer=trl_sft",
        "data.mix=[{name: ./a.jsonl}]",
        "data.bad_rows=skip",
        "recipe.max_steps=null",
    )
    plan = plan_of(tmp_path, *words, *overrides)
    assert dict(plan_facts(plan, None, None))["schedule"].startswith(schedule)


def test_the_steps_are_unknown_without_the_rows(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", [CHAT] * 300)  # more than a plan reads
    words = ("stage=demo", "trainer=trl_sft", "recipe.max_steps=null")
    for data in ("data.mix=[{name: ./a.jsonl}]", "data.mix=[{name: owner/name}]"):
        schedule = dict(plan_facts(plan_of(tmp_path, *words, data), None, None))["schedule"]
        assert schedule == "1 epoch, the number of steps is unknown until all rows are counted"


@pytest.mark.parametrize(
    ("rows", "words", "steps"),
    [
        (32, ("trainer=trl_sft", "recipe.max_steps=1"), "1 optimizer step"),
        (32, ("trainer=finetune", "recipe.max_steps=2"), "2 optimizer steps"),
        (32, ("trainer=finetune", "recipe.max_steps=3"), None),
        (32, ("trainer=trl_sft", "flags.max_steps=2"), "2 optimizer steps"),
        (32, ("trainer=finetune", "recipe.max_steps=null"), "2 optimizer steps"),
        (16, ("trainer=trl_sft", "recipe.max_steps=null"), "1 optimizer step"),
        (16, ("trainer=trl_sft", "recipe.max_steps=null", "recipe.epochs=3"), None),
        (32, ("trainer=trl_sft", "recipe.max_steps=100"), None),
    ],
)
def test_a_run_of_a_step_or_two_is_planned_with_a_warning(
    tmp_path: Path, rows: int, words: tuple[str, ...], steps: str | None
) -> None:
    write_lines(tmp_path / "mine.jsonl", [CHAT] * rows)
    plan = plan_of(tmp_path, "stage=demo", "data.mix=[{name: ./mine.jsonl}]", *words)
    warned = [warning.message for warning in plan.warnings if warning.id == "few_steps"]
    assert len(warned) == (steps is not None)
    assert steps is None or steps in warned[0]
