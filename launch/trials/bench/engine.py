"""Reads the command line of a bench, plans its two settings and runs them in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from launch.config.compose import map_all
from launch.config.line import CommandLine, format_value, override_key
from launch.config.recipe_keys import Packing, Precision
from launch.config.schema import Device
from launch.config.trials import BenchConfig
from launch.errors import EXIT_DONE, EXIT_INTERRUPTED, EXIT_STOPPED, UserError, refusal
from launch.execution.display import Display
from launch.execution.earlier_runs import training_settings
from launch.execution.record.lock import run_lock
from launch.execution.record.run import mapping, objects
from launch.execution.setting_differences import SettingDifference, find_setting_differences
from launch.planning.identity import compute_identity
from launch.planning.plan import Plan
from launch.trials.bench.record import BenchRecord, BenchRun, BenchSide
from launch.trials.card_rate import CardRate, card_name, measure_card_rate
from launch.trials.record import State, archive_other_format, read_earlier, seconds_left
from launch.trials.trial import (
    Runner,
    expand_short_options,
    finish_trial,
    plan_probe,
    refuse_failing_preflight,
    refuse_unsupported,
    say_lines,
    say_plan,
)
from launch.worker.finding import Finding
from launch.worker.json_codec import from_json

SIDES = ("A", "B")
SHORT = tuple(vars(BenchConfig()))  # short names of the keys of the node `bench`
# Keys that are set before the first `--`, because they belong to the whole bench.
_COMMON = (*SHORT, "name", "runs", "cache", "restart", "allow")
SEPARATOR = "--"
_USAGE = "bench stage=S [common] -- [A's overrides] -- [B's overrides]"


@dataclass(frozen=True)
class BenchRequest:
    """The parsed command line of a bench."""

    common: CommandLine  # the part of the line that applies to both settings
    own: tuple[tuple[str, ...], tuple[str, ...]]  # the overrides that only A has, and those of B

    def line(self, side: int) -> CommandLine:
        """Return the line of A (0) or B (1); a setting's own override replaces the common one."""
        own = self.own[side]
        keys = {override_key(override) for override in own}
        if "parallel" in keys:
            keys.add("parallel.mode")  # choosing a group sets its keys again
        return self.common.without(*keys).with_overrides(*own)


def read_bench_request(line: CommandLine) -> BenchRequest:
    """Split the line at its `--`. Raises UserError: bench_settings, bench_alone, bench_common,
    duplicate_override.
    """
    parts: list[list[str]] = [[]]
    for argument in line.argv:
        if argument == SEPARATOR:
            parts.append([])
        else:
            parts[-1].append(argument)
    if len(parts) != 3:
        given = f"{len(parts) - 1} of them"
        if len(parts) == 1:
            given = "no settings: there is no `--`"
        elif len(parts) == 2:
            given = "one setting: there is one `--`"
        message = f"bench compares two settings and got {given}"
        raise refusal("bench_settings", message, "command line", f"use {_USAGE}")
    common, a, b = parts
    refuse_unsupported(line, "bench", "it runs two settings in turn")
    problems = []
    for label, arguments in zip(SIDES, (a, b), strict=True):
        problems += _find_misplaced(label, arguments)
    if problems:
        raise UserError(problems)
    common_line = expand_short_options(replace(line, argv=tuple(common)), "bench", SHORT)
    return BenchRequest(common_line, (tuple(a), tuple(b)))


def _find_misplaced(label: str, arguments: Sequence[str]) -> list[Finding]:
    """Find the arguments of setting A or B that belong before the first `--`."""
    cure = "move it before the first `--`"
    problems = []
    for argument in arguments:
        key = override_key(argument)
        if key in _COMMON or key.startswith("bench."):
            message = f"{key}= applies to the whole bench, not to setting {label} alone"
            problems.append(Finding.error("bench_common", message, f"override {key}", cure))
        elif argument.startswith("-"):
            message = f"'{argument}' is not an override of setting {label}"
            problems.append(Finding.error("bench_common", message, "command line", cure))
    return problems


_LEAST_STEPS = 2  # steps after the warm-up
# Keys besides those of `data` that decide which samples and tokens the settings train on.
_OF_DATA = ("stage.kind", "recipe.max_seq_length", "recipe.chat_template", "recipe.seed")
# Keys that the table of differences leaves out, because it shows the planned values instead.
_SHOWN_AS_PLANNED = ("recipe.per_device_batch_size", "recipe.precision", "parallel.mode")


