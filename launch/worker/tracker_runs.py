"""Has an experiment tracker go on with the run that an earlier process of the same run began.

A file in the run's folder has the tracker's own id of the run. trackio needs none: it finds a run by
its name (transformers/integrations/integration_utils.py:985).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import Any

FILE_VARIABLE = "LAUNCH_TRACKER_FILE"  # launch/planning/tracking.py repeats it
_MLFLOW = "mlflow"
_MLFLOW_RUN = "MLFLOW_RUN_ID"
# The variable of the id, and the variables with which the tracker takes a run up again. An id is of
# launch's own making.
_BY_ID: dict[str, tuple[str, dict[str, str]]] = {
    "wandb": ("WANDB_RUN_ID", {"WANDB_RESUME": "allow"}),
    "swanlab": ("SWANLAB_RUN_ID", {"SWANLAB_RESUME": "allow"}),
    "comet_ml": ("COMET_EXPERIMENT_KEY", {}),
}


def continue_run(
    trackers: Sequence[str], rank: int, environ: MutableMapping[str, str]
) -> list[Any]:
    """Set the variables by which the trackers of a trainer find the run that they began earlier.

    `trackers` are transformers' names. Only rank 0 reports. Returns the callbacks that the trainer
    needs besides: MLflow chooses its ids by itself, and one of them is written down when it has.
    A variable of the user's is kept.
    """
    file = environ.get(FILE_VARIABLE)
    if not file or rank:
        return []
    path = Path(file)
    known = _read(path)
    callbacks = []
    for tracker in trackers:
        if tracker in _BY_ID:
            variable, others = _BY_ID[tracker]
            if variable in environ:
                continue
            known.setdefault(tracker, uuid.uuid4().hex)
            _write(path, known)
            environ[variable] = known[tracker]
            for name, value in others.items():
                environ.setdefault(name, value)
        elif tracker == _MLFLOW and _MLFLOW_RUN not in environ:
            if tracker in known:
                environ[_MLFLOW_RUN] = known[tracker]
                # MLflow refuses another value of a parameter that a run has, and a resumed
                # trainer's arguments name its checkpoint.
                environ.setdefault("MLFLOW_MAX_LOG_PARAMS", "0")
            else:
                callbacks.append(_note_mlflow_run(path, known))
    return callbacks


def _note_mlflow_run(path: Path, known: dict[str, str]) -> Any:
    """Return a callback that writes the id of MLflow's run. It follows transformers' own callback."""
    from transformers import TrainerCallback

    class NoteRun(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, *arguments: Any, **options: Any) -> None:
            import mlflow

            run = mlflow.active_run()
            if run is not None:
                _write(path, {**known, _MLFLOW: run.info.run_id})

    return NoteRun()


def _read(path: Path) -> dict[str, str]:
    """Return the ids by tracker; {} without a readable file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(k): str(v) for k, v in content.items()} if isinstance(content, dict) else {}


def _write(path: Path, known: dict[str, str]) -> None:
    path.write_text(json.dumps(known) + "\n", encoding="utf-8")
