"""Checks what a run starts from: the weights, the adapter, the chat template and the step."""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ..trainer import TrainerProgram
from . import Evidence
from .adapter_kind import is_whole_module
from .precision import count_elements, dtypes_by_size
from .tensors import stored
from .trainer_objects import TrainerObjects

_CHECKPOINT = "checkpoint"
_SHOWN = 3
# The new head of a reward model (transformers modeling_layers.py, GenericForSequenceClassification).
_NEW_HEADS = ("score.", "classifier.")
_HEADS = (*_NEW_HEADS, "lm_head.")
_BOS = "{{ bos_token }}"  # open_instruct/dataset_transformation.py:856 prepends it with --add_bos
_TEMPLATES = Path(__file__).parents[2] / "templates"
_TRL_DIGESTS = Path(__file__).parents[2] / "upstream" / "data" / "chat_templates.json"


def check_weights(model: Any, source: object, info: Any) -> Evidence:
    """Compare a model's weights with what its checkpoint had.

    `info` is transformers' LoadStateDictInfo. Its `missing_keys` are drawn at random, and so are
    its `mismatched_keys`, whose shape differs. Its `unexpected_keys` are not loaded: those of
    another head do no harm, while a layer that the configuration does not have makes another model.
    """
    how = f"transformers' report of loading {source}"
    commit = getattr(model.config, "_commit_hash", None)  # only a hub repository has one
    if commit:
        how += f" at commit {commit}"
    absent = _describe_random_weights(type(model).__name__, info)
    unused = sorted(key for key in info.unexpected_keys if not key.startswith(_HEADS))
    if absent:
        faults = absent
        value = f"{len(faults)} weights at random"
    else:
        faults = unused
        value = f"{len(faults)} weights that the model's config.json has no place for"
    if not faults:
        return Evidence("weights", _CHECKPOINT, how)
    note = ", ".join(faults[:_SHOWN])
    if len(faults) > _SHOWN:
        note += f", and {len(faults) - _SHOWN} more"
    return Evidence("weights", value, how, note=note).judge(_CHECKPOINT, False)


def _describe_random_weights(model_class: str, info: Any) -> list[str]:
    """Return a phrase for each weight that transformers has drawn at random."""
    # A classification head is new by intention.
    makes_head = model_class.endswith("ForSequenceClassification")
    missing = sorted(info.missing_keys)
    if makes_head:
        missing = [key for key in missing if not key.startswith(_NEW_HEADS)]
    mismatched = sorted(key for key, *_ in info.mismatched_keys)
    phrases = [f"{key} is missing" for key in missing]
    phrases += [f"{key} has another shape" for key in mismatched]
    return phrases


def pin_base(model: Any) -> None:
    """Set the commit of an adapter's hub base in its configuration.

    The adapter is then loaded on these weights alone.
    """
    for config in getattr(model, "peft_config", {}).values():
        config.revision = getattr(model.config, "_commit_hash", None) or config.revision


# This repeats launch.planning.chat_template.TOKENIZERS_OWN, which this interpreter may not have.
_TOKENIZERS_OWN = ("olmo123",)


def check_template(tokenizer: Any, program: TrainerProgram, requested: str | None) -> Evidence:
    """Return the evidence "chat_template".

    Its value is the name of the template, `requested` or known, else the digest of its text.
    """
    template = getattr(tokenizer, "chat_template", None)
    if not isinstance(template, str):
        how = "the trainer's tokenizer was not found, or has no template"
        return Evidence("chat_template", None, how)
    how = "tokenizer.chat_template"
    digest = f"sha256:{hashlib.sha256(template.encode()).hexdigest()[:12]}"
    if requested in _TOKENIZERS_OWN and template == _read_own(tokenizer):
        return Evidence("chat_template", requested, how, note=f"the tokenizer's own, {digest}")
    name = _find_name(template, program, requested)
    if name is None:
        return Evidence("chat_template", digest, how)
    return Evidence("chat_template", name, how, note=digest)


def _read_own(tokenizer: Any) -> str | None:
    """Return the template in a tokenizer's own files; None if they can't be read."""
    from transformers import AutoTokenizer

    try:
        own = AutoTokenizer.from_pretrained(tokenizer.name_or_path)
    except (OSError, ValueError):
        return None
    return getattr(own, "chat_template", None)


def _find_name(template: str, program: TrainerProgram, requested: str | None) -> str | None:
    """Return the name of a template, by its text; the path of a user's file.

    It is searched in the run's own files, and then among the templates of open-instruct, this
    project and TRL.
    """
    forms = (template.strip(), template.removeprefix(_BOS).strip())
    for name, text in _known_templates(program, requested):
        if text.strip() in forms:
            return name
    return _find_trl_name(forms)


