"""`node`: run one node of a Slurm job; the batch scripts of `submit` start it through srun."""

from __future__ import annotations

import os

from launch.config.compose import compose
from launch.config.line import CommandLine
from launch.slurm.allocation import check_shared, read_allocation
from launch.slurm.node.context import TIME_LIMIT_NEAR
from launch.slurm.node.lifecycle import run_stage, run_task
from launch.slurm.signals import NodeSignals
from launch.terminal import notify
from launch.trials.rollout.node_task import width_task

HELP = """usage: launch node stage=NAME [key=value ...]

Runs one node's part of a Slurm job. The batch scripts of `submit` start it through srun.
"""


def node(line: CommandLine) -> int:
    """Run this node's part of the composed stage, or, with `width=`, of one width of a rollout.

    Raises UserError; returns the exit code of this node's Slurm task.
    """
    options, stage_line = line.pop_overrides(("width",))
    is_first = os.environ.get("SLURM_NODEID") == "0"
    signals = NodeSignals(lambda: notify(f"Slurm warns: {TIME_LIMIT_NEAR}") if is_first else None)
    with signals.handled():
        allocation = read_allocation(os.environ)
        check_shared(allocation)
        if "width" in options:
            return run_task(width_task(stage_line, options["width"], allocation), allocation, signals)
        return compose(stage_line, lambda composed: run_stage(composed, allocation, signals))
