"""The names of other tools: each gets an answer, and following it plans or names another key; and
the page's table.
"""

from __future__ import annotations

import difflib
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from launch import resources
from launch.commands.verbs import VISIBLE
from launch.config.compose import compose_once
from launch.config.line import CommandLine, parse_line
from launch.config.other_tools import (
    OTHER_TOOLS,
    OtherToolKey,
    explain_like,
    explain_name,
    load_rows,
    load_verbs,
)
from launch.errors import UserError
from launch.worker.finding import Action
from tests.messages import outline, values_of

PAGE = resources.ROOT / "docs" / "how-to" / "from-other-tools.md"
# a value of each row's names that its own tool would take
VALUES = {
    "precision": "true",
    "mixed precision": "bf16",
    "packing": "true",
    "flattening": "true",
    "liger": "false",
    "attention": "sdpa",
    "flash attention": "false",
    "SDPA": "true",
    "gradient checkpointing": "true",
    "gradient checkpointing, off": "true",
    "lr scheduler": "cosine",
    "model": "org/model",
    "revision": "main",
    "data": "org/rows",
    "warmup ratio": "0.1",
    "weight decay": "0.1",
    "optimizer": "adamw_torch",
    "learning rate": "1e-5",
    "chat template": "tulu",
    "LoRA, on": "lora",
    "lora dropout": "0.1",
    "LoRA's layers": "q_proj",
    "QLoRA": "true",
    "DPO's beta": "0.1",
    "DPO's loss": "sigmoid",
    "sharding": "zero2",
    "ranks": "8",
    "machines": "1",
    "CPU": "true",
    "validation data": "0.1",
    "start over": "true",
    "run's name": "first",
    "tracking": "tensorboard",
    "tracking's project": "mine",
    "tracking's team": "us",
    "push to the hub": "me/model",
    "tokenised data": "/tmp/tokens",
    "max grad norm": "0.5",
}


@cache
def refuse(*argv: str) -> str:
    """Compose a line and return its problems, or nothing."""
    try:
        compose_once(parse_line(["plan", *argv], ["plan"]))
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("stage", ["sft", "dpo"])
def test_the_answer_to_each_name_is_one_hop_away(stage: str) -> None:
    """A line has the names of all tools, and a problem for each."""
    names = {
        name: VALUES.get(row.topic, "16")
        for row in load_rows()
        for name in row.names
        if row.topic.startswith("DPO") == (stage == "dpo")
    }
    problems = refuse(f"stage={stage}", *(f"{name}={names[name]}" for name in names)).splitlines()
    assert len(problems) == len(names)
    for (name, value), problem in zip(names.items(), problems, strict=True):
        answer = explain_name(name, value)
        assert answer and "VALUE" not in str(answer)
        assert f"'{name}'" in problem and problem.endswith(f"{answer} [unknown_key]")
        for action in answer.actions:
            assert action.removes == name
            assert not action.is_exact or refuse(f"stage={stage}", *action.sets) == "", name


@pytest.mark.parametrize(
    "spelling", ["--lora-r", "--lora_r", "-lora_r", "LORA_R", "recipe.lora.lora_r", "a.b.lora_r"]
)
def test_dashes_capitals_and_groups_do_not_matter(spelling: str) -> None:
    assert str(explain_name(spelling, "8")) == "set recipe.lora.rank=8"


@pytest.mark.parametrize(
    ("argv", "instead"),
    [
        (("--learning_rate", "1e-5"), ["recipe.learning_rate=1e-5"]),
        (("--learning-rate=1e-5",), ["recipe.learning_rate=1e-5"]),
        (("--bf16",), ["recipe.precision=bf16"]),
        (("--bf16", "true"), ["recipe.precision=bf16"]),
        (
            ("--gradient_accumulation_steps", "4"),
            ["recipe.global_batch_size", "recipe.per_device_batch_size"],
        ),
    ],
)
def test_an_option_of_another_tool_is_one_problem_with_its_cure(
    argv: tuple[str, ...], instead: list[str]
) -> None:
    [problem] = refuse("stage=sft", *argv).splitlines()
    assert [value for value in values_of(problem) if value.startswith("recipe.")] == instead


def test_every_key_that_launch_has_not_is_named_at_once() -> None:
    problems = refuse(
        "stage=lora_sft", "lora_r=8", "recipe.seed=2", "micro_batch_size=2", "nonsense=4"
    ).splitlines()
    assert [outline(problem) for problem in problems] == [
        "unknown_key, lora_r, recipe.lora.rank=8",
        "unknown_key, micro_batch_size, recipe.per_device_batch_size=2",
        "unknown_key, flags.nonsense=4, nonsense",
    ]


def test_every_other_verb_is_one_here_and_no_word_is_a_verb_itself() -> None:
    verbs = load_verbs()
    assert set(verbs.values()) <= set(VISIBLE) and not set(verbs) & set(VISIBLE)


