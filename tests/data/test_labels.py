"""The labels of KTO's rows: which columns have them, what they may be, and how they weigh."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest

from launch.config.kinds import Kind
from launch.data.conversion import Conversion
from launch.data.draft import read_for_draft
from launch.data.label_balance import LARGEST_RATIO, LabelCount, balance_weights, measure_balance
from launch.data.stage_kind import choose_kind
from launch.data.staging import load_staged, stage
from launch.digests import hash_file
from launch.errors import UserError
from tests.data.files import CHAT, PAIR, converted, local, problems, write_csv, write_lines

ANSWER = {"prompt": "Hi", "completion": "Hello"}


def convert(path: Path, columns: dict[str, str] | None = None) -> list[dict[str, Any]]:
    data = local(path, kind=Kind.kto, columns=columns)
    return [row for _, row in Conversion(data).rows(data.files.paths)]


@pytest.mark.parametrize(
    ("row", "columns", "label"),
    [
        ({**ANSWER, "label": True}, None, True),
        ({**ANSWER, "label": "True"}, None, True),  # as pandas writes a CSV file
        ({**ANSWER, "label": "False "}, None, False),
        ({**ANSWER, "label": False}, None, False),
        ({**ANSWER, "kto_tag": 0}, None, False),
        ({**ANSWER, "feedback": 1.0}, None, True),
        ({**CHAT, "Label": False}, None, False),
        ({"instruction": "Hi", "output": "Hello", "kto_tag": True}, None, True),
        (
            {"q": "Hi", "a": "Hello", "up": 1},
            {"prompt": "q", "completion": "a", "label": "up"},
            True,
        ),
        ({**ANSWER, "thumb": "good"}, {"label": "thumb:good/bad"}, True),
        ({**ANSWER, "thumb": " bad "}, {"label": "thumb:good/bad"}, False),
        ({**ANSWER, "label": "false"}, {"label": "label:true/false"}, False),
        ({**ANSWER, "votes": {"good": 1}}, {"label": "votes.good"}, True),
        ({**ANSWER, "votes": {"first": "no"}}, {"label": "votes.first:yes/no"}, False),
        # a number and a truth value are what their texts say
        ({**ANSWER, "toxic": 1}, {"label": "toxic:0/1"}, False),
        ({**ANSWER, "toxic": 0.0}, {"label": "toxic:0/1"}, True),
        ({**ANSWER, "harmful": False}, {"label": "harmful:false/true"}, True),
        ({**ANSWER, "score": -1}, {"label": "score:1/-1"}, False),
        # texts that differ in case alone keep it
        ({**ANSWER, "mark": "K"}, {"label": "mark:K/k"}, True),
        ({**ANSWER, "mark": "k"}, {"label": "mark:K/k"}, False),
        # a column that is named is the label, whatever another one has
        ({**ANSWER, "label": True, "thumb": False}, {"label": "thumb"}, False),
    ],
)
def test_a_label_is_read(
    tmp_path: Path, row: dict[str, Any], columns: dict[str, str] | None, label: bool
) -> None:
    [converted] = convert(write_lines(tmp_path / "rows.jsonl", [row]), columns)
    assert converted == {**CHAT, "label": label}


@pytest.mark.parametrize(
    ("row", "id", "named"),
    [
        (ANSWER, "data_label", "data.columns.label=MY_COLUMN"),
        ({**ANSWER, "label": "yes"}, "data_label", "data.columns.label=label:GOOD/BAD"),
        ({**ANSWER, "kto_tag": "no"}, "data_label", "data.columns.label=kto_tag:GOOD/BAD"),
        ({**ANSWER, "label": 4}, "data_label", "4"),
        ({**ANSWER, "label": [True]}, "data_label", "a list"),
        ({"messages": CHAT["messages"][:1], "label": True}, "data_no_answer", "last turn"),
        (
            {"messages": CHAT["messages"][:1], "response": "Hello", "label": True},
            "data_no_answer",
            "data.columns.prompt=messages",
        ),
        ({"messages": CHAT["messages"][1:], "label": True}, "data_row", "without a prompt"),
        (
            {
                "messages": [CHAT["messages"][0], {**CHAT["messages"][1], "weight": 0}],
                "label": True,
            },
            "data_marks",
            "weight",
        ),
        ({**PAIR, "label": True}, "data_columns", "dpo"),
        ({"text": "Hello", "label": True}, "data_columns", "text"),
    ],
)
def test_a_row_without_a_usable_label_is_refused(
    tmp_path: Path, row: dict[str, Any], id: str, named: str
) -> None:
    with pytest.raises(UserError) as refused:
        convert(write_lines(tmp_path / "rows.jsonl", [row]))
    [problem] = refused.value.problems
    assert problem.id == id and named in f"{problem.message} {problem.cure}"
    assert problem.where == f"{tmp_path}/rows.jsonl:1"


@pytest.mark.parametrize(
    ("texts", "named"), [("good/good", "same text 'good'"), ("Good/good", "neither 'Good' nor")]
)
def test_texts_of_a_label_are_told_apart(tmp_path: Path, texts: str, named: str) -> None:
    path = write_lines(tmp_path / "rows.jsonl", [{**ANSWER, "mark": "GOOD"}])
    with pytest.raises(UserError) as refused:
        convert(path, {"label": f"mark:{texts}"})
    [problem] = refused.value.problems
    assert problem.id == "data_label" and named in problem.message


@pytest.mark.parametrize("value", [None, 2, "neither", True])
def test_what_named_texts_do_not_have_is_refused(tmp_path: Path, value: object) -> None:
    """Another column's label does not take its place."""
    rows = write_lines(tmp_path / "rows.jsonl", [{**ANSWER, "verdict": value, "feedback": True}])
    with pytest.raises(UserError) as refused:
        convert(rows, {"label": "verdict:1/0"})
    [problem] = refused.value.problems
    assert problem.id == "data_label" and "verdict" in problem.message