def _known_templates(program: TrainerProgram, requested: str | None) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each template; a name can have two texts, as tulu has."""
    for path in _template_files(program, requested):
        text = _read_template(path)
        if text is not None:
            yield path if path == requested else Path(path).stem, text
    upstream = sys.modules.get("open_instruct.dataset_transformation")
    yield from getattr(upstream, "CHAT_TEMPLATES", {}).items()
    for file in sorted(_TEMPLATES.glob("*.jinja")):
        yield file.stem, file.read_text(encoding="utf-8")


def remember_templates(program: TrainerProgram, requested: str | None) -> None:
    """Read the templates that the trainer is to load: the user may edit a file after that."""
    for path in _template_files(program, requested):
        _read_template(path)


def _template_files(program: TrainerProgram, requested: str | None) -> list[str]:
    paths = (requested, program.flag("chat_template_path"), program.template_file)
    return [path for path in paths if path]


@cache
def _read_template(path: str) -> str | None:
    """Return the text of a template; None for the name of one."""
    return Path(path).read_text(encoding="utf-8") if Path(path).is_file() else None


def _find_trl_name(forms: Sequence[str]) -> str | None:
    """Return the name of TRL's template with one of these texts, by the digests of the lock."""
    try:
        names = json.loads(_TRL_DIGESTS.read_text(encoding="utf-8"))["digests"]
    except (OSError, ValueError, LookupError):
        return None
    files = []
    for form in forms:
        for text in (form, f"{form}\n"):
            files += [text, text.replace("\n", "\r\n")]  # TRL 1.16 has a file with CR LF
    digests = {hashlib.sha256(text.encode()).hexdigest()[:16] for text in files}
    return next((name for name, digest in names.items() if digest in digests), None)


def check_step(objects: TrainerObjects, requested: str | None) -> Evidence:
    """Return the evidence "resumed_step": the optimizer steps that were done before this process.

    They are 0 for a new run.
    """
    if objects.step is None:
        return Evidence("resumed_step", None, "the training loop was not found")
    how = "completed_steps of the training loop"
    if objects.trainer is not None:
        how = "TrainerState.global_step"
    if objects.checkpoint:
        how += f"; loaded {objects.checkpoint}"
    scheduled = _find_scheduled_step(objects)
    agrees = scheduled in (None, objects.step)
    note = None if agrees else f"the checkpoint's learning-rate schedule is at step {scheduled}"
    evidence = Evidence("resumed_step", objects.step, how, note=note)
    has_loaded = objects.step == 0 or objects.checkpoint is not None
    is_requested = str(objects.step) == requested
    return evidence.judge(requested, is_requested and has_loaded and agrees)


def _find_scheduled_step(objects: TrainerObjects) -> int | None:
    """Return the optimizer steps that accelerate's scheduler has seen; None without a scheduler.

    A checkpoint holds the scheduler. Every rank steps it once for each optimizer step
    (accelerate/scheduler.py:75).
    """
    prepared: Any = next(iter(getattr(objects.accelerator, "_schedulers", [])), None)
    if not objects.step or type(prepared).__name__ != "AcceleratedScheduler":
        return None
    ranks = 1 if prepared.split_batches else objects.accelerator.num_processes
    return int(prepared.scheduler.last_epoch) // ranks


_PARAMETERS = "named_parameters() of the model"
_ADAPTER = "lora_"


def check_lora(
    objects: TrainerObjects, rank: str | None, modules: str | None = None
) -> list[Evidence]:
    """Return the evidence "lora" (rank, layers and trained parameters) and "base_dtype" (the type
    of the frozen weights).

    `rank` is the requested one. Without it, a model without an adapter gives no evidence.
    `modules` are the names of those that are to be trained as a whole.
    """
    ranks = sorted(_find_ranks(objects.model))
    if not ranks:
        return [Evidence("lora", "none", "the model's layers")] if rank else []
    trained = {name: p for name, p in objects.model.named_parameters() if p.requires_grad}
    frozen = {name: p for name, p in objects.model.named_parameters() if name not in trained}
    others = [name for name in trained if _ADAPTER not in name]
    if modules is not None:
        others = [name for name in others if not is_whole_module(name)]
    trained_count = sum(map(count_elements, trained.values()))
    total = trained_count + sum(map(count_elements, frozen.values()))
    layers = sum(1 for name in trained if "lora_B" in name)
    value = f"rank {','.join(map(str, ranks))} on {layers} layers"
    share = trained_count / total
    note = f"{trained_count:,} of {total:,} parameters are trained ({share:.2%})"
    if others:
        note = f"{note}; {len(others)} of them are not the adapter's: {others[0]}"
    lora = Evidence("lora", value, _PARAMETERS, note=note)
    adapted = [p for name, p in frozen.items() if ".base_layer." in name]
    stored = next(iter(dtypes_by_size(adapted)), None)
    has_rank = [str(layer_rank) for layer_rank in ranks] == [rank]
    return [
        lora.judge(rank, has_rank and not others),
        Evidence("base_dtype", stored, "LoraLayer.base_layer, the weights of the adapted layers"),
    ]


