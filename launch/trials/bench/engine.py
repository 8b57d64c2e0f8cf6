"""Reads `bench [common] -- [A's overrides] -- [B's overrides]`, plans both settings and runs them
in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from launch.config.compose import map_all
from launch.config.line import CommandLine, format_value, override_key
from launch.config.schema import Packing
from launch.config.trials import BenchConfig
from launch.errors import EXIT_DONE, EXIT_INTERRUPTED, EXIT_STOPPED, UserError, refusal
from launch.execution.display import Display
from launch.execution.earlier_runs import training_settings
from launch.execution.record.lock import run_lock
from launch.execution.record.run import mapping, objects
from launch.planning.identity import compute_identity
from launch.planning.plan import Plan
from launch.trials.bench.record import BenchRecord, BenchRun, BenchSide, SettingDifference
from launch.trials.card_rate import CardRate, card_name, measure_card_rate
from launch.trials.record import State, archive_other_format, read_earlier, seconds_left
from launch.trials.trial import (
    Runner,
    expand_short_options,
    plan_probe,
    refuse_failing_preflight,
    refuse_unsupported,
    say_document,
    say_lines,
    say_plan,
)
from launch.worker.finding import Finding
from launch.worker.json_codec import from_json

SIDES = ("A", "B")
SHORT = tuple(vars(BenchConfig()))  # short for keys of the node `bench`
# set before the first `--`: they belong to the bench, not to one setting
_COMMON = (*SHORT, "name", "runs", "cache", "restart", "allow")
SEPARATOR = "--"
_USAGE = "bench stage=S [common] -- [A's overrides] -- [B's overrides]"


@dataclass(frozen=True)
class BenchRequest:
    """The command line of a bench, read."""

    common: CommandLine  # of both settings
    own: tuple[tuple[str, ...], tuple[str, ...]]  # the overrides of A alone, and of B alone

    def line(self, side: int) -> CommandLine:
        """The line of A (0) or B (1); a setting's own override replaces the common one."""
        own = self.own[side]
        keys = {override_key(override) for override in own}
        # choosing a group sets its keys anew
        keys |= {f"{key}.mode" for key in keys if key == "parallel"}
        return self.common.without(*keys).with_overrides(*own)


def read_request(line: CommandLine) -> BenchRequest:
    """Split the line at its `--`. Raises UserError: bench_settings, bench_alone, bench_common,
    duplicate_override.
    """
    parts: list[list[str]] = [[]]
    for word in line.argv:
        if word == SEPARATOR:
            parts.append([])
        else:
            parts[-1].append(word)
    if len(parts) != 3:
        given = {1: "no settings: there is no `--`", 2: "one setting: there is one `--`"}
        message = (
            "bench compares two settings and got "
            f"{given.get(len(parts), f'{len(parts) - 1} of them')}"
        )
        raise refusal("bench_settings", message, "command line", f"use {_USAGE}")
    common, a, b = parts
    refuse_unsupported(line, "bench", "it runs two settings in turn")
    problems = []
    for name, arguments in zip(SIDES, (a, b), strict=True):
        for argument in arguments:
            key = override_key(argument)
            if key in _COMMON or key.startswith("bench."):
                message = f"{key}= applies to the whole bench, not to setting {name} alone"
                problems.append(
                    Finding.error(
                        "bench_common", message, f"override {key}", "move it before the first `--`"
                    )
                )
            elif argument.startswith("-"):
                message = f"'{argument}' is not an override of setting {name}"
                problems.append(
                    Finding.error(
                        "bench_common", message, "command line", "move it before the first `--`"
                    )
                )
    if problems:
        raise UserError(problems)
    return BenchRequest(
        expand_short_options(replace(line, argv=tuple(common)), "bench", SHORT),
        (tuple(a), tuple(b)),
    )


LEAST_STEPS = 2  # after the warm-up
# besides the keys of `data`
_OF_DATA = ("stage.kind", "recipe.max_seq_length", "recipe.chat_template", "recipe.seed")
# as they come out
_LISTED_ABOVE = ("recipe.per_device_batch_size", "recipe.precision", "parallel.mode")


