"""Find TRL's chat templates and their texts on this machine, without importing TRL.

A text is read from the TRL of the trainer's interpreter, else from the TRL of launch's own, else
from a cache: the user's, which keeps each text under its digest, or the folder from which runs read
their template. The lock has the digests of one version's texts, so that a plan can be made on a
machine without any. The text of another version is used as it is.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from launch.digests import digest_text
from launch.files import load_json, read_file, write_exact
from launch.host.interpreter import installed_version
from launch.upstream.pin.lock import DATA
from launch.worker.json_codec import from_json

TEMPLATES_FILE = DATA / "chat_templates.json"
SUFFIX = ".jinja"
_IN_TRL = Path("trl", "chat_templates")
_TRAINING = "_training"  # ends the name of a form with marks around the answers
# trl/chat_template_utils.py, has_generation_markers
_MARK = re.compile(r"\{%-?\s*generation\s*-?%\}")
# the end of a path below a `staged` folder
_STAGED = re.compile(rf"(.+)-[0-9a-f]{{16}}/\1({_TRAINING})?\{SUFFIX}")


@dataclass(frozen=True)
class LockedTemplates:
    """The lock's facts about the templates of one version of TRL."""

    trl: str  # the version
    digests: Mapping[str, str]  # digest of the text by the template's name
    marked: Sequence[str]  # names of templates that mark the answers and have no other form
    # beginnings of names that launch does not offer: these templates drop a turn that is a text
    left_out: Sequence[str]

    def offers(self, name: str) -> bool:
        """Return whether launch offers TRL's template of that name."""
        return not name.startswith(tuple(self.left_out))


@cache
def load_templates() -> LockedTemplates:
    """Return the committed facts (read once per process)."""
    return from_json(LockedTemplates, load_json(TEMPLATES_FILE))


def find_template_files(packages: Sequence[Path]) -> list[Path]:
    """Return the files of TRL's templates in folders of packages."""
    files = []
    for folder in packages:
        files += sorted((folder / _IN_TRL).glob(f"*{SUFFIX}"))
    return files


def has_marks(text: str) -> bool:
    """Return whether a template marks the answers."""
    return bool(_MARK.search(text))


def family_names(name: str) -> tuple[str, str]:
    """Return the names of a template's two forms: the plain one, and the one with marks."""
    plain = name.removesuffix(_TRAINING)
    return plain, f"{plain}{_TRAINING}"


def is_training_form(name: str) -> bool:
    """Return whether a template of that name is the form with marks of another one."""
    return name.endswith(_TRAINING)


def staged_name(file: Path) -> str | None:
    """Return the name of the template that a run read from this file; None for a file of another
    kind.
    """
    return file.stem if _STAGED.fullmatch("/".join(file.parts[-2:])) else None


@dataclass(frozen=True)
class TrlTemplate:
    """One of TRL's templates: the digests of its forms, and their texts if this machine has them."""

    name: str  # name of the form that is used
    digests: Mapping[str, str]  # by the name of the form
    texts: Mapping[str, str]  # by the name of the form; empty if this machine has no text
    source: str  # version and folder of the texts: `of TRL 1.16.0 in FOLDER`
    is_installed: bool = False  # whether the texts were read from an installed TRL

    @property
    def digest(self) -> str:
        """The digest of all forms: TRL trains with the one that has marks, and saves the other."""
        lines = [f"{name}@{digest}" for name, digest in sorted(self.digests.items())]
        return digest_text("\n".join(lines))

    @property
    def text(self) -> str | None:
        """The text that is used; None if it is not on this machine."""
        return self.texts.get(self.name)

    @property
    def marks_answers(self) -> bool:
        """Whether it marks the answers, or TRL has a form of it that does."""
        _, training_form = family_names(self.name)
        if training_form in self.digests:
            return True
        if self.text is None:
            return self.name in load_templates().marked
        return has_marks(self.text)

    @property
    def is_locked(self) -> bool:
        """Whether the lock has the same content under this name."""
        return self.digests == _locked_forms(self.name)

    def file_below(self, staged: Path) -> Path:
        """Return the file that a run reads it from, below the folder of `TemplateFinder.staged`."""
        plain_form, _ = family_names(self.name)
        return staged / f"{plain_form}-{self.digest}" / f"{self.name}{SUFFIX}"

    def json_fields(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "forms": self.digests,
            "source": self.source,
            "is_here": self.text is not None,
        }


