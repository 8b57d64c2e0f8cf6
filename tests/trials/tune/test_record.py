"""What a search records and reports."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from launch.config.line import parse_line
from launch.config.trials import TuneConfig
from launch.errors import UserError
from launch.execution.display import PlainDisplay
from launch.planning.build import build_plan
from launch.trials.record import State
from launch.trials.tune.engine import full_line, probe_full, read_tune_line, run_tune
from launch.trials.tune.predict import Probe
from launch.trials.tune.record import TuneRecord
from launch.trials.tune.search import Stop
from launch.trials.tune.space import SplitWeighting
from tests.conftest import fixed_machine
from tests.trials.records import check, read, written
from tests.trials.tune.searches import composed_once, failed, measured, record_in


def with_probes(record: TuneRecord, *probes: Probe, stop: Stop = Stop.probes_used) -> TuneRecord:
    record.runs, record.stop = list(probes), stop
    return record


def quiet() -> PlainDisplay:
    return PlainDisplay(io.StringIO())


def fastest(record: TuneRecord, loss: float = 2.0) -> Probe:
    first = record.estimates[0].prediction
    return measured(first, first.seconds, loss=loss)


def own(record: TuneRecord) -> Probe:
    base = next(
        prediction for prediction in record.predictions if prediction.candidate == record.space.base
    )
    return measured(base, base.seconds)


def test_the_gain_is_reported_by_what_was_measured_or_marked_as_predicted(tmp_path: Path) -> None:
    record = record_in(tmp_path)
    best, base = fastest(record), own(record)
    times = base.prediction.seconds / best.prediction.seconds
    with_probes(record, best, base)
    assert f"{times:.2f} times the recipe's own setting, measured" in record.gain
    with_probes(record, best)
    assert f"about {times:.1f} times" in record.gain and "not probed" in record.gain
    assert "Stopped: the probes are used up" in record.verdict


def test_a_change_of_the_loss_is_reported_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a stage whose file has upstream's averaging: the search may change what the command line
    does not set.
    """
    monkeypatch.setenv("LAUNCH_CONFIG_DIR", str(tmp_path))
    lines = (
        "# @package _global_",
        "defaults: [sft, _self_]",
        "recipe:",
        "  loss_averaging: null",
        "  liger: true",
    )
    (tmp_path / "stage").mkdir()
    (tmp_path / "stage" / "means.yaml").write_text(
        "\n".join([*lines, "  gradient_checkpointing: false", ""])
    )
    record = record_in(tmp_path, "stage=means", "gpus=8")
    with_probes(record, fastest(record, loss=2.02), own(record))
    change = record.loss_change
    assert (
        change is not None
        and change.loss_weighting == SplitWeighting.token_weighted
        and change.steps == 2
    )
    assert change.first == pytest.approx(0.01)
    line = record.loss_sentence
    assert "It changes the loss: every token has the same weight" in line and "1.00% apart" in line
    with_probes(record, fastest(record))
    assert "by how much was not measured" in record.loss_sentence


def test_what_keeps_the_loss_says_so(tmp_path: Path) -> None:
    record = record_in(tmp_path)
    same = next(estimate for estimate in record.estimates if estimate.prediction.candidate.mode == "zero1"
                and estimate.prediction.candidate.per_device == 1)  # fmt: skip
    with_probes(record, measured(same.prediction, 0.01), own(record))
    assert record.loss_sentence.startswith("The loss is the recipe's own")


def test_where_nothing_keeps_the_loss_it_is_reported_before(tmp_path: Path) -> None:
    override = "recipe.loss_averaging=micro_batch_means"
    kept, changed = record_in(tmp_path), record_in(tmp_path, "stage=sft", "gpus=8", override)
    assert not [line for line in kept.notes if line.startswith("loss:")]
    (line,) = [line for line in changed.notes if line.startswith("loss:")]
    assert (
        "a different micro-batch split changes the weight of each token" in line
        and line.endswith("recipe.per_device_batch_size=1 keeps it")
    )


def test_failures_keep_what_was_measured_and_say_the_cause(tmp_path: Path) -> None:
    record = record_in(tmp_path)
    second = record.estimates[1].prediction
    with_probes(record, fastest(record), failed(second, "rank 3: no luck"))
    assert record.state == State.done and "rank 3: no luck" in written(record).text()
    with_probes(record, failed(second, "no luck"), failed(second, "no luck"), stop=Stop.all_failed)
    assert (
        record.verdict
        == "nothing was measured in 2 probes (the probes fail with one cause at every setting): no "
        "luck"
    )


