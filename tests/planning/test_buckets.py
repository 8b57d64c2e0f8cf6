"""parallel.buckets: another DeepSpeed file, which differs in its sizes alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from launch.config.schema import Buckets, Mode
from launch.errors import UserError
from launch.planning.parallel import bucket_sizes
from launch.planning.plan import Plan
from tests.conftest import planned


def plan(*overrides: str) -> Plan:
    return planned("stage=sft", "gpus=8", *overrides)


def deepspeed(*overrides: str) -> dict[str, Any]:
    file = plan(*overrides).parallel.deepspeed_file
    assert file is not None
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return content


@pytest.mark.parametrize(
    ("mode", "buckets"), [("zero1", "small"), ("zero2", "small"), ("zero3", "large")]
)
def test_a_file_differs_in_its_sizes_alone(mode: str, buckets: str) -> None:
    usual, other = (
        deepspeed(f"parallel={mode}"),
        deepspeed(f"parallel={mode}", f"parallel.buckets={buckets}"),
    )
    zero, other_zero = usual.pop("zero_optimization"), other.pop("zero_optimization")
    assert usual == other and zero.keys() == other_zero.keys()
    changed = {name for name in zero if zero[name] != other_zero[name]}
    assert changed and all(
        name.endswith(("bucket_size", "persistence_threshold")) for name in changed
    )
    command = plan(f"parallel={mode}", f"parallel.buckets={buckets}").command
    assert any(word.endswith(f"{mode}_{buckets}_buckets.json") for word in command)


def test_a_mode_without_such_buckets_says_which_it_has() -> None:
    with pytest.raises(UserError, match=r"parallel=zero3.*usual, large \[parallel_buckets\]"):
        plan("parallel.buckets=small")
    with pytest.raises(UserError, match=r"\[parallel_buckets\]"):
        planned("stage=sft", "gpus=1", "parallel.buckets=small")
    assert bucket_sizes(Mode.ddp) == () and bucket_sizes(Mode.zero3_offload) == (Buckets.usual,)
