"""Decide whether a run is done: every planned step, a complete model, every requested setting
proven.

And what DONE vouches for: proofs of the weights, digests of the model, finished work that a later
failure keeps.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from launch.config.schema import AdapterStart, Kind
from launch.config.trials import FirstLossGate
from launch.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_STOPPED, UserError
from launch.execution.display import describe_early_stop
from launch.execution.record.checkpoints import checkpoint_step
from launch.execution.record.evidence import unmet_settings
from launch.execution.record.outcome import Outcome, read_validation
from launch.execution.record.run import Run
from launch.planning.flags import values_of
from launch.planning.identity import DigestCache
from launch.planning.lora import read_adapter
from launch.planning.plan import Plan
from launch.planning.saved_model import digest_model, find_changes
from launch.worker.finding import Evidence
from launch.worker.patches import EVIDENCE_PATCHES
from launch.worker.trl_rlvr import REFERENCE

# recipe.loss values that mean -log sigmoid(beta x difference)
_SIGMOID_LOSSES = (None, "dpo", "dpo_norm")
# flags that choose another loss, weigh it or add to it (dpo_utils.py:101 and :107,
# trl/trainer/dpo_trainer.py:804 and :1518); label smoothing, TRL's divergences and ld_alpha leave
# ln 2 as it is while the policy is the reference
_CHANGES_FIRST_LOSS = frozenset(
    {"loss_type", "loss_weights", "use_weighting", "load_balancing_loss"}
)
_MOST_FAULTS = 5  # in an outcome


def verify_completion(outcome: Outcome, plan: Plan, run: Run) -> Outcome:
    """Return `outcome`, or a failed one when the trainer succeeded with fewer steps or without a
    complete model.

    `run`: where the trainer's own number of steps is.
    """
    if outcome.exit_code != EXIT_DONE:
        return outcome
    planned = run.total_steps or plan.config.recipe.max_steps
    outcome = replace(outcome, planned_steps=planned)
    faults = plan.find_output_faults()
    if faults:
        cause = (
            f"the trainer exited without an error, but {plan.model_dir} is not a complete "
            f"model: {faults[0]}"
        )
        return replace(
            outcome, exit_code=EXIT_FAILED, cause=cause, detail=tuple(faults[1:_MOST_FAULTS])
        )
    if _read_early_stop(run, outcome.steps):
        planned = outcome.steps
    unlogged = plan.most_unlogged
    gap = _find_gap(plan, run)
    if outcome.steps == 0 or (planned is not None and outcome.steps + unlogged < planned):
        of = f" of {planned}" if planned is not None else ""
        cause = f"the trainer exited without an error after {outcome.steps}{of} steps"
    elif gap is not None:
        steps = f"the steps {gap[0] + 1} to {gap[1] - 1}"
        cause = f"no attempt recorded {steps}: the run was resumed from another's state"
    else:
        return outcome
    return replace(outcome, exit_code=EXIT_FAILED, cause=cause, cause_id="too_few_steps")


def _find_gap(plan: Plan, run: Run) -> tuple[int, int] | None:
    """Return two steps of a resumed run between which no attempt recorded any, without a reason."""
    if len(run.attempts) < 2:
        return None
    resumed = {checkpoint_step(attempt.get("resumed_from")) for attempt in run.attempts}
    recorded = sorted({0, *(int(step["step"]) for step in run.steps())})
    for last, following in pairwise(recorded):
        # what a trainer did after its launcher was killed, up to the next checkpoint, has no record
        is_unseen = following - 1 in resumed and following - 1 == plan.next_checkpoint(last)
        if following - last > plan.most_unlogged + 1 and not is_unseen:
            return last, following
    return None


def add_validation(outcome: Outcome, plan: Plan, run: Run) -> Outcome:
    """Return `outcome` with what the run measured on its validation data, or that its last step was
    not evaluated.
    """
    stop = _read_early_stop(run, outcome.steps)
    loads_best = plan.config.recipe.early_stop is not None and outcome.exit_code == EXIT_DONE
    validation = read_validation(run.folder, loads_best=loads_best, early_stop=stop)
    outcome = replace(outcome, validation=validation)
    is_own = "eval_strategy" in plan.config.flags or not plan.config.trainer.validation_flags
    if outcome.exit_code != EXIT_DONE or plan.config.data.validation is None or is_own:
        return outcome
    if validation is None or validation.step != outcome.steps:
        missing = f"the trainer did not evaluate its last step, {outcome.steps}"
        return replace(outcome, afterwards="; ".join(filter(None, (outcome.afterwards, missing))))
    return outcome


def verify_evidence(
    outcome: Outcome, evidence: Sequence[Evidence], allow: Sequence[str]
) -> Outcome:
    """Return `outcome`, or a stopped one when a requested setting is refuted, or was never proven,
    at the end.
    """
    unmet = unmet_settings(evidence, allow)
    if outcome.exit_code != EXIT_DONE or not unmet:
        return outcome
    ids = ",".join(finding.id for finding in unmet)
    cause = f"the run ended, but {'; '.join(map(str, unmet))}; allow=[{ids}] accepts it"
    return replace(outcome, exit_code=EXIT_STOPPED, cause=cause, cause_id=unmet[0].id)


def _read_early_stop(run: Run, step: int) -> str | None:
    """Return why the trainer stopped at this step; None if it did not report that it does."""
    entries = list(run.events("early_stop"))
    if not entries or entries[-1].data["step"] != step:
        return None
    return describe_early_stop(entries[-1])


# guards of what happens around the training, and not of the steps
_AROUND = ("disk", "stall", "dead_rank")


def required_proofs(plan: Plan) -> dict[str, str]:
    """Return what a finished run must have shown of its weights, by the keys of the evidence
    (worker/evidence).
    """
    if not set(EVIDENCE_PATCHES) & set(plan.patches):
        return {}
    kind = "adapter" if plan.config.recipe.lora.rank is not None else "weights"
    proofs = {
        "first_update": kind,
        "gradients": "above rounding",
        "last_update": "finite",
        "saved_weights": "trained",
    }
    if plan.config.stage.kind == Kind.rlvr:
        proofs |= {
            "rewards": "the verifiers'",
            "samples_per_prompt": str(plan.flags["num_generations"].value),
        }
        proofs |= {
            "reference": REFERENCE[bool(values_of(plan.flags).get("beta"))],
            "sampler_weights": "trained",
        }
    return proofs


def compare_first_loss(
    plan: Plan, step: object, loss: object, tolerance: float = FirstLossGate().tolerance
) -> tuple[float, float] | None:
    """Compare the first loss of a DPO run with -log sigmoid(0) = ln 2: at the first step the policy
    is the reference.

    Returns how far it is from ln 2, and how far it may be: summed log-probs that were precomputed
    in batches of another shape round otherwise; in bf16 an 8b model's first loss was 0.6956 at beta
    0.1. None where it is not the first step or another loss, and where the dropout of an adapter
    that is trained further makes the two differ.
    """
    recipe = plan.config.recipe
    continues = recipe.lora.start != AdapterStart.merged and recipe.lora.dropout > 0
    is_sigmoid = recipe.loss in _SIGMOID_LOSSES and _CHANGES_FIRST_LOSS.isdisjoint(
        plan.config.flags
    )
    if plan.config.stage.kind != Kind.dpo or not is_sigmoid or continues:
        return None
    if step != 1 or not isinstance(loss, (int, float)):
        return None
    is_mean = recipe.loss == "dpo_norm" or (
        recipe.loss is None and plan.config.trainer.family == "open_instruct"
    )
    return abs(loss - math.log(2)), tolerance * (
        1.0 if is_mean else max(1.0, (recipe.beta or 0.0) / 0.1)
    )


def check_first_loss(plan: Plan, run: Run) -> tuple[Evidence, ...]:
    """Return the finding "first_loss" of a DPO run; () where nothing can be judged."""
    first = next(run.steps(), {})
    compared = compare_first_loss(plan, first.get("step"), first.get("loss"))
    if compared is None:
        return ()
    distance, bound = compared
    note = f"{distance:.1g} from ln 2, at most {bound:.2g}: the policy starts as the reference"
    found = Evidence("first_loss", f"{first['loss']:.4f}", "the loss of the first step", note=note)
    return (found.judge(f"{math.log(2):.4f}", distance <= bound),)


def keep_finished_work(
    outcome: Outcome, plan: Plan, run: Run, evidence: Sequence[Evidence]
) -> Outcome:
    """Return a run that ended badly after its model was saved as done, with how it ended beside.

    The worker has reported that the model was saved after the last step, its files are complete,
    and every requested setting is proven. What a guard found in the steps stands.
    """
    saved = [int(event.data["step"]) for event in run.events("saved")]
    steps = saved[-1] if saved else 0
    planned = run.total_steps or plan.config.recipe.max_steps
    is_whole = (
        steps > 0 and planned is not None and (steps >= planned or _read_early_stop(run, steps))
    )
    ended_by_steps = outcome.guard is not None and outcome.cause_id not in _AROUND
    if outcome.exit_code in (EXIT_DONE, EXIT_INTERRUPTED) or not is_whole or ended_by_steps:
        return outcome
    if unmet_settings(evidence, plan.config.allow) or plan.find_output_faults():
        return outcome
    parts = (outcome.cause, outcome.cure and f"cure: {outcome.cure}")
    return Outcome(
        EXIT_DONE,
        outcome.seconds,
        max(steps, outcome.steps),
        outcome.last_loss,
        outcome.ended_processes,
        stacks=outcome.stacks,
        afterwards="; ".join(filter(None, parts)) or f"exit code {outcome.exit_code}",
    )


def digest_base(plan: Plan) -> dict[str, Any]:
    """Return what DONE holds of the base of the adapter that a run trains, at its start; {} for a
    hub's, or without.
    """
    model = plan.inputs.model
    base = (
        model.adapter.local_base
        if model.adapter is not None and model.build is None
        else model.local
    )
    if plan.config.recipe.lora.rank is None or base is None:
        return {}
    digests = DigestCache(plan.cache / "digests.json")
    files = digest_model(base, digests.of)
    digests.save()
    return {"base": str(base), "base_files": files}


def add_digests(outcome: Outcome, plan: Plan, base: Mapping[str, Any]) -> Outcome:
    """Return the outcome of a finished run with the digests of its model, and of the `base` of an
    adapter.
    """
    if outcome.exit_code != EXIT_DONE:
        return outcome
    digests = DigestCache(plan.cache / "digests.json")
    with contextlib.suppress(OSError):
        of_base = base if read_adapter(plan.model_dir) is not None else {}
        outcome = replace(
            outcome, model={"files": digest_model(plan.model_dir, digests.of), **of_base}
        )
    digests.save()
    return outcome


def refuse_changes(run: Path | None, allow: Collection[str] = ()) -> None:
    """Raise UserError (model_changed, base_changed) if a run's model is not the one that it saved;
    None is no run.
    """
    if run is None:
        return
    digests = DigestCache(run.parents[1] / ".cache" / "digests.json")
    problems = [problem for problem in find_changes(run, digests.of) if problem.id not in allow]
    digests.save(create_folder=False)
    if problems:
        raise UserError(problems)
