"""The code that all trials share: their command lines, and the Runner that does their runs."""

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
from launch.planning.build import plan_line
from launch.planning.machine import PACKAGES
from launch.planning.plan import Plan
from launch.trials.measurement import (
    TIME_USED,
    Measurement,
    archive_earlier_try,
    compute_figures,
    read_measurement,
)
from launch.trials.record import REFUSED, R, State, TrialRecord, TrialRun
from launch.trials.view import read_trial, run_lines, write_trial_report
from launch.worker.finding import Finding
from launch.worker.json_codec import to_json
from launch.worker.wording import count_of

T = TypeVar("T")
_UNSUPPORTED = ("detach", "cache_only", "nodes")  # keys of `run` that no trial supports


def refuse_unsupported(line: CommandLine, verb: str, reason: str, **cures: str) -> None:
    """Refuse the keys and sweeps that a trial does not support.

    `reason`: why it supports no sweep; `cures`: what to do instead of setting a key.
    Raises UserError: VERB_alone.
    """
    id_ = f"{verb}_alone"
    keys = {override_key(argument) for argument in line.argv}
    problems = []
    for key in _UNSUPPORTED:
        if key in keys:
            message = f"{verb} does not support {key}="
            cure = cures.get(key, "remove it")
            problems.append(Finding.error(id_, message, f"override {key}", cure))
    if line.sweeps:
        message = f"{verb} takes one value of each key: {reason}"
        problems.append(Finding.error(id_, message, None, "run it once for each value"))
    if problems:
        raise UserError(problems)


def expand_short_options(line: CommandLine, verb: str, names: Sequence[str]) -> CommandLine:
    """Replace short options such as steps= by keys of the verb's node, such as bench.steps=.

    Raises UserError: duplicate_override.
    """
    options, rest = line.pop_overrides(names)
    overrides = [f"{verb}.{name}={value}" for name, value in options.items()]
    return rest.with_overrides(*overrides)


# Overrides of each short run, which only measures and writes nothing outside its folder.
PROBE = ("tracking=none", "hub.push=null", "recipe.checkpoint_steps=null")


def probe_line(line: CommandLine) -> CommandLine:
    """Return the command line of a short run of `line`."""
    replaced = [override_key(override) for override in PROBE]
    return line.without(*replaced).with_overrides(*PROBE)


def plan_probe(line: CommandLine) -> Plan:
    """Plan a short run of `line`. Raises UserError."""
    return plan_line(probe_line(line))


def refuse_failing_preflight(
    plans: Iterable[Plan], *, asks_parser: bool = False, ends_after: int | None = None
) -> None:
    """Check this machine for every plan before any run starts, so that a mistake in a later plan
    shows at once.

    `asks_parser` and `ends_after`: see preflight. Raises UserError.
    """
    problems: list[Finding] = []
    for plan in plans:
        errors, _ = preflight(plan, asks_parser=asks_parser, ends_after=ends_after)
        problems += errors
    if problems:
        raise UserError(problems)


