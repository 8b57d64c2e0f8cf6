"""Of two answers with a verdict the better one is chosen, and a tie is refused."""

from __future__ import annotations

import pytest

from launch.data.row_errors import RowError
from launch.data.verdicts import choose_sides, find_verdict


@pytest.mark.parametrize(
    ("answers", "column", "value", "better"),
    [
        (("conversation_a", "conversation_b"), "winner", "model_a", 0),
        (("conversation_a", "conversation_b"), "winner", "model_b", 1),
        (("response_a", "response_b"), "preference", "B", 1),
        (("response_a", "response_b"), "preferred", "response_a", 0),
        (("response_0", "response_1"), "better_response_id", 0, 0),
        (("response_0", "response_1"), "better_response_id", 1, 1),
        (("answer_1", "answer_2"), "preference", 1, 0),
        (("answer_1", "answer_2"), "preference", "2", 1),
    ],
)
def test_the_better_answer_is_chosen(
    answers: tuple[str, str], column: str, value: object, better: int
) -> None:
    verdict = find_verdict({*answers, column, "prompt"})
    assert verdict == (answers, column)
    sides = choose_sides({column: value}, verdict)
    assert sides == {"chosen": answers[better], "rejected": answers[1 - better]}


@pytest.mark.parametrize("value", ["tie", "tie (bothbad)", 2, None, ""])
def test_a_tie_is_refused(value: object) -> None:
    verdict = find_verdict({"response_0", "response_1", "winner"})
    assert verdict is not None
    with pytest.raises(RowError, match="winner") as refused:
        choose_sides({"winner": value}, verdict)
    assert refused.value.id == "data_pair"


@pytest.mark.parametrize(
    "names", [{"response_a", "response_b"}, {"response_a", "winner"}, {"winner", "prompt"}, set()]
)
def test_columns_without_two_answers_and_a_verdict_are_no_pair(names: set[str]) -> None:
    assert find_verdict(names) is None
