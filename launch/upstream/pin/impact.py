"""Finds what another commit of open-instruct would break here: lines of trainer YAMLs, stages and patches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launch.config.origins import Origins
from launch.config.yaml_nodes import NotYamlError, Positions, load_yaml, yaml_positions
from launch.errors import Problem, UserError, refusal
from launch.host.interpreter import package_folders
from launch.resources import CONFIGS, ROOT
from launch.upstream.capture.start import capture_schema
from launch.upstream.pin.commit import extracted, find_commit
from launch.upstream.pin.compare import FlagChange, compare_schemas
from launch.upstream.pin.ledger import explain_unknown_flag, load_ledger
from launch.upstream.pin.lock import locked_schema
from launch.upstream.resolve import version_difference
from launch.upstream.rules.values import check_values
from launch.upstream.schema import Schema
from launch.upstream.trainers import OPEN_INSTRUCT, TRL, flags_named_in
from launch.worker.patches import PATCHES

_TEMPLATE = "{"  # in a value that the run fills in


@dataclass(frozen=True)
class TrainerImpact:
    """One trainer at the other commit."""

    trainer: str
    schema: Schema | None  # None: it can't be captured
    changes: tuple[FlagChange, ...]  # from the lock
    problem: Problem | None = None  # why it can't be captured


@dataclass(frozen=True)
class Impact:
    """A commit compared with the lock."""

    commit: str
    trainers: tuple[TrainerImpact, ...]
    breaks: tuple[Problem, ...]  # empty if everything here still works at that commit


@dataclass(frozen=True)
class FlagReference:
    """A flag that a YAML names."""

    flag: str
    path: tuple[str, ...]  # of the key
    where: str  # file:line
    value: Any = None  # the value that the YAML sets, if any

    @property
    def can_set_flag(self) -> bool:
        """Whether every run may set the flag because of this line, and not only one with an adapter or a push, say."""
        return self.path[0] in ("recipe", "launch", "flags", "cpu_flags")


def assess_impact(
    repo: Path, commit: str, python: str, configs: Path = CONFIGS, renames: Mapping[str, str] | None = None
) -> Impact:
    """Compare a commit with the lock, without checking it out: its trainers' parsers are captured in `python`.

    And TRL's, if `python` has another version of it, or of transformers, whose arguments it takes, than the lock's.

    renames: those that a person has confirmed, {old name: new name, '' for a flag that was removed}.
    Raises UserError: unknown_commit, git_missing, git_failed.
    """
    found = find_commit(repo, commit)
    entries = OPEN_INSTRUCT | (TRL if version_difference(package_folders(python)) else {})
    with extracted(repo, found.id) as root:
        trainers = tuple(_assess_trainer(root, name, entry, python, renames or {}) for name, entry in entries.items())
        breaks = [*_find_broken_configs(trainers, configs), *_find_broken_patches(root)]
        return Impact(found.id, trainers, tuple(breaks))


def _assess_trainer(root: Path, name: str, entry: str, python: str, confirmed: Mapping[str, str]) -> TrainerImpact:
    try:
        schema = capture_schema(entry, None if name in TRL else root, python)
    except UserError as error:
        return TrainerImpact(name, None, (), error.problems[0])
    renames = [e for e in load_ledger().entries if e.kind == "renamed" and name in e.trainers]
    known_renames = {str(entry.renamed_to): entry.flag for entry in renames}
    known_renames |= {**{entry.flag: str(entry.renamed_to) for entry in renames}, **confirmed}
    return TrainerImpact(name, schema, tuple(compare_schemas(locked_schema(name), schema, known_renames)))


def _find_broken_configs(trainers: tuple[TrainerImpact, ...], configs: Path) -> Iterator[Problem]:
    impacts = {impact.trainer: impact for impact in trainers}
    for path in (*sorted((configs / "trainer").glob("*.yaml")), *sorted((configs / "stage").glob("*.yaml"))):
        is_stage, place = path.parent.name == "stage", _display_path(path)
        trainer = Origins((), {"stage": path.stem}, (configs,)).chosen_by_stage("trainer") if is_stage else path.stem
        content, positions = _load_yaml(path)
        impact = impacts.get(trainer) if trainer else None
        if impact and impact.schema:
            named = {"flags": content.get("flags")} if is_stage else content
            references = list(referenced_flags(named, positions, place))
            yield from _find_stale_references(impact, impact.schema, references)
            if not is_stage:
                yield from _find_newly_required(impact.trainer, impact.schema, references, place)
        elif impact and impact.problem and not is_stage:
            line = positions.of(("entry",))
            yield replace(impact.problem, where=f"{place}:{line}" if line else place, cure=None)


def referenced_flags(content: Mapping[str, Any], positions: Positions, file: str) -> Iterator[FlagReference]:
    """Yield every flag that a trainer's YAML names, with its line."""
    for flag, keys, value in flags_named_in(content):
        path = tuple(map(str, keys))
        line = positions.of(path) or positions.of(path[:1])
        is_template = isinstance(value, str) and _TEMPLATE in value
        yield FlagReference(str(flag), path, f"{file}:{line}" if line else file, None if is_template else value)


def _find_stale_references(impact: TrainerImpact, schema: Schema, references: list[FlagReference]) -> Iterator[Problem]:
    """Find flags that the trainer no longer has, and values that it no longer accepts."""
    renamed = {change.flag: change.renamed_to for change in impact.changes if change.kind == "renamed"}
    reported: set[tuple[str, str]] = set()
    for reference in references:
        if reference.flag not in schema.fields:
            if schema.unknown or (reference.flag, reference.where) in reported:
                continue  # a flag that can't be read is unknown, not absent
            reported.add((reference.flag, reference.where))
            explanation = explain_unknown_flag(impact.trainer, reference.flag, schema.fields)
            message = f"{impact.trainer} has no '{reference.flag}' at that commit"
            message += f": {explanation.message}" if explanation else ""
            use = renamed.get(reference.flag) or (explanation.use if explanation else None)
            yield Problem("stale_allowlist", message, reference.where, f"write '{use}'" if use else "fix this line")
        else:
            for problem in check_values(schema, {reference.flag: reference.value}):
                yield replace(problem, where=reference.where)


def _find_newly_required(trainer: str, schema: Schema, references: list[FlagReference], file: str) -> Iterator[Problem]:
    locked = locked_schema(trainer).fields
    settable = {reference.flag for reference in references if reference.can_set_flag}
    for name, field in schema.fields.items():
        if field.required and name not in settable and not (name in locked and locked[name].required):
            message = f"{trainer} requires '{name}' at that commit, and nothing here sets it"
            cure = f"map a recipe key to it or set it under flags ({field.where})"
            yield Problem("missing_required", message, file, cure)


def _find_broken_patches(root: Path) -> Iterator[Problem]:
    for patch in PATCHES.values():
        for source in patch.sources:
            if source.version is not None:
                continue  # source of an installed library, not of open-instruct
            file = root / source.file
            code = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else None
            if code is None or not source.matches(code):
                change = "is missing" if code is None else f"no longer contains `{' '.join(source.text.split())}`"
                message = f"patch {patch.id}: {source.file} {change}"
                yield Problem("patch_source_changed", message, str(source), "review the patch")


def _load_yaml(path: Path) -> tuple[Mapping[str, Any], Positions]:
    text = path.read_text(encoding="utf-8")
    try:
        content, positions = load_yaml(text), yaml_positions(text)
    except NotYamlError as error:
        raise refusal("bad_config", f"the file can't be parsed: {error}", _display_path(path)) from None
    return (content if isinstance(content, Mapping) else {}), positions


def _display_path(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
