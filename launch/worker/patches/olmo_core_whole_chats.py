"""Keeps chats whole in the packed rows of olmo_core_finetune.py.

It writes where each chat begins and ends (token_ids_part_*.csv.gz). OLMo-core reads that only on request: by default
every end token ends a document. A chat with several answers is then torn apart. A chat that was cut off has no end
token, so it is one document with the chat behind it, which is cut off in turn (olmo_core/data/utils.py:193-206).
"""

from __future__ import annotations

from typing import Any

from ..replacing import replaces
from .patch import PatchContext, PatchInfo


def _read_boundaries(_: PatchContext) -> None:
    from olmo_core.data import NumpyPackedFSLDatasetConfig

    @replaces(NumpyPackedFSLDatasetConfig, "build")
    def build_from_metadata(build: Any, self: Any) -> Any:
        self.use_array_if_local = False
        return build(self)


PATCH = PatchInfo(
    id="olmo_core_whole_chats",
    reason="OLMo-core splits a chat at each end token, and drops the chat behind one that was cut off",
    lines={
        "open_instruct/olmo_core_finetune.py": {232: "np_dataset_config = oc_data.NumpyPackedFSLDatasetConfig("},
        "olmo_core/data/numpy_dataset.py": {2991: "use_array_if_local: Optional[bool] = None"},
        "olmo_core/data/utils.py": {219: "doc_boundaries = (mmap == eos_token_id).nonzero()[0]"},
    },
    apply=_read_boundaries,
)