def plan_bench(request: BenchRequest, plan: Callable[[CommandLine], Plan]) -> BenchRecord:
    """Plan both settings; `plan` plans the short run of a line.

    Raises UserError with the problems of both, each problem once; and: bench_steps;
    bench_global_batch, bench_data (not comparable, unless `allow` names the id).
    """
    lines = [request.line(0), request.line(1)]
    plan_a, plan_b = map_all(lines, lambda line: _check_numbers(plan(line)))
    a = BenchSide(SIDES[0], request.own[0], plan_a)
    b = BenchSide(SIDES[1], request.own[1], plan_b)
    differences = find_setting_differences([_list_facts(plan_a), _list_facts(plan_b)])
    config = plan_a.config
    mismatches = _find_mismatches(a, b, differences)
    errors = [problem for problem in mismatches if problem.id not in config.allow]
    if errors:
        raise UserError(errors)
    notes = mismatches
    if config.bench.repeats == 1:
        message = "one repeat has no spread: it cannot distinguish a difference from noise"
        notes.append(Finding.error("one_repeat", message, "bench.repeats", "use repeats=3"))
    id_ = config.name or compute_identity({"a": plan_a.identity, "b": plan_b.identity}, {}, {})
    return BenchRecord(
        folder=plan_a.runs / plan_a.stage / f"bench-{id_}",
        plan=plan_a,
        steps=config.bench.steps,
        warmup=config.bench.warmup,
        sides=(a, b),
        differences=differences,
        planning_notes=notes,
    )


def _check_numbers(plan: Plan) -> Plan:
    """Return the plan if its steps can be measured. Raises UserError: bench_steps."""
    bench = plan.config.bench
    problems = []
    if bench.steps - bench.warmup < _LEAST_STEPS:
        message = f"steps={bench.steps} after warmup={bench.warmup} leaves too few steps to measure"
        cure = f"use steps={bench.warmup + _LEAST_STEPS} or more"
        problems.append(Finding.error("bench_steps", message, "bench.steps", cure))
    total = plan.config.recipe.max_steps
    if total is not None and total < bench.steps:
        message = f"the stage has only {total} steps, fewer than steps={bench.steps}"
        cure = f"use steps={total} or fewer"
        problems.append(Finding.error("bench_steps", message, "bench.steps", cure))
    if problems:
        raise UserError(problems)
    return plan


def _find_mismatches(
    a: BenchSide, b: BenchSide, differences: Sequence[SettingDifference]
) -> list[Finding]:
    """Find what makes the two do different amounts of work, or train on different data."""
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
                f"{side.label} packs into bins, so its global batch is not a fixed number of "
                "samples"
            )
            cure = "set recipe.packing=flatten, or allow=[bench_global_batch]"
            problems.append(Finding.error("bench_global_batch", message, "recipe.packing", cure))
            break
    of_data = []
    for difference in differences:
        if difference.name.startswith("data.") or difference.name in _OF_DATA:
            in_a, in_b = difference.values
            of_data.append(f"{difference.name} is {in_a or '-'} in A and {in_b or '-'} in B")
    if of_data:
        values = "; ".join(of_data)
        message = f"A and B do not train on the same data: {values}"
        cure = "set it once, before the first `--`, or allow=[bench_data]"
        problems.append(Finding.error("bench_data", message, None, cure))
    return problems


def _list_facts(plan: Plan) -> dict[str, str]:
    """Return the planned values and the settings that decide the training, as text by name.

    The folders of each run are left out, since they always differ.
    """
    batch = plan.batch
    parallel = plan.parallel
    facts: dict[str, Any] = {
        "trainer": plan.trainer,
        "width": parallel.width,
        "parallel": parallel.mode,
        "precision": parallel.precision,
        "per device x accumulation": f"{batch.per_device} x {batch.accumulation}",
        "upstream": plan.upstream.description,
        "python": plan.command[0],
        "model": plan.inputs.model.reference,
        "expandable_segments": plan.config.expandable_segments,
    }
    settings = training_settings(plan.resolved, with_trainer=False)
    facts |= {
        key: value
        for key, value in settings.items()
        if key not in _SHOWN_AS_PLANNED and value != {}
    }
    return {name: format_value(value) for name, value in facts.items()}


