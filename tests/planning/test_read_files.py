"""What was planned is what was read: each local file that a run reads is compared."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from launch.digests import hash_file
from launch.errors import UserError
from launch.planning.plan import Plan
from launch.planning.read_files import read_files, refuse_changed_inputs
from launch.worker.opened import file_state
from tests.conftest import machine_in, planned
from tests.data.files import chat, write_lines
from tests.execution import files

Change = Callable[[Path], object]


def plan_in(folder: Path, *overrides: str) -> Plan:
    """A plan of TRL's SFT whose every input is a file of the folder."""
    model = files.model(folder / "base")
    (model / "additional_chat_templates").mkdir()
    (model / "additional_chat_templates" / "rag.jinja").write_text("{{ messages }}")
    (folder / "own.jinja").write_text("{{ messages }}{% generation %}{% endgeneration %}")
    files.model(folder / "tokenizer")
    rows = write_lines(folder / "rows.jsonl", [chat("Hi", "Hello")] * 200)
    words = ("stage=sft", "trainer=trl_sft", "device=cpu", f"model.path={model}")
    data = f"data.mix=[{{name: {rows}}}]"
    template = f"recipe.chat_template={folder / 'own.jinja'}"
    own = replace(machine_in(folder), cwd=folder)
    return planned(*words, data, template, *overrides, machine=own)


def write(name: str, text: str = "other") -> Change:
    return lambda folder: (folder / name).write_text(text)


def replace_alike(folder: Path) -> None:
    """Replace the weights by a file of the same size and time."""
    file = folder / "base" / "model.safetensors"
    status = file.stat()
    other = folder / "other"
    other.write_bytes(file.read_bytes()[:-1] + b"\1")
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(file)


CHANGES: dict[str, Change] = {
    "base/model.safetensors": replace_alike,
    "base/config.json": write("base/config.json", '{"a": 1}'),
    "base/tokenizer.json": write("base/tokenizer.json", '{"a": 1}'),
    "base/additional_chat_templates/rag.jinja": write("base/additional_chat_templates/rag.jinja"),
    "base/model.safetensors.index.json": write("base/model.safetensors.index.json", "{}"),
    "base/generation_config.json": write("base/generation_config.json", "{}"),
    "own.jinja": write("own.jinja"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_file_that_is_replaced_between_the_plan_and_the_start_is_refused(
    tmp_path: Path, name: str
) -> None:
    plan = plan_in(tmp_path)
    refuse_changed_inputs(plan, plan.machine.digests.of)
    CHANGES[name](tmp_path)
    with pytest.raises(UserError) as refused:
        refuse_changed_inputs(plan, plan.machine.digests.of)
    [problem] = refused.value.problems
    assert problem.id == "input_changed" and name.partition("/")[0] in problem.message
    allowed = plan_in(tmp_path / "allowed", "allow=[input_changed]")
    CHANGES[name](tmp_path / "allowed")
    refuse_changed_inputs(allowed, allowed.machine.digests.of)


@pytest.mark.parametrize("name", CHANGES)
def test_a_file_that_is_replaced_after_the_start_is_found(tmp_path: Path, name: str) -> None:
    plan = plan_in(tmp_path)
    read = read_files(plan, hash_file)
    assert read.find_changes(hash_file) == []
    CHANGES[name](tmp_path)
    [change] = read.find_changes(hash_file)
    assert str(tmp_path / name) in change


def test_what_is_no_part_of_a_model_and_a_new_time_change_nothing(tmp_path: Path) -> None:
    plan = plan_in(tmp_path)
    read = read_files(plan, hash_file)
    (tmp_path / "base" / "README.md").write_text("new")
    (tmp_path / "base" / "checkpoint-10").mkdir()
    (tmp_path / "base" / "checkpoint-10" / "config.json").write_text("{}")
    refuse_changed_inputs(plan, plan.machine.digests.of)
    for name in ("nohup.out", "slurm-1.out", "results_2026.json", "events.out.tfevents.1"):
        (tmp_path / "base" / name).write_text("written by another process")
    os.utime(tmp_path / "base" / "model.safetensors", ns=(1, 1))
    assert read.find_changes(hash_file) == []
    log = tmp_path / "base" / "train.log"
    log.write_text("a line")
    opened = [(log, file_state(log))]
    log.write_text("a line, and another")
    assert read.find_reported(opened) == []


@pytest.mark.parametrize("name", ["tokenizer.json", "extra.safetensors", "chat_template.jinja"])
def test_a_file_that_the_libraries_look_for_may_not_be_added(tmp_path: Path, name: str) -> None:
    plan = plan_in(tmp_path)
    (tmp_path / "base" / name).unlink(missing_ok=True)
    read = read_files(plan, hash_file)
    (tmp_path / "base" / name).write_text("new")
    assert read.find_changes(hash_file) == [f"{tmp_path / 'base' / name} was added"]


def test_only_files_whose_state_differs_are_read_again(tmp_path: Path) -> None:
    plan = plan_in(tmp_path)
    read = read_files(plan, hash_file)
    digested: list[str] = []

    def digest(path: Path) -> str:
        digested.append(path.name)
        return hash_file(path)

    assert read.find_changes(digest) == [] and digested == []
    os.utime(tmp_path / "own.jinja", ns=(1, 1))
    assert read.find_changes(digest) == [] and digested == ["own.jinja"]


def test_staged_rows_flag_files_and_the_accelerate_file_are_among_them(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("zero_stage: 2\n")
    plan = plan_in(tmp_path, f"flags.hub_model_id={tmp_path / 'tokenizer'}")
    entry = plan.inputs.mixture[0]
    assert entry.data is not None
    entry.data.folder.mkdir(parents=True)
    entry.data.train_file.write_text("{}")
    paths = read_files(plan, hash_file).files.keys()
    assert {entry.data.train_file, tmp_path / "tokenizer" / "tokenizer.json"} <= paths
    assert set(plan.parallel.files) <= paths


def test_a_file_that_was_another_while_the_trainer_loaded_it_is_found(tmp_path: Path) -> None:
    """It was put back before anybody looked: the content that was loaded is not known any more."""
    plan = plan_in(tmp_path)
    read = read_files(plan, hash_file)
    weights = tmp_path / "base" / "model.safetensors"
    assert read.find_others([(weights, file_state(weights))], hash_file) == []
    kept = tmp_path / "kept"
    shutil.copy2(weights, kept)
    replace_alike(tmp_path)
    loaded = file_state(weights)
    assert len(read.find_others([(weights, loaded)], hash_file)) == 1
    kept.replace(weights)
    assert read.find_changes(hash_file) == []
    [change] = read.find_others([(weights, loaded)], hash_file)
    assert str(weights) in change
    assert read.find_others([(weights, file_state(weights))], hash_file) == []
    assert read.find_others([(tmp_path / "no input", loaded)], hash_file) == []
