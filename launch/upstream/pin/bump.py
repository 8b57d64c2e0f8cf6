"""Moves the pin: gitlink, lock and ledger together, or nothing at all."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from launch.errors import Problem, UserError, refusal
from launch.external import run_command
from launch.files import load_json, write_exact
from launch.host.interpreter import package_folders
from launch.upstream.libraries.library_keys import LIBRARIES, installed_version, library_keys_file
from launch.upstream.pin.checkout import SUBMODULE
from launch.upstream.pin.impact import Impact
from launch.upstream.pin.ledger import HINTS_FILE
from launch.upstream.pin.ledger_builder import extend_ledger
from launch.upstream.pin.lock import SCHEMAS
from launch.upstream.pin.relock import build_lock, json_text, json_with_lines, renewed_library_keys
from launch.upstream.schema import schema_from_json
from launch.upstream.trainers import OPEN_INSTRUCT


@dataclass(frozen=True)
class PinMove:
    """A planned move of the pin."""

    commit: str  # for the gitlink
    files: Mapping[Path, str]  # {path: text} to write
    losses: tuple[Problem, ...]  # what the lock knows now and would lose


def plan_move(checkout: Path, impact: Impact, python: str, ledger: Path) -> PinMove:
    """Build the files that moving the pin to the commit of `impact` writes; nothing is written yet.

    Raises UserError: why a trainer has not been captured there; rename_unconfirmed; library_unreadable (a key that is
    kept by hand has left DeepSpeed's source).
    """
    problems = [trainer.problem for trainer in impact.trainers if trainer.problem]
    proposed = {(c.flag, c.renamed_to): t.trainer for t in impact.trainers for c in t.changes if c.proposed}
    for (old, new), trainer in proposed.items():
        message = f"'{old}' of {trainer} may be '{new}' now: their names or help texts are alike"
        cure = f"confirm it with --rename {old}={new}, or, if it was removed, write --rename {old}="
        problems.append(Problem("rename_unconfirmed", message, cure=cure))
    if problems:
        raise UserError(problems)
    schemas = {trainer.trainer: trainer.schema for trainer in impact.trainers if trainer.schema}
    files = build_lock(impact.commit, schemas, python)
    for library in LIBRARIES:
        if installed_version(library, package_folders(python)):
            files[library_keys_file(library)] = json_text(renewed_library_keys(library, python))
    losses = tuple(_find_losses(files))
    changes = {t.trainer: t.changes for t in impact.trainers if t.trainer in OPEN_INSTRUCT}
    extended = extend_ledger(load_json(ledger), checkout, impact.commit, changes, load_json(HINTS_FILE))
    files[ledger] = json_with_lines(extended, ("commits", "entries"))
    return PinMove(impact.commit, files, losses)


def apply_move(move: PinMove, project: Path, checkout: Path) -> list[str]:
    """Move the pin; return a description of each step. If a step fails, everything is restored.

    Raises UserError: git_failed, git_missing.
    """
    steps = []
    with _restored_on_failure(move.files):
        for path, text in move.files.items():
            write_exact(path, text)
        steps.append(f"wrote {len(move.files)} files of the lock and the ledger")
        submodule = project / SUBMODULE
        if checkout.resolve() == submodule.resolve():
            _run_git(checkout, "checkout", "--quiet", "--detach", move.commit)
            steps.append(f"checked out {move.commit[:9]} in {SUBMODULE}")
        _run_git(project, "update-index", "--add", "--cacheinfo", f"160000,{move.commit},{SUBMODULE}")
        steps.append(f"staged the gitlink {SUBMODULE} at {move.commit[:9]}")
    return steps


def read_gitlink(project: Path) -> str | None:
    """Read the submodule's commit from the project's git index; None without such an index."""
    command = ["git", "-C", str(project), "ls-files", "--stage", "--", SUBMODULE]
    try:
        result = run_command(command)
    except OSError:
        return None
    mode, _, rest = result.stdout.partition(" ")
    return rest.split()[0] if result.returncode == 0 and mode == "160000" else None


def _find_losses(files: Mapping[Path, str]) -> Iterator[Problem]:
    """Find flags whose type, default or choices the committed lock knows and the new one doesn't."""
    for path, text in files.items():
        if path.parent == SCHEMAS and path.is_file():
            old, new = schema_from_json(load_json(path)), schema_from_json(json.loads(text))
            for name, field in new.fields.items():
                before = old.fields.get(name)
                if before is not None and before.type == field.type and set(field.unknown) - set(before.unknown):
                    reasons = "; ".join(dict.fromkeys(field.unknown.values()))
                    message = f"the lock would lose what {path.stem}'s '{name}' accepts: {reasons}"
                    yield Problem(
                        "lock_would_lose", message, cure="name an interpreter that has the package: --python PYTHON"
                    )


@contextmanager
def _restored_on_failure(files: Mapping[Path, str]) -> Iterator[None]:
    before = {path: path.read_bytes() if path.is_file() else None for path in files}
    try:
        yield
    except BaseException:
        for path, content in before.items():
            if content is None:
                path.unlink(missing_ok=True)
            else:
                path.write_bytes(content)
        raise


def _run_git(folder: Path, *arguments: str) -> None:
    try:
        result = run_command(["git", "-C", str(folder), *arguments])
    except OSError:
        raise refusal("git_missing", "git can't be started", cure="install git") from None
    if result.returncode != 0:
        output = (result.stderr or result.stdout).strip().splitlines()
        message = f"git {arguments[0]} failed in {folder}: {output[0] if output else f'exit code {result.returncode}'}"
        raise refusal("git_failed", message, cure="nothing was changed")
