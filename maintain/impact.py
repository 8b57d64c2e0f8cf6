"""Finds what another commit of open-instruct would break here: lines of trainer YAMLs, stages and
patches, the lock.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launch.config.origins import Origins, find_line
from launch.config.yaml_nodes import NotYamlError, load_yaml
from launch.errors import UserError, refusal
from launch.host.interpreter import package_folders
from launch.resources import CONFIGS
from launch.upstream.capture.start import capture_schema
from launch.upstream.help_text import read_help
from launch.upstream.pin.ledger import explain_unknown_flag, load_ledger
from launch.upstream.pin.lock import load_lock, locked_schema
from launch.upstream.resolve import version_difference
from launch.upstream.rules.contradictions import RULES_FILE, load_rules
from launch.upstream.rules.values import check_values
from launch.upstream.schema import Schema
from launch.upstream.trainers import ENTRIES, OPEN_INSTRUCT, TRL, flags_named_in
from launch.worker.finding import Finding
from launch.worker.patches import PATCHES
from maintain.commit import extracted, find_commit
from maintain.compare import FlagChange, compare_schemas

# the sections of a trainer's YAML that every run may set a flag by, and not only one with an
# adapter or a push, say
_FOR_EVERY_RUN = ("recipe", "launch", "flags", "cpu_flags")


@dataclass(frozen=True)
class TrainerImpact:
    """One trainer at the other commit."""

    trainer: str
    schema: Schema | None  # None: it can't be captured
    changes: tuple[FlagChange, ...]  # from the lock
    problem: Finding | None = None  # why it can't be captured
    unread: tuple[
        str, ...
    ] = ()  # flags that were added or removed, of unread help: one may be a rename of another


@dataclass(frozen=True)
class Impact:
    """A commit compared with the lock."""

    commit: str
    trainers: tuple[TrainerImpact, ...]
    breaks: tuple[Finding, ...]  # empty if everything here still works at that commit


def assess_impact(
    repo: Path,
    commit: str,
    python: str,
    configs: Path = CONFIGS,
    renames: Mapping[str, str] | None = None,
) -> Impact:
    """Compare a commit with the lock, without checking it out: its trainers' parsers are captured
    in `python`.

    And TRL's, if `python` has another version of it, or of transformers, whose arguments it takes,
    than the lock's.

    renames: those that a person has confirmed, {old name: new name, '' for a flag that was
    removed}.
    Raises UserError: unknown_commit, git_missing, git_failed.
    """
    found = find_commit(repo, commit)
    packages = package_folders(python)
    names = [*OPEN_INSTRUCT, *(TRL if version_difference(packages) else ())]
    with ExitStack() as stack:
        root = stack.enter_context(extracted(repo, found.id))
        folders = packages
        with contextlib.suppress(UserError):  # the clone may lack the pin
            folders = [stack.enter_context(extracted(repo, load_lock().pin)), *packages]
        trainers = tuple(
            _assess_trainer(root, name, python, renames or {}, folders) for name in names
        )
        breaks = [*find_broken_configs(trainers, configs), *_find_broken_patches(root)]
        breaks += [*find_stale_rules(trainers), *_find_losses(trainers)]
        return Impact(found.id, trainers, tuple(dict.fromkeys(breaks)))


def _assess_trainer(
    root: Path, name: str, python: str, confirmed: Mapping[str, str], pin_folders: Sequence[Path]
) -> TrainerImpact:
    """Compare one trainer. `pin_folders`: what is here of the lock's source, for its help texts."""
    try:
        schema = capture_schema(ENTRIES[name], None if name in TRL else root, python)
    except UserError as error:
        return TrainerImpact(name, None, (), error.problems[0])
    renames = {entry.flag: entry.renamed_to for entry in load_ledger().of(name) if entry.renamed_to}
    backwards = {new: old for old, new in renames.items()}  # for an older commit
    locked = locked_schema(name)
    old_help = read_help(locked.fields.values(), pin_folders)
    new_help = read_help(schema.fields.values(), [root, *package_folders(python)])
    known = {**backwards, **renames, **confirmed}
    changes = compare_schemas(locked, schema, known, old_help.texts, new_help.texts)
    unread = {"removed": old_help.unread, "added": new_help.unread}
    may_be_renamed = unread.keys() <= {change.kind for change in changes}
    unknown = [
        change.flag
        for change in changes
        if may_be_renamed and change.flag in unread.get(change.kind, ())
    ]
    return TrainerImpact(name, schema, tuple(changes), unread=tuple(unknown))


