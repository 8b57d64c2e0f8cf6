"""`plan`: print what would run, and run nothing."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from launch import resources
from launch.api.planning import PlannedRun, plan_composed
from launch.config.compose import Composed, compose
from launch.config.line import CommandLine
from launch.config.origins import Origin
from launch.config.schema import Packing, Quantization
from launch.errors import EXIT_DONE
from launch.planning.batches import TokenForecast, describe_packing, describe_tokens, forecast_packing
from launch.planning.command import quote_argument
from launch.planning.data import describe_data, describe_schedule
from launch.planning.estimate.forecast import MemoryForecast
from launch.planning.estimate.forecast import describe as describe_forecast
from launch.planning.flags import FLAG_COLUMNS
from launch.planning.lengths import load_lengths
from launch.planning.plan import Plan
from launch.planning.rlvr import describe_groups
from launch.redact import process_redactor
from launch.table import Table
from launch.terminal import echo, notify, print_json
from launch.upstream.trainers import OLMO_CORE_DPO
from launch.worker.json_codec import versioned

PLAN_HELP = """usage: launch plan stage=NAME [key=value ...] [--json]

examples:
  launch plan stage=sft_25pct gpus=8
  launch plan stage=sft gpus=8 cluster.gpu_type=h100            with the memory forecast of an H100
  launch plan stage=dpo gpus=8 --json | jq .batch
  launch plan stage=sft --cfg job                               the composed configuration only
  launch plan pipeline=sft,dpo gpus=8                           all stages, and what they cost

Prints what `run` would do and starts nothing: the exact command, ready to paste; the batch arithmetic; the predicted
memory of a GPU; the environment; every flag with the override or the file and line that sets it. It needs no GPU, no
torch and no checkout of open-instruct.

exit codes: 0 planned; 2 it cannot work, and the messages say why
"""


def plan(line: CommandLine) -> int:
    """Print the plan of the composed stage, or of a pipeline's, as text or as one JSON object."""
    if line.sets("pipeline"):
        return _plan_pipeline(line)

    def show(composed: Composed) -> int:
        planned = plan_composed(composed)
        if line.json:
            print_json(planned)
        else:
            _show(planned)
        return EXIT_DONE

    return compose(line, show)


def _plan_pipeline(line: CommandLine) -> int:
    """Print the plan of each stage of a pipeline, and what all of them cost."""
    from launch.pipelines.forecast import describe_costs, forecast_pipeline
    from launch.pipelines.links import plan_pipeline, read_request

    pipeline = plan_pipeline(read_request(line), notify, "plan", starts_trainer=False)
    costs = forecast_pipeline(pipeline, os.environ)
    planned = [PlannedRun(plan) for plan in pipeline.plans]
    if line.json:
        stages = [{**run.as_json(), **cost.as_json()} for run, cost in zip(planned, costs, strict=True)]
        print_json(versioned({"pipeline": pipeline.name, "stages": stages}))
        return EXIT_DONE
    for run in planned:
        _show(run, f"{run.plan.stage}: ")
        echo("")
    echo("\n".join([f"pipeline {pipeline.name}", *describe_costs(costs)]))
    return EXIT_DONE


def _show(planned: PlannedRun, stage: str = "") -> None:
    echo("\n".join(describe(planned.plan, os.environ, planned.memory, planned.tokens)))
    for warning in planned.warnings:
        notify(f"warning: {stage}{warning}")


def _describe_packing(plan: Plan) -> str:
    """Describe how full dpo.py's packed rows will be; empty for another plan, or without the data's lengths."""
    recipe = plan.config.recipe
    lengths = load_lengths(plan.lengths_file)
    if plan.trainer != OLMO_CORE_DPO or recipe.packing != Packing.bins or lengths is None or not lengths.pairs:
        return ""
    return describe_packing(forecast_packing(lengths, recipe.max_seq_length, plan.batch), plan.batch)


