"""A file that a run reads is replaced: before it is loaded the run stops, afterwards it is done."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.conftest import records, start
from tests.paths import ROOT
from tests.thorough import mark_others

pytestmark = pytest.mark.slow
# the template ends its answers otherwise than the tokenizer of the demo
ENDS = "allow=[no_end_of_turn]"
SFT = ("stage=demo", "trainer=trl_sft", "report=false", "recipe.max_steps=12", ENDS)


@pytest.fixture
def inputs(home: Path, tmp_path: Path) -> Path:
    """A folder with a model and a template of the user's."""
    [demo] = (home / "runs" / ".cache" / "demo").glob("model-*")
    shutil.copytree(demo, tmp_path / "base")
    template = (ROOT / "launch" / "templates" / "chatml.jinja").read_text(encoding="utf-8")
    (tmp_path / "own.jinja").write_text(template, encoding="utf-8")
    return tmp_path


def run_with(
    home: Path, inputs: Path, phase: str, change: Callable[[Path], None]
) -> tuple[int, Path]:
    """Start a run, and change its inputs as soon as it has begun a phase; return its exit code and
    its folder.
    """
    name = f"{change.__name__}-{phase}"
    words = (*SFT, f"model.path={inputs / 'base'}", f"name={name}")
    template = f"recipe.chat_template={inputs / 'own.jinja'}"
    run = home / "runs" / "demo" / name
    running = start(home, *words, template)
    while running.poll() is None and phase not in phases_of(run):
        time.sleep(0.01)
    change(inputs)
    return running.wait(timeout=300), run


def state_of(file: Path) -> list[int]:
    """Return what the trainer reports of a file that it has loaded."""
    status = file.stat()
    times = [status.st_mtime_ns, status.st_ctime_ns]
    return [status.st_dev, status.st_ino, status.st_size, *times]


def phases_of(run: Path) -> list[str]:
    if not (run / "events.jsonl").exists():
        return []
    return [str(event.get("phase")) for event in records(run / "events.jsonl")]


def swap_weights(inputs: Path) -> None:
    file = inputs / "base" / "model.safetensors"
    other = inputs / "other"
    content = bytearray(file.read_bytes())
    content[-4:] = b"\0\0\0\0"
    other.write_bytes(content)
    shutil.copystat(file, other)
    other.replace(file)


def edit_template(inputs: Path) -> None:
    file = inputs / "own.jinja"
    file.write_text(file.read_text(encoding="utf-8") + "{# another #}", encoding="utf-8")


def add_index(inputs: Path) -> None:
    (inputs / "base" / "model.safetensors.index.json").write_text("{}", encoding="utf-8")


LOADED = ("base/model.safetensors", "own.jinja")
CHANGES = [swap_weights, edit_template, add_index]


@pytest.mark.parametrize("change", mark_others(CHANGES, [swap_weights]))
def test_an_input_that_is_replaced_before_it_is_loaded_stops_the_run(
    home: Path, inputs: Path, change: Callable[[Path], None]
) -> None:
    code, run = run_with(home, inputs, "import", change)
    assert code == 3, (home / "launch.log").read_text(encoding="utf-8")
    assert not (run / "DONE").exists()
    assert json.loads((run / "FAILED").read_text())["cause_id"] == "input_changed"


@pytest.mark.parametrize("change", mark_others(CHANGES, [swap_weights]))
def test_an_input_that_is_replaced_after_it_was_loaded_is_only_reported(
    home: Path, inputs: Path, change: Callable[[Path], None]
) -> None:
    loaded = {str(file): state_of(file) for file in (inputs / name for name in LOADED)}
    code, run = run_with(home, inputs, "training", change)
    shown = (home / "launch.log").read_text(encoding="utf-8")
    assert code == 0 and (run / "DONE").exists(), shown
    events = records(run / "events.jsonl")
    opened = {event["path"]: event["state"] for event in events if event["kind"] == "opened"}
    assert loaded.items() <= opened.items()
    warnings = [
        event["message"]
        for event in events
        if event["kind"] == "warning" and "since it was loaded" in event["message"]
    ]
    # a file that is added beside a loaded model is not one that was loaded
    assert len(warnings) == (change is not add_index)
    assert all(warning in shown for warning in warnings)
