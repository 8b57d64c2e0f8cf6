"""A real CPU run killed in the middle goes on at another width: the same rows, rates and losses."""

from __future__ import annotations

import json
import resource
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.integration import warm
from tests.integration.conftest import finish, records, stop_once
from tests.thorough import mark_others

pytestmark = pytest.mark.slow

SHAPE = (
    *("recipe.epochs=3", "recipe.max_steps=null", "recipe.checkpoint_steps=2"),
    *("recipe.global_batch_size=12", "recipe.per_device_batch_size=3"),
)
LAST = 21  # three epochs of 7 steps
KILLED_AFTER = 10
TRL = ("stage=demo", "trainer=trl_sft", "data.fraction=0.0167")
FINETUNE = (
    *("stage=demo", "trainer=finetune", "data.fraction=0.0167"),
    *("recipe.loss_averaging=tokens", "recipe.balanced=true"),
)
DPO = ("stage=demo_dpo", "trainer=dpo_tune_cache", "data.fraction=0.05")
# overrides, the first width and the second one
CASES = {
    "trl_sft-ddp-1-2": (TRL, ("processes=1",), ("processes=2",)),
    "trl_sft-ddp-2-1": (TRL, ("processes=2",), ("processes=1",)),
    "trl_sft-zero2-1-2": ((*TRL, "parallel=zero2"), ("processes=1",), ("processes=2",)),
    "trl_sft-zero3-2-1": ((*TRL, "parallel=zero3"), ("processes=2",), ("processes=1",)),
    "finetune-ddp-2-1": (FINETUNE, ("processes=2",), ("processes=1",)),
    "finetune-zero1-2-4": ((*FINETUNE, "parallel=zero1"), ("processes=2",), ("processes=4",)),
    "finetune-zero2-2-1": ((*FINETUNE, "parallel=zero2"), ("processes=2",), ("processes=1",)),
    "finetune-zero3-1-2": ((*FINETUNE, "parallel=zero3"), ("processes=1",), ("processes=2",)),
    "dpo-ddp-1-2": (DPO, ("processes=1",), ("processes=2",)),
}
QUICK = "trl_sft-ddp-1-2"
# The conversion of this case is killed, and then has a full disk, before it is let through.
HARMED = "trl_sft-zero2-1-2"


def steps(folder: Path) -> list[dict[str, Any]]:
    return records(folder / "metrics.jsonl")


def series(folder: Path, metric: str, recorded: Sequence[int]) -> list[Any]:
    """The values of a metric at the recorded steps, of which a folder may have more."""
    by_step = {entry["step"]: entry for entry in steps(folder)}
    return [by_step[step].get(metric) for step in recorded]


def contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def harm_conversion(home: Path, run: Path, *overrides: str) -> None:
    """Kill the launcher once the conversion has written a file, then give it a disk that is full
    after 32 KiB of a file: neither changes the checkpoints or begins an attempt.
    """
    python = warm.python_with_cold_ranks()  # a fork of the server's has the server's limits
    converted = run / "converted"
    before = contents(run / "model")
    attempts = records(run / "attempts.jsonl")

    def has_begun() -> bool:
        return any(path.is_file() for path in converted.glob("*/*/zero/**/*"))

    stop_once(home, has_begun, signal.SIGKILL, *overrides, python=python)
    assert has_begun()
    assert contents(run / "model") == before

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (32 << 10, limits[1]))
    try:
        code, text = finish(home, *overrides, python=python)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert code == 2 and "[conversion_failed]" in text, text
    assert not converted.exists()
    assert contents(run / "model") == before
    assert records(run / "attempts.jsonl") == attempts


@pytest.mark.parametrize("name", mark_others(list(CASES), [QUICK]))
def test_a_killed_run_goes_on_at_another_width(
    name: str, home: Path, request: pytest.FixtureRequest
) -> None:
    overrides, first, second = CASES[name]
    if "trainer=trl_sft" not in overrides:
        request.getfixturevalue("open_instruct")
    pytest.importorskip("torch", reason="the `train` dependencies are not installed")
    overrides = (*overrides, *SHAPE)
    stage = home / "runs" / overrides[0].removeprefix("stage=")
    wholes = []
    for width in (first, second):
        wholes.append(stage / f"{name}-whole{len(wholes)}")
        code, text = finish(home, *overrides, *width, f"name={wholes[-1].name}")
        assert code == 0, text

    prefix = "checkpoint-" if "trainer=trl_sft" in overrides else "step_"
    cut = stage / f"{name}-cut"

    def is_past_it() -> bool:
        saved = (cut / "model" / f"{prefix}{KILLED_AFTER}").is_dir()
        return saved and steps(cut)[-1]["step"] > KILLED_AFTER

    stop_once(home, is_past_it, signal.SIGKILL, *overrides, *first, f"name={cut.name}")
    logged = steps(cut)[-1]["step"]
    if name == HARMED:
        harm_conversion(home, cut, *overrides, *second, f"name={cut.name}")
    code, text = finish(home, *overrides, *second, f"name={cut.name}")
    assert code == 0, text
    begun, resumed = records(cut / "attempts.jsonl")
    ranks = [int(width[0].removeprefix("processes=")) for width in (first, second)]
    assert [begun["ranks"], resumed["ranks"]] == ranks
    checkpoint = resumed["resumed_from"]
    step = int(checkpoint.removeprefix(prefix))
    assert KILLED_AFTER <= step < LAST
    assert ("converting" in text) == ("zero" in name)
    assert not (cut / "converted").exists()

    # The trainer may write further checkpoints before it is ended as its killed launcher was, which
    # recorded no step of them.
    recorded = [number for number in range(1, LAST + 1) if not logged < number <= step]
    assert step <= logged + 6
    assert [entry["step"] for entry in steps(cut)] == recorded
    assert [entry["step"] for entry in steps(wholes[1])] == list(range(1, LAST + 1))
    assert json.loads((cut / "DONE").read_text())["steps"] == LAST
    # The rates are those of the first width up to the checkpoint, and of the second one from there;
    # open-instruct's schedules of two widths differ by less than a step.
    before = [number for number in recorded if number <= step]
    after = [number for number in recorded if number > step]
    for whole, numbers in zip(wholes, (before, after), strict=True):
        assert series(cut, "lr", numbers) == pytest.approx(series(whole, "lr", numbers), rel=1e-6)
    first_rates, second_rates = (series(whole, "lr", recorded) for whole in wholes)
    assert first_rates == pytest.approx(second_rates, abs=max(second_rates) / LAST)
    # A step has the same rows, but for the last one of an epoch, which each width fills up.
    whole_steps = [number for number in recorded if number % (LAST // 3)]
    tokens = [series(folder, "tokens", whole_steps) for folder in (*wholes, cut)]
    assert tokens[0] == tokens[1] == tokens[2]
    # The sums of another width have another order: the resumed run is as near to the whole runs as
    # they are to each other.
    losses = [series(folder, "loss", recorded) for folder in (*wholes, cut)]
    noise = max(abs(one - two) for one, two in zip(losses[0], losses[1], strict=True))
    for whole in losses[:2]:
        difference = max(abs(one - two) for one, two in zip(whole, losses[2], strict=True))
        assert difference <= 2 * noise + 1e-5, (noise, difference, losses)
    evidence = json.loads((cut / "evidence.json").read_text())
    assert "refuted" not in {item["verdict"] for item in evidence["items"]}
