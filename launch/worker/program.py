"""Runs one rank: connects to the supervisor, applies the patches, runs the trainer, and reports why
it ended.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from . import channel, expectations, tracker_runs, trainer, trl_entry, trl_preview
from .patches import EVIDENCE_PATCHES, PATCHES, PatchContext, PatchError, install
from .process import (
    allow_inspection,
    die_with_parent,
    restore_temporary_folder,
    show_one_gpu,
)
from .trl_options import OPTIONS
from .trl_scripts import SCRIPTS
from .trl_trainer import EntryError
from .verifiers import VerifierError

_EXPECTED = (*expectations.STATE, *expectations.EVIDENCE)


@dataclass(frozen=True)
class WorkerArguments:
    """The parsed command line of the worker."""

    patches: Mapping[str, str]  # id -> value
    requested: Mapping[str, str]  # the keys are those of STATE and EVIDENCE (expectations.py)
    allowed: frozenset[str]  # ids of unmet expectations that only warn
    trainer: trainer.TrainerProgram
    options: Mapping[str, str]  # options of launch's own entry


def parse_arguments(arguments: Sequence[str]) -> WorkerArguments:
    """Parse the worker's command line; everything after the first `--` belongs to the trainer.

    Exits with code 2 and a one-line message, as argparse does, for an unknown patch, key or form.
    """
    own = list(arguments)
    flags: list[str] = []
    if "--" in own:
        cut = own.index("--")
        flags = own[cut + 1 :]
        own = own[:cut]
    parser = argparse.ArgumentParser("launch worker", allow_abbrev=False)
    parser.add_argument("--patch", action="append", default=[], metavar="ID[=VALUE]")
    parser.add_argument("--expect", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--allow", action="append", default=[], metavar="ID")
    parser.add_argument("--option", action="append", default=[], metavar="ID[=VALUE]")
    program = parser.add_mutually_exclusive_group(required=True)
    program.add_argument("--script", metavar="PATH")
    program.add_argument("--entry", metavar="MODULE", choices=sorted(SCRIPTS))
    options = parser.parse_args(own)
    known_patches = {name: patch.takes_value for name, patch in PATCHES.items()}
    known_options = {name: option.takes_value for name, option in OPTIONS.items()}
    try:
        patches = _parse_ids("patch", options.patch, known_patches)
        requested = _parse_ids("expectation", options.expect, dict.fromkeys(_EXPECTED, True))
        of_entry = _parse_ids("option", options.option, known_options)
    except ValueError as error:
        parser.error(str(error))
    key = next((key for key in requested if key in expectations.EVIDENCE), None)
    if key and patches.keys().isdisjoint(EVIDENCE_PATCHES):
        parser.error(
            f"expectation {key} needs --patch {' or '.join(EVIDENCE_PATCHES)}, which checks it"
        )
    if of_entry and options.entry is None:
        parser.error("--option belongs to --entry")
    template_file = patches.get("chat_template", of_entry.get("chat_template"))
    program_to_run = trainer.TrainerProgram(
        options.script, options.entry, tuple(flags), template_file
    )
    return WorkerArguments(patches, requested, frozenset(options.allow), program_to_run, of_entry)


def _parse_ids(noun: str, texts: Sequence[str], known: Mapping[str, bool]) -> dict[str, str]:
    """Return the values of ID or ID=VALUE; `known`: whether each takes one.

    Raises ValueError with a sentence about the first bad one.
    """
    values = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if name not in known:
            raise ValueError(f"unknown {noun} '{name}'; known are {', '.join(sorted(known))}")
        has_value = bool(equals)
        if known[name] and not has_value:
            raise ValueError(f"{noun} {name} takes a value: {name}=VALUE")
        if has_value and not known[name]:
            raise ValueError(f"{noun} {name} takes no value")
        values[name] = value
    return values


def main(arguments: Sequence[str]) -> None:
    """Run one rank; return when the trainer does."""
    events = channel.connect(os.environ)
    die_with_parent()
    restore_temporary_folder(os.environ)
    show_one_gpu(os.environ)
    allow_inspection(os.environ)
    options = parse_arguments(arguments)
    events.emit("phase", phase="import", pid=os.getpid())
    trainer.prepare(options.trainer)
    requested = options.requested
    try:
        for name, value in options.patches.items():
            context = PatchContext(options.trainer, events, value, requested, options.allowed)
            install(PATCHES[name], context)
        expectations.check_when_built(options.requested, options.allowed, events)
    except PatchError as error:
        events.error(str(error), type="PatchError", patch=error.patch)
        sys.exit(f"launch: {error}")
    try:
        if options.trainer.module is None:
            tracker_runs.continue_wandb(events.rank, os.environ)
            trainer.run_script(options.trainer)
        elif "preview" in options.options:
            trl_preview.main(options.trainer, options.options, events, options.allowed)
        else:
            trl_entry.main(options.trainer, options.options, events, options.allowed)
    except (EntryError, VerifierError) as error:
        events.error(str(error), type="EntryError")
        sys.exit(f"launch: {error}")
    except SystemExit as stop:
        if stop.code not in (None, 0) and not isinstance(stop, expectations.UnmetExpectation):
            events.error(
                f"the trainer exited: {stop.code}",
                type="SystemExit",
                lines=trainer.error_location(stop),
            )
        raise
    except Exception as error:
        location = trainer.error_location(error)
        chain = trainer.error_chain(error)
        events.error(str(error), type=type(error).__name__, lines=location, chain=chain)
        raise
