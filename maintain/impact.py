"""Find what another commit of open-instruct would break here: YAML lines, patches, the lock."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from launch.config.group_files import find_line
from launch.config.origins import Origins
from launch.config.recipe_keys import KEYS, recipe_flags_of
from launch.config.yaml_nodes import NotYamlError, load_yaml
from launch.errors import UserError, refusal
from launch.host.interpreter import package_folders
from launch.resources import CONFIGS
from launch.rules.table import TABLE_FILE as TABLE
from launch.rules.table import table
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
from launch.worker.moves import follow_shim, path_at_pin
from launch.worker.patches import PATCHES
from maintain.commit import Commit, commits_without, extracted, find_commit
from maintain.compare import FlagChange, compare_schemas

# Every run may set a flag by a recipe key, or by these sections of a trainer's YAML. Others are for
# runs with an adapter or a push, for example.
_FOR_EVERY_RUN = ("launch", "flags", "cpu_flags")


@dataclass(frozen=True)
class TrainerImpact:
    """One trainer at the other commit."""

    trainer: str
    schema: Schema | None  # None if it can't be captured
    changes: tuple[FlagChange, ...]  # compared with the lock
    problem: Finding | None = None  # why it can't be captured
    # flags that were added or removed and whose help could not be read, so that one of them may be
    # a rename of another
    unknown_help: tuple[str, ...] = ()


@dataclass(frozen=True)
class Impact:
    """A commit compared with the lock."""

    commit: str
    trainers: tuple[TrainerImpact, ...]
    breaks: tuple[Finding, ...]  # empty if everything here still works at that commit
    # {path that this project knows: its path at that commit} of the files that have moved
    moves: Mapping[str, str] = field(default_factory=dict)
    # the commits of the pin that it does not contain, newest first: it is older, or on a branch
    lacks: tuple[Commit, ...] = ()


def assess_impact(
    repo: Path,
    commit: str,
    python: str,
    configs: Path = CONFIGS,
    renames: Mapping[str, str] | None = None,
) -> Impact:
    """Compare a commit with the lock, without checking it out.

    The parsers of its trainers are captured in `python`. The parsers of TRL are captured too, if
    `python` has another version of TRL, or of transformers, whose arguments TRL takes, than the
    lock's.

    Args:
        renames: the renames that a person has confirmed, {old name: new name, '' for a flag that
            was removed}.

    Raises UserError: unknown_commit, git_missing, git_failed.
    """
    commit_id = find_commit(repo, commit).id
    packages = package_folders(python)
    names = list(OPEN_INSTRUCT)
    if version_difference(packages):
        names += TRL
    with ExitStack() as stack:
        root = stack.enter_context(extracted(repo, commit_id))
        folders = packages
        with contextlib.suppress(UserError):  # the clone may lack the pin
            pin_root = stack.enter_context(extracted(repo, load_lock().pin))
            folders = [pin_root, *packages]
        moves = find_moves(root)
        trainers = tuple(
            _assess_trainer(_Place(root, moves), name, python, renames or {}, folders)
            for name in names
        )
        breaks = [
            *find_broken_configs(trainers, configs),
            *_find_broken_patches(root, moves),
            *find_stale_rules(trainers, moves),
            *find_stale_rows(trainers),
            *_find_losses(trainers),
        ]
        lacks = tuple(commits_without(repo, load_lock().pin, commit_id))
        return Impact(commit_id, trainers, tuple(dict.fromkeys(breaks)), moves, lacks)


def find_moves(root: Path) -> dict[str, str]:
    """Return the moved files of a commit below `root`, by the paths that this project knows.

    A file has moved where it is a shim that passes on to another one, or where that was so at the
    pin and the shim no longer exists.
    """
    moves = {}
    for name in OPEN_INSTRUCT:
        path = f"open_instruct/{name}.py"
        target = follow_shim(root, path)
        if target == path and not (root / path).is_file():
            target = path_at_pin(path)
        if target != path:
            moves[path] = target
    return moves


@dataclass(frozen=True)
class _Place:
    """The files of the other commit."""

    root: Path
    moves: Mapping[str, str]  # see Impact.moves


def _assess_trainer(
    place: _Place,
    name: str,
    python: str,
    confirmed: Mapping[str, str],
    pin_folders: Sequence[Path],
) -> TrainerImpact:
    """Compare one trainer. `pin_folders` are searched for the help texts of the locked schema."""
    try:
        if name in TRL:
            schema = capture_schema(ENTRIES[name], None, python)
        else:
            path = f"open_instruct/{name}.py"
            schema = capture_schema(place.moves.get(path, path), place.root, python)
    except UserError as error:
        return TrainerImpact(name, None, (), error.problems[0])
    renames = {entry.flag: entry.renamed_to for entry in load_ledger().of(name) if entry.renamed_to}
    backwards = {new: old for old, new in renames.items()}  # for an older commit
    locked = locked_schema(name)
    old_help = read_help(locked.fields.values(), pin_folders)
    new_help = read_help(schema.fields.values(), [place.root, *package_folders(python)])
    known = {**backwards, **renames, **confirmed}
    changes = compare_schemas(locked, schema, known, old_help.texts, new_help.texts)
    removed = [change.flag for change in changes if change.kind == "removed"]
    added = [change.flag for change in changes if change.kind == "added"]
    unknown_help: list[str] = []
    if removed and added:  # one may be a rename of another
        unknown_help += [flag for flag in removed if flag in old_help.unknown]
        unknown_help += [flag for flag in added if flag in new_help.unknown]
    return TrainerImpact(name, schema, tuple(changes), unknown_help=tuple(unknown_help))


def find_broken_configs(trainers: Sequence[TrainerImpact], configs: Path) -> Iterator[Finding]:
    """Find lines that no longer fit, in the trainers' YAMLs and in the stages that choose them.

    Raises UserError: bad_config.
    """
    impacts = {impact.trainer: impact for impact in trainers}
    for path in sorted((configs / "trainer").glob("*.yaml")):
        impact = impacts.get(path.stem)
        content = _load_config(path, configs)
        if impact is None:
            continue
        place = _place_of(path, configs)
        if impact.schema:
            flags = list(flags_named_in(content))
            yield from _find_stale_flags(impact, impact.schema, flags, path, place)
            settable = {flag for flag, keys, _ in flags if keys[0] in _FOR_EVERY_RUN}
            of_recipe = list(_flags_of_recipe(content))
            settable |= {flag for flag, _, _ in of_recipe}
            for flag, key, value in of_recipe:
                row = KEYS[key].place
                yield from _find_stale_flag(impact, impact.schema, flag, value, row)
            yield from _find_newly_required(impact.trainer, impact.schema, settable, place)
        elif impact.problem:
            yield replace(impact.problem, where=f"{place}:{find_line(path, ('entry',))}", cure=None)
    for path in sorted((configs / "stage").glob("*.yaml")):
        content = _load_config(path, configs)
        trainer = Origins((), {"stage": path.stem}, (configs,)).chosen_by_stage("trainer")
        impact = impacts.get(trainer or "")
        if impact is not None and impact.schema:
            flags = list(flags_named_in({"flags": content.get("flags")}))
            place = _place_of(path, configs)
            yield from _find_stale_flags(impact, impact.schema, flags, path, place)


@dataclass(frozen=True)
class _Names:
    """What a trainer's YAML contains for the table of recipe keys."""

    name: str
    kind: str
    family: str
    launcher: str = "accelerate"


