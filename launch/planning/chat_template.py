"""Which chat template a run gets: `recipe.chat_template`, or else the one that the model's folder
brings.

A name is open-instruct's own, that of a file in launch/templates, or TRL's
(launch/upstream/trl_templates.py); a user's `.jinja` file is known by its path. open-instruct takes
a name (`--chat_template_name`), which the patch `chat_template` adds for a file; TRL a file, in a
flag (trl_sft) or an option of launch's own entry. The worker compares the tokenizer with it (the
expectation `chat_template`). Preferences in another template than the one that their model was
trained with are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launch import resources
from launch.config.origins import Origins
from launch.config.schema import Family, Kind, RootConfig
from launch.errors import did_you_mean, refusal
from launch.files import load_json, read_json_object
from launch.planning.inputs import InputSource
from launch.planning.model_folder import hub_snapshot
from launch.upstream.trl_templates import (
    SUFFIX,
    TemplateFinder,
    TrlTemplate,
    digest_text,
    family_names,
    has_marks,
    load_templates,
    staged_name,
)
from launch.worker.finding import Finding, Fix

_OPTION = "chat_template"
_FOLDER = resources.ROOT / "launch" / "templates"
# of any installation
_OF_LAUNCH = re.compile(rf".*/launch/templates/[^/]+\{SUFFIX}")
STAGED = "chat_templates"  # below the cache: TRL's templates, where runs read them from
TEMPLATE_FLAG = "chat_template_name"  # of open-instruct
_KEY = "recipe.chat_template"
_BOS = "{{ bos_token }}"  # open_instruct/dataset_transformation.py:856 prepends it with --add_bos


@dataclass(frozen=True)
class ChatTemplate:
    """The template that a recipe sets."""

    # open-instruct's, TRL's, or that of a file in launch/templates; a user's file by its absolute
    # path
    name: str
    file: Path | None  # that the trainer reads; None: open-instruct has it under its name
    trl: TrlTemplate | None = None  # a template of TRL's, whose `file` is written before a run

    @property
    def short_name(self) -> str:
        """The name that open-instruct's trainers are given."""
        return Path(self.name).stem if self.file else self.name


def find_template(
    config: RootConfig, origins: Origins, cwd: Path, upstream: Sequence[str], finder: TemplateFinder
) -> ChatTemplate | None:
    """Return what recipe.chat_template names; `upstream` are the names that open-instruct's
    trainers have.

    Raises UserError: unknown_name.
    """
    name, is_trl = config.recipe.chat_template, config.trainer.family == Family.trl
    if name is None:
        return None
    upstream, takes_files = (
        () if is_trl else upstream,
        is_trl or "chat_template" in config.trainer.patches,
    )
    if name in upstream:
        return ChatTemplate(name, None)
    if takes_files and (own := _own_templates().get(name)):
        return ChatTemplate(name, own)
    if takes_files and (template := finder.find(name)):
        return ChatTemplate(name, template.file_below(finder.staged), template)
    path = cwd / Path(name).expanduser()
    if takes_files and path.suffix == SUFFIX and path.is_file():
        return ChatTemplate(str(path), path)
    message, cure = f"{config.trainer.name} has no chat template '{name}'", None
    if takes_files and path.suffix == SUFFIX:
        message = f"recipe.chat_template={name}: {path} is not a file"
    else:
        shipped = {*_own_templates(), *finder.names()} if takes_files else set[str]()
        names = [
            known for known in sorted({*shipped, *upstream}) if family_names(known)[0] == known
        ]
        family = [known for known in names if known.startswith(name)]
        near = None if family else did_you_mean(name, names)
        other = (
            f"name a {SUFFIX} file"
            if takes_files
            else "write the template into the model's tokenizer"
        )
        cure = near or f"choose from {', '.join(family or names)}, or {other}"
    raise refusal("unknown_name", message, origins.of(_KEY).where, cure)


