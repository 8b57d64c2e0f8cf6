"""Every command in upstream's own scripts, configs and docs at the pin: found, and checked as the
trainer does.
"""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

from launch.check.lint.checker import CommandChecker, LintVerdict
from launch.check.lint.files import FileReport, check_files
from launch.check.lint.readers import list_files, scan_file
from launch.check.lint.trainer_commands import TrainerCommand
from launch.upstream import trainers
from tests.check.lint.helpers import live_checker, locked_checker
from tests.upstream.checkouts import PROJECT, checkout
from tests.upstream.real_parsers import RealParsers

FOLDERS = ("scripts", "configs", "docs")
ROOT = checkout()

pytestmark = pytest.mark.skipif(
    ROOT is None, reason="needs an open-instruct checkout (OPEN_INSTRUCT_DIR or the submodule)"
)


@pytest.fixture(scope="module")
def checker() -> CommandChecker:
    assert ROOT is not None
    checker = live_checker(ROOT)
    if checker.schemas.checkout is None or not checker.schemas.checkout.matches_pin:
        pytest.skip("the checkout is not the pin, for which the numbers are known")
    return checker


@pytest.fixture(scope="module")
def checked(checker: CommandChecker) -> list[FileReport]:
    assert ROOT is not None
    return list(check_files([str(ROOT / folder) for folder in FOLDERS], checker))


@pytest.fixture(scope="module")
def commands(checked: list[FileReport]) -> list[LintVerdict]:
    """The verdicts on commands, without the files of flags."""
    return [
        verdict
        for report in checked
        for verdict in report.verdicts
        if "train_configs" not in verdict.file
    ]


def test_how_many_carry_unknown_flags(commands: list[LintVerdict]) -> None:
    total = Counter(verdict.script for verdict in commands)
    unknown = Counter(
        verdict.script
        for verdict in commands
        if any(problem.id == "unknown_flag" for problem in verdict.problems)
    )
    counts = {Path(script).stem: (unknown[script], total[script]) for script in total}
    assert counts["dpo_tune_cache"] == (18, 32)
    assert counts["finetune"] == (6, 33)
    assert counts["reward_modeling"] == (6, 8)
    assert counts["grpo_fast"] == (31, 64)
    assert (counts["dpo"], counts["grpo"], counts["olmo_core_finetune"]) == ((1, 7), (1, 5), (0, 8))


def test_no_mention_of_a_trainer_in_a_command_is_missed(commands: list[LintVerdict]) -> None:
    """Compare with the lines of shell that contain a trainer's path, counted without parsing."""
    assert ROOT is not None
    mentioned = Counter(
        str(path)
        for path in list_files(ROOT / "scripts")
        if path.suffix in (".sh", ".bash")
        for line in path.read_text().splitlines()
        if not line.lstrip().startswith("#")
        and any(entry in line for entry in trainers.OPEN_INSTRUCT.values())
    )
    counts = Counter(verdict.file for verdict in commands)
    # Two commands of these come from one variable that contains the whole command line.
    twice = {
        str(ROOT / f"scripts/train/debug/{name}.sh")
        for name in ("finetune", "sft_integration_test")
    }
    assert {file: counts[file] - (file in twice) for file in mentioned} == dict(mentioned)


@pytest.mark.parametrize("name", ["tulu3_sft", "tulu3_dpo_8b", "tulu3_dpo_70b"])
def test_no_trainer_accepts_the_tulu_files(checker: CommandChecker, name: str) -> None:
    assert ROOT is not None
    path = ROOT / "configs" / "train_configs" / "tulu3" / f"{name}.yaml"
    ((verdict,),) = (report.verdicts for report in check_files([str(path)], checker))
    assert verdict.ok is False
    assert verdict.warnings[0].id == "no_trainer_accepts"


@pytest.mark.parametrize(
    ("file", "line", "flags"),
    [
        ("scripts/train/tulu3/dpo_8b.sh", 10, {"gradient_checkpointing"}),
        ("scripts/train/tulu3/finetune_8b.sh", 17, {"chat_template"}),
        (
            "scripts/train/dgx-spark/dpo_ultrafeedback.sh",
            17,
            {"num_train_epochs", "gradient_checkpointing"},
        ),
        ("scripts/train/debug/dpo/local.sh", 3, {"push_to_hub"}),
        ("configs/beaker_configs/alpaca_7B_lora.yaml", 10, {"train_file"}),
    ],
)
def test_known_refusals(commands: list[LintVerdict], file: str, line: int, flags: set[str]) -> None:
    (verdict,) = (verdict for verdict in commands if verdict.file.endswith(file))
    assert (verdict.line, verdict.ok) == (line, False)
    assert {problem.where for problem in verdict.problems} == flags


