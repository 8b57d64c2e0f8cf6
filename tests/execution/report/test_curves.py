"""Curves: complete when short, thinned without losing an extreme when long, whatever the file
holds.
"""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from pathlib import Path

import pytest

from launch.execution.record.steps import Curve, read_curves


def write(path: Path, lines: list[object]) -> Path:
    path.write_text(
        "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    )
    return path


def test_a_short_curve_is_complete(tmp_path: Path) -> None:
    values = [5.0 / step for step in range(1, 900)]
    metrics = read_curves(
        write(tmp_path / "m", [{"step": i, "loss": v} for i, v in enumerate(values, 1)])
    )
    assert metrics.curves["loss"].points() == list(enumerate(values, 1))
    assert (metrics.steps, metrics.last_step, metrics.unreadable) == (899, 899, 0)


def test_a_long_curve_keeps_every_spike_and_its_step() -> None:
    source = random.Random(0)
    values = [source.gauss(5, 0.1) for _ in range(100_000)]
    spikes = {777: 40.0, 50_000: -3.0, 50_001: 41.0, 99_998: 39.0}
    curve = Curve(100)
    for step, value in reversed([*enumerate(values)]):
        curve.add(step, spikes.get(step, value))
    points = curve.points()
    assert len(points) < 5000
    assert set(spikes.items()) <= set(points)
    assert [step for step, _ in points] == sorted({step for step, _ in points})
    assert points[0] == (0, values[0])
    assert curve.last == (99_999, values[-1])
    assert curve.count == 100_000
    changed = sum(spikes.values()) - sum(values[step] for step in spikes)
    assert curve.total == pytest.approx(sum(values) + changed)
    curve.thin(64)
    assert len(curve.points()) <= 64
    assert set(spikes.items()) <= set(curve.points())


def test_every_bucket_keeps_its_extremes() -> None:
    source = random.Random(1)
    values = [source.random() for _ in range(5000)]
    width = 8
    curve = Curve(width)
    for step, value in reversed([*enumerate(values)]):
        curve.add(step, value)
    kept = dict(curve.points())
    for first in range(0, 5000, width):
        part = values[first : first + width]
        assert max(part) in kept.values()
        assert min(part) in kept.values()


def test_values_that_are_not_finite_are_kept_as_gaps(tmp_path: Path) -> None:
    lines: list[object] = [{"step": 1, "loss": 2.0}, {"step": 2, "loss": None, "loss_text": "nan"}]
    lines += ['{"step": 3, "loss": Infinity}', {"step": 4, "loss": 1.0}, {"step": 5, "loss": None}]
    curve = read_curves(write(tmp_path / "m", lines)).curves["loss"]
    assert [step for step, _ in curve.points()] == [1, 2, 3, 4]
    assert math.isnan(curve.points()[1][1])
    assert (curve.bad_count, curve.total, curve.count) == (2, 3.0, 4)
    assert curve.first_bad is not None
    assert curve.first_bad[0] == 2
    assert (curve.low, curve.high) == ((4, 1.0), (1, 2.0))


def test_a_curve_that_begins_with_nan_has_its_extremes() -> None:
    curve = Curve(8)
    for step, value in reversed([*enumerate([math.nan, 3.0, 1.0, 2.0] * 2000)]):
        curve.add(step, value)
    assert curve.low is not None
    assert curve.high is not None
    assert (curve.low[1], curve.high[1]) == (1.0, 3.0)


def test_values_whose_sum_no_float_holds_and_a_file_as_long_as_a_batch(tmp_path: Path) -> None:
    metrics = read_curves(
        write(tmp_path / "m", [{"step": step, "a": 1e308} for step in range(3 * 4096)])
    )
    curve = metrics.curves["a"]
    assert (curve.count, curve.bad_count, curve.first_bad, curve.total) == (
        3 * 4096,
        0,
        None,
        math.inf,
    )
    assert [curve.points()[at][0] for at in (0, -1)] == [0, 3 * 4096 - 1]


def test_a_repeated_step_counts_as_logged_last(tmp_path: Path) -> None:
    first = [{"step": step, "loss": 1.0, "tokens": 10} for step in range(1, 61)]
    again = [{"step": step, "loss": 2.0, "tokens": 10} for step in range(41, 81)]
    metrics = read_curves(write(tmp_path / "m", [*first, *again]))
    assert [value for _, value in metrics.curves["loss"].points()] == [1.0] * 40 + [2.0] * 40
    assert (metrics.steps, metrics.total("tokens")) == (80, 800)


@pytest.mark.parametrize(
    "line",
    [
        *("", "{", "[]", "null", "3", "\x00\x00", "[" * 100_000, '{"step": 4, "loss": 1'),
        *(f'{{"step": {step}}}' for step in ('"4"', "true", "-1", "1e3", "null", "9" * 20)),
    ],
)
def test_a_line_that_is_no_step_is_left_out_and_counted(line: str, tmp_path: Path) -> None:
    path = write(tmp_path / "m", [{"step": 1, "loss": 2.0}, line, {"step": 2, "loss": 3.0}])
    metrics = read_curves(path)
    assert metrics.curves["loss"].points() == [(1, 2.0), (2, 3.0)]
    assert metrics.unreadable == (1 if line else 0)


def test_values_that_are_no_numbers_are_left_out(tmp_path: Path) -> None:
    entry = (
        '{"schema_version": 1, "step": 1, "a": "x", "b": [1], "c": true, "d": 1%s, "e": null, "f": '
        "2}" % ("0" * 400)
    )
    assert list(read_curves(write(tmp_path / "m", [entry])).curves) == ["f"]


def test_a_long_file_takes_bounded_memory_and_time(tmp_path: Path) -> None:
    """Ten million lines of eleven metrics took 97 s of processor time and 76 MiB."""
    line = (
        '{"schema_version": 1, "step": %d, "loss": 1.2345, "lr": 5e-06, "tokens": 30001, '
        '"seconds": 0.521}'
    )
    path = tmp_path / "m"
    code = """
import sys, time
from pathlib import Path
from launch.execution.record.steps import read_curves
read_curves(Path(sys.argv[1]))
peak = Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]
print(peak, time.process_time())
"""
    taken = []
    for lines in (60_000, 240_000):
        path.write_text("\n".join(line % step for step in range(lines)))
        output = subprocess.run(
            [sys.executable, "-c", code, path], check=True, capture_output=True, text=True
        ).stdout
        taken.append([float(value) for value in output.split()])
    (short_kib, _), (long_kib, seconds) = taken
    # 18 MB of text, and its objects would be ten times that
    assert long_kib - short_kib < 15 * 1024
    assert seconds / 240_000 < 60e-6


def test_a_file_with_thousands_of_names_is_bounded(tmp_path: Path) -> None:
    lines = [
        {"step": step, **{f"m{step}_{index}": 1.0 for index in range(50)}} for step in range(50)
    ]
    assert len(read_curves(write(tmp_path / "m", list(lines))).curves) == 120


def test_lines_across_blocks_and_a_cut_off_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launch.files._BLOCK", 37)
    path = write(tmp_path / "m", [{"step": step, "loss": step / 7} for step in range(200)])
    assert read_curves(path).curves["loss"].points() == [(step, step / 7) for step in range(200)]
    path.write_bytes(path.read_bytes()[:-9])
    metrics = read_curves(path)
    assert (metrics.last_step, metrics.unreadable) == (198, 1)


def test_what_is_no_file_has_no_curves(tmp_path: Path) -> None:
    assert read_curves(tmp_path / "absent").curves == {}
    assert read_curves(tmp_path).curves == {}
