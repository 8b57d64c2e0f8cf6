"""`plan`: print what would run, without running anything."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from launch import resources
from launch.api.planning import PlannedRun, plan_composed
from launch.config.compose import Composed, compose
from launch.config.line import CommandLine
from launch.config.schema import Device, Family
from launch.errors import EXIT_DONE
from launch.planning.command import quote_argument
from launch.planning.flags import FLAG_COLUMNS, format_flag_value
from launch.planning.plan import Plan
from launch.planning.vllm_server import planned_server, server_environment
from launch.redact import process_redactor
from launch.table import Table
from launch.terminal import echo, notify, print_json
from launch.worker.json_codec import to_json, versioned

if TYPE_CHECKING:
    from launch.pipelines.links import Pipeline

PLAN_HELP = """usage: launch plan stage=NAME [key=value ...] [--json]

examples:
  launch plan stage=sft_25pct gpus=8
  launch plan stage=sft gpus=8 cluster.gpu_type=h100            with the memory forecast of an H100
  launch plan stage=dpo gpus=8 --json | jq .batch
  launch plan stage=sft --cfg job                               the composed configuration only
  launch plan pipeline=sft,dpo gpus=8                           all stages, and what they cost

Prints what `run` would do and starts nothing: the exact command, ready to paste; the batch
arithmetic; the predicted memory of a GPU; the environment; every flag with the override or the file
and line that sets it; the unfinished run that goes on, and its step. It needs no GPU, no torch and
no checkout of open-instruct.

exit codes: 0 planned; 2 it cannot work, and the messages explain why
"""


_MAX_WIDTH = 48  # characters of a value in the table of flags


def plan(line: CommandLine) -> int:
    """Print the plan of the composed stage, or of a pipeline's, as text or as one JSON object."""
    if line.is_pipeline:
        from launch.pipelines.links import plan_pipeline  # slow to import; one stage needs none

        pipeline = plan_pipeline(line, notify)
        if pipeline:
            code = _show_pipeline(pipeline, json=line.json)
            if not line.json:
                echo("\n".join(_next_commands(line, pipeline.plans[0])))
            return code

    def show(composed: Composed) -> int:
        planned = plan_composed(composed, is_swept=bool(line.sweeps))
        _refuse_other_plan(planned.plan)
        _note_earlier_run(planned.plan)
        if line.json:
            print_json(planned.as_json())
        else:
            _show(planned)
            echo("\n".join(_next_commands(line, planned.plan)))
        return EXIT_DONE

    return compose(line, show)


def _refuse_other_plan(plan: Plan) -> None:
    """Refuse a plan whose folder holds a run that it does not continue, as `run` does.

    Raises UserError: name_taken, other_width, other_format.
    """
    if plan.folder.exists():
        from launch.execution.resume import refuse_other_plan  # a new run needs none

        refuse_other_plan(plan)


def _note_earlier_run(plan: Plan) -> None:
    """Report why a plan is a new run, if an earlier run of its settings is in another folder."""
    if plan.folder.parent.exists():
        from launch.execution.earlier_runs import note_earlier_run  # a stage's first run needs none

        note_earlier_run(plan, notify)


def _show_pipeline(pipeline: Pipeline, *, json: bool) -> int:
    """Print the plan of each stage of a pipeline, and what all of them cost."""
    from launch.pipelines.forecast import describe_costs, forecast_pipeline

    costs = forecast_pipeline(pipeline, os.environ)
    planned = [PlannedRun(plan) for plan in pipeline.plans]
    if json:
        stages = []
        for run, cost in zip(planned, costs, strict=True):
            stages.append({**versioned(run), **to_json(cost)})
        print_json(versioned({"pipeline": pipeline.name, "stages": stages}))
        return EXIT_DONE
    for run in planned:
        _show(run, f"{run.plan.stage}: ")
        echo("")
    echo("\n".join([f"pipeline {pipeline.name}", *describe_costs(costs)]))
    return EXIT_DONE


def _show(planned: PlannedRun, stage: str = "") -> None:
    echo("\n".join(describe_plan(planned, os.environ)))
    for warning in planned.warnings:
        notify(f"warning: {stage}{warning}")


