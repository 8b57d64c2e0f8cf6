"""Decide whether a run is done: all steps, a complete model, and every requested setting proven.

A failure after the model was saved does not make a finished training fail. DONE has the digests of
the model's files, so that later changes are noticed.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from launch.config.kinds import Kind
from launch.config.recipe_keys import AdapterStart
from launch.config.schema import Family
from launch.config.trials import FirstLossGate
from launch.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_STOPPED, UserError
from launch.execution.display_text import describe_early_stop
from launch.execution.record.attempts import latest_attempt
from launch.execution.record.checkpoints import checkpoint_step
from launch.execution.record.evidence import unmet_settings
from launch.execution.record.outcome import Outcome, read_validation
from launch.execution.record.reward_trend import find_reward_trend
from launch.execution.record.run import Run
from launch.execution.record.steps import logged_number
from launch.planning.adapter import read_adapter
from launch.planning.digest_cache import DigestCache, open_digests
from launch.planning.flags import values_of
from launch.planning.model_folder import find_other_tensor
from launch.planning.plan import Plan
from launch.planning.read_files import CHANGED, LoadedFiles, describe_changes
from launch.planning.saved_model import digest_model, find_changes
from launch.planning.weight_files import BrokenFileError
from launch.worker.evidence import Evidence
from launch.worker.finding import Finding
from launch.worker.patches import EVIDENCE_PATCHES
from launch.worker.trl_rlvr import required_sampling
from launch.worker.wording import count_of

# The values of recipe.loss for which the loss is -log sigmoid(beta x difference).
_SIGMOID_LOSSES = (None, "dpo", "dpo_norm", "kto", "apo_zero_unpaired")
# Flags that choose another loss, weigh it or add to it (dpo_utils.py:101 and :107,
# trl/trainer/dpo_trainer.py:804 and :1518). Label smoothing, TRL's divergences and ld_alpha are not
# among them: with them the loss is ln 2 too while the policy equals the reference.
_CHANGES_FIRST_LOSS = frozenset(
    {"loss_type", "loss_weights", "use_weighting", "load_balancing_loss"}
)
_MOST_FAULTS = 5  # faults of a model that an outcome lists


def verify_completion(outcome: Outcome, plan: Plan, run: Run) -> Outcome:
    """Return `outcome`, or a failed one when the trainer succeeded with fewer steps or without a
    complete model.

    The number of steps is the one that the trainer reported in `run`, else that of the recipe.
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
        detail = tuple(faults[1:_MOST_FAULTS])
        return replace(outcome, exit_code=EXIT_FAILED, cause=cause, detail=detail)
    cause_of_steps = _explain_missing_steps(outcome.steps, planned, plan, run)
    if cause_of_steps is None:
        return outcome
    return replace(outcome, exit_code=EXIT_FAILED, cause=cause_of_steps, cause_id="too_few_steps")


def _explain_missing_steps(steps: int, planned: int | None, plan: Plan, run: Run) -> str | None:
    """Return why a run whose last step is `steps` is not complete; None if it is.

    Args:
        planned: number of steps; None if it is unknown.
    """
    if steps == 0 or not _has_reached_end(steps, planned, plan, run):
        done = f"{steps} of {count_of(planned, 'step')}" if planned else count_of(steps, "step")
        return f"the trainer exited without an error after {done}"
    gap = _find_gap(plan, run)
    if gap is None:
        return None
    last, following = gap
    missing = f"the steps {last + 1} to {following - 1}"
    return f"no attempt recorded {missing}: the run was resumed from another's state"


def _has_reached_end(steps: int, planned: int | None, plan: Plan, run: Run) -> bool:
    """Return whether the last logged step may be the last planned one, or training stopped early.

    The trainer may not have logged its last steps.
    """
    if planned is None or _read_early_stop(run, steps):
        return True
    return steps + plan.most_unlogged >= planned


def _find_gap(plan: Plan, run: Run) -> tuple[int, int] | None:
    """Return two steps of a resumed run between which no attempt recorded a step, for no known
    reason; None if there are none.
    """
    if len(run.attempts) < 2:
        return None
    resumed_steps = {checkpoint_step(attempt.get("resumed_from")) for attempt in run.attempts}
    recorded_steps = {int(step["step"]) for step in run.steps()}
    for last, following in pairwise(sorted({0, *recorded_steps})):
        # A trainer may train on to its next checkpoints after its launcher was killed. These steps
        # are not recorded.
        before = following - 1
        is_explained = before in resumed_steps and before == plan.next_checkpoint(before - 1)
        if following - last > plan.most_unlogged + 1 and not is_explained:
            return last, following
    return None


def add_reward(outcome: Outcome, run: Run) -> Outcome:
    """Return `outcome` with the last reward and their trend, which only an RLVR run logs."""
    steps = [step for step in run.steps() if "reward" in step]
    last = logged_number(steps[-1], "reward") if steps else None
    return replace(outcome, reward=find_reward_trend(steps), last_reward=last)


