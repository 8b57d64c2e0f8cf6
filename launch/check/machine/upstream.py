"""open-instruct's source exists and is the pinned commit; the plan's inputs exist."""

from __future__ import annotations

from launch.check.machine.rule import Host, failed, passed, rule, skipped
from launch.config.schema import Family
from launch.planning.plan import Plan
from launch.upstream.pin.checkout import FETCH_SUBMODULE_COMMAND
from launch.worker.finding import Finding


@rule("no_checkout", on_login_node=True)
def checkout_exists(plan: Plan, host: Host) -> Finding:
    """An open-instruct trainer runs from open-instruct's source: the lock file holds its schema, not its code."""
    if plan.config.trainer.family != Family.open_instruct:
        return skipped(f"{plan.trainer} needs no checkout")
    if plan.upstream.checkout:
        return passed(str(plan.upstream.checkout))
    other = {"sft": "trl_sft", "dpo": "trl_dpo"}.get(plan.config.stage.kind.value)
    cure = f"run `{FETCH_SUBMODULE_COMMAND}`, or set OPEN_INSTRUCT_DIR or upstream.dir to a checkout"
    cure += f"; trainer={other} needs none" if other else ""
    return failed(f"{plan.trainer} needs a checkout of open-instruct, and none was found", cure)


@rule("upstream_mismatch", on_login_node=True)
def checkout_matches_pin(plan: Plan, host: Host) -> Finding:
    """Patches, hazards and the trainers' flags were read from the pinned commit; another commit may differ."""
    if plan.upstream.matches_pin:
        return passed(plan.upstream.description)
    cure = "check out the pin, or set allow=[upstream_mismatch]; `launch upstream diff` shows the differences"
    return failed(plan.upstream.description, cure)


@rule("no_such_input", on_login_node=True)
def inputs_exist(plan: Plan, host: Host) -> Finding:
    """Local models and files exist; what is built on the machine is built after preflight."""
    sources = [plan.inputs.model, *(entry.source for entry in plan.inputs.mixture)]
    staged = [entry.source for entry in plan.inputs.mixture if entry.data]  # its files were found when it was planned
    for source in sources:
        if source.local and not source.build and source not in staged and not source.local.exists():
            return failed(f"{source.local} does not exist", "check the path", source.provenance.where)
    local = sum(1 for source in sources if source.local)
    return passed(f"{local} local, {len(sources) - local} from the hub")
