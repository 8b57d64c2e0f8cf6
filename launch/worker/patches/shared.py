"""Patches for every script of open-instruct, and the listener to the steps that scripts log."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import hooks
from ..channel import EventWriter
from ..columns import write_lengths
from ..evidence.trainer_objects import find_frame
from ..hooks import replaces
from ..opened import report_folder, report_opened
from .patch import PatchContext, PatchInfo

if TYPE_CHECKING:
    from ..evidence.collector import EvidenceCollector


class LineListener(logging.Handler):
    """Notices a log line of a script, and calls back with the variables of the frame that logs it.

    The line is recognised by a text that it contains, and read for nothing else. The frame is the
    innermost one with a certain variable. A failure is a warning, and never an error of the
    training.
    """

    text: str  # a text that the line contains
    variable: str  # a variable of the frame
    subject: str  # the name of what is read, for the warning

    def __init__(
        self, patch: str, events: EventWriter, callback: Callable[[Mapping[str, Any]], None]
    ) -> None:
        super().__init__(logging.INFO)
        self._patch = patch
        self._events = events
        self._callback = callback

    def emit(self, record: logging.LogRecord) -> None:
        if self.text not in record.getMessage():
            return
        try:
            frame = find_frame(self.variable)
            if frame is None:
                raise LookupError(f"no frame holds {self.variable}")
            self._callback(frame.f_locals)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            self._events.warn(f"patch {self._patch} could not read {self.subject}: {reason}")


class StepListener(LineListener):
    """Calls back with the variables of the frame that logs a step."""

    text = "  Step: "  # it follows the rank, which accelerate's loggers prepend
    variable = "metrics_to_log"
    subject = "a step"


def listen(listener: LineListener) -> None:
    """Have a listener notice what the script logs itself."""
    logging.getLogger("__main__").addHandler(listener)


def when_about_to_train(callback: Callable[[Any], None]) -> None:
    """Register `callback(args)`, called with the script's arguments right before it trains.

    finetune.py and dpo_tune_cache.py look for their last checkpoint there, once they have set
    `args.max_train_steps`; later they look for an incomplete one after each checkpoint.
    """
    from open_instruct import utils

    @replaces(utils, "get_last_checkpoint_path")
    def notify_and_find(find: Any, args: Any, incomplete: bool = False) -> Any:
        if not incomplete:
            callback(args)
        return find(args, incomplete)


def _collect_evidence(context: PatchContext) -> None:
    from accelerate import Accelerator
    from accelerate.optimizer import AcceleratedOptimizer
    from accelerate.utils import DistributedType

    # These are not imported above, because a plan imports the patches and collects no evidence.
    from ..evidence.collector import EvidenceCollector
    from ..evidence.objective import watch_dpo_loss
    from ..evidence.start import remember_templates

    collector = EvidenceCollector(context)
    remember_templates(context.trainer, context.requested.get("chat_template"))
    if context.trainer.module is not None:
        collector.row_record.watch_trl()
    else:
        collector.row_record.watch_open_instruct()
    if context.trainer.script_name == "dpo_tune_cache.py":
        watch_dpo_loss(context.requested, collector.report)
    hooks.when_prepared(collector.model_prepared)
    hooks.when_clipped(lambda _, max_norm, norm: collector.gradients_clipped(max_norm))

    @replaces(Accelerator, "backward")
    def collect_and_backward(backward: Any, self: Any, *arguments: Any, **options: Any) -> Any:
        collector.backward_begins(self)
        result = backward(self, *arguments, **options)
        if self.distributed_type != DistributedType.DEEPSPEED:
            Accelerator.backward = backward
        elif self.sync_gradients:
            collector.step_ended()
        return result

    @replaces(Accelerator, "load_state")
    def load_and_notify(
        load_state: Any, self: Any, input_dir: Any = None, *arguments: Any, **options: Any
    ) -> Any:
        loaded = load_state(self, input_dir, *arguments, **options)
        collector.state_loaded(input_dir)
        return loaded

    @replaces(AcceleratedOptimizer, "step")
    def collect_and_step(step: Any, self: Any, *arguments: Any, **options: Any) -> Any:
        if self.gradient_state.sync_gradients:  # this is the last micro batch of the step
            collector.step_begins()
        result = step(self, *arguments, **options)
        if self.gradient_state.sync_gradients:
            collector.step_ended()
        return result

    _check_loaded_weights(collector, context.events)
    hooks.when_prepared(lambda _: _check_saved_weights(collector))


def _check_saved_weights(collector: EvidenceCollector) -> None:
    """Report on the files of every model, or adapter, that is saved as the trainer's output."""
    from transformers import PreTrainedModel

    from ..evidence.start import pin_base

    kinds = [PreTrainedModel]
    peft = sys.modules.get("peft")  # imported where an adapter is trained
    if peft is not None:
        kinds.append(peft.PeftModel)
    for kind in kinds:

        @replaces(kind, "save_pretrained")
        def save_and_check(
            save: Any, self: Any, save_directory: Any, *arguments: Any, **options: Any
        ) -> Any:
            pin_base(self)
            saved = save(self, save_directory, *arguments, **options)
            collector.model_saved(self, save_directory, options.get("state_dict"))
            return saved