def test_the_cure_of_a_text_is_what_reads_it(tmp_path: Path) -> None:
    rows = [["prompt", "completion", "label"], ["Hi", "No", "False"]]
    table = write_csv(tmp_path / "rows.csv", rows)
    assert convert(table)[0]["label"] is False
    assert convert(table, {"label": "label:true/false"})[0]["label"] is False
    with pytest.raises(UserError) as other:
        convert(table, {"label": "label:up/down"})
    assert other.value.problems[0].id == "data_label"


@pytest.mark.parametrize(
    ("row", "columns", "kind"),
    [
        ({**ANSWER, "label": True}, (), Kind.kto),
        ({**ANSWER, "feedback": 0}, (), Kind.kto),
        ({**ANSWER, "kto_tag": "yes"}, (), Kind.kto),
        ({**ANSWER, "label": "thumb"}, ("label",), Kind.kto),
        ({**ANSWER, "label": "a long text"}, (), Kind.sft),
        ({**ANSWER, "label": {"ability": ["maths"]}}, (), Kind.sft),
        ({**ANSWER, "label": [True]}, (), Kind.sft),
        ({**ANSWER, "label": 3}, (), Kind.sft),
        ({**ANSWER, "feedback": "well written"}, (), Kind.sft),
        ({**ANSWER, "label": True, "ground_truth": "4"}, ("label",), Kind.kto),
        ({**CHAT, "label": False}, (), Kind.kto),
        ({**PAIR, "label": True}, (), Kind.dpo),
        ({"prompt": "Hi", "label": True}, (), Kind.rlvr),
    ],
)
def test_rows_are_for_kto_by_their_label(
    row: dict[str, Any], columns: tuple[str, ...], kind: Kind
) -> None:
    assert choose_kind(row, None, "rows.jsonl:1", columns) == kind


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("if_chosen", True, False),
        ("is_correct", "True", "False"),
        ("selected", 1, 0),
        ("thumbs_up", 1.0, 0.0),
        ("Accepted", True, False),
    ],
)
def test_a_column_that_judges_answers_is_asked_about_and_bad_ones_are_not_learnt(
    tmp_path: Path, name: str, good: object, bad: object
) -> None:
    rows = [
        {"prompt": f"{n}?", "completion": f"a {n}", name: bad if n % 2 else good} for n in (2, 3)
    ]
    path = write_lines(tmp_path / "rows.jsonl", rows)
    with pytest.raises(UserError) as refused:
        read_for_draft(path, {})
    cure = str(refused.value.problems[0].cure)
    [named] = re.findall(r"--columns label=([^)]+)\)", cure)
    assert read_for_draft(path, {"label": named}).structure.labels == LabelCount(1, 1)
    assert [row["label"] for row in converted(path, kind=Kind.kto, columns={"label": named})] == [
        True,
        False,
    ]
    [problem] = problems(path)
    assert (problem.id, problem.where) == ("data_row", f"{path}:2")
    assert f"data.columns.label={named}" in str(problem.cure)
    assert len(converted(path, skips=True)) == 1