def template_warnings(template: ChatTemplate | None, finder: TemplateFinder) -> tuple[Finding, ...]:
    """Name the others of a family whose first template bears the family's name, as gemma does; and
    report an installed text that is not the locked version's.
    """
    if template is None or template.trl is None:
        return ()
    warnings = []
    pattern = rf"{re.escape(template.name)}\d\w*"
    others = [other for other in sorted(finder.names()) if re.fullmatch(pattern, other)]
    if later := [other for other in others if family_names(other)[0] == other]:
        message = f"recipe.chat_template={template.name} is the format of the family's first models"
        warnings.append(
            Finding.error("first_of_family", message, _KEY, f"later ones have {', '.join(later)}")
        )
    locked = load_templates()
    if template.name in locked.digests and not template.trl.is_locked:
        message = (
            f"the chat template {template.name} {template.trl.source} is another text than "
            f"TRL {locked.trl}'s"
        )
        cure = "it is used, and the run's identity follows it; name a .jinja file for another text"
        warnings.append(Finding.error("other_template_text", message, _KEY, cure))
    return tuple(warnings)


def template_file(template: ChatTemplate | None) -> Path | None:
    """Return the file of a template, and this project's file for one that open-instruct has too;
    None without one.
    """
    return (template.file or _own_templates().get(template.name)) if template else None


def missing_text_problem(template: TrlTemplate, python: str, where: str | None) -> Finding | None:
    """Return the problem of a template whose text is nowhere on this machine, with the command that
    brings it; None for one whose text is here.
    """
    if template.text is not None:
        return None
    version = load_templates().trl
    message = (
        f"the text of TRL {version}'s chat template {template.name} is not on this machine: "
        f"no TRL that has it is installed for {python} or for launch, and no earlier command kept "
        "it"
    )
    cure = (
        f"`pip install trl=={version} --no-deps` in launch's environment brings it: only this "
        "file is read"
    )
    return Finding.error("no_template_text", message, where, cure)


def find_earlier_texts(
    finder: TemplateFinder, template: TrlTemplate, runs: Sequence[Path]
) -> Iterator[tuple[Path, str, Mapping[str, str]]]:
    """Yield those of the `runs` that were planned with another content of a template of TRL's,
    whose text is still here: the folder, the plan's identity, and the digests of the forms.
    """
    for run in runs:
        plan = read_json_object(run / "plan.json")
        recorded = plan.get("chat_template")
        forms = recorded.get("forms") if isinstance(recorded, dict) else None
        if not isinstance(forms, dict) or template.name not in forms or forms == template.digests:
            continue
        earlier = replace(finder, wanted=forms).find(template.name)
        if earlier is not None and earlier.text is not None:
            yield run, str(plan.get("identity")), forms


def _own_templates() -> dict[str, Path]:
    """Return this project's own template files, by name."""
    return {path.stem: path for path in sorted(_FOLDER.glob(f"*{SUFFIX}"))}


def needs_begin_token(family: Family, template: object, tokenizer: object) -> bool | None:
    """Return the `add_bos` that open-instruct insists on with a template and a tokenizer; None
    where it takes either.

    It looks for "olmo" in the tokenizer's path and in the template's name
    (dataset_transformation.py:785-791).
    """
    if (
        family != Family.open_instruct
        or template is None
        or "olmo" not in str(tokenizer or "").lower()
    ):
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
    finder: TemplateFinder,
) -> None:
    """Check that there is a template, with the marks that the trainer's masks need, and that
    preferences have that of the run whose model they start from; a stage that names none takes the
    model's. `flags`: by name, their values; `options`: those of TRL's entry, and patches.

    Raises UserError: no_chat_template, no_generation_marks, other_chat_template.
    """
    template = find_template_name(flags, options)
    folder = model.adapter.folder if model.adapter else model.local
    own = flags.get("tokenizer_name_or_path")
    tokenizer = Path(str(own)) if own else folder or hub_snapshot(model.reference, environ)
    text, trl = (
        _find_text(template, finder)
        if template
        else (read_template(tokenizer) if tokenizer else None, None)
    )
    if (
        template is None
        and text is None
        and tokenizer
        and (tokenizer / "tokenizer_config.json").is_file()
    ):
        message = (
            f"the tokenizer in {tokenizer} has no chat template, and recipe.chat_template "
            "is "
            "not set"
        )
        cure = Fix.of("set {0} or another template, or start from a chat model", f"{_KEY}=tulu")
        raise refusal("no_chat_template", message, model.provenance.where, cure)
    is_marked = (
        trl.marks_answers
        if trl
        else text is None or has_marks(text) or finder.has_training_form(text)
    )
    if flags.get("assistant_only_loss") is True and not is_marked:
        what = (
            f"recipe.chat_template={template}" if template else f"the chat template of {tokenizer}"
        )
        message = (
            f"{what} does not mark the answers ({{% generation %}}), which "
            f"{config.trainer.name}'s masks need"
        )
        sentence = (
            "set recipe.chat_template to one that does, {0}, which needs no marks, or {1}: "
            "a loss on all turns"
        )
        cure = Fix.of(sentence, "trainer=finetune", "flags.assistant_only_loss=false")
        raise refusal("no_generation_marks", message, origins.of(_KEY).where, cure)
    if (
        template is None
        or folder is None
        or config.stage.kind == Kind.sft
        or "other_chat_template" in config.allow
    ):
        return
    run = folder.parent
    try:
        plan: dict[str, Any] = load_json(run / "plan.json")
        recorded = {name: flag["value"] for name, flag in plan["flags"].items()}
        trained = find_template_name(recorded, [*plan["patches"], *plan.get("options", ())])
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return  # not the model of a run
    if not brings_template(folder, template, finder):
        refuse_other_template(
            template, trained or "the tokenizer's own", f"the run in {run}", origins
        )


