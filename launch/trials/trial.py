"""One trial: what its line may ask for, how a setting is run for some steps, and how that ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from launch.check.machine.rules import preflight, wait_for_gpus
from launch.config.line import CommandLine, override_key
from launch.errors import EXIT_INTERRUPTED, UserError
from launch.execution.display import Display
from launch.execution.engine import RankRunner, run_steps
from launch.execution.record.run import Run, mapping, objects
from launch.execution.resume import refuse_other_format
from launch.planning.machine import PACKAGES
from launch.planning.plan import Plan, plan_line
from launch.table import format_row
from launch.trials.measurement import (
    TIME_USED,
    Measurement,
    archive_earlier_try,
    compute_figures,
    read_measurement,
)
from launch.trials.record import REFUSED, R, State, TrialRecord, TrialRun
from launch.trials.view import COLUMNS, read_trial, run_row, write_trial_report
from launch.worker.finding import Finding
from launch.worker.json_codec import to_json

T = TypeVar("T")
_UNSUPPORTED = ("detach", "cache_only", "nodes")


def refuse_unsupported(line: CommandLine, verb: str, reason: str, **cures: str) -> None:
    """Refuse what a trial does not support. `reason`: why it does not support a sweep; `cures`: of
    keys. Raises UserError: VERB_alone.
    """
    id_, keys = f"{verb}_alone", {override_key(word) for word in line.argv}
    problems = [
        Finding.error(
            id_, f"{verb} does not support {key}=", f"override {key}", cures.get(key, "remove it")
        )
        for key in _UNSUPPORTED
        if key in keys
    ]
    if line.sweeps:
        message = f"{verb} takes one value of each key: {reason}"
        problems.append(Finding.error(id_, message, None, "run it once for each value"))
    if problems:
        raise UserError(problems)


def expand_short_options(line: CommandLine, verb: str, names: Sequence[str]) -> CommandLine:
    """Replace short options such as steps= by keys of the verb's node. Raises UserError:
    duplicate_override.
    """
    options, rest = line.pop_overrides(names)
    return rest.with_overrides(*(f"{verb}.{name}={value}" for name, value in options.items()))


# overrides of each short run: it only measures, and writes nothing outside of its folder
PROBE = ("tracking=none", "hub.push=null", "recipe.checkpoint_steps=null")


def probe_line(line: CommandLine) -> CommandLine:
    """The command line of a short run of `line`."""
    return line.without(*map(override_key, PROBE)).with_overrides(*PROBE)


def plan_probe(line: CommandLine) -> Plan:
    """Plan a short run of `line`. Raises UserError."""
    return plan_line(probe_line(line))


def refuse_failing_preflight(
    plans: Iterable[Plan], *, asks_parser: bool = False, ends_after: int | None = None
) -> None:
    """Check this machine for every plan before any runs, so that a later one's mistake does not
    show after the first; `asks_parser` and `ends_after`: see preflight. Raises UserError.
    """
    found = (preflight(plan, asks_parser=asks_parser, ends_after=ends_after)[0] for plan in plans)
    if problems := [problem for problems in found for problem in problems]:
        raise UserError(problems)


@dataclass
class Runner(Generic[R]):
    """Takes the runs of a trial, one after another: from an earlier call, or by running them now;
    and judges them.
    """

    record: TrialRecord[R]
    display: Display
    start: Callable[[R, float | None], object] | None = None  # in place of `measure`
    # before it is looked for; UserError: it cannot start
    prepare: Callable[[R], None] = lambda run: None
    reuse: bool = True
    same_machine: bool = True  # an earlier measurement has to be of today's packages and card
    raises: bool = True  # when the first run cannot be started
    run_ranks: RankRunner | None = None  # see run_steps
    clock: Callable[[], float] = time.monotonic
    # by label, once it was looked for
    _earlier: dict[str, Measurement | None] = field(default_factory=dict)

    def take(self, run: R, seconds: float | None = None) -> None:
        """Take one run, which ends after `seconds` at the latest.

        Raises UserError when it cannot be started and none before it has measured anything; else it
        has failed.
        """
        is_first, began = not any(other.measured for other in self.record.runs), self.clock()
        run.state, run.message, run.cause_id = State.running, None, None
        try:
            self.prepare(run)
            self.show(run)
            run.measured = self.find_earlier(run)
            run.reused = run.measured is not None
            if run.measured is None:
                (self.start or self.measure)(run, None if seconds is None else max(seconds, 1.0))
                run.measured = read_measurement(run.plan, run.steps or self.record.steps)
        except UserError as error:
            run.state, run.cause_id = State.failed, REFUSED
            run.message, run.seconds = (
                "; ".join(str(problem) for problem in error.problems),
                self.clock() - began,
            )
            self.show(run)
            if is_first and self.raises:
                raise
            return
        assert run.measured is not None  # a run that was started has an outcome
        run.seconds = run.measured.outcome.seconds if run.reused else self.clock() - began
        _set_state(run, run.measured)
        run.figures = compute_figures(
            run.measured, self.record.warmup, self.record.rate(run), typical=self.record.typical
        )
        self.record.judge(run)
        self.show(run)

    def find_earlier(self, run: R) -> Measurement | None:
        """What an earlier call measured of a run, with the same packages on the same card, if that
        counts. Raises UserError: other_format.
        """
        if not self.reuse:
            return None
        if run.label not in self._earlier:
            refuse_other_format(run.plan)
            measured = read_measurement(run.plan, run.steps or self.record.steps)
            if measured is not None and not self.record.accepts(run, measured):
                measured = None
            if measured and self.same_machine and (changes := describe_changes(run.plan)):
                self.display.say(f"{run.label} of an earlier call is not reused: {changes}")
                measured = None
            self._earlier[run.label] = measured
        return self._earlier[run.label]

    def measure(self, run: R, seconds: float | None = None) -> None:
        """Run until the steps of a run are logged, or for `seconds`; an earlier try is archived.
        Raises UserError when it cannot be started.
        """
        record, plan, steps = self.record, run.plan, run.steps or self.record.steps
        self.display.say(f"{run.label}: {steps} steps; {plan.batch}; {plan.folder}")
        archive_earlier_try(plan)
        if record.started:  # the run before may still hold its cards for a moment
            wait_for_gpus(plan, self.display.say)
        inspected = record.is_inspected(run)
        run_steps(
            plan,
            self.display,
            steps,
            inspected=inspected,
            seconds=seconds,
            run_ranks=self.run_ranks,
        )

    def show(self, run: R) -> None:
        """Record a run that has changed; show one that has ended, and why it did not measure
        everything.
        """
        record, lines = self.record, self.record.update(run)
        record.write()
        if run.state != State.running:
            shown, columns = run_row(to_json(record.run_json(run))), COLUMNS[record.verb]
            why = [f"  {shown['message']}"] if shown["message"] else []
            say_lines(self.display, [format_row(columns), format_row(columns, shown), *why, *lines])


def _set_state(run: TrialRun, measured: Measurement) -> None:
    outcome = measured.outcome
    run.cause_id = outcome.cause_id
    run.message = "; ".join(filter(None, (outcome.cause, outcome.cure))) or None
    if outcome.exit_code == EXIT_INTERRUPTED:
        run.state = State.interrupted
    elif measured.finished:
        run.state, run.message = State.done, None
    else:
        run.state = State.not_run if outcome.cause_id == TIME_USED else State.failed


def describe_changes(plan: Plan) -> str | None:
    """What differs between the packages and the card of the run in the plan's folder and today's,
    so that it is not reused; None if nothing does, or they are unknown.
    """
    recorded = Run(plan.folder).versions
    packages, changes = mapping(recorded.get("packages")), []
    if packages:
        pairs = {name: (packages.get(name), plan.machine.versions.get(name)) for name in PACKAGES}
        changes = [
            f"{name} was {before}, is {now}"
            for name, (before, now) in pairs.items()
            if before != now
        ]
    cards, card = [str(gpu.get("name")) for gpu in objects(recorded.get("gpus"))], plan.machine.card
    if cards and card and card not in cards:
        changes.append(f"card was {cards[0]}, is {card}")
    return ", ".join(changes) or None


def say_lines(display: Display, lines: Iterable[object]) -> None:
    """Show lines, one by one."""
    for line in lines:
        display.say(str(line))


def say_plan(
    display: Display, record: TrialRecord[R], lines: Iterable[object], notes: Iterable[Finding] = ()
) -> None:
    """Show what is planned: its stage, the lines, the notes and the plans' warnings, each once."""
    plan = record.plan
    warnings = [*notes, *(warning for run in record.runs for warning in run.plan.warnings)]
    warned = (f"warning: {warning}" for warning in dict.fromkeys(map(str, warnings)))
    title = f"{record.verb} of {plan.stage} with {plan.trainer}, {plan.upstream.description}"
    say_lines(display, [title, *lines, *warned])


def say_document(display: Display, record: TrialRecord[R]) -> None:
    """Write the record at the end, show its whole report, and write its page."""
    record.write()
    say_lines(display, [read_trial(record.folder).text(), record.folder])
    if record.plan.config.report:
        write_trial_report(record.folder, display.say)
