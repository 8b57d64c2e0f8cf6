"""Makes an experiment tracker continue the run that an earlier process of the same run began.

A file in the run's folder has the tracker's own id of the run, and of trackio its name: trackio finds
a run by its project and its name (transformers/integrations/integration_utils.py:985).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

FILE_VARIABLE = "LAUNCH_TRACKER_FILE"  # launch/planning/tracking.py repeats it
GROUP_VARIABLE = "LAUNCH_TRACKER_GROUP"  # launch/planning/trackers.py repeats it
_MLFLOW = ("mlflow", "dagshub")  # DagsHub's callback is MLflow's
_MLFLOW_RUN = "MLFLOW_RUN_ID"
_TRACKIO = "trackio"
# The variable of the id, and the variables with which the tracker takes a run up again. An id is of
# launch's own making.
_BY_ID: dict[str, tuple[str, dict[str, str]]] = {
    "wandb": ("WANDB_RUN_ID", {"WANDB_RESUME": "allow"}),
    "swanlab": ("SWANLAB_RUN_ID", {"SWANLAB_RESUME": "allow"}),
    "comet_ml": ("COMET_EXPERIMENT_KEY", {}),
}


def continue_run(args: Any, rank: int, environ: MutableMapping[str, str]) -> list[Any]:
    """Have the trackers of a trainer find the run that they began earlier.

    `args` are transformers' arguments of the trainer, whose name of the run trackio may get another
    value of. Only rank 0 reports. Returns the callbacks that the trainer needs besides. A variable of
    the user's is kept.
    """
    file = environ.get(FILE_VARIABLE)
    if not file or rank:
        return []
    path = Path(file)
    callbacks = []
    for tracker in args.report_to:
        if tracker in _BY_ID:
            _choose_id(tracker, path, environ)
        elif tracker in _MLFLOW and _MLFLOW_RUN not in environ:
            callbacks += _continue_mlflow(path, environ)
        elif tracker == _TRACKIO:
            callbacks += _continue_trackio(args, path, environ)
    return callbacks


def continue_wandb(rank: int, environ: MutableMapping[str, str]) -> None:
    """Have W&B, which open-instruct's trainers log to, find the run that it began earlier."""
    file = environ.get(FILE_VARIABLE)
    if file and not rank:
        _choose_id("wandb", Path(file), environ)


def _choose_id(tracker: str, path: Path, environ: MutableMapping[str, str]) -> None:
    variable, others = _BY_ID[tracker]
    if variable in environ:
        return
    known = _read(path)
    known.setdefault(tracker, uuid.uuid4().hex)
    _write(path, known)
    environ[variable] = known[tracker]
    for name, value in others.items():
        environ.setdefault(name, value)


def _continue_mlflow(path: Path, environ: MutableMapping[str, str]) -> list[Any]:
    """Make MLflow continue its run, or record the id of a new one, which it chooses itself."""
    run_id = _read(path).get(_MLFLOW[0])
    if run_id is None or not _has_mlflow_run(run_id, environ):
        return [_callback_at_start(lambda: _note_mlflow_run(path))]
    environ[_MLFLOW_RUN] = run_id
    # MLflow refuses another value of a parameter that a run has, and a resumed trainer's arguments
    # name its checkpoint.
    environ.setdefault("MLFLOW_MAX_LOG_PARAMS", "0")
    return []


def _has_mlflow_run(run_id: str, environ: Mapping[str, str]) -> bool:
    """Return whether MLflow has the run in the experiment that is set. It would end a training
    otherwise: a server or a project may have changed since the run began.
    """
    import mlflow

    try:
        run = mlflow.get_run(run_id)
        experiment = mlflow.get_experiment(run.info.experiment_id)
    except mlflow.exceptions.MlflowException:
        return False
    return bool(experiment.name == environ.get("MLFLOW_EXPERIMENT_NAME", experiment.name))


def _note_mlflow_run(path: Path) -> None:
    import mlflow

    run = mlflow.active_run()
    if run is not None:
        _write(path, {**_read(path), _MLFLOW[0]: run.info.run_id})


def _continue_trackio(args: Any, path: Path, environ: Mapping[str, str]) -> list[Any]:
    """Have trackio find its run by a name that no other run has, and give it its group.

    trackio takes a run of the same name for the same one, such as that of an archived run.
    """
    known = _read(path)
    if _TRACKIO not in known:
        known[_TRACKIO] = _find_free_name(args.project, args.run_name)
        _write(path, known)
    args.run_name = known[_TRACKIO]
    # Without a Space of the user's a push of the model would publish the metrics in one of its own
    # (transformers/integrations/integration_utils.py:1109).
    has_space = args.trackio_space_id or environ.get("TRACKIO_SPACE_ID")
    if not has_space and args.trackio_static_space_id is None:
        args.trackio_static_space_id = False
    group = environ.get(GROUP_VARIABLE)
    return [_callback_at_start(lambda: _set_trackio_group(group))] if group else []


def _find_free_name(project: str, name: str) -> str:
    """Return `name`, or `name-2`, ... where trackio's local database has such a run."""
    import trackio

    try:
        taken = {run.name for run in trackio.Api().runs(project)}
    except ValueError:  # there is no such project
        return name
    number = 2
    free = name
    while free in taken:
        free = f"{name}-{number}"
        number += 1
    return free


def _set_trackio_group(group: str) -> None:
    """Put the run into a group, which only trackio.init takes and transformers does not pass on."""
    import trackio

    run = trackio.context_vars.current_run.get()
    if run is not None:
        run.group = group
        run.config["_Group"] = group


def _callback_at_start(act: Callable[[], None]) -> Any:
    """Return a callback that acts when training begins, after transformers' own callbacks."""
    from transformers import TrainerCallback

    class AtStart(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, *arguments: Any, **options: Any) -> None:
            act()

    return AtStart()


def _read(path: Path) -> dict[str, str]:
    """Return the ids by tracker; {} without a readable file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(k): str(v) for k, v in content.items()} if isinstance(content, dict) else {}


def _write(path: Path, known: dict[str, str]) -> None:
    path.write_text(json.dumps(known) + "\n", encoding="utf-8")
