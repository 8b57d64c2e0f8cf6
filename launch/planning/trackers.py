"""The experiment trackers that transformers reports to, and the variables that each of them reads.

Only trainers whose arguments are transformers' pass them on: TRL's. Secrets, such as SWANLAB_API_KEY,
are read by the trackers from the environment or from their own logins, and launch neither sets nor
writes them. The names of variables are those that transformers' callbacks read
(transformers/integrations/integration_utils.py) or the tracker itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from launch.config.schema import Tracking


@dataclass(frozen=True)
class Tracker:
    """One tracker; a variable that it does not have is ""."""

    report_to: str  # transformers' name
    package: str = ""  # the module that the trainer imports; "": transformers has all of it
    project: str = ""  # variable of the project
    entity: str = ""  # variable of the user or the team
    name: str = ""  # variable of the run's name; "": it takes the trainer's run_name
    group: str = ""  # variable of the group, which is the stage
    folder: str = ""  # variable of the folder that it keeps files in
    offline: tuple[str, str] | None = None  # variable and value that keep it from the network
    # The variables that name its server. Without them it is local, and offline it gets none of them.
    servers: tuple[str, ...] = ()
    needs: str = ""  # the variable without which it ends a training


_WANDB = Tracker(
    "wandb",
    "wandb",
    project="WANDB_PROJECT",
    entity="WANDB_ENTITY",
    group="WANDB_RUN_GROUP",
    folder="WANDB_DIR",
    offline=("WANDB_MODE", "offline"),
)
_COMET = Tracker(
    "comet_ml",
    "comet_ml",
    project="COMET_PROJECT_NAME",
    entity="COMET_WORKSPACE",
    folder="COMET_OFFLINE_DIRECTORY",
    offline=("COMET_START_ONLINE", "0"),
)
_SWANLAB = Tracker(
    "swanlab",
    "swanlab",
    project="SWANLAB_PROJECT",
    entity="SWANLAB_WORKSPACE",
    folder="SWANLAB_LOG_DIR",
    offline=("SWANLAB_MODE", "offline"),
)
_CLEARML = Tracker(
    "clearml",
    "clearml",
    project="CLEARML_PROJECT",
    name="CLEARML_TASK",
    offline=("CLEARML_OFFLINE_MODE", "1"),
)
# Its project is a flag, and its group is set by launch/worker/tracker_runs.py.
_TRACKIO = Tracker(
    "trackio",
    "trackio",
    group="LAUNCH_TRACKER_GROUP",
    servers=("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"),
)
_MLFLOW = Tracker(
    "mlflow",
    "mlflow",
    project="MLFLOW_EXPERIMENT_NAME",
    servers=("MLFLOW_TRACKING_URI",),
)
_DAGSHUB = Tracker(
    "dagshub",
    "dagshub",
    project="MLFLOW_EXPERIMENT_NAME",
    needs="MLFLOW_TRACKING_URI",
)
# launch itself writes TensorBoard's files, so it is not here.
TRACKERS: Mapping[Tracking, Tracker] = MappingProxyType(
    {
        Tracking.wandb: _WANDB,
        Tracking.wandb_offline: _WANDB,
        Tracking.trackio: _TRACKIO,
        Tracking.trackio_offline: _TRACKIO,
        Tracking.mlflow: _MLFLOW,
        Tracking.mlflow_offline: _MLFLOW,
        Tracking.comet_ml: _COMET,
        Tracking.comet_ml_offline: _COMET,
        Tracking.swanlab: _SWANLAB,
        Tracking.swanlab_offline: _SWANLAB,
        Tracking.clearml: _CLEARML,
        Tracking.clearml_offline: _CLEARML,
        Tracking.neptune: Tracker(
            "neptune", "neptune", project="NEPTUNE_PROJECT", needs="NEPTUNE_API_TOKEN"
        ),
        Tracking.dvclive: Tracker("dvclive", "dvclive"),
        Tracking.codecarbon: Tracker("codecarbon", "codecarbon"),
        Tracking.dagshub: _DAGSHUB,
        Tracking.azure_ml: Tracker("azure_ml", "azureml.core"),
        Tracking.flyte: Tracker("flyte", "flytekit"),
        Tracking.kubeflow: Tracker("kubeflow", needs="KUBEFLOW_TRAINER_SERVER_URL"),
    }
)


def find_tracker(tracking: Tracking) -> Tracker | None:
    """Return the tracker that a trainer reports to; None for none, and for TensorBoard."""
    return TRACKERS.get(tracking)


def is_offline(tracking: Tracking) -> bool:
    """Return whether the tracker is to keep from the network."""
    return tracking.endswith("_offline")


def servers_to_unset(tracking: Tracking) -> tuple[str, ...]:
    """Return the variables of servers, which a tracker that is to keep from the network does not get."""
    tracker = find_tracker(tracking)
    return tracker.servers if tracker is not None and is_offline(tracking) else ()
