"""Rewrite the lock: trainers' schemas, libraries' configuration keys, digests of chat templates.

The interpreter has the trainers' packages: trl, transformers, accelerate, deepspeed and olmo_core.
Each trainer's parser is captured there, which takes some seconds the first time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from launch.digests import digest_text
from launch.errors import refusal
from launch.files import load_json, read_file, write_exact
from launch.host.interpreter import installed_version, package_folders
from launch.terminal import notify
from launch.upstream.capture.process import run_isolated
from launch.upstream.capture.start import capture_schema
from launch.upstream.libraries.library_keys import LIBRARIES, library_keys_file
from launch.upstream.pin.lock import DATA, LOCK_FILE, SCHEMAS, Lock, load_lock
from launch.upstream.schema import Schema, schema_to_json
from launch.upstream.trainers import ENTRIES, TRL
from launch.upstream.trl_templates import (
    TEMPLATES_FILE,
    find_template_files,
    has_marks,
    is_training_form,
    load_templates,
)
from launch.worker.json_codec import versioned
from maintain import library_program
from maintain.commit import extracted, find_commit

_DISTRIBUTION = {"trl": "trl", "transformers": "transformers", "olmo_core": "ai2-olmo-core"}
# what a trainer's file leaves out, because the lock has it once
_NOT_LOCKED: Mapping[str, Any] = {"names": {}, "files": {}, "packages": {}}
_SECONDS = 120.0


def relock(checkout: Path, python: str, only: str | None = None) -> Iterator[str]:
    """Rewrite the lock, or add the trainer `only` to it; yield a line for each file.

    Nothing is written before every file has been built.

    Args:
        checkout: a clone of open-instruct that has the pin.
        python: the trainers' interpreter.

    Raises UserError: unknown_commit; those of build_lock and add_trainer.
    """
    if only:
        files = add_trainer(checkout, only, python)
    else:
        pin = find_commit(checkout, load_lock().pin).id
        files = build_lock(pin, _capture(checkout, pin, ENTRIES, python), python)
        _name_kept_files(files, python)
    for path, text in files.items():
        write_exact(path, text)
        yield f"{path.relative_to(DATA)} {len(text)}"


def _name_kept_files(files: Mapping[Path, str], python: str) -> None:
    """Report the libraries that `python` lacks, whose part of the lock stays as it is."""
    for library in LIBRARIES:
        if library_keys_file(library) not in files:
            notify(f"{library} is not installed in {python}: its locked keys stay as they are")
    if TEMPLATES_FILE not in files:
        kept = "the digests of its chat templates stay as they are"
        notify(f"trl is not installed in {python}: {kept}")


def _capture(
    checkout: Path, commit: str, trainers: Iterable[str], python: str
) -> dict[str, Schema]:
    """Capture these trainers' schemas, from a commit of the checkout or from the installed TRL.

    Raises UserError: git_failed, trainer_script_missing, trainer_unreadable.
    """
    needs_checkout = not set(trainers) <= TRL.keys()
    with extracted(checkout, commit) if needs_checkout else nullcontext() as root:
        schemas = {}
        for name in trainers:
            folder = None if name in TRL else root
            schemas[name] = capture_schema(ENTRIES[name], folder, python)
        return schemas


def build_lock(pin: str, schemas: Mapping[str, Schema], python: str) -> dict[Path, str]:
    """Build the lock's files ({path: text}) from the captured schemas and the libraries of `python`.

    Nothing is written. Raises UserError: library_unreadable.
    """
    names: dict[str, Any] = {}
    for schema in schemas.values():
        names |= schema.names
    packages = {**load_lock().packages, **_captured_versions(schemas)}
    files = _lock_files(Lock(pin, {}, packages, names), schemas)
    folders = package_folders(python)
    for library in LIBRARIES:
        if installed_version(library, folders):
            keys = renewed_library_keys(library, python)
            text = json.dumps(keys, indent=1, ensure_ascii=False)
            files[library_keys_file(library)] = f"{text}\n"
    version = installed_version("trl", folders)
    if version:
        templates = versioned(describe_templates(folders, version))
        files[TEMPLATES_FILE] = f"{json_text(templates)}\n"
    return files


def add_trainer(checkout: Path, name: str, python: str) -> dict[Path, str]:
    """Build the files of the lock that one more trainer changes.

    They are its schema, and the lock itself with the blob ids of the files that it imports.

    Raises UserError: unlocked_package, if a package has another version than the lock's; those of
    `_capture`.
    """
    lock = load_lock()
    schemas = _capture(checkout, lock.pin, [name], python)
    for package, version in _captured_versions(schemas).items():
        locked = lock.packages[package]
        if version != locked:
            message = (
                f"{name} was captured with {package} {version}, "
                f"but the lock is of {package} {locked}"
            )
            cure = f"pip install {_DISTRIBUTION[package]}=={locked} in {python}"
            raise refusal("unlocked_package", message, cure=cure)
    return _lock_files(lock, schemas)


def _captured_versions(schemas: Mapping[str, Schema]) -> dict[str, str]:
    """Return the versions of the lock's packages that the trainers have imported."""
    imported: dict[str, str] = {}
    for schema in schemas.values():
        imported |= schema.packages
    versions = {}
    for package, distribution in _DISTRIBUTION.items():
        if imported.get(distribution):
            versions[package] = imported[distribution]
    return versions