@pytest.mark.parametrize(
    "extra", [{"correct": 0}, {"best": 1}, {"is_chosen": "maybe"}, {"good": 3}]
)
def test_what_is_no_judgement_is_an_unused_column(tmp_path: Path, extra: dict[str, Any]) -> None:
    path = write_lines(tmp_path / "rows.jsonl", [{**ANSWER, **extra}])
    assert len(converted(path)) == 1


def test_a_turn_that_was_not_chosen_is_not_learnt(tmp_path: Path) -> None:
    turns = [
        {"role": "user", "content": "Hi", "turn": 0},
        {"role": "model", "content": "Hello", "turn": 0, "if_chosen": True},
        {"role": "model", "content": "Go away", "turn": 0, "if_chosen": False},
    ]
    path = write_lines(tmp_path / "rows.jsonl", [{"conversation": turns}])
    [problem] = problems(path)
    assert problem.id == "data_row" and "turn 3 of conversation has if_chosen" in problem.message
    assert len(converted(write_lines(path, [{"conversation": turns[:2]}]))) == 1


@pytest.mark.parametrize(
    ("label", "texts"),
    [
        ({"label": "good"}, "GOOD/BAD"),
        ({"feedback": "up"}, "GOOD/BAD"),
        ({"feedback": "0"}, "1/0"),
        ({"label": {"class": 3}, "feedback": "down"}, "GOOD/BAD"),
    ],
)
def test_a_label_that_is_a_word_is_asked_about(
    tmp_path: Path, label: dict[str, Any], texts: str
) -> None:
    path = write_lines(tmp_path / "rows.jsonl", [{**ANSWER, **label}])
    with pytest.raises(UserError) as refused:
        read_for_draft(path, {})
    [problem] = refused.value.problems
    assert (problem.id, problem.where) == ("data_columns", f"{path}:1")
    name = list(label)[-1]
    assert f"(--columns label={name}:{texts})" in str(problem.cure)
    # both ways of the cure work
    word = str(label[name])
    named = read_for_draft(path, {"label": f"{name}:{word}/other"})
    assert named.kind == Kind.kto and named.structure.labels == LabelCount(1, 0)
    if word != "False":
        assert read_for_draft(path, {}, Kind.sft).kind == Kind.sft


@pytest.mark.parametrize(
    ("label", "is_refused"),
    [
        ({"kto_tag": False}, True),
        ({"kto_tag": 0}, True),
        ({"kto_tag": 0.0}, True),
        ({"kto_tag": "0"}, True),
        ({"label": "False"}, True),
        ({"kto_tag": 1}, False),
        ({"kto_tag": True}, False),
        ({"label": 0}, False),  # the number of a class, which is named
    ],
)
def test_an_sft_stage_learns_no_bad_answer(
    tmp_path: Path, label: dict[str, Any], is_refused: bool
) -> None:
    path = write_lines(tmp_path / "rows.jsonl", [{**ANSWER, **label}])
    data = local(path)
    if not is_refused:
        assert [row for _, row in Conversion(data).rows(data.files.paths)] == [CHAT]
        return
    with pytest.raises(UserError) as refused:
        list(Conversion(data).rows(data.files.paths))
    [problem] = refused.value.problems
    assert problem.id == "data_row" and "kto" in str(problem.cure)


def test_the_labels_that_are_trained_on_are_counted(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}?", "completion": "Yes", "label": n % 4 == 0} for n in range(80)]
    write_lines(tmp_path / "rows.jsonl", rows)
    data = local(tmp_path / "rows.jsonl", kind=Kind.kto, validation=0.25)
    assert stage(data, hash_file) is not None
    staged = load_staged(data)
    assert staged is not None and staged.labels is not None
    assert staged.labels.good + staged.labels.bad == staged.train == 60
    assert any("20 answers are labelled good, 60 bad" in note for note in staged.notes)


def test_the_weight_that_is_computed_balances_the_labels() -> None:
    draw = random.Random(0)
    for _ in range(300):
        count = LabelCount(draw.randint(1, 5000), draw.randint(1, 5000))
        weights = {"desirable_weight": draw.choice((0.5, 1.0, 2.0)), "undesirable_weight": 1.0}
        before = measure_balance(count, **_as_arguments(weights))
        if 1 <= before <= LARGEST_RATIO:
            continue
        key, weight = balance_weights(count, **_as_arguments(weights))
        assert weight > weights[key]  # a weight is raised, never lowered
        after = measure_balance(count, **_as_arguments({**weights, key: weight}))
        assert 1 <= after <= LARGEST_RATIO, (count, weights, key, weight)


def _as_arguments(weights: dict[str, float]) -> dict[str, float]:
    return {key.removesuffix("_weight"): value for key, value in weights.items()}
