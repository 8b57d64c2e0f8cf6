"""Composes a configuration with Hydra, with short error messages and the user's folder searched
first.
"""

from __future__ import annotations

import io
import itertools
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeVar

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
from omegaconf import OmegaConf, open_dict
from omegaconf._utils import get_yaml_loader
from omegaconf.errors import OmegaConfBaseException

from launch import resources
from launch.config.line import MULTIRUN, CommandLine, check_overrides, hydra_problem, quote_value
from launch.config.origins import Origins, find_line
from launch.config.schema import RootConfig
from launch.config.shorthand import expand
from launch.config.validate import find_unknown_keys, validate
from launch.errors import EXIT_DONE, UserError, refusal
from launch.resources import GROUPS, USER_DIR_VARIABLE, default_user_folder
from launch.terminal import echo
from launch.worker.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

# groups of Hydra's application (launchers, output, help) that composing one configuration doesn't
# need; they take a sixth of its time
_APPLICATION_GROUPS = ("launcher", "sweeper", "output", "help", "hydra_help", "env")
_NAME_PARTS = re.compile(r"[./@\s]+")  # of a package, or of an entry of a defaults list
# OmegaConf: a node is null, never false
_GUARD_OFF = re.compile(r"^(guards(?:\.\w+)?)=(?:false|off)$", re.IGNORECASE)

