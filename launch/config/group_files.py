"""The files of the configuration groups: where an option's file is, what it builds on, and the lines
of its keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from launch.config.yaml_nodes import Mapping as YamlMap
from launch.config.yaml_nodes import (
    Node,
    Positions,
    Scalar,
    locate_keys,
    read_yaml,
    resolve_alias,
)
from launch.errors import refusal
from launch.resources import USER_DIR_VARIABLE, default_user_folder
from launch.worker.moves import UPSTREAM_NAMES

YAML = (".yaml", ".yml")
SELF = "_self_"  # a file's own place in its defaults list


def user_folder(environ: Mapping[str, str]) -> Path | None:
    """Return the folder of the user's own stages, clusters and overlays; None if the default one
    does not exist.

    Raises UserError: no_config_dir.
    """
    folder = default_user_folder(environ)
    if folder.is_dir():
        return folder
    if not environ.get(USER_DIR_VARIABLE):
        return None
    message = f"{folder} does not exist or is not a folder"
    raise refusal("no_config_dir", message, USER_DIR_VARIABLE, "create it, or unset the variable")


def known_option(group: str, option: str, roots: Sequence[Path]) -> str:
    """Return launch's name of a trainer that has another name upstream: `sft_deepspeed` is
    `finetune`.

    Any other option is returned as it is, and so is a name that the user's own folder has.
    """
    if group != "trainer" or option not in UPSTREAM_NAMES:
        return option
    is_of_user = any((root / group / f"{option}.yaml").is_file() for root in roots)
    return option if is_of_user else UPSTREAM_NAMES[option]


def find_group_file(group: str, option: str, roots: Sequence[Path]) -> Path | None:
    """Return the file of a group's option: in the first root that has it; or the option itself, if
    it is a path.
    """
    option = known_option(group, option, roots)
    name = option if option.endswith(YAML) else f"{option}.yaml"
    try:
        for root in roots:
            path = root / group / name
            if path.is_file():
                return path
    except OSError:  # longer than a name may be
        pass
    return None


def _version(path: Path) -> tuple[Path, int, int]:
    """Return what distinguishes a file from its earlier versions: path, time of the change, size."""
    status = path.stat()
    return path, status.st_mtime_ns, status.st_size


@dataclass(frozen=True)
class DefaultsEntry:
    """What an entry of a defaults list chooses: `- override /model: demo`, or `- sft` of the file's
    own group.
    """

    line: int
    key: str  # as it is written: `override /model`
    option: str  # "": null, or no text

    @property
    def group(self) -> str:
        """The group; "" for the file's own."""
        return self.key.rpartition(" ")[2].strip("/").partition("@")[0]


@lru_cache(maxsize=64)
def _read_version(path: Path, changed: int, size: int) -> tuple[Positions, list[DefaultsEntry]]:
    """Return the lines of a file's keys, and its defaults list."""
    documents = read_yaml(path.read_text(encoding="utf-8"))
    defaults = _find_defaults(documents[0]) if documents else []
    chosen: list[DefaultsEntry] = []
    for item in defaults:
        entry = resolve_alias(item)
        if isinstance(entry, YamlMap):  # `- override /model: demo`
            for key, value in entry.entries():
                chosen.append(DefaultsEntry(entry.line, key.text, _option_of(value)))
        else:  # `- sft`, or `- model/demo`
            group, _, option = _option_of(entry).rpartition("/")
            chosen.append(DefaultsEntry(entry.line, group, option))
    return locate_keys(documents), chosen


def _find_defaults(document: Node) -> list[Node]:
    """Return the entries of a document's defaults list; none where it has no such list."""
    if isinstance(document, YamlMap):
        for key, value in document.entries():
            if key.text == "defaults":
                return getattr(resolve_alias(value), "items", [])
    return []


def _option_of(value: Node) -> str:
    """Return the option that a value of a defaults list names; "" for null and for what is not a
    text.
    """
    scalar = resolve_alias(value)
    if not isinstance(scalar, Scalar) or scalar.type == "null":
        return ""
    return scalar.text


def read_defaults(path: Path) -> list[DefaultsEntry]:
    """Return the entries of a file's defaults list."""
    return _read_version(*_version(path))[1]


def find_line(path: Path, keys: Sequence[str]) -> int | None:
    """Return the 1-based line of a nested key in a YAML file. Keys that are dotted in the file are
    not found.
    """
    return _read_version(*_version(path))[0].of(tuple(keys))


def list_layers(
    group: str, option: str, roots: Sequence[Path], above: tuple[Path, ...] = ()
) -> list[Path]:
    """Return the file of an option, and those of its group that it builds on, in the order in which
    Hydra merges them: each wins over those before it.

    `above` has the files that lead to it; a file that leads back to one of them is left out.
    """
    path = find_group_file(group, option, roots)
    if path is None or path in above:
        return []
    bases = [entry.option for entry in read_defaults(path) if not entry.group]
    if SELF not in bases:  # then it stands last
        bases.append(SELF)
    layers: list[Path] = []
    for base in bases:
        layers += [path] if base == SELF else list_layers(group, base, roots, (*above, path))
    return layers


def list_choices(
    group: str, option: str, roots: Sequence[Path], above: tuple[Path, ...] = ()
) -> Iterator[DefaultsEntry]:
    """Yield the entries of an option's defaults list, then those of the files that it builds on.

    Of two that choose an option of the same group, Hydra takes the first.
    """
    path = find_group_file(group, option, roots)
    if path is None or path in above:
        return
    entries = read_defaults(path)
    yield from entries
    for entry in reversed(entries):
        if not entry.group:
            yield from list_choices(group, entry.option, roots, (*above, path))
