"""Refuses preferences in another chat template than the one that their model was trained with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launch import resources
from launch.config.origins import Origins
from launch.config.schema import Kind, RootConfig
from launch.errors import Problem, UserError
from launch.files import load_json
from launch.planning.flags import Flag
from launch.planning.inputs import InputSource

_OPTIONS = ("chat_template", "trl_chat_template")  # the second is a patch of older runs
_BOS = "{{ bos_token }}"  # open_instruct/dataset_transformation.py:856 prepends it with --add_bos


def check_template(
    config: RootConfig, origins: Origins, model: InputSource, flags: Mapping[str, Flag], options: Sequence[str]
) -> None:
    """Compare the template of a stage on a run's model with the run's own; a stage that names none takes the model's.

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
        trained = _template_name(recorded, [*plan["patches"], *plan.get("options", ())])
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return  # not the model of a run
    own = _read_template(folder)
    if trained == template or (own is not None and own == _read_text(f"{template}.jinja")):
        return
    refuse_other_template(template, trained or "the tokenizer's own", f"the run in {run}", origins)


def refuse_other_template(template: str, trained: str, who: str, origins: Origins) -> None:
    """Raise UserError (other_chat_template) unless both templates are the same."""
    if template == trained:
        return
    message = f"recipe.chat_template={template}, but {who} trained the model with {trained}"
    cure = "remove it: the model's own template is used; or set allow=[other_chat_template]"
    raise UserError(Problem("other_chat_template", message, origins.of("recipe.chat_template").where, cure))


def find_template_name(flags: Mapping[str, Flag], options: Sequence[str]) -> str | None:
    """Return the name of the template that a plan sets; None where it is the tokenizer's own."""
    return _template_name({name: flag.value for name, flag in flags.items()}, options)


def _template_name(flags: Mapping[str, Any], options: Sequence[str]) -> str | None:
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


def _read_text(name: str) -> str | None:
    """Return the text of one of this project's own templates."""
    path = Path(resources.ROOT, "launch", "templates", name)
    return _normalize(path.read_text(encoding="utf-8")) if path.is_file() else None


def _normalize(text: str) -> str:
    return text.strip().removeprefix(_BOS).strip()