# what Hydra, OmegaConf and PyYAML raise for a configuration that they cannot compose
_COMPOSE_ERRORS = (
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

_HYDRA_STATE = RLock()
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Composed:
    """One composed configuration."""

    config: RootConfig
    plain: Mapping[str, Any]  # the same as plain data, interpolations resolved
    origins: Origins  # where each value is set

    @property
    def stage(self) -> str:
        return self.origins.stage


class _UserFolder(SearchPathPlugin):
    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        folder = user_folder(os.environ)
        if folder:
            search_path.prepend(provider=USER_DIR_VARIABLE, path=f"file://{folder}")


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


def compose(line: CommandLine, task: Callable[[Composed], int]) -> int:
    """Compose the configuration of a command line and pass it to `task`; of a sweep, one after
    another.

    Returns the first exit code that is not 0. Raises UserError for whatever Hydra or OmegaConf
    rejects, of a sweep before `task` is called, and then what `task` refuses of any.
    """
    if line.asks_hydra:
        return _show(line)
    codes = map_all(compose_all(line), task) if line.sweeps else [task(compose_once(line))]
    return next((code for code in codes if code), EXIT_DONE)


def _show(line: CommandLine) -> int:
    """Print what --help or --cfg asks of Hydra; secrets are masked, as `--resolve` reads the
    environment.
    """
    printed, parser = io.StringIO(), get_args_parser()
    parser.prog = "launch"
    with _initialized(line) as argv, redirect_stdout(printed):
        options, shown = parser.parse_args(argv), GlobalHydra.instance().hydra
        assert shown is not None
        if options.help:
            shown.app_help("config", parser, options)
        else:
            shown.show_cfg(
                "config", options.overrides, options.cfg, options.package, options.resolve
            )
    echo(printed.getvalue(), end="")
    return EXIT_DONE


def compose_all(line: CommandLine) -> list[Composed]:
    """Compose every configuration of a sweep. Raises UserError with the problems of all of them."""
    return map_all(expand_sweep(line), compose_once)


def expand_sweep(line: CommandLine) -> list[CommandLine]:
    """Return a line for each combination of the values of its comma lists, if it sweeps; the last
    varies fastest.
    """
    if not line.sweeps:
        return [line]
    choices: list[list[str]] = []
    for override in line.overrides:
        choices.append([override])
        with suppress(OverrideParseException):  # composing explains it
            (parsed,) = OverridesParser.create().parse_overrides(
                [quote_value(override, sweeps=True)]
            )
            if parsed.is_discrete_sweep():
                choices[-1] = [
                    f"{parsed.get_key_element()}={value}"
                    for value in parsed.sweep_string_iterator()
                ]
    others = [argument for argument in line.argv if argument not in (*line.overrides, *MULTIRUN)]
    return [
        replace(line, argv=(*combination, *others)) for combination in itertools.product(*choices)
    ]


def map_all(items: Iterable[T], function: Callable[[T], R]) -> list[R]:
    """Call the function with every item. Raises UserError with the problems of all, each once."""
    results, problems = list[R](), list[Finding]()
    for item in items:
        try:
            results.append(function(item))
        except UserError as error:
            problems += error.problems
    if problems:
        raise UserError(problems)
    return results


def compose_once(line: CommandLine) -> Composed:
    """Compose the one configuration of a command line without options.

    Raises UserError for whatever Hydra or OmegaConf rejects.
    """
    with _initialized(line) as argv:
        without_groups = [f"~hydra/{group}" for group in _APPLICATION_GROUPS]
        config = hydra.compose("config", [*argv, *without_groups], return_hydra_config=True)
        HydraConfig.instance().set_config(config)
        choices = config.hydra.runtime.choices
        origins = Origins(
            overrides=tuple(argv),
            choices={
                group: choice for group, choice in choices.items() if group in GROUPS and choice
            },
        )
        with open_dict(config):
            del config["hydra"]
        plain: Any = OmegaConf.to_container(
            config, resolve=True, throw_on_missing=True, enum_to_str=True
        )
        typed = OmegaConf.to_object(config)
    assert isinstance(typed, RootConfig)
    problems = [*find_unknown_keys(origins.overrides), *validate(typed, plain, origins)]
    if problems:
        raise UserError(problems)
    return Composed(typed, plain, origins)


@contextmanager
def _initialized(line: CommandLine) -> Iterator[list[str]]:
    """Initialize Hydra for a line, and yield its arguments as Hydra takes them; explain what Hydra
    raises.

    Hydra's state belongs to the process: threads compose one after another, and what a Hydra
    application around this call has set is restored.
    """
    line = expand(line)
    check_overrides(line)
    overrides = set(line.overrides)
    argv = [
        quote_value(_GUARD_OFF.sub(r"\1=null", override), sweeps=line.sweeps)
        for override in line.overrides
    ]
    argv += [argument for argument in line.argv if argument not in overrides]  # options come last
    with _HYDRA_STATE:
        _register()
        surrounding = HydraConfig.instance().cfg
        try:
            with hydra.initialize_config_dir(
                str(resources.CONFIGS), job_name="launch", version_base="1.3"
            ):
                yield argv
        except _COMPOSE_ERRORS as error:
            from launch.config.compose_errors import explain

            raise explain(error, line) from error
        finally:
            HydraConfig.instance().cfg = surrounding


class _CheckedSource(FileConfigSource):
    """Reads a file for Hydra, which follows every alias and, under --multirun, calls what a `hydra`
    node names.

    Other comments may stand above `# @package _global_`: an editor reads the name of the schema
    there.
    """

    def load_config(self, config_path: str) -> ConfigResult:
        """Raises UserError: unreadable_file, not_utf8, bad_yaml, yaml_limit, reserved_key."""
        path = _given_file(config_path) or Path(self.path, self._normalize_file_name(config_path))
        if path.is_relative_to(resources.CONFIGS):
            text = path.read_text(encoding="utf-8")
            config = OmegaConf.create(yaml.load(text, Loader=_fast_loader()))
            return ConfigResult(
                self.provider, f"file://{self.path}", config, self._get_header_dict(text)
            )
        # of files that are not shipped
        from launch.config.compose_errors import HEADER, parse_file, read_text

        text = read_text(path)
        content = parse_file(path, text)
        # joined with the source's folder, an absolute path stays
        result = super().load_config(str(path))
        if package := HEADER.match(text):
            result.header["package"] = package[1]
        names = [config_path.removesuffix(".yaml"), result.header.get("package") or ""]
        if isinstance(content, dict):
            entries = content.get("defaults")
            for entry in (content, *(entries if isinstance(entries, list) else ())):
                names += entry if isinstance(entry, dict) else [entry]
        if any("hydra" in _NAME_PARTS.split(str(name)) for name in names):
            line = find_line(path, ["hydra"])
            raise UserError(hydra_problem("hydra", f"{path}:{line}" if line else str(path)))
        return result

    def is_config(self, config_path: str) -> bool:
        """Whether there is such a file, or a stage that was given by its path."""
        path = _given_file(config_path)
        with suppress(OSError):  # a name that is too long
            return path.is_file() if path else super().is_config(config_path)
        return False


@cache
def _fast_loader() -> Any:
    """Return OmegaConf's own loader with libyaml's parser, which reads the shipped files in a third
    of the time.
    """
    loader = get_yaml_loader()
    return type("FastLoader", (yaml.CSafeLoader, loader), {}) if yaml.__with_libyaml__ else loader


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
    # its parts are its own
    schema = OmegaConf.structured(RootConfig, flags={"no_deepcopy_set_nodes": True})
    schema._set_flag("no_deepcopy_set_nodes", None)
    store.repo["root.yaml"] = ConfigNode("root.yaml", schema, None, None, None)
    # Hydra copies it for each composition, and what it loads again
    vars(store)["__deepcopy__"] = lambda memo: store
    # a name of the user's own needs no `+`
    for node in (schema.flags, schema.cluster.env, schema.data.columns):
        OmegaConf.set_struct(node, False)
    OmegaConf.register_new_resolver("product", lambda *factors: math.prod(factors), replace=True)
    Plugins.instance().register(_UserFolder)
    SourcesRegistry.instance().types["file"] = _CheckedSource