def check_adapter_settings(model: Any, requested: Mapping[str, str]) -> list[Evidence]:
    """Return the evidence "lora_alpha" and "lora_dropout" of those that are requested.

    The alpha is that of the factor that a layer multiplies the adapter's output with, which is
    alpha / rank, or alpha / sqrt(rank) with rsLoRA (peft/tuners/lora/layer.py, update_layer).
    """
    found = {
        "lora_alpha": (_find_alphas(model), "LoraLayer.scaling of the adapted layers"),
        "lora_dropout": (_find_dropouts(model), "LoraLayer.lora_dropout of the adapted layers"),
    }
    evidence = []
    for name, (values, how) in found.items():
        if name in requested:
            value = ",".join(f"{number:g}" for number in sorted(values)) or "none"
            is_requested = values == {float(requested[name])}
            evidence.append(Evidence(name, value, how).judge(requested[name], is_requested))
    return evidence


def check_adapter_start(objects: TrainerObjects, requested: str | None) -> list[Evidence]:
    """Return the evidence "lora_start": whether the adapter is new or continues a trained one.

    The second matrices of a new adapter are zero, so that it changes nothing
    (peft/tuners/lora/layer.py, reset_lora_parameters). `requested` is "merged" for a new one, or
    "continue"; without it there is no evidence. A run that is resumed shows only that it was.
    """
    if requested is None:
        return []
    if objects.step:
        resumed = Evidence("lora_start", "resumed", f"its checkpoint of step {objects.step}")
        return [resumed.judge(requested, True)]
    second = [p for name, p in objects.model.named_parameters() if "lora_B" in name]
    trained = sum(bool(stored(matrix).any()) for matrix in second)
    found = "continue" if trained else "merged"
    note = f"{trained} of the adapter's {len(second)} B matrices are not zero"
    if not trained:
        note = f"all {len(second)} B matrices of the adapter are zero"
    evidence = Evidence(
        "lora_start", found, "lora_B of the adapter before its first step", note=note
    )
    return [evidence.judge(requested, bool(second) and found == requested)]


def check_adapter_targets(model: Any, requested: str | None) -> list[Evidence]:
    """Return the evidence "lora_targets": which layers have an adapter.

    `requested` is "all-linear", which is every linear layer but the output layer, or the names of
    layers, `k_proj,q_proj`. Without it there is no evidence.
    """
    if requested is None:
        return []
    adapted, bare = _split_linear_layers(model)
    names = sorted({_last_part(path) for path in adapted})
    how = f"the names of {len(adapted)} adapted layers"
    if requested == "all-linear":
        left_out = [path for path in bare if not f"{path}.".startswith(_HEADS)]
        note = f"{len(left_out)} linear layers have none: {left_out[0]}" if left_out else None
        found = "all-linear" if adapted and not left_out else ",".join(names) or "none"
    else:
        targets = requested.split(",")
        left_out = [path for path in bare if _last_part(path) in targets]
        note = f"{len(left_out)} layers of these names have none" if left_out else None
        found = ",".join(names) or "none"
    evidence = Evidence("lora_targets", found, how, note=note)
    return [evidence.judge(requested, found == requested and not left_out)]


def _split_linear_layers(model: Any) -> tuple[list[str], list[str]]:
    """Return the paths of the linear layers with an adapter, and of those without."""
    import torch

    adapted = []
    bare = []
    for path, module in model.named_modules():
        plain = path.removeprefix("base_model.model.")
        if hasattr(module, "parameter_name"):  # an adapter of a parameter, and not of a layer
            continue
        if hasattr(module, "base_layer") and hasattr(module, "lora_A"):
            adapted.append(plain)
        elif isinstance(module, torch.nn.Linear) and not _is_of_adapter(plain):
            bare.append(plain)
    return adapted, bare


def _is_of_adapter(path: str) -> bool:
    """Whether a linear layer is a part of an adapter, or what an adapter was put around."""
    parts = path.split(".")
    return "base_layer" in parts or any(part.startswith("lora_") for part in parts)


def _last_part(path: str) -> str:
    return path.rpartition(".")[2]


def _find_alphas(model: Any) -> set[float]:
    alphas = set()
    for module in model.modules():
        if not isinstance(getattr(module, "scaling", None), Mapping):
            continue
        uses_rslora = getattr(module, "use_rslora", {})
        for adapter, scaling in module.scaling.items():
            rank = module.r[adapter]
            divisor = math.sqrt(rank) if uses_rslora.get(adapter) else rank
            alphas.add(round(scaling * divisor, 6))
    return alphas


def _find_dropouts(model: Any) -> set[float]:
    dropouts: set[float] = set()
    for module in model.modules():
        layers = getattr(module, "lora_dropout", None)
        if layers is not None and hasattr(layers, "values"):
            # Without dropout the layer is an Identity.
            dropouts.update(float(getattr(layer, "p", 0.0)) for layer in layers.values())
    return dropouts


def _find_ranks(model: Any) -> set[int]:
    """Return the ranks of a model's adapted layers, which have one for each adapter."""
    found: set[int] = set()
    for module in model.modules():
        ranks = getattr(module, "r", None)
        if isinstance(ranks, Mapping):
            found.update(int(rank) for rank in ranks.values())
    return found
