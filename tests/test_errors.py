"""The nearest names, which are those of difflib."""

from __future__ import annotations

import difflib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.errors import misspelt, nearest
from launch.upstream.pin.lock import locked_schema

FLAGS = list(locked_schema("finetune").fields)
NAMES = st.one_of(
    st.text(max_size=30),
    st.tuples(
        st.sampled_from(FLAGS),
        st.integers(0, 12),
        st.integers(0, 3),
        st.text("aeélnst_", max_size=4),
    ).map(lambda edit: edit[0][: edit[1]] + edit[3] + edit[0][edit[1] + edit[2] :]),
)


@given(name=NAMES, cutoff=st.sampled_from([0.6, 0.7, 0.8, 1.0]))
def test_nearest_excludes_nothing_that_difflib_keeps(name: str, cutoff: float) -> None:
    assert nearest(name, FLAGS, 3, cutoff) == difflib.get_close_matches(name, FLAGS, 3, cutoff)


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("lerning_rate", "learning_rate"),
        ("learning_rte", "learning_rate"),
        ("laerning_raet", "learning_rate"),
        ("sede", "seed"),
        ("bias", None),
        ("sequence_lens", "sequence_len"),
        ("pad_to_sequence_len", None),
        ("min_learning_rate", None),
        ("rl", None),
    ],
)
def test_a_typing_error_is_two_letters_and_no_other_word(word: str, meant: str | None) -> None:
    assert misspelt(word, ["learning_rate", "seed", "base", "sequence_len", "lr"]) == meant
