"""Runs side by side: differences, losses at equal tokens, the noise of benches, the verdicts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from launch.evaluation.compared_run import compared_run
from launch.evaluation.comparison import Noise, compare_runs, read_noise
from launch.execution.record.folder import RunFolder
from launch.execution.record.outcome import Outcome
from launch.execution.record.run import Run
from launch.execution.report.page import render_runs
from launch.execution.setting_differences import SettingDifference
from launch.planning.digest_cache import DigestCache
from launch.planning.saved_model import digest_model
from tests.conftest import Launch


def write_run(
    folder: Path, losses: Sequence[float | None], tokens: float | None = 100, **config: Any
) -> Path:
    folder.mkdir(parents=True)
    settings = {
        "stage": {"kind": "sft"},
        "recipe": {"learning_rate": 1e-3},
        "name": folder.name,
        **config,
    }
    (folder / "config.yaml").write_text(json.dumps(settings))
    (folder / "plan.json").write_text(
        json.dumps({"schema_version": 1, "flags": {"model_name_or_path": {"value": "base"}}})
    )
    (folder / "versions.json").write_text(
        json.dumps({"python": "3.11.7", "packages": {"torch": "2.13.0"}})
    )
    (folder / "patches.json").write_text(json.dumps([{"id": "evidence", "value": None}]))
    steps = [
        {"step": step, "loss": loss, "seconds": 2.0, "memory_gib": 1.0 + step}
        | ({"loss_text": "nan"} if loss is None else {})
        | ({} if tokens is None else {"tokens": tokens})
        for step, loss in enumerate(losses, start=1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    return folder


def write_bench(
    runs: Path, losses: Sequence[float], speeds: Sequence[float], *, identical: bool = False
) -> None:
    folder = runs / "sft" / "bench-1"
    folder.mkdir(parents=True)
    finished = [
        {
            "label": f"{'AB'[index % 2]}1",
            "state": "done",
            "measured": {"loss": loss, "per_second": speed},
        }
        for index, (loss, speed) in enumerate(zip(losses, speeds, strict=True))
    ]
    failed = {"label": "A9", "state": "failed", "measured": None}
    record = {
        "schema_version": 1,
        "verb": "bench",
        "runs": [*finished, failed],
        "identical_settings": identical,
    }
    (folder / "bench.json").write_text(json.dumps(record))


def test_only_what_differs_is_listed(tmp_path: Path) -> None:
    a = write_run(tmp_path / "sft" / "a", [3.0])
    b = write_run(
        tmp_path / "sft" / "b", [3.0], recipe={"learning_rate": 2e-3}, data={"fraction": 0.5}
    )
    (b / "versions.json").write_text(
        json.dumps({"python": "3.11.7", "packages": {"torch": "2.14.0"}})
    )
    differences = compare_runs([compared_run(a), compared_run(b)], Noise()).differences
    assert differences == {
        "settings": [SettingDifference("recipe.learning_rate", (1e-3, 2e-3))],
        "data": [SettingDifference("data.fraction", (None, 0.5))],
        "versions": [SettingDifference("torch", ("2.13.0", "2.14.0"))],
        "patches": [],
    }


def test_losses_are_compared_at_equal_tokens(tmp_path: Path) -> None:
    """B has twice the tokens a step: its step 10 is A's step 20."""
    a = write_run(tmp_path / "sft" / "a", [100.0 - step for step in range(1, 41)], tokens=100)
    b = write_run(tmp_path / "sft" / "b", [100.0 - 2 * step for step in range(1, 11)], tokens=200)
    comparison = compare_runs([compared_run(a), compared_run(b)], Noise(loss=0.01, speed=0.1))
    assert comparison.unit == "tokens"
    assert [point.at for point in comparison.points] == [500, 1000, 1500, 2000]
    assert comparison.points[-1].losses == pytest.approx((80.0, 80.0), abs=1)
    assert comparison.loss_verdict(1) == "same"
    assert comparison.speed_verdict(1) == "faster"
    assert comparison.runs[0].progress.speed == 50.0


def test_without_counted_tokens_steps_are_the_measure(tmp_path: Path) -> None:
    a = write_run(tmp_path / "sft" / "a", [3.0, 2.0])
    b = write_run(tmp_path / "sft" / "b", [3.0, 2.5], tokens=None)
    comparison = compare_runs([compared_run(a), compared_run(b)], Noise(loss=0.01))
    assert comparison.unit == "steps"
    assert comparison.loss_verdict(1) == "higher"


def test_losses_of_other_kinds_and_nan_are_not_compared(tmp_path: Path) -> None:
    a = write_run(tmp_path / "sft" / "a", [3.0, 2.0])
    b = write_run(tmp_path / "dpo" / "b", [0.7, 0.6], stage={"kind": "dpo"})
    c = write_run(tmp_path / "sft" / "c", [3.0, None])
    comparison = compare_runs([compared_run(a), compared_run(b)], Noise(loss=0.01))
    assert comparison.why_no_losses == "the losses of dpo and sft are different quantities"
    comparison = compare_runs([compared_run(a), compared_run(c)], Noise(loss=0.01))
    assert comparison.points[-1].losses[1] is None
    assert comparison.loss_verdict(1) == "unknown"