def test_nothing_is_left_without_a_reason(checked: list[FileReport]) -> None:
    for report in checked:
        assert [note.id for note in report.notes] in ([], ["empty_file"]), (
            report.file,
            report.notes,
        )
        for verdict in report.verdicts:
            assert bool(verdict.problems) == (verdict.ok is False)
            assert verdict.ok is not None or verdict.warnings


def test_the_lock_finds_what_the_checkout_finds(commands: list[LintVerdict]) -> None:
    """But for the templates' names, which the source has."""

    def findings(verdicts: Iterable[LintVerdict]) -> set[tuple[str, int, str, str | None]]:
        found = (
            (verdict.file, one)
            for verdict in verdicts
            for one in (*verdict.problems, *verdict.warnings)
        )
        return {
            (file, one.line, one.id, one.where)
            for file, one in found
            if one.id != "unknown_chat_template"
        }

    assert ROOT is not None
    reports = check_files([str(ROOT / "scripts")], locked_checker())
    locked = [verdict for report in reports for verdict in report.verdicts]
    live = [verdict for verdict in commands if verdict.file.startswith(str(ROOT / "scripts"))]
    assert [verdict.ok for verdict in locked] == [verdict.ok for verdict in live]
    assert findings(locked) == findings(live) and len(locked) > 100


def test_speed() -> None:
    """Check all of upstream's scripts in a new process, including the interpreter's start."""
    assert ROOT is not None
    command = [
        sys.executable,
        "-m",
        "launch",
        "lint",
        "--json",
        "--upstream",
        str(ROOT),
        str(ROOT / "scripts"),
    ]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 2, done.stderr.decode()
    assert len(json.loads(done.stdout)["verdicts"]) > 100
    # the processor's time: the clock's depends on what else the machine does
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 8


@pytest.fixture(scope="module")
def real_parsers() -> Iterator[RealParsers]:
    parsers = RealParsers()
    yield parsers
    parsers.close()


@pytest.mark.parametrize("trainer", ["finetune", "dpo_tune_cache"])
def test_the_trainer_itself_agrees(
    checker: CommandChecker, real_parsers: RealParsers, trainer: str
) -> None:
    """The real parser refuses exactly the commands that lint refuses, among those whose words are
    all known.

    The comparison leaves out abbreviations and repetitions, where lint is stricter on purpose.
    """
    assert ROOT is not None
    checked: list[tuple[str, TrainerCommand, LintVerdict]] = []
    for folder in FOLDERS:
        for path in list_files(ROOT / folder):
            checked.extend(
                (f"{path}:{command.line}", command, checker.check_command(str(path), command))
                for command in scan_file(path, explicit=False).commands
                if command.trainer.name == trainer
                and all(argument.is_resolved for argument in command.arguments)
            )
    assert len(checked) > 10
    answers = [
        real_parsers.query(trainer=trainer, argv=[argument.text for argument in command.arguments])
        for _, command, _ in checked
    ]
    if "failed" in answers[0]:
        pytest.skip(f"the real trainer can't be imported here: {answers[:1]}")
    for (place, _, verdict), answer in zip(checked, answers, strict=True):
        refused = bool(answer["parse"] or answer["left"] or answer["raised"])
        kinds = {problem.id for problem in verdict.problems} - {"abbreviated", "duplicate"}
        assert verdict.ok is not None, place
        assert refused == bool(kinds), (place, answer, verdict.problems)


def test_the_page_in_docs_is_current(checker: CommandChecker) -> None:
    loader = SourceFileLoader("upstream_report", str(PROJECT / "scripts" / "upstream-report"))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    readme = " ".join((PROJECT / "README.md").read_text(encoding="utf-8").split())
    page = module.REPORT.read_text(encoding="utf-8")
    counted = re.search(
        r"Of the (\d+) commands whose trainer still exists, \*\*its own code refuses (\d+)\*\*",
        page,
    )
    assert counted is not None
    assert re.search(
        rf"Of the {counted[1]} training commands .* its own code refuses {counted[2]}:", readme
    )
    rows = re.findall(
        r"^\| `open_instruct/(\w+)\.py` \| (\d+) \|(?: \d+ \|){3} (\d+) \|", page, re.MULTILINE
    )
    present = [row for row in rows if row[0] in trainers.OPEN_INSTRUCT]
    assert sum(int(row[1]) for row in present) == int(counted[1])
    assert [
        name
        for name, commands, refused in present
        if f"`{name}` {refused} of {commands}" not in readme
    ] == []
    assert module.report(checker.schemas.checkout) == page, (
        "docs/reference/upstream-commands.md is outdated: run scripts/upstream-report"
    )