def find_broken_configs(trainers: Sequence[TrainerImpact], configs: Path) -> Iterator[Finding]:
    """Find the lines of the trainers' YAMLs, and of the stages that choose them, that no longer
    fit.

    Raises UserError: bad_config.
    """
    impacts = {impact.trainer: impact for impact in trainers}
    for path in (
        *sorted((configs / "trainer").glob("*.yaml")),
        *sorted((configs / "stage").glob("*.yaml")),
    ):
        place = str(path.relative_to(configs.parents[1]))
        try:
            content = load_yaml(path.read_text(encoding="utf-8")) or {}
        except NotYamlError as error:
            raise refusal("bad_config", f"the file can't be parsed: {error}", place) from None
        is_stage = path.parent.name == "stage"
        trainer = (
            Origins((), {"stage": path.stem}, (configs,)).chosen_by_stage("trainer")
            if is_stage
            else path.stem
        )
        impact = impacts.get(trainer or "")
        if impact and impact.schema:
            flags = list(flags_named_in({"flags": content.get("flags")} if is_stage else content))
            for flag, keys, value in flags:
                where = f"{place}:{find_line(path, keys) or find_line(path, keys[:1])}"
                yield from _find_stale_flag(impact, impact.schema, flag, value, where)
            if not is_stage:
                settable = {flag for flag, keys, _ in flags if keys[0] in _FOR_EVERY_RUN}
                yield from _find_newly_required(impact.trainer, impact.schema, settable, place)
        elif impact and impact.problem and not is_stage:
            yield replace(impact.problem, where=f"{place}:{find_line(path, ('entry',))}", cure=None)


def _find_stale_flag(
    impact: TrainerImpact, schema: Schema, flag: str, value: Any, where: str
) -> Iterator[Finding]:
    """Find a flag that the trainer no longer has, or a value that it no longer accepts."""
    if flag in schema.fields:
        is_template = isinstance(value, str) and "{" in value  # which the run fills in
        for problem in check_values(schema, {} if is_template else {flag: value}):
            yield replace(problem, where=where)
    elif not schema.unknown:  # a flag that can't be read is unknown, not absent
        explanation = explain_unknown_flag(impact.trainer, flag, schema.fields)
        message = f"{impact.trainer} has no '{flag}' at that commit"
        message += f": {explanation.message}" if explanation else ""
        renamed = {
            change.flag: change.renamed_to for change in impact.changes if change.kind == "renamed"
        }
        use = renamed.get(flag) or (explanation.use if explanation else None)
        yield Finding.error(
            "stale_allowlist", message, where, f"write '{use}'" if use else "fix this line"
        )


def _find_newly_required(
    trainer: str, schema: Schema, settable: set[str], file: str
) -> Iterator[Finding]:
    locked = locked_schema(trainer).fields
    for name, field in schema.fields.items():
        if (
            field.required
            and name not in settable
            and not (name in locked and locked[name].required)
        ):
            message = f"{trainer} requires '{name}' at that commit, and nothing here sets it"
            cure = f"map a recipe key to it or set it under flags ({field.where})"
            yield Finding.error("missing_required", message, file, cure)


def _find_broken_patches(root: Path) -> Iterator[Finding]:
    for patch in PATCHES.values():
        for source in patch.sources:
            if source.version is not None:
                continue  # source of an installed library, not of open-instruct
            file = root / source.file
            code = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
            if not source.matches(code):
                change = (
                    f"no longer contains `{' '.join(source.text.split())}`"
                    if code
                    else "is missing"
                )
                message = f"patch {patch.id}: {source.file} {change}"
                yield Finding.error(
                    "patch_source_changed", message, str(source), "review the patch"
                )


def find_stale_rules(trainers: Sequence[TrainerImpact]) -> Iterator[Finding]:
    """Find functions whose text has changed since launch's rules about them were written: the rules
    no longer apply.
    """
    codes = [
        code for impact in trainers if impact.schema for code in impact.schema.post_init.values()
    ]
    digests = {
        (place["file"], place["name"]): place["digest"]
        for code in codes
        for place in code["functions"]
    }
    for known in load_rules():
        file, name = known["file"], known["name"]
        if digests.get((file, name), known["digest"]) != known["digest"]:
            message = f"{name} has changed: the rules about what it refuses no longer apply"
            cure = f"compare them with it ({RULES_FILE.name}), and give them its lines and digest"
            yield Finding.error("rule_source_changed", message, f"{file}:{known['lines'][0]}", cure)


def _find_losses(trainers: Sequence[TrainerImpact]) -> Iterator[Finding]:
    """Find flags whose type, default or choices the lock knows, and this capture doesn't."""
    for impact in trainers:
        locked = locked_schema(impact.trainer).fields
        for name, field in impact.schema.fields.items() if impact.schema else ():
            before = locked.get(name)
            if (
                before
                and before.type == field.type
                and field.unknown.keys() - before.unknown.keys()
            ):
                reasons = "; ".join(dict.fromkeys(field.unknown.values()))
                message = f"the lock would lose what {impact.trainer}'s '{name}' accepts: {reasons}"
                cure = "name an interpreter that has the package: --python PYTHON"
                yield Finding.error("lock_would_lose", message, cure=cure)
