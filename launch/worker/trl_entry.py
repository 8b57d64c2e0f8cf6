"""Trains with TRL as a library: with the flags of its scripts and with subclasses of its trainers.

What differs from `trl sft`, `trl dpo`, `trl kto` and `trl grpo` is in OPTIONS (trl_options.py), which
the worker's command line sets, in trl_trainer.py, in trl_kto.py and in trl_rlvr.py. Nothing of TRL is
replaced: its trainers are subclassed, and get their rows, model, tokenizer and callbacks as arguments.
The one exception is `use_staged_form`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import tracker_runs, trl_data, trl_rlvr, trl_samples
from .channel import EventWriter
from .columns import write_lengths
from .hooks import replaces
from .json_codec import decode
from .opened import report_opened
from .reward_proof import prompt_lengths
from .step_events import early_stop, step_events
from .trainer import TrainerProgram
from .trl_options import TRL_VERSION, VerifierOption
from .trl_rewards import Scorer
from .trl_scripts import SCRIPTS, Prepare
from .trl_trainer import EntryError, entry_class

# These need device_map=None (trl/trainer/dpo_trainer.py:570).
_DISTRIBUTED = ("MULTI_GPU", "DEEPSPEED")


@dataclass(frozen=True)
class EntryJob:
    """One command line, parsed."""

    trainer: Any  # TRL's class
    script: Any  # trl.ScriptArguments
    args: Any  # trl.SFTConfig or another one's
    model: Any  # trl.ModelConfig
    mixture: Any  # trl.DatasetMixtureConfig
    options: Mapping[str, str]
    events: EventWriter
    allowed: Collection[str] = ()  # ids of unmet expectations that only warn
    prepare: Prepare | None = None  # as of `Script`


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
    script = job.script
    args = job.args
    trainer = _build(job)
    # Packed rows are not samples, and the rows of a stream can't be counted.
    has_lengths = not getattr(args, "packing", False) and not script.dataset_streaming
    if "lengths" in options and events.rank == 0 and has_lengths:
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

    if ".".join(trl.__version__.split(".")[:2]) != TRL_VERSION:
        raise EntryError(
            f"launch's entry is written for TRL {TRL_VERSION}, and TRL {trl.__version__} is "
            "installed"
        )
    entry = SCRIPTS[str(program.module)]
    config = getattr(trl, entry.config)
    classes = (trl.ScriptArguments, config, trl.ModelConfig, trl.DatasetMixtureConfig)
    parser = trl.TrlParser(classes)
    script, args, model, mixture = parser.parse_args_and_config(
        list(program.flags), fail_with_unknown_args=False
    )
    args.model_init_kwargs = {
        "revision": model.model_revision,
        "trust_remote_code": args.trust_remote_code,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype,
        **(args.model_init_kwargs or {}),
    }
    trainer = getattr(trl, entry.trainer)
    return EntryJob(trainer, script, args, model, mixture, options, events, allowed, entry.prepare)


def _build(job: EntryJob) -> Any:
    """Build TRL's trainer; nothing has been trained yet."""
    script = job.script
    args = job.args
    data = _load_data(job)
    train = data[script.dataset_train_split]
    job.events.begin("load")
    evaluated = _evaluated_split(job)
    held_out = None if evaluated is None else data[evaluated]
    curves = tuple(held_out) if isinstance(held_out, dict) else ()
    arguments = {
        "callbacks": _create_callbacks(job, curves),
        "train_dataset": train,
        "eval_dataset": held_out,
        **_load_model_arguments(job),
    }
    tokenizer = arguments["processing_class"]
    template = getattr(args, "chat_template_path", None)
    if template:
        use_staged_form(Path(template))
    entry = entry_class(job.trainer, args, job.events, job.options.get("learns"))
    sample_every = _count_of("samples", job.options) if "samples" in job.options else None
    if "verifier" in job.options:
        scorer = _create_scorer(job, train, tokenizer)
        arguments["reward_funcs"] = scorer.reward_functions()
        args.reward_weights = list(scorer.weights.values())
        entry = trl_rlvr.rlvr_class(entry, scorer, job.events, job.allowed)
        entry = trl_samples.sampling_class(entry, sample_every, entry.sample)
    elif sample_every is not None:
        rows = data.get(script.dataset_test_split, train)
        if curves:
            rows = rows[curves[0]]
        entry = _answering_class(entry, sample_every, job, rows, tokenizer)
    trainer = _construct(entry, args, arguments)
    if template:  # TRL has read it
        report_opened([Path(template)], job.events)
    return trainer


def _load_data(job: EntryJob) -> Any:
    try:
        data = trl_data.load(job.script, job.mixture, job.options)
        if job.prepare is not None:
            trained = job.script.dataset_train_split
            data = job.prepare(data, trained, _evaluated_split(job), job.args.seed)
        return data
    except ValueError as error:
        raise EntryError(str(error)) from error


def _evaluated_split(job: EntryJob) -> str | None:
    """Return the name of the split that is evaluated; None without an evaluation."""
    return job.script.dataset_test_split if job.args.eval_strategy != "no" else None


def _create_callbacks(job: EntryJob, curves: Sequence[str]) -> list[Any]:
    """Return the callbacks; `curves` are the names of several validation sets."""
    callbacks = [step_events(job.events, curves)]
    callbacks += tracker_runs.continue_run(job.args, job.events.rank, os.environ)
    if "early_stop" in job.options:
        patience = _count_of("early_stop", job.options)
        callbacks.append(early_stop(job.events, patience))
    return callbacks


