"""The nearest names, which are those of difflib."""

from __future__ import annotations

import difflib

from hypothesis import given
from hypothesis import strategies as st

from launch.errors import nearest
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
