"""Patches with which OLMo-core's trainers are stopped, and resume at the step of a checkpoint.

What upstream does, and what the patches change:

- Both trainers load the newest checkpoint in their output folder. Here any other choice than
  `launch`'s ends the run.
- dpo.py's data loader begins the epoch of a checkpoint again: OLMo-core's trainer shuffles at the
  beginning of each epoch, and open-instruct's loader then forgets how many batches are done
  (data_loader.py:259). The rows of these batches would be trained on twice. Here it keeps the
  number, as OLMo-core's own loader does.
- dpo.py writes into a folder of its own below --output_dir (utils.py:1373). Here it writes into
  --output_dir, where the run's model and checkpoints are looked for.
- With `save_async` each rank records how long a checkpoint took when its own thread is done, which
  may be at another step than on the other ranks. OLMo-core reduces the ranks' metrics step by step,
  and assumes that all ranks have the same metrics (olmo_core/train/trainer.py:1630): the ranks wait
  for each other for ever. Here this metric is left out.
- OLMo-core notes SIGTERM, and checks every 25 steps whether a rank has received it
  (olmo_core/train/trainer.py:260). It then writes a checkpoint and ends as if it were done. Here a
  rank ends at once, as those of the other trainers do; the run resumes from its last checkpoint.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from ..hooks import replaces
from .patch import PatchContext, PatchError, PatchInfo

_RESUME = "olmo_core_resume"
_DURATION = "checkpoint/save_async_duration_s"


def _resume(context: PatchContext) -> None:
    from olmo_core.train import Trainer

    expected = str(context.value)

    @replaces(Trainer, "load_checkpoint")
    def load_expected(load: Any, self: Any, dir: Any, **options: Any) -> None:
        if str(dir) != str(self.save_folder):  # these are the weights that a run starts from
            load(self, dir, **options)
            return
        chosen = Path(self.checkpointer.latest_checkpoint(dir))
        if chosen.name != expected:
            raise PatchError(
                _RESUME, f"the trainer would resume from {chosen.name}, not from {expected}"
            )
        load(self, dir, **options)
        context.events.emit("evidence", what="resumed_from", value=expected)
        print(f"launch: resuming from {chosen}", flush=True)


RESUME = PatchInfo(
    id=_RESUME,
    reason="ends the run if OLMo-core's trainer loads another checkpoint than launch has chosen, "
    "since it takes the newest one in its folder",
    lines={
        "open_instruct/olmo_core_finetune.py": {
            342: "resumed = trainer.maybe_load_checkpoint(args.checkpoint.output_dir, "
            "load_trainer_state=True, load_optim_state=True)"
        },
        "olmo_core/train/trainer.py": {
            (705, 707): "self.maybe_load_checkpoint( self.save_folder, load_trainer_state=True, "
            "load_optim_state=True )",
            1096: "dir_to_scatter = self.checkpointer.latest_checkpoint(dir)",
        },
    },
    apply=_resume,
    takes_value=True,  # the checkpoint's folder
)


def _keep_position(_: PatchContext) -> None:
    from open_instruct import data_loader

    @replaces(data_loader.HFDataLoader, "reshuffle")
    def shuffle_and_keep(shuffle: Any, self: Any, epoch: int | None = None, **options: Any) -> None:
        is_same_epoch = epoch is not None and epoch == self._epoch
        done = self.batches_processed if is_same_epoch else 0
        shuffle(self, epoch, **options)
        self.batches_processed = done


POSITION = PatchInfo(
    id="dpo_resumed_position",
    reason="keeps the number of batches done when dpo.py's data loader reshuffles: a resumed run "
    "would begin the epoch again and train on rows twice",
    lines={
        "open_instruct/data_loader.py": {
            258: "self._epoch + 1 if epoch is None else epoch",
            259: "self.batches_processed = 0",
            (237, 238): 'self._epoch = state_dict["epoch"] - 1 self.reshuffle()',
        },
        "olmo_core/train/trainer.py": {1681: "self.data_loader.reshuffle(self.epoch)"},
    },
    apply=_keep_position,
)


def _write_into_output(_: PatchContext) -> None:
    from open_instruct import utils

    @replaces(utils, "setup_experiment_paths")
    def set_up_and_keep(set_up: Any, args: Any, *arguments: Any, **options: Any) -> Any:
        output = args.output_dir
        result = set_up(args, *arguments, **options)
        args.output_dir = output
        return result


OUTPUT = PatchInfo(
    id="dpo_output_folder",
    reason="has dpo.py write into --output_dir, where the run's checkpoints are looked for, not into "
    "a folder below it",
    lines={
        "open_instruct/utils.py": {
            1373: "args.output_dir = os.path.join(args.output_dir, args.exp_name)"
        },
        "open_instruct/dpo.py": {
            180: "beaker_config = utils.setup_experiment_paths(args, is_main_process)"
        },
    },
    apply=_write_into_output,
)


def _leave_duration_out(_: PatchContext) -> None:
    from olmo_core.train import Trainer

    @replaces(Trainer, "record_metric")
    def record_unless_late(
        record: Any, self: Any, name: str, *arguments: Any, **options: Any
    ) -> None:
        if name != _DURATION:
            record(self, name, *arguments, **options)


ASYNC_SAVES = PatchInfo(
    id="olmo_core_async_saves",
    reason="drops OLMo-core's metric of a checkpoint's duration: with save_async the ranks record it "
    "at different steps, and then wait for each other for ever",
    lines={
        "olmo_core/train/trainer.py": {
            1232: '"checkpoint/save_async_duration_s"',
            1630: "metrics_consistent=self._metrics_consistent",
        },
        "olmo_core/train/utils.py": {
            253: "if not metrics_consistent:",
            256: "sorted(step_metrics.keys())",
        },
    },
    apply=_leave_duration_out,
)


def _end_at_once(_: PatchContext) -> None:
    from olmo_core.train import Trainer

    def end(_: Any, number: int, __: Any) -> None:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    Trainer._handle_os_signal = end


SIGNALS = PatchInfo(
    id="olmo_core_signals",
    reason="ends a rank at once on SIGTERM; OLMo-core trains for up to 25 more steps, and then ends "
    "as if it were done",
    lines={
        "olmo_core/train/trainer.py": {
            260: "cancel_check_interval: int = 25",
            740: "og_sigterm_handler = signal.signal(signal.SIGTERM, self._handle_os_signal)",
            1438: "def _handle_os_signal(self, signalnum, stack_frame):",
        }
    },
    apply=_end_at_once,
)
