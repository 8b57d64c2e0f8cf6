"""`launch flags`: the table, the JSON, and the explanations of renamed and removed flags."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launch.commands.flags import _describe_source, flags, render_table
from launch.errors import UserError
from launch.host.interpreter import installed_version
from launch.upstream.pin.checkout import DIR_VARIABLE, fetch_command
from launch.upstream.pin.lock import load_lock, locked_schema
from launch.upstream.resolve import ResolvedSchema
from launch.upstream.schema import Unknown
from launch.upstream.trainers import ENTRIES
from tests.upstream.checkouts import SITE_PACKAGES, checkout

CHECKOUT = checkout()  # before the fixture hides it


@pytest.fixture(autouse=True)
def from_the_lock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a checkout, whatever this machine has."""
    monkeypatch.delenv(DIR_VARIABLE, raising=False)
    monkeypatch.setattr("launch.commands.flags.ROOT", tmp_path)


def as_json(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    assert flags([*args, "--json"]) == 0
    content: dict[str, Any] = json.loads(capsys.readouterr().out)
    return content


@pytest.mark.parametrize("trainer", ENTRIES)
def test_json_contains_every_field_and_no_negated_twin(
    trainer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    content = as_json(capsys, trainer)
    assert (content["schema_version"], content["trainer"]) == (1, trainer)
    assert set(content["flags"]) == set(locked_schema(trainer).fields)
    for flag in content["flags"].values():
        assert {
            "type",
            "kind",
            "default",
            "choices",
            "required",
            "help",
            "file",
            "line",
            "settable",
        } <= set(flag)
    assert not set(content["renames"]) & set(content["flags"])


def test_json_of_single_flags(capsys: pytest.CaptureFixture[str]) -> None:
    content = as_json(capsys, "dpo_tune_cache")
    mixer = content["flags"]["mixer_list"]
    assert (mixer["type"], mixer["nargs"], mixer["default"]) == ("list[str]", "+", [])
    assert mixer["renamed_from"] == ["dataset_mixer_list"]
    assert content["flags"]["model_name_or_path"]["required"] is True
    assert content["flags"]["dataset_mixer"]["settable"] is False
    assert content["flags"]["loss_type"]["choices"] == ["dpo", "dpo_norm", "simpo", "wpo"]
    renames = content["renames"]
    assert renames["dataset_mixer_list"]["renamed_to"] == "mixer_list"
    assert renames["use_flash_attn"]["kind"] == "removed"
    assert renames["gradient_checkpointing"]["pull_request"] == 1444
    assert "from the lock" in content["source"]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("learning_rate", {"learning_rate"}),
        ("learning-rate", {"learning_rate"}),
        ("*_ratio", {"warmup_ratio", "final_lr_ratio"}),
        ("LORA_R*", {"lora_rank"}),
    ],
)
def test_patterns(pattern: str, found: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert set(as_json(capsys, "finetune", pattern)["flags"]) == found


def test_the_table_shows_source_line_default_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert flags(["dpo_tune_cache", "loss_type"]) == 0
    output = capsys.readouterr()
    assert (
        "= dpo_norm  one of dpo, dpo_norm, simpo, wpo  (open_instruct/dpo_utils.py:" in output.out
    )
    assert "dpo_loss_type   now loss_type, #1375 (2026-01-16)" in output.out
    assert "1 of 118 flags" in output.err
    assert flags(["dpo", "*"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("* ")] == [
        line for line in lines if line.startswith("* model_name_or_path ")
    ]
    assert any("not settable" in line for line in lines)


def test_a_removed_flag_is_listed_and_an_unknown_one_is_a_problem(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert flags(["finetune", "use_flash_attn"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        "renamed or removed:\n  use_flash_attn   removed, #1567 (2026-03-30): attention is auto-det"
    )
    for pattern, cure in (("mixer_lists", "mixer_list"), ("num_epochs", "'num_train_epochs'")):
        with pytest.raises(UserError) as refusal:
            flags(["finetune", pattern])
        (problem,) = refusal.value.problems
        assert problem.id == "unknown_flag"
        assert cure in str(problem.cure)


def test_an_unknown_trainer_and_a_wrong_folder(tmp_path: Path) -> None:
    for args, problem in (
        (["fintune"], "unknown_trainer"),
        (["dpo", "--upstream", str(tmp_path)], "not_open_instruct"),
    ):
        with pytest.raises(UserError) as refusal:
            flags(args)
        assert refusal.value.problems[0].id == problem


@pytest.mark.parametrize(
    ("trainer", "live", "source"),
    [
        ("finetune", False, f"open-instruct {load_lock().pin[:9]} from the lock"),
        ("trl_sft", False, f"TRL {load_lock().packages['trl']} from the lock"),
        ("trl_sft", True, "TRL as installed"),
    ],
)
def test_the_source_of_the_flags_is_named(trainer: str, live: bool, source: str) -> None:
    resolved = ResolvedSchema(locked_schema(trainer), live=live)
    assert source in _describe_source(trainer, resolved, None)


def test_a_parser_that_may_have_more_flags_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of a script that adds options to its parser (tests/upstream/test_capture.py)."""
    added = (Unknown("options", "train.py adds an option by itself", "train.py:9"),)
    resolved = ResolvedSchema(replace(locked_schema("trl_sft"), unknown=added), live=True)
    monkeypatch.setattr("launch.commands.flags.resolve_schema", lambda *_, **__: resolved)
    assert flags(["trl_sft", "learning_rate"]) == 0
    assert "train.py adds an option by itself" in capsys.readouterr().err
    assert as_json(capsys, "trl_sft")["unknown"][0]["reason"] == added[0].reason


def test_help_is_cut_to_the_width() -> None:
    fields = list(locked_schema("finetune").fields.values())
    helps = {field.name: f"the long {field.name} " * 20 for field in fields[1:]}
    lines = render_table(fields, [], 80, helps, full_help=False)
    shown = [line for line in lines if line.startswith("      ")]
    assert len(shown) == len(fields) - 1 and all(50 < len(line) <= 80 for line in shown)
    assert all(line.endswith(" ...") for line in shown)
    assert len(render_table(fields, [], 80, helps, full_help=True)) > 3 * len(lines)


def test_help_that_is_not_here_is_unknown_and_its_cure_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("launch.commands.flags.package_folders", lambda python: [tmp_path])
    for trainer, reason, cure in (
        ("finetune", "no open-instruct checkout found", fetch_command()),
        (
            "trl_dpo",
            f"TRL is not installed for {sys.executable}",
            f"{sys.executable} -m pip install",
        ),
    ):
        content = as_json(capsys, trainer)
        (unknown,) = content["unknown"]
        assert (unknown["what"], unknown["reason"]) == ("help", reason)
        assert cure in unknown["cure"]
        stated = {
            name for name, field in locked_schema(trainer).fields.items() if field.help_digest
        }
        assert {
            name for name, flag in content["flags"].items() if "help" in flag["unknown"]
        } == stated
        assert not any(flag["help"] for flag in content["flags"].values())
        assert flags([trainer, "learning_rate"]) == 0
        shown = capsys.readouterr()
        assert len(shown.out.splitlines()) == 1
        (line,) = (line for line in shown.err.splitlines() if "is unknown" in line)
        assert f"the help of 1 of 1 flag is unknown: {reason}; `" in line and cure in line


def test_help_of_a_flag_that_has_none_is_known_without_a_source(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (name,) = [
        name for name, field in locked_schema("grpo").fields.items() if not field.help_digest
    ][:1]
    content = as_json(capsys, "grpo", name)
    assert content["flags"][name]["unknown"] == {} and content["unknown"] == []


def test_help_is_read_from_a_checkout_and_starts_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if CHECKOUT is None:
        pytest.skip("no open-instruct checkout: set OPEN_INSTRUCT_DIR or fetch the submodule")
    monkeypatch.setenv(DIR_VARIABLE, str(CHECKOUT))
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("a process was started"))
    content = as_json(capsys, "dpo_tune_cache")
    fields = locked_schema("dpo_tune_cache").fields
    assert {name: bool(flag["help"]) for name, flag in content["flags"].items()} == {
        name: bool(field.help_digest) for name, field in fields.items()
    }
    assert content["unknown"] == [] and not any(
        "help" in flag["unknown"] for flag in content["flags"].values()
    )
    assert flags(["dpo_tune_cache", "loss_type"]) == 0
    shown = capsys.readouterr()
    assert " ".join(shown.out.splitlines()[1].split()) == " ".join(
        content["flags"]["loss_type"]["help"].split()
    )
    assert "is unknown" not in shown.err


def test_help_is_read_from_the_named_interpreters_packages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of an environment that has the files and nothing else: they are read, and its interpreter is
    not started.
    """
    if installed_version("trl", SITE_PACKAGES) != load_lock().packages["trl"]:
        pytest.skip("the locked trl isn't installed")
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\nexit 7\n", encoding="utf-8")
    python.chmod(0o755)
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    (packages / f"trl-{load_lock().packages['trl']}.dist-info").mkdir(parents=True)
    for file in {field.file for field in locked_schema("trl_sft").fields.values()}:
        (packages / file).parent.mkdir(parents=True, exist_ok=True)
        (source,) = {folder / file for folder in SITE_PACKAGES if (folder / file).is_file()}
        shutil.copy(source, packages / file)
    content = as_json(capsys, "trl_sft", "--from-lock", "--python", str(python))
    assert content["unknown"] == [] and all(flag["help"] for flag in content["flags"].values())
    (packages / "trl/trainer/sft_config.py").unlink()
    content = as_json(capsys, "trl_sft", "--from-lock", "--python", str(python))
    own = {
        name
        for name, field in locked_schema("trl_sft").fields.items()
        if field.file.endswith("sft_config.py")
    }
    assert {name for name, flag in content["flags"].items() if not flag["help"]} == own
    assert content["unknown"] == [
        {"what": "help", "reason": "trl/trainer/sft_config.py is not here", "cure": None}
    ]
    with pytest.raises(UserError, match=r"--python.*pyton\b.*\[no_interpreter\]"):
        flags(["trl_sft", "--python", str(tmp_path / "bin" / "pyton")])
    with pytest.raises(UserError, match=r"--python.*\b7\b.*\[no_interpreter\]"):
        flags(["trl_sft", "--python", str(python)])


@pytest.mark.thorough
@pytest.mark.slow
def test_another_checkout_is_read_live(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = CHECKOUT
    if root is None:
        pytest.skip("no open-instruct checkout: set OPEN_INSTRUCT_DIR or fetch the submodule")
    for name in load_lock().files:
        (tmp_path / "oi" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / name, tmp_path / "oi" / name)
    script = tmp_path / "oi/open_instruct/finetune.py"
    text = script.read_text(encoding="utf-8")
    assert "    do_not_randomize_output_dir: bool = False" in text
    added = (
        '    my_own_flag: int = 7\n    """Counts to seven."""\n    '
        "do_not_randomize_output_dir: bool = False"
    )
    script.write_text(
        text.replace("    do_not_randomize_output_dir: bool = False", added), encoding="utf-8"
    )
    content = as_json(capsys, "finetune", "--upstream", str(tmp_path / "oi"))
    assert content["flags"]["my_own_flag"]["default"] == 7
    assert content["flags"]["my_own_flag"]["help"] == "Counts to seven."
    assert content["unknown"] == []
    assert "finetune.py" in content["source"]
    assert len(content["flags"]) == 86