def _lock_files(lock: Lock, schemas: Mapping[str, Schema]) -> dict[Path, str]:
    """Build the text of the schemas, and of the lock with the blobs of their files added."""
    blobs = dict(lock.files)
    for schema in schemas.values():
        blobs |= schema.files
    new_lock = replace(lock, files=dict(sorted(blobs.items())))
    files = {LOCK_FILE: f"{json_text(versioned(new_lock))}\n"}
    for name, schema in schemas.items():
        content = {**schema_to_json(schema), **_NOT_LOCKED}
        files[SCHEMAS / f"{name}.json"] = f"{json_text(content)}\n"
    return files


def describe_templates(packages: Sequence[Path], version: str) -> dict[str, Any]:
    """Return the lock's facts about TRL's chat templates in folders of packages.

    `version` is that of TRL.
    """
    locked = load_templates()
    files = [file for file in find_template_files(packages) if locked.offers(file.stem)]
    texts = {file.stem: read_file(file).decode() for file in files}
    plain_forms = [name for name in texts if not is_training_form(name)]
    marked = [name for name in plain_forms if has_marks(texts[name])]
    digests = {name: digest_text(text) for name, text in texts.items()}
    return {"trl": version, "marked": marked, "left_out": locked.left_out, "digests": digests}


def renewed_library_keys(library: str, python: str) -> dict[str, Any]:
    """Return the installed library's configuration keys as the lock's JSON.

    Raises UserError: library_unreadable.
    """
    request = json.dumps(load_json(library_keys_file(library))["spec"])
    result = run_isolated(python, library_program.__file__, [library], _SECONDS, request)
    error = result.get("error")
    if error:
        message = f"the configuration keys of {library} can't be read in {python}: {error}"
        cure = f"install {library}, or correct its list of keys"
        raise refusal("library_unreadable", message, cure=cure)
    return result


def json_text(value: Any, indent: str = "\n") -> str:
    """Format JSON with a line for each item of its two outer levels.

    A changed flag is then a changed line. `indent` is the line break with the spaces before this
    value.
    """
    if not value or not isinstance(value, dict | list) or len(indent) > 2:
        return json.dumps(value, ensure_ascii=False)
    inner = f"{indent} "
    if isinstance(value, dict):
        start, end = "{}"
        items = [f"{json.dumps(key)}: {json_text(item, inner)}" for key, item in value.items()]
    else:
        start, end = "[]"
        items = [json_text(item, inner) for item in value]
    lines = f",{inner}".join(items)
    return f"{start}{inner}{lines}{indent}{end}"
