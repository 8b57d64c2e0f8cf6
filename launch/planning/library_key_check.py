"""Check a DeepSpeed config or accelerate YAML, as a value or as a file, against the keys that its library reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launch.config.yaml_nodes import NotYamlError, Positions, load_yaml, yaml_positions
from launch.errors import Problem, UserError, did_you_mean
from launch.files import parse_json, read_file
from launch.upstream.libraries.library_keys import KeyMismatch, KeySpec, LibraryKeys, find_mismatches, library_keys

_MAX_BYTES = 1_000_000  # larger than any configuration: a data file given by mistake
_TYPE_NAMES = {"bool": "true or false", "int": "an integer", "float": "a number", "str": "a string", "map": "a map"}


def check_config(
    config: Mapping[str, Any], keys: LibraryKeys, where: str | None = None, positions: Positions | None = None
) -> list[Problem]:
    """Return the problems of a DeepSpeed config or accelerate map; `where` names it in the problems."""
    problems = []
    for mismatch in find_mismatches(config, keys.spec):
        line = positions.of(mismatch.path) if positions else None
        message, cure = _explain(mismatch, keys)
        kind = "unknown" if mismatch.kind in ("unknown", "removed") else "bad"
        noun = "key" if kind == "unknown" else "value"
        place = f"{where}:{line}" if where and line else where
        problems.append(Problem(f"{kind}_{keys.library}_{noun}", message, place, cure))
    return problems


def check_config_file(path: Path, keys: LibraryKeys) -> list[Problem]:
    """Return the problems of a configuration file.

    DeepSpeed's must be plain JSON for accelerate and transformers; accelerate's is YAML, or JSON by its suffix.
    """
    try:
        text = _read_text(path)
        is_json = keys.library == "deepspeed" or path.suffix == ".json"
        config = parse_json(text) if is_json else load_yaml(text)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None) or getattr(error, "line", None)
        reason = getattr(error, "reason", None) or str(error).splitlines()[0]
        verb = "is not JSON" if keys.library == "deepspeed" else "cannot be parsed"
        return [_unreadable(path, keys.library, f"{verb}: {reason}", line)]
    except _UnreadableError as error:
        return [_unreadable(path, keys.library, str(error), None)]
    if not isinstance(config, Mapping):
        return [_unreadable(path, keys.library, "is not a map of settings", None)]
    if keys.library == "accelerate" and config.get("compute_environment", "LOCAL_MACHINE") != "LOCAL_MACHINE":
        return [_unreadable(path, keys.library, "is for SageMaker, which launch does not support", None)]
    try:
        positions = yaml_positions(text)
    except NotYamlError:  # JSON with an escape that YAML has not
        positions = Positions({}, ())
    repeated = [
        Problem(
            f"duplicate_{keys.library}_key",
            f"'{'.'.join(key)}' is set twice; only the last value is used",
            f"{path}:{positions.of(key)}",
            "remove one of them",
        )
        for key in positions.repeated
    ]
    return repeated + check_config(config, keys, str(path), positions)


def check_library_files(files: Mapping[str, Path | None], packages: Sequence[Path]) -> tuple[str, ...]:
    """Check the files that a run names, by library; return what they were checked against.

    `packages`: folders of the trainer's installed packages. Raises UserError, with the problems of all files.
    """
    named = [(file, library_keys(library, packages)) for library, file in files.items() if file]
    problems = [problem for file, keys in named for problem in check_config_file(file, keys)]
    if problems:
        raise UserError(problems)
    return tuple(keys.describe() for _, keys in named)


def _explain(mismatch: KeyMismatch, keys: LibraryKeys) -> tuple[str, str | None]:
    key = ".".join(mismatch.path)
    library = f"{keys.library} {keys.version}"
    if keys.installed not in (None, keys.version):
        library += f" ({keys.installed} is installed)"
    if mismatch.kind == "unknown":
        inside = f" in '{'.'.join(mismatch.path[:-1])}'" if len(mismatch.path) > 1 else ""
        return f"{library} has no key '{mismatch.path[-1]}'{inside}", _suggest_key(mismatch, keys.spec)
    if mismatch.kind == "removed":
        return f"'{key}' was removed from {library}: {mismatch.spec.removed}", "delete it"
    if mismatch.kind == "choice":
        choices = ", ".join(str(choice) for choice in mismatch.spec.choices)
        return f"'{key}' cannot be {mismatch.value!r}", f"write one of: {choices}"
    expected = " or ".join(_TYPE_NAMES.get(kind, f"a {kind}") for kind in mismatch.spec.types)
    quote = "; quote it: YAML reads an unquoted no, yes, on, off as a boolean" if "str" in mismatch.spec.types else ""
    return f"'{key}' is {mismatch.value!r}, but {library} expects {expected}", f"write {expected}{quote}"


def _suggest_key(mismatch: KeyMismatch, root: KeySpec) -> str | None:
    """Suggest the nearest keys of the same map, or else the map where a key of this name belongs."""
    name = mismatch.path[-1]
    candidates = [key for key, spec in mismatch.spec.keys.items() if spec.removed is None]
    if similar := did_you_mean(name, candidates):
        return similar
    elsewhere = sorted({".".join(path) for path in root.names() if path[-1] == name})
    if elsewhere:
        return f"it belongs at {' or '.join(elsewhere[:3])}"
    return "delete it: it has no effect"


class _UnreadableError(Exception):
    """The file cannot be read; why, as the end of a sentence."""


def _read_text(path: Path) -> str:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise _UnreadableError(f"is larger than {_MAX_BYTES // 1000} kB")
        return read_file(path).decode("utf-8")
    except FileNotFoundError:
        raise _UnreadableError("does not exist") from None
    except UnicodeDecodeError:
        raise _UnreadableError("is not UTF-8 text") from None
    except OSError as error:
        raise _UnreadableError(f"cannot be read: {error.strerror}") from None


def _unreadable(path: Path, library: str, reason: str, line: int | None) -> Problem:
    return Problem(
        f"bad_{library}_file", f"the {library} configuration {reason}", f"{path}:{line}" if line else str(path)
    )
