"""The record of a pipeline, which names the runs of its stages: `pipelines/NAME/pipeline.json`.

Each run has its own record, so that the state of a pipeline is that of its runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from launch.execution.record.run import Run, objects
from launch.files import read_json_object, write_json
from launch.pipelines.links import FOLDER, Pipeline
from launch.planning.find_runs import run_name
from launch.worker.json_codec import versioned

PIPELINE_FILE = "pipeline.json"


def write_record(pipeline: Pipeline) -> None:
    """Write the record. Raises OSError."""
    stages = [
        {"stage": plan.stage, "run": run_name(plan.folder), "identity": plan.identity}
        for plan in pipeline.plans
    ]
    write_json(
        pipeline.folder / PIPELINE_FILE, versioned({"name": pipeline.name, "stages": stages})
    )


def find_pipelines(runs: Path) -> list[Path]:
    """Return the folders of the pipelines below a folder of runs, sorted by name."""
    return sorted(path.parent for path in (runs / FOLDER).glob(f"*/{PIPELINE_FILE}"))


def find_pipeline(name: str, runs: Path) -> Path | None:
    """Return the folder of the pipeline that `name` means, None without one.

    `name` is NAME, pipelines/NAME, the folder, or the stages (`sft,dpo`), which mean the newest
    pipeline of these stages without a name.
    """
    candidates = [runs / FOLDER / name, runs / name, Path(name).expanduser()]
    stages = name.replace(",", "-")
    unnamed = [path for path in find_pipelines(runs) if path.name.rpartition("-")[0] == stages]
    if unnamed:
        candidates.append(max(unnamed, key=lambda folder: (folder / PIPELINE_FILE).stat().st_mtime))
    for folder in candidates:
        if (folder / PIPELINE_FILE).is_file():
            return folder.resolve()
    return None


def stage_runs(folder: Path) -> list[tuple[str, Path]]:
    """Return each stage of a pipeline with its run folder, which may not exist yet."""
    stages = objects(read_json_object(folder / PIPELINE_FILE).get("stages"))
    runs = folder.absolute().parents[1]
    return [(str(stage.get("stage")), runs / str(stage.get("run"))) for stage in stages]


def describe_stages(folder: Path) -> str:
    """Return the states of a pipeline's stages: `sft done, dpo running 120/2,000, rm not started`."""
    parts = []
    for stage, run in stage_runs(folder):
        status = Run(run).status
        state = "not started" if status.state == "absent" else status.state
        text = f"{stage} {state}"
        if status.step and state != "done":
            text += f" {status.step:,}"
            if status.total_steps:
                text += f"/{status.total_steps:,}"
        parts.append(text)
    return ", ".join(parts)


def stale_runs(pipeline: Pipeline) -> Sequence[str]:
    """Return the runs of the newest other pipeline of the same stages that this one does not use.

    They are those of the first stage that has changed, and of all stages after it.
    """
    other_folders = [
        path for path in find_pipelines(pipeline.plans[0].runs) if path != pipeline.folder
    ]
    records = [path / PIPELINE_FILE for path in other_folders]
    for file in sorted(records, key=lambda path: path.stat().st_mtime, reverse=True):
        others = objects(read_json_object(file).get("stages"))
        if [other.get("stage") for other in others] != list(pipeline.request.stages):
            continue
        stale = []
        for other, plan in zip(others, pipeline.plans, strict=True):
            if other.get("identity") != plan.identity:
                stale.append(str(other.get("run")))
        return stale
    return []
