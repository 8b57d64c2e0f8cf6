"""Which schema is used, and that nothing is started where the user did not name what would be."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from launch.check.lint.checker import CommandChecker
from launch.check.lint.schemas import TrainerSchemas
from launch.commands.flags import flags
from launch.commands.lint import lint
from launch.config.compose import Composed
from launch.errors import UserError
from launch.planning.build import build_plan
from launch.planning.machine import Machine, this_machine
from launch.upstream.capture import start
from launch.upstream.pin.checkout import DIR_VARIABLE, Checkout, find_checkout
from launch.upstream.pin.lock import load_lock, locked_schema
from launch.upstream.resolve import resolve_schema, version_difference
from launch.upstream.rules.argv import check_argv
from launch.upstream.schema import Schema
from launch.worker.finding import Finding
from tests.check.lint.helpers import check_text
from tests.conftest import composed, fixed_machine
from tests.upstream.checkouts import SITE_PACKAGES


def machine_of(stage: Composed, *, starts_trainer: bool = True) -> Machine:
    return this_machine(stage.config, stage.origins, starts_trainer=starts_trainer)


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Path | None]]:
    """The scripts that are started; each counts as finetune's with one more flag."""
    started: list[tuple[str, Path | None]] = []

    def capture(entry: str, root: Path | None, python: str) -> Schema:
        started.append((entry, root))
        locked = locked_schema("finetune")
        new = replace(locked.fields["learning_rate"], name="new_rate")
        return replace(locked, fields={**locked.fields, "new_rate": new}, is_locked=False)

    monkeypatch.setattr(start, "capture_schema", capture)
    return started


@pytest.fixture
def edited(tmp_path: Path) -> Path:
    """A checkout whose files are not the lock's."""
    root = tmp_path / "edited"
    (root / "open_instruct").mkdir(parents=True)
    for name in ("utils.py", "finetune.py"):
        (root / "open_instruct" / name).write_text("x = 1\n")
    return root


@pytest.fixture
def _short_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of the test's own, and 2 s for a script to reach its parser."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(start, "_SECONDS", 2.0)


def checkout_of(root: Path) -> Checkout:
    found = find_checkout(str(root), {}, root)
    assert found is not None
    return found


def test_the_lock_is_used_for_its_content_and_asked_to_be_otherwise(
    edited: Path, captured: list[tuple[str, Path | None]]
) -> None:
    checkout = checkout_of(edited)
    at_the_pin = replace(checkout, differing=())
    # whose folders are where the text is read
    for found, live in ((None, False), (at_the_pin, True)):
        resolved = resolve_schema(
            "finetune", found, SITE_PACKAGES, sys.executable, may_capture=True
        )
        assert (resolved.schema, resolved.live, resolved.difference) == (
            locked_schema("finetune"),
            live,
            None,
        )
    kept = resolve_schema("finetune", checkout, SITE_PACKAGES, sys.executable, may_capture=False)
    assert (kept.schema, kept.live) == (locked_schema("finetune"), False)
    assert "differ from the lock" in str(kept.difference)
    without_packages = resolve_schema("finetune", checkout, [edited], "python", may_capture=True)
    assert "python lacks the trainer's packages" in str(without_packages.failure)
    assert captured == []
    asked = resolve_schema("finetune", checkout, SITE_PACKAGES, sys.executable, may_capture=True)
    assert (asked.live, "new_rate" in asked.schema.fields) == (True, True)
    assert captured == [("open_instruct/finetune.py", edited)]


def test_without_the_trainers_packages_flags_are_unverified(
    edited: Path, captured: list[tuple[str, Path | None]], tmp_path: Path
) -> None:
    """On a login node the text of the differing files is what is known of their parsers: a warning,
    never a refusal.
    """
    (edited / "open_instruct" / "finetune.py").write_text(
        "class A:\n    new_rate: int = 1\n    num_epochs: int = 1\n"
    )
    resolved = resolve_schema(
        "finetune", checkout_of(edited), [tmp_path], "python", may_capture=False
    )
    schema = resolved.schema
    assert captured == []
    advice = resolved.advice("ask it")
    assert advice.startswith(
        "python lacks the trainer's packages, so its parser can't be asked; unverified: --"
    )
    assert advice.endswith(" more, flags that only the differing files name")
    assert (schema.is_unverified("new_rate"), schema.is_unverified("neww_rate")) == (True, False)
    assert schema.is_unverified("learning_rate"), "its line is gone"
    assert schema.is_unverified("chat_template_name"), "its file is missing here"
    report = check_argv(schema, ["--new_rate", "1", "--neww_rate", "1", "--learning_rate", "1e-5"])
    assert report.rejected
    assert check_argv(schema, ["--new_rate", "1", "--learning_rate", "1e-5"]).rejected is None
    assert [(p.id, p.where) for _, p in report.problems if p.id != "contradiction"] == [
        ("unverified", "new_rate"),
        ("unknown_flag", "neww_rate"),
        ("unverified", "learning_rate"),
    ]
    machine = fixed_machine(tmp_path)
    machine = replace(machine, schemas={"finetune": schema})
    plan = build_plan(composed("stage=demo", "flags.new_rate=[1,2]"), machine)
    assert " ".join(plan.command).endswith("--new_rate 1 2")
    warned = {problem.message: problem for problem in plan.warnings if problem.id == "unverified"}
    added = (
        "finetune.py may have --new_rate: the lock lacks it, but a file that differs from the "
        "lock has the word"
    )
    gone = (
        "finetune.py may have dropped --learning_rate: its line is no longer in "
        "open_instruct/finetune.py here"
    )
    assert warned[added].where == "override flags.new_rate"
    assert gone in warned
    with pytest.raises(UserError, match="unknown_flag"):
        build_plan(composed("stage=demo", "flags.neww_rate=1"), machine)

    checker = CommandChecker(TrainerSchemas(checkout_of(edited), [tmp_path], may_capture=True))
    script = "python open_instruct/finetune.py --new_rate 1 --neww_rate 1\n"
    (verdict,) = check_text(tmp_path, script, checker=checker)
    assert [(f.id, f.stops) for f in verdict.findings if f.where in ("new_rate", "neww_rate")] == [
        ("unverified", False),
        ("unknown_flag", True),
    ]


