"""Patches for OLMo-core's trainers: evidence, counts of tokens, and packages that are never used.

The tokens are counted here because dpo.py multiplies those of the first rank by the number of ranks
(data_loader.py:390), and olmo_core_finetune.py includes padding.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..evidence.trainer_objects import frames
from ..expectations import report_evidence
from ..hooks import replaces
from .patch import PatchContext, PatchInfo

if TYPE_CHECKING:
    from ..evidence.olmo_core_collector import OlmoCoreCollector


def _leave_first_checkpoint(_: PatchContext) -> None:
    from olmo_core.train.callbacks import CheckpointerCallback

    @replaces(CheckpointerCallback, "__init__")
    def build_without(build: Any, self: Any, *arguments: Any, **options: Any) -> None:
        build(self, *arguments, **{"pre_train_checkpoint": False, **options})


FIRST_CHECKPOINT = PatchInfo(
    id="olmo_core_first_checkpoint",
    reason="skips the whole checkpoint of the start model that OLMo-core writes before the first "
    "step",
    lines={
        "olmo_core/train/callbacks/checkpointer.py": {
            76: "pre_train_checkpoint: Optional[bool] = None",
            237: "or (self.pre_train_checkpoint is None and not self.trainer.checkpoint_loaded)",
        }
    },
    apply=_leave_first_checkpoint,
)


# The names of two metrics of a step.
TOKENS_METRIC = "launch/tokens"
PADDED = "launch/tokens_padded"


def count_tokens(batch: Any, pad_id: int | None) -> tuple[int, int]:
    """Count the tokens of one rank's batch, without and with padding.

    `pad_id`: the id that marks padding if the batch has neither masks nor document borders.
    """
    rows = [value for value in _values_of(batch, "input_ids") if hasattr(value, "numel")]
    borders = _values_of(batch, "cu_seq_lens_k")
    masks = _values_of(batch, "attention_mask")
    padded = sum(int(row.numel()) for row in rows)
    if borders:
        tokens = sum(int(ends[-1]) for ends in borders)
    elif masks:
        tokens = sum(int(mask.sum()) for mask in masks)
    elif pad_id is not None:
        tokens = sum(int((row != pad_id).sum()) for row in rows)
    else:
        tokens = padded
    return tokens, padded


def _values_of(batch: Any, name: str) -> list[Any]:
    """Return the values of this name in a batch; pairs have two, each with a prefix."""
    return [value for key, value in batch.items() if key.endswith(name)]


def _record_tokens(_: PatchContext) -> None:
    import torch.distributed as dist
    from olmo_core.train import ReduceType, TrainerConfig
    from olmo_core.train.callbacks import Callback

    class TokenCount(Callback):  # type: ignore[misc,unused-ignore]
        """Records a batch's tokens before the step; OLMo-core itself reduces them over the ranks."""

        def pre_step(self, batch: dict[str, Any]) -> None:
            collator = getattr(self.trainer.data_loader, "collator", None)
            tokens, padded = count_tokens(batch, getattr(collator, "pad_token_id", None))
            # The ranks of one tensor- or context-parallel group share a batch.
            ranks_per_batch = 1
            if dist.is_initialized():
                batches = dist.get_world_size(self.trainer.dp_process_group)
                ranks_per_batch = dist.get_world_size() // batches
            for name, value in ((TOKENS_METRIC, tokens), (PADDED, padded)):
                share = value / ranks_per_batch
                self.trainer.record_metric(name, share, reduce_type=ReduceType.sum)

    @replaces(TrainerConfig, "build")
    def build_and_count(build: Any, self: Any, *arguments: Any, **options: Any) -> Any:
        self.callbacks["launch_tokens"] = TokenCount()
        return build(self, *arguments, **options)


TOKEN_COUNT = PatchInfo(
    id="olmo_core_tokens",
    reason="counts every rank's tokens without padding: dpo.py assumes that all have as many as the "
    "first, and olmo_core_finetune.py counts padding",
    lines={
        "open_instruct/data_loader.py": {390: "return num_tokens * self.dp_world_size"},
        "olmo_core/train/config.py": {149: "train_module: TrainModule,"},
        "olmo_core/train/trainer.py": {1709: "callback.pre_step(batch)"},
    },
    apply=_record_tokens,
)


def _collect_evidence(context: PatchContext) -> None:
    from olmo_core.train import Trainer
    from olmo_core.train.checkpoint import Checkpointer
    from olmo_core.train.train_module import TransformerTrainModule

    # These are not imported above, because a plan imports the patches and collects no evidence.
    from ..evidence.objective import watch_dpo_loss
    from ..evidence.olmo_core_collector import OlmoCoreCollector
    from ..evidence.start import remember_templates

    collector = OlmoCoreCollector(context)
    remember_templates(context.trainer, context.requested.get("chat_template"))
    collector.row_record.watch_open_instruct()
    if context.trainer.script_name == "dpo.py":
        watch_dpo_loss(context.requested, collector.report)
    zero_grads = TransformerTrainModule.zero_grads

    @replaces(TransformerTrainModule, "__init__")
    def build_and_notify(build: Any, self: Any, *arguments: Any, **options: Any) -> None:
        build(self, *arguments, **options)
        collector.module_built(self)

    @replaces(TransformerTrainModule, "zero_grads")
    def zero_and_notify(zero: Any, self: Any) -> None:
        zero(self)
        collector.gradients_zeroed()

    @replaces(TransformerTrainModule, "optim_step")
    def collect_and_step(step: Any, self: Any, *arguments: Any, **options: Any) -> Any:
        if not collector.has_begun:
            TransformerTrainModule.zero_grads = zero_grads
            collector.first_step_begins(self)
        result = step(self, *arguments, **options)
        collector.step_ended()
        return result

    @replaces(Trainer, "fit")
    def fit_and_check(fit: Any, self: Any) -> None:
        fit(self)
        collector.checkpoint_saved(self)

    for name in ("save", "save_async"):

        @replaces(Checkpointer, name)
        def report_and_save(save: Any, *arguments: Any, **options: Any) -> Any:
            collector.checkpoint_begins()
            return save(*arguments, **options)

    _check_exports(collector)
    _compare_presets(context)