@pytest.mark.parametrize(
    ("argv", "answer"),
    [
        (
            ["export", "x"],
            (
                "unknown_verb, export, launch merge x, llama.cpp, "
                "python convert_hf_to_gguf.py x/merged --outfile model.gguf"
            ),
        ),
        (["chat", "x"], "unknown_verb, chat, launch generate x --chat"),
        (["demo", "gpus=1"], "unknown_verb, demo, launch stage=demo gpus=1"),
    ],
)
def test_first_words(argv: list[str], answer: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_line(argv, list(VISIBLE))
    assert outline(str(caught.value)) == answer


def test_no_name_is_in_two_rows_but_those_of_one_thing() -> None:
    answers: dict[str, set[str]] = {}
    for row in load_rows():
        for name in row.names:
            answers.setdefault(name, set()).add(row.topic)
    assert {name: topics for name, topics in answers.items() if len(topics) > 1} == {}


def test_every_name_has_an_answer() -> None:
    rows = load_rows()
    assert [
        row.topic for row in rows if row.names and not (row.set or row.values or row.instead)
    ] == []


def test_a_row_with_an_unknown_field_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "table.yaml"
    file.write_text("verbs: {}\nrows:\n  - {topic: x, nmae: [a]}\n", encoding="utf-8")
    with pytest.raises(TypeError, match="nmae"):
        load_rows(file)


def render_table() -> str:
    """Return the Markdown table of docs/how-to/from-other-tools.md."""
    lines = ["| | here | axolotl | TRL (CLI, 1.16) | LLaMA-Factory |", "|---|---|---|---|---|"]
    for row in load_rows():
        names = (getattr(row, tool) for tool in OTHER_TOOLS)
        cells = [
            cell if isinstance(cell, str) else ", ".join(f"`{name}`" for name in cell)
            for cell in names
        ]
        if row.here:
            lines.append(f"| {' | '.join([row.topic, row.here, *cells])} |")
    return "\n".join(lines) + "\n"


def test_the_page_has_the_table(pytestconfig: pytest.Config) -> None:
    page, table = PAGE.read_text(encoding="utf-8"), render_table()
    start = page.index("| | here |")
    end = page.index("\n\n", start) + 1
    if pytestconfig.getoption("--update-golden"):
        PAGE.write_text(page[:start] + table + page[end:], encoding="utf-8")
        return
    difference = difflib.unified_diff(
        page[start:end].splitlines(), table.splitlines(), "page", "rows", lineterm=""
    )
    assert page[start:end] == table, "\n".join(difference)
    assert len(OTHER_TOOLS) == 3


def test_a_line_needs_no_table_unless_a_name_is_unknown() -> None:
    load_rows.cache_clear()
    compose_once(CommandLine("plan", False, ("stage=sft",)))
    assert load_rows.cache_info().misses == 0


NUMBER = OtherToolKey("a number", set="recipe.x={value}")
LIST = OtherToolKey("a list", set="data.x={list}")
NAMED = OtherToolKey("names", values={"a": "x=1 or y=2", "b.*": "x=3"})


@pytest.mark.parametrize(
    ("row", "value", "sentence"),
    [
        (NUMBER, "3", "set recipe.x=3"),
        (NUMBER, None, "set recipe.x=VALUE"),
        (LIST, "3", "set data.x=[3]"),
        (LIST, "[3,4]", "set data.x=[3,4]"),
        (LIST, "auto", "set data.x=[auto]"),  # a word of its own outside of the recipe
        (OtherToolKey("a count", set="gpus={count}"), "3,4", "set gpus=2"),
        (NAMED, "A", "set x=1 or y=2"),
        (NAMED, "bcd", "set x=3"),
        (NAMED, "c", "set x=1 or y=2 or x=3"),
        (replace(NUMBER, values={"auto": "recipe.x=1"}), "auto", "set recipe.x=1"),
        (replace(NUMBER, instead="another way"), "3", "set recipe.x=3"),
        (replace(NUMBER, instead="another way"), "word", "another way"),
    ],
)
def test_a_value_of_a_row_has_its_answer(
    row: OtherToolKey, value: str | None, sentence: str
) -> None:
    assert row.answer("name", value).sentence.format(*row.answer("name", value).actions) == sentence


@pytest.mark.parametrize(
    ("row", "value"),
    [(NUMBER, "auto"), (replace(NUMBER, instead="remove it: why"), "word")],
)
def test_what_can_only_be_removed_is_removed(row: OtherToolKey, value: str) -> None:
    assert row.answer("name", value).actions == (Action(removes="name"),)


def test_a_misspelt_name_is_answered_with_its_value() -> None:
    fix = explain_like("learningrate", "1e-5")
    assert fix is not None and fix.actions[0].sets == ("recipe.learning_rate=1e-5",)
    for name, value in (("learningrate", None), ("learningrate", ""), ("quite_other", "3")):
        assert explain_like(name, value) is None
