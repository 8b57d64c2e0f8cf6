"""Verdicts on commands with a YAML file of flags, beside those of the real parsers.

The files are made up: flags of the trainer and others, with values of each kind.
"""

from __future__ import annotations

import random
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from launch.check.lint.checker import LintVerdict
from launch.upstream.pin.lock import locked_schema
from tests.check.lint.helpers import check_text, live_checker
from tests.upstream.checkouts import checkout
from tests.upstream.real_parsers import RealParsers

pytestmark = pytest.mark.slow  # the trainers' libraries take half a minute to import

STRICTER = {"abbreviated", "duplicate", "dropped_key", "dropped_flag", "wrong_type"}
FILES = 60
VALUES: tuple[Any, ...] = (1, 0.5, True, "1e-5", "abc", "true", "none", None, [1, 2], "", {"a": 1})
AFTER = ("--seed=1", "--seed=x", "--seed", "--nope=1", "--learning_rate=1e-4", "--warmup-ratio=0.1")


@pytest.fixture(scope="module")
def real_parsers() -> Iterator[RealParsers]:
    parsers = RealParsers()
    yield parsers
    parsers.close()


def made_up_files(
    trainer: str, folder: Path, needed: dict[str, Any], base: dict[str, Any]
) -> Iterator[Path]:
    """Write files with up to four settings each, beside those that the trainer needs.

    A tenth of them lack those of `needed`.
    """
    draw = random.Random(f"files of {trainer}")
    schema = locked_schema(trainer)
    # a process group is needed to check ddp_backend
    names = [name for name in schema.fields if name != "ddp_backend"]
    for number in range(FILES):
        settings = {**base, **(needed if draw.random() < 0.9 else {})}
        for _ in range(draw.randint(0, 4)):
            name = draw.choice(names) if draw.random() < 0.8 else draw.choice(["nope", "lr", "env"])
            settings[name] = draw.choice(VALUES)
        path = folder / f"{number}.yaml"
        path.write_text(yaml.safe_dump(settings), encoding="utf-8")
        yield path


def check(folder: Path, line: str) -> LintVerdict:
    root = checkout()
    assert root is not None
    (verdict,) = check_text(folder, f"{line}\n", checker=live_checker(root))
    return verdict


def compare(verdict: LintVerdict, answer: dict[str, Any], place: str) -> bool:
    """Check that lint refuses what the parser refuses; return False where it does not decide.

    A file that a value names, and this machine lacks, is no matter of the parser.
    """
    refused = answer["raised"] is not None
    if refused and answer["raised"].startswith("FileNotFoundError"):
        return True
    kinds = {problem.id for problem in verdict.problems} - STRICTER
    if kinds:
        assert refused, (place, [str(problem) for problem in verdict.problems])
    elif verdict.ok:
        assert not refused, (place, answer, [str(warning) for warning in verdict.warnings])
    return verdict.ok is not None


@pytest.mark.parametrize("trainer", ["reward_modeling", "dpo", "olmo_core_finetune"])
def test_a_file_before_the_flags(tmp_path: Path, real_parsers: RealParsers, trainer: str) -> None:
    draw = random.Random(f"flags of {trainer}")
    decided = 0
    for path in made_up_files(trainer, tmp_path, {"model_name_or_path": "m"}, {}):
        argv = [str(path), *draw.sample(AFTER, draw.randint(0, 2))]
        answer = real_parsers.query(trainer=trainer, whole=argv)
        verdict = check(tmp_path, f"python open_instruct/{trainer}.py {shlex.join(argv)}")
        decided += compare(verdict, answer, f"{path.read_text()} {argv}")
    assert decided >= FILES * 0.8


@pytest.mark.parametrize("start", ["python -m trl.scripts.", "trl "])
@pytest.mark.parametrize("trainer", ["trl_sft", "trl_dpo"])
def test_the_config_of_trl(
    tmp_path: Path, real_parsers: RealParsers, trainer: str, start: str
) -> None:
    kind = trainer.removeprefix("trl_")
    base = {"output_dir": str(tmp_path / "out"), "use_cpu": True, "bf16": False}
    decided = 0
    for path in made_up_files(trainer, tmp_path, {}, base):
        argv = ["--config", str(path), "--report_to", "none"]
        if start == "trl ":
            answer = real_parsers.query(trainer=trainer, trl_command=[kind, *argv])
        else:
            answer = real_parsers.query(trainer=trainer, whole=argv)
        verdict = check(tmp_path, f"{start}{kind} {shlex.join(argv)}")
        decided += compare(verdict, answer, path.read_text())
    assert decided >= FILES * 0.8
