"""Checks what a run starts from: the weights of its checkpoint, the tokenizer's chat template, the step."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

from ..finding import Evidence, unproven
from ..trainer import TrainerProgram
from .trainer_objects import TrainerObjects

_CHECKPOINT = "checkpoint"
_SHOWN = 3
# a reward model's new head (transformers modeling_layers.py, GenericForSequenceClassification)
_NEW_HEADS = ("score.", "classifier.")
_BOS = "{{ bos_token }}"  # open_instruct/dataset_transformation.py:856 prepends it with --add_bos
_TEMPLATES = Path(__file__).parents[2] / "templates"


def check_weights(model: Any, source: object, info: Any) -> Evidence:
    """Compare a model's weights with what its checkpoint had.

    `info`: transformers' LoadStateDictInfo: `missing_keys` are drawn at random, and so are `mismatched_keys`, whose
    shape differs. A checkpoint's further weights, as of another head, are not used and do no harm.
    """
    how = f"transformers' report of loading {source}"
    makes_head = type(model).__name__.endswith("ForSequenceClassification")
    missing = sorted(key for key in info.missing_keys if not (makes_head and key.startswith(_NEW_HEADS)))
    mismatched = sorted(key for key, *_ in info.mismatched_keys)
    if not missing and not mismatched:
        return Evidence("weights", _CHECKPOINT, how)
    absent = [f"{key} is missing" for key in missing] + [f"{key} has another shape" for key in mismatched]
    more = f", and {len(absent) - _SHOWN} more" if len(absent) > _SHOWN else ""
    finding = Evidence("weights", f"{len(absent)} weights at random", how, note=", ".join(absent[:_SHOWN]) + more)
    return finding.judge(_CHECKPOINT, False)


def check_template(objects: TrainerObjects, program: TrainerProgram, requested: str | None) -> list[Evidence]:
    """Return the finding "chat_template": the name of a known template, else its digest."""
    template = getattr(objects.tokenizer, "chat_template", None)
    if not isinstance(template, str):
        return unproven("chat_template", requested, "the trainer's tokenizer was not found, or has no template")
    digest = f"sha256:{hashlib.sha256(template.encode()).hexdigest()[:12]}"
    name = _find_name(template, program)
    finding = Evidence("chat_template", name or digest, "the trainer's tokenizer", note=digest if name else None)
    return [finding.compare(requested)]


def _find_name(template: str, program: TrainerProgram) -> str | None:
    """Return its name among open-instruct's templates and this project's, or the stem of TRL's --chat_template_path."""
    upstream = getattr(sys.modules.get("open_instruct.dataset_transformation"), "CHAT_TEMPLATES", {})
    templates: list[tuple[str, str]] = list(upstream.items())  # not a dict: a name can have two texts, as tulu has
    given = program.flag("chat_template_path")
    files = (*_TEMPLATES.glob("*.jinja"), *([Path(given)] if given and Path(given).is_file() else []))
    templates += [(path.stem, path.read_text(encoding="utf-8")) for path in files]
    without_bos = template.removeprefix(_BOS)
    return next((name for name, text in templates if text.strip() in (template.strip(), without_bos.strip())), None)


def check_step(objects: TrainerObjects, requested: str | None) -> list[Evidence]:
    """Return the finding "resumed_step": optimizer steps done before this process, 0 for a new run."""
    if objects.step is None:
        return unproven("resumed_step", requested, "the training loop was not found")
    how = f"the training loop; loaded {objects.checkpoint}" if objects.checkpoint else "the training loop"
    finding = Evidence("resumed_step", objects.step, how)
    loaded = objects.step == 0 or objects.checkpoint is not None
    return [finding.judge(requested, str(objects.step) == requested and loaded)]
