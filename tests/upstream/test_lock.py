"""The lock: complete, and read fast."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from launch.errors import UserError
from launch.upstream.pin.lock import SCHEMAS, load_lock, locked_schema
from launch.upstream.schema import schema_from_json, schema_to_json
from launch.upstream.trainers import ENTRIES, OPEN_INSTRUCT, trainer_name


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
        ("trl/scripts/kto.py", "trl_kto"),
        ("trl/scripts/rloo.py", None),
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
