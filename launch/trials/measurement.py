"""Reads what a short run measured from its folder: its steps, its speed, memory and MFU."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from launch.config.schema import Device
from launch.execution.record.events import PHASES
from launch.execution.record.outcome import Outcome, folder_status
from launch.execution.record.run import Run
from launch.execution.record.steps import logged_number
from launch.files import archive_folder
from launch.planning.estimate.cards import card_memory
from launch.planning.parallel import Width, has_master_weights
from launch.planning.plan import Plan
from launch.trials.card_rate import CardRate
from launch.trials.operations import count_operations
from launch.worker.evidence import Evidence

# Values of Outcome.cause_id. launch/execution/engine.py sets the first, for a run whose seconds are
# used up; launch/execution/diagnosis/known.yaml has the other two. A run on GPUs can run out of host
# memory too.
TIME_USED = "time_used"
OUT_OF_MEMORY = "out_of_memory"
HOST_MEMORY = "host_memory"


@dataclass(frozen=True)
class Measurement:
    """What one run measured."""

    plan: Plan
    requested_steps: int
    outcome: Outcome
    # The objects of metrics.jsonl, up to the last requested step.
    steps: tuple[Mapping[str, Any], ...] = ()
    evidence: tuple[Evidence, ...] = ()  # the items of evidence.json
    inspected_ranks: frozenset[int] = frozenset()  # ranks that inspected their model at step 1
    phases: Mapping[str, float] = field(default_factory=dict)  # seconds of each phase
    total_steps: int | None = None  # steps of the whole training, as the trainer reports them
    card_gib: float | None = None  # memory of a GPU; None where unknown

    @property
    def expected_steps(self) -> int:
        """The number of steps that this run had to do: as many as requested, or all steps of a
        training that has fewer.
        """
        return min(self.requested_steps, self.total_steps or self.requested_steps)

    @property
    def width(self) -> Width:
        return self.plan.parallel.width

    @property
    def has_masters(self) -> bool:
        """Whether the optimizer updates fp32 master weights."""
        return has_master_weights(self.plan.config.trainer.family, self.plan.parallel)

    @property
    def finished(self) -> bool:
        """Whether the run succeeded and logged its last step."""
        return (
            self.outcome.exit_code == 0
            and len(self.steps) > 0
            and self.last_step >= self.expected_steps
        )

    @property
    def last_step(self) -> int:
        """The last logged step, 0 without one."""
        return int(self.steps[-1]["step"]) if self.steps else 0

    def values(self, name: str) -> list[float]:
        """The numbers under `name` in the order of the steps, NaN and infinities included.

        Steps without a number are left out.
        """
        return [value for _, value in self.series(name)]

    def non_finite(self, name: str) -> list[tuple[int, float]]:
        """(step, number) of each step whose number under `name` is NaN or infinite."""
        return [(step, value) for step, value in self.series(name) if not math.isfinite(value)]

    def find_evidence(self, what: str) -> Evidence | None:
        """Return the evidence about a setting; None without any."""
        for item in self.evidence:
            if item.what == what:
                return item
        return None

    def series(self, name: str) -> list[tuple[int, float]]:
        """(step, number) of each step that has a number under `name`."""
        numbers = [(int(step["step"]), logged_number(step, name)) for step in self.steps]
        return [(step, value) for step, value in numbers if value is not None]


def relative_difference(a: float, b: float) -> float:
    """Return the difference of two losses relative to `a`, 0 or more.

    It is infinite when one of them is not finite, or only `a` is 0.
    """
    if a == b == 0:
        return 0.0
    if a == 0 or not (math.isfinite(a) and math.isfinite(b)):
        return math.inf
    return abs(b - a) / abs(a)


def finite(values: Iterable[float]) -> list[float]:
    """Return the values that are neither NaN nor infinite."""
    return [value for value in values if math.isfinite(value)]


def read_measurement(plan: Plan, steps: int) -> Measurement | None:
    """Read what the run of `plan` measured in its first `steps` steps; None if no run has ended in
    the plan's folder.
    """
    run = Run(plan.folder)
    if run.outcome is None:
        return None
    node_folders = plan.folder.glob("nodes/*")  # every node but the first has a folder there
    ranks = set()
    for node in (run, *map(Run, node_folders)):
        for event in node.events("evidence"):
            if event.data["what"] == "dtype":
                ranks.add(event.rank)
    card = card_memory(plan.config.cluster, plan.machine.environ)
    return Measurement(
        plan=plan,
        requested_steps=steps,
        outcome=run.outcome,
        steps=tuple(step for step in run.steps() if step["step"] <= steps),
        evidence=tuple(map(Evidence.read, run.evidence)),
        inspected_ranks=frozenset(ranks),
        phases=_phase_seconds(run),
        total_steps=run.total_steps,
        card_gib=card.gib if card else None,
    )


def archive_earlier_try(plan: Plan) -> None:
    """Rename the folder of an earlier try of the same plan, if there is one, so that the folder is
    free.
    """
    if folder_status(plan.folder) == "absent":
        return
    archive_folder(plan.folder)


def _phase_seconds(run: Run) -> dict[str, float]:
    """Return the seconds of each phase, over all attempts; the last phase ended with the run."""
    seconds: dict[str, float] = {}
    for phase in itertools.chain(*run.event_summary.attempts):
        if phase.ended is not None:
            earlier = seconds.get(phase.name, 0.0)
            seconds[phase.name] = round(earlier + phase.ended - phase.began, 3)
    return seconds


def step_rates(measured: Measurement, skip: int = 0) -> tuple[str, list[float]]:
    """Return the unit of the rates and the rate per second of each timed step after the first
    `skip`.

    The unit is `tokens`, without padding, or `samples` where tokens are not counted.
    """
    timed = timed_steps(measured, skip)
    rates = [tokens / seconds for seconds, tokens in timed if tokens is not None]
    if len(rates) == len(timed):
        return "tokens", rates
    samples = measured.plan.batch.global_
    return "samples", [samples / seconds for seconds, _ in timed]


def second_half_ratio(measured: Measurement, skip: int) -> float | None:
    """Return the median rate of the second half of the steps over that of the first half.

    The first `skip` steps are left out. None with fewer than two other steps.
    """
    _, all_rates = step_rates(measured)
    rates = all_rates[skip:]
    middle = len(rates) // 2
    if middle == 0:
        return None
    first = statistics.median(rates[:middle])
    second = statistics.median(rates[middle:])
    return second / first if first > 0 else None


def padding_share(measured: Measurement) -> float | None:
    """Return the fraction of padding among all tokens of all steps; None where it is not counted."""
    tokens_without_padding = 0.0
    all_tokens = 0.0
    for step in measured.steps:
        tokens = logged_number(step, "tokens")
        padded = logged_number(step, "tokens_padded")  # tokens and padding
        if tokens is not None and padded:
            tokens_without_padding += tokens
            all_tokens += padded
    return 1 - tokens_without_padding / all_tokens if all_tokens else None


def timed_steps(
    measured: Measurement, skip: int = 0, name: str = "tokens"
) -> list[tuple[float, float | None]]:
    """Return (seconds, number under `name`) of each step that has a time, without the first `skip`.

    The last step always counts.
    """
    timed = []
    for step in measured.steps:
        seconds = logged_number(step, "seconds")
        if seconds is not None and seconds > 0:
            timed.append((seconds, logged_number(step, name)))
    most_skipped = max(0, len(timed) - 1)
    return timed[min(skip, most_skipped) :]


LEAST_NOISE = 0.02  # minimum standard error of a rate's logarithm, however steady a few steps were
_ONE_STEP_NOISE = 0.2  # standard error of a rate's logarithm if only one step was measured
_LEAST_STEPS = 2  # steps from which a standard deviation can be computed
_STARTUP = PHASES[: PHASES.index("training")]  # the phases before the training


@dataclass(frozen=True)
class Figures:
    """The figures of one run. Rates are over all ranks, in the `counted_steps` after the warm-up."""

    per_second: float
    unit: str  # the unit of the rate: tokens without padding, else samples
    step_seconds: float
    counted_steps: int
    noise: float = LEAST_NOISE  # standard error of the rate's logarithm
    padded_per_second: float | None = None  # tokens, padding included
    padding: float | None = None  # fraction of all tokens
    flops: float | None = None  # operations of the model per second
    mfu_measured: float | None = None  # `flops` over the measured peak rate of the GPUs
    mfu_datasheet: float | None = None  # `flops` over the data sheet's peak rate
    memory_gib: float | None = None  # peak of rank 0, allocated
    reserved_gib: float | None = None  # peak of rank 0, reserved by torch
    first_loss: float | None = None
    loss: float | None = None  # loss after the last step
    losses: tuple[float, ...] = ()  # losses of all steps, warm-up included
    tokens: tuple[float, ...] = ()  # tokens of each step without padding, warm-up included
    before: float = 0.0  # seconds of the phases before the training


def compute_figures(
    measured: Measurement, warmup: int, rate: CardRate | None = None, *, typical: bool = False
) -> Figures | None:
    """Compute the figures of a run after its first `warmup` steps; None when its steps have no
    times.

    A run with `warmup` steps or fewer is measured by its last step. The speed is the mean over the
    steps, or the median if `typical`: early steps still allocate memory and compile.
    """
    seconds = [seconds for seconds, _ in timed_steps(measured, warmup)]
    if not seconds:
        return None
    unit, rates = step_rates(measured, warmup)
    if typical:
        per_second = statistics.median(rates)
        step_seconds = statistics.median(seconds)
    else:
        per_second = statistics.fmean(rates, weights=seconds)
        step_seconds = statistics.fmean(seconds)
    plan = measured.plan
    losses = tuple(measured.values("loss"))
    tokens = tuple(measured.values("tokens"))
    padded_steps = timed_steps(measured, warmup, "tokens_padded")
    padded = [count for _, count in padded_steps if count is not None]
    per_token = count_operations(plan, tokens).per_token if unit == "tokens" else None
    flops = None if per_token is None else per_second * per_token
    # On a CPU all ranks share the machine, whose rate is measured like that of one GPU.
    cards = plan.batch.width if plan.parallel.width.device == Device.cuda else 1
    measured_tflops = rate.measured_tflops if rate else None
    datasheet_tflops = rate.datasheet_tflops if rate else None
    return Figures(
        per_second=per_second,
        unit=unit,
        step_seconds=step_seconds,
        counted_steps=len(seconds),
        noise=_rate_noise(rates),
        padded_per_second=sum(padded) / sum(seconds) if len(padded) == len(seconds) else None,
        padding=padding_share(measured),
        flops=flops,
        mfu_measured=_compute_mfu(flops, measured_tflops, cards),
        mfu_datasheet=_compute_mfu(flops, datasheet_tflops, cards),
        memory_gib=max(measured.values("memory_gib"), default=None),
        reserved_gib=max(measured.values("memory_reserved_gib"), default=None),
        first_loss=losses[0] if losses else None,
        loss=losses[-1] if losses else None,
        losses=losses,
        tokens=tokens,
        before=sum(measured.phases.get(phase, 0.0) for phase in _STARTUP),
    )


def _rate_noise(rates: Sequence[float]) -> float:
    """Return the standard error of the mean logarithm of the rates."""
    logs = [math.log(rate) for rate in rates if rate > 0]
    if len(logs) < _LEAST_STEPS:
        return _ONE_STEP_NOISE
    return max(LEAST_NOISE, statistics.stdev(logs) / math.sqrt(len(logs)))


def measurement_json(
    measured: Measurement | None, figures: Figures | None
) -> dict[str, Any] | None:
    """Return what a run measured for its record; None before it ran.

    A run that failed may have no figures; their keys are then null, except for the losses.
    """
    if measured is None:
        return None
    losses = measured.values("loss")
    return {
        "steps": measured.last_step,
        "total_steps": measured.total_steps,
        "phases": dict(measured.phases),
        "exit_code": measured.outcome.exit_code,
        "cause": measured.outcome.cause,
        **dict.fromkeys(field.name for field in fields(Figures)),
        "first_loss": losses[0] if losses else None,
        "loss": losses[-1] if losses else None,
        **(asdict(figures) if figures else {}),
    }


def _compute_mfu(flops: float | None, tflops: float | None, cards: int) -> float | None:
    """Return `flops` as a fraction of the peak rate of all `cards`; `tflops`: that of one GPU."""
    if flops is None or not tflops:
        return None
    return flops / (tflops * 1e12 * cards)


def median(values: Iterable[float | None]) -> float | None:
    """Return the median of the values that are not None; None without any."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
