"""Check a DeepSpeed config or accelerate YAML, as a value or as a file, against the keys that its
library reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from launch.config.yaml_nodes import NotYamlError, Positions, load_yaml, yaml_positions
from launch.errors import UserError, did_you_mean
from launch.files import parse_json, read_file
from launch.upstream.libraries.library_keys import KeySpec, LibraryKeys, library_keys
from launch.worker.finding import Finding

_MAX_BYTES = 1_000_000  # larger than any configuration: a data file given by mistake
_TYPE_NAMES = {
    "bool": "true or false",
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "map": "a map",
}
_NOWHERE = Positions({}, ())


def check_config(
    config: Mapping[str, Any],
    keys: LibraryKeys,
    where: str | None = None,
    positions: Positions = _NOWHERE,
) -> list[Finding]:
    """Return the problems of a DeepSpeed or accelerate configuration; `where` names its file in
    the problems.
    """
    problems = []
    for path, problem in _find_problems(config, keys.spec, keys, ()):
        line = positions.of(path)
        place = f"{where}:{line}" if where and line else where
        problems.append(replace(problem, where=place))
    return problems


def _find_problems(
    config: Mapping[Any, Any], spec: KeySpec, keys: LibraryKeys, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Finding]]:
    """Yield the path and the problem of every key and value of the map at `path` that the spec does
    not accept, in the map's order.
    """
    for name, value in config.items():
        key_path = (*path, str(name))
        key_spec = spec.keys.get(str(name))
        if key_spec is None:
            problem = _unknown_key(str(name), spec, keys, path)
        elif key_spec.removed is not None:
            problem = _removed_key(".".join(key_path), key_spec, keys)
        elif isinstance(value, Mapping) and key_spec.keys:
            yield from _find_problems(value, key_spec, keys, key_path)
            continue
        else:
            problem = _bad_value(".".join(key_path), value, key_spec, keys)
        if problem is not None:
            yield key_path, problem


def _unknown_key(
    name: str, spec: KeySpec, keys: LibraryKeys, path: tuple[str, ...]
) -> Finding | None:
    """Return the problem of a key that the library does not read in the map at `path`; None where it
    passes on any key, and for a comment.
    """
    # JSON has no comments, so people write "_comment" or "//" keys; nothing reads them
    if spec.free or name.startswith(("_", "//", "#")):
        return None
    message = f"{keys.release} has no key '{name}'"
    if path:
        message += f" in '{'.'.join(path)}'"
    cure = _suggest_key(name, spec, keys.spec)
    return Finding.error(f"unknown_{keys.library}_key", message, cure=cure)


def _removed_key(key: str, spec: KeySpec, keys: LibraryKeys) -> Finding:
    """Return the problem of a key that the library no longer has."""
    message = f"'{key}' was removed from {keys.release} ({spec.removed})"
    cure = "delete it"
    if spec.instead:
        cure += f", or use {', '.join(spec.instead)}"
    return Finding.error(f"unknown_{keys.library}_key", message, cure=cure)


def _bad_value(key: str, value: Any, spec: KeySpec, keys: LibraryKeys) -> Finding | None:
    """Return the problem of a value that has another type than its key, or is not one of the key's
    choices.
    """
    id = f"bad_{keys.library}_value"
    if not spec.accepts_type(value):
        expected = " or ".join(_TYPE_NAMES.get(kind, f"a {kind}") for kind in spec.types)
        message = f"'{key}' is {value!r}, but {keys.release} expects {expected}"
        cure = f"write {expected}"
        if "str" in spec.types:
            cure += "; quote it: YAML reads an unquoted no, yes, on, off as a boolean"
        return Finding.error(id, message, cure=cure)
    if spec.choices and value not in (None, "auto", *spec.choices):
        choices = ", ".join(str(choice) for choice in spec.choices)
        return Finding.error(id, f"'{key}' cannot be {value!r}", cure=f"write one of: {choices}")
    return None


def _suggest_key(name: str, spec: KeySpec, root: KeySpec) -> str:
    """Suggest the nearest keys of the same map, or else the map where a key of this name
    belongs.
    """
    known = [key for key, key_spec in spec.keys.items() if key_spec.removed is None]
    similar = did_you_mean(name, known)
    if similar is not None:
        return similar
    elsewhere = sorted({".".join(path) for path in root.names() if path[-1] == name})
    if elsewhere:
        return f"it belongs at {' or '.join(elsewhere[:3])}"
    return "delete it: it has no effect"


# The settings that accelerate refuses beside `deepspeed_config_file` (accelerate 1.15,
# utils/dataclasses.py:1507), by their names in `deepspeed_config`.
_IN_DEEPSPEED_FILE = (
    "gradient_accumulation_steps",
    "gradient_clipping",
    "zero_stage",
    "offload_optimizer_device",
    "offload_param_device",
    "offload_optimizer_nvme_path",
    "offload_param_nvme_path",
    "zero3_save_16bit_model",
)


def conflicting_keys(
    config: Mapping[str, Any], *, has_deepspeed_file: bool = False, precision_given: bool = True
) -> list[str]:
    """Return the settings of an accelerate file that must be in the DeepSpeed file that it names.

    `has_deepspeed_file` is whether the command line names one, and `precision_given` whether it sets
    the precision, which the file's then does not.
    """
    settings = config.get("deepspeed_config")
    if config.get("distributed_type") != "DEEPSPEED" or not isinstance(settings, Mapping):
        return []
    if not (has_deepspeed_file or settings.get("deepspeed_config_file")):
        return []
    names = [name for name in _IN_DEEPSPEED_FILE if name in settings]
    if not precision_given and config.get("mixed_precision") is not None:
        names.append("mixed_precision")
    return names


def named_deepspeed_file(config: Mapping[str, Any]) -> str | None:
    """Return the DeepSpeed file that an accelerate file names."""
    settings = config.get("deepspeed_config")
    name = settings.get("deepspeed_config_file") if isinstance(settings, Mapping) else None
    return name if isinstance(name, str) and name else None


def _find_conflicts(
    config: Mapping[str, Any], keys: LibraryKeys, where: str, positions: Positions
) -> Iterator[Finding]:
    """Yield the problem of an accelerate file that sets what the DeepSpeed file has to."""
    names = conflicting_keys(config) if keys.library == "accelerate" else []
    if names:
        message = f"{keys.release} refuses {', '.join(names)} beside deepspeed_config_file"
        line = positions.of(("deepspeed_config", names[0]))
        place = f"{where}:{line}" if line else where
        cure = "set them in the DeepSpeed file only"
        yield Finding.error("conflicting_accelerate_keys", message, place, cure)


def cannot_save_model(config: Mapping[str, Any], library: str) -> bool:
    """Return whether ZeRO-3 leaves the weights apart, so that the model can't be saved at the end.

    accelerate refuses to gather them (accelerator.py:4087) unless it is configured to, and
    transformers saves a checkpoint of DeepSpeed instead. Unset, it is false.
    """
    if library == "deepspeed":
        zero = config.get("zero_optimization")
        stage = "stage"
        gathers = "stage3_gather_16bit_weights_on_model_save"
    elif named_deepspeed_file(config):
        return False  # that file decides
    else:
        zero = config.get("deepspeed_config")
        stage = "zero_stage"
        gathers = "zero3_save_16bit_model"
    return isinstance(zero, Mapping) and zero.get(stage) == 3 and not zero.get(gathers)


class _UnusableConfigError(Exception):
    """A file is not a configuration of its library."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.line = line


