"""The patch that exports the model of olmo_core_finetune.py as a transformers model.

The script ends with an OLMo-core checkpoint only, which upstream converts by hand
(scripts/train/convert_olmo_core_to_hf.py). dpo.py exports its model itself, with upstream's own
conversion: the same function is called here, and writes to a folder of the same name, `hf_model`.
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

    Every rank must call it. The weights are gathered one by one, so that no GPU holds more than one
    whole weight.
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
    reason="exports olmo_core_finetune.py's model to transformers, as dpo.py does, because no other "
    "stage can start from OLMo-core's checkpoint",
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
