"""`bench` for real, on the CPU: cut short, gone on with, reported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration import warm
from tests.integration.demo_kit import give_demo
from tests.integration.reports import read_report
from tests.trials.records import check

pytestmark = pytest.mark.slow

COMMON = ("stage=demo", "trainer=trl_sft", "device=cpu", "steps=4", "repeats=2")
SETTINGS = ("--", "recipe.per_device_batch_size=4", "--", "recipe.per_device_batch_size=8")


def bench(*words: str, cwd: Path, code: int) -> tuple[dict[str, Any], str]:
    """Run it to its end: the JSON that it printed, and its stderr."""
    command = [warm.python(), "-m", "launch", "bench", "--json", *words]
    ran = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=400, check=False)
    assert ran.returncode == code, ran.stdout + ran.stderr
    assert "Traceback" not in ran.stderr
    record: dict[str, Any] = json.loads(ran.stdout)
    check(record)
    return record, ran.stderr


@pytest.mark.thorough
def test_two_settings_on_the_cpu(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The first call has time for one run alone; the second one keeps it and runs the others."""
    pytest.importorskip("torch", reason="the `train` dependencies are not installed")
    give_demo(tmp_path_factory, tmp_path)
    cut, output = bench(*COMMON, "max_minutes=0.01", *SETTINGS, cwd=tmp_path, code=3)
    assert [run["state"] for run in cut["runs"]] == ["done", "not_run", "not_run", "not_run"]
    assert cut["verdict"] is None and "3 of 4 runs are missing" in output
    folder = Path(cut["runs"][0]["folder"]).parent
    assert "no pair of runs is complete" in read_report(folder).text
    # the curves of its short runs are in its own page
    assert not list(folder.glob("*/report.html"))

    record, output = bench(*COMMON, *SETTINGS, cwd=tmp_path, code=0)
    assert [(run["label"], run["reused"]) for run in record["runs"]] == [
        ("A1", True),
        ("B1", False),
        ("B2", False),
        ("A2", False),
    ]
    assert record["state"] == "done" and len(record["pairs"]) == 2
    # the same data in other micro batches: the same tokens and, in float32, the same losses
    verdict = record["verdict"]
    assert (verdict["data"], verdict["loss"], verdict["memory"]) == ("same", "same", "unknown")
    assert verdict["largest_loss_difference"] < 1e-4
    assert verdict["speed"] in ("faster", "slower", "undecided")
    assert "memory" in output and "B runs at" in output

    settings = record["settings"]
    a, b = (setting["median"] for setting in settings)
    assert 0 < a["padding"] < b["padding"] < 1  # longer rows have more of it
    assert 0 < a["mfu_measured"] < 1 and a["mfu_datasheet"] is None
    rate = settings[0]["rate"]
    assert rate["measured_tflops"] > 0 and rate == settings[1]["rate"] == cut["settings"][0]["rate"]
    assert settings[0]["operations"]["document_tokens"] > 1 and settings[0]["not_proven"] == []
    for run in record["runs"]:
        folder = Path(run["folder"])
        assert (folder / "DONE").is_file() and not list((folder / "model").glob("*.safetensors"))
    report = (Path(record["runs"][0]["folder"]).parent / "bench.md").read_text(encoding="utf-8")
    assert "| throughput without padding |" in report
    page = read_report(Path(record["runs"][0]["folder"]).parent)
    assert all(sentence in page.text for sentence in verdict["summary"])
    (folder.parent / "report.html").unlink()
    again, _ = bench(*COMMON, "report=false", *SETTINGS, cwd=tmp_path, code=0)
    assert all(run["reused"] for run in again["runs"])
    assert not (folder.parent / "report.html").exists()


def test_what_cannot_work_is_reported_before_anything_runs(tmp_path: Path) -> None:
    words = (
        "stage=demo",
        "trainer=trl_sft",
        "device=cpu",
        "--",
        "recipe.seed=1",
        "--",
        "recipe.seed=2",
    )
    command = [sys.executable, "-m", "launch", "bench", *words]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert "recipe.seed is 1 in A and 2 in B" in ran.stderr and "[bench_data]" in ran.stderr
    on_gpus = (
        "stage=sft",
        "trainer=trl_sft",
        "data.mix=[{name: some/data}]",
        "--",
        "gpus=1",
        "--",
        "gpus=2",
    )
    command = [sys.executable, "-m", "launch", "bench", *on_gpus]
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    ran = subprocess.run(
        command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    assert (
        ran.returncode == 2
        and "has no GPU" in ran.stderr
        and ran.stderr.count("[too_few_gpus]") == 2
    )
    assert not list(tmp_path.rglob("bench.json"))
