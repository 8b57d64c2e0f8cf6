"""Plans all widths of a rollout before anything runs, below the folder that they share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from launch import resources
from launch.config.compose import Composed
from launch.errors import Problem, UserError
from launch.planning.identity import compute_identity
from launch.planning.plan import Plan
from launch.trials.rollout.record import WidthRun
from launch.trials.rollout.request import RequestedWidth, RolloutRequest


def plan_widths(
    request: RolloutRequest,
    compose: Callable[[RequestedWidth, str | None], Composed],
    build: Callable[[Composed], Plan],
) -> tuple[Path, list[WidthRun]]:
    """Plan the short run of every width, below the folder that they share, <runs>/<stage>/rollout-<id>.

    `compose(width, parallel)` composes one. Raises UserError with the problems of all widths, each problem once.
    """
    plans: list[Plan] = []
    problems: list[Problem] = []
    for width in request.widths:
        try:
            composed = compose(width, None)
            mode = composed.config.rollout.parallel_at_one
            if width.ranks == 1 and mode:
                composed = compose(width, mode)
            _check_numbers(composed)
            plans.append(build(composed))
        except UserError as error:
            problems += [problem for problem in error.problems if problem not in problems]
    if problems:
        raise UserError(problems)
    name = f"rollout-{plans[0].config.name or rollout_id(plans[0])}"
    runs = [
        WidthRun(
            str(plan.parallel.width), plan.renamed(f"{name}/{plan.parallel.width}-{plan.identity}"), requested=width
        )
        for width, plan in zip(request.widths, plans, strict=True)
    ]
    return plans[0].runs / plans[0].stage / name, runs


def _check_numbers(composed: Composed) -> None:
    """Raises UserError: bad_steps, bad_price."""
    rollout = composed.config.rollout
    if rollout.steps < 1:
        message = f"steps={rollout.steps} measures nothing"
        raise UserError(Problem("bad_steps", message, "rollout.steps", "use 1 or more; 50 to 200 is usual"))
    price = rollout.price_per_gpu_hour
    if price is not None and not 0 <= price < float("inf"):
        message = f"price_per_gpu_hour must be 0 or greater, got {price}"
        raise UserError(Problem("bad_price", message, "rollout.price_per_gpu_hour", "set a finite number"))


def rollout_id(plan: Plan) -> str:
    """The id by which a rollout resumes: the same for every width, mode and number of steps of one recipe and data."""
    carried = plan.config.trainer.launch
    own = {carried.get("accumulation"), carried.get("output")}
    parts = {
        "stage": plan.stage,
        "trainer": [plan.trainer, plan.config.trainer.entry],
        "upstream": plan.upstream.commit,
        "device": plan.parallel.width.device.value,
        "flags": {name: flag.value for name, flag in plan.flags.items() if name not in own},
        "batch": [plan.batch.global_, plan.batch.per_device],
    }
    return compute_identity(parts, {plan.runs: "{runs}", plan.cache: "{cache}", resources.ROOT: "{project}"}, {})
