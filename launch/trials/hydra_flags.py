"""Hydra's own flags (--help, --cfg, --info): they show the configuration, and nothing runs."""

from __future__ import annotations

from collections.abc import Sequence

from launch.config.compose import compose
from launch.config.line import CommandLine
from launch.errors import EXIT_DONE

_FLAGS = ("--help", "-h", "--cfg", "-c", "--info", "-i")


def has_hydra_flag(line: CommandLine) -> bool:
    return any(word in _FLAGS for word in line.argv)


def answer_hydra_flag(line: CommandLine, own_keys: Sequence[str]) -> int:
    """Let Hydra answer; `own_keys` are the verb's own and unknown to Hydra."""
    return compose(line.without(*own_keys), lambda composed: EXIT_DONE)