def run_bench(request: BenchRequest, display: Display) -> tuple[BenchRecord, int]:
    """Run both settings in turn and compare them.

    Returns the record and the exit code: 0 there is a verdict, 3 a run failed or no pair is
    complete, 130 interrupted.
    Raises UserError when the two cannot be compared or cannot run.
    """
    record = plan_bench(request, plan_probe)
    restart = record.plan.config.restart
    subject = {"stage": record.plan.stage}
    earlier = read_earlier(record.folder, record.verb, subject, restart=restart)
    with run_lock(record.folder, display.say):
        archive_other_format(record.folder, record.verb, display.say)
        say_plan(display, record, _describe_settings(record), record.planning_notes)
        runner = Runner(record, display, reuse=not restart)
        if not all(map(runner.find_earlier, record.runs)):
            refuse_failing_preflight((side.plan for side in record.sides), ends_after=record.steps)
        rate_cards(record, earlier)
        say_lines(display, record.rate_lines)
        code = run_in_turn(runner)
        finish_trial(display, record)
        return record, code


def _describe_settings(record: BenchRecord) -> Iterator[str]:
    """Yield the lines about the two settings and the differences between them."""
    for side in record.sides:
        overrides = " ".join(side.overrides) or "no overrides"
        parallel = side.plan.parallel
        facts = f"{parallel.width} {parallel.mode.value}; {side.plan.batch}"
        yield f"  {side.label}: {overrides} ({facts})"
    if record.same_setting:
        yield "  A and B are the same setting: their difference is the measurement noise"
    for difference in record.differences:
        in_a, in_b = difference.values
        yield f"  differs: {difference.name}: {in_a or '-'} in A, {in_b or '-'} in B"


def rate_cards(record: BenchRecord, earlier: Mapping[str, Any] | None) -> None:
    """Measure the peak rate of the GPUs once for each precision, unless an earlier call has done so.

    `earlier`: the record that the earlier call wrote.
    """
    rates: dict[tuple[str, Device, Precision], CardRate] = {}
    for setting in objects(mapping(earlier).get("settings")):
        recorded = mapping(setting.get("rate"))
        if recorded.get("measured_tflops") is not None:
            rate = from_json(CardRate, recorded)
            rates.setdefault((rate.name, rate.device, rate.precision), rate)
    for side in record.sides:
        name = card_name(side.plan)
        parallel = side.plan.parallel
        key = (name, parallel.width.device, parallel.precision)
        if key not in rates:
            rates[key] = measure_card_rate(side.plan, name)
        side.rate = rates[key]


def run_in_turn(runner: Runner[BenchRun]) -> int:
    """Run A and B in turn, until all runs of a bench are done.

    Returns the exit code: 0 with a pair to compare, 3 when a run failed or no pair is complete, 130
    when interrupted.
    Raises UserError when the first run cannot be started.
    """
    record = runner.record
    assert isinstance(record, BenchRecord)
    for index, run in enumerate(record.runs):
        measured_now = [other for other in record.runs if not other.reused]
        # How long a run takes is unknown before the first one, which therefore has no limit.
        left = seconds_left(measured_now, record.config.max_minutes)
        has_time = left is None or left >= _expected_seconds(record.runs, index)
        if runner.find_earlier(run) or has_time:
            runner.take(run, left)
        else:
            run.state = State.not_run
        if run.state == State.not_run:  # there is no time for the later runs either
            for later in record.runs[index:]:
                later.state = State.not_run
            record.message = f"max_minutes={record.config.max_minutes:g} is too short for the rest"
        if run.state != State.done:
            break
    if record.state == State.interrupted:
        return EXIT_INTERRUPTED
    if record.state == State.failed or not record.pairs:
        return EXIT_STOPPED
    return EXIT_DONE


def _expected_seconds(runs: Sequence[BenchRun], index: int) -> float:
    """Return the seconds that the next run needs, `runs[index]`.

    When it begins a pair, the other run of that pair is included: half a pair compares nothing. A
    run is expected to take as long as the longest of its setting, 0 before any.
    """
    repeat = runs[index].repeat
    total = 0.0
    for run in runs[index:]:
        if run.repeat == repeat:
            seconds_of_setting = [other.seconds or 0.0 for other in run.side.runs]
            total += max(seconds_of_setting)
    return total