def add_validation(outcome: Outcome, plan: Plan, run: Run) -> Outcome:
    """Return `outcome` with the losses on the run's validation data, and a note if its last step
    was not evaluated.
    """
    stop = _read_early_stop(run, outcome.steps)
    loads_best = plan.config.recipe.early_stop is not None and outcome.exit_code == EXIT_DONE
    validation = read_validation(run.folder, loads_best=loads_best, early_stop=stop)
    outcome = replace(outcome, validation=validation)
    if outcome.exit_code != EXIT_DONE or plan.config.data.validation is None:
        return outcome
    if "eval_strategy" in plan.config.flags or not plan.config.trainer.validation_flags:
        return outcome  # the user, or the trainer, decides when it evaluates
    if validation is not None and validation.step == outcome.steps:
        return outcome
    note = f"the trainer did not evaluate its last step, {outcome.steps}"
    if outcome.afterwards:
        note = f"{outcome.afterwards}; {note}"
    return replace(outcome, afterwards=note)


def compare_unchanged(
    evidence: Sequence[Evidence], plan: Plan, run: Run, checkpoint: Path
) -> tuple[Evidence, ...]:
    """Return the evidence with that of the saved weights refuted if an attempt that had no step
    left saved other weights than those of the checkpoint that it resumed from.

    Nothing is compared if the run ends with its best checkpoint, or if the two have no tensor of
    the same name and type.
    """
    latest = latest_attempt(run.folder)
    has_trained = any(event.attempt == latest for event in run.events("saved"))
    if has_trained or plan.config.recipe.early_stop is not None:
        return tuple(evidence)
    try:
        other = find_other_tensor(checkpoint, plan.model_dir)
    except (BrokenFileError, OSError):
        return tuple(evidence)
    if other is None:
        return tuple(evidence)
    note = f"no step was left, and {other} is not that of {checkpoint.name}"
    items = []
    for item in evidence:
        if item.what == "saved_weights":
            refuted = replace(item, value="not those in the checkpoint", note=note)
            items.append(refuted.judge(item.requested, False))
        else:
            items.append(item)
    return tuple(items)


def verify_evidence(
    outcome: Outcome, evidence: Sequence[Evidence], allow: Sequence[str]
) -> Outcome:
    """Return `outcome`, or a stopped one if a requested setting is refuted or unproven at the end."""
    unmet = unmet_settings(evidence, allow)
    if outcome.exit_code != EXIT_DONE or not unmet:
        return outcome
    ids = ",".join(finding.id for finding in unmet)
    sentences = "; ".join(str(finding) for finding in unmet)
    cause = f"{sentences}; allow=[{ids}] accepts it"
    return replace(outcome, exit_code=EXIT_STOPPED, cause=cause, cause_id=unmet[0].id)


def verify_inputs(outcome: Outcome, inputs: LoadedFiles, allow: Collection[str]) -> Outcome:
    """Return `outcome`, or a stopped one if a file that the run has loaded is not the planned one.

    A run that trains compares them itself when it has loaded them.
    """
    if outcome.exit_code != EXIT_DONE or CHANGED in allow:
        return outcome
    inputs.compare()
    if not inputs.changes:
        return outcome
    cause = describe_changes(inputs.changes)
    return replace(outcome, exit_code=EXIT_STOPPED, cause=cause, cause_id=CHANGED)


def _read_early_stop(run: Run, step: int) -> str | None:
    """Return why the trainer stopped at this step; None if it did not report that it does."""
    entries = list(run.events("early_stop"))
    if not entries or entries[-1].data["step"] != step:
        return None
    return describe_early_stop(entries[-1])


# The guards of the processes and the disk, whose findings do not concern the trained weights.
_PROCESS_GUARDS = ("disk", "stall", "dead_rank")


