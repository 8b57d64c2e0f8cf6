"""The inputs: models and files exist, and the data fills the rows that a run computes."""

from __future__ import annotations

from launch.check.machine.rule import Host, failed, passed, rule, skipped, warned
from launch.planning.batches import describe_packing, forecast_packing, padding_problem, samples_per_rank
from launch.planning.lengths import load_lengths
from launch.planning.plan import Plan
from launch.upstream.trainers import OLMO_CORE_DPO
from launch.worker.finding import Finding


@rule("tokens_wasted", "padding")
def padding_is_low(plan: Plan, _: Host) -> Finding:
    """dpo.py fills the unused rest of a row with padding: with 2 pairs in rows of 16,384 tokens that was 89% of the
    computation (upstream's pull request 1466)."""
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
        return passed(f"{lengths.padding_share(samples_per_rank(plan.batch)):.0%} padding")
    return passed(describe_packing(forecast_packing(lengths, recipe.max_seq_length, plan.batch), plan.batch))


@rule("no_such_input", "inputs", on_login_node=True)
def inputs_exist(plan: Plan, host: Host) -> Finding:
    """Local models and files exist; what is built on the machine is built after preflight."""
    sources = [plan.inputs.model, *(entry.source for entry in plan.inputs.mixture)]
    staged = [entry.source for entry in plan.inputs.mixture if entry.data]  # its files were found when it was planned
    for source in sources:
        if source.local and not source.build and source not in staged and not source.local.exists():
            return failed(f"{source.local} does not exist", "check the path", source.provenance.where)
    local = sum(1 for source in sources if source.local)
    return passed(f"{local} local, {len(sources) - local} from the hub")
