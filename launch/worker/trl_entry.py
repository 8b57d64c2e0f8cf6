"""Trains with TRL as a library: the flags of TRL's own scripts, its trainers, and data that this
entry has chosen.

What differs from `trl sft`, `trl dpo` and `trl grpo` is in OPTIONS (trl_options.py), which the
worker's command line sets, in `entry_class` and in trl_rlvr.py. Nothing of TRL is replaced: its
trainers are subclassed, and get their model, tokenizer and callbacks as arguments. The one
exception is `use_staged_form`.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import trl_data, trl_rlvr, trl_samples
from .channel import EventWriter
from .columns import write_lengths
from .hooks import replaces
from .json_codec import decode
from .patches.shared import INPUTS_LEFT, skips_input_casts
from .reward_proof import prompt_lengths
from .step_events import early_stop, step_events
from .trainer import TrainerProgram
from .trl_options import TRL, VerifierOption

# the script whose flags are taken -> the names of its dataclass and its trainer
SCRIPTS = {
    "trl.scripts.sft": ("SFTConfig", "SFTTrainer"),
    "trl.scripts.dpo": ("DPOConfig", "DPOTrainer"),
    "trl.scripts.grpo": ("GRPOConfig", "GRPOTrainer"),
}
# trl/trainer/dpo_trainer.py:570: these need device_map=None
_DISTRIBUTED = ("MULTI_GPU", "DEEPSPEED")


class EntryError(RuntimeError):
    """What is requested does not fit TRL, the data or the model; the rank must not continue."""


@dataclass(frozen=True)
class EntryJob:
    """One command line, parsed."""

    trainer: Any  # TRL's class
    script: Any  # trl.ScriptArguments
    args: Any  # trl.SFTConfig or trl.DPOConfig
    model: Any  # trl.ModelConfig
    mixture: Any  # trl.DatasetMixtureConfig
    options: Mapping[str, str]
    events: EventWriter
    allowed: Collection[str] = ()  # ids of unmet expectations that only warn


def main(
    program: TrainerProgram,
    options: Mapping[str, str],
    events: EventWriter,
    allowed: Collection[str] = (),
) -> None:
    """Train, and save the model. Raises EntryError, VerifierError, UnmetExpectation, and whatever
    TRL raises.
    """
    job = parse(program, options, events, allowed)
    args, script = job.args, job.script
    trainer = _build(job)
    # packed rows are not samples
    if "lengths" in options and events.rank == 0 and not getattr(args, "packing", False):
        write_lengths(Path(options["lengths"]), trainer.train_dataset, events)
    if getattr(script, "ignore_bias_buffers", False) and hasattr(args, "beta"):
        _ignore_bias_buffers(trainer.model)
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    trainer.save_after_training()
    trainer.accelerator.print(f"launch: the model is saved in {args.output_dir}")
    if args.push_to_hub:
        trainer.push_to_hub(dataset_name=script.dataset_name)
    if hasattr(trainer, "end"):  # since transformers 5.18
        trainer.end()


def parse(
    program: TrainerProgram,
    options: Mapping[str, str],
    events: EventWriter,
    allowed: Collection[str],
) -> EntryJob:
    """Check TRL's version and parse the flags as its script does (trl/scripts/sft.py:75-84,
    :150-154).
    """
    import trl

    if ".".join(trl.__version__.split(".")[:2]) != TRL:
        raise EntryError(
            f"launch's entry is written for TRL {TRL}, and TRL {trl.__version__} is installed"
        )
    config, trainer = SCRIPTS[str(program.module)]
    classes = (trl.ScriptArguments, getattr(trl, config), trl.ModelConfig, trl.DatasetMixtureConfig)
    script, args, model, mixture = trl.TrlParser(classes).parse_args_and_config(
        list(program.flags), fail_with_unknown_args=False
    )
    args.model_init_kwargs = {
        "revision": model.model_revision,
        "trust_remote_code": args.trust_remote_code,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype,
        **(args.model_init_kwargs or {}),
    }
    return EntryJob(getattr(trl, trainer), script, args, model, mixture, options, events, allowed)


def _build(job: EntryJob) -> Any:
    """Build TRL's trainer; nothing has been trained yet."""
    from trl import get_peft_config, get_quantization_config

    script, args, model, options = job.script, job.args, job.model, job.options
    try:
        data = trl_data.load(script, job.mixture, options)
    except ValueError as error:
        raise EntryError(str(error)) from error
    job.events.begin("load")
    callbacks = [step_events(job.events)]
    if "early_stop" in options:
        callbacks.append(early_stop(job.events, _count_of("early_stop", options)))
    start: dict[str, Any] = {
        "model": model.model_name_or_path,
        "processing_class": load_tokenizer(job),
        "quantization_config": get_quantization_config(model),
        "peft_config": get_peft_config(model),
    }
    if "continue_adapter" in options:
        start["model"] = _load_adapter(
            model.model_name_or_path, start["quantization_config"], start["peft_config"], args
        )
        start["quantization_config"] = start["peft_config"] = args.model_init_kwargs = None
    if template := getattr(args, "chat_template_path", None):
        use_staged_form(Path(template))
    entry, limit = entry_class(job.trainer, args, job.events), getattr(args, "max_length", None)
    train = data[script.dataset_train_split]
    every = _count_of("samples", options) if "samples" in options else None
    if "verifier" in options:
        option = decode(VerifierOption, options["verifier"])
        prompt_lengths(
            train["prompt"], start["processing_class"], option.window, args.max_completion_length
        )
        scorer = trl_rlvr.Scorer(option, train, job.events)
        start["reward_funcs"], args.reward_weights = (
            scorer.reward_functions(),
            list(scorer.weights.values()),
        )
        entry = trl_rlvr.rlvr_class(entry, scorer, job.events, job.allowed)
        entry = trl_samples.sampling_class(entry, every, entry.sample)
    elif every:
        held_out = data.get(script.dataset_test_split, train)
        longest = (getattr(args, "max_length", None) or 1024) // 2
        if prompts := trl_samples.find_prompts(held_out, start["processing_class"], longest):
            entry = trl_samples.sampling_class(
                entry,
                every,
                lambda trainer: trl_samples.answer_prompts(trainer, prompts, job.events),
            )
        else:
            job.events.warn("recipe.sample_every: the rows have no prompts to answer")
    if entry.truncates:
        args.max_length = None
    try:
        return entry(
            args=args,
            train_dataset=train,
            eval_dataset=data[script.dataset_test_split] if args.eval_strategy != "no" else None,
            callbacks=callbacks,
            **start,
        )
    finally:
        if entry.truncates:
            args.max_length = limit


