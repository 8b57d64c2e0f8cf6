"""Callbacks of transformers' Trainer, the base class of TRL's trainers: what is reported, and when
training ends.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .channel import EventWriter
from .cuda import peak_memory
from .evidence import trainer_objects

# TRL's name of a metric -> the name in a step event
_EVENT_NAMES = {
    "learning_rate": "lr",
    # The tokens of all ranks without padding, since this process started.
    "num_tokens": "total_tokens",
    "rewards/accuracies": "rewards/accuracy",
    "rewards/margins": "rewards/margin",
}


class PaddedTokens:
    """Counts the tokens that the model gets in training on this rank, padding included."""

    def __init__(self) -> None:
        self._counted = 0

    def follow(self, model: Any) -> None:
        """Count every training forward pass of `model`."""

        import torch

        def count(module: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
            ids = named.get("input_ids")
            # A reference pass does not train.
            if module.training and torch.is_grad_enabled() and ids is not None:
                self._counted += ids.numel()

        trainer_objects.unwrap(model).register_forward_pre_hook(count, with_kwargs=True)

    def take(self, device: Any) -> int:
        """Return the tokens of all ranks since the last call. Collective: every rank must call it
        at the same step.
        """
        import torch

        counted = self._counted
        self._counted = 0
        if not torch.distributed.is_initialized():
            return counted
        total = torch.tensor(counted, device=device)
        torch.distributed.all_reduce(total)
        return int(total)


# The metrics of an evaluation's speed, which are not results.
_RATES = ("eval_samples_per_second", "eval_steps_per_second", "eval_num_tokens")


def step_fields(step: int, logs: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Build the fields of a "step" event from the Trainer's logs of `step`."""
    numbers = {
        _EVENT_NAMES.get(name, name): value
        for name, value in logs.items()
        if isinstance(value, (int, float))
    }
    fields = numbers | {"step": step, "seconds": seconds}
    if "generation_seconds" in fields:  # only RLVR generates; the rest of its step is training
        training = fields["step_time"] - fields["generation_seconds"] - fields["verifier_seconds"]
        fields["training_seconds"] = max(0.0, training)
    if "kl" in fields and "reward" not in fields:  # KTO's, of a whole answer; RLVR's is of a token
        fields["kl_answer"] = fields.pop("kl")
    if "total_tokens" in fields:
        fields["total_tokens"] = int(fields["total_tokens"])
    return fields


def evaluation_fields(logs: Mapping[str, Any]) -> dict[str, float]:
    """Return what the Trainer measured on its validation data, `eval_loss` first."""
    numbers = {
        name: float(value) for name, value in logs.items() if isinstance(value, (int, float))
    }
    measured = []
    for name in numbers:
        metric, _, _ = name.partition("/")
        if metric.startswith("eval_") and metric not in _RATES:
            measured.append(name)
    return {"eval_loss": numbers["eval_loss"]} | {name: numbers[name] for name in measured}


def name_by_set(logs: Mapping[str, Any], curve: str) -> dict[str, Any]:
    """Return what the Trainer measured on one of several validation sets: `eval_loss/CURVE`.

    The Trainer puts the set's name into its own metrics (`eval_CURVE_loss`), and TRL adds others
    without it.
    """
    prefix = f"eval_{curve}_"
    named = {}
    for name, value in logs.items():
        if name.startswith("eval_"):
            metric = name.removeprefix(prefix) if name.startswith(prefix) else name[len("eval_") :]
            named[f"eval_{metric}/{curve}"] = value
    return named


