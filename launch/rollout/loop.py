"""One width after another: what has passed is kept, what is red stops it, what can't run here is said."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from launch.config.gates import GatesConfig
from launch.errors import EXIT_DONE, EXIT_INTERRUPTED, EXIT_STOPPED, UserError
from launch.measure.measured import Measured, read_measured
from launch.rollout.gates import judge
from launch.rollout.gates.gate import Case
from launch.rollout.projection import efficiency, project
from launch.rollout.record import Record, State, WidthRecord
from launch.rollout.widths import PlannedWidth
from launch.runtime.folder import Outcome

_EXITS = {State.passed: EXIT_DONE, State.interrupted: EXIT_INTERRUPTED}


@dataclass(frozen=True)
class Machine:
    """What a rollout needs of where it runs. `run`: runs a width to the end of its steps in its folder, which is not
    there yet; raises UserError when it can't be started. `cards`: GPUs that are seen; `card_gib`: memory of one."""

    run: Callable[[PlannedWidth], Outcome]
    cards: int = 0
    card_gib: float | None = None


@dataclass(frozen=True)
class Rules:
    """`allow`: ids of gates that stop nothing. `restart`: what has passed is run again."""

    gates: GatesConfig
    allow: Collection[str] = ()
    restart: bool = False


def run_widths(record: Record, machine: Machine, rules: Rules, changed: Callable[[WidthRecord], None]) -> int:
    """Take every width in its turn; `changed` is called whenever a width has. Returns the exit code: 0 when all have
    passed, 3 when a gate is red or a width can't run here, 130 when the user ended it. Raises UserError when the first
    width can't be started."""
    before: Measured | None = None
    for width in record.widths:
        width.why = _out_of_reach(width.planned, machine)
        if width.why is not None:
            width.state = State.not_run
        else:
            _take(width, before, record, machine, rules, changed=changed)
            before = width.measured
        _project(record)
        changed(width)
        if width.state in (State.stopped, State.interrupted):
            break
    return _EXITS.get(record.state, EXIT_STOPPED)


def _take(
    width: WidthRecord,
    before: Measured | None,
    record: Record,
    machine: Machine,
    rules: Rules,
    *,
    changed: Callable[[WidthRecord], None],
) -> None:
    """Judge what is there; run it where that is not enough, and judge again."""

    def look() -> None:
        width.measured = read_measured(width.planned.plan, record.steps, machine.card_gib)
        now = width.measured
        width.judgements = () if now is None else judge(Case(now, before, rules.gates), rules.allow)

    if not rules.restart:
        look()
        if width.measured is not None and not width.red:
            width.state, width.reused = State.passed, True
            return
    width.state, width.measured, width.judgements = State.running, None, ()
    changed(width)
    width.planned.setting.put_aside()
    try:
        outcome = machine.run(width.planned)
    except UserError as error:
        width.state, width.why = State.stopped, "; ".join(str(problem) for problem in error.problems)
        if width is record.widths[0]:
            changed(width)
            raise  # nothing was started
        return
    look()
    width.state = State.interrupted if outcome.exit_code == EXIT_INTERRUPTED else _verdict(width)


def _verdict(width: WidthRecord) -> State:
    return State.stopped if width.red or width.measured is None else State.passed


def _out_of_reach(planned: PlannedWidth, machine: Machine) -> str | None:
    width = planned.plan.parallel.width
    if width.device != "cuda" or width.local <= machine.cards:
        return None
    has = {0: "no GPU", 1: "one GPU"}.get(machine.cards, f"{machine.cards} GPUs")
    needed = "one GPU is" if width.local == 1 else f"{width.local} GPUs are"
    return f"{needed} needed and this machine has {has}"


def _project(record: Record) -> None:
    known = [width.measured for width in record.widths if width.measured is not None]
    one = next((measured for measured in known if measured.setup.world_size == 1), None)
    for width in record.widths:
        width.projection = project(width.planned.ranks, known, record.skip, record.price)
        if width.measured is not None and width.measured.finished:
            width.efficiency = efficiency(width.measured, one, record.skip)
