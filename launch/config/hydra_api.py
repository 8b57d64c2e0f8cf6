"""The one module that imports Hydra: it composes and shows configurations, and parses overrides.

Hydra searches the user's folder first, then the shipped one.
"""

from __future__ import annotations

import io
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import RLock
from typing import Any

import hydra
import yaml
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.sources_registry import SourcesRegistry
from hydra._internal.utils import get_args_parser
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigNode, ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.errors import HydraException, OverrideParseException
from hydra.plugins.config_source import ConfigResult
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf._utils import get_yaml_loader
from omegaconf.errors import OmegaConfBaseException

from launch import resources
from launch.config.group_files import find_line, known_option, user_folder
from launch.config.override_checks import hydra_problem
from launch.config.schema import RootConfig
from launch.errors import UserError
from launch.resources import USER_DIR_VARIABLE

# The groups of Hydra's application (launchers, output, help), which take a sixth of the time and are
# not needed to compose one configuration.
_APPLICATION_GROUPS = ("launcher", "sweeper", "output", "help", "hydra_help", "env")
_NAME_PARTS = re.compile(r"[./@\s]+")  # of a package, or of an entry of a defaults list
# The errors of Hydra, OmegaConf and PyYAML for a configuration that they cannot compose.
COMPOSE_ERRORS = (
    HydraException,
    OmegaConfBaseException,
    yaml.YAMLError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    AssertionError,
    RecursionError,
    OSError,
)

_STATE = RLock()


@dataclass(frozen=True)
class ParsedOverride:
    """An override as Hydra reads it."""

    key: str
    value: Any  # plain data; of several values, Hydra's own object
    is_sweep: bool
    choices: tuple[str, ...]  # the values of a comma list, choice(), range() or glob(), as texts


@contextmanager
def initialized() -> Iterator[None]:
    """Initialize Hydra with the shipped folder, the user's folder and the schema.

    Its state belongs to the process: threads compose one after another, and what a Hydra
    application around this call has set is restored.
    """
    with _STATE:
        _register()
        surrounding = HydraConfig.instance().cfg
        try:
            with hydra.initialize_config_dir(
                str(resources.CONFIGS), job_name="launch", version_base="1.3"
            ):
                yield
        finally:
            HydraConfig.instance().cfg = surrounding


def compose_argv(argv: Sequence[str]) -> tuple[DictConfig, Mapping[str, str | None]]:
    """Compose a configuration, while Hydra is initialized; also return the option of each group.

    Raises COMPOSE_ERRORS.
    """
    without_groups = [f"~hydra/{group}" for group in _APPLICATION_GROUPS]
    config = hydra.compose("config", [*argv, *without_groups], return_hydra_config=True)
    HydraConfig.instance().set_config(config)
    choices = config.hydra.runtime.choices
    with open_dict(config):
        del config["hydra"]
    return config, choices


def answer_of_hydra(argv: Sequence[str]) -> str:
    """Return Hydra's answer to --help or --cfg, while it is initialized. Raises COMPOSE_ERRORS."""
    printed = io.StringIO()
    parser = get_args_parser()
    parser.prog = "launch"
    with redirect_stdout(printed):
        options = parser.parse_args(argv)
        application = GlobalHydra.instance().hydra
        assert application is not None
        if options.help:
            application.app_help("config", parser, options)
        else:
            application.show_cfg(
                "config", options.overrides, options.cfg, options.package, options.resolve
            )
    return printed.getvalue()


def parse_override(override: str) -> ParsedOverride | None:
    """Parse an override, while Hydra is initialized; return None if its grammar has no such one."""
    try:
        (parsed,) = OverridesParser.create(GlobalHydra.instance().config_loader()).parse_overrides(
            [override]
        )
    except (OverrideParseException, ValueError):  # a number of thousands of digits
        return None
    return ParsedOverride(
        parsed.get_key_element(),
        parsed.value(),
        parsed.is_sweep_override(),
        tuple(parsed.sweep_string_iterator()) if parsed.is_discrete_sweep() else (),
    )


class _UserFolder(SearchPathPlugin):
    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        folder = user_folder(os.environ)
        if folder:
            search_path.prepend(provider=USER_DIR_VARIABLE, path=f"file://{folder}")


