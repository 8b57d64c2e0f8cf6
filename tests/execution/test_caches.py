"""Half-written caches are found and removed, unless another run is writing them."""

from __future__ import annotations

import io
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path

import pytest

from launch.errors import UserError
from launch.execution import engine
from launch.execution.caches import (
    TokenizedData,
    cache_lock,
    find_broken_references,
    find_half_written,
    plan_cache_pass,
    read_dataset_event,
    reference_folder,
    tokenized_folder,
)
from launch.execution.display import PlainDisplay
from launch.execution.record import lock
from launch.execution.record.run import Run
from launch.planning.plan import Plan
from tests.conftest import fixed_machine, planned
from tests.execution.files import cut, torch_file
from tests.execution.record.records import append, event
from tests.messages import values_of
from tests.paths import ROOT

HASH = "0123456789"
STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"


def plan_of(folder: Path, *overrides: str) -> Plan:
    return planned(
        "stage=demo_dpo", f"cache={folder / 'cache'}", *overrides, machine=fixed_machine(folder)
    )


def data_set(folder: Path) -> Path:
    """A tokenised data set as upstream leaves it, without its content."""
    folder.mkdir(parents=True)
    (folder / "data-00000-of-00001.arrow").write_bytes(bytes(100) + STREAM_END)
    (folder / "state.json").write_text(
        json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]})
    )
    for name in ("dataset_info.json", "config.json", "dataset_statistics.json"):
        (folder / name).write_text("{}")
    return folder


def test_a_data_set_as_saved_is_complete(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict({"x": list(range(3000))}).save_to_disk(tmp_path / HASH, num_shards=2)
    assert find_half_written(tmp_path) == [(tmp_path / HASH, "config.json is missing or truncated")]
    for name in ("config.json", "dataset_statistics.json"):  # upstream's own, after the data
        (tmp_path / HASH / name).write_text("{}")
    assert find_half_written(tmp_path) == []
    cut(tmp_path / HASH / "data-00001-of-00002.arrow", 0.99)
    assert find_half_written(tmp_path) == [
        (tmp_path / HASH, "data-00001-of-00002.arrow is missing or truncated")
    ]


def test_the_packed_files_of_olmo_core_are_complete_with_their_statistics(tmp_path: Path) -> None:
    files = tmp_path / "numpy_sft" / "0123456789-abcdef01"
    files.mkdir(parents=True)
    for name in (
        "token_ids_part_0000.npy",
        "labels_mask_part_0000.npy",
        "token_ids_part_0000.csv.gz",
    ):
        (files / name).touch()
    assert find_half_written(tmp_path) == [(files, "dataset_statistics.json is missing")]
    (files / "dataset_statistics.json").write_text("{}")
    assert find_half_written(tmp_path) == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda f: (f / "dataset_statistics.json").unlink(),
        lambda f: (f / "dataset_statistics.json").write_text('{"per_'),
        lambda f: (f / "state.json").unlink(),
        lambda f: (f / "data-00000-of-00001.arrow").unlink(),
        lambda f: cut(f / "data-00000-of-00001.arrow"),
    ],
)
def test_what_a_killed_run_left_is_removed_with_a_note(
    tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    plan = plan_of(tmp_path)
    tokenized, reference = tokenized_folder(plan), reference_folder(plan)
    assert tokenized is not None
    assert reference is not None
    whole = data_set(tokenized / "abcdefabcd")
    damage(data_set(tokenized / HASH))
    (tokenized / "numpy_sft").mkdir()  # not upstream's name of such a cache
    reference.mkdir(parents=True)
    torch_file(reference / "good.pt")
    cut(torch_file(reference / "bad.pt"))
    lines: list[str] = []
    with cache_lock(plan, lines.append):
        assert sorted(path.name for path in tokenized.iterdir()) == [whole.name, "numpy_sft"]
        assert [path.name for path in reference.iterdir()] == ["good.pt"]
    assert sum("half-written" in line for line in lines) == 2
    assert not (tokenized.parent / ".users").exists()


def test_a_trainer_that_keeps_no_tokenised_data_needs_no_cache(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "trainer=trl_dpo")
    assert (tokenized_folder(plan), reference_folder(plan)) == (None, None)
    with cache_lock(plan, pytest.fail):
        assert not (tmp_path / "cache").exists()


def test_half_written_data_that_cannot_be_removed_is_named(tmp_path: Path) -> None:
    """A link to a folder elsewhere is not followed, and what is there is not removed."""
    plan = plan_of(tmp_path)
    tokenized = tokenized_folder(plan)
    assert tokenized is not None
    elsewhere = data_set(tmp_path / "elsewhere")
    (elsewhere / "state.json").unlink()
    tokenized.mkdir(parents=True)
    link = tokenized / HASH
    link.symlink_to(elsewhere)
    with pytest.raises(UserError) as refused, cache_lock(plan, print):
        pass
    [problem] = refused.value.problems
    assert (problem.id, problem.where) == ("broken_cache", "cache")
    assert str(link) in problem.message and "state.json" in values_of(problem.message)
    assert "None" not in problem.message and elsewhere.is_dir()
    link.unlink()
    with cache_lock(plan, print):
        assert list(tokenized.iterdir()) == []


OLMO = ("stage=sft", "trainer=olmo_core_finetune", "model=olmo2_1b", "recipe.packing=bins")


def test_a_trainer_that_needs_tokenised_data_does_not_start_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pass fails: its interpreter is a program that ends with exit code 7."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 7\n")
    python.chmod(0o755)
    monkeypatch.setattr(engine, "_run_preflight", lambda *_, **__: None)
    display, machine = PlainDisplay(io.StringIO()), fixed_machine(tmp_path)
    machine = replace(machine, python=str(python))
    plan = planned(*OLMO, f"cache={tmp_path / 'cache'}", machine=machine)
    with pytest.raises(UserError) as refused, engine._prepared(plan, display):
        pass
    [problem] = refused.value.problems
    assert problem.id == "not_tokenized" and "cache_only=true" in str(problem.cure)
    assert values_of(problem.message) == ["1", "olmo_core_finetune"]
    assert engine.build_cache(plan, display) == 1, "which the cure starts"
    own = planned("stage=sft", f"cache={tmp_path / 'cache'}", machine=machine)
    with engine._prepared(own, display) as folder:  # finetune.py tokenises in the run itself
        assert folder.path == own.folder


