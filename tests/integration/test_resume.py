"""A real CPU run killed in the middle, by SIGKILL, goes on where it was: same steps, same data,
same losses.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import finish, launch_in, records, stop_once
from tests.integration.reports import read_report
from tests.thorough import mark_others

pytestmark = pytest.mark.slow

# 20 batches an epoch in steps of 3: an epoch ends in a shorter step, so that upstream's own
# arithmetic would go on at a wrong batch; and there is an epoch after the one that is resumed, of
# which dpo_tune_cache.py itself would skip a part
SHAPE = (
    *("recipe.epochs=3", "recipe.max_steps=null", "recipe.checkpoint_steps=2"),
    *("recipe.global_batch_size=12", "recipe.per_device_batch_size=4", "processes=1"),
)
STAGES = {
    "finetune": (
        "stage=demo",
        "data.fraction=0.0167",
        "recipe.balanced=true",
        "recipe.loss_averaging=tokens",
    ),
    "dpo_tune_cache": ("stage=demo_dpo", "data.fraction=0.05", "recipe.balanced=true"),
    "trl_sft": ("stage=demo", "data.fraction=0.0167"),
}
LAST = 21  # three epochs of 7 steps
KILLED_AFTER = 10


def steps(folder: Path) -> list[dict[str, Any]]:
    return records(folder / "metrics.jsonl")


# test_pipelines.py and test_other_width.py kill runs of TRL
@pytest.mark.parametrize("trainer", mark_others(list(STAGES), ["finetune"]))
def test_a_killed_run_goes_on(trainer: str, home: Path, request: pytest.FixtureRequest) -> None:
    if trainer != "trl_sft":
        request.getfixturevalue("open_instruct")
    pytest.importorskip("torch", reason="the `train` dependencies are not installed")
    words = (f"trainer={trainer}", *STAGES[trainer], *SHAPE)
    stage = STAGES[trainer][0].removeprefix("stage=")
    whole, cut = (home / "runs" / stage / f"{trainer}-{name}" for name in ("whole", "cut"))
    code, told = finish(home, *words, f"name={whole.name}")
    assert code == 0, told

    prefix = "checkpoint-" if trainer == "trl_sft" else "step_"
    checkpoint = cut / "model" / f"{prefix}{KILLED_AFTER}"

    def is_past_it() -> bool:
        return checkpoint.is_dir() and steps(cut)[-1]["step"] > KILLED_AFTER

    stop_once(home, is_past_it, signal.SIGKILL, *words, f"name={cut.name}")
    assert not (cut / "DONE").exists() and not (cut / "FAILED").exists()
    assert launch_in(home, "report", str(cut)).returncode == 0
    assert "its launcher ended without recording an outcome" in read_report(cut).text
    # what a checkpoint's own mark is worth: upstream would take this one
    bogus = cut / "model" / f"{prefix}{LAST - 2}"
    bogus.mkdir()
    (bogus / "COMPLETED").write_text("COMPLETED")

    logged = steps(cut)[-1]["step"]
    code, told = finish(home, *words, f"name={cut.name}")
    assert code == 0, told
    assert "took over the lock of" in told
    resumed = json.loads((cut / "attempts.jsonl").read_text().splitlines()[-1])
    assert f"resumes from {resumed['resumed_from']} (attempt 2)" in told
    first = int(resumed["resumed_from"].removeprefix(prefix))
    assert KILLED_AFTER <= first < LAST - 2
    assert bogus.name in resumed["set_aside"]
    assert f"{bogus.name} is incomplete" in told
    assert not bogus.exists()

    assert [one["step"] for one in steps(whole)] == list(range(1, LAST + 1))
    # the trainer may have written more checkpoints than its killed launcher recorded steps
    expected, seen = [one for one in steps(whole) if not logged < one["step"] <= first], steps(cut)
    assert first <= logged + 6 and [one["step"] for one in seen] == [
        one["step"] for one in expected
    ]
    assert [one["loss"] for one in seen] == pytest.approx(
        [one["loss"] for one in expected], rel=1e-6
    )
    assert [one.get("tokens") for one in seen] == [one.get("tokens") for one in expected]
    assert json.loads((cut / "DONE").read_text())["steps"] == LAST
    assert f"resumed from {resumed['resumed_from']}" in read_report(cut).text

    code, told = finish(home, *words, f"name={cut.name}")
    assert (code, "already done" in told) == (0, True)
    assert len((cut / "attempts.jsonl").read_text().splitlines()) == 2