def describe(
    plan: Plan,
    environ: Mapping[str, str],
    memory: MemoryForecast | None = None,
    tokens: TokenForecast | None = None,
) -> list[str]:
    """Describe the plan for a terminal: facts, flags with their origin, and the command, ready to paste."""
    redactor, description = process_redactor(), plan.config.stage.description
    forecast = describe_forecast(memory) if memory else []
    tasks = ", ".join(plan.config.stage.tasks) or "tulu3"
    evaluation = f"evaluated on {tasks}, compared with the starting checkpoint"
    facts = [
        ("stage", f"{plan.stage}: {description}" if description else plan.stage),
        ("trainer", f"{plan.trainer}, {plan.upstream.description}"),
        ("ranks", f"{_describe_ranks(plan)}, parallel={plan.parallel.mode}, {plan.parallel.precision}"),
        ("batch", f"global {plan.batch}"),
        ("", describe_groups(plan.config)),
        *(("" if number else "data", text) for number, text in enumerate(describe_data(plan.inputs, plan.data))),
        ("validation", describe_schedule(plan.config) or ""),
        ("schedule", _schedule(plan)),
        ("adapter", _adapter(plan)),
        ("attention", str(plan.attention) if plan.attention else ""),
        ("files", "  ".join(_relative(path) for path in plan.parallel.files) or "none"),
        ("", f"keys checked against {', '.join(plan.files_checked)}" if plan.files_checked else ""),
        ("patches", ", ".join(_format_patch(patch) for patch in plan.patches) or "none"),
        ("options", ", ".join(_format_patch(option) for option in plan.options)),
        ("run folder", _relative(plan.folder)),
        ("python", _describe_python(plan)),
        ("afterwards", evaluation if plan.config.evaluate else ""),
        *(("" if number else "memory", text) for number, text in enumerate(forecast)),
        *(describe_tokens(tokens, plan.batch, plan.config.trainer.family) if plan.lengths_file else ()),
        ("packing", _describe_packing(plan)),
    ]
    lines = [f"{name:<11} {text}" for name, text in facts if text]
    lines += ["", "environment"]
    lines += [f"  {name}={redactor.redact_value(name, value)}" for name, value in plan.env.items()]
    lines += ["", "flags"]
    flags = (
        (name, {**vars(flag.provenance), "value": redactor.redact_object(flag.value, name)})
        for name, flag in plan.flags.items()
    )
    lines += [f"  {line}" for line in Table.of("", FLAG_COLUMNS, flags).lines(widest=48)[1:]]
    unset = [name for name in plan.unset if name in environ]
    return [*lines, "", "command", *paste_lines(plan, unset)]


def paste_lines(plan: Plan, unset: Sequence[str]) -> list[str]:
    """Return the command as lines of shell: environment first, then one flag per line."""
    redactor, lines = process_redactor(), ["env"]
    lines += [f"-u {name}" for name in unset]
    lines += [f"{name}={shlex.quote(redactor.redact_value(name, value))}" for name, value in plan.env.items()]
    for position, argument in enumerate(redactor.redact_argv(plan.command)):
        text = quote_argument(argument)
        is_flag = argument.startswith("--") and argument != "--"
        if position == 0 or is_flag or argument == str(resources.WORKER):
            lines.append(text)
        else:
            lines[-1] += f" {text}"
    return ["  " + " \\\n    ".join(lines)]


def _describe_python(plan: Plan) -> str:
    """The trainer's interpreter if a file names it: nothing of it was executed."""
    provenance = plan.origins.of("python")
    if plan.config.python is None or provenance.origin == Origin.override:
        return ""
    packages = "its packages are read from their folders" if plan.machine.packages else "its packages are unknown here"
    return (
        f"{plan.command[0]}, set in {provenance.where or 'a file'}; not started, {packages}: `check` and `run` start it"
    )


def _schedule(plan: Plan) -> str:
    """How long a run trains and what DPO's strength is: settings that no key for speed may change."""
    recipe = plan.config.recipe
    beta = f", beta {recipe.beta:g}" if recipe.beta is not None else ""
    epochs = "1 epoch" if recipe.epochs == 1 else f"{recipe.epochs} epochs"
    end = f"at most {recipe.max_steps:,} steps" if recipe.max_steps else epochs
    packed = {
        Packing.none: "",
        Packing.flatten: "; packing leaves the number of steps as it is",
        Packing.bins: "; packing makes fewer, larger steps: a row counts as one sample",
    }
    return f"{end}{beta}{packed[recipe.packing] if plan.trainer != OLMO_CORE_DPO else ''}"


def _adapter(plan: Plan) -> str:
    """The adapter that is trained; nothing where all weights are."""
    if plan.lora is None:
        return ""
    targets = plan.lora.targets if isinstance(plan.lora.targets, str) else ", ".join(plan.lora.targets)
    base = "4-bit (nf4)" if plan.lora.quantize == Quantization.nf4 else plan.parallel.precision.value
    adapter = plan.inputs.model.adapter
    start = f"; resumes training {adapter.folder}" if adapter is not None and plan.inputs.model.build is None else ""
    return f"LoRA of rank {plan.lora.rank}, alpha {plan.lora.alpha}, on {targets}; frozen weights in {base}{start}"


def _describe_ranks(plan: Plan) -> str:
    size = plan.parallel.width.world_size
    kind = "GPU" if plan.parallel.width.device == "cuda" else "CPU process"
    nodes = plan.parallel.width.nodes
    over = f" on {nodes} nodes, the place of each in $LAUNCH_NODE_RANK" if nodes > 1 else ""
    return f"{size} {kind}" + ("" if size == 1 else "es" if kind.endswith("s") else "s") + over


def _relative(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _format_patch(patch: str) -> str:
    """Return a patch with its value, a path relative to the current folder."""
    name, equals, value = patch.partition("=")
    return f"{name}={_relative(Path(value))}" if equals else name
