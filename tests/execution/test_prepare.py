"""What a run makes and looks up before it starts: waits are announced, what exists is kept, patches must exist."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launch.errors import UserError
from launch.execution.engine import _describe_changes
from launch.execution.prepare import prepare_inputs
from launch.planning.machine import this_machine
from launch.planning.plan import build_plan
from tests.conftest import composed, planned


def test_local_data_is_staged_once_and_announced(tmp_path: Path) -> None:
    chats = tmp_path / "chats.jsonl"
    rows = [{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}] * 128
    chats.write_text("".join(json.dumps(row) + "\n" for row in rows))
    overrides = ("stage=sft", "trainer=trl_sft", "device=cpu", f"runs={tmp_path}/runs", f"data.mix=[{{name: {chats}}}]")
    configuration = composed(*overrides)
    plan = build_plan(configuration, this_machine(configuration))
    printed: list[str] = []
    prepare_inputs(plan, printed.append)
    assert [line.split(" ")[0] for line in printed] == ["staging", "staged"]
    assert "128 rows" in printed[1]
    prepare_inputs(plan, printed.append)
    assert len(printed) == 2


def test_a_patch_that_does_not_exist() -> None:
    plan = planned("stage=sft", "trainer.patches=[evidnce,evidence]")
    with pytest.raises(UserError) as refusal:
        _describe_changes(plan)
    assert str(refusal.value) == (
        "trainer.patches: launch has no patch 'evidnce'; did you mean 'evidence'? [unknown_patch]"
    )
