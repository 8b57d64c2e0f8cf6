"""Stops transformers' Trainer when the loss on the validation data has stopped falling.

EarlyStoppingCallback counts in the process: a resumed run would begin to count again (its state is only restored with
restore_callback_states_from_checkpoint). This one counts in the Trainer's log, which every checkpoint has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from ..channel import EventWriter
from .patch import PatchContext, PatchError, PatchInfo

_ID = "early_stop"


def find_best(log: Iterable[Mapping[str, Any]]) -> tuple[int, float, int] | None:
    """Return the step and the loss of the best evaluation in a Trainer's log, and how many followed it; None without
    one. A loss that is not finite is never the best."""
    best: tuple[int, float, int] | None = None
    for entry in log:
        if "eval_loss" not in entry:
            continue
        loss = float(entry["eval_loss"])
        if math.isfinite(loss) and (best is None or loss < best[1]):
            best = entry["step"], loss, 0
        elif best is not None:
            best = best[0], best[1], best[2] + 1
    return best


def _callback_class(events: EventWriter, patience: int) -> type:
    from transformers import TrainerCallback

    class EarlyStop(TrainerCallback):  # type: ignore[misc]
        """Every rank decides the same: the logged losses are gathered from all ranks."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self._decide(state, control)  # a run that resumes from where it stopped

        def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self._decide(state, control)

        def _decide(self, state: Any, control: Any) -> None:
            best = find_best(state.log_history)
            if best is None or best[2] < patience or state.global_step >= state.max_steps:
                return
            control.should_training_stop = True
            if state.is_world_process_zero:
                step, loss, waited = best
                events.emit(_ID, step=state.global_step, best_step=step, best_loss=loss, evaluations=waited)

    return EarlyStop


def _add_callback(context: PatchContext) -> None:
    from transformers import trainer

    value = str(context.value)
    if not value.isdigit() or int(value) < 1:
        raise PatchError(_ID, f"'{value}' is not a number of evaluations")
    trainer.DEFAULT_CALLBACKS.append(_callback_class(context.events, int(value)))


PATCH = PatchInfo(
    id=_ID,
    reason="ends the training after so many evaluations without a lower loss",
    wanted=lambda facts: facts.early_stop,
    condition="recipe.early_stop is set; the value is the number of evaluations",
    lines={
        "transformers/trainer.py": {
            186: "DEFAULT_CALLBACKS = [DefaultFlowCallback]",
            2016: "if self.args.load_best_model_at_end and self.state.best_model_checkpoint is not None:",
        }
    },
    apply=_add_callback,
    takes_value=True,
)
