"""TRL's chat templates: which there are, and where their texts are on this machine. Nothing of TRL
is imported.

A text is read from the TRL of the trainer's interpreter, else from that of launch's own, else from
a cache that keeps each text under its digest: the user's, or the folder that runs read their
template from. The lock has the digests of one version's texts, so that a plan can be made where
there is none. Another version's text is used as it is.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from launch.files import load_json, read_file, write_exact
from launch.upstream.libraries.library_keys import installed_version
from launch.upstream.pin.lock import DATA

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
    """What the lock has of one version's templates."""

    trl: str  # the version
    digests: Mapping[str, str]  # by name
    marked: Sequence[str]  # those that mark the answers and have no other form
    left_out: Sequence[str]  # families that drop a turn that is a text; no name begins with one

    def offers(self, name: str) -> bool:
        """Whether launch takes a template of TRL's of that name."""
        return not name.startswith(tuple(self.left_out))


@cache
def load_templates() -> LockedTemplates:
    """Return the committed facts (read once per process)."""
    content = load_json(TEMPLATES_FILE)
    return LockedTemplates(
        **{name: content[name] for name in ("trl", "digests", "marked", "left_out")}
    )


def find_template_files(packages: Sequence[Path]) -> list[Path]:
    """Return the files of TRL's templates in folders of packages."""
    return [file for folder in packages for file in sorted((folder / _IN_TRL).glob(f"*{SUFFIX}"))]


def digest_text(text: str) -> str:
    """Return the digest of a text: sixteen hex digits."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def has_marks(text: str) -> bool:
    """Whether a template marks the answers."""
    return bool(_MARK.search(text))


def family_names(name: str) -> tuple[str, str]:
    """Return the names of a template's two forms: the plain one, and the one with marks."""
    plain = name.removesuffix(_TRAINING)
    return plain, f"{plain}{_TRAINING}"


def is_training_form(name: str) -> bool:
    """Whether a template of that name is the form with marks of another one."""
    return name.endswith(_TRAINING)


def staged_name(file: Path) -> str | None:
    """Return the name of the template that a run read from this file; None for a file of another
    kind.
    """
    return file.stem if _STAGED.fullmatch("/".join(file.parts[-2:])) else None


@dataclass(frozen=True)
class TrlTemplate:
    """A template of TRL's: the digests of its forms, and their texts where they are here."""

    name: str  # of the form that is used
    digests: Mapping[str, str]  # by the forms' names
    texts: Mapping[str, str]  # likewise; empty where no text is here
    source: str  # whose it is, and the place of the texts: `of TRL 1.16.0 in FOLDER`
    is_installed: bool = False  # they were read from an installed TRL

    @property
    def digest(self) -> str:
        """The digest of all forms: TRL trains with the one that has marks, and saves the other."""
        return digest_text(
            "\n".join(f"{name}@{digest}" for name, digest in sorted(self.digests.items()))
        )

    @property
    def text(self) -> str | None:
        """The text that is used; None where it is not here."""
        return self.texts.get(self.name)

    @property
    def marks_answers(self) -> bool:
        """Whether it marks the answers, or TRL has a form of it that does."""
        marked = (
            load_templates().marked
            if self.text is None
            else [self.name]
            if has_marks(self.text)
            else []
        )
        return family_names(self.name)[1] in self.digests or self.name in marked

    @property
    def is_locked(self) -> bool:
        """Whether the lock has the same content under this name."""
        return self.digests == _locked_forms(self.name)

    def file_below(self, staged: Path) -> Path:
        """Return the file that a run reads it from, below the folder of `TemplateFinder.staged`."""
        return staged / f"{family_names(self.name)[0]}-{self.digest}" / f"{self.name}{SUFFIX}"

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "forms": self.digests,
            "source": self.source,
            "is_here": self.text is not None,
        }