class _CheckedSource(FileConfigSource):
    """Reads a file for Hydra, and refuses what is dangerous in one that is not shipped.

    Hydra follows every alias and, under --multirun, calls what a `hydra` node names. Unlike in
    Hydra, other comments may stand above `# @package _global_`, as an editor reads the name of the
    schema there.
    """

    def load_config(self, config_path: str) -> ConfigResult:
        """Raises UserError: unreadable_file, not_utf8, bad_yaml, yaml_limit, reserved_key."""
        config_path = _known_path(config_path)
        path = _given_file(config_path) or Path(self.path, self._normalize_file_name(config_path))
        if path.is_relative_to(resources.CONFIGS):
            text = path.read_text(encoding="utf-8")
            config = OmegaConf.create(yaml.load(text, Loader=_fast_loader()))
            return ConfigResult(
                self.provider, f"file://{self.path}", config, self._get_header_dict(text)
            )
        # only a file that is not shipped is checked
        from launch.config.file_checks import HEADER, parse_file, read_text_file

        text = read_text_file(path)
        content = parse_file(path, text)
        # the path is absolute, so that it stays when it is joined with the source's folder
        result = super().load_config(str(path))
        package = HEADER.match(text)
        if package is not None:
            result.header["package"] = package[1]
        names = [config_path.removesuffix(".yaml"), result.header.get("package") or ""]
        names += _names_in_file(content)
        if any("hydra" in _NAME_PARTS.split(name) for name in names):
            line = find_line(path, ["hydra"])
            raise UserError(hydra_problem("hydra", f"{path}:{line}" if line else str(path)))
        return result

    def is_config(self, config_path: str) -> bool:
        """Whether there is such a file, or a stage that was given by its path."""
        config_path = _known_path(config_path)
        path = _given_file(config_path)
        with suppress(OSError):  # a name that is too long
            return path.is_file() if path else super().is_config(config_path)
        return False


def _names_in_file(content: object) -> list[str]:
    """Return the keys at the top of a file, and the groups and options in its defaults list."""
    if not isinstance(content, dict):
        return []
    names = [str(key) for key in content]
    entries = content.get("defaults")
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict):
            names += [str(group) for group in entry]
        else:
            names.append(str(entry))
    return names


@cache
def _fast_loader() -> Any:
    """Return OmegaConf's own loader with libyaml's parser, which reads the shipped files in a third
    of the time.
    """
    loader = get_yaml_loader()
    if not yaml.__with_libyaml__:
        return loader
    return type("FastLoader", (yaml.CSafeLoader, loader), {})


def _known_path(config_path: str) -> str:
    """Return the path of a trainer's file by the trainer's name here: `trainer/sft_deepspeed` is
    `trainer/finetune`.
    """
    group, _, option = config_path.rpartition("/")
    known = known_option(group, option.removesuffix(".yaml"), resources.config_roots())
    return f"{group}/{known}" if known != option.removesuffix(".yaml") else config_path


def _given_file(config_path: str) -> Path | None:
    """Return the file of a stage that was given by its path: `stage//home/me/mine.yaml` ->
    `/home/me/mine.yaml`.
    """
    path = Path(config_path.removeprefix("stage/"))
    return path if path.is_absolute() else None


@cache
def _register() -> None:
    """Register the schema and the user's folder with Hydra, once per process."""
    store = ConfigStore.instance()
    # the nodes belong to this schema alone, so that they need not be copied
    schema = OmegaConf.structured(RootConfig, flags={"no_deepcopy_set_nodes": True})
    schema._set_flag("no_deepcopy_set_nodes", None)
    store.repo["root.yaml"] = ConfigNode("root.yaml", schema, None, None, None)
    # Hydra copies the store for each composition, and then copies again what it loads from it
    vars(store)["__deepcopy__"] = lambda memo: store
    # a name that the user chooses needs no `+`
    for node in (schema.flags, schema.cluster.env, schema.data.columns):
        OmegaConf.set_struct(node, False)
    OmegaConf.register_new_resolver("product", lambda *factors: math.prod(factors), replace=True)
    Plugins.instance().register(_UserFolder)
    SourcesRegistry.instance().types["file"] = _CheckedSource
