"""A search on one CPU process as a user starts it: real runs of the real trainer."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from launch.execution.record.run import Run
from tests.integration.conftest import launch_in
from tests.integration.reports import read_report
from tests.trials.records import check

pytestmark = pytest.mark.slow

SEARCH = (
    "tune",
    "stage=demo",
    "device=cpu",
    "processes=1",
    "recipe.max_steps=8",
    "recipe.gradient_checkpointing=false",
)
LIMITS = ("probes=2", "steps=3", "minutes=5", "name=small")


def launch(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return launch_in(home, *words, XDG_CONFIG_HOME=str(home / "config"))


def record(home: Path, name: str = "small") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        (home / f"runs/demo/tune-{name}/tune.json").read_text(encoding="utf-8")
    )
    check(found)
    return found


@pytest.mark.thorough
def test_a_search_its_overlay_and_calling_it_again(home: Path, open_instruct: Path) -> None:
    ran = launch(home, *SEARCH, *LIMITS)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    searched = record(home)
    assert searched["state"] == "done" and searched["stop"] in (
        "probes_used",
        "best_beats_the_rest",
    )
    assert searched["data"]["measured"] and searched["data"]["mean_tokens"] > 10
    probes = searched["runs"]
    assert len(probes) == 2 and {probe["state"] for probe in probes} == {"done"}
    assert searched["best"] in [probe["label"] for probe in probes] and searched["held"] == [
        "recipe.gradient_checkpointing"
    ]
    # the same samples in each step, and every token weighs alike: the settings are the same
    # training
    assert probes[0]["measured"]["losses"] == pytest.approx(
        probes[1]["measured"]["losses"], rel=2e-3
    )
    for probe in probes:
        reported = Run(Path(probe["folder"])).events("evidence")
        built = [found.data["value"] for found in reported if found.data["what"] == "dataset_cache"]
        assert built and set(built) == {"hit"}  # the data was tokenised once, before

    assert (
        f"the fastest setting measured is {searched['best']}"
        in read_report(home / "runs/demo/tune-small").text
    )

    before = {path: path.stat().st_mtime_ns for path in home.rglob("metrics.jsonl")}
    page = home / "runs/demo/tune-small/report.html"
    page.unlink()
    again = launch(home, *SEARCH, *LIMITS, "report=false")
    assert not page.exists()
    assert again.returncode == 0 and "(reused)" in again.stdout
    assert {path: path.stat().st_mtime_ns for path in home.rglob("metrics.jsonl")} == before
    kept = record(home)
    assert kept["best"] == searched["best"] and all(probe["reused"] for probe in kept["runs"])

    planned = launch(
        home, "plan", "stage=demo", "device=cpu", "processes=1", "+tuned=small", "--json"
    )
    assert planned.returncode == 0 and "tuned_elsewhere" not in planned.stderr
    chosen = next(probe["overrides"] for probe in probes if probe["label"] == searched["best"])
    per_device = json.loads(planned.stdout)["batch"]["per_device"]
    assert f"recipe.per_device_batch_size={per_device}" in chosen
    wider = launch(
        home,
        "plan",
        "stage=demo",
        "device=cpu",
        "processes=2",
        "+tuned=small",
        "recipe.per_device_batch_size=4",
    )
    assert wider.returncode == 0 and "width cpu1, here cpu2" in wider.stderr


def test_probes_that_all_fail_say_why_and_are_kept(home: Path, open_instruct: Path) -> None:
    ran = launch(home, *SEARCH, *LIMITS[:-1], "name=broken", "flags.config_name=/no/such/model")
    assert ran.returncode == 1 and "Traceback" not in ran.stderr
    assert (
        "nothing was measured in 2 probes (the probes fail with one cause at every setting): "
        in ran.stdout
    )
    searched = record(home, "broken")
    assert (
        searched["state"] == "failed"
        and searched["stop"] == "all_failed"
        and searched["overlay"] is None
    )
    assert "nothing was measured" in read_report(home / "runs/demo/tune-broken").text
    assert all(
        "/no/such/model" in probe["message"] and Path(probe["folder"]).is_dir()
        for probe in searched["runs"]
    )
