"""The rows that TRL's KTOTrainer gets: a prompt, a completion and a truth value, in the seed's order."""

from __future__ import annotations

from typing import Any

import pytest

datasets = pytest.importorskip("datasets", reason="the `train` dependencies are not installed")

from datasets.features import Json  # noqa: E402

from launch.worker.evidence.order import is_shuffled  # noqa: E402
from launch.worker.trl_kto import prepare_rows, to_completions  # noqa: E402

SEED = 3


def turns(*texts: str) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)]


def staged(count: int) -> Any:
    rows = [
        {"messages": turns("Hi", "Hello", f"{number}?", "Yes"), "label": number < 3}
        for number in range(count)
    ]
    return datasets.Dataset.from_list(rows)


def test_staged_rows_are_split_before_the_labelled_answer() -> None:
    rows = to_completions(staged(4))
    assert set(rows.column_names) == {"prompt", "completion", "label"}
    assert rows[0]["prompt"] == turns("Hi", "Hello", "0?")
    assert rows[0]["completion"] == [{"role": "assistant", "content": "Yes"}]
    assert rows["label"][:4] == [True, True, True, False]


def test_turns_keep_the_keys_that_they_were_staged_with() -> None:
    """`datasets` would give each turn the keys of all, and a template would write their nulls."""
    call = {"role": "assistant", "content": "", "tool_calls": [{"name": "add", "arguments": {}}]}
    rows = [
        {"messages": turns("1?", "1"), "label": True},
        {"messages": [*turns("2?"), call], "label": False},
    ]
    types = datasets.Features({"messages": datasets.List(Json()), "label": datasets.Value("bool")})
    split = to_completions(datasets.Dataset.from_list(rows, features=types))
    assert split[0]["completion"] == turns("1?", "1")[1:]
    assert split[1]["completion"] == [call]


def test_a_row_that_ends_with_a_question_is_refused() -> None:
    rows = [{"messages": turns("Hi"), "label": True}, {"messages": turns("A", "B"), "label": False}]
    with pytest.raises(ValueError, match="last turn"):
        to_completions(datasets.Dataset.from_list(rows))


def test_a_stream_is_split_as_it_is_read() -> None:
    rows = to_completions(datasets.IterableDataset.from_generator(lambda: iter(staged(4))))
    first = next(iter(rows))
    assert first["prompt"] == turns("Hi", "Hello", "0?") and first["label"] is True


def test_the_rows_of_the_split_are_shuffled_by_the_seed_and_others_are_not() -> None:
    data = {
        "train": staged(20).select(range(2, 20)),
        "validation": {"a": staged(5), "b": staged(4)},
    }
    prepared = prepare_rows(data, "train", "validation", SEED)
    train = prepared["train"]
    assert is_shuffled(train, SEED) and not is_shuffled(train, SEED + 1)
    asked = [prompt[-1]["content"] for prompt in train["prompt"]]
    assert sorted(asked) == sorted(f"{number}?" for number in range(2, 20))
    assert [prompt[-1]["content"] for prompt in prepared["validation"]["b"]["prompt"]] == [
        "0?",
        "1?",
        "2?",
        "3?",
    ]


@pytest.mark.parametrize(
    ("labels", "named"),
    [
        ([1, 0, 1], None),
        ([True, False, False], None),
        ([1, 0, 2], "2"),
        ([True, False, None], "None"),
        (["good", "bad", "bad"], "'bad'"),
        ([[True, False], [True], []], "List"),
        ([{"up": 1}, {"up": 0}, None], "up"),
        ([True, True, True], "labelled good"),
        ([0, 0, 0], "labelled bad"),
        (None, "'label'"),
    ],
)
def test_labels_of_the_hub_are_truth_values_of_both_kinds(
    labels: list[Any] | None, named: str | None
) -> None:
    columns: dict[str, list[Any]] = {"prompt": ["a", "b", "c"], "completion": ["d", "e", "f"]}
    if labels is not None:
        columns["label"] = labels
    data = {"train": datasets.Dataset.from_dict(columns)}
    if named is None:
        prepared = prepare_rows(data, "train", None, SEED)
        assert set(prepared["train"]["label"]) == {True, False}
        return
    with pytest.raises(ValueError, match=named):
        prepare_rows(data, "train", None, SEED)


@pytest.mark.parametrize("evaluated", [None, "validation"])
def test_a_split_that_is_not_used_may_have_no_labels(evaluated: str | None) -> None:
    questions = datasets.Dataset.from_dict({"question": ["a", "b"]})
    data = {"train": staged(6), "validation": staged(4), "test": questions}
    prepared = prepare_rows(data, "train", evaluated, SEED)
    assert prepared["test"] is questions
    assert ("completion" in prepared["validation"].column_names) == (evaluated is not None)
    with pytest.raises(ValueError, match="'label'"):
        prepare_rows(data, "train", "test", SEED)
