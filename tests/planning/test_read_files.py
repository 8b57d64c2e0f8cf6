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
from launch.planning.read_files import (
    LoadedFiles,
    ReadFile,
    ReadFiles,
    find_here,
    snapshot_inputs,
)
from launch.worker.opened import FileState, FileUse, file_state
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
    snapshot_inputs(plan, plan.machine.digests.of)
    CHANGES[name](tmp_path)
    with pytest.raises(UserError) as refused:
        snapshot_inputs(plan, plan.machine.digests.of)
    [problem] = refused.value.problems
    assert problem.id == "input_changed" and name.partition("/")[0] in problem.message
    allowed = plan_in(tmp_path / "allowed", "allow=[input_changed]")
    CHANGES[name](tmp_path / "allowed")
    snapshot_inputs(allowed, allowed.machine.digests.of)


def test_a_file_of_a_flag_that_is_gone_is_refused(tmp_path: Path) -> None:
    files.model(tmp_path / "tokenizer")
    plan = plan_in(tmp_path, f"flags.hub_model_id={tmp_path / 'tokenizer'}")
    shutil.rmtree(tmp_path / "tokenizer")
    with pytest.raises(UserError) as refused:
        snapshot_inputs(plan, plan.machine.digests.of)
    assert f"{tmp_path / 'tokenizer'} no longer exists" in refused.value.problems[0].message


def test_what_a_verifier_used_in_the_proof_is_an_input(tmp_path: Path) -> None:
    helper = tmp_path / "helper.py"
    helper.write_text("SCORE = 1")
    plan = plan_in(tmp_path)
    proven = {helper: hash_file(helper)}
    assert helper in snapshot_inputs(plan, plan.machine.digests.of, proven).files
    helper.write_text("SCORE = 0")
    with pytest.raises(UserError) as refused:
        snapshot_inputs(plan, plan.machine.digests.of, proven)
    assert f"{helper} changed" in refused.value.problems[0].message


def load(loaded: LoadedFiles, path: Path, use: FileUse = "load") -> FileState:
    """A process reports that it has used a file; return the file's state."""
    state = file_state(path)
    loaded.add(path, state, use)
    return state


@pytest.mark.parametrize("name", CHANGES)
def test_a_file_that_is_replaced_before_it_is_loaded_is_found(tmp_path: Path, name: str) -> None:
    plan = plan_in(tmp_path)
    planned = snapshot_inputs(plan, plan.machine.digests.of)
    same = LoadedFiles(planned, hash_file)
    same.compare()
    assert same.changes == [] and same.find_later_changes() == []
    loaded = LoadedFiles(planned, hash_file)
    CHANGES[name](tmp_path)
    loaded.compare()
    [change] = loaded.changes
    assert str(tmp_path / name) in change
    reported = LoadedFiles(planned, hash_file)
    load(reported, tmp_path / name)
    [change] = reported.changes
    assert str(tmp_path / name) in change


@pytest.mark.parametrize("is_reported", [True, False])
@pytest.mark.parametrize("name", CHANGES)
def test_a_file_that_is_replaced_after_it_was_loaded_ends_nothing(
    tmp_path: Path, name: str, is_reported: bool
) -> None:
    """`is_reported`: the process has sent its files, so that nothing else is compared."""
    plan = plan_in(tmp_path)
    loaded = LoadedFiles(snapshot_inputs(plan, plan.machine.digests.of), hash_file)
    if is_reported:
        for path in sorted(loaded.planned.files):
            load(loaded, path)
    else:
        loaded.compare()
    CHANGES[name](tmp_path)
    loaded.compare()
    assert loaded.changes == []
    later = loaded.find_later_changes()
    was_there = tmp_path / name in loaded.planned.files
    assert later == ([f"{tmp_path / name} changed"] if was_there else [])
    if was_there:
        (tmp_path / name).unlink()
        assert loaded.find_later_changes() == [f"{tmp_path / name} no longer exists"]


