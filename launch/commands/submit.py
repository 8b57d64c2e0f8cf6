"""`submit`: the plan as a Slurm job, or several stages as a chain of them."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from omegaconf import OmegaConf

from launch.commands.machine import this_machine
from launch.config.compose import USER_DIR_VARIABLE, Composed, compose
from launch.config.line import Line, override_key
from launch.errors import EXIT_DONE, Problem, UserError
from launch.lifecycle.resume import is_finished
from launch.planning.plan import Plan, build_plan
from launch.preflight.folders import folders_are_writable
from launch.preflight.hub import hub_token_is_here, push_is_allowed
from launch.preflight.packages import interpreter_has_packages
from launch.preflight.rules import inspect
from launch.preflight.upstream import checkout_is_here, checkout_is_the_pin, inputs_are_here
from launch.preflight.wandb import wandb_has_a_login
from launch.redact import Redactor
from launch.runtime.runs import command_for
from launch.runtime.script import command_script
from launch.slurm.cluster import cluster_problems, unshared
from launch.slurm.jobs import JobFolder
from launch.slurm.limits import mismatches
from launch.slurm.script import Job, render
from launch.slurm.submission import check_script, submit_chain

# what a login node can tell of the nodes
_RULES = (
    checkout_is_here,
    checkout_is_the_pin,
    interpreter_has_packages,
    inputs_are_here,
    folders_are_writable,
    hub_token_is_here,
    push_is_allowed,
    wandb_has_a_login,
)
_HANDED_ON = (USER_DIR_VARIABLE, "OPEN_INSTRUCT_DIR")  # folders that the plan depends on


@dataclass(frozen=True)
class Link:
    """One job of a chain. `finished`: its run is done already. `awaited`: the model of the job before it."""

    plan: Plan
    composed: Composed
    folder: JobFolder
    finished: bool
    awaited: Path | None


def submit(line: Line) -> int:
    """Write the job folders and submit them. Raises UserError when that cannot be done; nothing is then submitted."""
    pipeline, dry_run, rest = _own_words(line)
    if dry_run:
        links = _links(rest, pipeline)
        for link in links:
            _write(link)
        _tell(line, links, [])
        return EXIT_DONE
    links = _links(rest, pipeline)
    waiting = [link for link in links if not link.finished]
    for link in links:
        if link.finished:
            print(f"already done: {link.plan.folder}", file=sys.stderr)
    problems = [problem for link in waiting for problem in _preflight(link)]
    problems += mismatches([link.plan for link in waiting])
    if problems:
        raise UserError(problems)
    for link in waiting:
        _write(link)
        check_script(link.folder)
    jobs = [(link.folder, link.plan.folder) for link in waiting]
    chains = [jobs] if pipeline else [[job] for job in jobs]
    ids = [job_id for chain in chains for job_id in submit_chain(chain, _say)]
    _tell(line, waiting, ids)
    return EXIT_DONE


def _say(text: str) -> None:
    print(f"launch: {text}", file=sys.stderr, flush=True)


def _own_words(line: Line) -> tuple[list[str], bool, Line]:
    """`pipeline` and `dry_run`, and the line without them. Raises UserError (`bad_value`, `pipeline_conflict`)."""
    own: dict[str, str] = {}
    rest = []
    for word in line.words:
        key, _, value = word.partition("=")
        if key in ("pipeline", "dry_run"):
            own[key] = value
        else:
            rest.append(word)
    dry = own.get("dry_run", "false").lower()
    if dry not in ("true", "false"):
        raise UserError(Problem("bad_value", f"dry_run={dry} is neither true nor false", "override dry_run"))
    stages = [name for name in own.get("pipeline", "").strip("[]").split(",") if name]
    kept = Line(line.verb, line.json, tuple(rest))
    problems = []
    for key in ("stage", "model.path", "detach"):
        if key in [override_key(word) for word in kept.overrides] and (stages or key == "detach"):
            cure = "leave it out" if key == "detach" else "the pipeline says it"
            problems.append(Problem("submit_conflict", f"'submit' decides {key} itself", f"override {key}", cure))
    if stages and line.multirun:
        problems.append(
            Problem("submit_conflict", "a pipeline has one value of each key", "--multirun", "leave it out")
        )
    if problems:
        raise UserError(problems)
    return stages, dry == "true", kept


def _links(line: Line, pipeline: Sequence[str]) -> list[Link]:
    """Every job that the line asks for, planned and checked; the stages of a pipeline in order."""
    links: list[Link] = []

    def add(composed: Composed) -> int:
        links.append(_link(composed, awaited))
        return EXIT_DONE

    awaited: Path | None = None
    if not pipeline:
        compose(line, add)
    for stage in pipeline:
        handed = (f"model.path={_quoted(str(awaited))}",) if awaited else ()
        compose(replace(line, words=(f"stage={stage}", *_words_for(stage, pipeline, line), *handed)), add)
        awaited = links[-1].plan.model_dir
        if links[-1].plan.config.trainer.leaves != "config.json" and stage != pipeline[-1]:
            message = f"{links[-1].plan.trainer} leaves no model that the next stage can start from"
            raise UserError(Problem("pipeline_model", message, stage, "say another trainer="))
    return links


def _quoted(value: str) -> str:
    """A value as Hydra's grammar takes it, whatever is in it."""
    return value if re.fullmatch(r"[\w./-]+", value) else "'" + value.replace("'", r"\'") + "'"


