"""`launch flags TRAINER [PATTERN]`: list the flags that a trainer accepts, from its own source."""

from __future__ import annotations

import fnmatch
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launch.commands.tool_parsers import build_flags_parser
from launch.errors import EXIT_DONE, UserError, did_you_mean
from launch.host.interpreter import (
    check_interpreter,
    find_package_folders,
    installed_version,
    package_folders,
    trainer_python,
)
from launch.resources import ROOT, requirement
from launch.terminal import echo, notify, print_json
from launch.upstream.help_text import HelpTexts, read_help
from launch.upstream.pin.checkout import SUBMODULE, Checkout, fetch_command, find_checkout
from launch.upstream.pin.ledger import LedgerEntry, explain_unknown_flag, load_ledger
from launch.upstream.pin.lock import load_lock
from launch.upstream.resolve import ResolvedSchema, resolve_schema
from launch.upstream.schema import Field, Schema
from launch.upstream.trainers import TRL, parse_trainer
from launch.worker.finding import Finding, Fix
from launch.worker.json_codec import versioned
from launch.worker.wording import count_of

# The attributes of a field that the JSON has.
_ATTRIBUTES = (
    "type",
    "kind",
    "nargs",
    "choices",
    "default",
    "required",
    "owner",
    "group",
    "file",
    "line",
    "aliases",
    "negatable",
    "settable",
    "unsettable_because",
    "unknown",
)
_MAX_REASONS = 3  # number of reasons in the sentence about unknown help


@dataclass(frozen=True, kw_only=True)
class UnknownHelp:
    """Why the help of some flags is unknown: an item of `unknown` in the JSON."""

    what: str = "help"
    reason: str
    cure: str | None = None  # None if nothing provides it, as for a text that the trainer computes


def flags(args: list[str]) -> int:
    """Run `launch flags` and return its exit code.

    Raises UserError: unknown_trainer, unknown_flag; those of VerbParser.parse, resolve_schema and
    check_interpreter.
    """
    options = build_flags_parser().parse(args)
    trainer = parse_trainer(options.trainer)
    checkout = None
    if trainer not in TRL:
        checkout = find_checkout(options.upstream, os.environ, ROOT, "--upstream")
    is_named = checkout is None or checkout.found_by != SUBMODULE
    python = trainer_python(options.python)
    packages = _find_packages(options.python, python, may_start=not options.from_lock)
    resolved = resolve_schema(
        trainer, checkout, packages, python, may_capture=is_named and not options.from_lock
    )
    schema = resolved.schema
    former_flags = _former_flags(trainer, schema)
    fields = [schema.fields[name] for name in _match_pattern(schema.fields, options.pattern)]
    former = [former_flags[name] for name in _match_pattern(former_flags, options.pattern)]
    if options.pattern and not fields and not former:
        raise UserError(_no_match_problem(trainer, options.pattern, schema))
    source_folders = [checkout.root, *packages] if checkout else packages
    help_texts = read_help(fields, source_folders)
    unknown_help = _explain_unknown_help(help_texts, trainer, checkout, packages, python)
    source = _describe_source(trainer, resolved, checkout)
    if resolved.difference:
        advice = resolved.advice("--upstream DIR, without --from-lock, asks the parser of DIR")
        if unknown_help:
            unknown_help = replace(unknown_help, cure=advice)
        source = f"the lock, although {resolved.difference}; {advice}"
    if options.json:
        unknown_items: list[Any] = list(schema.unknown)
        if unknown_help:
            unknown_items.append(unknown_help)
        content = {
            "trainer": trainer,
            "source": source,
            "flags": {field.name: flag_json(trainer, field, help_texts) for field in fields},
            "renames": {entry.flag: entry for entry in former},
            "unknown": unknown_items,
        }
        print_json(versioned(content), indent=1)
        return EXIT_DONE
    width = shutil.get_terminal_size((120, 24)).columns
    full_help = bool(options.pattern)
    lines = render_table(fields, former, width, help_texts.texts, full_help=full_help)
    echo("\n".join(lines))
    count = f"{len(fields)} of {len(schema.fields)}" if options.pattern else str(len(fields))
    echo(f"{trainer}: {count} flags; {source}", file=sys.stderr)
    for unknown in schema.unknown:
        notify(f"warning: flags may be missing: {unknown.reason}")
    if unknown_help:
        _notify_unknown_help(unknown_help, len(help_texts.unknown), len(fields))
    return EXIT_DONE


def _notify_unknown_help(unknown: UnknownHelp, count: int, total: int) -> None:
    """Print why the help of `count` of the flags is unknown, and what provides it."""
    cure = f"; {unknown.cure}" if unknown.cure else ""
    notify(f"the help of {count} of {count_of(total, 'flag')} is unknown: {unknown.reason}{cure}")


def _find_packages(configured: str | None, python: str, *, may_start: bool) -> list[Path]:
    """Return the folders of the packages of --python. Raises UserError: no_interpreter."""
    problem = check_interpreter(configured, python, may_start=may_start)
    if problem:
        message = problem.message.replace("python=", "--python ")
        cure = str(problem.cure or "").replace("python=", "--python ")
        raise UserError(replace(problem, message=message, cure=Fix(cure) if cure else None))
    if may_start or configured is None:
        return package_folders(python)
    return find_package_folders(python)