def _check_loaded_weights(collector: EvidenceCollector, events: EventWriter) -> None:
    """Report the files of a model that was loaded, and which of its weights they lack.

    transformers draws missing weights at random, and reports it only in a log line.
    """
    from transformers.modeling_utils import PreTrainedModel

    # The method is static, and is called on the class.
    @replaces(PreTrainedModel, "_finalize_model_loading")
    def finalize_and_check(finalize: Any, model: Any, load_config: Any, loading_info: Any) -> Any:
        info = finalize(model, load_config, loading_info)
        # transformers resolves a branch once per load (utils/hub.py, resolve_revision), and does
        # not keep the commit.
        revision = (load_config.download_kwargs or {}).get("revision")
        model.config._commit_hash = getattr(revision, "resolved", None)
        source = load_config.pretrained_model_name_or_path
        report_folder(source, events)
        collector.weights_loaded(model, source, info)
        return info


def _add_template(context: PatchContext) -> None:
    from open_instruct import dataset_transformation as upstream

    name = str(context.trainer.flag("chat_template_name"))
    file = Path(str(context.value))
    upstream.CHAT_TEMPLATES[name] = file.read_text(encoding="utf-8")
    report_opened([file], context.events)


CHAT_TEMPLATE = PatchInfo(
    id="chat_template",
    reason="adds the template in a file to open-instruct's table, under the name that the flag has, "
    "because open-instruct knows templates only by name",
    takes_value=True,
    lines={
        "open_instruct/dataset_transformation.py": {
            152: "CHAT_TEMPLATES = {",
            (838, 839): "if tc.chat_template_name in CHAT_TEMPLATES: "
            "tokenizer.chat_template = CHAT_TEMPLATES[tc.chat_template_name]",
        }
    },
    apply=_add_template,
)

EVIDENCE = PatchInfo(
    id="evidence",
    reason="checks the settings and weights in the trainer's own objects, and adds the commit of a "
    "hub base to an adapter's configuration",
    lines={
        "accelerate/accelerator.py": {
            1415: "def prepare(self, *args, device_placement=None):",
            2490: "self._models.append(engine)",
            2829: "def backward(self, loss, **kwargs):",
            2989: "def clip_grad_norm_(self, parameters, max_norm, norm_type=2):",
            3791: "def load_state(self, input_dir: str | None = None,",
        },
        "transformers/modeling_utils.py": {
            4597: "model, load_config: LoadStateDictConfig, loading_info: LoadStateDictInfo"
        },
        "accelerate/optimizer.py": {169: "if self.gradient_state.sync_gradients:"},
    },
    apply=_collect_evidence,
)