@pytest.mark.parametrize(
    ("share", "verdict"), [(0.991, "same"), (1.009, "same"), (0.98, "lower"), (1.02, "higher")]
)
def test_a_loss_within_the_noise_is_the_same(tmp_path: Path, share: float, verdict: str) -> None:
    a, b = (
        write_run(tmp_path / "sft" / name, [loss] * 10)
        for name, loss in (("a", 2.0), ("b", 2.0 * share))
    )
    comparison = compare_runs([compared_run(a), compared_run(b)], Noise(loss=0.01))
    assert comparison.loss_verdict(1) == verdict


def test_noise_is_what_repeats_of_one_setting_differ_in(tmp_path: Path) -> None:
    assert read_noise(tmp_path, ["sft"]) == Noise()
    write_bench(tmp_path, losses=[2.0, 9.0, 2.02, 9.0], speeds=[100, 500, 110, 500])
    noise = read_noise(tmp_path, ["sft", "sft"])
    assert (noise.loss, noise.speed) == (pytest.approx(0.01), pytest.approx(0.1))
    assert noise.repeats == 4


def test_a_bench_of_one_setting_against_itself_is_noise_alone(tmp_path: Path) -> None:
    write_bench(tmp_path, losses=[2.0, 2.1], speeds=[100, 100], identical=True)
    assert read_noise(tmp_path, ["sft"]) == Noise(pytest.approx(0.05), 0.0, 2)


def test_a_checkpoint_is_the_run_until_its_step(tmp_path: Path, launch: Launch) -> None:
    runs = f"runs={tmp_path}"
    write_run(tmp_path / "sft" / "a", [4.0, 3.0, 2.0])
    content = json.loads(launch("compare", "sft/a/step_2", "sft/a", runs, "--json").stdout)
    assert [run["run"] for run in content["runs"]] == ["sft/a/step_2", "sft/a"]
    assert [run["steps"] for run in content["runs"]] == [2, 3]
    assert "[no_checkpoint]" in launch("compare", "sft/a/step_4", "sft/a", runs).stderr


def test_the_verb_prints_a_table_and_json(tmp_path: Path, launch: Launch) -> None:
    runs = f"runs={tmp_path}"
    write_run(tmp_path / "sft" / "a", [3.0, 2.0])
    write_run(tmp_path / "sft" / "b", [3.0, 1.0], recipe={"learning_rate": 2e-3})
    write_bench(tmp_path, losses=[2.0, 9.0, 2.02, 9.0], speeds=[100, 500, 110, 500])
    table = launch("compare", "sft/a", "sft/b", runs).stdout
    assert "recipe.learning_rate" in table and "data: the same" in table and "lower" in table
    content = json.loads(launch("compare", "sft/a", "sft/b", runs, "--json").stdout)
    assert [run["loss_verdict"] for run in content["runs"]] == [None, "lower"]
    assert content["differs"] == [
        {"section": "settings", "key": "recipe.learning_rate", "values": [0.001, 0.002]}
    ]
    assert (
        launch("compare", "sft/a", runs).returncode
        == launch("compare", "sft/a", "nothing", runs).returncode
        == 2
    )


@pytest.mark.parametrize("change", ["weights", "config", "added", "gone"])
def test_a_model_that_was_changed_since_is_named(
    tmp_path: Path, launch: Launch, change: str
) -> None:
    runs = f"runs={tmp_path}"
    for name in "ab":
        folder = write_run(tmp_path / "sft" / name, [3.0, 2.0])
        (folder / "model").mkdir()
        (folder / "model" / "model.safetensors").write_text("weights")
        (folder / "model" / "config.json").write_text("{}")
        files = digest_model(folder / "model", DigestCache(tmp_path / "none").of)
        outcome = Outcome(0, 1.0, 2, 2.0, model={"files": files})
        RunFolder(folder).finish(outcome)
    assert "not the one" not in launch("compare", "sft/a", "sft/b", runs).stdout
    model = tmp_path / "sft" / "b" / "model"
    if change == "gone":
        (model / "config.json").unlink()
    else:
        names = {"weights": "model.safetensors", "config": "config.json", "added": "tokenizer.json"}
        (model / names[change]).write_text("other")
    [line] = [
        line
        for line in launch("compare", "sft/a", "sft/b", runs).stdout.splitlines()
        if "not the one that this run saved" in line
    ]
    assert line.startswith("sft/b: ")
    assert "not the one that this run saved" in render_runs([Run(tmp_path / "sft" / "b")])
    assert "not the one that this run saved" not in render_runs([Run(tmp_path / "sft" / "a")])
