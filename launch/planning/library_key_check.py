"""Check a DeepSpeed config or accelerate YAML, as a value or as a file, against the keys that its
library reads.
"""

from __future__ import annotations

import errno
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
    """Return the problems of a DeepSpeed config or accelerate map; `where` names it in the
    problems.
    """
    problems = []
    for path, problem in _find_problems(config, keys.spec, keys, ()):
        line = positions.of(path)
        problems.append(replace(problem, where=f"{where}:{line}" if where and line else where))
    return problems


def _find_problems(
    config: Mapping[Any, Any], spec: KeySpec, keys: LibraryKeys, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Finding]]:
    """Yield every key and value of the map at `path` that the spec doesn't accept, in the map's
    order.
    """
    unknown, bad = f"unknown_{keys.library}_key", f"bad_{keys.library}_value"
    for name, value in config.items():
        inner, found = (*path, str(name)), spec.keys.get(str(name))
        key = ".".join(inner)
        if found is None:
            # JSON has no comments, so people write "_comment" or "//" keys; nothing reads them
            if not spec.free and not str(name).startswith(("_", "//", "#")):
                inside = f" in '{'.'.join(path)}'" if path else ""
                message = f"{keys.release} has no key '{name}'{inside}"
                yield (
                    inner,
                    Finding.error(unknown, message, cure=_suggest_key(str(name), spec, keys.spec)),
                )
        elif found.removed is not None:
            message = f"'{key}' was removed from {keys.release} ({found.removed})"
            cure = f"delete it, or use {', '.join(found.instead)}" if found.instead else "delete it"
            yield inner, Finding.error(unknown, message, cure=cure)
        elif isinstance(value, Mapping) and found.keys:
            yield from _find_problems(value, found, keys, inner)
        elif not found.accepts_type(value):
            expected = " or ".join(_TYPE_NAMES.get(kind, f"a {kind}") for kind in found.types)
            quote = (
                "; quote it: YAML reads an unquoted no, yes, on, off as a boolean"
                if "str" in found.types
                else ""
            )
            message = f"'{key}' is {value!r}, but {keys.release} expects {expected}"
            yield inner, Finding.error(bad, message, cure=f"write {expected}{quote}")
        elif found.choices and value not in (None, "auto", *found.choices):
            choices = ", ".join(str(choice) for choice in found.choices)
            yield (
                inner,
                Finding.error(bad, f"'{key}' cannot be {value!r}", cure=f"write one of: {choices}"),
            )


def _suggest_key(name: str, spec: KeySpec, root: KeySpec) -> str:
    """Suggest the nearest keys of the same map, or else the map where a key of this name
    belongs.
    """
    if similar := did_you_mean(
        name, [key for key, spec in spec.keys.items() if spec.removed is None]
    ):
        return similar
    elsewhere = sorted({".".join(path) for path in root.names() if path[-1] == name})
    if elsewhere:
        return f"it belongs at {' or '.join(elsewhere[:3])}"
    return "delete it: it has no effect"


def check_config_file(path: Path, keys: LibraryKeys) -> list[Finding]:
    """Return the problems of a configuration file.

    DeepSpeed's must be plain JSON for accelerate and transformers; accelerate's is YAML, or JSON by
    its suffix.
    """
    library, reason, line = keys.library, None, None
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise OSError(errno.EFBIG, f"it is larger than {_MAX_BYTES // 1000} kB")
        text = read_file(path).decode()
        config = (
            parse_json(text)
            if library == "deepspeed" or path.suffix == ".json"
            else load_yaml(text)
        )
    except FileNotFoundError:
        reason = "does not exist"
    except UnicodeDecodeError:
        reason = "is not UTF-8 text"
    except OSError as error:
        reason = f"cannot be read: {error.strerror}"
    except ValueError as error:
        verb = "is not JSON" if library == "deepspeed" else "cannot be parsed"
        reason = f"{verb}: {getattr(error, 'reason', None) or str(error).splitlines()[0]}"
        line = getattr(error, "lineno", None) or getattr(error, "line", None)
    else:
        if not isinstance(config, Mapping):
            reason = "is not a map of settings"
        elif (
            library == "accelerate"
            and config.get("compute_environment", "LOCAL_MACHINE") != "LOCAL_MACHINE"
        ):
            reason = "is for SageMaker, which launch does not support"
    if reason:
        where = f"{path}:{line}" if line else str(path)
        return [
            Finding.error(f"bad_{library}_file", f"the {library} configuration {reason}", where)
        ]
    try:
        positions = yaml_positions(text)
    except NotYamlError:  # JSON with an escape that YAML has not
        positions = _NOWHERE
    repeated = [
        Finding.error(
            f"duplicate_{library}_key",
            f"'{'.'.join(key)}' is set twice; only the last value is used",
            f"{path}:{positions.of(key)}",
            "remove one of them",
        )
        for key in positions.repeated
    ]
    return repeated + check_config(config, keys, str(path), positions)


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
