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
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launch import resources
from launch.config.origins import Origins
from launch.config.schema import Family, RootConfig
from launch.digests import digest_text
from launch.errors import did_you_mean, refusal
from launch.files import load_json, read_json_object
from launch.upstream.trl_templates import (
    SUFFIX,
    TemplateFinder,
    TrlTemplate,
    family_names,
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
TEMPLATE_KEY = "recipe.chat_template"
# Names that upstream's scripts give and its table lacks, so that it takes the tokenizer's own template
# (dataset_transformation.py:838-846; scripts/train/debug/oc_sft_olmo3_7b_1node.sh:25-27).
TOKENIZERS_OWN = ("olmo123",)
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
    """Return the chat template that recipe.chat_template names; None if it is not set, or if it
    stands for the tokenizer's own template under a name that the trainer does not know.

    `upstream` are the names that open-instruct's trainers have. Raises UserError: unknown_name.
    """
    name = config.recipe.chat_template
    if name is None:
        return None
    is_trl = config.trainer.family == Family.trl
    if name in upstream and not is_trl:
        return ChatTemplate(name, None)
    if name in TOKENIZERS_OWN:
        # open-instruct is given the name: without one it requires --add_bos of some tokenizers (:813)
        return None if is_trl else ChatTemplate(name, None)
    takes_files = is_trl or "chat_template" in config.trainer.patches
    path = cwd / Path(name).expanduser()
    if takes_files:
        shipped = _shipped_templates().get(name)
        if shipped is not None:
            return ChatTemplate(name, shipped)
        template = finder.find(name)
        if template is not None:
            return ChatTemplate(name, template.file_below(finder.staged), template)
        if path.suffix == SUFFIX and path.is_file():
            return ChatTemplate(str(path), path)
    where = origins.of(TEMPLATE_KEY).where
    if takes_files and path.suffix == SUFFIX:
        message = f"recipe.chat_template={name}: {path} is not a file"
        raise refusal("unknown_name", message, where)
    known = set() if is_trl else set(upstream)
    other = "write the template into the model's tokenizer"
    if takes_files:
        known |= {*_shipped_templates(), *finder.names()}
        other = f"name a {SUFFIX} file"
    message = f"{config.trainer.name} has no chat template '{name}'"
    raise refusal("unknown_name", message, where, _suggest_names(name, known, other))


def _suggest_names(name: str, known: Collection[str], other: str) -> str:
    """Return the cure for an unknown template: the names of its family, or a similar one.

    `other` is what else can be done.
    """
    names = [candidate for candidate in sorted(known) if family_names(candidate)[0] == candidate]
    family = [candidate for candidate in names if candidate.startswith(name)]
    near = None if family else did_you_mean(name, names)
    return near or f"choose from {', '.join(family or names)}, or {other}"


def template_file(template: ChatTemplate | None) -> Path | None:
    """Return the file of a template, or this project's file for one that open-instruct has too;
    None without a file.
    """
    if template is None:
        return None
    return template.file or _shipped_templates().get(template.name)


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


def _shipped_templates() -> dict[str, Path]:
    """Return this project's template files, by name."""
    return {path.stem: path for path in sorted(_FOLDER.glob(f"*{SUFFIX}"))}


def needs_begin_token(family: Family, template: object, tokenizer: object) -> bool | None:
    """Return the value of `add_bos` that open-instruct requires with a template and a tokenizer;
    None if it accepts both.

    It looks for "olmo" in the tokenizer's path and in the template's name
    (dataset_transformation.py:785-791).
    """
    if family != Family.open_instruct or template is None:
        return None
    if "olmo" not in str(tokenizer or "").lower():
        return None
    return "olmo" not in str(template)


def brings_template(folder: Path | None, template: str, finder: TemplateFinder) -> bool | None:
    """Return whether a tokenizer's folder has this template; None if it has no template."""
    tokenizer_text = read_template(folder) if folder else None
    if tokenizer_text is None:
        return None
    text, trl = find_text(template, finder)
    if trl is not None:
        digests = {digest_text(file) for file in _possible_files(tokenizer_text)}
        return trl.digests[trl.name] in digests
    return text is not None and _normalize(tokenizer_text) == _normalize(text)


def other_template_problem(
    template: str, trained: str, who: str, origins: Origins
) -> Finding | None:
    """Return the problem other_chat_template; None if both templates are the same."""
    if template == trained:
        return None
    message = f"recipe.chat_template={template}, but {who} trained the model with {trained}"
    sentence = "remove it: the model's own template is used; or set {1}"
    cure = Fix.of(sentence, "~recipe.chat_template", "allow=[other_chat_template]")
    where = origins.of(TEMPLATE_KEY).where
    return Finding.error("other_chat_template", message, where, cure)


def find_template_name(flags: Mapping[str, Any], options: Sequence[str]) -> str | None:
    """Return the template that flags (values by name), options and patches set: its name, or the
    path of a user's file; None for the tokenizer's own.
    """
    file = str(flags.get("chat_template_path") or "")
    for option in options:
        name, _, value = option.partition("=")
        if not file and name == _OPTION:
            file = value
    if _OF_LAUNCH.fullmatch(file):
        return Path(file).stem
    if file:
        return staged_name(Path(file)) or file
    flag = flags.get(TEMPLATE_FLAG)
    return str(flag) if flag and flag not in TOKENIZERS_OWN else None


def read_template(folder: Path) -> str | None:
    """Return the chat template in a tokenizer's folder; None without one."""
    try:
        if (folder / "chat_template.jinja").is_file():
            return (folder / "chat_template.jinja").read_text(encoding="utf-8")
        text = load_json(folder / "tokenizer_config.json").get("chat_template")
        if isinstance(text, list):  # named variants
            text = next(entry["template"] for entry in text if entry["name"] == "default")
        if isinstance(text, str):
            return text
        template: str = load_json(folder / "chat_template.json")["chat_template"]
        return template
    except (OSError, ValueError, LookupError, TypeError, AttributeError, StopIteration):
        return None


def find_text(name: str, finder: TemplateFinder) -> tuple[str | None, TrlTemplate | None]:
    """Return a template's text, if it is on this machine, and TRL's template, if it is one."""
    file = _shipped_templates().get(name) or Path(name)
    if file.is_file():
        return file.read_text(encoding="utf-8"), None
    trl = finder.find(name)
    return (trl.text if trl else None), trl


def _possible_files(text: str) -> list[str]:
    """Return the texts of files that would hold a tokenizer's template: with and without BOS and a
    last line's end, and with either kind of line's end (TRL 1.16 has one file with `\\r\\n`).
    """
    bare = text.replace("\r\n", "\n").strip()
    forms = [bare, bare.removeprefix(_BOS), f"{_BOS}{bare}"]
    files = [*forms, *(f"{form}\n" for form in forms)]
    return files + [file.replace("\n", "\r\n") for file in files]


def _normalize(text: str) -> str:
    return text.strip().removeprefix(_BOS).strip()
