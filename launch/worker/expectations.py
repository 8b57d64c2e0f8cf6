"""Compares the requested set-up with the trainer's own state, and ends a rank that differs.

accelerate falls back silently: `--cpu --num_processes 2` runs one process, and DeepSpeed on a
machine without a GPU becomes plain DDP or one isolated process per rank. Such a run is stopped
here, before it trains.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from . import hooks
from .channel import EventWriter
from .evidence import NO_STEP, REFUTED, TOO_SHORT, Evidence

EXIT_STOPPED = 3  # it repeats launch.errors.EXIT_STOPPED, which this interpreter may not have

# The keys of accelerate's state that can be requested. They are checked as soon as it is set up.
STATE = (
    "distributed",  # accelerate's DistributedType
    "world_size",
    "zero_stage",  # 0 means no ZeRO
    "device",
)
# The settings that are checked before the first optimizer step (launch/worker/evidence).
EVIDENCE = (
    "liger",  # the required kernels with commas, without those that Liger lacks for the model
    "packing",
    "global_batch",  # samples of one optimizer step over all ranks: "128 samples"
    "global_tokens",  # tokens of such a step, padding included: "1048576 tokens"
    "balanced",
    "loss_averaging",
    "attention",
    "grad_clip",  # the gradient norm to clip at
    "dtype",
    "gradient_checkpointing",
    "chat_template",
    "lora",  # the adapter's rank
    "lora_alpha",
    "lora_dropout",
    "lora_targets",  # the layers that have an adapter
    "lora_start",  # whether the adapter is new
    "lora_dora",  # this and the next four: the kind of the adapter
    "lora_rslora",
    "lora_init",
    "lora_modules",
    "lora_parameters",
    "base_dtype",  # the type of the weights that an adapter leaves frozen
    "first_update",  # the effect of the first optimizer step
    "learning_rate",  # the highest of the schedule; the rate of every step
    "lr_scheduler",
    "warmup_ratio",
    "weight_decay",
    "optimizer",  # its class and states, by the name in recipe.optimizer
    "adam_betas",  # never requested: compared with the trainer's flags
    "adam_epsilon",
    "epochs",
    "max_steps",
    "seed",  # the seed of the order in which rows are dealt
    "max_seq_length",  # tokens of the longest row
    "train_on",  # the answers that are learnt, "last" or "marked", or every token of "text"
    "mixture",  # the share of each data set, in the order of data.mix
    "beta",  # DPO's beta, and KTO's
    "desirable_weight",  # this and the next are KTO's
    "undesirable_weight",
    "loss",  # the trainer's own name of the loss
    "temperature",  # this and the next three are settings of RLVR
    "kl_beta",
    "clip_range",
    "response_length",
    "context_parallel",  # ranks that compute a row together
    "resumed_step",  # optimizer steps done before the first step of this process
    "reward_variance",  # a property of RLVR's start model (launch/worker/trl_rlvr.py)
    "complete_answers",
    "rewards",  # this and the rest of RLVR's are properties of its steps
    "samples_per_prompt",
    "reference",
    "sampler_weights",
)


class UnmetExpectation(SystemExit):
    """Ends the rank with exit code 3, and its message on stderr.

    A trainer's `except Exception` does not catch it.
    """

    def __init__(self, message: str) -> None:
        super().__init__(EXIT_STOPPED)
        print(f"launch: {message}", file=sys.stderr, flush=True)


def report_evidence(
    evidence: Sequence[Evidence], allowed: Collection[str], events: EventWriter
) -> None:
    """Send the evidence as events, and end the rank if a requested setting is not proven.

    A setting whose id is in `allowed` only warns. Raises UnmetExpectation.
    """
    stopping = []
    for item in evidence:
        events.emit("evidence", **item.fields())
    for item in evidence:
        finding = item.finding(allowed)
        if finding is None:
            continue
        if finding.stops:
            stopping.append(finding)
        else:
            events.warn(str(finding))
    if stopping:
        ids = [finding.id for finding in stopping]
        sentences = [f"{finding.message}; {finding.cure}" for finding in stopping]
        message = f"{'; '.join(sentences)}; allow=[{','.join(ids)}] runs it anyway"
        events.error(message, type="Unmet", ids=ids)
        raise UnmetExpectation(message)


def check_state(built: Any, requested: Mapping[str, str]) -> list[Evidence]:
    """Compare what is requested with the state of the trainer's `Accelerator`."""
    plugin = getattr(built.state, "deepspeed_plugin", None)
    state = {
        "distributed": built.distributed_type.name,
        "world_size": built.num_processes,
        "zero_stage": plugin.zero_stage if plugin is not None else 0,
        "device": built.device.type,
    }
    reasons = {"world_size": "the processes did not find each other, so each would train alone"}
    if state["device"] == "cpu":
        if requested.get("distributed") == "DEEPSPEED":
            patch = (
                "without a GPU accelerate needs the patch deepspeed_on_cpu to connect "
                "DeepSpeed's ranks"
            )
            reasons = dict.fromkeys(STATE, patch)
        reasons["device"] = "torch sees no GPU on this machine"
    evidence = []
    for key in STATE:
        if key not in requested:
            continue
        item = Evidence(key, state[key], "Accelerator.state").compare(requested[key])
        if item.verdict == REFUTED:
            item = replace(item, note=reasons.get(key))
        evidence.append(item)
    return evidence


def check_when_built(
    requested: Mapping[str, str], allowed: Collection[str], events: EventWriter
) -> None:
    """Compare as soon as the trainer has built its Accelerator: send "evidence" events, or end the
    rank.

    A trainer that builds no Accelerator, or an interpreter without accelerate, is not checked.
    """
    if requested.keys().isdisjoint(STATE) or importlib.util.find_spec("accelerate") is None:
        return

    def compare(built: Any) -> None:
        evidence = check_state(built, requested)
        backend = process_group_backend()
        if backend is not None:
            evidence.append(Evidence("backend", backend, "torch's process group"))
        report_evidence(evidence, allowed, events)

    hooks.when_built(compare)


def process_group_backend() -> str | None:
    """Return the backend of the process group, `cuda:nccl` or `cpu:gloo,...`.

    A single process has none.
    """
    import torch

    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    return str(torch.distributed.get_backend_config())


class PendingEvidence:
    """The settings that a run has yet to show; each is reported once."""

    def __init__(self, events: EventWriter, allowed: Collection[str]) -> None:
        self._events = events
        self._allowed = allowed
        self._requested: dict[str, str] = {}

    def expect(self, requested: Mapping[str, str]) -> None:
        """Wait for these settings, which are requested."""
        self._requested.update(requested)

    def __contains__(self, what: object) -> bool:
        return what in self._requested

    def show(self, what: str, value: str, how: str) -> None:
        """Compare a setting with what is requested. Raises UnmetExpectation if it differs."""
        requested = self._requested.pop(what)
        self.report([Evidence(what, value, how).compare(requested)])

    def leave_unproven(self, *, is_too_short: bool) -> None:
        """Send the settings that no step could show as unproven; the launcher judges them.

        No step was left to this attempt, or none after an update. `is_too_short`: the whole run has
        no such step.
        """
        how = TOO_SHORT if is_too_short else NO_STEP
        for what, requested in self._requested.items():
            evidence = Evidence(what, None, how).judge(requested, None)
            self._events.emit("evidence", **evidence.fields())

    def report(self, evidence: Sequence[Evidence]) -> None:
        """Report evidence that is judged. Raises UnmetExpectation."""
        report_evidence(evidence, self._allowed, self._events)
