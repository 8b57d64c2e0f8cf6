"""Which chat template a run gets: `recipe.chat_template`, or else the one that the model's folder brings.

open-instruct takes it by name (`--chat_template_name`); TRL by a file of launch/templates, in a flag (trl_sft) or an
option of launch's own entry (trl_dpo). The worker compares the tokenizer with it (the expectation `chat_template`).
Preferences in another template than the one that their model was trained with are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launch import resources
from launch.config.origins import Origins
from launch.config.schema import Family, Kind, RootConfig
from launch.errors import Cure, Problem, UserError
from launch.files import load_json
from launch.planning.inputs import InputSource

_OPTIONS = ("chat_template", "trl_chat_template")  # the second is a patch of older runs
_FOLDER = resources.ROOT / "launch" / "templates"
_BOS = "{{ bos_token }}"  # open_instruct/dataset_transformation.py:856 prepends it with --add_bos


def template_file(name: str | None) -> str | None:
    """Return the file of one of this project's own templates; None without a name."""
    return str(_FOLDER / f"{name}.jinja") if name else None


def needs_begin_token(family: Family, template: object, tokenizer: object) -> bool | None:
    """Return the `add_bos` that open-instruct insists on with a template and a tokenizer; None where it takes either.

    It looks for "olmo" in the tokenizer's path and in the template's name (dataset_transformation.py:785-791).
    """
    if family != Family.open_instruct or template is None or "olmo" not in str(tokenizer or "").lower():
        return None
    return "olmo" not in str(template)


def check_template(
    config: RootConfig, origins: Origins, model: InputSource, flags: Mapping[str, Any], options: Sequence[str]
) -> None:
    """Compare the template of a stage on a run's model with the run's own; a stage that names none takes the model's.
    `flags`: by name, their values.

    Raises UserError: other_chat_template.
    """
    template = find_template_name(flags, options)
    folder = model.adapter.folder if model.adapter else model.local
    if template is None or folder is None or config.stage.kind == Kind.sft or "other_chat_template" in config.allow:
        return
    run = folder.parent
    try:
        plan: dict[str, Any] = load_json(run / "plan.json")
        recorded = {name: flag["value"] for name, flag in plan["flags"].items()}
        trained = find_template_name(recorded, [*plan["patches"], *plan.get("options", ())])
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return  # not the model of a run
    if trained == template or brings_template(folder, template):
        return
    refuse_other_template(template, trained or "the tokenizer's own", f"the run in {run}", origins)


def brings_template(folder: Path | None, template: str) -> bool | None:
    """Whether a tokenizer's folder brings one of this project's own templates; None where it brings none."""
    own = _read_template(folder) if folder else None
    return None if own is None else own == _read_own(template)


def refuse_other_template(template: str, trained: str, who: str, origins: Origins) -> None:
    """Raise UserError (other_chat_template) unless both templates are the same."""
    if template == trained:
        return
    message = f"recipe.chat_template={template}, but {who} trained the model with {trained}"
    sentence = "remove it: the model's own template is used; or set {1}"
    cure = Cure(sentence, "~recipe.chat_template", "allow=[other_chat_template]")
    raise UserError(Problem("other_chat_template", message, origins.of("recipe.chat_template").where, cure))


def find_template_name(flags: Mapping[str, Any], options: Sequence[str]) -> str | None:
    """Return the name of the template that flags (by name, their values) and options set; None: the tokenizer's own."""
    values = [value for name, _, value in (option.partition("=") for option in options) if name in _OPTIONS]
    file = flags.get("chat_template_path") or next(iter(values), None)
    name = flags.get("chat_template_name") or (Path(str(file)).stem if file else None)
    return str(name) if name else None


def _read_template(folder: Path) -> str | None:
    """Return the chat template that a tokenizer's folder brings."""
    try:
        if (folder / "chat_template.jinja").is_file():
            return _normalize((folder / "chat_template.jinja").read_text(encoding="utf-8"))
        text = load_json(folder / "tokenizer_config.json").get("chat_template")
    except (OSError, ValueError, AttributeError):
        return None
    return _normalize(text) if isinstance(text, str) else None


def _read_own(name: str) -> str | None:
    """Return the text of one of this project's own templates."""
    path = _FOLDER / f"{name}.jinja"
    return _normalize(path.read_text(encoding="utf-8")) if path.is_file() else None


def _normalize(text: str) -> str:
    return text.strip().removeprefix(_BOS).strip()
