"""A tracker's run is the same one after a resume: by an id of launch's, or by MLflow's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launch.planning import tracking
from launch.worker.tracker_runs import FILE_VARIABLE, continue_run


def test_planning_names_the_same_variable() -> None:
    assert FILE_VARIABLE in tracking.TRACKING_VARIABLES


@pytest.mark.parametrize(
    ("tracker", "variable", "others"),
    [
        ("wandb", "WANDB_RUN_ID", {"WANDB_RESUME": "allow"}),
        ("swanlab", "SWANLAB_RUN_ID", {"SWANLAB_RESUME": "allow"}),
        ("comet_ml", "COMET_EXPERIMENT_KEY", {}),
    ],
)
def test_an_id_is_kept_for_the_next_process(
    tracker: str, variable: str, others: dict[str, str], tmp_path: Path
) -> None:
    file = str(tmp_path / "tracker.json")
    first = {FILE_VARIABLE: file}
    assert continue_run([tracker], 0, first) == []
    assert others.items() <= first.items() and len(first[variable]) == 32
    resumed = {FILE_VARIABLE: file}
    continue_run([tracker], 0, resumed)
    assert resumed == first
    another = {FILE_VARIABLE: str(tmp_path / "another.json")}
    continue_run([tracker], 0, another)
    assert another[variable] != first[variable]


@pytest.mark.parametrize(
    ("trackers", "rank", "environ"),
    [
        (["wandb"], 1, {FILE_VARIABLE: "tracker.json"}),  # only rank 0 reports
        (["wandb"], 0, {}),
        (["trackio", "tensorboard"], 0, {FILE_VARIABLE: "tracker.json"}),
        (["wandb"], 0, {FILE_VARIABLE: "tracker.json", "WANDB_RUN_ID": "mine"}),
        (["mlflow"], 0, {FILE_VARIABLE: "tracker.json", "MLFLOW_RUN_ID": "mine"}),
    ],
)
def test_nothing_is_set_otherwise(
    trackers: list[str],
    rank: int,
    environ: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    before = dict(environ)
    assert continue_run(trackers, rank, environ) == []
    assert environ == before and not list(tmp_path.iterdir())


def test_mlflow_goes_on_with_the_run_that_it_began(tmp_path: Path) -> None:
    file = tmp_path / "tracker.json"
    file.write_text(json.dumps({"mlflow": "0123abcd"}))
    environ = {FILE_VARIABLE: str(file)}
    assert continue_run(["mlflow"], 0, environ) == []
    assert environ["MLFLOW_RUN_ID"] == "0123abcd" and environ["MLFLOW_MAX_LOG_PARAMS"] == "0"
    file.write_text("no JSON")
    pytest.importorskip("transformers")
    assert len(continue_run(["mlflow"], 0, {FILE_VARIABLE: str(file)})) == 1


def test_mlflow_itself_writes_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("transformers")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    file = tmp_path / "tracker.json"
    (callback,) = continue_run(["mlflow"], 0, {FILE_VARIABLE: str(file)})
    with mlflow.start_run(run_name="one") as run:
        callback.on_train_begin(None, None, None)
    assert json.loads(file.read_text()) == {"mlflow": run.info.run_id}