def brings_template(folder: Path | None, template: str, finder: TemplateFinder) -> bool | None:
    """Whether a tokenizer's folder brings this template; None where it brings none."""
    own = read_template(folder) if folder else None
    if own is None:
        return None
    text, trl = _find_text(template, finder)
    if trl is not None:
        return trl.digests[trl.name] in {digest_text(file) for file in _possible_files(own)}
    return text is not None and _normalize(own) == _normalize(text)


def refuse_other_template(template: str, trained: str, who: str, origins: Origins) -> None:
    """Raise UserError (other_chat_template) unless both templates are the same."""
    if template == trained:
        return
    message = f"recipe.chat_template={template}, but {who} trained the model with {trained}"
    sentence = "remove it: the model's own template is used; or set {1}"
    cure = Fix.of(sentence, "~recipe.chat_template", "allow=[other_chat_template]")
    raise refusal("other_chat_template", message, origins.of(_KEY).where, cure)


def find_template_name(flags: Mapping[str, Any], options: Sequence[str]) -> str | None:
    """Return the template that flags (by name, their values), options and patches set: its name, of
    a user's file the path. None: the tokenizer's own.
    """
    prefix = f"{_OPTION}="
    values = [option.removeprefix(prefix) for option in options if option.startswith(prefix)]
    file = str(flags.get("chat_template_path") or next(iter(values), ""))
    if _OF_LAUNCH.fullmatch(file):
        return Path(file).stem
    if file:
        return staged_name(Path(file)) or file
    name = flags.get(TEMPLATE_FLAG)
    return str(name) if name else None


def read_template(folder: Path) -> str | None:
    """Return the chat template that a tokenizer's folder brings."""
    try:
        if (folder / "chat_template.jinja").is_file():
            return (folder / "chat_template.jinja").read_text(encoding="utf-8")
        text = load_json(folder / "tokenizer_config.json").get("chat_template")
        if isinstance(text, list):  # named variants
            text = next(entry["template"] for entry in text if entry["name"] == "default")
        return (
            text
            if isinstance(text, str)
            else load_json(folder / "chat_template.json")["chat_template"]
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError, StopIteration):
        return None


def _find_text(name: str, finder: TemplateFinder) -> tuple[str | None, TrlTemplate | None]:
    """Return a template's text, where it is here, and TRL's template, if it is one of TRL's."""
    file = _own_templates().get(name) or Path(name)
    if file.is_file():
        return file.read_text(encoding="utf-8"), None
    trl = finder.find(name)
    return (trl.text if trl else None), trl


def _possible_files(text: str) -> list[str]:
    """Return the texts of files that would hold a tokenizer's template: with and without BOS and a
    last line's end, and with either kind of line's end (TRL 1.16 has one file with `\\r\\n`).
    """
    bare = text.replace("\r\n", "\n").strip()
    files = [
        f"{form}{end}"
        for form in (bare, bare.removeprefix(_BOS), f"{_BOS}{bare}")
        for end in ("", "\n")
    ]
    return files + [file.replace("\n", "\r\n") for file in files]


def _normalize(text: str) -> str:
    return text.strip().removeprefix(_BOS).strip()