@dataclass(frozen=True)
class TemplateFinder:
    """Where the texts are looked for."""

    # folders of installed packages: the trainer's interpreter's, then launch's own
    packages: Sequence[Path]
    kept: Path  # the user's cache: a file for each digest
    staged: Path  # where runs read them from: a folder for each content
    # digests by name that a run began with, of one template
    wanted: Mapping[str, str] = field(default_factory=dict)

    def names(self) -> set[str]:
        """Return the names that are known here: the lock's, and those of the installed versions."""
        installed = (file.stem for file in find_template_files(self.packages))
        return {*load_templates().digests, *filter(load_templates().offers, installed)}

    def find(self, name: str) -> TrlTemplate | None:
        """Return TRL's template of a name; None if there is none."""
        if not load_templates().offers(name) or Path(name).name != name:
            return None
        if name in self.wanted:
            return self._find_content(name, self.wanted, "as this run began with it")
        for folder in dict.fromkeys(self.packages):
            if template := _read_installed(name, folder):
                return template
        locked = _locked_forms(name)
        return (
            self._find_content(name, locked, f"of TRL {load_templates().trl}") if locked else None
        )

    def _find_content(self, name: str, digests: Mapping[str, str], whose: str) -> TrlTemplate:
        """Return the template of that content, with the texts where a cache or an installed TRL has
        them.
        """
        template = TrlTemplate(name, digests, {}, whose)
        staged = template.file_below(self.staged).parent
        for folder, files in (
            (staged, {form: staged / f"{form}{SUFFIX}" for form in digests}),
            (
                self.kept,
                {form: self.kept / f"{digest}{SUFFIX}" for form, digest in digests.items()},
            ),
        ):
            texts = _read_texts(files)
            if {form: digest_text(text) for form, text in texts.items()} == digests:
                return replace(template, texts=texts, source=f"{whose}, in {folder}")
        installed = (_read_installed(name, folder) for folder in self.packages)
        return next((found for found in installed if found and found.digests == digests), template)

    def has_training_form(self, text: str) -> bool:
        """Whether TRL has a form with marks of the template with this very text
        (trl/chat_template_utils.py, get_training_chat_template).
        """
        digest = digest_text(text)
        named = (name for name, locked in load_templates().digests.items() if locked == digest)
        if any(family_names(name)[1] in load_templates().digests for name in named):
            return True
        for folder in self.packages:
            for form in (folder / _IN_TRL).glob(f"*{_TRAINING}{SUFFIX}"):
                plain = _read_texts({"": form.with_name(f"{family_names(form.stem)[0]}{SUFFIX}")})
                if plain.get("") == text:
                    return True
        return False

    def keep(self, template: TrlTemplate) -> None:
        """Keep the texts of an installed TRL in the user's cache; in a read-only one nothing is
        kept.
        """
        if not template.is_installed:
            return
        for form, text in template.texts.items():
            file = self.kept / f"{template.digests[form]}{SUFFIX}"
            if not file.is_file():
                with contextlib.suppress(OSError):
                    write_exact(file, text)

    def stage(self, template: TrlTemplate) -> Path:
        """Write both forms where a run reads them, unless they are there, and return the file of
        the one that is used.

        Raises OSError where that is impossible. The text has to be here.
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
    return (
        {form: digests[form] for form in family_names(name) if form in digests}
        if name in digests
        else {}
    )


def _read_installed(name: str, folder: Path) -> TrlTemplate | None:
    """Return the template of the TRL in a folder of packages; None if it has none of that name."""
    texts = _read_texts({form: folder / _IN_TRL / f"{form}{SUFFIX}" for form in family_names(name)})
    if name not in texts:
        return None
    digests = {form: digest_text(text) for form, text in texts.items()}
    version = installed_version("trl", [folder]) or "of an unknown version"
    return TrlTemplate(name, digests, texts, f"of TRL {version} in {folder}", is_installed=True)


def _read_texts(files: Mapping[str, Path]) -> dict[str, str]:
    """Return the texts of those of the files that can be read, by their keys."""
    return dict(_iterate_texts(files))


def _iterate_texts(files: Mapping[str, Path]) -> Iterator[tuple[str, str]]:
    for key, file in files.items():
        with contextlib.suppress(OSError, ValueError):
            yield key, read_file(file).decode()
