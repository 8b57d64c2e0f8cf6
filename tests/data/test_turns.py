"""The content of a turn in parts."""

from __future__ import annotations

import pytest

from launch.data.row_errors import RowError
from launch.data.turns import join_parts

TEXT = {"type": "text", "text": "a"}


@pytest.mark.parametrize("content", [[], ["a"], [TEXT, "b"], [TEXT, {}]])
def test_a_list_that_is_not_one_of_parts_is_left_as_it_is(content: list[object]) -> None:
    assert join_parts(content, "turn 2") is content


def test_the_texts_of_parts_are_lines() -> None:
    assert join_parts([TEXT, {"text": "b"}], "turn 2") == "a\nb"
    with pytest.raises(RowError, match="turn 2 has a part of type 'image'"):
        join_parts([TEXT, {"type": "image"}], "turn 2")
