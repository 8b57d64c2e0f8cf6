"""The rows of a killed run that went on at another width are those of a run that nothing stopped."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration import warm
from tests.integration.conftest import finish, records, stop_once
from tests.integration.test_other_width import KILLED_AFTER, LAST, SHAPE, steps

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

_RECORDED = Path(__file__).parent / "recorded"
GLOBAL, PER_DEVICE = 12, 3
ROWS = 84  # an epoch of seven full steps, which no width fills up
LINE = ("stage=demo", "trainer=trl_sft", "data.fraction=0.0176", *SHAPE)  # of 4,800 rows


def rows_of_steps(folder: Path, ranks: int) -> Iterator[list[int]]:
    """Yield the rows of each optimizer step, sorted, as the ranks of one attempt recorded them."""
    accumulation = GLOBAL // (ranks * PER_DEVICE)
    files = [folder / f"rank-{rank}.jsonl" for rank in range(ranks)]
    by_rank = [list(filter(None, records(file))) for file in files]
    for first in itertools.count(step=accumulation):
        parts = [batches[first : first + accumulation] for batches in by_rank]
        if any(len(part) < accumulation for part in parts):
            return
        micro_batches = itertools.chain(*parts)
        yield sorted(itertools.chain(*micro_batches))


def test_every_row_of_an_epoch_is_dealt_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = 1, 2
    pytest.importorskip("torch", reason="the `train` dependencies are not installed")
    python = warm.python_with_cold_ranks()
    monkeypatch.setenv("PYTHONPATH", str(_RECORDED))

    def record_in(part: str) -> Path:
        folder = home / "rows" / part
        folder.mkdir(parents=True)
        monkeypatch.setenv("LAUNCH_TEST_ROWS", str(folder))
        return folder

    whole_rows = record_in("whole")
    code, text = finish(home, *LINE, f"processes={first}", "name=whole", python=python)
    assert code == 0, text
    whole = list(rows_of_steps(whole_rows, first))
    assert len(whole) == LAST
    for epoch in range(3):
        dealt = itertools.chain(*whole[7 * epoch : 7 * epoch + 7])
        assert sorted(dealt) == list(range(ROWS))

    cut = home / "runs" / "demo" / "cut"

    def is_past_it() -> bool:
        saved = (cut / "model" / f"checkpoint-{KILLED_AFTER}").is_dir()
        return saved and steps(cut)[-1]["step"] > KILLED_AFTER

    rows_before = record_in("before")
    words = (*LINE, f"processes={first}", f"name={cut.name}")
    stop_once(home, is_past_it, signal.SIGKILL, *words, python=python)
    rows_after = record_in("after")
    words = (*LINE, f"processes={second}", f"name={cut.name}")
    code, text = finish(home, *words, python=python)
    assert code == 0, text
    _, resumed = records(cut / "attempts.jsonl")
    step = int(resumed["resumed_from"].removeprefix("checkpoint-"))
    before = list(rows_of_steps(rows_before, first))[:step]
    after = list(rows_of_steps(rows_after, second))
    assert len(before) == step
    assert [*before, *after] == whole
