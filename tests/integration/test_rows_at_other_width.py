"""The rows of a killed run that went on at another width are those of a run that nothing stopped."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.integration import warm
from tests.integration.conftest import finish, records, stop_once
from tests.integration.test_other_width import DPO, FINETUNE, LAST, SHAPE, TRL, steps

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

_RECORDED = Path(__file__).parent / "recorded"
GLOBAL, PER_DEVICE = 12, 3
ROWS = 84  # an epoch of seven full steps, which no width fills up
FRACTIONS = {"stage=demo": 0.0176, "stage=demo_dpo": 0.0526}  # which are so many rows of the demo's
KILLED_AFTER = (4, 10)  # the steps of the checkpoints after which an attempt is killed
# overrides, and the ranks of each attempt
CASES = {
    "trl_sft-ddp-1-2-1": (TRL, (1, 2, 1)),
    "finetune-ddp-2-1": (FINETUNE, (2, 1)),
    "dpo-ddp-1-2": (DPO, (1, 2)),
}


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


@pytest.mark.parametrize("name", CASES)
def test_every_row_of_an_epoch_is_dealt_once(
    name: str, home: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides, widths = CASES[name]
    if "trainer=trl_sft" not in overrides:
        request.getfixturevalue("open_instruct")
    pytest.importorskip("torch", reason="the `train` dependencies are not installed")
    python = warm.python_with_cold_ranks()
    monkeypatch.setenv("PYTHONPATH", str(_RECORDED))
    prefix = "checkpoint-" if "trainer=trl_sft" in overrides else "step_"
    line = tuple(word for word in overrides if not word.startswith("data.fraction"))
    line = (*line, f"data.fraction={FRACTIONS[line[0]]}", *SHAPE)
    cut = home / "runs" / line[0].removeprefix("stage=") / f"{name}-cut"

    def record_in(part: str) -> Path:
        folder = home / "rows" / name / part
        folder.mkdir(parents=True)
        monkeypatch.setenv("LAUNCH_TEST_ROWS", str(folder))
        return folder

    def is_past(step: int) -> bool:
        saved = (cut / "model" / f"{prefix}{step}").is_dir()
        return saved and steps(cut)[-1]["step"] > step

    recorded = record_in("whole")
    code, text = finish(home, *line, f"processes={widths[0]}", f"name={name}-whole", python=python)
    assert code == 0, text
    whole = list(rows_of_steps(recorded, widths[0]))
    assert len(whole) == LAST
    for epoch in range(3):
        dealt = itertools.chain(*whole[7 * epoch : 7 * epoch + 7])
        assert sorted(dealt) == list(range(ROWS))

    parts = []
    for ranks, step in itertools.zip_longest(widths, KILLED_AFTER[: len(widths) - 1]):
        recorded = record_in(f"attempt-{len(parts)}")
        words = (*line, f"processes={ranks}", f"name={cut.name}")
        if step is None:
            code, text = finish(home, *words, python=python)
            assert code == 0, text
        else:
            stop_once(home, partial(is_past, step), signal.SIGKILL, *words, python=python)
        parts.append(list(rows_of_steps(recorded, ranks)))
    attempts = records(cut / "attempts.jsonl")
    assert [attempt["ranks"] for attempt in attempts] == list(widths)
    resumed = [int(attempt["resumed_from"].removeprefix(prefix)) for attempt in attempts[1:]]
    ends = [*resumed, LAST]
    for part, begin, end in zip(parts, [0, *resumed], ends, strict=True):
        assert begin < end and part[: end - begin] == whole[begin:end]
