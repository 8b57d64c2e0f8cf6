"""`bench`: compare the speed of two settings on this machine."""

from __future__ import annotations

from dataclasses import replace

from launch.commands.trial import run_trial
from launch.config.line import CommandLine
from launch.trials.bench.engine import run_bench
from launch.trials.bench.settings import SEPARATOR, SHORT, read_request

HELP = """usage: launch bench stage=NAME [both] -- [A's overrides] -- [B's overrides] [--json]

examples:
  launch bench stage=sft gpus=8 -- parallel=zero3 -- parallel=zero2
  launch bench stage=sft gpus=1 steps=8 -- recipe.liger=false -- recipe.liger=true
  launch bench stage=demo trainer=trl_sft device=cpu steps=6 -- -- recipe.per_device_batch_size=4

Alternates short runs of two settings on the same data and global batch, and reports tokens/s, MFU, memory and loss
with a confidence interval. Run it again to add repeats.

keys of bench, before the first `--`:
  steps=N             optimizer steps of each run (10)
  warmup=N            first steps that do not count (2)
  repeats=N           runs of each setting (3)
  order=abba|abab     which setting begins each pair
  max_minutes=M       start no run that would not end in time
  loss_tolerance=X    relative difference of the losses (0.05)
  restart=true        repeat existing runs

exit codes: 0 at least one pair was compared; 2 cannot be compared, nothing was started; 3 a run failed; 130 interrupted
"""


def bench(line: CommandLine) -> int:
    """Run both settings in turn and compare them.

    Returns the exit code: 0 there is a verdict, 3 a run failed or no pair is complete, 130 interrupted. Raises
    UserError when the two cannot be compared or cannot run.
    """
    before_settings = line.argv[: line.argv.index(SEPARATOR)] if SEPARATOR in line.argv else line.argv
    common = replace(line, argv=before_settings)
    return run_trial(common, SHORT, lambda display: run_bench(read_request(line), display))
