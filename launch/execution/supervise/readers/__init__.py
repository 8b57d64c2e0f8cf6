"""Parses trainers' log lines into events, with the reader that a trainer's file names.

Pure: a line and the time go in, events come out. The grammar is upstream's at the pin; each reader's docstring cites
the source lines. The steps of `dpo_tune_cache` and of TRL come from the worker, not from lines.
"""

from __future__ import annotations

from launch.execution.supervise.readers.base import LogReader
from launch.execution.supervise.readers.olmo_core import OlmoCoreReader
from launch.execution.supervise.readers.open_instruct import DPOTuneCacheReader, FinetuneReader
from launch.execution.supervise.readers.reward_modeling import RewardModelingReader
from launch.execution.supervise.readers.trl import TRLReader

__all__ = ["READERS", "LogReader", "reader_for"]

READERS: dict[str, type[LogReader]] = {
    "finetune": FinetuneReader,
    "dpo_tune_cache": DPOTuneCacheReader,
    "olmo_core": OlmoCoreReader,
    "reward_modeling": RewardModelingReader,
    "trl": TRLReader,
}


def reader_for(name: str, rank: int) -> LogReader:
    """Return a new reader for the lines of one rank; an unknown name gets one that only knows the common lines."""
    return READERS.get(name, LogReader)(rank)