def test_a_cache_that_another_run_is_building_is_left_alone(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    tokenized = tokenized_folder(plan)
    assert tokenized is not None
    with cache_lock(plan, print):
        with pytest.raises(UserError, match=r"\[cache_busy\]") as refused, cache_lock(plan, print):
            pass
        assert refused.value.problems[0].id == "cache_busy"
        assert "cache_only=true" in str(refused.value.problems[0])
        unfinished = data_set(tokenized / HASH)
        (unfinished / "dataset_statistics.json").unlink()
        data_set(tokenized / "abcdefabcd")
        with pytest.raises(UserError, match=r"\[cache_busy\]"), cache_lock(plan, print):
            pass
        assert unfinished.exists()
        for path in (unfinished, *unfinished.iterdir()):  # older than the other run: not its work
            os.utime(path, (1, 1))
        with cache_lock(plan, print):
            assert not unfinished.exists()


def test_the_user_of_a_cache_that_died_does_not_count(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    tokenized = tokenized_folder(plan)
    assert tokenized is not None
    users = tokenized.parent / ".users"
    users.mkdir(parents=True)
    dead = users / f"{tokenized.name}.dead.lock"
    holder = lock.Holder("elsewhere", "ada", 1, 0.0, "another boot", "dead")
    dead.write_text(json.dumps({"schema_version": 1, **asdict(holder)}))
    os.utime(dead, (1, 1))
    with cache_lock(plan, print):
        assert not dead.exists()


def test_broken_references_are_named(tmp_path: Path) -> None:
    torch_file(tmp_path / "a.pt")
    (tmp_path / "b.pt").touch()
    (tmp_path / "tmp123.tmp").touch()
    assert [path.name for path, _ in find_broken_references(tmp_path)] == ["b.pt"]


@pytest.mark.skipif(os.name == "nt", reason="there are no groups")
@pytest.mark.parametrize("shared", [True, False])
def test_a_shared_cache_is_open_to_the_group(tmp_path: Path, shared: bool) -> None:
    """Runs in a process of its own, because it changes the umask."""
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o2775 if shared else 0o755)
    code = (
        "import os, sys; from pathlib import Path; from launch.execution.caches import "
        "share_with_group\n"
        "os.umask(0o022); cache = Path(sys.argv[1]); share_with_group(cache / 'below')\n"
        "(cache / 'folder').mkdir(); (cache / 'folder' / 'file').touch()"
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code, str(cache)], check=True, env=environ)
    for path in (cache / "folder", cache / "folder" / "file"):
        assert bool(path.stat().st_mode & stat.S_IWGRP) == shared


