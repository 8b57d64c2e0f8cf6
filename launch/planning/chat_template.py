"""Which chat template a run gets: `recipe.chat_template`, or else the one that the model's folder brings.

A name is open-instruct's own, or that of a file below launch/templates; a user's `.jinja` file is known by its path.
open-instruct takes a name (`--chat_template_name`), which the patch `chat_template` adds for a file; TRL a file, in a
flag (trl_sft) or an option of launch's own entry. The worker compares the tokenizer with it (the expectation
`chat_template`). Preferences in another template than the one that their model was trained with are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch import resources
from launch.config.origins import Origins
from launch.config.schema import Family, Kind, RootConfig
from launch.errors import Cure, Problem, did_you_mean, refusal
from launch.files import load_json
from launch.planning.inputs import InputSource
from launch.planning.model_folder import hub_snapshot

_OPTIONS = ("chat_template", "trl_chat_template")  # the second is a patch of older runs
_FOLDER = resources.ROOT / "launch" / "templates"
TEMPLATE_FLAG = "chat_template_name"  # of open-instruct
_SUFFIX = ".jinja"
_TRAINING = "_training"  # ends the name of a form with marks around the answers
_MARK = re.compile(r"\{%-?\s*generation\s*-?%\}")  # trl/chat_template_utils.py, has_generation_markers
_KEY = "recipe.chat_template"
_BOS = "{{ bos_token }}"  # open_instruct/dataset_transformation.py:856 prepends it with --add_bos


@dataclass(frozen=True)
class ChatTemplate:
    """The template that a recipe sets."""

    name: str  # open-instruct's, or that of a file below launch/templates; a user's file by its absolute path
    file: Path | None  # None: open-instruct has it under its name

    @property
    def short_name(self) -> str:
        """The name that open-instruct's trainers are given."""
        return Path(self.name).stem if self.file else self.name


def find_template(config: RootConfig, origins: Origins, cwd: Path, upstream: Sequence[str]) -> ChatTemplate | None:
    """Return what recipe.chat_template names; `upstream` are the names that open-instruct's trainers have.

    Raises UserError: unknown_name.
    """
    name, is_trl = config.recipe.chat_template, config.trainer.family == Family.trl
    if name is None:
        return None
    upstream, takes_files = () if is_trl else upstream, is_trl or "chat_template" in config.trainer.patches
    shipped = _shipped() if takes_files else {}
    if name in upstream or name in shipped:
        return ChatTemplate(name, None if name in upstream else shipped[name])
    path = cwd / Path(name).expanduser()
    if takes_files and path.suffix == _SUFFIX and path.is_file():
        return ChatTemplate(str(path), path)
    message, cure = f"{config.trainer.name} has no chat template '{name}'", None
    if takes_files and path.suffix == _SUFFIX:
        message = f"recipe.chat_template={name}: {path} is not a file"
    else:
        names = [known for known in sorted({*shipped, *upstream}) if not known.endswith(_TRAINING)]
        family = [known for known in names if known.startswith(name)]
        near = None if family else did_you_mean(name, names)
        other = f"name a {_SUFFIX} file" if takes_files else "write the template into the model's tokenizer"
        cure = near or f"choose from {', '.join(family or names)}, or {other}"
    raise refusal("unknown_name", message, origins.of(_KEY).where, cure)


def template_warnings(template: ChatTemplate | None) -> tuple[Problem, ...]:
    """Name the others of a family whose first template bears the family's name, as gemma does."""
    if template is None:
        return ()
    others = [other for other in _shipped() if not other.endswith(_TRAINING)]
    later = [other for other in others if re.fullmatch(rf"{re.escape(template.name)}\d\w*", other)]
    if not later:
        return ()
    message = f"recipe.chat_template={template.name} is the format of the family's first models"
    return (Problem("first_of_family", message, _KEY, f"later ones have {', '.join(later)}"),)


def _shipped() -> dict[str, Path]:
    """Return this project's template files, by name."""
    return {path.stem: path for path in sorted(_FOLDER.rglob(f"*{_SUFFIX}"))}


def needs_begin_token(family: Family, template: object, tokenizer: object) -> bool | None:
    """Return the `add_bos` that open-instruct insists on with a template and a tokenizer; None where it takes either.

    It looks for "olmo" in the tokenizer's path and in the template's name (dataset_transformation.py:785-791).
    """
    if family != Family.open_instruct or template is None or "olmo" not in str(tokenizer or "").lower():
        return None
    return "olmo" not in str(template)


