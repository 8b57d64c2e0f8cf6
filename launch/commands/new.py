"""`launch new NAME --data FILE`: write a stage file for one's own data."""

from __future__ import annotations

import os
import re
from pathlib import Path

from launch.commands.tool_parsers import build_new_parser
from launch.commands.user_files import locate_option, write_option
from launch.config.json_schema import stage_schema
from launch.config.schema import Kind
from launch.data.draft import SCHEMA_FILE, DraftedData, draft_stage, read_for_draft
from launch.errors import EXIT_DONE, Problem, UserError, nearest
from launch.resources import CONFIGS, ROOT
from launch.terminal import echo
from launch.upstream.pin.checkout import find_checkout


def new(argv: list[str]) -> int:
    """Write a stage file for local data.

    Raises UserError: those of VerbParser.parse and `read_for_draft`; stage_exists, unreadable_columns, unknown_model,
    not_writable.
    """
    parser = build_new_parser()
    options = parser.parse(argv)
    name: str = options.name
    path = locate_option("stage", name, parser.usage)
    shipped = (CONFIGS / "stage" / path.name).is_file()
    if (path.exists() and not options.print) or shipped:
        message = f"{name} is a stage of launch" if shipped else f"{path} already exists"
        raise UserError(Problem("stage_exists", message, None, "choose another name, or use --print"))
    kind = Kind(options.kind) if options.kind else None
    data = read_for_draft(Path.cwd() / Path(options.data).expanduser(), _parse_columns(options.columns), kind)
    model, is_group = _find_model(options.model)
    text = draft_stage(data, model=model, is_group=is_group, trainer=_choose_trainer(data))
    if options.print:
        echo(text, end="")
        return EXIT_DONE
    write_option(path, text, {SCHEMA_FILE: stage_schema()})
    echo(data.structure.describe())
    echo(f"wrote {path}")
    echo(f"next: launch preview stage={name}")
    return EXIT_DONE


def _parse_columns(text: str | None) -> dict[str, str]:
    pairs = [item.partition("=") for item in text.split(",")] if text else []
    if any(not (known and equals and name) for known, equals, name in pairs):
        message = f"'{text}' is not a list of KNOWN=YOURS"
        raise UserError(
            Problem("unreadable_columns", message, "--columns", "for example prompt=frage,completion=antwort")
        )
    return {known: name for known, _, name in pairs}


def _find_model(given: str | None) -> tuple[str | None, bool]:
    """Return the model, and whether it is a model group. Raises UserError: unknown_model."""
    groups = [path.stem for path in (CONFIGS / "model").glob("*.yaml")]
    if given is None or given in groups:
        return given, given is not None
    folder = Path.cwd() / Path(given).expanduser()
    if folder.is_dir():
        return str(folder), False
    if re.fullmatch(r"[\w.-]+/[\w.-]+", given):
        return given, False
    near = nearest(given, groups)
    cure = f"did you mean '{near[0]}'?" if near else f"choose {', '.join(sorted(groups))}, a hub id or a folder"
    raise UserError(
        Problem("unknown_model", f"'{given}' is neither a model group, a hub id nor a folder", "--model", cure)
    )


def _choose_trainer(data: DraftedData) -> str | None:
    """Return TRL's trainer where open-instruct is missing; None for the stage's own, and for a reward model."""
    if find_checkout(None, os.environ, ROOT) is not None or data.kind == Kind.rm:
        return None
    return {Kind.sft: "trl_sft", Kind.dpo: "trl_dpo"}[data.kind]
