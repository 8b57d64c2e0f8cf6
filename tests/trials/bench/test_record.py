"""The figures of a bench, its report and its record."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from launch.config.recipe_keys import Precision
from launch.config.schema import Device
from launch.files import write_json
from launch.trials.bench.engine import rate_cards
from launch.trials.bench.record import BenchRun
from launch.trials.card_rate import CardRate
from launch.worker.json_codec import from_json, to_json
from tests.trials.bench.benches import DONE, RATE, benched, made_up, planned, steps
from tests.trials.records import written

LLAMA = ("model=llama3_1_8b",)


def failing(run: BenchRun) -> None:
    broken = replace(DONE, exit_code=1, steps=0, cause="CUDA out of memory")
    if run.side.label == "B":
        made_up(run, [], broken)
    else:
        made_up(run)


def diverging(run: BenchRun) -> None:
    made_up(
        run,
        [{**step, "loss": None, "loss_text": "nan"} for step in steps()]
        if run.side.label == "B"
        else None,
    )


def test_the_figures(tmp_path: Path) -> None:
    """The first two steps are left out, the slow one among them."""
    record, _, _ = benched(tmp_path, *LLAMA)
    a, b = record.sides[0].figures[0], record.sides[1].figures[0]
    assert a.per_second == pytest.approx((1003 + 1004 + 1005) / 6) and a.step_seconds == 2.0
    assert b.padded_per_second == 1500 and a.padding == pytest.approx(1 - 5015 / 7500)
    assert (a.memory_gib, a.reserved_gib, a.loss, a.counted_steps) == (40.0, 44.0, 2.5, 3)
    verdict = record.verdict
    assert (
        verdict is not None
        and verdict.speed == "faster"
        and verdict.speed_ratio.median == pytest.approx(2.0)
    )


def test_the_utilisation_is_of_the_measured_rate_and_of_the_data_sheet(tmp_path: Path) -> None:
    record, _, _ = benched(tmp_path, *LLAMA)
    figures, operations = record.sides[1].figures[0], record.sides[1].operations
    matrices = 32 * (2 * 4096 * (4096 + 1024) + 3 * 4096 * 14336) + 128256 * 4096
    document = 1003 / 128  # the mean of a step's tokens, over the samples of a step
    assert operations.per_token == pytest.approx(6 * matrices + 12 * 32 * 4096 * document)
    assert figures.flops == pytest.approx(1004 * (operations.per_token or 0))
    assert figures.mfu_measured == pytest.approx((figures.flops or 0) / 790e12)
    assert figures.mfu_datasheet == pytest.approx((figures.flops or 0) / 989e12)


def test_a_card_that_nobody_has_seen_has_its_measured_rate_alone(tmp_path: Path) -> None:
    record, _, _ = benched(tmp_path, *LLAMA, rate=replace(RATE, name="NVIDIA Q700"))
    assert (
        record.sides[0].figures[0].mfu_datasheet is None and record.sides[0].figures[0].mfu_measured
    )
    assert record.notes[0].endswith("no data sheet known")


def test_a_model_whose_shape_is_not_known_has_no_utilisation(tmp_path: Path) -> None:
    record, _, _ = benched(tmp_path, "model.path=some/model")
    assert record.sides[0].figures[0].mfu_measured is None
    assert "MFU is unknown: the model's shape is unknown" in record.notes


def test_adapters_and_a_reference_in_the_step_are_reported(tmp_path: Path) -> None:
    record, _, _ = benched(tmp_path, *LLAMA, a=("flags.use_peft=true",))
    assert record.sides[0].operations.left_out == ("the adapters",)
    assert (record.sides[0].operations.per_token or 0) < (record.sides[1].operations.per_token or 0)
    dpo = (
        "stage=dpo",
        "trainer=trl_dpo",
        "data.mix=[{name: some/data}]",
        "gpus=1",
        "allow=[bench_data]",
    )
    cached = ("flags.precompute_ref_log_probs=true",)
    preferences = planned(tmp_path, *dpo, a=(), b=cached)
    assert [side.operations.reference_in_step for side in preferences.sides] == [True, False]


def test_what_is_not_proven_is_reported(tmp_path: Path) -> None:
    def run(bench_run: BenchRun) -> None:
        made_up(bench_run)
        items = [{"what": "liger", "verdict": "refuted"}] if bench_run.side.label == "B" else []
        write_json(bench_run.plan.folder / "evidence.json", {"items": items})

    record, _, _ = benched(tmp_path, run=run)
    assert record.sides[0].not_proven == [] and record.sides[1].not_proven == ["liger is refuted"]
    assert any(
        line.startswith("not every setting of B is in effect: liger is refuted")
        for line in record.summary
    )


def test_a_rate_is_measured_once_for_each_precision_and_reused_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, _, _ = benched(tmp_path)
    earlier, names = record.file_content(), list[str]()
    monkeypatch.setattr("launch.trials.bench.engine.card_name", lambda plan: RATE.name)
    monkeypatch.setattr(
        "launch.trials.bench.engine.measure_card_rate",
        lambda plan, name: names.append(name) or RATE,
    )
    rate_cards(record, earlier)
    assert [side.rate for side in record.sides] == [RATE, RATE] and names == []
    rate_cards(record, None)
    assert [side.rate for side in record.sides] == [RATE, RATE] and names == [RATE.name]
    unknown = CardRate("a card", Device.cuda, Precision.bf16, message="torch is missing")
    assert from_json(
        CardRate, to_json(unknown)
    ) == unknown and "not measured (torch is missing)" in str(unknown)


def test_the_report_has_both_settings_and_the_verdict(tmp_path: Path) -> None:
    record, _, _ = benched(tmp_path, *LLAMA)
    lines = written(record).text().splitlines()
    assert any(
        "throughput without padding  502 tokens/s" in line and line.endswith("2.000")
        for line in lines
    )
    assert any("B runs at 2.00 x A's speed (3 pairs" in line for line in record.summary)
    assert (
        sum(line.split()[:1] in (["A1"], ["A2"], ["A3"], ["B1"], ["B2"], ["B3"]) for line in lines)
        == 6
    )


def test_the_report_says_what_failed(tmp_path: Path) -> None:
    record, _, _ = benched(tmp_path, run=failing)
    assert "B1 failed: CUDA out of memory" in record.summary
    (table,) = (table for table in written(record).tables if table.title == "Runs")
    assert [row[-1] for row in table.rows] == ["state", "done", "failed", *["planned"] * 4]


def test_the_steps_that_a_rate_needs_are_counted_and_too_few_are_warned_of(tmp_path: Path) -> None:
    steady, _, _ = benched(tmp_path / "steady", *LLAMA)
    assert any("needs 2 timed steps in A and 2 timed steps in B" in line for line in steady.notes)
    assert not any("vary too much" in line for line in steady.summary)

    def unsteady(run: BenchRun) -> None:
        rows = steps(seconds=1.0)
        made_up(run, [{**row, "seconds": row["seconds"] * (1 + row["step"] % 2)} for row in rows])

    record, _, _ = benched(tmp_path / "unsteady", *LLAMA, run=unsteady)
    needed = record.sides[0].steps_needed
    assert needed is not None and needed > 4
    warmup = record.config.warmup
    assert any(line.endswith(f"set steps={needed + warmup}") for line in record.summary)
    assert record.file_content()["settings"][0]["steps_needed"] == needed