def entry_class(base: Any, args: Any, events: EventWriter) -> Any:
    """Return a subclass of TRL's trainer `base` with what launch changes in it.

    Flattening: SFTTrainer refuses `padding_free` with a length, because its collator would ignore
    it (trl/trainer/sft_trainer.py:999). The length is applied where TRL applies it otherwise, when
    the data is prepared; `truncates` says so, and the trainer is then built without a length.
    Raises EntryError if nothing would truncate.

    Resuming: transformers checks for the end after a step only (trainer.py:1963), so that a run
    which resumes from the checkpoint of its last step would train one more.

    The last evaluation: the model is saved before it, since an evaluation can fail. It is saved
    again if the best checkpoint takes its place.

    Adapters: see `skips_input_casts`. Evaluation and saving keep PEFT's casts: they may run outside
    autocast.
    """
    limit = getattr(args, "max_length", None)
    flattens = bool(getattr(args, "padding_free", False) and not getattr(args, "packing", True))
    if flattens and (limit is None or (args.dataset_kwargs or {}).get("skip_prepare_dataset")):
        raise EntryError(
            "padding_free needs a max_length, and data that the trainer prepares: nothing else "
            "truncates"
        )

    class Entry(base):  # type: ignore[misc]
        truncates = flattens
        _skips_casts: bool | None = None  # not known before the model is there
        _trained_batch: contextlib.ExitStack  # of the micro batch that is trained
        _saved: tuple[int, bool] | None = None

        def _prepare_dataset(
            self, dataset: Any, processing_class: Any, args: Any, *more: Any
        ) -> Any:
            if "train" in more:  # else it is the data of the validation
                events.begin("tokenize")
            if flattens:
                args = copy.copy(args)
                args.max_length = limit
            return super()._prepare_dataset(dataset, processing_class, args, *more)

        def _precompute_ref_logps(self, *arguments: Any, **options: Any) -> Any:
            events.begin("reference_logprobs")
            return super()._precompute_ref_logps(*arguments, **options)

        def _save_checkpoint(self, *arguments: Any, **options: Any) -> None:
            if self.state.is_world_process_zero:  # whose next step ends this phase
                events.begin("checkpoint")
            super()._save_checkpoint(*arguments, **options)

        def training_step(self, *arguments: Any, **options: Any) -> Any:
            """Run a micro batch forward and backward; with checkpointing the backward pass repeats
            the casts.

            From the loss on they are left out: what is generated for it runs outside autocast.
            """
            if self._skips_casts is None:
                self._skips_casts = skips_input_casts(self.model, self.accelerator)
                if self._skips_casts:
                    events.emit(
                        "evidence", what="adapter_inputs", value="not cast", how=INPUTS_LEFT
                    )
            with contextlib.ExitStack() as self._trained_batch:
                return super().training_step(*arguments, **options)

        def compute_loss(self, *arguments: Any, **options: Any) -> Any:
            if self._skips_casts and self.model.training:
                from peft.helpers import disable_input_dtype_casting

                self._trained_batch.enter_context(disable_input_dtype_casting(self.model))
            return super().compute_loss(*arguments, **options)

        def evaluate(self, *arguments: Any, **options: Any) -> Any:
            if self.is_in_train and self.state.global_step >= self.state.max_steps:
                self.save_after_training()
            return super().evaluate(*arguments, **options)

        def save_after_training(self) -> None:
            """Save the model, unless it is saved as it is."""
            state = self.state.global_step, self.is_in_train or not self.args.load_best_model_at_end
            if state != self._saved:
                self._saved = state
                self.save_model(self.args.output_dir)

        def _run_epoch(self, *arguments: Any, **options: Any) -> Any:
            if (
                self.state.global_step < self.state.max_steps
                and not self.control.should_training_stop
            ):
                return super()._run_epoch(*arguments, **options)
            print(
                f"launch: all steps are done ({self.state.global_step}); the model is saved",
                flush=True,
            )
            self.control.should_training_stop = True
            return None

    return Entry


