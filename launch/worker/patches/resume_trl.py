"""Stops transformers' Trainer from training one more step when it resumes from a checkpoint of the last step.

It checks for the end only after a step (trainer.py:1963). The last step may be the one at which the patch early_stop
ended the training. `launch` adds this patch only to the command of a resumed TRL
run; for an earlier checkpoint nothing changes.
"""

from __future__ import annotations

from typing import Any

from ..replacing import replaces
from .patch import PatchContext, PatchInfo, on_request


def _stop_at_the_end(context: PatchContext) -> None:
    from transformers import Trainer

    @replaces(Trainer, "_run_epoch")
    def run_unless_done(run: Any, self: Any, *arguments: Any, **options: Any) -> Any:
        if self.state.global_step < self.state.max_steps and not self.control.should_training_stop:
            return run(self, *arguments, **options)
        print(f"launch: all steps are done ({self.state.global_step}); the model is saved", flush=True)
        self.control.should_training_stop = True
        return None


RESUME = PatchInfo(
    id="trl_exact_resume",
    reason="a run that resumes from the checkpoint of its last step would train one more step",
    wanted=on_request,
    condition="the run is resumed",
    lines={
        "transformers/trainer.py": {
            1660: "self._run_epoch(",
            1673: "if self.control.should_training_stop:",
            1963: "if self.control.should_epoch_stop or self.control.should_training_stop:",
        }
    },
    apply=_stop_at_the_end,
)
