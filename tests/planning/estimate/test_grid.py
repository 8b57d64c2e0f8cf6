"""The memory estimate against what was measured on H200s; memory.md has their errors,
`--update-golden` writes them.

Nothing is fitted to the allocated peaks. The shares in allocator.py are fitted to the reserved
ones, and again without each setting in turn.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, replace

import numpy as np
import pytest

from launch import resources
from launch.config.schema import Mode
from launch.planning.estimate import allocator
from launch.planning.estimate.allocator import (
    EXPANDABLE_SEGMENTS,
    SEGMENTS,
    AllocatorShares,
    head_matrix_bytes,
    varying_bytes,
    whole_logits_bytes,
)
from launch.planning.estimate.cards import CardMemory
from launch.planning.estimate.forecast import MemoryFit, MemoryForecast, classify_fit
from launch.planning.estimate.memory import estimate_memory
from launch.planning.estimate.memory_estimate import GIB
from tests.planning.estimate.grid import FAST, Measured, read_grid, read_region, read_steps

PAGE = resources.ROOT / "docs" / "explanation" / "memory.md"
BEGIN, END = "<!-- grid: written by tests/planning/estimate/test_grid.py -->", "<!-- end -->"
BOUND = 0.10
CARD = CardMemory(139.8, "NVIDIA H200")
MODES = (Mode.single, Mode.zero1, Mode.zero3)  # one for each share of the output matrix


def error(predicted: float, measured: float) -> float:
    return predicted / measured - 1


def fit_shares(measured_runs: Sequence[Measured], start: AllocatorShares) -> AllocatorShares:
    """Fit the shares by least squares of the relative error; one that no run determines stays as in
    `start`.

    `varying` is fitted to the runs on varying rows, and the others to the rest: the larger of the
    two parts counts.
    """
    rows, targets, varying = [], [], []
    for run in measured_runs:
        estimate, setting = estimate_memory(run.setting), run.setting
        extra = (run.reserved - estimate.allocated) / run.reserved
        if varying_bytes(setting) and start.varying:
            varying.append((varying_bytes(setting) / GIB / run.reserved, extra))
            continue
        heads = [start.head_multiple(mode) == start.head_multiple(setting.mode) for mode in MODES]
        row = [head_matrix_bytes(setting) * mine for mine in heads] + [whole_logits_bytes(setting)]
        rows.append([size / GIB / run.reserved for size in row])
        targets.append(extra)
    names = ("plain", "stage_1_and_2", "stage_3", "logits")
    known = [index for index in range(len(names)) if any(row[index] for row in rows)]
    solution = (
        np.linalg.lstsq(np.array(rows)[:, known], np.array(targets), rcond=None)[0] if known else []
    )
    fitted = {names[index]: float(share) for index, share in zip(known, solution, strict=True)}
    if varying:
        fitted["varying"] = sum(size * extra for size, extra in varying) / sum(
            size * size for size, _ in varying
        )
    return replace(start, **fitted)


def measured_by_allocator() -> dict[str, list[Measured]]:
    measured_runs = read_grid() + read_steps() + read_region()
    return {
        "SEGMENTS": [run for run in measured_runs if not run.setting.expandable_segments],
        "EXPANDABLE_SEGMENTS": [run for run in measured_runs if run.setting.expandable_segments],
    }


def test_there_are_twenty_settings_of_both_kinds() -> None:
    grid = read_grid()
    assert len(grid) >= 20
    assert {measured_run.setting.kind.value for measured_run in grid} == {"sft", "dpo"}
    assert {measured_run.setting.mode.value for measured_run in grid} >= {
        "single",
        "zero2",
        "zero3",
    }


def test_every_allocated_and_reserved_peak_is_within_the_bound() -> None:
    for measured_run in read_grid() + read_steps() + read_region():
        estimate = estimate_memory(measured_run.setting)
        assert abs(error(estimate.allocated, measured_run.allocated)) <= BOUND, measured_run.name
        assert abs(error(estimate.reserved, measured_run.reserved)) <= BOUND, measured_run.name


@pytest.mark.parametrize("name", ["SEGMENTS", "EXPANDABLE_SEGMENTS"])
def test_the_shares_are_those_fitted_and_predict_a_run_that_they_were_not_fitted_to(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares, measured_runs = getattr(allocator, name), measured_by_allocator()[name]
    assert asdict(fit_shares(measured_runs, shares)) == pytest.approx(asdict(shares), rel=0.02)
    for measured_run in measured_runs:
        others = [run for run in measured_runs if run is not measured_run]
        monkeypatch.setattr(allocator, name, fit_shares(others, shares))
        assert (
            abs(error(estimate_memory(measured_run.setting).reserved, measured_run.reserved))
            <= BOUND
        )


def test_expandable_segments_reserve_less() -> None:
    for share, expandable in zip(
        asdict(SEGMENTS).values(), asdict(EXPANDABLE_SEGMENTS).values(), strict=True
    ):
        assert expandable <= share
    tokens = replace(FAST, tokens=10_779)
    classic, expandable = (
        estimate_memory(tokens),
        estimate_memory(replace(tokens, expandable_segments=True)),
    )
    assert classic.allocated == expandable.allocated
    assert classic.reserved - expandable.reserved == pytest.approx(119.9 - 97.2, rel=0.1)


def test_no_run_that_trained_is_refused_or_predicted_not_to_fit() -> None:
    for measured_run in read_grid() + read_steps() + read_region():
        estimate = estimate_memory(measured_run.setting)
        assert classify_fit(estimate, CARD) in (MemoryFit.fits, MemoryFit.tight), measured_run.name
        assert not MemoryForecast(
            measured_run.setting, estimate, card=CARD, first=estimate
        ).cannot_start


def test_a_setting_tuned_for_four_gpus_cannot_start_on_one() -> None:
    """ZeRO-2 at width 1 ran out of memory in its first step: 16 bytes a parameter, and the second
    gradient.
    """
    narrow = estimate_memory(replace(FAST, ranks=1, accumulation=8, tokens=16))
    assert MemoryForecast(FAST, narrow, card=CARD, first=narrow).cannot_start
    assert classify_fit(narrow, CARD) == MemoryFit.wont


def test_the_page_has_the_errors(request: pytest.FixtureRequest) -> None:
    lines = [
        _summarize(
            "settings whose rows all have a known length", read_grid(), ("allocated", "reserved")
        ),
        _summarize(
            "runs of the 8b shape on packed rows of varying length",
            read_steps() + read_region(),
            ("reserved",),
        ),
    ]
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    assert rest and after
    page = "\n".join([before + BEGIN, *lines, END]) + after
    if request.config.getoption("--update-golden"):
        PAGE.write_text(page, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page


def _summarize(what: str, measured_runs: Sequence[Measured], kinds: Sequence[str]) -> str:
    """Return the median and the largest error of each kind of peak, as an item of a list."""
    figures = []
    for kind in kinds:
        errors = [
            abs(error(getattr(estimate_memory(run.setting), kind), getattr(run, kind)))
            for run in measured_runs
        ]
        figures.append(
            f"the {kind} peak is off by {statistics.median(errors):.1%} in the median, "
            f"{max(errors):.1%} at most"
        )
    return f"- {len(measured_runs)} {what}: {'; '.join(figures)}."
