"""The two settings of a bench: read from `[common] -- [A's overrides] -- [B's overrides]`, planned and compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

from launch import resources
from launch.config.line import CommandLine, format_value, override_key
from launch.config.schema import Packing, RootConfig
from launch.errors import Problem, UserError
from launch.planning.identity import compute_identity
from launch.planning.plan import Plan
from launch.trials.bench.record import BenchRecord, Side
from launch.trials.trial import expand_short_options, plan_all, unsupported_problems

SIDES = ("A", "B")
# short for keys of the node `bench`
SHORT = ("steps", "warmup", "repeats", "order", "max_minutes", "loss_tolerance")
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
        keys |= {f"{key}.mode" for key in keys if key == "parallel"}  # choosing a group sets its keys anew
        return self.common.without(*keys).with_overrides(*own)


def read_request(line: CommandLine) -> BenchRequest:
    """Split the line at its `--`. Raises UserError: bench_settings, bench_alone, bench_common, duplicate_override."""
    parts: list[list[str]] = [[]]
    for word in line.argv:
        if word == SEPARATOR:
            parts.append([])
        else:
            parts[-1].append(word)
    if len(parts) != 3:
        given = {1: "no settings: there is no `--`", 2: "one setting: there is one `--`"}
        message = f"bench compares two settings and got {given.get(len(parts), f'{len(parts) - 1} of them')}"
        raise UserError(Problem("bench_settings", message, "command line", f"use {_USAGE}"))
    common, a, b = parts
    problems = list(unsupported_problems(line, "bench", "it runs two settings in turn"))
    for name, arguments in zip(SIDES, (a, b), strict=True):
        for argument in arguments:
            key = override_key(argument)
            if key in _COMMON or key.startswith("bench."):
                message = f"{key}= applies to the whole bench, not to setting {name} alone"
                problems.append(Problem("bench_common", message, f"override {key}", "move it before the first `--`"))
            elif argument.startswith("-"):
                message = f"'{argument}' is not an override of setting {name}"
                problems.append(Problem("bench_common", message, "command line", "move it before the first `--`"))
    if problems:
        raise UserError(problems)
    return BenchRequest(expand_short_options(replace(line, argv=tuple(common)), "bench", SHORT), (tuple(a), tuple(b)))


LEAST_STEPS = 2  # after the warm-up
_LISTED_ABOVE = ("global_batch_size", "per_device_batch_size", "precision", "max_grad_norm")  # of the recipe


def plan_bench(request: BenchRequest, plan: Callable[[CommandLine], Plan]) -> BenchRecord:
    """Plan both settings; `plan` plans the short run of a line.

    Raises UserError with the problems of both, each problem once; and: bench_steps; bench_global_batch, bench_data (not
    comparable, unless `allow` names the id).
    """
    plans = plan_all(map(request.line, (0, 1)), plan, _check_numbers)
    a, b = (Side(*side) for side in zip(SIDES, request.own, plans, strict=True))
    mismatches = _find_mismatches(a, b)
    errors = [problem for problem in mismatches if problem.id not in a.plan.config.allow]
    if errors:
        raise UserError(errors)
    id_ = a.plan.config.name or compute_identity({"a": a.plan.identity, "b": b.plan.identity}, {}, {})
    notes = list(mismatches)
    if a.plan.config.bench.repeats == 1:
        message = "one repeat has no spread: it cannot distinguish a difference from noise"
        notes.append(Problem("one_repeat", message, "bench.repeats", "use repeats=3"))
    folder = a.plan.runs / a.plan.stage / f"bench-{id_}"
    differences, bench = tuple(list_differences(a.plan, b.plan)), a.plan.config.bench
    numbers = bench.steps, bench.warmup
    return BenchRecord(folder, a.plan, *numbers, (a, b), differences, tuple(notes))


def _check_numbers(config: RootConfig) -> list[Problem]:
    bench, problems = config.bench, []
    if bench.steps - bench.warmup < LEAST_STEPS:
        message = f"steps={bench.steps} after warmup={bench.warmup} leaves too few steps to measure"
        cure = f"use steps={bench.warmup + LEAST_STEPS} or more"
        problems.append(Problem("bench_steps", message, "bench.steps", cure))
    total = config.recipe.max_steps
    if total is not None and total < bench.steps:
        message = f"the stage has only {total} steps, fewer than steps={bench.steps}"
        problems.append(Problem("bench_steps", message, "bench.steps", f"use steps={total} or fewer"))
    return problems


def _find_mismatches(a: Side, b: Side) -> list[Problem]:
    """What makes the two do different amounts of work, or train on different data."""
    problems = []
    if a.plan.batch.global_ != b.plan.batch.global_:
        sizes = f"A's global batch is {a.plan.batch.global_} and B's is {b.plan.batch.global_}"
        message = f"{sizes}: equal steps are not equal work"
        cure = "set one recipe.global_batch_size= before the first `--`, or allow=[bench_global_batch]"
        problems.append(Problem("bench_global_batch", message, "recipe.global_batch_size", cure))
    for side in (a, b):
        if side.plan.config.recipe.packing == Packing.bins:
            message = f"{side.label} packs into bins, so its global batch is not a fixed number of samples"
            cure = "set recipe.packing=flatten, or allow=[bench_global_batch]"
            problems.append(Problem("bench_global_batch", message, "recipe.packing", cure))
            break
    ours, theirs = _data_settings(a), _data_settings(b)
    differing = [name for name in ours if ours[name] != theirs[name]]
    if differing:
        values = "; ".join(f"{name} is {ours[name]} in A and {theirs[name]} in B" for name in differing)
        cure = "set it once, before the first `--`, or allow=[bench_data]"
        problems.append(Problem("bench_data", f"A and B do not train on the same data: {values}", None, cure))
    return problems


def _data_settings(side: Side) -> dict[str, str]:
    recipe, plan = side.plan.config.recipe, side.plan
    mixture = [f"{share.source.reference} x {share.share:g} ({share.split})" for share in plan.inputs.mixture]
    return {
        "the stage's kind": side.plan.config.stage.kind.value,
        "the mixture": ", ".join(mixture),
        "recipe.max_seq_length": str(recipe.max_seq_length),
        "recipe.chat_template": str(recipe.chat_template),
        "recipe.seed": str(recipe.seed),
    }


def list_differences(a: Plan, b: Plan) -> list[tuple[str, str, str]]:
    """The differences between two plans as (what, A's, B's), without the folders that each run has for itself."""
    values = [
        (name, format_value(ours), format_value(theirs))
        for name, ours, theirs in (
            ("trainer", a.trainer, b.trainer),
            ("width", str(a.parallel.width), str(b.parallel.width)),
            ("parallel", a.parallel.mode.value, b.parallel.mode.value),
            ("precision", a.parallel.precision.value, b.parallel.precision.value),
            ("per device x accumulation", _micro_batches(a), _micro_batches(b)),
            ("clip", a.config.recipe.max_grad_norm, b.config.recipe.max_grad_norm),
            ("upstream", a.upstream.description, b.upstream.description),
            ("python", a.command[0], b.command[0]),
            ("model", a.inputs.model.reference, b.inputs.model.reference),
            ("patches", _only_in(a.patches, b.patches), _only_in(b.patches, a.patches)),
            ("options", _only_in(a.options, b.options), _only_in(b.options, a.options)),
        )
    ]
    if a.trainer != b.trainer:  # their flags have different names, so the recipes are compared
        names = [field.name for field in fields(a.config.recipe) if field.name not in _LISTED_ABOVE]
        recipes = a.config.recipe, b.config.recipe
        values += [
            (f"recipe.{name}", format_value(getattr(recipes[0], name)), format_value(getattr(recipes[1], name)))
            for name in names
        ]
    else:
        flags = sorted({*a.flags, *b.flags} - _derived_flags(a) - _derived_flags(b))
        values += [(f"flags.{name}", _format_flag(a, name), _format_flag(b, name)) for name in flags]
    placeholders = {str(a.folder): "{folder}", str(b.folder): "{folder}", str(resources.ROOT): "{project}"}
    for name in sorted({*a.env, *b.env} - {"PYTHONPATH"}):
        ours, theirs = (_shorten_paths(plan.env.get(name), placeholders) for plan in (a, b))
        values.append((name, ours, theirs))
    return [(name, ours, theirs) for name, ours, theirs in values if ours != theirs]


def _derived_flags(plan: Plan) -> set[str]:
    """The flags that follow from what is compared already."""
    flag_names = plan.config.trainer.launch
    return {flag_names[key] for key in ("output", "accumulation", "per_device") if key in flag_names}


def _micro_batches(plan: Plan) -> str:
    return f"{plan.batch.per_device} x {plan.batch.accumulation}"


def _only_in(own: tuple[str, ...], others: tuple[str, ...]) -> str:
    """The patches that the other plan does not have."""
    return " ".join(patch for patch in own if patch not in others) or "-"


def _format_flag(plan: Plan, name: str) -> str:
    return format_value(plan.flags[name].value) if name in plan.flags else "-"


def _shorten_paths(value: str | None, placeholders: dict[str, str]) -> str:
    text = "-" if value is None else value
    for path, placeholder in placeholders.items():
        text = text.replace(path, placeholder)
    return text