@pytest.mark.usefixtures("_short_cache")
@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("import sys\nsys.exit(3)\n", "SystemExit: 3"),
        ("import no_such_package_of_ours.x as x\nassert x is None\n", "AssertionError"),
        ("import time\ntime.sleep(600)\n", "it did not end within 2 s"),
    ],
)
def test_a_parser_that_cannot_be_reached_leaves_the_lock(
    edited: Path,
    capsys: pytest.CaptureFixture[str],
    script: str,
    reason: str,
) -> None:
    """A plan and lint judge from the lock, and name why and what is unverified."""
    (edited / "open_instruct" / "finetune.py").write_text(f"{script}new_rate: int\n")
    resolved = resolve_schema(
        "finetune", checkout_of(edited), SITE_PACKAGES, sys.executable, may_capture=True
    )
    assert not resolved.live
    assert reason in str(resolved.failure)
    assert "differ from the lock" in str(resolved.difference)
    assert resolved.schema.is_unverified("new_rate")
    assert resolved.schema.is_unverified("learning_rate")
    assert not resolved.schema.is_unverified("neww_rate")
    command = ["--", "python", "open_instruct/finetune.py", "--new_rate", "1", "--neww_rate", "1"]
    assert lint(["--upstream", str(edited), *command]) == 2
    shown = capsys.readouterr()
    assert "no flag --neww_rate" in shown.out
    assert "no flag --new_rate" not in shown.out
    assert "warning: judged from the lock, although open-instruct" in shown.err
    assert f"{reason}; unverified: --" in shown.err
    upstream = machine_of(
        composed("stage=demo", f"upstream.dir={edited}"), starts_trainer=False
    ).upstream
    assert upstream.source == "lock"
    assert f"{reason}; unverified: --" in upstream.description


def test_trl_of_another_version(
    tmp_path: Path, captured: list[tuple[str, Path | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    not_installed = resolve_schema("trl_sft", None, [tmp_path], "python", may_capture=True)
    assert (not_installed.live, not_installed.difference) == (False, None)
    for name, version in load_lock().packages.items():
        (tmp_path / f"{name}-{version}.dist-info").mkdir()
    assert version_difference([tmp_path]) == ""
    shutil.rmtree(tmp_path / f"trl-{load_lock().packages['trl']}.dist-info")
    (tmp_path / "trl-9.9.dist-info").mkdir()
    assert (
        version_difference([tmp_path])
        == f"trl 9.9 is installed, the lock has {load_lock().packages['trl']}"
    )
    (tmp_path / "transformers").mkdir()
    assert resolve_schema("trl_sft", None, [tmp_path], "python", may_capture=False).difference
    assert captured == []
    assert resolve_schema("trl_sft", None, [tmp_path], "python", may_capture=True).live
    assert captured == [("trl.scripts.sft", None)]

    def fail(entry: str, root: Path | None, python: str) -> Schema:
        raise UserError(Finding.error("trainer_unreadable", f"{entry}: ImportError: a"))

    monkeypatch.setattr(start, "capture_schema", fail)
    (tmp_path / "trl" / "trainer").mkdir(parents=True)
    (tmp_path / "trl" / "trainer" / "sft_config.py").write_text("    new_flag: int = 1\n")
    kept = resolve_schema("trl_sft", None, [tmp_path], "python", may_capture=True)
    assert (kept.live, kept.failure) == (False, "trl.scripts.sft: ImportError: a")
    assert kept.schema.is_unverified("new_flag")


def test_a_plan_asks_only_what_the_user_named(
    edited: Path,
    captured: list[tuple[str, Path | None]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(DIR_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    stages = tmp_path / "launch" / "stage"
    stages.mkdir(parents=True)
    text = f"# @package _global_\ndefaults: [demo, _self_]\nupstream:\n  dir: {edited}\n"
    (stages / "mine.yaml").write_text(text)
    by_file, by_override = composed("stage=mine"), composed("stage=demo", f"upstream.dir={edited}")
    machine = machine_of(by_file, starts_trainer=False)
    assert captured == []
    assert "its flags are the lock's: `launch check`" in machine.upstream.description
    assert machine_of(by_override, starts_trainer=False).upstream.source == "live"
    assert machine_of(by_file).upstream.source == "live"
    assert len(captured) == 2


def test_lint_and_flags_from_the_lock(
    edited: Path, captured: list[tuple[str, Path | None]], capsys: pytest.CaptureFixture[str]
) -> None:
    command = [
        "--upstream",
        str(edited),
        "--",
        "python",
        "open_instruct/finetune.py",
        "--new_rate",
        "1",
    ]
    lint(command)
    assert "no flag --new_rate" not in capsys.readouterr().out
    assert len(captured) == 1
    assert lint(["--from-lock", *command]) == 2
    shown = capsys.readouterr()
    assert "no flag --new_rate" in shown.out
    assert "judged from the lock, although open-instruct" in shown.err
    with pytest.raises(UserError, match="unknown_flag"):
        flags(["finetune", "new_rate", "--upstream", str(edited), "--from-lock"])
    assert len(captured) == 1
