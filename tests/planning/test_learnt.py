"""data.train_on and data.format=text in a plan: what each trainer is given, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch.config.kinds import DataFormat
from launch.data.draft import draft_stage, read_for_draft
from launch.planning.expectations import build_expectations
from tests.conftest import machine_in, planned, problem_ids
from tests.data.files import write_lines

LAST = ["last_turn_tulu_tokenize_and_truncate_v1", "sft_tulu_filter_v1"]
HUB = ("data.build=null", "data.mix=[{name: a/b}]")
OLMO = ("recipe.packing=bins", "model=olmo2_1b")
TRL = ("stage=demo", "trainer=trl_sft", *HUB)
TEXT = (*TRL, "data.format=text")


@pytest.mark.parametrize(
    ("words", "flags", "option"),
    [
        (("stage=sft", "data.train_on=last"), {"dataset_transform_fn": LAST}, None),
        (
            ("stage=sft", "trainer=olmo_core_finetune", *OLMO, "data.train_on=last"),
            {"transform_fn": LAST},
            None,
        ),
        ((*TRL, "data.train_on=last"), {"assistant_only_loss": True}, "learns=last"),
        (("stage=lora_sft", "data.train_on=last"), {"assistant_only_loss": True}, "learns=last"),
        (
            (*TEXT, "recipe.packing=bins"),
            {"assistant_only_loss": False, "packing": True, "packing_strategy": "bfd_split"},
            "learns=text",
        ),
        ((*TEXT, "allow=[text_cut]"), {"assistant_only_loss": False}, "learns=text"),
        ((*TRL, "recipe.packing=bins"), {"packing_strategy": "bfd"}, None),
    ],
)
def test_each_trainer_gets_what_it_learns(
    words: tuple[str, ...], flags: dict[str, object], option: str | None
) -> None:
    plan = planned(*words)
    assert {name: plan.flags[name].value for name in flags} == flags
    assert [text for text in plan.options if text.startswith("learns")] == (
        [option] if option else []
    )
    expected = build_expectations(plan.config, plan.parallel, plan.inputs.mixture)
    learnt = "text" if "packing_strategy" in flags and option else None
    if "data.train_on=last" in words:
        learnt = "last"
    assert expected.get("train_on") == learnt


def test_what_is_learnt_is_part_of_the_identity() -> None:
    identities = {planned(*TRL, *word).identity for word in ((), ("data.train_on=last",))}
    assert len(identities) == 2


@pytest.mark.parametrize(
    ("words", "id"),
    [
        (("stage=sft", "data.train_on=marked"), "learning_unsupported"),
        (
            ("stage=sft", "trainer=olmo_core_finetune", *OLMO, "data.train_on=marked"),
            "learning_unsupported",
        ),
        (("stage=sft", "data.format=text"), "learning_unsupported"),
        (
            ("stage=sft", "trainer=olmo_core_finetune", *OLMO, "data.format=text"),
            "learning_unsupported",
        ),
        (("stage=dpo", "data.train_on=last"), "learning_unsupported"),
        (("stage=lora_dpo", "data.train_on=marked"), "learning_unsupported"),
        (("stage=rm", "data.train_on=last"), "learning_unsupported"),
        (("stage=demo_rlvr", "data.train_on=last"), "learning_unsupported"),
        (("stage=dpo", "data.format=text"), "learning_unsupported"),
        ((*TEXT, "recipe.packing=bins", "data.train_on=last"), "text_has_no_turns"),
        (TEXT, "text_cut"),
        ((*TEXT, "recipe.packing=flatten"), "text_cut"),
        ((*TRL, "data.train_on=marked"), "marks_not_read"),
        (("stage=demo", "trainer=trl_sft", "data.train_on=marked"), "marks_not_read"),
        (
            ("stage=demo", "trainer=trl_sft", "data.format=text", "recipe.packing=bins"),
            "text_of_other_format",
        ),
    ],
)
def test_what_a_trainer_cannot_learn_is_refused(words: tuple[str, ...], id: str) -> None:
    assert id in problem_ids(*words)


def test_the_cure_names_the_trainer_that_can(tmp_path: Path) -> None:
    marked = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "!", "train": True},
    ]
    write_lines(tmp_path / "a.jsonl", [{"messages": marked}] * 300)
    words = ("stage=demo", "data.build=null", "data.mix=[{name: ./a.jsonl}]")
    machine = machine_in(tmp_path)
    key = "data.train_on=marked"
    assert problem_ids(*words, "trainer=finetune", key, machine=machine) == ["learning_unsupported"]
    plan = planned(*words, "trainer=trl_sft", key, machine=machine)
    assert "learns=marked" in plan.options
    [structure] = plan.data
    assert structure is not None and "200 of 200 answers" in structure.describe()


def test_new_drafts_continued_training(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"text": f"Text {n}"} for n in range(30)])
    data = read_for_draft(path, {}, None, DataFormat.text)
    for group, base in (("demo", "demo"), ("llama3_1_8b", "sft")):
        text = draft_stage(data, group=group, path=None, trainer="trl_sft", lacks_template=True)
        lines = [line.partition(" #")[0].rstrip() for line in text.splitlines()]
        assert f"  - {base}" in lines and "  - override /trainer: trl_sft" in lines
        assert "  packing: bins" in lines and "  format: text" in lines
        assert not any("train_on" in line for line in lines)
