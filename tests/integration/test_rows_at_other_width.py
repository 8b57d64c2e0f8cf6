"""The rows of a killed run that went on at another width are those of a run that nothing stopped."""

from __future__ import annotations

import itertools
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import finish, records, stop_once
from tests.integration.test_other_width import KILLED_AFTER, LAST, SHAPE, steps

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

_RECORDED = Path(__file__).parent / "recorded"
GLOBAL, PER_DEVICE, EPOCHS = 12, 3, 3
STEPS = LAST // EPOCHS  # of an epoch
FULL = 84  # rows of an epoch of full steps, which no width fills up
SHORT = 80  # the last step of an epoch has 8 of them, and what a width fills it up with
TRL = ("stage=demo", "trainer=trl_sft")
FINETUNE = ("stage=demo", "trainer=finetune", "recipe.loss_averaging=tokens")
DPO = ("stage=demo_dpo", "trainer=dpo_tune_cache")
FRACTIONS = {
    ("demo", FULL): "data.fraction=0.0176",  # of 4,800 chats
    ("demo", SHORT): "data.fraction=0.0167",
    ("demo_dpo", FULL): "data.fraction=0.0526",  # of 1,600 pairs
    ("demo_dpo", SHORT): "data.fraction=0.05",
}
# overrides, the rows of an epoch, the first number of ranks and the second one
CASES = {
    "trl_sft-ddp-1-2": (TRL, FULL, 1, 2),
    "trl_sft-zero3-2-1": ((*TRL, "parallel=zero3"), SHORT, 2, 1),
    "finetune-ddp-2-1": (FINETUNE, FULL, 2, 1),
    "finetune-ddp-1-2-balanced": ((*FINETUNE, "recipe.balanced=true"), SHORT, 1, 2),
    "finetune-zero2-1-2": ((*FINETUNE, "parallel=zero2"), SHORT, 1, 2),
    "dpo-ddp-1-2": (DPO, SHORT, 1, 2),
    "dpo-zero2-2-4": ((*DPO, "parallel=zero2"), FULL, 2, 4),
}


def rows_of_steps(folder: Path, ranks: int) -> list[list[int]]:
    """Return the rows of each optimizer step, sorted, as the ranks of one attempt recorded them."""
    by_rank = [rank_steps(folder / f"rank-{rank}.jsonl", ranks) for rank in range(ranks)]
    parts_of_steps = zip(*by_rank, strict=False)  # a killed rank may be a step behind
    return [sorted(itertools.chain(*parts)) for parts in parts_of_steps]


def rank_steps(file: Path, ranks: int) -> Iterator[list[int]]:
    """Yield the rows that a rank has in each step. An epoch begins with an empty line, and its last
    step may have fewer micro batches.
    """
    accumulation = GLOBAL // (ranks * PER_DEVICE)
    lines = file.read_text(encoding="utf-8").splitlines()
    for begins, batches in itertools.groupby(lines, key=lambda line: line == "[]"):
        if begins:
            continue
        dealt = [json.loads(batch) for batch in batches]
        for start in range(0, len(dealt), accumulation):
            yield list(itertools.chain(*dealt[start : start + accumulation]))


def check_epochs(dealt: list[list[int]], rows: int, changed: int, first: int, second: int) -> None:
    """Check that every epoch has each row once, and repeats some in its last step alone, so that
    each rank has as many. `changed`: the steps that the first number of ranks made.
    """
    assert len(dealt) == LAST
    for start in range(0, LAST, STEPS):
        epoch = dealt[start : start + STEPS]
        full = list(itertools.chain(*epoch[:-1]))
        assert len(full) == len(set(full)) == GLOBAL * (STEPS - 1)
        ranks = first if start + STEPS <= changed else second
        repeated = -rows % (ranks * PER_DEVICE) if ranks > 1 else 0
        assert len(epoch[-1]) == rows + repeated - len(full)
        assert {*full, *epoch[-1]} == set(range(rows))


@pytest.mark.parametrize("name", CASES)
def test_every_row_of_an_epoch_is_dealt_once(
    name: str, home: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    overrides, rows, first, second = CASES[name]
    if "trainer=trl_sft" not in overrides:
        request.getfixturevalue("open_instruct")
    pytest.importorskip("torch", reason="the `train` dependencies are not installed")
    monkeypatch.setenv("PYTHONPATH", str(_RECORDED))
    stage = overrides[0].removeprefix("stage=")
    line = (*overrides, *SHAPE, FRACTIONS[stage, rows])

    def record_in(part: str) -> Path:
        folder = home / "rows" / name / part
        folder.mkdir(parents=True)
        monkeypatch.setenv("LAUNCH_TEST_ROWS", str(folder))
        return folder

    whole_rows = record_in("whole")
    words = (*line, f"processes={first}", f"name={name}-whole")
    code, text = finish(home, *words)
    assert code == 0, text
    whole = rows_of_steps(whole_rows, first)
    check_epochs(whole, rows, LAST, first, first)

    prefix = "checkpoint-" if "trainer=trl_sft" in overrides else "step_"
    cut = home / "runs" / stage / f"{name}-cut"

    def is_past_it() -> bool:
        saved = (cut / "model" / f"{prefix}{KILLED_AFTER}").is_dir()
        return saved and steps(cut)[-1]["step"] > KILLED_AFTER

    rows_before = record_in("before")
    words = (*line, f"processes={first}", f"name={cut.name}")
    stop_once(home, is_past_it, signal.SIGKILL, *words)
    rows_after = record_in("after")
    words = (*line, f"processes={second}", f"name={cut.name}")
    code, text = finish(home, *words)
    assert code == 0, text
    _, resumed = records(cut / "attempts.jsonl")
    step = int(resumed["resumed_from"].removeprefix(prefix))
    before = rows_of_steps(rows_before, first)[:step]
    assert len(before) == step
    dealt = [*before, *rows_of_steps(rows_after, second)]
    check_epochs(dealt, rows, step, first, second)
    # What fills up the last step of an epoch depends on the width, and nothing else does.
    for number in range(LAST):
        if rows == FULL or (number + 1) % STEPS:
            assert dealt[number] == whole[number], number