def plan_bench(request: BenchRequest, plan: Callable[[CommandLine], Plan]) -> BenchRecord:
    """Plan both settings; `plan` plans the short run of a line.

    Raises UserError with the problems of both, each problem once; and: bench_steps;
    bench_global_batch, bench_data (not comparable, unless `allow` names the id).
    """
    plans = map_all(map(request.line, (0, 1)), lambda line: _check_numbers(plan(line)))
    a, b = (BenchSide(*side) for side in zip(SIDES, request.own, plans, strict=True))
    differences, config = list_differences(a.plan, b.plan), a.plan.config
    notes = _find_mismatches(a, b, differences)
    if errors := [problem for problem in notes if problem.id not in config.allow]:
        raise UserError(errors)
    if config.bench.repeats == 1:
        message = "one repeat has no spread: it cannot distinguish a difference from noise"
        notes.append(Finding.error("one_repeat", message, "bench.repeats", "use repeats=3"))
    id_ = config.name or compute_identity({"a": a.plan.identity, "b": b.plan.identity}, {}, {})
    folder = a.plan.runs / a.plan.stage / f"bench-{id_}"
    return BenchRecord(
        folder, a.plan, config.bench.steps, config.bench.warmup, (a, b), differences, notes
    )


def _check_numbers(plan: Plan) -> Plan:
    """Return the plan if its steps can be measured. Raises UserError: bench_steps."""
    bench, problems = plan.config.bench, []
    if bench.steps - bench.warmup < LEAST_STEPS:
        message = f"steps={bench.steps} after warmup={bench.warmup} leaves too few steps to measure"
        cure = f"use steps={bench.warmup + LEAST_STEPS} or more"
        problems.append(Finding.error("bench_steps", message, "bench.steps", cure))
    total = plan.config.recipe.max_steps
    if total is not None and total < bench.steps:
        message = f"the stage has only {total} steps, fewer than steps={bench.steps}"
        problems.append(
            Finding.error("bench_steps", message, "bench.steps", f"use steps={total} or fewer")
        )
    if problems:
        raise UserError(problems)
    return plan


def _find_mismatches(
    a: BenchSide, b: BenchSide, differences: Sequence[SettingDifference]
) -> list[Finding]:
    """What makes the two do different amounts of work, or train on different data."""
    problems = []
    if a.plan.batch.global_ != b.plan.batch.global_:
        sizes = f"A's global batch is {a.plan.batch.global_} and B's is {b.plan.batch.global_}"
        message = f"{sizes}: equal steps are not equal work"
        cure = (
            "set one recipe.global_batch_size= before the first `--`, or allow=[bench_global_batch]"
        )
        problems.append(
            Finding.error("bench_global_batch", message, "recipe.global_batch_size", cure)
        )
    for side in (a, b):
        if side.plan.config.recipe.packing == Packing.bins:
            message = (
                f"{side.label} packs into bins, so its global batch is not a fixed number "
                "of "
                "samples"
            )
            cure = "set recipe.packing=flatten, or allow=[bench_global_batch]"
            problems.append(Finding.error("bench_global_batch", message, "recipe.packing", cure))
            break
    of_data = [row for row in differences if row.what.startswith("data.") or row.what in _OF_DATA]
    if of_data:
        values = "; ".join(f"{row.what} is {row.a} in A and {row.b} in B" for row in of_data)
        cure = "set it once, before the first `--`, or allow=[bench_data]"
        problems.append(
            Finding.error(
                "bench_data", f"A and B do not train on the same data: {values}", None, cure
            )
        )
    return problems


def list_differences(a: Plan, b: Plan) -> list[SettingDifference]:
    """The differences between two plans, without the folders that each run has for itself."""
    ours, theirs = (
        {name: format_value(value) for name, value in _list_facts(plan).items()} for plan in (a, b)
    )
    rows = [
        SettingDifference(name, ours.get(name, "-"), theirs.get(name, "-"))
        for name in {**ours, **theirs}
    ]
    return [row for row in rows if row.a != row.b]


