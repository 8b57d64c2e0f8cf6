"""Probes until no setting promises to be faster, then options that nothing predicts, then the recipe's own setting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from launch.errors import Problem, UserError
from launch.trials.tune.candidate import Candidate
from launch.trials.tune.predict import Prediction
from launch.trials.tune.probe import Probe, ProbeVerdict
from launch.trials.tune.record import TuneRecord
from launch.trials.tune.search import Stop, affordable_steps, exhausted_limit, next_probe

Extra = tuple[str, Any]  # a key and its value
RunProbe = Callable[[Prediction, int], Probe]  # a setting and its steps
Run = Callable[[Prediction, int], None]  # the same, recorded
_COMPLETED = (Stop.best_beats_the_rest, Stop.all_tried)


def search(
    record: TuneRecord,
    run_probe: RunProbe,
    extras: Callable[[Candidate], Sequence[Extra]],
    on_change: Callable[[Probe | None], None],
) -> None:
    """Fill the record.

    `run_probe` runs one setting for some steps; `extras` are the options to try on the best one, one after another;
    `on_change` is called before and after each probe.
    """
    if len(record.predictions) == 1:
        record.stop = Stop.one_setting
        on_change(None)
        return

    def run(prediction: Prediction, steps: int) -> None:
        on_change(None)
        probe = run_probe(prediction, steps)
        record.probes.append(probe)
        if probe.verdict == ProbeVerdict.interrupted:
            record.stop = Stop.interrupted
        on_change(probe)

    while record.stop is None:
        choice = next_probe(record.estimates, record.probes, record.limits, record.used)
        if isinstance(choice, Stop):
            record.stop = choice
        else:
            run(choice.prediction, record.limits.steps)
    if record.stop in _COMPLETED:
        _try_extras(record, run, extras)
    if record.stop != Stop.interrupted and record.best is not None:
        _probe_base(record, run)
    on_change(None)


def refuse_if_nothing_fits(record: TuneRecord) -> None:
    """Raise UserError (nothing_fits) with the least memory that any setting needs."""
    estimates = record.estimates
    if record.probes or any(estimate.is_open for estimate in estimates):
        return
    smallest = min(estimates, key=lambda estimate: estimate.memory_gib or 0.0)
    card, room = record.workload.card_gib or 0.0, record.limits.room
    message = (
        f"no setting at {record.plan.parallel.width} fits: {smallest.prediction.label} needs the least, about "
        f"{smallest.memory_gib:.0f} GiB of a card's {card:.0f} GiB, of which {room:.0%} stays free"
    )
    cure = "use more GPUs, a smaller model or a lower recipe.max_seq_length, or set fewer keys yourself"
    raise UserError(Problem("nothing_fits", message, None, cure))


def _try_extras(record: TuneRecord, run: Run, extras: Callable[[Candidate], Sequence[Extra]]) -> None:
    """Try each extra option on the best setting so far; the results are predictions like the others from then on."""
    if record.best is None:
        return
    for extra in extras(record.best.prediction.candidate):
        best = record.best
        if best is None or best.seconds is None or record.stop == Stop.interrupted:
            return
        if exhausted_limit(best.seconds, record.probes, record.limits, record.used):
            return
        candidate = replace(best.prediction.candidate, extra=(*best.prediction.candidate.extra, extra))
        refined = replace(best.prediction, candidate=candidate)
        record.predictions = [*record.predictions, refined]
        run(refined, record.limits.steps)


def _probe_base(record: TuneRecord, run: Run) -> None:
    """Probe the recipe's own setting, for as many steps as there is time for: the gain and the loss are measured
    against it. It is often many times slower than the best, so that a whole probe would take too long."""
    if record.base is not None:
        return
    base, skip = record.base_estimate, record.plan.config.tune.skip
    steps = affordable_steps(base.seconds, record.probes, record.limits, record.used, skip)
    if base.is_open and steps is not None:
        run(base.prediction, steps)
