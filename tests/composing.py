"""Keeps what Hydra makes of the files of a line, which most of the tests share.

A line's own overrides, and all that launch does with the result, run each time. The shipped files
do not change while the tests run; a user's folder counts with all that it holds. Nothing is kept of
a line with a file that it names by its path, or that Hydra rejects.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

from hydra._internal import config_loader_impl
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import IConfigRepository
from hydra._internal.defaults_list import DefaultsList, Overrides
from hydra.core.default_element import ResultDefault
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig

from launch import resources

SHIPPED = str(resources.CONFIGS)
MOST_FILES, MOST_BYTES = 20, 100_000  # of a user's folder that is compared

_create_defaults_list = config_loader_impl.create_defaults_list
_merge = ConfigLoaderImpl._compose_config_from_defaults_list
_lists: dict[tuple[object, ...], DefaultsList] = {}  # by the choices of a line
_configs: dict[int, DictConfig] = {}  # by the identity of a list in `_lists`


def keep_files() -> None:
    """Let Hydra read and merge the files once for all lines with the same choices."""
    config_loader_impl.create_defaults_list = _kept_defaults_list
    ConfigLoaderImpl._compose_config_from_defaults_list = _kept_config  # type: ignore[method-assign]


def read_anew() -> None:
    """Let Hydra read and merge the files of each line, as it does for users."""
    config_loader_impl.create_defaults_list = _create_defaults_list
    ConfigLoaderImpl._compose_config_from_defaults_list = _merge  # type: ignore[method-assign]


def _kept_defaults_list(
    repo: IConfigRepository, config_name: str | None, overrides_list: list[Override], **how: bool
) -> DefaultsList:
    *own, shipped = [source.path for source in repo.get_sources() if source.scheme() == "file"]
    overrides = Overrides(repo, overrides_list)
    settings = {id(override) for override in overrides.config_overrides}
    choices = [str(each.input_line) for each in overrides_list if id(each) not in settings]
    contents = [_read_folder(folder) for folder in own]
    is_path = any("/" in choice.partition("=")[2] for choice in choices)
    if shipped != SHIPPED or is_path or None in contents:
        return _create_defaults_list(repo, config_name, overrides_list, **how)
    key = (config_name, *choices, *how.items(), *own, *contents)
    if key not in _lists:
        _lists[key] = _create_defaults_list(repo, config_name, overrides_list, **how)
        return _lists[key]
    overrides.known_choices = _lists[key].overrides.known_choices
    given = overrides.config_overrides
    return replace(_lists[key], config_overrides=given, overrides=overrides)


def _read_folder(folder: str) -> tuple[tuple[str, bytes], ...] | None:
    """Return the files of a small folder with their contents; None of a large or unreadable one."""
    try:
        files = sorted(path for path in Path(folder).rglob("*") if not path.is_dir())
        if len(files) > MOST_FILES or sum(path.stat().st_size for path in files) > MOST_BYTES:
            return None
        return tuple((str(path), path.read_bytes()) for path in files)
    except OSError:
        return None


def _kept_config(
    loader: ConfigLoaderImpl, defaults: list[ResultDefault], repo: IConfigRepository
) -> DictConfig:
    if not any(kept.defaults is defaults for kept in _lists.values()):
        return _merge(loader, defaults, repo)
    if id(defaults) not in _configs:
        _configs[id(defaults)] = _merge(loader, defaults, repo)
    return copy.deepcopy(_configs[id(defaults)])