def _next_commands(line: CommandLine, plan: Plan) -> list[str]:
    """Return what comes after the plan of a line: the commands that can follow here.

    `plan`: the line's, or that of the first stage of its pipeline.
    """
    overrides = shlex.join(process_redactor().redact_argv(line.argv))
    needs_gpus = plan.parallel.width.device == Device.cuda and not plan.config.cache_only
    needs_others = needs_gpus and plan.machine.card is None  # another machine than this one
    is_for_slurm = any(text.startswith("cluster") for text in plan.origins.overrides)
    commands = {f"launch check {overrides}": "checks this machine for it"}
    if needs_others:
        commands = {}
        if _can_preview(plan) and not line.is_pipeline:
            commands[f"launch preview {overrides}"] = "shows what the model is trained on"
    elif plan.config.cache_only:
        commands[f"launch {overrides}"] = "tokenises the data, and trains nothing"
    elif plan.parallel.width.nodes == 1:
        commands[f"launch {overrides}"] = "trains on this machine"
    if needs_others or is_for_slurm or plan.parallel.width.nodes > 1:
        commands[f"launch submit {overrides} dry_run=true"] = "writes the Slurm job, to look at"
        commands[f"launch submit {overrides}"] = "submits it"
    lines = ["", "next"]
    if needs_others and plan.parallel.width.nodes == 1:
        lines.append(
            "  there is no GPU here: `launch check` and `launch run` are for a machine with GPUs"
        )
    return lines + [f"  {command}  # {effect}" for command, effect in commands.items()]


def _can_preview(plan: Plan) -> bool:
    """Whether a preview can show samples here: open-instruct's trainers need a checkout for it."""
    trainer = plan.config.trainer
    is_of_open_instruct = trainer.family == Family.open_instruct
    has_code = not is_of_open_instruct or plan.upstream.checkout is not None
    return has_code and "preview" not in trainer.unsupported_because


def describe_plan(planned: PlannedRun, environ: Mapping[str, str]) -> list[str]:
    """Describe the plan for a terminal: facts, flags with their origin, and the exact command."""
    plan = planned.plan
    redactor = process_redactor()
    lines = [f"{name:<11} {text}" for name, text in planned.facts()]
    lines += ["", "environment"]
    lines += [f"  {name}={redactor.redact_value(name, value)}" for name, value in plan.env.items()]
    lines += ["", "flags"]
    flags = []
    for name, flag in plan.flags.items():
        value = redactor.redact_object(flag.value, name)
        text = _fit_cell(format_flag_value(value))
        flags.append((name, {**vars(flag.provenance), "value": text}))
    _, *rows = Table.of("", FLAG_COLUMNS, flags).lines()
    lines += [f"  {row}" for row in rows]
    unset = [name for name in plan.unset if name in environ]
    lines += ["", "command", *paste_lines(plan, unset)]
    server = planned_server(plan)
    if server is not None:
        env = {**plan.env, **server_environment(server, plan, environ)}
        lines += ["", "server, which the run starts first", *_shell_lines(server.command, env)]
    return lines


def _fit_cell(text: str) -> str:
    """Return a value as a cell of the table of flags; a long one is cut at its beginning."""
    return text if len(text) <= _MAX_WIDTH else f"...{text[3 - _MAX_WIDTH :]}"


def paste_lines(plan: Plan, unset: Sequence[str]) -> list[str]:
    """Return the command as lines of shell: environment first, then one flag per line."""
    return _shell_lines(plan.command, plan.env, unset)


def _shell_lines(
    argv: Sequence[str], env: Mapping[str, str], unset: Sequence[str] = ()
) -> list[str]:
    redactor = process_redactor()
    lines = ["env"]
    lines += [f"-u {name}" for name in unset]
    for name, value in env.items():
        lines.append(f"{name}={shlex.quote(redactor.redact_value(name, value))}")
    for position, argument in enumerate(redactor.redact_argv(argv)):
        text = quote_argument(argument)
        is_flag = argument.startswith("--") and argument != "--"
        if position == 0 or is_flag or argument == str(resources.WORKER):
            lines.append(text)
        else:
            lines[-1] += f" {text}"
    return ["  " + " \\\n    ".join(lines)]
