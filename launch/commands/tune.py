"""`tune`: find the fastest setting that fits and keeps the recipe's mathematics."""

from __future__ import annotations

from launch.commands.trial import run_trial
from launch.config.line import CommandLine
from launch.trials.tune.engine import SHORT, read_request, run_tune

HELP = """usage: launch tune stage=NAME gpus=N [key=value ...] [--json]

examples:
  launch tune stage=sft_25pct gpus=8
  launch tune stage=sft_25pct gpus=8 dry_run=true cluster.gpu_type=h100    predictions only
  launch run stage=sft_25pct gpus=8 +tuned=sft_25pct-gpu8-1a2b3c4d         use the result

Predicts time and memory of every setting that keeps the recipe, measures the most promising ones in short runs, and
writes the best as an overlay for `+tuned=NAME`. What you set on the command line stays fixed.

keys of tune:
  probes=N       maximum number of short runs (8)
  minutes=M      time for all of them (10)
  steps=N        optimizer steps of each (8); the first tune.skip (2) do not count
  dry_run=true   print the predictions and run nothing
  tune.room=X    share of GPU memory that stays free (0.05)
  restart=true   repeat existing probes

exit codes: 0 there is a result; 1 no probe measured anything; 2 nothing can be searched; 130 interrupted
"""


def tune(line: CommandLine) -> int:
    """Search the fastest setting and write its overlay.

    Returns the exit code: 0 there is a result (with dry_run, predictions), 1 no probe measured anything, 130
    interrupted. Raises UserError when nothing can be searched.
    """
    return run_trial(line, SHORT, lambda display: run_tune(read_request(line), display))