def flag_json(trainer: str, field: Field, help_texts: HelpTexts) -> dict[str, Any]:
    """Return one flag as JSON; `renamed_from` has its earlier names, the oldest first.

    A `help` of null is unknown if `unknown` has it, else the flag has none.
    """
    content = {name: getattr(field, name) for name in _ATTRIBUTES}
    reason = help_texts.unknown.get(field.name)
    content["unknown"] = {**field.unknown, "help": reason} if reason else dict(field.unknown)
    content["help"] = help_texts.texts.get(field.name)
    content["renamed_from"] = _earlier_names(trainer, field.name)
    return content


def _explain_unknown_help(
    help_texts: HelpTexts,
    trainer: str,
    checkout: Checkout | None,
    packages: Sequence[Path],
    python: str,
) -> UnknownHelp | None:
    """Return why the help of some flags is unknown, and what provides it; None if all is known."""
    reasons = list(dict.fromkeys(help_texts.unknown.values()))
    if not reasons:
        return None
    if trainer in TRL and not installed_version("trl", packages):
        install = f"`{python} -m pip install {requirement('train')}` installs it"
        cure = f"{install}, --python PYTHON names where it is"
        return UnknownHelp(reason=f"TRL is not installed for {python}", cure=cure)
    if trainer not in TRL and checkout is None:
        cure = f"`{fetch_command()}` fetches one, --upstream DIR names one that is elsewhere"
        return UnknownHelp(reason="no open-instruct checkout found", cure=cure)
    shown = reasons[:_MAX_REASONS]
    if len(reasons) > _MAX_REASONS:
        shown.append(f"{len(reasons) - _MAX_REASONS} more files")
    return UnknownHelp(reason="; ".join(shown))


def render_table(
    fields: Sequence[Field],
    former: Sequence[LedgerEntry],
    width: int,
    help_texts: Mapping[str, str],
    *,
    full_help: bool,
) -> list[str]:
    """Render each flag as a line (name, type, default, source line) and its help.

    The help is in full, or cut to one line of `width` columns.
    """
    names = [*(field.name for field in fields), *(entry.flag for entry in former)]
    name_width = max(map(len, names), default=0) + 3
    indent = " " * 6
    lines: list[str] = []
    for field in fields:
        required = "*" if field.required else " "
        name = f"{required} {field.name:<{name_width}}"
        properties = "  ".join([field.type, *_describe_properties(field)])
        lines.append(f"{name}{properties}  ({field.where})")
        help_words = help_texts.get(field.name, "").split()
        lines += textwrap.wrap(
            " ".join(help_words),
            max(46, width),
            initial_indent=indent,
            subsequent_indent=indent,
            max_lines=None if full_help else 1,
            placeholder=" ...",
        )
    if former and lines:
        lines.append("")
    if former:
        lines.append("renamed or removed:")
    for entry in former:
        change = f"now {entry.renamed_to}" if entry.renamed_to else "removed"
        note = f": {entry.note}" if entry.note else ""
        lines.append(f"  {entry.flag:<{name_width}}{change}, {entry.change}{note}")
    return lines


def _describe_properties(field: Field) -> list[str]:
    properties = []
    if not field.required:
        default = _format_value(field.default)
        if "default" in field.unknown:
            default = f"? ({field.unknown['default']})"
        properties.append(f"= {default}")
    if field.choices is not None:
        choices = ", ".join(map(_format_value, field.choices))
        properties.append(f"one of {choices}")
    if not field.settable:
        properties.append(f"not settable: {field.unsettable_because}")
    if "type" in field.unknown:
        properties.append(f"type unknown: {field.unknown['type']}")
    return properties


def _format_value(value: Any) -> str:
    if isinstance(value, str):
        is_plain = bool(value) and not set(value) & set(" \t\n'\"")
        return value if is_plain else repr(value)
    if isinstance(value, list | dict | bool):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def _former_flags(trainer: str, schema: Schema) -> dict[str, LedgerEntry]:
    """Return the last rename or removal of every flag that the trainer had and the schema lacks."""
    gone = (entry for entry in load_ledger().of(trainer) if entry.kind in ("renamed", "removed"))
    return {entry.flag: entry for entry in gone if entry.flag not in schema.fields}


def _earlier_names(trainer: str, flag: str) -> list[str]:
    """Return the names that a flag had before it was renamed, the oldest first."""
    names = [flag]
    for entry in reversed(load_ledger().of(trainer)):
        if entry.renamed_to == names[0]:
            names.insert(0, entry.flag)
    return names[:-1]


def _match_pattern(names: Iterable[str], pattern: str | None) -> list[str]:
    """Return the names that match a glob, or that contain the pattern; without one, all names."""
    normalised = (pattern or "").lstrip("-").replace("-", "_").lower()
    glob = normalised if set(normalised) & set("*?[") else f"*{normalised}*"
    return [name for name in names if fnmatch.fnmatchcase(name.lower(), glob)]


def _no_match_problem(trainer: str, pattern: str, schema: Schema) -> Finding:
    explanation = explain_unknown_flag(trainer, pattern, schema.fields)
    message = f"no flag of {trainer} matches '{pattern}'"
    if explanation:
        message = f"{message}: {explanation.message}"
        return Finding.error("unknown_flag", message, cure=explanation.cure)
    return Finding.error("unknown_flag", message, cure=did_you_mean(pattern, schema.fields))


def _describe_source(trainer: str, resolved: ResolvedSchema, checkout: Checkout | None) -> str:
    lock = load_lock()
    if trainer in TRL:
        if resolved.live:
            return "TRL as installed"
        return f"TRL {lock.packages['trl']} from the lock (TRL is not installed)"
    if checkout is None:
        return f"open-instruct {lock.pin[:9]} from the lock (no checkout found)"
    return checkout.describe()
