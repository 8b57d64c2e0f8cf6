"""The trackers that run on this machine, trackio and MLflow, and what their stores have of real
trainings that were stopped, resumed and started over.
"""

from __future__ import annotations

import json
import signal
import sqlite3
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.integration.conftest import finish, records, stop_once

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

SECRET = "q7Xw93kd02Lm"


@dataclass
class StoredRun:
    """One run, as a tracker's own store has it."""

    name: str
    project: str
    group: str | None
    steps: list[int] = field(default_factory=list)  # in the order in which they were logged


def read_mlflow(store: Path) -> dict[str, StoredRun]:
    """Return the runs of MLflow by their ids."""
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{store}")
    runs = {}
    for experiment in client.search_experiments():
        for run in client.search_runs([experiment.experiment_id]):
            logged = client.get_metric_history(run.info.run_id, "loss")
            steps = [metric.step for metric in sorted(logged, key=lambda metric: metric.timestamp)]
            group = run.data.tags.get("launch.stage")
            runs[run.info.run_id] = StoredRun(run.info.run_name, experiment.name, group, steps)
    return runs


def read_trackio(store: Path) -> dict[str, StoredRun]:
    """Return the runs of trackio's database of a project by their ids."""
    database = sqlite3.connect(store)
    steps = defaultdict(list)
    for run_id, metrics in database.execute("select run_id, metrics from metrics order by id"):
        logged = json.loads(metrics)
        if "train/loss" in logged:
            steps[run_id].append(logged["train/global_step"])
    runs = {}
    for run_id, name, config in database.execute("select run_id, run_name, config from configs"):
        runs[run_id] = StoredRun(name, store.stem, json.loads(config)["_Group"], steps[run_id])
    database.close()
    return runs


@pytest.mark.parametrize(
    ("tracker", "stage", "trainer"),
    [
        ("mlflow_offline", "demo", "trl_sft"),
        ("trackio_offline", "demo", "trl_sft"),
        ("mlflow_offline", "demo_dpo", "trl_dpo"),
        ("trackio_offline", "demo_kto", "trl_kto"),
    ],
)
def test_a_resumed_run_goes_on_in_the_same_place(
    tracker: str, stage: str, trainer: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tracker.removesuffix("_offline")
    pytest.importorskip(package, reason=f"{package} is not installed")
    if package == "mlflow":
        pytest.importorskip("sqlalchemy", reason="mlflow-skinny has no database: install mlflow")
    # What names a server, which an offline run must not look for.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9/")
    monkeypatch.setenv("TRACKIO_SPACE_ID", "nobody/space")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", SECRET)
    monkeypatch.setenv("TRACKIO_WRITE_TOKEN", SECRET)
    monkeypatch.setenv("TRACKIO_DIR", str(home / "trackio"))
    store, read = _store_of(package, home)
    name = f"with-{package}"
    words = [
        f"stage={stage}",
        f"trainer={trainer}",
        f"name={name}",
        f"tracking={tracker}",
        f"tracking_project=tulu-{stage}",
        "recipe.max_steps=6",
        "recipe.checkpoint_steps=2",
        "recipe.epochs=1",
    ]
    folder = home / "runs" / stage / name

    def is_past_a_checkpoint() -> bool:
        return len(records(folder / "metrics.jsonl")) >= 3

    stop_once(home, is_past_a_checkpoint, signal.SIGTERM, *words)
    code, text = finish(home, *words)
    assert code == 0 and "(attempt 2)" in text, text
    ((run_id, run),) = _of_project(read(store(stage)), f"tulu-{stage}").items()
    assert (run.name, run.group) == (f"{stage}-{name}", stage)
    # The first attempt's last steps may have been on their way to the store when it was stopped.
    assert set(run.steps) == {1, 2, 3, 4, 5, 6} and run.steps[-1] == 6
    assert len(run.steps) > 6 or package == "trackio"
    for path in (*folder.rglob("*"), store(stage)):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path

    if stage == "demo":
        code, text = finish(home, *words, "restart=true")
        assert code == 0, text
        runs = _of_project(read(store(stage)), f"tulu-{stage}")
        assert len(runs) == 2 and runs[run_id] == run
        (other,) = [run for other_id, run in runs.items() if other_id != run_id]
        assert other.steps == [1, 2, 3, 4, 5, 6] and other.group == stage


def _store_of(
    package: str, home: Path
) -> tuple[Callable[[str], Path], Callable[[Path], dict[str, StoredRun]]]:
    """Return the file of a stage's store, and what reads it."""
    if package == "mlflow":
        return lambda stage: home / "runs" / "mlflow.db", read_mlflow
    return lambda stage: home / "trackio" / f"tulu-{stage}.db", read_trackio


def _of_project(runs: dict[str, StoredRun], project: str) -> dict[str, StoredRun]:
    return {run_id: run for run_id, run in runs.items() if run.project == project}


@pytest.mark.parametrize("trainer", ["trl_sft", "finetune"])
def test_wandb_keeps_the_id_of_a_run_that_is_resumed(
    trainer: str, home: Path, request: pytest.FixtureRequest
) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed")
    if trainer == "finetune":
        request.getfixturevalue("open_instruct")
    name = f"wandb-{trainer}"
    words = [
        "stage=demo",
        f"trainer={trainer}",
        f"name={name}",
        "tracking=wandb_offline",
        "recipe.max_steps=6",
        "recipe.checkpoint_steps=2",
    ]
    folder = home / "runs" / "demo" / name

    def is_past_a_checkpoint() -> bool:
        return len(records(folder / "metrics.jsonl")) >= 3

    stop_once(home, is_past_a_checkpoint, signal.SIGTERM, *words)
    code, text = finish(home, *words)
    assert code == 0 and "(attempt 2)" in text, text
    offline = [path.name for path in (folder / "wandb").glob("offline-run-*")]
    ids = {name.rpartition("-")[2] for name in offline}
    known = json.loads((folder / "tracker.json").read_text(encoding="utf-8"))
    assert len(offline) == 2 and ids == {known["wandb"]}
