"""`rollout`: the stage at one width after another, through gates; then the whole of it at the last."""

from __future__ import annotations

import os
import sys

from launch.commands.machine import this_machine
from launch.commands.measure import card_gib, composed_probe, gpus_for, run_setting
from launch.commands.run import run
from launch.config.compose import compose
from launch.config.gates import Then
from launch.config.line import Line, taken
from launch.errors import EXIT_DONE
from launch.lifecycle.lock import held
from launch.planning.plan import build_plan
from launch.redact import Redactor
from launch.rollout.loop import Machine, Rules, run_widths
from launch.rollout.record import Record, WidthRecord, refuse_another
from launch.rollout.request import SHORT, SUBMIT, WIDTHS, Request, read_request
from launch.rollout.sameness import differences
from launch.rollout.table import HEADS, markdown, row, text, verdict_line, width_lines
from launch.rollout.widths import PlannedWidth, plan_widths
from launch.runtime.folder import Outcome
from launch.runtime.progress import Display, display_for

_OF_HYDRA = ("--help", "-h", "--hydra-help", "--cfg", "-c", "--info", "-i")
_PATIENCE = 20.0  # seconds


def rollout(line: Line) -> int:
    """Take the composed stage through its widths. Raises UserError when one of them cannot work; returns the exit
    code: 0 all passed, 3 a gate stopped it or a width was not run, and what the full run returned with then=run."""
    if any(word in _OF_HYDRA for word in line.words):
        return compose(taken(line, (*WIDTHS, *SHORT, SUBMIT, "dry_run"))[1], lambda composed: EXIT_DONE)
    request = read_request(line)
    planned = plan_widths(
        request,
        lambda width, mode: composed_probe(request.whole(width, mode)),
        lambda one: build_plan(one, this_machine(one)),
    )
    refuse_another(planned)
    display = display_for(sys.stderr if line.json else sys.stdout)
    config = planned.widths[0].composed.config
    record = Record(
        planned,
        steps=config.rollout.steps,
        then=config.rollout.then.value,
        price=config.rollout.price_per_gpu_hour,
        skip=config.gates.throughput_steady.skip,
        differences=differences([width.plan for width in planned.widths]),
        widths=[WidthRecord(width) for width in planned.widths],
    )
    with held(planned.folder, display.say):
        code = _widths(record, display)
    if code == EXIT_DONE and config.rollout.then == Then.run:
        code = record.full_run = _whole(request, config.rollout.parallel_at_one, display)
        _write(record)
    if line.json:
        print((planned.folder / "rollout.json").read_text(encoding="utf-8"), end="")
    return code


def _widths(record: Record, display: Display) -> int:
    redactor = Redactor(os.environ)
    config = record.planned.widths[0].composed.config
    _say_plan(record, display, redactor)

    def measure(width: PlannedWidth) -> Outcome:
        display.say(f"{width.label}: {record.steps} steps; {width.plan.batch}; {width.plan.folder}")
        first = width.ranks == record.widths[0].planned.ranks
        return run_setting(width.setting, record.steps, display, after_another=not first)

    told: set[str] = set()

    def changed(width: WidthRecord) -> None:
        _write(record)
        if width.state == "running":
            return
        if not told:
            display.say(row(HEADS))
        told.add(width.planned.label)
        for line in width_lines(width, record.skip):
            display.say(redactor.redact_text(line))

    gpus = gpus_for(record.planned.widths[0].plan)
    machine = Machine(measure, len(gpus.seen), card_gib(gpus))
    rules = Rules(config.gates, tuple(config.allow), config.restart)
    code = run_widths(record, machine, rules, changed)
    display.say(f"{verdict_line(record)}; {record.planned.folder}")
    return code


def _say_plan(record: Record, display: Display, redactor: Redactor) -> None:
    plan = record.planned.widths[0].plan
    display.say(f"rollout of {plan.stage} with {plan.trainer}, {plan.upstream.description}")
    for width in record.widths:
        mode = width.planned.plan.parallel.mode.value
        display.say(f"  {width.planned.label:<6} {mode:<13} global {width.planned.plan.batch}")
    for difference in record.differences:
        display.say(f"  differs: {difference}")
    said: set[str] = set()
    for warning in (warning for width in record.widths for warning in width.planned.plan.warnings):
        if str(warning) not in said:
            said.add(str(warning))
            display.say(f"warning: {redactor.redact_text(str(warning))}")


def _whole(request: Request, parallel_at_one: str | None, display: Display) -> int:
    """The whole stage at the last width, as `run` would: with its own model, and resumed where that was begun."""
    last = request.widths[-1]
    display.say(f"the whole stage at {request.key}={last}")
    words = request.whole(last, parallel_at_one if last.ranks == 1 else None).words
    return run(Line("run", False, words))


def _write(record: Record) -> None:
    record.write(Redactor(os.environ), {"rollout.txt": text(record), "rollout.md": markdown(record)})