def check_config_file(path: Path, keys: LibraryKeys) -> list[Finding]:
    """Return the problems of a configuration file.

    DeepSpeed's must be plain JSON for accelerate and transformers; accelerate's is YAML, or JSON by
    its suffix.
    """
    library = keys.library
    try:
        text = _read_text(path)
        config = _parse_config(text, library, is_json=path.suffix == ".json")
    except _UnusableConfigError as error:
        where = f"{path}:{error.line}" if error.line else str(path)
        message = f"the {library} configuration {error.reason}"
        return [Finding.error(f"bad_{library}_file", message, where)]
    try:
        positions = yaml_positions(text)
    except NotYamlError:  # JSON with an escape that YAML does not have
        positions = _NOWHERE
    problems = []
    for key in positions.repeated:
        message = f"'{'.'.join(key)}' is set twice; only the last value is used"
        where = f"{path}:{positions.of(key)}"
        cure = "remove one of them"
        problems.append(Finding.error(f"duplicate_{library}_key", message, where, cure))
    problems += _find_conflicts(config, keys, str(path), positions)
    return problems + check_config(config, keys, str(path), positions)


def read_config_file(path: Path, library: str) -> Mapping[str, Any] | None:
    """Return the content of a configuration file; None if it cannot be used."""
    try:
        return _parse_config(_read_text(path), library, is_json=path.suffix == ".json")
    except _UnusableConfigError:
        return None


def _read_text(path: Path) -> str:
    """Return the text of a configuration file. Raises _UnusableConfigError."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            reason = f"cannot be read: it is larger than {_MAX_BYTES // 1000} kB"
            raise _UnusableConfigError(reason)
        return read_file(path).decode()
    except FileNotFoundError as error:
        raise _UnusableConfigError("does not exist") from error
    except UnicodeDecodeError as error:
        raise _UnusableConfigError("is not UTF-8 text") from error
    except OSError as error:
        raise _UnusableConfigError(f"cannot be read: {error.strerror}") from error


def _parse_config(text: str, library: str, *, is_json: bool) -> Mapping[str, Any]:
    """Return the map that a configuration's text holds. Raises _UnusableConfigError."""
    try:
        parse = parse_json if library == "deepspeed" or is_json else load_yaml
        config = parse(text)
    except ValueError as error:
        verb = "is not JSON" if library == "deepspeed" else "cannot be parsed"
        reason = getattr(error, "reason", None) or str(error).splitlines()[0]
        line = getattr(error, "lineno", None) or getattr(error, "line", None)
        raise _UnusableConfigError(f"{verb}: {reason}", line) from error
    if not isinstance(config, Mapping):
        raise _UnusableConfigError("is not a map of settings")
    environment = config.get("compute_environment", "LOCAL_MACHINE")
    if library == "accelerate" and environment != "LOCAL_MACHINE":
        raise _UnusableConfigError("is for SageMaker, which launch does not support")
    return config


def check_library_files(files: Mapping[str, Path], packages: Sequence[Path]) -> tuple[str, ...]:
    """Check the files that a run names, by library; return what they were checked against.

    `packages` are the folders of the trainer's installed packages. Raises UserError, with the
    problems of all files.
    """
    problems: list[Finding] = []
    checked_against = []
    for library, file in files.items():
        keys = library_keys(library, packages)
        problems += check_config_file(file, keys)
        checked_against.append(keys.describe())
    if problems:
        raise UserError(problems)
    return tuple(checked_against)