def _write_after_tokenizing(context: PatchContext) -> None:
    from open_instruct import dataset_transformation

    if context.events.rank != 0:
        return

    @replaces(dataset_transformation, "get_cached_dataset_tulu_with_statistics")
    def build_and_write(build: Any, *arguments: Any, **options: Any) -> Any:
        built = build(*arguments, **options)
        # Only the first data set is the training data.
        dataset_transformation.get_cached_dataset_tulu_with_statistics = build
        write_lengths(Path(str(context.value)), built[0], context.events)
        return built


LENGTHS = PatchInfo(
    id="lengths",
    reason="counts the lengths of the tokenised samples for the next plan's predictions; changes "
    "nothing",
    lines={
        "open_instruct/dataset_transformation.py": {
            2382: "def get_cached_dataset_tulu_with_statistics(",
            2440: "return get_cached_dataset_tulu_with_statistics(",
        },
        "open_instruct/finetune.py": {
            500: 'transform_fn_args = [{"max_seq_length": args.max_seq_length}, {}]'
        },
    },
    apply=_write_after_tokenizing,
    takes_value=True,  # the output file
)


def adapted_layers(model: Any) -> list[Any]:
    """Return the LoRA layers of a model; PEFT is imported already where there are any."""
    from peft.tuners.lora import LoraLayer

    return [module for module in model.modules() if isinstance(module, LoraLayer)]


def skips_input_casts(model: Any, accelerator: Any) -> bool:
    """Whether a LoRA layer may take its input in the type that it comes in, with the same numbers.

    PEFT casts it to the adapter's fp32 and autocast casts it back to bf16, which takes 17% of an
    H200's time and 11 GiB for an 8b model. Both give the same numbers, since bf16 to fp32 to bf16
    loses nothing; but the mask of a dropout depends on the type. Without autocast, as under
    DeepSpeed, the types would not fit.
    """
    from accelerate.utils import DistributedType
    from torch.nn import Dropout

    is_adapted = any(parent.__name__ == "PeftModel" for parent in type(model).__mro__)
    if not is_adapted or accelerator.mixed_precision != "bf16":
        return False
    if accelerator.distributed_type == DistributedType.DEEPSPEED:
        return False
    layers = adapted_layers(model)
    for layer in layers:
        for module in layer.lora_dropout.modules():
            if isinstance(module, Dropout) and module.p:
                return False
    return bool(layers)


def _leave_adapter_inputs(context: PatchContext) -> None:
    from accelerate import Accelerator

    @replaces(Accelerator, "prepare")
    def prepare_and_leave(prepare: Any, self: Any, *arguments: Any, **options: Any) -> Any:
        models = [argument for argument in arguments if hasattr(argument, "named_modules")]
        for model in models:
            if skips_input_casts(model, self):  # a prepared model is always called within autocast
                for layer in adapted_layers(model):
                    layer.cast_input_dtype_enabled = False
                context.events.emit(
                    "evidence", what="adapter_inputs", value="not cast", how=INPUTS_LEFT
                )
        return prepare(self, *arguments, **options)


INPUTS_LEFT = "PEFT's setting of each adapted layer while it trains"
ADAPTER_INPUTS = PatchInfo(
    id="adapter_inputs",
    reason="skips PEFT's cast of each adapted layer's input to fp32, which autocast casts back: the "
    "numbers are the same",
    lines={
        "accelerate/accelerator.py": {1415: "def prepare(self, *args, device_placement=None):"},
        "open_instruct/finetune.py": {
            (707, 708): "accelerator.prepare( model, optimizer, train_dataloader, lr_scheduler"
        },
        "open_instruct/dpo_tune_cache.py": {
            (461, 462): "accelerator.prepare( model, optimizer, train_dataloader, lr_scheduler"
        },
    },
    apply=_leave_adapter_inputs,
)
