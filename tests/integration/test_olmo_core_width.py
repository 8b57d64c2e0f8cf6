"""A DPO over OLMo-core that was killed on two CPU processes goes on with one, from OLMo-core's own
checkpoint.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.integration import tiny_stage
from tests.integration.conftest import finish, records, stop_once

pytestmark = [
    pytest.mark.slow,
    pytest.mark.thorough,
    pytest.mark.usefixtures("open_instruct"),
]
LAST = 32  # two epochs of 16 steps
KILLED_AFTER = 4
SHAPE = (
    *("stage=dpo", "trainer=dpo", "device=cpu", "recipe.max_seq_length=256"),
    *("recipe.gradient_checkpointing=false", "recipe.chat_template=null", "recipe.epochs=2"),
    *("recipe.max_steps=null", "recipe.checkpoint_steps=2", "recipe.learning_rate=1e-4"),
    "recipe.global_batch_size=4",
)
# A rank has its part of a global batch in one pass, so that every pair has the same weight.
WIDTHS = {
    2: ("processes=2", "recipe.per_device_batch_size=2"),
    1: ("processes=1", "recipe.per_device_batch_size=4"),
}


@pytest.mark.parametrize(("first", "second"), [(2, 1), (1, 2)])
def test_a_killed_run_goes_on_at_another_width(
    tmp_path: Path, olmo_stage: tiny_stage.TinyStage, first: int, second: int
) -> None:
    line = (
        *SHAPE,
        f"model.path={olmo_stage.model}",
        f"data.mix=[{{name: {olmo_stage.preferences}}}]",
    )
    stage = tmp_path / "runs" / "dpo"
    for width in (first, second):
        code, text = finish(tmp_path, *line, *WIDTHS[width], f"name=whole{width}")
        assert code == 0, text
    cut = stage / "cut"
    checkpoint = cut / "model" / f"step{KILLED_AFTER}" / ".metadata.json"

    def is_past_it() -> bool:
        steps = records(cut / "metrics.jsonl")
        return checkpoint.is_file() and steps[-1]["step"] > KILLED_AFTER

    stop_once(tmp_path, is_past_it, signal.SIGKILL, *line, *WIDTHS[first], "name=cut")
    assert not (cut / "DONE").exists()
    code, text = finish(tmp_path, *line, *WIDTHS[second], "name=cut")
    assert code == 0, text
    begun, resumed = records(cut / "attempts.jsonl")
    assert [begun["ranks"], resumed["ranks"]] == [first, second]
    step = int(resumed["resumed_from"].removeprefix("step"))
    assert KILLED_AFTER <= step < LAST
    seen = {entry["step"]: entry for entry in records(cut / "metrics.jsonl")}
    one, two = (
        {entry["step"]: entry for entry in records(stage / f"whole{width}" / "metrics.jsonl")}
        for width in (first, second)
    )
    assert set(one) == set(two) == set(range(1, LAST + 1)) and set(two) >= set(seen)
    assert set(range(step + 1, LAST + 1)) <= set(seen)
    for key in ("tokens", "lr"):
        assert [seen[number][key] for number in seen] == [two[number][key] for number in seen], key
        assert [one[number][key] for number in one] == [two[number][key] for number in two], key
    # The resumed run is as near to the whole ones as they are to each other.
    noise = max(abs(one[number]["loss"] - two[number]["loss"]) for number in one)
    for whole in (one, two):
        difference = max(abs(whole[number]["loss"] - seen[number]["loss"]) for number in seen)
        assert difference <= 2 * noise + 1e-5, (noise, difference)
    items = json.loads((cut / "evidence.json").read_text())["items"]
    found = {item["what"]: item for item in items}
    assert found["resumed_step"]["found"] == step
    assert "refuted" not in {item["verdict"] for item in items}
