"""Moves the pin: gitlink, lock and ledger together, or nothing at all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from launch.errors import UserError
from launch.files import load_json, write_exact
from launch.upstream.pin.checkout import SUBMODULE
from launch.upstream.pin.ledger import HINTS_FILE, LEDGER_FILE
from launch.upstream.trainers import OPEN_INSTRUCT
from launch.worker.finding import Finding
from launch.worker.json_codec import versioned
from launch.worker.moves import MOVES_FILE
from maintain.commit import run_git
from maintain.impact import Impact
from maintain.ledger import extend_ledger
from maintain.relock import build_lock, json_text


def plan_move(checkout: Path, impact: Impact, python: str) -> dict[Path, str]:
    """Build the files ({path: text}) of the pin at the commit of `impact`; nothing is written yet.

    Raises UserError: why a trainer has not been captured there; rename_unconfirmed;
    library_unreadable (a key that the lock lists is no longer in DeepSpeed's source).
    """
    problems = [trainer.problem for trainer in impact.trainers if trainer.problem]
    problems += _unconfirmed_renames(impact)
    if problems:
        raise UserError(problems)
    schemas = {trainer.trainer: trainer.schema for trainer in impact.trainers if trainer.schema}
    own_trainers = [trainer for trainer in impact.trainers if trainer.trainer in OPEN_INSTRUCT]
    changes = {trainer.trainer: trainer.changes for trainer in own_trainers}
    ledger = extend_ledger(
        load_json(LEDGER_FILE), checkout, impact.commit, changes, load_json(HINTS_FILE)
    )
    return {
        **build_lock(impact.commit, schemas, python),
        LEDGER_FILE: json_text(ledger) + "\n",
        MOVES_FILE: json_text(versioned({"moves": impact.moves}, 1)) + "\n",
    }


def _unconfirmed_renames(impact: Impact) -> list[Finding]:
    """Return a problem for each rename that only the similarity of two flags suggests."""
    proposed: dict[tuple[str, str | None], str] = {}  # (old name, new name) -> one trainer
    for trainer in impact.trainers:
        for change in trainer.changes:
            if change.proposed:
                proposed[change.flag, change.renamed_to] = trainer.trainer
    problems = []
    for (old, new), name in proposed.items():
        message = f"'{old}' of {name} may be '{new}' now: their names or help texts are alike"
        cure = f"confirm it with --rename {old}={new}, or, if it was removed, write --rename {old}="
        problems.append(Finding.error("rename_unconfirmed", message, cure=cure))
    return problems


def apply_move(files: Mapping[Path, str], commit: str, project: Path, checkout: Path) -> list[str]:
    """Write the files and move the gitlink; return a description of each step.

    If a step fails, everything is restored.

    Raises UserError: git_failed, git_missing.
    """
    before = {path: path.read_bytes() for path in files}
    moves_checkout = checkout.resolve() == (project / SUBMODULE).resolve()
    previous = run_git(checkout, "rev-parse", "HEAD").strip() if moves_checkout else None
    steps = [f"wrote {len(files)} files of the lock and the ledger"]
    try:
        for path, text in files.items():
            write_exact(path, text)
        if moves_checkout:
            run_git(checkout, "checkout", "--quiet", "--detach", commit)
            steps.append(f"checked out {commit[:9]} in {SUBMODULE}")
        run_git(project, "update-index", "--add", "--cacheinfo", f"160000,{commit},{SUBMODULE}")
    except BaseException:
        for path, content in before.items():
            path.write_bytes(content)
        if previous is not None:
            run_git(checkout, "checkout", "--quiet", "--detach", previous)
        raise
    return [*steps, f"staged the gitlink {SUBMODULE} at {commit[:9]}"]
