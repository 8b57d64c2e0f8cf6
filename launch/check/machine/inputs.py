"""The inputs: models and files exist, and the data fills the rows that a run computes."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from threading import Thread

from launch.check.machine.rule import Host, rule
from launch.planning.chat_template import missing_text_problem
from launch.planning.hub_cache import hub_cache
from launch.planning.hub_config import HUB, offline_variable
from launch.planning.input_source import InputSource
from launch.planning.lengths import load_lengths
from launch.planning.packing import describe_packing, forecast_packing, padding_problem
from launch.planning.plan import Plan
from launch.rules.code import failed, passed, skipped, warned
from launch.upstream.trainers import OLMO_CORE_DPO
from launch.worker.finding import Finding

_TIMEOUT = 1.5  # seconds


@rule("tokens_wasted", "padding")
def padding_is_low(plan: Plan, _: Host) -> Finding:
    """dpo.py fills the unused rest of a row with padding: with 2 pairs in rows of 16,384 tokens
    that was 89% of the computation (upstream's pull request 1466).
    """
    if plan.trainer != OLMO_CORE_DPO:
        return skipped(f"{plan.trainer} does not pack rows")
    lengths = load_lengths(plan.lengths_file)
    if lengths is None:
        return skipped("the token lengths of the data are unknown: cache_only=true measures them")
    recipe = plan.config.recipe
    problem = padding_problem(lengths, recipe.packing, recipe.max_seq_length, plan.batch)
    if problem is not None:
        return warned(problem.message, problem.cure, problem.where)
    if recipe.packing != "bins" or not lengths.pairs:
        return passed(f"{lengths.expected_padding_share(plan.batch.samples_per_rank):.0%} padding")
    packing = forecast_packing(lengths, recipe.max_seq_length, plan.batch)
    return passed(describe_packing(packing, plan.batch))


@rule("no_such_input", "inputs", on_login_node=True)
def inputs_exist(plan: Plan, host: Host) -> Finding:
    """Local models and files exist; what is built on the machine is built after preflight."""
    sources = [entry.source for entry in plan.inputs.mixture]
    if not plan.is_pending:
        sources.insert(0, plan.inputs.model)
    # The files of staged data were found when it was planned.
    staged = [entry.source for entry in plan.inputs.mixture if entry.data]
    for source in sources:
        if not source.local or source.build or source in staged:
            continue
        if not source.local.exists():
            message = f"{source.local} does not exist"
            return failed(message, "check the path", source.provenance.where)
    local = sum(1 for source in sources if source.local)
    return passed(f"{local} local, {len(sources) - local} from the hub")


@rule("no_template_text", "chat template")
def template_text_is_here(plan: Plan, _: Host) -> Finding:
    """A plan needs only the digest of a template of TRL's; the trainer needs its text, which is
    read from an installed TRL and kept.
    """
    template = plan.trl_template
    if template is None:
        return skipped("no template of TRL's is set")
    where = plan.origins.of("recipe.chat_template").where
    problem = missing_text_problem(template, plan.command[0], where)
    if problem:
        return failed(problem.message, problem.cure, where)
    return passed(f"{template.name} {template.source}")


@rule("hub_unreachable", "hub inputs", is_first=True)
def hub_is_reachable(plan: Plan, host: Host) -> Finding:
    """A model or data set that is not cached is downloaded; offline, the trainer tries for half a
    minute first.
    """
    cache = hub_cache(host.environ)
    datasets = [entry.source for entry in plan.inputs.mixture]
    missing = [source for source in datasets if not _is_here(source, cache, "datasets")]
    if not _is_here(plan.inputs.model, cache, "models"):
        missing.insert(0, plan.inputs.model)
    if not missing:
        return skipped("every input is here")
    reason = _why_unreachable(host.environ)
    if reason is None:
        return passed(f"{host.environ.get('HF_ENDPOINT', HUB)} answers")
    names = " and ".join(source.reference for source in missing)
    cure = (
        "check the names: a folder here is found by its path; "
        "or download them into the cache on another machine"
    )
    message = f"{names} would come from the hub, which {reason}"
    return failed(message, cure, missing[0].provenance.where)


def _is_here(source: InputSource, cache: Path, kind: str) -> bool:
    """Return whether a model or data set is local, or in the hub's cache."""
    if source.local:
        return True
    folder = cache / f"{kind}--{source.reference.replace('/', '--')}"
    return any(folder.glob("snapshots/*"))


def _why_unreachable(environ: Mapping[str, str]) -> str | None:
    """Return why the hub cannot be reached; None if it responds."""
    forbidding = offline_variable(environ)
    if forbidding is not None:
        return f"{forbidding} forbids"
    answers: list[str | None] = []

    def query() -> None:
        answers.append(_hub_problem(environ.get("HF_ENDPOINT", HUB)))

    # A DNS lookup has no time limit, and the exit would wait for the thread of a pool.
    thread = Thread(target=query, daemon=True)
    thread.start()
    thread.join(_TIMEOUT)
    return answers[0] if answers else f"cannot be reached (no answer in {_TIMEOUT:g} s)"


def _hub_problem(address: str) -> str | None:
    """Return why the address does not respond as the hub does; None if it does."""
    try:
        urllib.request.urlopen(address, timeout=_TIMEOUT).close()
    except urllib.error.HTTPError as error:
        # Any other status is an answer of the hub.
        is_from_proxy = error.code in (403, 407)
        return f"answers {error.code}" if is_from_proxy or error.code >= 500 else None
    except (OSError, ValueError) as error:
        return f"cannot be reached ({getattr(error, 'reason', error)})"
    return None