def _list_facts(plan: Plan) -> dict[str, Any]:
    """What the settings come to, and those that decide the training."""
    batch, parallel = plan.batch, plan.parallel
    settings = training_settings(plan.resolved, with_trainer=False)
    return {
        "trainer": plan.trainer,
        "width": parallel.width,
        "parallel": parallel.mode,
        "precision": parallel.precision,
        "per device x accumulation": f"{batch.per_device} x {batch.accumulation}",
        "upstream": plan.upstream.description,
        "python": plan.command[0],
        "model": plan.inputs.model.reference,
        "expandable_segments": plan.config.expandable_segments,
        **{
            name: value
            for name, value in settings.items()
            if name not in _LISTED_ABOVE and value != {}
        },
    }


def run_bench(request: BenchRequest, display: Display) -> tuple[BenchRecord, int]:
    """Run both settings in turn and compare them.

    Returns the record and the exit code: 0 there is a verdict, 3 a run failed or no pair is
    complete, 130 interrupted.
    Raises UserError when the two cannot be compared or cannot run.
    """
    record = plan_bench(request, plan_probe)
    restart = record.plan.config.restart
    earlier = read_earlier(
        record.folder, record.verb, {"stage": record.plan.stage}, restart=restart
    )
    with run_lock(record.folder, display.say):
        archive_other_format(record.folder, record.verb, display.say)
        say_plan(display, record, _describe_settings(record), record.planning_notes)
        runner = Runner(record, display, reuse=not restart)
        if not all(map(runner.find_earlier, record.runs)):
            refuse_failing_preflight((side.plan for side in record.sides), ends_after=record.steps)
        rate_cards(record, earlier)
        say_lines(display, record.rate_lines)
        code = run_in_turn(runner)
        say_document(display, record)
        return record, code


def _describe_settings(record: BenchRecord) -> Iterator[str]:
    for side in record.sides:
        mode = f"{side.plan.parallel.width} {side.plan.parallel.mode.value}"
        yield (
            f"  {side.label}: {' '.join(side.overrides) or 'no overrides'} ({mode}; "
            f"{side.plan.batch})"
        )
    if record.same_setting:
        yield "  A and B are the same setting: their difference is the measurement noise"
    yield from (f"  differs: {row.what}: {row.a} in A, {row.b} in B" for row in record.differences)


def rate_cards(record: BenchRecord, earlier: Mapping[str, Any] | None) -> None:
    """Measure the peak rate of the cards, once for each precision, unless an earlier call has."""
    recorded = [
        mapping(setting.get("rate")) for setting in objects(mapping(earlier).get("settings"))
    ]
    rates = [
        from_json(CardRate, rate) for rate in recorded if rate.get("measured_tflops") is not None
    ]
    for side in record.sides:
        parallel = side.plan.parallel
        key = (card_name(side.plan), parallel.width.device, parallel.precision)
        known = (rate for rate in rates if (rate.name, rate.device, rate.precision) == key)
        side.rate = next(known, None) or measure_card_rate(side.plan, key[0])
        rates.append(side.rate)


def run_in_turn(runner: Runner[BenchRun]) -> int:
    """Take every run of a bench in its turn.

    Returns the exit code: 0 with a pair to compare, 3 when a run failed or no pair is complete, 130
    when interrupted.
    Raises UserError when the first run cannot be started.
    """
    record = runner.record
    assert isinstance(record, BenchRecord)
    for index, run in enumerate(record.runs):
        # how long a run takes is unknown before the first one, which therefore has no limit
        left = seconds_left(
            (other for other in record.runs if not other.reused), record.config.max_minutes
        )
        if (
            runner.find_earlier(run)
            or left is None
            or left >= _expected_seconds(record.runs, index)
        ):
            runner.take(run, left)
        else:
            run.state = State.not_run
        if run.state == State.not_run:
            for later in record.runs[index:]:  # there is no time for them
                later.state = State.not_run
            record.message = f"max_minutes={record.config.max_minutes:g} is too short for the rest"
        if run.state != State.done:
            break
    if record.state == State.interrupted:
        return EXIT_INTERRUPTED
    return EXIT_STOPPED if record.state == State.failed or not record.pairs else EXIT_DONE


def _expected_seconds(runs: Sequence[BenchRun], index: int) -> float:
    """Seconds of the next run and, when it begins a pair, of the other run of that pair: half a
    pair compares nothing. A setting that has not run yet counts as 0.
    """
    pair = [run for run in runs[index:] if run.repeat == runs[index].repeat]
    return sum(max((other.seconds or 0.0 for other in run.side.runs), default=0.0) for run in pair)
