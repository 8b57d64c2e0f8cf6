"""Patches that report what an open-instruct script does besides its steps: tokenising data, and
saving checkpoints and the model.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..channel import EventWriter
from ..hooks import replaces
from .patch import PatchContext, PatchInfo


def _report_dataset(context: PatchContext) -> None:
    from open_instruct import dataset_transformation as upstream

    def place_of_local(cache: Any) -> str:
        return str(cache.get_cache_path())

    def place_on_hub(cache: Any) -> str:
        repository = f"{cache.hf_entity}/dataset-mix-cached"
        return f"https://huggingface.co/datasets/{repository}/tree/{cache.config_hash}"

    was_transformed = False

    @replaces(upstream, "get_dataset_v1")
    def begin_and_transform(transform: Any, *arguments: Any, **options: Any) -> Any:
        nonlocal was_transformed
        if not was_transformed:
            was_transformed = True
            context.events.begin("tokenize")
        return transform(*arguments, **options)

    def report_from(cache_class: Any, place_of: Callable[[Any], str]) -> None:
        @replaces(cache_class, "load_or_transform_dataset")
        def load_and_report(
            load: Any, self: Any, dcs: Any, tc: Any, dataset_skip_cache: bool = False
        ) -> Any:
            nonlocal was_transformed
            was_transformed = False
            place = place_of(self)
            if Path(place).exists() and not dataset_skip_cache:
                context.events.begin("load")
            loaded = load(self, dcs, tc, dataset_skip_cache)
            if not dataset_skip_cache:
                context.events.begin("load")
                send_dataset(context.events, place, is_built=was_transformed)
            return loaded

    report_from(upstream.LocalDatasetTransformationCache, place_of_local)
    report_from(upstream.DatasetTransformationCache, place_on_hub)


def send_dataset(events: EventWriter, place: str, *, is_built: bool) -> None:
    """Send where the tokenised data is, and whether this process has built it or found it."""
    value = "built" if is_built else "hit"
    events.emit("evidence", what="dataset_cache", value=value, path=place)


DATASET = PatchInfo(
    id="dataset_cache",
    reason="reports when the data is tokenised or loaded, and from which cache; changes nothing",
    lines={
        "open_instruct/dataset_transformation.py": {
            1947: "def get_dataset_v1(dc: DatasetConfig, tc: TokenizerConfig):",
            2086: 'repo_name = f"{self.hf_entity}/dataset-mix-cached"',
            2114: "dataset = get_dataset_v1(dc, tc)",
            2177: "def get_cache_path(self) -> str:",
            (2195, 2196): "def load_or_transform_dataset( self, dcs: list[DatasetConfig], "
            "tc: TokenizerConfig, dataset_skip_cache: bool = False",
            2202: "if os.path.exists(cache_path) and not dataset_skip_cache:",
        }
    },
    apply=_report_dataset,
)


def _report_saving(context: PatchContext) -> None:
    from accelerate import Accelerator
    from open_instruct import model_utils

    @replaces(Accelerator, "save_state")
    def begin_and_save_state(save: Any, *arguments: Any, **options: Any) -> Any:
        context.events.begin_checkpoint()
        return save(*arguments, **options)

    @replaces(model_utils, "save_with_accelerate")
    def begin_and_save(save: Any, *arguments: Any, **options: Any) -> Any:
        context.events.begin("save")
        return save(*arguments, **options)

    @replaces(model_utils, "push_folder_to_hub")
    def begin_and_push(push: Any, *arguments: Any, **options: Any) -> Any:
        context.events.begin("push")
        return push(*arguments, **options)


SAVING = PatchInfo(
    id="saving",
    reason="reports when a checkpoint or the model is saved, and when it is pushed; changes "
    "nothing",
    lines={
        "accelerate/accelerator.py": {
            3625: "def save_state(self, output_dir: str | None = None,",
        },
        "open_instruct/model_utils.py": {
            525: "def save_with_accelerate(",
            604: "def push_folder_to_hub(",
        },
    },
    apply=_report_saving,
)
