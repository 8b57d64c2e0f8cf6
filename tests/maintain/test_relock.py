"""Relocking: one more trainer leaves the rest as it is, and a refusal writes nothing."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from launch.errors import UserError
from launch.upstream.pin.lock import DATA, SCHEMAS, load_lock, locked_schema
from launch.upstream.schema import schema_from_json, schema_to_json
from launch.upstream.trainers import ENTRIES, OPEN_INSTRUCT
from launch.upstream.trl_templates import TEMPLATES_FILE
from maintain.__main__ import main
from maintain.relock import add_trainer, build_lock
from tests.messages import values_of
from tests.trl_texts import INSTALLED
from tests.upstream.checkouts import checkout, has_commit


@pytest.mark.thorough
@pytest.mark.slow
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
    monkeypatch.setattr("maintain.relock.capture_schema", lambda *_: other)
    with pytest.raises(UserError) as refused:
        add_trainer(root, "finetune_own", sys.executable)
    [problem] = refused.value.problems
    locked = load_lock().packages["transformers"]
    assert problem.id == "unlocked_package"
    assert values_of(problem.message) == sorted(["1.15.0", "finetune_own", locked])
    assert f"transformers=={locked}" in str(problem.cure)


@pytest.mark.slow
def test_relock_writes_the_digests_of_the_installed_templates() -> None:
    if not INSTALLED:
        pytest.skip("TRL is not installed")
    files = build_lock(load_lock().pin, {}, sys.executable)
    assert files[TEMPLATES_FILE] == TEMPLATES_FILE.read_text(encoding="utf-8")


def test_relock_refuses_in_a_sentence_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = checkout()
    if root is None:
        pytest.skip("no open-instruct checkout: set OPEN_INSTRUCT_DIR or fetch the submodule")
    before = {path: path.read_bytes() for path in DATA.rglob("*.json")}
    copy = tmp_path / "no history"
    shutil.copytree(root / "open_instruct", copy / "open_instruct")
    assert main(["relock", "--upstream", str(copy)]) == 2
    assert "[unknown_commit]" in capsys.readouterr().err
    python = ["--python", str(tmp_path / "python")]
    assert main(["relock", "--only", "trl_sft", "--upstream", str(root), *python]) == 2
    assert "[trainer_unreadable]" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in DATA.rglob("*.json")} == before
