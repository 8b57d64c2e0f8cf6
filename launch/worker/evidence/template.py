"""Checks the chat template of the trainer's tokenizer by its content: upstream falls back silently."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from ..finding import Evidence, unproven
from ..trainer import TrainerProgram
from .trainer_objects import TrainerObjects

_BOS = "{{ bos_token }}"  # open_instruct/dataset_transformation.py:856 prepends it with --add_bos
_TEMPLATES = Path(__file__).parents[2] / "templates"


def collect(objects: TrainerObjects, program: TrainerProgram, requested: str | None) -> list[Evidence]:
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