def required_proofs(plan: Plan) -> dict[str, str]:
    """Return the requirements on a finished run's weights: {evidence (launch/worker/evidence):
    requested value}.
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
        has_reference = bool(values_of(plan.flags).get("beta"))
        samples = plan.flags["num_generations"].value
        proofs |= required_sampling(samples, has_reference=has_reference)
    return proofs


@dataclass(frozen=True)
class FirstLoss:
    """The first loss of a run whose policy starts as its reference."""

    due: float
    name: str  # of the due number
    distance: float
    tolerance: float  # the largest distance that rounding explains


# The first loss of each kind: -log sigmoid(0) of a pair, and 1 - sigmoid(0) of a labelled answer.
_FIRST_LOSSES = {Kind.dpo: (math.log(2), "ln 2"), Kind.kto: (0.5, "1/2")}


def compare_first_loss(
    plan: Plan, step: object, loss: object, tolerance: float = FirstLossGate().tolerance
) -> FirstLoss | None:
    """Compare the first loss of a DPO or KTO run with that of a policy that is the reference, as it
    is at the first step.

    Log-probs of the reference that were computed in batches of another shape round differently: in
    bf16 the first loss of an 8b model was 0.6956 at beta 0.1. Summed log-probs round in proportion
    to beta, their means do not.

    Returns None if the logged step is not the first one, for another loss or other weights of the
    labels, and for an adapter that is trained further with dropout, because the policy then differs
    from the reference.
    """
    recipe = plan.config.recipe
    if plan.config.stage.kind not in _FIRST_LOSSES or not _is_sigmoid_loss(plan):
        return None
    if recipe.lora.start != AdapterStart.merged and recipe.lora.dropout > 0:
        return None
    if step != 1 or not isinstance(loss, (int, float)):
        return None
    is_mean = recipe.loss == "dpo_norm"
    if recipe.loss is None and plan.config.trainer.family == Family.open_instruct:
        is_mean = True  # dpo_norm is the trainer's default
    if not is_mean:
        tolerance *= max(1.0, (recipe.beta or 0.0) / 0.1)
    due, name = _FIRST_LOSSES[plan.config.stage.kind]
    return FirstLoss(due, name, abs(loss - due), tolerance)


def _is_sigmoid_loss(plan: Plan) -> bool:
    """Return whether the loss of a DPO run is -log sigmoid(beta x difference), and that of a KTO run
    the unweighted 1 - sigmoid(beta x difference).
    """
    if plan.config.recipe.loss not in _SIGMOID_LOSSES:
        return False
    flags = values_of(plan.flags)
    if any(flags.get(f"{label}_weight", 1.0) != 1.0 for label in ("desirable", "undesirable")):
        return False
    return _CHANGES_FIRST_LOSS.isdisjoint(plan.config.flags)


def check_first_loss(plan: Plan, run: Run) -> tuple[Evidence, ...]:
    """Return the evidence "first_loss" of a DPO or KTO run; () where nothing can be judged."""
    first_step = next(run.steps(), {})
    loss = first_step.get("loss")
    compared = compare_first_loss(plan, first_step.get("step"), loss)
    if compared is None:
        return ()
    distance = f"{compared.distance:.1g} from {compared.name}, at most {compared.tolerance:.2g}"
    note = f"{distance}: the policy starts as the reference"
    item = Evidence("first_loss", f"{loss:.4f}", "the loss of the first step", note=note)
    return (item.judge(f"{compared.due:.4f}", compared.distance <= compared.tolerance),)


def keep_finished_work(
    outcome: Outcome, plan: Plan, run: Run, evidence: Sequence[Evidence]
) -> Outcome:
    """Return a run that failed after its model was saved as done, with the failure in `afterwards`.

    The worker has reported that the model was saved after the last step, its files are complete,
    and every requested setting is proven. A run that a guard stopped for its steps stays stopped.
    """
    if outcome.exit_code in (EXIT_DONE, EXIT_INTERRUPTED):
        return outcome
    if outcome.guard is not None and outcome.cause_id not in _PROCESS_GUARDS:
        return outcome
    latest = max(1, latest_attempt(run.folder))
    saved_steps = [
        int(event.data["step"]) for event in run.events("saved") if event.attempt == latest
    ]
    steps = saved_steps[-1] if saved_steps else 0
    planned = run.total_steps or plan.config.recipe.max_steps
    if steps == 0 or planned is None:
        return outcome
    if steps < planned and not _read_early_stop(run, steps):
        return outcome
    if unmet_settings(evidence, plan.config.allow) or plan.find_output_faults():
        return outcome
    afterwards = outcome.cause or ""
    if outcome.cure:
        afterwards += f"; cure: {outcome.cure}"
    return Outcome(
        EXIT_DONE,
        outcome.seconds,
        max(steps, outcome.steps),
        outcome.last_loss,
        outcome.ended_processes,
        stacks=outcome.stacks,
        afterwards=afterwards.removeprefix("; ") or f"exit code {outcome.exit_code}",
    )


def digest_base(plan: Plan) -> dict[str, Any]:
    """Return the base of the adapter that a run trains with its digests, as DONE records them.

    It is called at the start of the run. It returns {} if the base is on the hub, and if no adapter
    is trained.
    """
    model = plan.inputs.model
    base = model.local
    if model.adapter is not None and model.build is None:
        base = model.adapter.local_base
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
        model: dict[str, Any] = {"files": digest_model(plan.model_dir, digests.of)}
        if read_adapter(plan.model_dir) is not None:
            model |= base
        outcome = replace(outcome, model=model)
    digests.save()
    return outcome


def refuse_changes(run: Path | None, allow: Collection[str] = ()) -> None:
    """Raise UserError (model_changed, base_changed) if the model in a run's folder is not the one
    that the run saved. A model that is not of a run is given as None.
    """
    if run is None:
        return
    problems = [problem for problem in find_model_changes(run) if problem.id not in allow]
    if problems:
        raise UserError(problems)


def find_model_changes(run: Path) -> list[Finding]:
    """Return how the model in a run's folder differs from the one that the run saved.

    The ids are model_changed and base_changed. Files that are not changed are read once.
    """
    digests = open_digests(run)
    changes = find_changes(run, digests.of)
    digests.save(create_folder=False)
    return changes