@dataclass(frozen=True)
class TemplateFinder:
    """The folders in which the texts are searched."""

    # folders of installed packages: those of the trainer's interpreter, then launch's own
    packages: Sequence[Path]
    kept: Path  # the user's cache, with a file for each digest
    staged: Path  # the folder from which runs read templates, with a folder for each content
    # the digests of the template with which a run began, by the name of the form
    wanted: Mapping[str, str] = field(default_factory=dict)

    def names(self) -> set[str]:
        """Return the names that are known here: the lock's, and those of the installed versions."""
        locked = load_templates()
        names = set(locked.digests)
        for file in find_template_files(self.packages):
            if locked.offers(file.stem):
                names.add(file.stem)
        return names

    def find(self, name: str) -> TrlTemplate | None:
        """Return TRL's template of a name; None if there is none."""
        if not load_templates().offers(name) or Path(name).name != name:
            return None
        if name in self.wanted:
            return self._find_content(name, self.wanted, "as this run began with it")
        for folder in dict.fromkeys(self.packages):
            template = _read_installed(name, folder)
            if template is not None:
                return template
        locked = _locked_forms(name)
        if not locked:
            return None
        return self._find_content(name, locked, f"of TRL {load_templates().trl}")

    def _find_content(self, name: str, digests: Mapping[str, str], source: str) -> TrlTemplate:
        """Return the template with these digests, with its texts if a cache or an installed TRL has
        them.
        """
        template = TrlTemplate(name, digests, {}, source)
        staged = template.file_below(self.staged).parent
        staged_files = {form: staged / f"{form}{SUFFIX}" for form in digests}
        kept_files = {form: self.kept / f"{digest}{SUFFIX}" for form, digest in digests.items()}
        for folder, files in ((staged, staged_files), (self.kept, kept_files)):
            texts = _read_texts(files)
            if _digest_texts(texts) == digests:
                return replace(template, texts=texts, source=f"{source}, in {folder}")
        for folder in self.packages:
            installed = _read_installed(name, folder)
            if installed is not None and installed.digests == digests:
                return installed
        return template

    def has_training_form(self, text: str) -> bool:
        """Return whether TRL has a form with marks of the template with exactly this text
        (trl/chat_template_utils.py, get_training_chat_template).
        """
        digest = digest_text(text)
        locked = load_templates().digests
        for name, locked_digest in locked.items():
            _, training_form = family_names(name)
            if locked_digest == digest and training_form in locked:
                return True
        for folder in self.packages:
            for file in (folder / _IN_TRL).glob(f"*{_TRAINING}{SUFFIX}"):
                plain_form, _ = family_names(file.stem)
                plain_file = file.with_name(f"{plain_form}{SUFFIX}")
                if _read_texts({plain_form: plain_file}) == {plain_form: text}:
                    return True
        return False

    def keep(self, template: TrlTemplate) -> None:
        """Keep the texts of an installed TRL in the user's cache, unless it is read-only."""
        if not template.is_installed:
            return
        for form, text in template.texts.items():
            file = self.kept / f"{template.digests[form]}{SUFFIX}"
            if not file.is_file():
                with contextlib.suppress(OSError):
                    write_exact(file, text)

    def stage(self, template: TrlTemplate) -> Path:
        """Write the forms into the folder from which a run reads them; return the file of the one
        that is used.

        The texts have to be on this machine. Raises OSError.
        """
        file = template.file_below(self.staged)
        for form, text in template.texts.items():
            staged = file.with_name(f"{form}{SUFFIX}")
            if _read_texts({form: staged}).get(form) != text:
                write_exact(staged, text)
        return file


def _locked_forms(name: str) -> dict[str, str]:
    """Return the digests of a template's forms in the lock; none if it does not have the name."""
    digests = load_templates().digests
    if name not in digests:
        return {}
    return {form: digests[form] for form in family_names(name) if form in digests}


def _read_installed(name: str, folder: Path) -> TrlTemplate | None:
    """Return the template of the TRL in a folder of packages; None if it has none of that name."""
    templates = folder / _IN_TRL
    texts = _read_texts({form: templates / f"{form}{SUFFIX}" for form in family_names(name)})
    if name not in texts:
        return None
    version = installed_version("trl", [folder]) or "of an unknown version"
    source = f"of TRL {version} in {folder}"
    return TrlTemplate(name, _digest_texts(texts), texts, source, is_installed=True)


def _digest_texts(texts: Mapping[str, str]) -> dict[str, str]:
    return {form: digest_text(text) for form, text in texts.items()}


def _read_texts(files: Mapping[str, Path]) -> dict[str, str]:
    """Return the texts of the files by their keys, without the files that cannot be read."""
    texts = {}
    for key, file in files.items():
        with contextlib.suppress(OSError, ValueError):
            texts[key] = read_file(file).decode()
    return texts
