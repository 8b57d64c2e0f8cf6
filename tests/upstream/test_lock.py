"""The lock: complete, fast, and equal to a fresh read of the pin."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from launch.errors import UserError
from launch.upstream.libraries.library_keys import installed_version
from launch.upstream.pin.checkout import differing_files
from launch.upstream.pin.lock import SCHEMAS, load_lock, locked_schema
from launch.upstream.pin.relock import add_trainer, build_lock
from launch.upstream.pin.relock import main as relock
from launch.upstream.reader.schema_reader import SchemaReader
from launch.upstream.reader.tree import GitTree, PackageTree
from launch.upstream.schema import Field, schema_from_json, schema_to_json
from launch.upstream.trainers import ENTRIES, OPEN_INSTRUCT, TRL, trainer_name
from tests.upstream.checkouts import SITE_PACKAGES, checkout, has_commit


def test_every_trainer_is_locked_and_readable() -> None:
    assert sorted(path.stem for path in SCHEMAS.glob("*.json")) == sorted(ENTRIES)
    for name, entry in ENTRIES.items():
        schema = locked_schema(name)
        assert schema.entry == entry
        assert len(schema.fields) > 50
        assert schema.unknown == ()
        assert schema_from_json(schema_to_json(schema)) == schema


def test_the_locks_files_are_the_schemas_files() -> None:
    lock = load_lock()
    files = {path: blob for name in OPEN_INSTRUCT for path, blob in locked_schema(name).files.items()}
    assert files == lock.files
    assert set(lock.packages) == {"trl", "transformers", "olmo_core"}


def test_choices_defined_in_olmo_core_are_in_the_lock() -> None:
    attention = locked_schema("dpo").fields["attn_implementation"]
    assert attention.choices == ("torch", "flash_2", "flash_3", "flash_4", "te")


def test_an_unknown_trainer_is_a_user_error() -> None:
    with pytest.raises(UserError) as refusal:
        locked_schema("fintune")
    assert refusal.value.problems[0].id == "unknown_trainer"


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("finetune", "finetune"),
        ("open_instruct/finetune.py", "finetune"),
        ("external/open-instruct/open_instruct/dpo.py", "dpo"),
        ("C:\\work\\open_instruct\\dpo.py", "dpo"),
        ("open_instruct.grpo_fast", "grpo_fast"),
        ("trl.scripts.dpo", "trl_dpo"),
        ("lib/python3.11/site-packages/trl/scripts/sft.py", "trl_sft"),
        ("train.py", None),
        ("trl/scripts/grpo.py", None),
        ("", None),
    ],
)
def test_trainer_names(given: str, meant: str | None) -> None:
    assert trainer_name(given) == meant


def test_loading_is_fast() -> None:
    def seconds() -> float:
        load_lock.cache_clear()
        start = time.process_time()
        load_lock()
        schema_from_json(schema_to_json(locked_schema("dpo")))
        return time.process_time() - start

    assert min(seconds() for _ in range(5)) < 0.02


def _without_unread_aspects(fresh: Field, locked: Field) -> Field:
    """The locked field with the aspects that can't be read here (olmo_core isn't installed) as read here."""
    if not fresh.unknown:
        return locked
    names = ("kind", "nargs", "const", "choices", "default", "declared", "unknown", "negatable", "required", "settable")
    return replace(locked, **{name: getattr(fresh, name) for name in (*names, "unsettable_because")})


def test_the_lock_equals_a_fresh_read_of_the_pin() -> None:
    root = checkout()
    lock = load_lock()
    if root is None or not has_commit(root, lock.pin):
        pytest.skip("no open-instruct checkout with the pin: set OPEN_INSTRUCT_DIR or fetch the submodule")
    with GitTree(root, lock.pin) as tree:
        reader = SchemaReader(tree, PackageTree(SITE_PACKAGES))
        for name, entry in OPEN_INSTRUCT.items():
            fresh, locked = reader.read(entry), locked_schema(name)
            expected = {
                flag: _without_unread_aspects(field, locked.fields[flag]) for flag, field in fresh.fields.items()
            }
            assert fresh.fields == expected, name
            assert list(fresh.fields) == list(locked.fields)
            assert replace(fresh, fields={}, package_files={}) == replace(locked, fields={}, package_files={})


def test_trls_schemas_equal_a_fresh_read_of_the_locked_versions() -> None:
    for name in ("trl", "transformers"):
        if installed_version(name, SITE_PACKAGES) != load_lock().packages[name]:
            pytest.skip(f"{name} {load_lock().packages[name]} is not installed in this interpreter")
    for name, entry in TRL.items():
        assert SchemaReader(PackageTree(SITE_PACKAGES)).read(entry) == locked_schema(name)


def test_relocking_the_pin_changes_nothing_of_upstreams_files() -> None:
    root = checkout()
    lock = load_lock()
    if root is None or not has_commit(root, lock.pin):
        pytest.skip("no open-instruct checkout with the pin: set OPEN_INSTRUCT_DIR or fetch the submodule")
    texts = build_lock(root, lock.pin[:12], [])
    assert {path.stem for path in texts} == {"lock", *OPEN_INSTRUCT}
    assert texts[SCHEMAS.parent / "lock.json"] == (SCHEMAS.parent / "lock.json").read_text(encoding="utf-8")
    if not differing_files(root, lock.files):
        assert texts[SCHEMAS / "finetune.json"].splitlines()[1:8] == _head("finetune", 8)


def test_one_more_trainer_leaves_the_rest_of_the_lock_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variant of finetune.py at the pin, and one of TRL's scripts; another version of its package is refused."""
    root = checkout()
    if root is None or not has_commit(root, load_lock().pin):
        pytest.skip("no open-instruct checkout with the pin: set OPEN_INSTRUCT_DIR or fetch the submodule")
    monkeypatch.setitem(OPEN_INSTRUCT, "finetune_own", OPEN_INSTRUCT["finetune"])
    monkeypatch.setitem(TRL, "trl_reward", "trl.scripts.reward")
    for name, names in (("finetune_own", "finetune"), ("trl_reward", None)):
        texts = add_trainer(root, name, SITE_PACKAGES)
        assert set(texts) == {SCHEMAS.parent / "lock.json", SCHEMAS / f"{name}.json"}
        assert texts[SCHEMAS.parent / "lock.json"] == (SCHEMAS.parent / "lock.json").read_text(encoding="utf-8")
        if names:
            assert texts[SCHEMAS / f"{name}.json"] == (SCHEMAS / f"{names}.json").read_text(encoding="utf-8")
    monkeypatch.setattr("launch.upstream.pin.relock.installed_version", lambda *_: "1.15.0")
    with pytest.raises(UserError, match=r"trl 1\.15\.0, but the lock is of trl 1\.16\.0|transformers 1\.15\.0"):
        add_trainer(root, "trl_reward", SITE_PACKAGES)


def test_relock_refuses_in_a_sentence_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert relock(["--only", "trl_sft", str(tmp_path), "--packages", str(tmp_path)]) == 2
    assert "[trainer_script_missing]" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        relock(["--only", "trl_sft", "--pin", "HEAD", str(tmp_path)])
    assert "leave --pin out" in capsys.readouterr().err


def _head(name: str, lines: int) -> list[str]:
    return (SCHEMAS / f"{name}.json").read_text(encoding="utf-8").splitlines()[1:lines]