def load_tokenizer(job: EntryJob) -> Any:
    """Load the tokenizer that TRL's trainers would, or an adapter's own, and set the template of
    the options.
    """
    from transformers import AutoProcessor, AutoTokenizer

    model, args = job.model.model_name_or_path, job.args
    auto = AutoTokenizer if is_adapter(model) else AutoProcessor
    revision = (args.model_init_kwargs or {}).get("revision")
    tokenizer = auto.from_pretrained(
        model, revision=revision, trust_remote_code=args.trust_remote_code
    )
    if "chat_template" in job.options:
        tokenizer.chat_template = Path(job.options["chat_template"]).read_text(encoding="utf-8")
    return tokenizer


def use_staged_form(template: Path) -> None:
    """Have TRL compute the loss with the form with marks that lies beside the template's file, if
    there is one.

    TRL finds this form by the text that its own version has (trl/trainer/sft_trainer.py:942). A run
    goes on with the texts that it began with: where they are this version's, nothing is replaced.
    """
    from trl.trainer import sft_trainer

    forms = template, template.with_name(f"{template.stem}_training{template.suffix}")
    own = Path(sft_trainer.__file__).parents[1] / "chat_templates"
    if not forms[1].is_file() or all(_holds_text(own / form.name, form) for form in forms):
        return
    plain, marked = (form.read_text(encoding="utf-8") for form in forms)

    @replaces(sft_trainer, "get_training_chat_template")
    def choose_form(choose: Any, tokenizer: Any, *arguments: Any, **options: Any) -> Any:
        return (
            marked if tokenizer.chat_template == plain else choose(tokenizer, *arguments, **options)
        )


def _holds_text(path: Path, other: Path) -> bool:
    return path.is_file() and path.read_bytes() == other.read_bytes()


def is_adapter(folder: str) -> bool:
    """Whether the folder holds an adapter and no whole model."""
    return (
        Path(folder, "adapter_config.json").is_file() and not Path(folder, "config.json").is_file()
    )


def _load_adapter(model: str, quantization_config: Any, peft_config: Any, args: Any) -> Any:
    """Load the adapter in the folder `model` on its base, to go on with its training."""
    from peft import PeftConfig, PeftModel
    from trl.trainer.utils import create_model_from_path

    if not Path(model, "adapter_config.json").is_file():
        raise EntryError(f"--model_name_or_path {model} is not the folder of an adapter")
    config = PeftConfig.from_pretrained(model)
    if peft_config is not None and peft_config.r != config.r:
        raise EntryError(f"rank {peft_config.r} was requested, and the adapter has {config.r}")
    settings = dict(args.model_init_kwargs or {}, revision=config.revision or "main")
    if quantization_config is not None:
        settings["quantization_config"] = quantization_config
    if args.distributed_state.distributed_type in _DISTRIBUTED:
        settings["device_map"] = None
    base = create_model_from_path(config.base_model_name_or_path, **settings)
    plugin = args.deepspeed_plugin
    # as TRL for a new adapter: ZeRO-3 needs one type (trl/trainer/sft_trainer.py:844)
    one_type = plugin is not None and plugin.zero_stage == 3 and quantization_config is None
    return PeftModel.from_pretrained(
        base, model, is_trainable=True, autocast_adapter_dtype=not one_type
    )


def _count_of(name: str, options: Mapping[str, str]) -> int:
    text = options[name]
    if not text.isdigit() or int(text) < 1:
        raise EntryError(f"option {name}: '{text}' is not a number above 0")
    return int(text)


def _ignore_bias_buffers(model: Any) -> None:
    """As trl/scripts/dpo.py:110-116."""
    import torch

    names = [name for name, buffer in model.named_buffers() if buffer.dtype == torch.bool]
    model._ddp_params_and_buffers_to_ignore = names