def test_a_second_load_of_another_content_is_a_change(tmp_path: Path) -> None:
    """A trainer of DPO loads its model twice."""
    plan = plan_in(tmp_path)
    loaded = LoadedFiles(snapshot_inputs(plan, plan.machine.digests.of), hash_file)
    weights = tmp_path / "base" / "model.safetensors"
    load(loaded, weights)
    os.utime(weights, ns=(1, 1))
    load(loaded, weights)
    assert loaded.changes == []
    replace_alike(tmp_path)
    load(loaded, weights)
    assert loaded.changes == [f"{weights} was another file when it was loaded"]


def test_what_is_no_part_of_a_model_and_a_new_time_change_nothing(tmp_path: Path) -> None:
    plan = plan_in(tmp_path)
    loaded = LoadedFiles(snapshot_inputs(plan, plan.machine.digests.of), hash_file)
    (tmp_path / "base" / "README.md").write_text("new")
    (tmp_path / "base" / "checkpoint-10").mkdir()
    (tmp_path / "base" / "checkpoint-10" / "config.json").write_text("{}")
    snapshot_inputs(plan, plan.machine.digests.of)
    logs = (
        *("nohup.out", "slurm-1.out", "results_2026.json", "events.out.tfevents.1", "train.log"),
        "training_args.bin",  # of TRL's, beside the model that a run has saved
    )
    for name in logs:
        (tmp_path / "base" / name).write_text("written by another process")
        load(loaded, tmp_path / "base" / name)
    os.utime(tmp_path / "base" / "model.safetensors", ns=(1, 1))
    loaded.compare()
    (tmp_path / "base" / "train.log").write_text("a line, and another")
    assert loaded.changes == [] and loaded.find_later_changes() == [] and loaded.notes == []


ADDED = (
    *("tokenizer.json", "extra.safetensors", "chat_template.jinja"),
    "additional_chat_templates/tool.jinja",
)


@pytest.mark.parametrize("is_reported", [True, False])
@pytest.mark.parametrize("name", ADDED)
def test_a_file_that_the_libraries_look_for_may_not_be_added(
    tmp_path: Path, name: str, is_reported: bool
) -> None:
    plan = plan_in(tmp_path, "allow=[input_changed]")
    (tmp_path / "base" / name).unlink(missing_ok=True)
    loaded = LoadedFiles(snapshot_inputs(plan, plan.machine.digests.of), hash_file)
    (tmp_path / "base" / name).write_text("new")
    if is_reported:
        load(loaded, tmp_path / "base" / name)
    loaded.compare()
    assert loaded.changes == [f"{tmp_path / 'base' / name} was added"]


def test_only_files_whose_state_differs_are_read_again(tmp_path: Path) -> None:
    plan = plan_in(tmp_path)
    digested: list[str] = []

    def digest(path: Path) -> str:
        digested.append(path.name)
        return hash_file(path)

    planned = snapshot_inputs(plan, plan.machine.digests.of)
    LoadedFiles(planned, digest).compare()
    assert digested == []
    os.utime(tmp_path / "own.jinja", ns=(1, 1))
    loaded = LoadedFiles(planned, digest)
    loaded.compare()
    assert loaded.changes == [] and digested == ["own.jinja"]


