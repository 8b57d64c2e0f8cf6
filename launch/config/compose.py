"""Composes configurations with Hydra, which searches the user's folder first."""

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
from launch.config.group_files import find_line
from launch.config.line import MULTIRUN, CommandLine, check_overrides, hydra_problem, quote_value
from launch.config.origins import Origins
from launch.config.schema import RootConfig
from launch.config.shorthand import expand
from launch.config.unknown_keys import find_unknown_keys
from launch.config.validate import validate
from launch.errors import EXIT_DONE, UserError, refusal
from launch.resources import GROUPS, USER_DIR_VARIABLE, default_user_folder
from launch.terminal import echo
from launch.worker.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

# The groups of Hydra's application (launchers, output, help), which take a sixth of the time and are
# not needed to compose one configuration.
_APPLICATION_GROUPS = ("launcher", "sweeper", "output", "help", "hydra_help", "env")
_NAME_PARTS = re.compile(r"[./@\s]+")  # of a package, or of an entry of a defaults list
# A guard that is switched off; for OmegaConf a node can be null, but not false.
_GUARD_OFF = re.compile(r"^(guards(?:\.\w+)?)=(?:false|off)$", re.IGNORECASE)

# The errors of Hydra, OmegaConf and PyYAML for a configuration that they cannot compose.
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
    """Compose the configuration of a command line and pass it to `task`; those of a sweep one after
    another.

    Returns the first exit code that is not 0. Raises UserError for whatever Hydra or OmegaConf
    rejects, and for what `task` refuses. All configurations of a sweep are composed before `task`
    is called.
    """
    if line.asks_hydra:
        return _show(line)
    if not line.sweeps:
        return task(compose_once(line))
    codes = map_all(compose_all(line), task)
    return next((code for code in codes if code), EXIT_DONE)


def _show(line: CommandLine) -> int:
    """Print Hydra's answer to --help or --cfg. Secrets are masked, as `--resolve` reads the
    environment.
    """
    printed = io.StringIO()
    parser = get_args_parser()
    parser.prog = "launch"
    with _initialized(line) as argv, redirect_stdout(printed):
        options = parser.parse_args(argv)
        application = GlobalHydra.instance().hydra
        assert application is not None
        if options.help:
            application.app_help("config", parser, options)
        else:
            application.show_cfg(
                "config", options.overrides, options.cfg, options.package, options.resolve
            )
    echo(printed.getvalue(), end="")
    return EXIT_DONE


def compose_all(line: CommandLine) -> list[Composed]:
    """Compose every configuration of a sweep. Raises UserError with the problems of all of them."""
    return map_all(expand_sweep(line), compose_once)


def expand_sweep(line: CommandLine) -> list[CommandLine]:
    """Return a line for each combination of the values of its comma lists, if it sweeps; the values
    of the last list vary fastest.
    """
    if not line.sweeps:
        return [line]
    choices = [_expand_override(override) for override in line.overrides]
    removed = {*line.overrides, *MULTIRUN}
    options = [argument for argument in line.argv if argument not in removed]
    combinations = itertools.product(*choices)
    return [replace(line, argv=(*combination, *options)) for combination in combinations]


def _expand_override(override: str) -> list[str]:
    """Return an override for each value of a comma list; one that is none, or that Hydra cannot
    parse, as it is.
    """
    try:
        (parsed,) = OverridesParser.create().parse_overrides([quote_value(override, sweeps=True)])
    except OverrideParseException:  # is explained when it is composed
        return [override]
    if not parsed.is_discrete_sweep():
        return [override]
    key = parsed.get_key_element()
    return [f"{key}={value}" for value in parsed.sweep_string_iterator()]


def map_all(items: Iterable[T], function: Callable[[T], R]) -> list[R]:
    """Call the function with every item. Raises UserError with the problems of all, each once."""
    results: list[R] = []
    problems: list[Finding] = []
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
        chosen = {group: option for group, option in choices.items() if group in GROUPS and option}
        origins = Origins(overrides=tuple(argv), choices=chosen)
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
    """Initialize Hydra for a line, and yield its arguments as Hydra takes them. An error of Hydra's
    is raised as UserError.

    Hydra's state belongs to the process: threads compose one after another, and what a Hydra
    application around this call has set is restored.
    """
    line = expand(line)
    check_overrides(line)
    overrides = set(line.overrides)
    argv = []
    for override in line.overrides:
        with_null = _GUARD_OFF.sub(r"\1=null", override)
        argv.append(quote_value(with_null, sweeps=line.sweeps))
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
    """Reads a file for Hydra, and refuses what is dangerous in one that is not shipped.

    Hydra follows every alias and, under --multirun, calls what a `hydra` node names. Unlike in
    Hydra, other comments may stand above `# @package _global_`, as an editor reads the name of the
    schema there.
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
        # only a file that is not shipped is checked
        from launch.config.compose_errors import HEADER, parse_file, read_text

        text = read_text(path)
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
