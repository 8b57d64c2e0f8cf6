"""Patch that writes the model of olmo_core_finetune.py as one of transformers.

The script ends with a checkpoint of OLMo-core's alone, and upstream converts that by hand
(scripts/train/convert_olmo_core_to_hf.py). dpo.py writes such a folder itself, with upstream's own
conversion: the same is called here, at the same place, `hf_model`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..evidence.trainer_objects import find_frame
from ..hooks import replaces
from .patch import PatchContext, PatchInfo

EXPORT = "hf_model"


def gather_state(model: Any) -> dict[str, Any]:
    """Return the whole weights of a sharded model by name, on the CPU of the first rank; {} on the
    others.

    Every rank has to call it. A weight is gathered at a time, so that no GPU holds more than one.
    """
    from olmo_core.distributed.utils import get_rank

    state = {}
    for name, weight in model.state_dict().items():
        whole = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
        if get_rank() == 0:
            state[name] = whole.cpu()
    return state


def _export(context: PatchContext) -> None:
    from olmo_core.distributed.utils import barrier, get_rank
    from olmo_core.train import Trainer
    from open_instruct import olmo_core_utils

    @replaces(olmo_core_utils, "setup_model")
    def set_up_and_verify(set_up: Any, model: Any, *arguments: Any, **options: Any) -> Any:
        built = set_up(model, *arguments, **options)
        olmo_core_utils.verify_can_save_as_hf(built[1], model.model_name_or_path)
        return built

    @replaces(Trainer, "fit")
    def fit_and_export(fit: Any, self: Any) -> None:
        fit(self)
        frame = find_frame("tc", "args")
        if frame is None:
            raise RuntimeError("the frame of olmo_core_finetune.py's main() was not found")
        args = frame.f_locals["args"]
        folder = Path(args.checkpoint.output_dir) / EXPORT
        state = gather_state(self.train_module.model)
        if get_rank() == 0:
            olmo_core_utils.save_state_dict_as_hf(
                state, str(folder), args.model.model_name_or_path, frame.f_locals["tc"].tokenizer
            )
        barrier()


PATCH = PatchInfo(
    id="olmo_core_export",
    reason="olmo_core_finetune.py leaves a checkpoint of OLMo-core's, which no other stage starts "
    "from",
    lines={
        "open_instruct/olmo_core_finetune.py": {
            137: "def main(args: SFTArguments, tc: dataset_transformation.TokenizerConfig)",
            360: "trainer.fit()",
        },
        "open_instruct/olmo_core_utils.py": {
            546: "def verify_can_save_as_hf(",
            583: "def save_state_dict_as_hf(",
        },
        "open_instruct/dpo.py": {98: 'os.path.join(args.output_dir, "hf_model")'},
    },
    apply=_export,
)
