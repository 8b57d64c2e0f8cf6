"""The verbs of several runs: `bench`, `rollout`, `tune` and `trial`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launch.config.compose import Composed, compose, compose_all
from launch.config.line import CommandLine
from launch.errors import EXIT_DONE, refusal
from launch.execution.display import Display, display_for
from launch.terminal import print_json

if TYPE_CHECKING:
    from launch.planning.plan import Plan
    from launch.trials.record import TrialRecord


def run_trial(
    line: CommandLine,
    own_keys: Sequence[str],
    run: Callable[[Display], tuple[TrialRecord[Any], int]],
) -> int:
    """Run a trial and return its exit code.

    With one of Hydra's own options the configuration is shown, and nothing runs. `own_keys` are the
    keys of the verb, which Hydra does not know.
    """
    if line.asks_hydra:
        return compose(line.without(*own_keys), lambda composed: EXIT_DONE)
    record, code = run(display_for(sys.stderr if line.json else sys.stdout))
    if line.json:
        print_json(record.file_content())
    return code


BENCH_HELP = """usage: launch bench stage=NAME [both] -- [A's overrides] -- [B's overrides] [--json]

examples:
  launch bench stage=sft gpus=8 -- parallel=zero3 -- parallel=zero2
  launch bench stage=sft gpus=1 steps=8 -- recipe.liger=false -- recipe.liger=true
  launch bench stage=demo trainer=trl_sft device=cpu steps=6 -- -- recipe.per_device_batch_size=4

Alternates short runs of two settings on the same data and global batch, and reports tokens/s, MFU,
memory and loss with a confidence interval. Run it again to add repeats.

keys of bench, before the first `--`:
  steps=N             optimizer steps of each run (10)
  warmup=N            first steps that do not count (2)
  repeats=N           runs of each setting (3)
  order=abba|abab     which setting begins each pair
  max_minutes=M       start no run that would not end in time
  loss_tolerance=X    relative difference of the losses (0.05)
  restart=true        repeat existing runs

exit codes: 0 at least one pair was compared; 2 cannot be compared, nothing was started; 3 a run
failed; 130 interrupted """


def bench(line: CommandLine) -> int:
    """Run both settings in turn and compare them.

    Returns the exit code: 0 there is a verdict, 3 a run failed or no pair is complete, 130
    interrupted. Raises UserError when the two cannot be compared or cannot run.
    """
    from launch.trials.bench.engine import SEPARATOR, SHORT, read_bench_request, run_bench

    end = line.argv.index(SEPARATOR) if SEPARATOR in line.argv else len(line.argv)
    common = replace(line, argv=line.argv[:end])
    return run_trial(common, SHORT, lambda display: run_bench(read_bench_request(line), display))


ROLLOUT_HELP = """usage: launch rollout stage=NAME gpus=1,2,8 [key=value ...] [--json]

examples:
  launch rollout stage=sft_25pct gpus=1,2,8 steps=50
  launch rollout stage=sft_25pct gpus=1,2,8 then=run price_per_gpu_hour=3
  launch rollout stage=sft_25pct gpus=1,8,2x8 submit=all           as Slurm jobs; 2x8 is 2 nodes of 8 GPUs
  launch rollout stage=demo trainer=trl_sft device=cpu processes=1,2 steps=10

Runs the stage for some steps at each width on the same data, checks each width against the gates,
stops at the first that fails, and projects hours and cost of the whole training.

keys of rollout:
  steps=N                 optimizer steps of each width (100)
  then=run                run the whole stage at the last width
  price_per_gpu_hour=X    adds the cost to the projection
  parallel_at_one=zero2   parallel mode of one GPU
  submit=rest|all         widths as Slurm jobs; dry_run=true only writes their folders
  gates.GATE.NUMBER=X     change a limit; allow=[GATE] makes a gate a warning
  restart=true            also run the widths that have passed

