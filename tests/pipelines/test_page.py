"""The page of a pipeline: its stages by their names, and the losses of each kind apart."""

from __future__ import annotations

import re
from pathlib import Path

from launch.execution.record.folder import RunFolder
from launch.files import write_json
from launch.pipelines.page import _show_answer, render_pipeline
from launch.pipelines.record import PIPELINE_FILE
from tests.execution.report.folders import write_run


def test_an_empty_answer_is_not_a_blank_cell() -> None:
    assert "ended its answer at once" in _show_answer(" ")
    assert (_show_answer("Red."), _show_answer(None)) == ("Red.", "-")


def test_stages_are_named_and_their_losses_apart(tmp_path: Path) -> None:
    """Runs are named after their width and identity, which says nothing to a reader."""
    stages = []
    for stage, kind, loss in (("chats", "sft", 2.0), ("pairs", "dpo", 0.69)):
        folder = write_run(tmp_path / stage / f"cpu1-{kind}", [{"loss": loss}, {"loss": loss / 2}])
        RunFolder(folder).write_config({"stage": {"kind": kind}})
        stages.append({"stage": stage, "run": f"{stage}/cpu1-{kind}"})
    pipeline = tmp_path / "pipelines" / "chats-pairs"
    pipeline.mkdir(parents=True)
    write_json(pipeline / PIPELINE_FILE, {"stages": stages})
    page = render_pipeline(pipeline)
    assert '<span class="chip done">done</span> chats done, pairs done; ' in page
    assert 'x1="' in page and ">pairs</text>" in page  # where the second stage begins
    captions = re.findall(r"<figcaption><strong>(.*?)</strong>", page)
    assert captions == ["Loss of SFT", "Loss of DPO"]
    assert re.findall(r'<section class="run"><h2>(.*?)</h2>', page) == ["chats", "pairs"]
    assert "cpu1-sft</th>" not in page
    legends = re.findall(r'<ul class="legend">(.*?)</ul>', page, re.DOTALL)
    assert ["chats" in legend for legend in legends] == [True, False]
