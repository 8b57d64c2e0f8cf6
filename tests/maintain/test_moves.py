"""Trainers that upstream moves: shims are understood, and this project keeps its names."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch.planning.command import trainer_entry
from launch.upstream import trainers
from launch.upstream.pin.lock import load_lock
from launch.worker import moves
from launch.worker.moves import follow_shim, shim_target
from launch.worker.patches import PATCHES
from launch.worker.trainer import TrainerProgram
from maintain.bump import plan_move
from maintain.impact import assess_impact, find_moves
from tests.check.lint.helpers import check_text
from tests.maintain.rehearsal import EXECUTING_SHIM, IMPORTING_SHIM, MOVES, make_commit
from tests.upstream.checkouts import checkout

PATHS = {f"open_instruct/{old}.py": f"open_instruct/{new}.py" for old, new in MOVES.items()}
OTHERS = (
    "import subprocess\nfrom open_instruct.new import *\nsubprocess.run(['open_instruct/other.py'])\n",
    "from open_instruct.new import main\n\nclass A:\n    pass\n\nmain()\n",
    "from open_instruct.utils import helper\nprint(helper())\n",
    "import runpy\nrunpy.run_module('other_package.new')\n",
    "not python (",
    "",
)


@pytest.mark.parametrize("text", [IMPORTING_SHIM, EXECUTING_SHIM])
def test_a_file_that_only_passes_on_is_a_shim(tmp_path: Path, text: str) -> None:
    source = text.format(old="old", new="new")
    assert shim_target(source, "old") == "open_instruct/new.py"
    folder = tmp_path / "open_instruct"
    folder.mkdir()
    (folder / "old.py").write_text(source)
    assert follow_shim(tmp_path, "open_instruct/old.py") == "open_instruct/old.py"
    (folder / "new.py").write_text("x = 1\n")
    assert follow_shim(tmp_path, "open_instruct/old.py") == "open_instruct/new.py"


@pytest.mark.parametrize("source", OTHERS)
def test_a_file_that_does_more_is_none(source: str) -> None:
    assert shim_target(source, "old") is None


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as upstream's design moves it, in a clone that is thrown away."""
    root = checkout()
    if root is None or not (root / ".git").exists():
        pytest.skip("needs a clone of open-instruct")
    folder = tmp_path_factory.mktemp("rehearsal") / "open-instruct"
    make_commit(root, folder, load_lock().pin)
    return folder


def test_the_trainers_of_the_designed_commit_are_found(moved: Path) -> None:
    assert find_moves(moved) == PATHS
    root = checkout()
    assert root is not None and find_moves(root) == {}


@pytest.fixture
def moved_pin(monkeypatch: pytest.MonkeyPatch) -> None:
    """This project after its pin has moved there."""
    monkeypatch.setattr(moves, "load_moves", lambda: PATHS)
    scripts = {name: moves.path_at_pin(path) for name, path in trainers.OPEN_INSTRUCT.items()}
    monkeypatch.setattr(trainers, "OPEN_INSTRUCT", scripts)
    monkeypatch.setattr(trainers, "ENTRIES", {**scripts, **trainers.TRL})


@pytest.mark.usefixtures("moved_pin")
def test_every_patch_finds_its_lines_where_they_have_moved(
    moved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(moved))
    sources = [source for patch in PATCHES.values() for source in patch.sources]
    upstream = [source for source in sources if source.version is None]
    assert {source.file for source in upstream} & PATHS.keys()
    for source in upstream:
        script = moved / moves.path_at_pin(source.file)
        found = source.find(TrainerProgram(str(script), None, ()))
        assert found is not None, source
        assert source.matches(found.read_text(encoding="utf-8")), source


@pytest.mark.usefixtures("moved_pin")
def test_a_script_keeps_the_name_that_the_evidence_knows() -> None:
    for old, new in MOVES.items():
        program = TrainerProgram(f"/x/open_instruct/{new}.py", None, ())
        assert program.script_name == f"{old}.py"
    assert TrainerProgram("/x/open_instruct/dpo.py", None, ()).script_name == "dpo.py"


@pytest.mark.usefixtures("moved_pin")
@pytest.mark.parametrize(("old", "new"), MOVES.items())
def test_both_names_of_a_trainer_are_known(tmp_path: Path, old: str, new: str) -> None:
    for name in (old, new, f"open_instruct/{old}.py", f"open_instruct.{new}", f"a/{new}.py"):
        assert trainers.trainer_name(name) == old
    for name, kinds in ((old, {"moved_script"}), (new, set())):
        line = f"python open_instruct/{name}.py --model_name_or_path m --bogus 1\n"
        (verdict,) = check_text(tmp_path, line)
        assert verdict.script == f"open_instruct/{new}.py"
        assert [problem.where for problem in verdict.problems] == ["bogus"]
        assert {item.id for item in verdict.warnings} & {"moved_script"} == kinds


def test_a_run_starts_the_script_behind_a_shim(moved: Path) -> None:
    """Also before the pin has moved: the process that trains is the one that is patched."""
    for old, new in MOVES.items():

        class Trainer:
            family = "open_instruct"
            entry = f"open_instruct/{old}.py"

        assert trainer_entry(Trainer(), moved) == str(moved / f"open_instruct/{new}.py")  # type: ignore[arg-type]


@pytest.mark.thorough
@pytest.mark.slow  # each trainer is started up to its parser: a minute of the processor
def test_the_bump_to_the_designed_commit_needs_no_edit(moved: Path) -> None:
    import sys

    impact = assess_impact(moved, "HEAD", sys.executable)
    assert [trainer.problem for trainer in impact.trainers if trainer.problem] == []
    assert list(impact.breaks) == []
    files = plan_move(moved, impact, sys.executable)
    assert (
        '"open_instruct/finetune.py": "open_instruct/sft_deepspeed.py"' in files[moves.MOVES_FILE]
    )