def _flags_of_recipe(content: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yield the flags that the table of recipe keys has for a trainer: see `recipe_flags_of`."""
    names = {key: content[key] for key in ("name", "kind", "family", "launcher") if key in content}
    if {"name", "kind", "family"} <= names.keys():
        yield from recipe_flags_of(_Names(**names))


def _place_of(path: Path, configs: Path) -> str:
    """Return the path of a YAML for messages, relative to the clone."""
    return str(path.relative_to(configs.parents[1]))


def _load_config(path: Path, configs: Path) -> Any:
    """Return the content of a YAML. Raises UserError: bad_config."""
    try:
        return load_yaml(path.read_text(encoding="utf-8")) or {}
    except NotYamlError as error:
        message = f"the file can't be parsed: {error}"
        raise refusal("bad_config", message, _place_of(path, configs)) from None


def _find_stale_flags(
    impact: TrainerImpact,
    schema: Schema,
    flags: Sequence[tuple[str, tuple[str, ...], Any]],
    path: Path,
    place: str,
) -> Iterator[Finding]:
    """Check the flags of a YAML, each with its keys in the file and its value."""
    for flag, keys, value in flags:
        where = f"{place}:{find_line(path, keys) or find_line(path, keys[:1])}"
        yield from _find_stale_flag(impact, schema, flag, value, where)


def _find_stale_flag(
    impact: TrainerImpact, schema: Schema, flag: str, value: Any, where: str
) -> Iterator[Finding]:
    """Find a flag that the trainer no longer has, or a value that it no longer accepts."""
    if flag in schema.fields:
        is_template = isinstance(value, str) and "{" in value  # the run inserts the value
        for problem in check_values(schema, {} if is_template else {flag: value}):
            yield replace(problem, where=where)
    elif not schema.unknown:  # a flag that can't be read is unknown, not absent
        message = f"{impact.trainer} has no '{flag}' at that commit"
        new_name = None
        explanation = explain_unknown_flag(impact.trainer, flag, schema.fields)
        if explanation is not None:
            message += f": {explanation.message}"
            new_name = explanation.use
        for change in impact.changes:
            if change.kind == "renamed" and change.flag == flag:
                new_name = change.renamed_to
        cure = f"write '{new_name}'" if new_name else "fix this line"
        yield Finding.error("stale_allowlist", message, where, cure)


def _find_newly_required(
    trainer: str, schema: Schema, settable: set[str], file: str
) -> Iterator[Finding]:
    """Find flags that the trainer requires at that commit, and that no run of it sets."""
    locked = locked_schema(trainer).fields
    for name, flag in schema.fields.items():
        was_required = name in locked and locked[name].required
        if flag.required and not was_required and name not in settable:
            message = f"{trainer} requires '{name}' at that commit, and nothing here sets it"
            cure = f"map a recipe key to it or set it under flags ({flag.where})"
            yield Finding.error("missing_required", message, file, cure)


def _find_broken_patches(root: Path, moves: Mapping[str, str]) -> Iterator[Finding]:
    """Find patches whose source in open-instruct, below `root`, has changed."""
    for patch in PATCHES.values():
        for source in patch.sources:
            if source.version is not None:
                continue  # source of an installed library, not of open-instruct
            file = root / moves.get(source.file, source.file)
            code = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
            if source.matches(code):
                continue
            change = "is missing"
            if code:
                change = f"no longer contains `{' '.join(source.text.split())}`"
            message = f"patch {patch.id}: {source.file} {change}"
            yield Finding.error("patch_source_changed", message, str(source), "review the patch")


def find_stale_rules(
    trainers: Sequence[TrainerImpact], moves: Mapping[str, str] | None = None
) -> Iterator[Finding]:
    """Find functions whose text has changed since launch's rules about them were written.

    These rules no longer apply.
    """
    digests: dict[tuple[str, str], str] = {}  # by file and name of the function
    for impact in trainers:
        if impact.schema is None:
            continue
        for code in impact.schema.post_init.values():
            for place in code["functions"]:
                digests[place["file"], place["name"]] = place["digest"]
    for known in load_rules():
        file = known["file"]
        name = known["name"]
        path = (moves or {}).get(file, file)
        if digests.get((path, name), known["digest"]) != known["digest"]:
            message = f"{name} has changed: the rules about what it refuses no longer apply"
            cure = f"compare them with it ({RULES_FILE.name}), and give them its lines and digest"
            yield Finding.error("rule_source_changed", message, f"{file}:{known['lines'][0]}", cure)


def find_stale_rows(trainers: Sequence[TrainerImpact]) -> Iterator[Finding]:
    """Find rows of the table of rules about a flag that the trainer no longer has. Rows of a whole
    family are about those of its trainers that have the flag.
    """
    for impact in trainers:
        if impact.schema is None or impact.schema.unknown:
            continue
        for rule in table():
            is_stale = rule.flag is not None and rule.flag not in impact.schema.fields
            if is_stale and impact.trainer in rule.trainers:
                message = f"{impact.trainer} has no '{rule.flag}' at that commit"
                where = f"{TABLE.name}: {rule.id}"
                yield Finding.error("stale_row", message, where, "remove it from this row")


def _find_losses(trainers: Sequence[TrainerImpact]) -> Iterator[Finding]:
    """Find flags whose type, default or choices the lock knows, and this capture does not."""
    for impact in trainers:
        if impact.schema is None:
            continue
        locked = locked_schema(impact.trainer).fields
        for name, flag in impact.schema.fields.items():
            before = locked.get(name)
            if before is None or before.type != flag.type:
                continue
            if flag.unknown.keys() - before.unknown.keys():
                reasons = "; ".join(dict.fromkeys(flag.unknown.values()))
                message = f"the lock would lose what {impact.trainer}'s '{name}' accepts: {reasons}"
                cure = "name an interpreter that has the package: --python PYTHON"
                yield Finding.error("lock_would_lose", message, cure=cure)