@dataclass
class Runner(Generic[R]):
    """Does the runs of a trial, one after another, and judges them.

    A run that an earlier call has measured is reused; any other is run now.
    """

    record: TrialRecord[R]
    display: Display
    # It starts a run instead of `measure`; its second argument is the run's time limit in seconds.
    start: Callable[[R, float | None], object] | None = None
    # It is called before an earlier measurement is looked for. A UserError means that the run cannot
    # start.
    prepare: Callable[[R], None] = lambda run: None
    reuse: bool = True  # whether runs of an earlier call count
    same_machine: bool = True  # an earlier measurement must be of the same packages and GPU
    raises: bool = True  # whether `take` raises when the first run cannot be started
    run_ranks: RankRunner | None = None  # see run_steps
    clock: Callable[[], float] = time.monotonic
    # The measurements of an earlier call that were looked for, by the run's label.
    _earlier: dict[str, Measurement | None] = field(default_factory=dict)

    def take(self, run: R, seconds: float | None = None) -> None:
        """Reuse or do one run, which ends after `seconds` at the latest.

        Raises UserError if the run cannot be started and no earlier run has measured anything; after
        a measured run, one that cannot be started counts as failed.
        """
        is_first = not any(other.measured for other in self.record.runs)
        began = self.clock()
        run.state = State.running
        run.message = None
        run.cause_id = None
        try:
            self.prepare(run)
            self.show(run)
            run.measured = self.find_earlier(run)
            run.reused = run.measured is not None
            if run.measured is None:
                self._start(run, seconds)
                run.measured = self._read(run)
        except UserError as error:
            run.state = State.failed
            run.cause_id = REFUSED
            run.message = "; ".join(str(problem) for problem in error.problems)
            run.seconds = self.clock() - began
            self.show(run)
            if is_first and self.raises:
                raise
            return
        assert run.measured is not None  # a run that was started has an outcome
        run.seconds = run.measured.outcome.seconds if run.reused else self.clock() - began
        self._judge(run, run.measured)

    def _judge(self, run: R, measured: Measurement) -> None:
        """Set the state and the figures of a run that has ended, and show it."""
        _set_state(run, measured)
        run.figures = compute_figures(
            measured,
            self.record.warmup,
            self.record.rate(run),
            typical=self.record.typical,
        )
        self.record.judge(run)
        self.show(run)

    def _start(self, run: R, seconds: float | None) -> None:
        """Do a run now, for at least a second if its time is limited."""
        limit = None if seconds is None else max(seconds, 1.0)
        start = self.start or self.measure
        start(run, limit)

    def _read(self, run: R) -> Measurement | None:
        """Read what the run's folder has measured."""
        return read_measurement(run.plan, run.steps or self.record.steps)

    def find_earlier(self, run: R) -> Measurement | None:
        """Return what an earlier call measured of a run with the same packages on the same GPU; None
        if there is no such measurement.

        Raises UserError: other_format.
        """
        if not self.reuse:
            return None
        if run.label not in self._earlier:
            self._earlier[run.label] = self._read_earlier(run)
        return self._earlier[run.label]

    def _read_earlier(self, run: R) -> Measurement | None:
        """Read an earlier call's measurement, and show why one is not reused."""
        refuse_other_format(run.plan)
        measured = self._read(run)
        if measured is None or not self.record.accepts(run, measured):
            return None
        changes = describe_machine_changes(run.plan) if self.same_machine else None
        if changes:
            self.display.say(f"{run.label} of an earlier call is not reused: {changes}")
            return None
        return measured

    def measure(self, run: R, seconds: float | None = None) -> None:
        """Run until all steps are logged, or for `seconds`; an earlier try is archived.

        Raises UserError when it cannot be started.
        """
        plan = run.plan
        steps = run.steps or self.record.steps
        self.display.say(f"{run.label}: {count_of(steps, 'step')}; {plan.batch}; {plan.folder}")
        archive_earlier_try(plan)
        if self.record.started:  # the previous run may hold its GPUs for another moment
            wait_for_gpus(plan, self.display.say)
        run_steps(
            plan,
            self.display,
            steps,
            inspected=self.record.is_inspected(run),
            seconds=seconds,
            run_ranks=self.run_ranks,
        )

    def show(self, run: R) -> None:
        """Record a run that has changed; show one that has ended, and why it did not measure
        everything.
        """
        record = self.record
        lines = record.update(run)
        record.write()
        if run.state == State.running:
            return
        row_lines = run_lines(record.verb, to_json(record.run_json(run)))
        say_lines(self.display, [*row_lines, *lines])


def _set_state(run: TrialRun, measured: Measurement) -> None:
    """Set the state, the message and the cause of a run that has ended."""
    outcome = measured.outcome
    sentences = [sentence for sentence in (outcome.cause, outcome.cure) if sentence]
    run.cause_id = outcome.cause_id
    run.message = "; ".join(sentences) or None
    if outcome.exit_code == EXIT_INTERRUPTED:
        run.state = State.interrupted
    elif measured.finished:
        run.state = State.done
        run.message = None
    elif outcome.cause_id == TIME_USED:
        run.state = State.not_run
    else:
        run.state = State.failed


def describe_machine_changes(plan: Plan) -> str | None:
    """Describe how packages and GPU have changed since the run in the plan's folder, which is then
    not reused; None if they have not changed, or are unknown.
    """
    recorded = Run(plan.folder).versions
    packages = mapping(recorded.get("packages"))
    changes = []
    for name in PACKAGES if packages else ():
        before = packages.get(name)
        now = plan.machine.versions.get(name)
        if before != now:
            changes.append(f"{name} was {before}, is {now}")
    cards = [str(gpu.get("name")) for gpu in objects(recorded.get("gpus"))]
    card = plan.machine.card
    if cards and card and card not in cards:
        changes.append(f"GPU was {cards[0]}, is {card}")
    return ", ".join(changes) or None


def say_lines(display: Display, lines: Iterable[object]) -> None:
    """Show lines, one by one."""
    for line in lines:
        display.say(str(line))


def say_plan(
    display: Display, record: TrialRecord[R], lines: Iterable[object], notes: Iterable[Finding] = ()
) -> None:
    """Show a planned trial: its stage, the lines, the notes and the plans' warnings, each once."""
    plan = record.plan
    display.say(f"{record.verb} of {plan.stage} with {plan.trainer}, {plan.upstream.description}")
    say_lines(display, lines)
    warnings = [str(note) for note in notes]
    for run in record.runs:
        warnings += [str(warning) for warning in run.plan.warnings]
    for warning in dict.fromkeys(warnings):
        display.say(f"warning: {warning}")


def finish_trial(
    display: Display, record: TrialRecord[R], lines: Iterable[object] | None = None
) -> None:
    """Write the record at the end of a trial, show it, and write its page.

    `lines` are shown in place of the whole report.
    """
    record.write()
    if lines is None:
        lines = [read_trial(record.folder).text(), record.folder]
    say_lines(display, lines)
    if record.plan.config.report:
        write_trial_report(record.folder, display.say)
