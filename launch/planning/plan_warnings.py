"""What is worth a look before a plan is run, and stops nothing."""

from __future__ import annotations

from launch.planning.attention import packing_warnings
from launch.planning.chat_template import template_warnings
from launch.planning.checks import unverified_warnings
from launch.planning.data import count_steps, few_steps_warnings, validation_warnings
from launch.planning.flags import sequence_limit, values_of
from launch.planning.loss import weighting_warnings
from launch.planning.parallel import width_warnings
from launch.planning.plan import Plan
from launch.planning.rlvr import generation_warnings
from launch.planning.rule_facts import PlanFacts, find_by_rules
from launch.planning.setting_conflicts import shape_warnings
from launch.planning.tuned_overlay import tuned_warnings
from launch.worker.finding import Finding


def find_warnings(plan: Plan) -> tuple[Finding, ...]:
    """Return the warnings of a plan, apart from those of `build_flags`."""
    config = plan.config
    origins = plan.origins
    machine = plan.machine
    parallel = plan.parallel
    values = values_of(plan.flags)
    steps = count_steps(config, plan.batch, plan.inputs.mixture, plan.data, None)
    warnings = (
        *_setting_warnings(plan),
        *validation_warnings(config),
        *few_steps_warnings(config, origins, plan.flags, steps),
        *template_warnings(plan.template, plan.finder),
        *weighting_warnings(plan.loss_weighting, origins),
        *shape_warnings(config.model, origins),
        *unverified_warnings(machine.schemas[config.trainer.name], plan.flags),
        *width_warnings(parallel.width, origins, machine.environ),
        *generation_warnings(config, parallel, values),
        *packing_warnings(
            config, parallel, plan.batch, plan.flags, machine=machine, shape=plan.shape
        ),
    )
    if config.tuned:
        warnings += tuned_warnings(config.tuned, _measured_on(plan))
    return warnings


def _setting_warnings(plan: Plan) -> list[Finding]:
    """Return the warnings of the rules about settings. Those about flags come with the flags."""
    facts = PlanFacts(plan.config, plan.resolved, plan.origins, plan.parallel, plan.flags)
    found = find_by_rules(facts, with_flags=False)
    return [finding for finding in found if not finding.stops]


def _measured_on(plan: Plan) -> dict[str, object]:
    """Return what a tuned setting must have in common with the plan to be as fast."""
    return {
        "stage": plan.stage,
        "width": str(plan.parallel.width),
        "trainer": plan.trainer,
        "model": plan.inputs.model.reference,
        "global batch": plan.batch.global_,
        "card": plan.machine.card,
        "max_seq_length": sequence_limit(plan.config, plan.flags),
        **plan.machine.versions,
    }
