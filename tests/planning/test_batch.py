from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.errors import UserError
from launch.planning.batch_split import divisors, split_batch

COUNT = st.integers(1, 64)


@given(per_device=COUNT, accumulation=COUNT, width=COUNT)
def test_a_product_splits_back_into_its_factors(
    per_device: int, accumulation: int, width: int
) -> None:
    batch = split_batch(per_device * accumulation * width, per_device, width)
    assert batch.accumulation == accumulation
    assert batch.global_ == batch.width * batch.per_device * batch.accumulation


@given(global_batch=st.integers(1, 512), per_device=COUNT, width=COUNT)
def test_every_suggestion_of_a_refusal_would_do(
    global_batch: int, per_device: int, width: int
) -> None:
    """Whatever does not divide is refused, and each value that the message offers is accepted in
    its place.
    """
    if global_batch % (per_device * width) == 0:
        assert split_batch(global_batch, per_device, width).accumulation >= 1
        return
    with pytest.raises(UserError) as refused:
        split_batch(global_batch, per_device, width)
    (problem,) = refused.value.problems
    assert problem.id == "batch_not_divisible"
    offered = dict(
        re.findall(
            r"(width of |per_device_batch_size=|global_batch_size=)([\d|]+)", str(problem.cure)
        )
    )
    assert "global_batch_size=" in offered
    for word, values in offered.items():
        for value in map(int, values.split("|")):
            numbers = {
                "width of ": (global_batch, per_device, value),
                "per_device_batch_size=": (global_batch, value, width),
                "global_batch_size=": (value, per_device, width),
            }[word]
            split_batch(*numbers)


@given(number=st.integers(1, 5000))
def test_divisors_are_all_and_only_the_divisors(number: int) -> None:
    assert divisors(number) == [n for n in range(1, number + 1) if number % n == 0]