class StepEvents:
    """Sends what each step logs, and the phases around it; `step_events` makes it a callback.

    Events are written on the first rank only. A step that is evaluated is sent after its
    evaluation, with what that measured: a step is sent once.
    """

    def __init__(self, events: EventWriter, curves: Sequence[str] = ()) -> None:
        self._events = events
        self._curves = curves  # the names of several validation sets
        # The metrics of the sets evaluated so far, in this evaluation.
        self._by_set: dict[str, Any] = {}
        self._padded_tokens = PaddedTokens()
        # The time of the last logged step; the time of an evaluation belongs to no step.
        self._logged_at = time.perf_counter()
        # The fields of the step that is being evaluated.
        self._evaluated_step: dict[str, Any] | None = None

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **_: Any
    ) -> None:
        self._padded_tokens.follow(model)
        self._logged_at = time.perf_counter()
        if state.is_world_process_zero:
            self._events.emit("total_steps", steps=state.max_steps)
        self._events.begin("training")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if control.should_evaluate:
            control.should_log = True

    def on_log(
        self,
        args: Any,
        state: Any,
        control: Any,
        logs: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        logs = logs or {}
        if "loss" in logs:
            self._take_step(args, state, control, logs)
        elif "eval_loss" in logs and state.is_world_process_zero:
            measured = evaluation_fields({**logs, **self._by_set})
            self._by_set = {}
            self._send_evaluation(state.global_step, measured)
        for curve in self._curves:
            if f"eval_{curve}_loss" in logs:
                self._by_set |= name_by_set(logs, curve)
        # The Trainer's summary at the end has neither a loss nor an evaluation.

    def _take_step(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any]) -> None:
        """Send a step, or keep its fields until it is evaluated."""
        tokens_padded = self._padded_tokens.take(args.device)  # every rank must call this
        if not state.is_world_process_zero:
            return
        previous = self._logged_at
        self._logged_at = time.perf_counter()
        seconds = self._logged_at - previous - logs.get("sample_seconds", 0.0)
        fields = step_fields(state.global_step, logs, seconds)
        if "total_tokens" in fields and tokens_padded > 0:
            fields["tokens_padded"] = tokens_padded
        fields |= peak_memory()
        if control.should_evaluate:
            self._evaluated_step = fields
            self._events.begin("evaluate")
        else:
            self._events.emit("step", **fields)

    def _send_evaluation(self, step: int, measured: dict[str, float]) -> None:
        if self._evaluated_step is not None:
            self._events.begin("training")
            self._events.emit("step", **self._evaluated_step, **measured)
            self._evaluated_step = None
            self._logged_at = time.perf_counter()
        self._events.emit("evaluation", step=step, **measured)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._events.begin("save")


def step_events(events: EventWriter, curves: Sequence[str] = ()) -> Any:
    """Return the callback that sends what each step logs, with all its metrics, and the phases
    around it. `curves` are the names of several validation sets.
    """
    from transformers import TrainerCallback

    class StepEventsCallback(StepEvents, TrainerCallback):  # type: ignore[misc]
        pass

    return StepEventsCallback(events, curves)


def find_best(log: Iterable[Mapping[str, Any]]) -> tuple[int, float, int] | None:
    """Return the step and the loss of the best evaluation in a Trainer's log, and how many followed
    it; None without one. A loss that is not finite is never the best.
    """
    best: tuple[int, float, int] | None = None
    for entry in log:
        if "eval_loss" not in entry:
            continue
        loss = float(entry["eval_loss"])
        if math.isfinite(loss) and (best is None or loss < best[1]):
            best = (entry["step"], loss, 0)
        elif best is not None:
            step, lowest, followed = best
            best = (step, lowest, followed + 1)
    return best


def early_stop(events: EventWriter, patience: int) -> Any:
    """Return the callback that ends the training after `patience` evaluations without a lower loss.

    EarlyStoppingCallback counts in the process: a resumed run would begin to count again (its state
    is only restored with restore_callback_states_from_checkpoint). This one counts in the Trainer's
    log, which every checkpoint has.
    """
    from transformers import TrainerCallback

    class EarlyStop(TrainerCallback):  # type: ignore[misc]
        """Every rank decides the same: the logged losses are gathered from all ranks."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self._decide(state, control)  # a resumed run may have to end at once

        def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self._decide(state, control)

        def _decide(self, state: Any, control: Any) -> None:
            best = find_best(state.log_history)
            if best is None or best[2] < patience or state.global_step >= state.max_steps:
                return
            control.should_training_stop = True
            if state.is_world_process_zero:
                step, loss, waited = best
                events.emit(
                    "early_stop",
                    step=state.global_step,
                    best_step=step,
                    best_loss=loss,
                    evaluations=waited,
                )

    return EarlyStop()