exit codes: 0 all passed; 2 a width cannot work, nothing was started; 3 a gate failed or a width was
not run; 130 interrupted """


def rollout(line: CommandLine) -> int:
    """Run the stage at each of its widths.

    Returns the exit code: 0 all widths passed, 3 a gate failed or a width was not run, and the exit
    code of the whole run with then=run. Raises UserError when a width cannot work.
    """
    from launch.trials.rollout.engine import run_rollout
    from launch.trials.rollout.record import RolloutRecord
    from launch.trials.rollout.request import OWN_KEYS, read_rollout_request

    def start(display: Display) -> tuple[RolloutRecord, int]:
        return run_rollout(read_rollout_request(line), display, run_stage=_run_stage)

    return run_trial(line, OWN_KEYS, start)


def _run_stage(line: CommandLine) -> int:
    """Run the whole stage, at the last width of a rollout."""
    from launch.api.running import run_composed

    def run(composed: Composed) -> int:
        return run_composed(composed, lambda folder: display_for(sys.stdout))

    return compose(line, run)


TUNE_HELP = """usage: launch tune stage=NAME gpus=N [key=value ...] [--json]

examples:
  launch tune stage=sft_25pct gpus=8
  launch tune stage=sft_25pct gpus=8 dry_run=true cluster.gpu_type=h100    predictions only
  launch run stage=sft_25pct gpus=8 +tuned=sft_25pct-gpu8-1a2b3c4d         use the result

Predicts time and memory of every setting that keeps the recipe, measures the most promising ones in
short runs, and writes the best as an overlay for `+tuned=NAME`. What you set on the command line
stays fixed.

keys of tune:
  probes=N           maximum number of short runs (8)
  minutes=M          time for all of them (10)
  steps=N            optimizer steps of each (8); the first tune.skip (2) do not count
  dry_run=true       print the predictions and run nothing
  compare_full=true  for a LoRA stage: also probe full fine-tuning once, where it fits
  tune.room=X        share of GPU memory that stays free (0.05)
  restart=true       repeat existing probes

exit codes: 0 there is a result; 1 no probe measured anything; 2 nothing can be searched; 130
interrupted """


def tune(line: CommandLine) -> int:
    """Search the fastest setting and write its overlay.

    Returns the exit code: 0 there is a result (with dry_run, predictions), 1 no probe measured
    anything, 130 interrupted. Raises UserError when nothing can be searched.
    """
    from launch.trials.tune.engine import SHORT, read_tune_line, run_tune

    return run_trial(line, SHORT, lambda display: run_tune(read_tune_line(line), display))


TRIAL_HELP = """usage: launch trial stage=NAME KEY=A,B [KEY=C,D ...] [key=value ...] [--json]

examples:
  launch trial stage=dpo gpus=8 recipe.beta=1,5
  launch trial stage=demo trainer=trl_sft device=cpu recipe.learning_rate=1e-3,3e-3 recipe.seed=1,2
  launch run stage=dpo gpus=8 recipe.beta=1,5 sweep=true              the same
  launch submit stage=dpo gpus=8 recipe.beta=1,5 sweep=true           as a Slurm array

Runs every combination of the comma lists to its end, one after another, each in the folder that
`run` gives it. All are planned and checked before the first starts. One table has their results,
one page their curves over one another. The same command goes on where it was ended: finished runs
are kept, an unfinished one resumes.

keys of trial: those of `run`, without detach=true and name=

exit codes: 0 all runs are done; 2 one of them cannot work, nothing was started; 130 interrupted;
else that of the first run that failed """


def trial(line: CommandLine) -> int:
    """Run every combination of the line's comma lists and return the exit code.

    A sweep that only tokenises (cache_only=true) writes no record.

    Raises UserError when a combination cannot work.
    """
    from launch.api.running import run_composed, run_with_display
    from launch.trials.sweep import run_sweep

    stream = sys.stderr if line.json else sys.stdout
    if line.asks_hydra:
        return compose(line, lambda composed: EXIT_DONE)
    configurations = compose_all(line)
    if any(composed.config.detach for composed in configurations):
        message = "a sweep waits for each of its runs, which a detached run does not allow"
        raise refusal("detach_one", message, "detach", "leave one of them out")

    def make_display(folder: Path) -> Display:
        return display_for(stream)

    is_swept = len(configurations) > 1
    if not is_swept or all(composed.config.cache_only for composed in configurations):
        for composed in configurations:
            code = run_composed(composed, make_display, is_swept=is_swept)
            if code != EXIT_DONE:
                return code
        return EXIT_DONE

    def run_one(plan: Plan) -> int:
        return run_with_display(plan, make_display)

    return run_trial(line, (), lambda display: run_sweep(configurations, display, run_one))