def test_samples_without_a_clock_are_no_measurement(tmp_path: Path) -> None:
    record = record_in(tmp_path)
    odd = replace(fastest(record), state=State.failed)
    assert odd.time_error is None and with_probes(record, odd).best is None


def test_full_fine_tuning_is_a_row_beside_those_of_the_adapter(tmp_path: Path) -> None:
    record = with_probes(
        record_in(tmp_path), fastest(record_in(tmp_path)), own(record_in(tmp_path))
    )
    best = record.best
    assert best is not None and best.step_seconds is not None
    record.full = measured(best.prediction, 2 * best.step_seconds, gib=120.0)
    record.full.label = f"full-{best.label}"
    assert record.best is best and len(record.runs) == 2
    document = read(record)
    check(document)
    assert [run["label"] for run in document["runs"]][-1] == document["full"] == record.full.label
    assert "0.50 times the adapter in 120.0 GiB" in document["summary"][-1]
    (runs, *_) = written(record).tables
    assert runs.rows[-1][0] == f"{record.full.label} (full fine-tuning)"
    record.full, record.full_note = None, "no setting at gpu8 fits"
    assert record.summary[-1] == "Full fine-tuning was not probed: no setting at gpu8 fits"


def test_full_fine_tuning_is_planned_without_the_adapter_and_probed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("launch.trials.tune.engine.prepare_inputs", lambda plan, say: None)
    words = ("stage=demo_lora", "trainer=trl_sft", "device=cpu")
    request, display = (
        read_tune_line(parse_line(["tune", *words, "compare_full=true"], ["tune"])),
        quiet(),
    )
    record = record_in(tmp_path, "stage=lora_sft", "gpus=1")
    taken: list[Probe] = []
    probe_full(record, request, display, taken.append)
    (probe,) = taken
    assert (
        probe is record.full and probe.plan.lora is None and probe.label.startswith("full-single-")
    )
    assert record.runs == [] and record.full_note is None
    record.full, record.limits = None, TuneConfig(minutes=1.0)
    record.runs = [measured(record.predictions[0], 1.0, wall=60.0)]
    probe_full(record, request, display, taken.append)
    assert record.full is None and record.full_note == "no time is left for it" and len(taken) == 1


def test_full_fine_tuning_is_probed_where_memory_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launch.trials.tune.engine.prepare_inputs", lambda plan, say: None)
    request = read_tune_line(
        parse_line(["tune", "stage=lora_sft", "gpus=8", "compare_full=true"], ["tune"])
    )
    full = build_plan(composed_once(*full_line(request).argv), fixed_machine(tmp_path))
    monkeypatch.setattr("launch.trials.tune.engine.plan_probe", lambda line: full)
    record, taken = record_in(tmp_path, "stage=lora_sft", "gpus=1"), list[Probe]()
    for gib in (139.8, 10.0):
        card = SimpleNamespace(gib=gib)
        monkeypatch.setattr(
            "launch.trials.tune.engine.card_memory", lambda plan, environ, card=card: card
        )
        probe_full(record, request, quiet(), taken.append)
    (probe,) = taken
    memory = probe.prediction.memory_gib
    assert memory is not None and memory < 0.95 * 139.8
    assert record.full_note is not None and record.full_note.startswith("no setting at gpu8 fits: ")


def test_a_search_has_a_folder_of_its_name_and_its_predictions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("stage=sft", "gpus=8", "recipe.liger=true", "recipe.gradient_checkpointing=false")
    words += ("cluster.gpu_type=h200", "cluster.gpu_memory=139")
    line = parse_line(["tune", *words, "dry_run=true", "name=mine"], ["tune"])
    record, code = run_tune(read_tune_line(line), quiet())
    assert (code, record.runs) == (0, []) and record.predictions
    assert (tmp_path / "runs" / "sft" / "tune-mine" / "tune.json").is_file()


def test_a_stage_that_trains_all_weights_has_nothing_to_compare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    request = read_tune_line(
        parse_line(["tune", "stage=demo", "device=cpu", "compare_full=true"], ["tune"])
    )
    with pytest.raises(UserError, match=r"\bdemo\b.*\[compare_full\]"):
        run_tune(request, quiet())
