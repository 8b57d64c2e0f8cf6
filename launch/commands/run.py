"""`run`: plan, check this machine, run, watch, record."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from launch.api.running import run_composed, run_planned
from launch.commands.trials import trial
from launch.config.compose import Composed, compose
from launch.config.line import CommandLine
from launch.execution.detach import describe_detached_run, run_detached
from launch.execution.display import Display, display_for
from launch.pipelines.links import Pipeline, plan_pipeline
from launch.terminal import notify

MakeDisplay = Callable[[Path], Display]  # a function that makes the display of a run folder

RUN_HELP = """usage: launch [run] stage=NAME [key=value ...]

examples:
  launch stage=demo trainer=trl_sft                         a tiny model on the CPU, about a minute
  launch stage=sft_25pct gpus=8
  launch stage=dpo gpus=8 recipe.learning_rate=3e-7 name=lower_lr
  launch stage=sft gpus=8 recipe.checkpoint_steps=100       another interval of checkpoints
  launch stage=dpo recipe.beta=1,5 sweep=true               one run after the other, as `launch trial`
  launch pipeline=sft,dpo gpus=8 evaluate=true              DPO from the SFT's model

Plans the stage, checks this machine, trains under a supervisor and records the run in
runs/STAGE/NAME. The same command resumes an unfinished run and reports a finished one.

keys of run:
  pipeline=A,B        each stage starts from the previous one's model; A:key=value applies to one
                      stage
  stop_if_worse=true  end a pipeline at a stage whose evaluate=true finds a significant loss
  restart=true        archive an earlier run of the same plan and start over
  detach=true         return when the run has started; it survives the terminal
  cache_only=true     tokenise the data on the CPU, and train nothing
  evaluate=true       afterwards, score the model against its base, as `launch eval` does
  tracking=WHERE      wandb, wandb_offline, tensorboard; of TRL's trainers trackio, mlflow, ...
  report=false        write no report.html at the end
  hub.push=OWNER/NAME push the model to the Hugging Face hub at the end
  allow=[ID]          turn a rule, guard or expectation into a warning; every message ends with its
                      id
`launch help keys` lists the keys used most. `--cfg job` prints the composed configuration.

exit codes: 0 done; 1 the run failed; 2 it cannot work, nothing was started; 3 a guard or the
evidence stopped it; 130 interrupted """


def run(line: CommandLine) -> int:
    """Run the composed stage, or the stages of a pipeline, to the end and return the exit code.

    Raises UserError when it cannot be started.
    """
    pipeline = plan_pipeline(line, notify)
    if pipeline:
        return _run_pipeline(pipeline)
    if line.sweeps:
        return trial(line)

    def run_stage(composed: Composed) -> int:
        def task(make_display: MakeDisplay) -> int:
            return run_composed(composed, make_display)

        return _start(task, is_detached=composed.config.detach)

    return compose(line, run_stage)


def _run_pipeline(pipeline: Pipeline) -> int:
    from launch.pipelines.engine import run_pipeline

    def task(make_display: MakeDisplay) -> int:
        return run_pipeline(pipeline, make_display, run_planned)

    is_detached = any(plan.config.detach for plan in pipeline.plans)
    return _start(task, is_detached=is_detached)


def _start(task: Callable[[MakeDisplay], int], *, is_detached: bool) -> int:
    """Run a task in the background or here; the task makes the display of its run folder."""
    if is_detached:
        return run_detached(task, describe_detached_run)
    return task(lambda folder: display_for(sys.stdout))
