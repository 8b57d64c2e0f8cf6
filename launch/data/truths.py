"""Reads what the answers to a prompt are verified with."""

from __future__ import annotations

import json
from collections.abc import Mapping

from launch.data.prompts import EMPTY
from launch.data.row_errors import RowError, parse_json

# keys of what `ifeval` reads, in the forms of lm-eval and of the Tulu 3 mixture
_INSTRUCTIONS = ("instruction_id", "func_name")
_SHOWN = 40  # characters of a truth in a message
_NESTED = "ground_truth"  # the key of verl's `reward_model`


def find_truth(row: Mapping[str, object]) -> object:
    """Return the ground truth of a row, as it is written; None without one.

    verl nests it: `reward_model: {ground_truth: ..., style: ...}`. Such an object may be named as the
    column ground_truth, also as JSON. OpenAI's rows have `reference_answer` beside messages.
    """
    truth = row.get(column_of_truth(row))
    nested = _parse_object(truth)
    if isinstance(nested, dict) and _NESTED in nested:
        truth = nested[_NESTED]
    return None if truth in EMPTY else truth


def column_of_truth(row: Mapping[str, object]) -> str:
    """Return the column with the ground truth of a row; "" if no known one has it."""
    if row.get("ground_truth") not in EMPTY:
        return "ground_truth"
    rewards = row.get("reward_model")
    if isinstance(rewards, dict) and rewards.get(_NESTED) not in EMPTY:
        return "reward_model"
    is_asked = row.get("messages") is not None
    return "reference_answer" if is_asked and row.get("reference_answer") not in EMPTY else ""


def _parse_object(value: object) -> object:
    """Return the object that a text holds as JSON; any other value as it is."""
    is_object = isinstance(value, str) and value.lstrip().startswith("{")
    return parse_json(str(value)) if is_object else value


def is_object(truth: object) -> bool:
    """Return whether a ground truth is an object, also one in a text, as JSON."""
    return isinstance(_parse_object(truth), dict)


def has_instructions(truth: object) -> bool:
    """Return whether a ground truth lists the instructions that `ifeval` checks."""
    first = _parse_object(truth[0] if isinstance(truth, list) and truth else truth)
    return isinstance(first, dict) and any(key in first for key in _INSTRUCTIONS)


def read_truth(row: Mapping[str, object], *, is_compared: bool) -> str | None:
    """Return the ground truth of a row as a text; None without one.

    A value of another type becomes JSON, which the verifiers of open-instruct and of the user read.
    A verifier that compares an answer with the truth (`is_compared`) gets the final answer of a
    solution of GSM8K; an object, also as JSON, or a list of several answers, is refused for it.

    Raises RowError: data_row.
    """
    truth = find_truth(row)
    if truth is None:
        return None
    is_by_name = row.get("dataset") not in EMPTY  # read by the verifier that the row names
    if not is_compared or is_by_name or has_instructions(truth):
        return truth if isinstance(truth, str) else json.dumps(truth, ensure_ascii=False)
    if isinstance(truth, str):
        if is_object(truth):
            raise _not_comparable(f"an object as JSON, {truth[:_SHOWN]}")
        return final_answer(truth)
    if isinstance(truth, list) and len(truth) == 1:
        truth = truth[0]
    if isinstance(truth, str):
        return truth
    if isinstance(truth, dict):
        described = f"an object with {', '.join(map(repr, truth))}"
        raise _not_comparable(described, f"{_path_of(row)}.{next(iter(truth))}")
    if isinstance(truth, list):
        raise _not_comparable(f"a list of {len(truth)} values", f"{_path_of(row)}.0")
    return json.dumps(truth, ensure_ascii=False)


def final_answer(truth: str) -> str:
    """Return what follows `####` in the last line of a solution, as in GSM8K; any other text as it is."""
    last_line = truth.strip().rpartition("\n")[2]
    _, mark, answer = last_line.partition("#### ")
    return answer.strip() if mark and answer.strip() else truth


def _path_of(row: Mapping[str, object]) -> str:
    """Return the path of the ground truth from the row down."""
    column = column_of_truth(row)
    value = row[column]
    is_nested = isinstance(value, dict) and _NESTED in value
    return f"{column}.{_NESTED}" if is_nested else column


def _not_comparable(described: str, path: str | None = None) -> RowError:
    """Return the error of a truth that no answer equals; `path` leads to a value that one may equal."""
    cure = (
        "judge answers by a function of your own (recipe.verifier=PATH.py:FUNCTION), which gets it "
        "as JSON"
    )
    if path is not None:
        cure = f"name the value to compare (data.columns.ground_truth={path}), or {cure}"
    return RowError(f"ground_truth is {described}, and an answer is compared with a text", cure)
