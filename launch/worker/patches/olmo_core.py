"""Patches for OLMo-core's trainers: evidence, tokens without padding, packages that are never used.

dpo.py multiplies the first rank's tokens by the number of ranks (data_loader.py:390);
olmo_core_finetune.py includes padding.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from ..evidence.batches import ForwardInputs
from ..evidence.trainer_objects import TrainerObjects, frames
from ..expectations import report_evidence
from ..finding import REFUTED, Evidence
from ..hooks import replaces
from .patch import PatchContext, PatchInfo


def _leave_first_checkpoint(_: PatchContext) -> None:
    from olmo_core.train.callbacks import CheckpointerCallback

    @replaces(CheckpointerCallback, "__init__")
    def build_without(build: Any, self: Any, *arguments: Any, **options: Any) -> None:
        build(self, *arguments, **{"pre_train_checkpoint": False, **options})


FIRST_CHECKPOINT = PatchInfo(
    id="olmo_core_first_checkpoint",
    reason="OLMo-core writes a whole checkpoint of the start model before the first step; this "
    "leaves it out",
    lines={
        "olmo_core/train/callbacks/checkpointer.py": {
            76: "pre_train_checkpoint: Optional[bool] = None",
            237: "or (self.pre_train_checkpoint is None and not self.trainer.checkpoint_loaded)",
        }
    },
    apply=_leave_first_checkpoint,
)


TOKENS, PADDED = "launch/tokens", "launch/tokens_padded"


def count_tokens(batch: Any, pad_id: int | None) -> tuple[int, int]:
    """Count the tokens of one rank's batch, without and with padding.

    `pad_id`: the id that marks padding if the batch has neither masks nor document borders.
    """
    rows = [
        value
        for name, value in batch.items()
        if name.endswith("input_ids") and hasattr(value, "numel")
    ]
    padded = sum(int(row.numel()) for row in rows)
    ends = [value for name, value in batch.items() if name.endswith("cu_seq_lens_k")]
    masks = [value for name, value in batch.items() if name.endswith("attention_mask")]
    if ends:
        return sum(int(end[-1]) for end in ends), padded
    if masks:
        return sum(int(mask.sum()) for mask in masks), padded
    if pad_id is None:
        return padded, padded
    return sum(int((row != pad_id).sum()) for row in rows), padded


def _record_tokens(_: PatchContext) -> None:
    import torch.distributed as dist
    from olmo_core.train import ReduceType, TrainerConfig
    from olmo_core.train.callbacks import Callback

    class TokenCount(Callback):  # type: ignore[misc,unused-ignore]
        """Records the tokens of a batch before the step, for OLMo-core's own reduction over the
        ranks.
        """

        def pre_step(self, batch: dict[str, Any]) -> None:
            collator = getattr(self.trainer.data_loader, "collator", None)
            tokens, padded = count_tokens(batch, getattr(collator, "pad_token_id", None))
            # ranks of one tensor- or context-parallel group share a batch
            group = self.trainer.dp_process_group
            ranks_per_batch = (
                dist.get_world_size() // dist.get_world_size(group) if dist.is_initialized() else 1
            )
            for name, value in ((TOKENS, tokens), (PADDED, padded)):
                self.trainer.record_metric(
                    name, value / ranks_per_batch, reduce_type=ReduceType.sum
                )

    @replaces(TrainerConfig, "build")
    def build_and_count(build: Any, self: Any, *arguments: Any, **options: Any) -> Any:
        self.callbacks["launch_tokens"] = TokenCount()
        return build(self, *arguments, **options)


TOKEN_COUNT = PatchInfo(
    id="olmo_core_tokens",
    reason="dpo.py assumes that every rank has the first rank's tokens, and olmo_core_finetune.py "
    "counts padding",
    lines={
        "open_instruct/data_loader.py": {390: "return num_tokens * self.dp_world_size"},
        "olmo_core/train/config.py": {149: "train_module: TrainModule,"},
        "olmo_core/train/trainer.py": {1709: "callback.pre_step(batch)"},
    },
    apply=_record_tokens,
)


def _collect_evidence(context: PatchContext) -> None:
    from olmo_core.train import Trainer
    from olmo_core.train.train_module import TransformerTrainModule
    from transformers import PreTrainedModel

    from ..evidence import olmo_core as checks  # a plan reads the patches, and inspects nothing
    from ..evidence.updates import Updates, judge_saved

    zero = TransformerTrainModule.zero_grads
    passes: list[ForwardInputs] = []  # of the current optimizer step
    handles: list[Any] = []
    followed: list[tuple[Trainer, Updates]] = []  # once the first step has begun

    @replaces(TransformerTrainModule, "__init__")
    def build_and_hook(build: Any, self: Any, *arguments: Any, **options: Any) -> None:
        build(self, *arguments, **options)

        def record_inputs(module: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            # else it is the reference
            inputs = checks.describe_inputs(given, named) if module.training else None
            if inputs is not None:
                passes.append(inputs)

        handles.append(self.model.register_forward_pre_hook(record_inputs, with_kwargs=True))

    @replaces(TransformerTrainModule, "zero_grads")
    def zero_and_forget(_: Any, self: Any) -> None:
        zero(self)
        passes.clear()  # the trainer tries a batch before its first step

    def check_first(module: Any) -> None:
        TransformerTrainModule.zero_grads = zero
        for handle in handles:
            handle.remove()
        evidence = checks.collect(
            module, passes[0] if passes else None, context.trainer, context.requested
        )
        evidence += checks.count_samples(passes, context.requested.get("global_batch"))
        report_evidence(evidence, context.allowed, context.events)
        done = module.trainer.global_step - 1
        followed.append(
            (
                module.trainer,
                Updates(
                    TrainerObjects(None, model=module.model, optimizer=module.optim, step=done)
                ),
            )
        )

    @replaces(TransformerTrainModule, "optim_step")
    def collect_and_step(step: Any, self: Any, *arguments: Any, **options: Any) -> Any:
        if not followed:
            check_first(self)
        result = step(self, *arguments, **options)
        for _, updates in followed:
            updates.note_gradients()  # which it has clipped
            report_evidence(updates.after_step(), context.allowed, context.events)
        return result

    def report_end(check: Callable[[], Evidence], *, is_last: bool) -> None:
        """Report on the saved model; of the ranks but the first only what is refuted in their
        part.
        """
        for trainer, updates in followed:
            rank = context.events.rank
            found = [item for item in updates.at_end(check) if not rank or item.verdict == REFUTED]
            for item in found:
                context.events.emit("evidence", **item.fields())
            if is_last and not rank:
                context.events.emit("saved", step=trainer.global_step)

    @replaces(Trainer, "fit")
    def fit_and_check(fit: Any, self: Any) -> None:
        fit(self)
        folder = Path(str(self.save_folder)) / f"step{self.global_step}"

        def check() -> Evidence:
            if context.events.rank:
                return judge_saved(
                    dict(self.train_module.model.named_parameters()), 0, (), "its part"
                )
            return checks.check_checkpoint(folder, self.train_module.model)

        report_end(check, is_last=not exports)

    # a model of transformers, after the last checkpoint
    exports = context.trainer.script_name == "dpo.py"

    @replaces(PreTrainedModel, "save_pretrained")
    def save_and_check(
        save: Any, self: Any, save_directory: Any, *arguments: Any, **options: Any
    ) -> Any:
        saved = save(self, save_directory, *arguments, **options)
        report_end(lambda: checks.check_export(Path(str(save_directory)), self), is_last=True)
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
            597: "converted = convert_olmo_core_state_to_hf(hf_config, state_dict)"
        },
    },
    apply=_collect_evidence,
)


PACKAGES = ("vllm", "docker", "openenv", "backoff", "aiohttp")
# only its modules get placeholders; for all others the packages stay missing
_IMPORTER = "open_instruct"


class Placeholder(type):
    """The type of every name in a placeholder package: a class that can be imported and inherited
    from, not used.
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
        "and DPO should "
        f"not use it; install {package} [unused_imports]"
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
    """The last resort of the import system: finds modules of `packages` for imports in
    open-instruct.
    """

    def __init__(self, packages: Sequence[str]) -> None:
        self._packages = frozenset(packages)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in self._packages or _importing_package() != _IMPORTER:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, origin="placeholder", is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return PlaceholderModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: names are created on first access."""


def _importing_package() -> str:
    names = (str(frame.f_globals.get("__name__", "")) for frame in frames())
    importer = next(
        (name for name in names if name != __name__ and not name.startswith("importlib")), ""
    )
    return importer.partition(".")[0]


def find_missing() -> list[str]:
    """Return the PACKAGES that this interpreter does not have."""
    return [name for name in PACKAGES if importlib.util.find_spec(name) is None]


def _all_installed(_: PatchContext) -> str | None:
    return None if find_missing() else f"{', '.join(PACKAGES)} are installed"


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
    reason="dpo.py's data loader imports vllm, docker, openenv, backoff and aiohttp for GRPO; DPO "
    "uses none of them",
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