def _load_model_arguments(job: EntryJob) -> dict[str, Any]:
    """Return the arguments of TRL's trainer for the model, its tokenizer and its adapter."""
    from trl import get_peft_config, get_quantization_config

    model = job.model
    args = job.args
    tokenizer = load_tokenizer(job)
    quantization = get_quantization_config(model)
    adapter = get_peft_config(model)
    if "adapter_init" in job.options:  # TRL 1.16 has no flag for it (trl/trainer/utils.py:295-306)
        adapter.init_lora_weights = job.options["adapter_init"]
    arguments = {
        "model": model.model_name_or_path,
        "processing_class": tokenizer,
        "quantization_config": quantization,
        "peft_config": adapter,
    }
    if "continue_adapter" in job.options:
        # The trainer gets a loaded model, with which it refuses settings of loading one.
        arguments["model"] = _load_adapter(model.model_name_or_path, quantization, adapter, args)
        arguments["quantization_config"] = None
        arguments["peft_config"] = None
        args.model_init_kwargs = None
    return arguments


def _create_scorer(job: EntryJob, train: Any, tokenizer: Any) -> Scorer:
    """Create the scorer of RLVR. Raises VerifierError if a prompt is too long for the window."""
    option = decode(VerifierOption, job.options["verifier"])
    prompt_lengths(train["prompt"], tokenizer, option.window, job.args.max_completion_length)
    return Scorer(option, train, job.events)


def _answering_class(entry: Any, every: int, job: EntryJob, rows: Any, tokenizer: Any) -> Any:
    """Return a subclass of `entry` that answers prompts of `rows` every few steps; `entry` itself
    if the rows have no prompts.
    """
    longest = (getattr(job.args, "max_length", None) or 1024) // 2
    prompts = trl_samples.find_prompts(rows, tokenizer, longest)
    if not prompts:
        job.events.warn("recipe.sample_every: the rows have no prompts to answer")
        return entry

    def answer(trainer: Any) -> dict[str, float]:
        return trl_samples.answer_prompts(trainer, prompts, job.events)

    return trl_samples.sampling_class(entry, every, answer)


def _construct(entry: Any, args: Any, arguments: Mapping[str, Any]) -> Any:
    """Construct the trainer, without a length where the entry truncates (see trl_trainer.py)."""
    if not entry.truncates:
        return entry(args=args, **arguments)
    limit = args.max_length
    args.max_length = None
    try:
        return entry(args=args, **arguments)
    finally:
        args.max_length = limit


def load_tokenizer(job: EntryJob) -> Any:
    """Load the tokenizer that TRL's trainers would, or an adapter's own, and set the template of
    the options.
    """
    from transformers import AutoProcessor, AutoTokenizer

    model = job.model.model_name_or_path
    args = job.args
    auto = AutoTokenizer if is_adapter(model) else AutoProcessor
    revision = (args.model_init_kwargs or {}).get("revision")
    tokenizer = auto.from_pretrained(
        model, revision=revision, trust_remote_code=args.trust_remote_code
    )
    if "chat_template" in job.options:
        file = Path(job.options["chat_template"])
        tokenizer.chat_template = file.read_text(encoding="utf-8")
        report_opened([file], job.events)
    return tokenizer


def use_staged_form(template: Path) -> None:
    """Have TRL compute the loss with the staged form of the template that marks the answers.

    It lies beside the template's file as NAME_training. TRL finds this form by the text that its
    own version has (trl/trainer/sft_trainer.py:942), but a run continues with the texts that it
    started with. Where these are the installed version's, nothing is replaced.
    """
    from trl.trainer import sft_trainer

    form_with_marks = template.with_name(f"{template.stem}_training{template.suffix}")
    if not form_with_marks.is_file():
        return
    of_trl = Path(sft_trainer.__file__).parents[1] / "chat_templates"
    if all(_holds_text(of_trl / form.name, form) for form in (template, form_with_marks)):
        return
    plain = template.read_text(encoding="utf-8")
    marked = form_with_marks.read_text(encoding="utf-8")

    @replaces(sft_trainer, "get_training_chat_template")
    def choose_form(choose: Any, tokenizer: Any, *arguments: Any, **options: Any) -> Any:
        if tokenizer.chat_template == plain:
            return marked
        return choose(tokenizer, *arguments, **options)


def _holds_text(path: Path, other: Path) -> bool:
    return path.is_file() and path.read_bytes() == other.read_bytes()


def is_adapter(folder: str) -> bool:
    """Whether the folder holds an adapter and no whole model."""
    return (
        Path(folder, "adapter_config.json").is_file() and not Path(folder, "config.json").is_file()
    )


def _load_adapter(model: str, quantization_config: Any, peft_config: Any, args: Any) -> Any:
    """Load the adapter in the folder `model` on its base, to continue its training."""
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
    # ZeRO-3 needs one type, as for a new adapter in TRL (trl/trainer/sft_trainer.py:844).
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
    """Have DDP ignore boolean buffers, as trl/scripts/dpo.py:110-116 does."""
    import torch

    names = [name for name, buffer in model.named_buffers() if buffer.dtype == torch.bool]
    model._ddp_params_and_buffers_to_ignore = names
