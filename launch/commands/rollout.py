"""`rollout`: run the stage at one width after another, through gates; then the whole stage at the last width."""

from __future__ import annotations

from launch.commands.run import run
from launch.commands.trial import run_trial
from launch.config.line import CommandLine
from launch.trials.rollout.engine import run_rollout
from launch.trials.rollout.request import OWN_KEYS, read_request

HELP = """usage: launch rollout stage=NAME gpus=1,2,8 [key=value ...] [--json]

examples:
  launch rollout stage=sft_25pct gpus=1,2,8 steps=50
  launch rollout stage=sft_25pct gpus=1,2,8 then=run price_per_gpu_hour=3
  launch rollout stage=sft_25pct gpus=1,8,2x8 submit=all           as Slurm jobs; 2x8 is 2 nodes of 8 GPUs
  launch rollout stage=demo trainer=trl_sft device=cpu processes=1,2 steps=10

Runs the stage for some steps at each width on the same data, checks each width against the gates, stops at the first
that fails, and projects hours and cost of the whole training.

keys of rollout:
  steps=N                 optimizer steps of each width (100)
  then=run                run the whole stage at the last width
  price_per_gpu_hour=X    adds the cost to the projection
  parallel_at_one=zero2   parallel mode of one GPU
  submit=rest|all         widths as Slurm jobs; dry_run=true only writes their folders
  gates.GATE.NUMBER=X     change a limit; allow=[GATE] makes a gate a warning
  restart=true            also run the widths that have passed

exit codes: 0 all passed; 2 a width cannot work, nothing was started; 3 a gate failed or a width was not run;
130 interrupted
"""


def rollout(line: CommandLine) -> int:
    """Take the stage through its widths.

    Returns the exit code: 0 all widths passed, 3 a gate failed or a width was not run, and the exit code of the whole
    run with then=run. Raises UserError when a width cannot work.
    """
    return run_trial(line, OWN_KEYS, lambda display: run_rollout(read_request(line), display, run_stage=run))