def _words_for(stage: str, pipeline: Sequence[str], line: Line) -> list[str]:
    """The words of one stage: those that name no stage, and `STAGE:key=value` without its stage."""
    found = []
    for word in line.words:
        name, colon, own = word.partition(":")
        if not colon or name not in pipeline:
            found.append(word)
        elif name == stage:
            found.append(own)
    return found


def _link(composed: Composed, awaited: Path | None) -> Link:
    plan = build_plan(composed, this_machine(composed))
    redactor = Redactor(os.environ)
    cluster = plan.config.cluster
    folders = {"runs": plan.runs, "cache": plan.cache, "the current folder": Path.cwd()}
    problems = [*cluster_problems(cluster, composed.origins, redactor), *unshared(cluster, folders)]
    if redactor.redact_argv(composed.origins.words) != list(composed.origins.words):
        cure = "export it before you submit: the job has your environment"
        problems.append(
            Problem("secret_in_job", "a word looks like a secret, which no job folder may hold", None, cure)
        )
    if problems:
        raise UserError(problems)
    folder = JobFolder.of(plan.runs, plan.stage, plan.name)
    return Link(plan, composed, folder, is_finished(plan), awaited)


def _preflight(link: Link) -> list[Problem]:
    rules = [rule for rule in _RULES if not (link.awaited and rule is inputs_are_here)]
    return [finding.problem() for finding in inspect(link.plan, rules) if finding.stops]


def job_of(plan: Plan, composed: Composed, output: str, *, exports: Mapping[str, str], cwd: str, python: str) -> Job:
    """The job of a plan, by the words that composed it; see Job."""
    width, nodes = plan.parallel.width, plan.parallel.width.nodes
    ranks = f"{width.local} {'GPUs' if width.device == 'cuda' else 'CPU processes'}"
    return Job(
        name=re.sub(r"[^\w.-]", "_", f"{plan.stage}-{plan.name}"),
        title=f"{plan.stage} with {plan.trainer}: {nodes} node{'s' * (nodes > 1)} of {ranks}, global {plan.batch}",
        width=width,
        cluster=plan.config.cluster,
        words=[word for word in composed.origins.words if not _for_sbatch_alone(word)],
        cwd=cwd,
        python=python,
        output=output,
        exports=exports,
    )


def _for_sbatch_alone(word: str) -> bool:
    """Whether an override is about the batch script, and nothing that a node asks."""
    key = override_key(word)
    return key.startswith("cluster.") and key not in ("cluster.heartbeat", "cluster.requeues")


def _write(link: Link) -> None:
    """The job folder: the batch script, the plan, the configuration and the command with its environment."""
    plan, redactor = link.plan, Redactor(os.environ)
    exports = {name: str(Path(os.environ[name]).absolute()) for name in _HANDED_ON if os.environ.get(name)}
    if link.awaited is None:  # else the identity hangs on a model that is not there yet
        exports["LAUNCH_PLAN"] = plan.identity
    named = [] if plan.config.name else [f"name={plan.name}"]
    job = job_of(plan, link.composed, link.folder.output, exports=exports, cwd=str(Path.cwd()), python=_python(plan))
    script = render(replace(job, words=[*job.words, *named]))
    link.folder.write("job.sbatch", script, mode=0o755)
    link.folder.write_json("plan.json", redactor.redact_object(plan.as_json()))
    plain = OmegaConf.to_yaml(OmegaConf.create(dict(link.composed.plain)))
    link.folder.write("config.yaml", redactor.redact_text(plain))
    link.folder.write("command.sh", command_script(plan.command, plan.env, plan.unset, None, redactor), mode=0o755)


def _python(plan: Plan) -> str:
    return plan.config.cluster.python or sys.executable


def _tell(line: Line, links: Sequence[Link], ids: Sequence[str]) -> None:
    """What was submitted, or only written, and how to follow it."""
    told = []
    for number, link in enumerate(links):
        job_id = ids[number] if ids else None
        run = f"{link.plan.stage}/{link.plan.name}"
        told.append(
            {
                "schema_version": 1,
                "run": run,
                "job_id": job_id,
                "script": str(link.folder.script),
                "log": str(link.folder.log(job_id)) if job_id else None,
                "after": ids[number - 1] if job_id and link.awaited and number else None,
            }
        )
    if line.json:
        print(json.dumps(told, indent=2))
        return
    for one, link in zip(told, links, strict=True):
        if one["job_id"] is None:
            print(f"{one['run']}: sbatch {one['script']}")
            continue
        after = f", after job {one['after']}" if one["after"] else ""
        print(f"{one['run']}: job {one['job_id']}{after}")
        print(f"  follow it: {command_for('logs', link.plan.folder, '--follow')}")
        print(f"  end it:    {command_for('stop', link.plan.folder)}")