def test_the_cache_pass_is_one_plain_process_on_the_cpu(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "gpus=8", "recipe.global_batch_size=64")
    cache_pass = plan_cache_pass(plan)
    assert cache_pass.batch.width == 1
    assert cache_pass.parallel.width.device.value == "cpu"
    assert cache_pass.env["CUDA_VISIBLE_DEVICES"] == ""
    argv = list(cache_pass.command)
    assert argv[0] == plan.command[0]
    assert argv[1].endswith("entry.py")
    assert not {"--expect", "accelerate.commands.launch"} & set(argv)
    assert cache_pass.patches == ("dataset_cache", f"lengths={plan.lengths_file}")
    first, second = cache_pass.patches
    assert argv[2:6] == ["--patch", first, "--patch", second]
    assert argv[-2:] == ["--cache_dataset_only", "true"]
    assert str(plan.model_dir) not in argv
    flags, planned = argv[argv.index("--") + 1 : -2], plan.command[plan.command.index("--") + 1 :]
    different = [value for value, other in zip(flags, planned, strict=True) if value != other]
    assert different == [str(cache_pass.model_dir)]
    assert tokenized_folder(cache_pass) == tokenized_folder(plan)


@pytest.mark.parametrize(
    "words",
    [
        ("stage=demo",),
        ("stage=demo_dpo",),
        ("stage=sft", "trainer=olmo_core_finetune", "model=olmo2_1b", "recipe.packing=bins"),
        ("stage=dpo", "trainer=dpo", "model=olmo2_1b"),
        ("stage=rm",),
    ],
)
def test_the_cache_pass_has_the_template_of_the_run(tmp_path: Path, words: Sequence[str]) -> None:
    words = (*words, f"cache={tmp_path / 'cache'}", "recipe.chat_template=chatml")
    plan = planned(*words, machine=fixed_machine(tmp_path))
    [template] = [patch for patch in plan.patches if patch.startswith("chat_template=")]
    argv = plan_cache_pass(plan).command
    assert ("--patch", template) in pairwise(argv)


def test_trl_has_no_cache_pass(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"\[no_cache_pass\]") as refused:
        plan_cache_pass(plan_of(tmp_path, "trainer=trl_dpo"))
    assert refused.value.problems[0].id == "no_cache_pass"


def test_the_event_of_the_data_set_is_found(tmp_path: Path) -> None:
    events = [
        event("phase", 1.0, phase="tokenize"),
        event("evidence", 2.0, what="dataset_cache", value="built", path="/cache/x"),
        event("phase", 3.0, phase="load"),
        event("evidence", 4.0, what="dataset_cache", value="built"),
    ]
    file = tmp_path / "events.jsonl"
    assert read_dataset_event(Run(tmp_path)) is None
    append(file, events)
    assert read_dataset_event(Run(tmp_path)) == TokenizedData(Path("/cache/x"), built=True)
