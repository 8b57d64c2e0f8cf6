"""What is said at the end of a run of inputs that have changed since they were loaded."""

from __future__ import annotations

import io
import json
from pathlib import Path

from launch.digests import hash_file
from launch.execution.display import PlainDisplay
from launch.execution.inputs import report_later_changes
from launch.execution.record.folder import RunFolder
from launch.planning.read_files import LoadedFiles, snapshot_inputs
from tests.planning.test_read_files import load, plan_in


def test_a_later_change_is_a_warning_on_the_screen_and_in_the_record(tmp_path: Path) -> None:
    plan = plan_in(tmp_path)
    loaded = LoadedFiles(snapshot_inputs(plan, plan.machine.digests.of), hash_file)
    weights = tmp_path / "base" / "model.safetensors"
    load(loaded, weights)
    (tmp_path / "run").mkdir()
    folder = RunFolder(tmp_path / "run")
    screen = io.StringIO()
    report_later_changes(folder, loaded, PlainDisplay(screen))
    assert not screen.getvalue() and not folder.events.exists()
    weights.unlink()
    report_later_changes(folder, loaded, PlainDisplay(screen))
    [line] = screen.getvalue().splitlines()
    [event] = map(json.loads, folder.events.read_text(encoding="utf-8").splitlines())
    assert str(weights) in line and event["message"] in line
    assert (event["kind"], event["attempt"]) == ("warning", 1)