def test_staged_rows_flag_files_and_the_accelerate_file_are_among_them(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("zero_stage: 2\n")
    files.model(tmp_path / "tokenizer")
    plan = plan_in(tmp_path, f"flags.hub_model_id={tmp_path / 'tokenizer'}")
    entry = plan.inputs.mixture[0]
    assert entry.data is not None
    entry.data.folder.mkdir(parents=True)
    entry.data.train_file.write_text("{}")
    paths = snapshot_inputs(plan, plan.machine.digests.of).files.keys()
    assert {entry.data.train_file, tmp_path / "tokenizer" / "tokenizer.json"} <= paths
    assert set(plan.parallel.files) <= paths


def test_a_file_that_was_another_while_the_trainer_loaded_it_is_found(tmp_path: Path) -> None:
    """It was put back before anybody looked: the content that was loaded is not known any more."""
    plan = plan_in(tmp_path)
    planned = snapshot_inputs(plan, plan.machine.digests.of)
    weights = tmp_path / "base" / "model.safetensors"
    kept = tmp_path / "kept"
    shutil.copy2(weights, kept)
    replace_alike(tmp_path)
    other = file_state(weights)
    kept.replace(weights)
    loaded = LoadedFiles(planned, hash_file)
    load(loaded, weights)
    loaded.compare()
    assert loaded.changes == []
    loaded.add(weights, other, "load")
    assert loaded.changes == [f"{weights} was another file when it was loaded"]
    loaded.add(tmp_path / "no input", other, "load")
    assert len(loaded.changes) == 1


def own_file(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_text("first")
    return path


@pytest.mark.parametrize("is_planned", [True, False])
def test_a_module_that_a_verifier_imports_again_has_to_be_the_same(
    tmp_path: Path, is_planned: bool
) -> None:
    """Its process is started anew after a call that was too slow."""
    helper = own_file(tmp_path, "helper.py")
    planned = {helper: ReadFile(file_state(helper), hash_file(helper))} if is_planned else {}
    loaded = LoadedFiles(ReadFiles(planned), hash_file)
    load(loaded, helper, "import")
    os.utime(helper, ns=(1, 1))
    load(loaded, helper, "import")
    assert loaded.changes == [] == loaded.find_later_changes()
    helper.write_text("other")
    assert loaded.changes == [] and loaded.find_later_changes() == [f"{helper} changed"]
    load(loaded, helper, "import")
    [change] = loaded.changes
    assert str(helper) in change


@pytest.mark.parametrize("is_planned", [True, False])
@pytest.mark.parametrize("name", ["cache.json", "helper.py"])
def test_a_file_that_the_verifier_itself_rewrites_is_named_as_that(
    tmp_path: Path, name: str, is_planned: bool
) -> None:
    file = own_file(tmp_path, name)
    planned = {file: ReadFile(file_state(file), hash_file(file))} if is_planned else {}
    loaded = LoadedFiles(ReadFiles(planned), hash_file)
    use: FileUse = "import" if name.endswith(".py") else "read"
    load(loaded, file, use)
    file.write_text("other")
    load(loaded, file, "write")
    assert loaded.notes == [f"the verifier itself rewrites {file}, which it has read"]
    loaded.compare()
    assert loaded.changes == [] and loaded.find_later_changes() == []
    load(loaded, file, use)
    assert bool(loaded.changes) == (use == "import")
    assert all("itself" in change for change in loaded.changes)


def test_a_file_that_another_program_keeps_is_reported_when_it_is_read_again(
    tmp_path: Path,
) -> None:
    table = own_file(tmp_path, "table.json")
    loaded = LoadedFiles(ReadFiles({}), hash_file)
    load(loaded, table, "read")
    table.write_text("other")
    load(loaded, table, "read")
    load(loaded, table, "read")
    assert loaded.changes == []
    assert loaded.notes == [f"{table} has changed, and a verifier has read it again"]


def test_a_file_of_the_proof_that_changed_before_a_verifier_read_it_is_a_change(
    tmp_path: Path,
) -> None:
    table = own_file(tmp_path, "table.json")
    loaded = LoadedFiles(
        ReadFiles({table: ReadFile(file_state(table), hash_file(table))}), hash_file
    )
    table.write_text("other")
    load(loaded, table, "read")
    assert loaded.changes == [f"{table} was another file when it was loaded"]


def test_another_node_reads_only_what_is_not_the_same_file_there(tmp_path: Path) -> None:
    """The number of the device is another on each node."""
    shared, own = own_file(tmp_path, "shared"), own_file(tmp_path, "own")
    digested: list[Path] = []

    def digest(path: Path) -> str:
        digested.append(path)
        return hash_file(path)

    def of_node_0(path: Path) -> ReadFile:
        return ReadFile((7, *file_state(path)[1:]), hash_file(path))

    planned = ReadFiles({shared: of_node_0(shared), own: of_node_0(own)})
    other = tmp_path / "copy"
    shutil.copy2(own, other)
    other.replace(own)
    found = find_here(planned, digest, ())
    assert digested == [own]
    assert found.files[own].state == file_state(own)
    own.write_text("other")
    with pytest.raises(UserError) as refused:
        find_here(planned, digest, ())
    assert f"{own} is another file on this node" in refused.value.problems[0].message
    own.unlink()
    with pytest.raises(UserError) as refused:
        find_here(planned, digest, ())
    assert f"{own} is not on this node" in refused.value.problems[0].message
    assert set(find_here(planned, digest, ("input_changed",)).files) == {shared}
