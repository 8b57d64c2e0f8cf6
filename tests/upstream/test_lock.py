"""The lock: complete, fast, and extended by one trainer without a change of the rest."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from launch.errors import UserError
from launch.upstream.pin.lock import SCHEMAS, load_lock, locked_schema
from launch.upstream.pin.relock import add_trainer, build_lock
from launch.upstream.pin.relock import main as relock
from launch.upstream.schema import schema_from_json, schema_to_json
from launch.upstream.trainers import ENTRIES, OPEN_INSTRUCT, trainer_name
from launch.upstream.trl_templates import TEMPLATES_FILE
from tests.trl_texts import INSTALLED
from tests.upstream.checkouts import checkout, has_commit


def test_every_trainer_is_locked_and_readable() -> None:
    assert sorted(path.stem for path in SCHEMAS.glob("*.json")) == sorted(ENTRIES)
    for name, entry in ENTRIES.items():
        schema = locked_schema(name)
        assert schema.entry == entry
        assert len(schema.fields) > 50
        assert not schema.unknown
        assert schema_from_json(schema_to_json(schema)) == replace(schema, is_locked=False)


def test_the_locks_files_are_the_schemas_files() -> None:
    lock = load_lock()
    fields = {field.file for name in OPEN_INSTRUCT for field in locked_schema(name).fields.values()}
    assert fields | {OPEN_INSTRUCT[name] for name in OPEN_INSTRUCT} <= lock.files.keys()
    flags = {"chat_template_name", "get_tokenizer_fn", "dataset_transform_fn"}
    assert set(lock.names) == {*flags, "olmo_presets", "verifiers"}
    assert {"math", "gsm8k", "ifeval", "code_stdio", "general-quality"} <= set(
        lock.names["verifiers"]
    )
    assert set(lock.packages) == {"trl", "transformers", "olmo_core"}


def test_choices_defined_in_olmo_core_are_in_the_lock() -> None:
    attention = locked_schema("dpo").fields["attn_implementation"]
    assert attention.choices == ["torch", "flash_2", "flash_3", "flash_4", "te"]


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
        ("trl/scripts/kto.py", None),
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


def test_one_more_trainer_leaves_the_rest_of_the_lock_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A variant of finetune.py at the pin; another version of its package is refused."""
    root = checkout()
    if root is None or not has_commit(root, load_lock().pin):
        pytest.skip(
            "no open-instruct checkout with the pin: set OPEN_INSTRUCT_DIR or fetch the submodule"
        )
    monkeypatch.setitem(ENTRIES, "finetune_own", OPEN_INSTRUCT["finetune"])
    texts = add_trainer(root, "finetune_own", sys.executable)
    assert set(texts) == {SCHEMAS.parent / "lock.json", SCHEMAS / "finetune_own.json"}
    assert texts[SCHEMAS.parent / "lock.json"] == (SCHEMAS.parent / "lock.json").read_text(
        encoding="utf-8"
    )
    assert texts[SCHEMAS / "finetune_own.json"] == (SCHEMAS / "finetune.json").read_text(
        encoding="utf-8"
    )
    other = replace(
        schema_from_json(schema_to_json(locked_schema("finetune"))),
        packages={"transformers": "1.15.0"},
    )
    monkeypatch.setattr("launch.upstream.pin.relock.capture_schema", lambda *_: other)
    with pytest.raises(
        UserError, match=r"transformers 1\.15\.0, but the lock is of transformers 5"
    ):
        add_trainer(root, "finetune_own", sys.executable)


def test_relock_writes_the_digests_of_the_installed_templates() -> None:
    if not INSTALLED:
        pytest.skip("TRL is not installed")
    files = build_lock(load_lock().pin, {}, sys.executable)
    assert files[TEMPLATES_FILE] == TEMPLATES_FILE.read_text(encoding="utf-8")


def test_relock_refuses_in_a_sentence_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert relock([str(tmp_path)]) == 2
    assert "[unknown_commit]" in capsys.readouterr().err
    assert relock(["--only", "trl_sft", str(tmp_path), "--python", str(tmp_path / "python")]) == 2
    assert "[trainer_unreadable]" in capsys.readouterr().err
