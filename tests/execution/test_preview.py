"""The command of `preview`: the plan's own flags with other data, and nothing to train."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from launch.__main__ import main
from launch.data.sources import VALIDATION_FILE
from launch.data.staging import stage
from launch.digests import hash_file
from launch.errors import EXIT_REFUSED, UserError, actions_of
from launch.execution.preview import (
    DataSet,
    inspect_data,
    preview_command,
    replace_flags,
    tokenize_samples,
    write_samples,
)
from launch.execution.template_errors import write_whole
from launch.planning.build import build_plan
from launch.planning.plan import Plan
from tests.conftest import composed, fixed_machine, machine_in, planned
from tests.data.files import CHAT, chat, write_lines
from tests.messages import values_of


def command(*overrides: str) -> list[str]:
    plan = planned(*overrides)
    data = DataSet("/tmp/p/0/train.jsonl", "train", ("/mine.jsonl:1",))
    return preview_command(plan, [data], Path("/tmp/p"), Path("/tmp/p/request.json"))


def test_flags_are_replaced_wherever_they_are_and_added_where_they_are_not() -> None:
    argv = ["--list", "a", "1.0", "--x=1", "--kept", "--y", "2"]
    values = {"list": ["b"], "x": ["3"], "new": ["4"]}
    assert replace_flags(argv, values) == [
        "--kept",
        "--y",
        "2",
        "--list",
        "b",
        "--x",
        "3",
        "--new",
        "4",
    ]


def test_open_instruct_tokenises_the_samples_with_the_flags_of_the_plan() -> None:
    argv = command("stage=sft", "gpus=8", "flags.add_bos=true")
    assert argv[0] == "/python" and "accelerate.commands.launch" not in argv
    assert argv[argv.index("--output_dir") :] == [
        *("--output_dir", "/tmp/p/model", "--dataset_mixer_list", "/tmp/p/0/train.jsonl", "1.0"),
        *("--dataset_mixer_list_splits", "train", "--dataset_local_cache_dir", "/tmp/p/tokenized"),
        *("--cache_dataset_only", "true"),
    ]
    assert argv.count("--dataset_mixer_list") == 1
    assert argv[argv.index("--add_bos") + 1] == "true"
    assert argv[argv.index("--max_seq_length") + 1] == "4096"
    assert argv[argv.index("--patch") + 1] == "preview=/tmp/p/request.json"


def test_trl_reads_the_folder_and_keeps_the_options_that_decide_how_it_tokenises() -> None:
    argv = command(
        "stage=dpo", "trainer=trl_dpo", "gpus=1", "recipe.chat_template=tulu", "data.fraction=0.5"
    )
    template, request = [argv[at + 1] for at, argument in enumerate(argv) if argument == "--option"]
    assert template.startswith("chat_template=") and request == "preview=/tmp/p/request.json"
    assert "--patch" not in argv
    argv = command("stage=sft", "trainer=trl_sft", "gpus=1", "recipe.packing=flatten")
    assert argv[argv.index("--dataset_name") + 1] == "/tmp/p/0"
    assert argv[argv.index("--use_cpu") + 1] == "true"


@pytest.mark.parametrize(("rows", "written"), [(2, 2), (99, 4), (None, 4)])
def test_rows_bound_what_is_tokenised(tmp_path: Path, rows: int | None, written: int) -> None:
    path = write_lines(tmp_path / "a.jsonl", [CHAT, CHAT, chat("Who?", "Me."), CHAT])
    machine = fixed_machine(tmp_path, digest=lambda path: "digest")
    plan = build_plan(
        composed("stage=sft", f"data.mix=[{{name: {path}}}]"), machine, reads_rows=False
    )
    data = write_samples(plan.inputs.mixture[0], tmp_path / "0", rows)
    assert data.places == tuple(f"{path}:{line}" for line in range(1, written + 1))
    assert len(Path(data.name).read_text(encoding="utf-8").splitlines()) == written
    assert data.duplicates == tuple(f"{path}:{line}" for line in (2, 4) if line <= written)


@pytest.mark.parametrize("is_staged", [False, True])
def test_rows_that_are_held_out_are_no_samples_of_the_training(
    tmp_path: Path, is_staged: bool
) -> None:
    """Which rows these are does not depend on whether the data was staged before."""
    rows = [chat(f"What is {number}?", f"It is {number}.") for number in range(30)]
    path = write_lines(tmp_path / "a.jsonl", rows)
    machine = fixed_machine(tmp_path, digest=hash_file)
    overrides = ("stage=sft", "trainer=trl_sft", f"data.mix=[{{name: {path}}}]")
    config = composed(*overrides, "data.validation=0.2")
    entry = build_plan(config, machine, reads_rows=False).inputs.mixture[0]
    assert entry.data is not None
    stage(entry.data, hash_file)
    trained = entry.data.train_file.read_text(encoding="utf-8").splitlines()
    assert len(trained) == 24
    whole: tuple[Path, ...] = (entry.data.train_file, entry.data.folder / VALIDATION_FILE)
    if not is_staged:
        shutil.rmtree(entry.data.folder)
        whole = write_whole(entry, tmp_path / "whole.jsonl")
    data = write_samples(entry, tmp_path / "0", 10, whole)
    assert Path(data.name).read_text(encoding="utf-8").splitlines() == trained[:10]
    assert len(data.places) == 10
    assert len(write_samples(entry, tmp_path / "1", None, whole).places) == 24


def test_without_a_checkout_open_instruct_can_not_tokenise() -> None:
    plan = planned("stage=sft", machine=fixed_machine(checkout=None))
    with pytest.raises(UserError, match=r"\[no_checkout\]"):
        tokenize_samples(plan, rows=1, detail=1)


@pytest.mark.parametrize(
    ("error", "cure"),
    [("ModuleNotFoundError: No module named 'trl'", "`pip install"), ("no luck", "`launch check")],
)
def test_a_trainer_that_cannot_tokenise_is_quoted_with_a_cure(
    tmp_path: Path, error: str, cure: str
) -> None:
    path = write_lines(tmp_path / "a.jsonl", [CHAT])
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "{error}" >&2\nexit 1\n')
    python.chmod(0o755)
    machine = replace(machine_in(tmp_path), python=str(python))
    data = (f"data.mix=[{{name: {path}}}]", "allow=[data_small_epoch]")
    plan = planned("stage=sft", "trainer=trl_sft", *data, machine=machine)
    with pytest.raises(UserError) as refused:
        tokenize_samples(plan, rows=1, detail=1)
    [problem] = refused.value.problems
    assert problem.id == "preview_failed" and problem.message.endswith(error)
    assert "trl_sft" in values_of(problem.message)
    [action] = actions_of(problem.cure)
    assert str(action).startswith(cure)


def _with_python(tmp_path: Path, script: str) -> Plan:
    """Plan with an interpreter that is a shell script."""
    path = write_lines(tmp_path / "a.jsonl", [CHAT])
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\nexit 1\n")
    python.chmod(0o755)
    machine = replace(machine_in(tmp_path), python=str(python))
    data = (f"data.mix=[{{name: {path}}}]", "allow=[data_small_epoch]")
    return planned("stage=sft", "trainer=trl_sft", *data, machine=machine)


@pytest.mark.parametrize("stream", ["", " >&2"])
@pytest.mark.parametrize("text", [r"bad \377 byte", r"\200\201", r"caf\351"])
def test_output_in_another_encoding_is_quoted(tmp_path: Path, stream: str, text: str) -> None:
    plan = _with_python(tmp_path, f"printf '{text}'{stream}")
    with pytest.raises(UserError, match=r"\[preview_failed\]"):
        tokenize_samples(plan, rows=1, detail=1)


def test_a_template_without_end_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launch.execution.preview._SECONDS", 0.5)
    plan = _with_python(tmp_path, "sleep 300")
    with pytest.raises(UserError, match=r"template.*\[preview_failed\]"):
        tokenize_samples(plan, rows=1, detail=1)


def test_a_template_that_asks_for_too_much_memory_is_named(tmp_path: Path) -> None:
    program = 'text = "x" * (20 << 30)'
    plan = _with_python(tmp_path, f"exec {sys.executable} -c '{program}'")
    with pytest.raises(UserError, match=r"GiB.*template.*\[preview_failed\]"):
        tokenize_samples(plan, rows=1, detail=1)


@pytest.mark.parametrize("script", ["exit 3", "echo no luck >&2", "kill -9 $$"])
def test_check_does_not_send_to_check(tmp_path: Path, script: str) -> None:
    plan = _with_python(tmp_path, script)
    [finding] = [finding for finding in inspect_data(plan, 1) if finding.id == "preview_failed"]
    assert finding.cure and "launch check" not in str(finding.cure)


def test_a_trainer_that_says_why_it_shows_no_samples_is_not_asked() -> None:
    with pytest.raises(UserError, match=r"\btrl_sft\b.*\[no_preview\]"):
        command(
            "stage=sft",
            "trainer=trl_sft",
            "gpus=1",
            "+trainer.unsupported_because.preview=not captured",
        )


def test_prompts_have_no_samples_and_nothing_is_built_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The cure tries what RLVR has: prompts and verifiers."""
    monkeypatch.chdir(tmp_path)
    assert main(["preview", "stage=demo_rlvr"]) == EXIT_REFUSED
    printed = capsys.readouterr().err
    assert "[no_preview]" in printed and "`launch check" in printed
    assert "starting" not in printed and list(tmp_path.iterdir()) == []
