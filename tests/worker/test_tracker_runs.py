"""A tracker's run is the same one after a resume: by an id of launch's, by MLflow's own, or by a name
that no other run has.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launch.planning import trackers, tracking
from launch.worker.tracker_runs import (
    FILE_VARIABLE,
    GROUP_VARIABLE,
    continue_run,
    continue_wandb,
)


def arguments(*trackers: str, name: str = "sft-one") -> Any:
    """Return what transformers' arguments say of trackers."""
    return SimpleNamespace(
        report_to=list(trackers),
        project="tulu",
        run_name=name,
        trackio_space_id=None,
        trackio_static_space_id=None,
    )


def test_planning_names_the_same_variables() -> None:
    assert FILE_VARIABLE in tracking.TRACKING_VARIABLES
    assert GROUP_VARIABLE in tracking.TRACKING_VARIABLES
    assert {tracker.report_to for tracker in trackers.TRACKERS.values()} >= {"trackio", "mlflow"}


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
    assert continue_run(arguments(tracker), 0, first) == []
    assert others.items() <= first.items() and len(first[variable]) == 32
    resumed = {FILE_VARIABLE: file}
    continue_run(arguments(tracker), 0, resumed)
    assert resumed == first
    another = {FILE_VARIABLE: str(tmp_path / "another.json")}
    continue_run(arguments(tracker), 0, another)
    assert another[variable] != first[variable]


@pytest.mark.parametrize(
    ("trackers", "rank", "environ"),
    [
        (["wandb"], 1, {FILE_VARIABLE: "tracker.json"}),  # only rank 0 reports
        (["wandb"], 0, {}),
        (["tensorboard"], 0, {FILE_VARIABLE: "tracker.json"}),
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
    assert continue_run(arguments(*trackers), rank, environ) == []
    assert environ == before and not list(tmp_path.iterdir())


def test_the_trainers_of_open_instruct_go_on_with_their_run_of_wandb(tmp_path: Path) -> None:
    file = str(tmp_path / "tracker.json")
    first, second, other = {FILE_VARIABLE: file}, {FILE_VARIABLE: file}, {FILE_VARIABLE: file}
    continue_wandb(0, first)
    continue_wandb(0, second)
    continue_wandb(1, other)
    assert first == second and first["WANDB_RESUME"] == "allow" and len(first) == 3
    assert other.keys() == {FILE_VARIABLE}
    untracked: dict[str, str] = {}
    continue_wandb(0, untracked)
    assert not untracked


@pytest.fixture
def mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """MLflow with a database of its own."""
    module = pytest.importorskip("mlflow", reason="mlflow is not installed")
    pytest.importorskip("sqlalchemy", reason="mlflow-skinny has no database: install mlflow")
    pytest.importorskip("transformers")
    module.set_tracking_uri(f"sqlite:///{tmp_path / 'mlflow.db'}")
    yield module
    module.set_tracking_uri(None)


def test_mlflow_goes_on_with_the_run_that_it_began(mlflow: Any, tmp_path: Path) -> None:
    file = tmp_path / "tracker.json"
    (callback,) = continue_run(arguments("mlflow"), 0, {FILE_VARIABLE: str(file)})
    mlflow.set_experiment("tulu")
    with mlflow.start_run(run_name="one") as run:
        callback.on_train_begin(None, None, None)
    assert json.loads(file.read_text()) == {"mlflow": run.info.run_id}
    environ = {FILE_VARIABLE: str(file), "MLFLOW_EXPERIMENT_NAME": "tulu"}
    assert continue_run(arguments("mlflow"), 0, environ) == []
    assert environ["MLFLOW_RUN_ID"] == run.info.run_id and environ["MLFLOW_MAX_LOG_PARAMS"] == "0"


@pytest.mark.parametrize("lost", ["another project", "another server"])
def test_mlflow_begins_a_new_run_where_it_does_not_have_the_old_one(
    lost: str, mlflow: Any, tmp_path: Path
) -> None:
    file = tmp_path / "tracker.json"
    environ = {FILE_VARIABLE: str(file), "MLFLOW_EXPERIMENT_NAME": "tulu"}
    mlflow.set_experiment("tulu")
    with mlflow.start_run() as run:
        file.write_text(json.dumps({"mlflow": run.info.run_id}))
    if lost == "another project":
        environ["MLFLOW_EXPERIMENT_NAME"] = "other"
    else:
        mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'another.db'}")
    assert len(continue_run(arguments("mlflow"), 0, environ)) == 1
    assert "MLFLOW_RUN_ID" not in environ


def test_trackio_gets_a_name_of_its_own_and_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stand-in that lists the runs: the real one is in tests/integration/test_trackers.py."""
    runs = [SimpleNamespace(name="sft-one"), SimpleNamespace(name="sft-one-2")]
    api = SimpleNamespace(runs=lambda project: runs if project == "tulu" else [])
    monkeypatch.setitem(sys.modules, "trackio", SimpleNamespace(Api=lambda: api))
    environ = {FILE_VARIABLE: str(tmp_path / "tracker.json")}
    begun = arguments("trackio")
    assert continue_run(begun, 0, environ) == []
    assert begun.run_name == "sft-one-3" and begun.trackio_static_space_id is False
    runs.append(SimpleNamespace(name="sft-one-3"))
    resumed = arguments("trackio")
    continue_run(resumed, 0, environ)
    assert resumed.run_name == "sft-one-3"
    of_space = arguments("trackio")
    continue_run(of_space, 0, {**environ, "TRACKIO_SPACE_ID": "me/space"})
    assert of_space.trackio_static_space_id is None