def check_template(
    config: RootConfig,
    origins: Origins,
    model: InputSource,
    flags: Mapping[str, Any],
    options: Sequence[str],
    *,
    environ: Mapping[str, str],
) -> None:
    """Check that there is a template, with the marks that the trainer's masks need, and that preferences have that of
    the run whose model they start from; a stage that names none takes the model's. `flags`: by name, their values;
    `options`: those of TRL's entry, and patches.

    Raises UserError: no_chat_template, no_generation_marks, other_chat_template.
    """
    template = find_template_name(flags, options)
    folder = model.adapter.folder if model.adapter else model.local
    own = flags.get("tokenizer_name_or_path")
    tokenizer = Path(str(own)) if own else folder or hub_snapshot(model.reference, environ)
    text = _read_file(template) if template else read_template(tokenizer) if tokenizer else None
    if template is None and text is None and tokenizer and (tokenizer / "tokenizer_config.json").is_file():
        message = f"the tokenizer in {tokenizer} has no chat template, and recipe.chat_template is not set"
        cure = Cure("set {0} or another template, or start from a chat model", f"{_KEY}=tulu")
        raise refusal("no_chat_template", message, model.provenance.where, cure)
    if text is not None and flags.get("assistant_only_loss") is True and not _has_marks(text):
        what = f"recipe.chat_template={template}" if template else f"the chat template of {tokenizer}"
        message = f"{what} does not mark the answers ({{% generation %}}), which {config.trainer.name}'s masks need"
        sentence = "set recipe.chat_template to one that does, {0}, which needs no marks, or {1}: a loss on all turns"
        cure = Cure(sentence, "trainer=finetune", "flags.assistant_only_loss=false")
        raise refusal("no_generation_marks", message, origins.of(_KEY).where, cure)
    if template is None or folder is None or config.stage.kind == Kind.sft or "other_chat_template" in config.allow:
        return
    run = folder.parent
    try:
        plan: dict[str, Any] = load_json(run / "plan.json")
        recorded = {name: flag["value"] for name, flag in plan["flags"].items()}
        trained = find_template_name(recorded, [*plan["patches"], *plan.get("options", ())])
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return  # not the model of a run
    if not brings_template(folder, template):
        refuse_other_template(template, trained or "the tokenizer's own", f"the run in {run}", origins)


def _has_marks(text: str) -> bool:
    """Whether a template marks the answers, or TRL has a form of it that does (trl/chat_template_utils.py,
    get_training_chat_template: equal texts)."""
    forms = _shipped()
    trainable = (forms[name.removesuffix(_TRAINING)] for name in forms if name.endswith(_TRAINING))
    return bool(_MARK.search(text)) or any(path.read_text(encoding="utf-8") == text for path in trainable)


def brings_template(folder: Path | None, template: str) -> bool | None:
    """Whether a tokenizer's folder brings this template; None where it brings none."""
    own, named = read_template(folder) if folder else None, _read_file(template)
    return None if own is None else named is not None and _normalize(own) == _normalize(named)


def refuse_other_template(template: str, trained: str, who: str, origins: Origins) -> None:
    """Raise UserError (other_chat_template) unless both templates are the same."""
    if template == trained:
        return
    message = f"recipe.chat_template={template}, but {who} trained the model with {trained}"
    sentence = "remove it: the model's own template is used; or set {1}"
    cure = Cure(sentence, "~recipe.chat_template", "allow=[other_chat_template]")
    raise refusal("other_chat_template", message, origins.of(_KEY).where, cure)


def find_template_name(flags: Mapping[str, Any], options: Sequence[str]) -> str | None:
    """Return the template that flags (by name, their values), options and patches set: its name, of a user's file the
    path. None: the tokenizer's own."""
    values = [value for name, _, value in (option.partition("=") for option in options) if name in _OPTIONS]
    file = str(flags.get("chat_template_path") or next(iter(values), ""))
    if file and _FOLDER.name not in Path(file).parts:
        return file
    name = Path(file).stem if file else flags.get(TEMPLATE_FLAG)
    return str(name) if name else None


def read_template(folder: Path) -> str | None:
    """Return the chat template that a tokenizer's folder brings."""
    try:
        if (folder / "chat_template.jinja").is_file():
            return (folder / "chat_template.jinja").read_text(encoding="utf-8")
        text = load_json(folder / "tokenizer_config.json").get("chat_template")
        if isinstance(text, list):  # named variants
            text = next(entry["template"] for entry in text if entry["name"] == "default")
        return text if isinstance(text, str) else load_json(folder / "chat_template.json")["chat_template"]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, StopIteration):
        return None


def template_file(name: str) -> Path | None:
    """Return the file of a template of this project, or the user's; None for one that open-instruct alone has."""
    path = _shipped().get(name) or Path(name)
    return path if path.is_file() else None


def _read_file(name: str) -> str | None:
    path = template_file(name)
    return path.read_text(encoding="utf-8") if path else None


def _normalize(text: str) -> str:
    return text.strip().removeprefix(_BOS).strip()
