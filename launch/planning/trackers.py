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
    package: str  # the module that the trainer imports
    project: str = ""  # variable of the project
    entity: str = ""  # variable of the user or the team
    name: str = ""  # variable of the run's name; "": it takes the trainer's run_name
    group: str = ""  # variable of the group, which is the stage
    folder: str = ""  # variable of the folder that it keeps files in
    offline: tuple[str, str] | None = None  # variable and value that keep it from the network


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
# launch itself writes TensorBoard's files, so it is not here.
TRACKERS: Mapping[Tracking, Tracker] = MappingProxyType(
    {
        Tracking.wandb: _WANDB,
        Tracking.wandb_offline: _WANDB,
        # Its project is a flag. Both it and MLflow are local unless a variable of yours names a
        # server.
        Tracking.trackio: Tracker("trackio", "trackio"),
        Tracking.mlflow: Tracker("mlflow", "mlflow", project="MLFLOW_EXPERIMENT_NAME"),
        Tracking.comet_ml: _COMET,
        Tracking.comet_ml_offline: _COMET,
        Tracking.swanlab: _SWANLAB,
        Tracking.swanlab_offline: _SWANLAB,
        Tracking.clearml: _CLEARML,
        Tracking.clearml_offline: _CLEARML,
        Tracking.neptune: Tracker("neptune", "neptune", project="NEPTUNE_PROJECT"),
        Tracking.dvclive: Tracker("dvclive", "dvclive"),
        Tracking.codecarbon: Tracker("codecarbon", "codecarbon"),
        Tracking.dagshub: Tracker("dagshub", "dagshub", project="MLFLOW_EXPERIMENT_NAME"),
        Tracking.azure_ml: Tracker("azure_ml", "azureml.core"),
        Tracking.flyte: Tracker("flyte", "flytekit"),
    }
)


def find_tracker(tracking: Tracking) -> Tracker | None:
    """Return the tracker that a trainer reports to; None for none, and for TensorBoard."""
    return TRACKERS.get(tracking)


def is_offline(tracking: Tracking) -> bool:
    """Return whether the tracker is to keep from the network."""
    return tracking.endswith("_offline")
