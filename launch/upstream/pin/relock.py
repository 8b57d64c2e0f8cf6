"""Rewrites the lock and the ledger: `python -m launch.upstream.pin.relock CHECKOUT --packages DIR...`.

CHECKOUT is a clone of open-instruct with its history. The packages are folders (`site-packages`) with the libraries
that the schemas and the file checks are also read from: trl, transformers, accelerate, deepspeed and olmo_core (at the
revision in open-instruct's pyproject.toml).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from launch.errors import EXIT_REFUSED, Problem, UserError
from launch.files import load_json
from launch.terminal import notify
from launch.upstream.libraries.library_keys import LIBRARIES, installed_version, library_keys_file
from launch.upstream.libraries.renewal import renew_library_keys
from launch.upstream.pin.ledger import HINTS_FILE, LEDGER_FILE
from launch.upstream.pin.ledger_builder import build_ledger, move_ledger
from launch.upstream.pin.lock import DATA, LOCK_FILE, SCHEMAS, load_lock
from launch.upstream.reader.registries import REGISTRIES_FILE, read_registries
from launch.upstream.reader.schema_reader import SchemaReader
from launch.upstream.reader.tree import GitTree, PackageTree, Tree
from launch.upstream.schema import Schema, schema_to_json
from launch.upstream.trainers import ENTRIES, OPEN_INSTRUCT, TRL

BASE = "6b3964bc"  # the oldest commit whose scripts are the ancestors of today's
_DISTRIBUTIONS = {"trl": "trl", "transformers": "transformers", "olmo_core": "ai2_olmo_core"}


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    description = (__doc__ or "").split(":")[0]
    parser = argparse.ArgumentParser(prog="python -m launch.upstream.pin.relock", description=description)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--packages", type=Path, nargs="+", default=[], metavar="DIR")
    parser.add_argument("--pin", help="the commit to lock (default: the current pin)")
    parser.add_argument("--without-ledger", action="store_true", help="do not rewrite the ledger")
    parser.add_argument("--only", choices=ENTRIES, metavar="TRAINER", help="add a trainer, leave the rest as it is")
    options = parser.parse_args(arguments)
    if options.only and options.pin:
        parser.error("--only reads at the pin of the lock; leave --pin out")
    try:
        files = _build_files(options)
    except UserError as error:
        for problem in error.problems:
            notify(str(problem))
        return EXIT_REFUSED
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
        print(path.relative_to(DATA), len(text), file=sys.stderr)
    return 0


def _build_files(options: argparse.Namespace) -> dict[Path, str]:
    if options.only:
        return add_trainer(options.checkout, options.only, options.packages)
    tip = options.pin or load_lock().pin
    files = build_lock(options.checkout, tip, options.packages)
    for name in LIBRARIES:
        files[library_keys_file(name)] = json_text(renew_library_keys(name, options.packages))
    if not options.without_ledger:
        files[LEDGER_FILE] = ledger_text(options.checkout, tip, PackageTree(options.packages))
    return files


def build_lock(checkout: Path, pin: str, packages: Sequence[Path]) -> dict[Path, str]:
    """Build the lock's files ({path: text}) for a commit of the checkout's history; nothing is written.

    TRL's schemas are included only if the packages contain TRL.
    Raises UserError: unknown_commit, git_missing, trainer_script_missing, trainer_unreadable.
    """
    package_tree = PackageTree(packages)
    with GitTree(checkout, pin) as tree:
        reader = SchemaReader(tree, package_tree)
        schemas = {name: reader.read(entry) for name, entry in OPEN_INSTRUCT.items()}
        commit = tree.commit
        registries = tree.read_bytes(REGISTRIES_FILE) or b""
    if package_tree.read_bytes("trl/__init__.py") is not None:
        reader = SchemaReader(package_tree)
        schemas |= {name: reader.read(entry) for name, entry in TRL.items()}
    blobs = {path: blob for name in OPEN_INSTRUCT for path, blob in schemas[name].files.items()}
    versions = {name: installed_version(info, packages) for name, info in _DISTRIBUTIONS.items()}
    lock = {
        "schema_version": 1,
        "pin": commit,
        "files": dict(sorted(blobs.items())),
        "packages": {**load_lock().packages, **{name: version for name, version in versions.items() if version}},
        "names": read_registries(registries.decode("utf-8", errors="replace")),
    }
    texts = {SCHEMAS / f"{name}.json": schema_text(schema) for name, schema in schemas.items()}
    return {LOCK_FILE: json_text(lock), **texts}


def add_trainer(checkout: Path, name: str, packages: Sequence[Path]) -> dict[Path, str]:
    """Build the lock's files that one more trainer changes: its schema, and the blobs of its files of open-instruct.

    Raises UserError: unlocked_package, if its source is in a package of another version than the lock has; and as
    `build_lock` does.
    """
    lock, package_tree = load_json(LOCK_FILE), PackageTree(packages)
    if name in TRL:
        schema = SchemaReader(package_tree).read(TRL[name])
    else:
        with GitTree(checkout, lock["pin"]) as tree:
            schema = SchemaReader(tree, package_tree).read(OPEN_INSTRUCT[name])
        lock["files"] = dict(sorted({**lock["files"], **schema.files}.items()))
    folders = {path.partition("/")[0] for path in (*schema.files, *schema.package_files)}
    for package in sorted(folders & _DISTRIBUTIONS.keys()):
        version, locked = installed_version(_DISTRIBUTIONS[package], packages), lock["packages"][package]
        if version != locked:
            message = f"{name} was read from {package} {version}, but the lock is of {package} {locked}"
            cure = f"pip install --target FOLDER {_DISTRIBUTIONS[package]}=={locked}, and --packages FOLDER"
            raise UserError(Problem("unlocked_package", message, cure=cure))
    return {LOCK_FILE: json_text(lock), SCHEMAS / f"{name}.json": schema_text(schema)}


def ledger_text(checkout: Path, tip: str, packages: Tree | None) -> str:
    """Build the ledger's file from BASE to `tip`; takes a minute or two."""
    report = partial(print, file=sys.stderr)
    content = build_ledger(checkout, BASE, tip, load_json(HINTS_FILE), packages=packages, report=report)
    return _json_with_lines(content, ("commits", "entries"))


def moved_ledger_text(checkout: Path, tip: str, packages: Tree | None) -> str:
    """Build the ledger's file with another tip; only the commits between the two are read."""
    content = move_ledger(load_json(LEDGER_FILE), checkout, tip, load_json(HINTS_FILE), packages)
    return _json_with_lines(content, ("commits", "entries"))


def schema_text(schema: Schema) -> str:
    """Format a schema's file: JSON with one line per field, so that a changed flag is a changed line."""
    return _json_with_lines(schema_to_json(schema), ("fields", "classes"))


def json_text(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


_one_line_json = partial(json.dumps, ensure_ascii=False)


def _json_with_lines(content: Mapping[str, Any], one_line_per_item: tuple[str, ...]) -> str:
    """Format JSON with one line per item of the named containers, and one line for every other key."""
    parts = []
    for key, value in content.items():
        if key in one_line_per_item:
            items = (
                [f"{json.dumps(name)}: {_one_line_json(item)}" for name, item in value.items()]
                if isinstance(value, dict)
                else [_one_line_json(item) for item in value]
            )
            opening, closing = "{}" if isinstance(value, dict) else "[]"
            text = opening + "\n  " + ",\n  ".join(items) + "\n " + closing
        else:
            text = _one_line_json(value)
        parts.append(f" {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