def _compare_presets(context: PatchContext) -> None:
    """Compare what the preset builds with the config.json that the saved model will have."""
    from open_instruct import olmo_core_utils
    from transformers import AutoConfig

    from ..evidence.architecture import check_architecture

    @replaces(olmo_core_utils, "verify_can_save_as_hf")
    def verify_and_compare(verify: Any, preset: Any, start: str) -> None:
        verify(preset, start)
        config = AutoConfig.from_pretrained(start, trust_remote_code=True)
        evidence = check_architecture(preset.build(init_device="meta"), config)
        report_evidence([evidence], context.allowed, context.events)


def _check_exports(collector: OlmoCoreCollector) -> None:
    """Report on the files of every model of transformers that is saved."""
    from transformers import PreTrainedModel

    @replaces(PreTrainedModel, "save_pretrained")
    def save_and_check(
        save: Any, self: Any, save_directory: Any, *arguments: Any, **options: Any
    ) -> Any:
        saved = save(self, save_directory, *arguments, **options)
        collector.model_exported(self, Path(str(save_directory)))
        return saved


EVIDENCE = PatchInfo(
    id="olmo_core_evidence",
    reason="checks the requested settings and the weights in OLMo-core's own objects; changes "
    "nothing",
    lines={
        "olmo_core/train/train_module/transformer/train_module.py": {
            560: "def optim_step(self):",
            223: "self.max_grad_norm = max_grad_norm",
        },
        "olmo_core/train/trainer.py": {687: "def fit(self):"},
        "olmo_core/nn/transformer/model.py": {497: '(doc_lens := kwargs.pop("doc_lens", None))'},
        "olmo_core/nn/attention/backend.py": {226: "cu_doc_lens: Optional[torch.Tensor] = None,"},
        "open_instruct/olmo_core_utils.py": {
            546: "def verify_can_save_as_hf(",
            597: "converted = convert_olmo_core_state_to_hf(hf_config, state_dict)",
        },
    },
    apply=_collect_evidence,
)


_PACKAGES = ("vllm", "docker", "openenv", "backoff", "aiohttp")
# Only imports in this package get placeholders; for all others the packages stay missing.
_IMPORTER = "open_instruct"


class Placeholder(type):
    """The type of every name in a placeholder package.

    Such a name is a class that can be imported and inherited from, but not used.
    """

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        raise ImportError(describe_misuse(cls))

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise ImportError(describe_misuse(cls))


def describe_misuse(cls: type) -> str:
    """Return the message for code that uses a placeholder, or a class that inherits from one."""
    base = next(parent for parent in reversed(cls.__mro__) if isinstance(parent, Placeholder))
    package = base.__module__.partition(".")[0]
    return (
        f"{base.__module__}.{base.__name__} is a placeholder, because {package} is not installed "
        f"and DPO should not use it; install {package} [unused_imports]"
    )


class PlaceholderModule(ModuleType):
    """A module of a missing package: any public name in it is a class of type `Placeholder`."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        placeholder = Placeholder(name, (), {"__module__": self.__name__})
        setattr(self, name, placeholder)
        return placeholder


class PlaceholderFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """The last resort of the import system, for open-instruct's imports of missing `packages`."""

    def __init__(self, packages: Sequence[str]) -> None:
        self._packages = frozenset(packages)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in self._packages:
            return None
        if _importing_package() != _IMPORTER:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, origin="placeholder", is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return PlaceholderModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: names are created on first access."""


def _importing_package() -> str:
    """Return the name of the package whose module runs the import statement."""
    for frame in frames():
        module = str(frame.f_globals.get("__name__", ""))
        if module != __name__ and not module.startswith("importlib"):
            return module.partition(".")[0]
    return ""


def find_missing() -> list[str]:
    """Return the PACKAGES that this interpreter does not have."""
    return [name for name in _PACKAGES if importlib.util.find_spec(name) is None]


def _all_installed(_: PatchContext) -> str | None:
    return None if find_missing() else f"{', '.join(_PACKAGES)} are installed"


def _install_placeholders(context: PatchContext) -> None:
    packages = find_missing()
    sys.meta_path.append(PlaceholderFinder(packages))
    context.events.emit(
        "evidence",
        what="placeholders",
        value=",".join(packages),
        how="packages that are not installed",
    )


UNUSED_IMPORTS = PatchInfo(
    id="unused_imports",
    reason="puts placeholders for vllm, docker, openenv, backoff and aiohttp, which dpo.py's data "
    "loader imports and only GRPO uses",
    lines={
        "open_instruct/dpo.py": {25: "from open_instruct import data_loader as data_loader_lib"},
        "open_instruct/data_loader.py": {
            29: "import vllm",
            761: "generation_config: vllm.SamplingParams,",
        },
        "open_instruct/environments/base.py": {
            7: "from openenv.core.env_server.types import Action, Observation, State"
        },
        "open_instruct/environments/backends.py": {10: "import docker as docker_sdk"},
        "open_instruct/environments/tools/utils.py": {(9, 10): "import aiohttp\nimport backoff"},
        "open_instruct/environments/tools/parsers.py": {
            22: "from vllm.tool_parsers import ToolParser as VllmNativeToolParser"
        },
    },
    apply=_install_placeholders,
    not_needed=_all_installed,
)
