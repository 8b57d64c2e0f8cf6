"""The trainer's settings for what a stage learns of its rows: data.train_on and data.format=text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from launch.config.kinds import DataFormat
from launch.config.schema import RootConfig, TrainOn
from launch.worker.trl_options import LEARNS_TEXT

TRAIN_ON = "data.train_on"
FORMAT = "data.format"


def requested_learning(config: RootConfig) -> str | None:
    """Return what is learnt instead of all answers, as `trainer.learns` names it: `last`, `marked`
    or `text`; None for all answers.
    """
    if config.data.format == DataFormat.text:
        return LEARNS_TEXT
    return None if config.data.train_on == TrainOn.all else str(config.data.train_on)


def key_of_learning(config: RootConfig) -> str:
    """Return the key that sets what is learnt."""
    return FORMAT if config.data.format == DataFormat.text else TRAIN_ON


def learning_flags(config: RootConfig) -> Mapping[str, Any]:
    """Return the flags with which the trainer learns what is requested; {} if it needs none."""
    return config.trainer.learns.get(requested_learning(config) or "", {})
