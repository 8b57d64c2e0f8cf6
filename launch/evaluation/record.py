"""The results of evaluations in a run folder: one file per model and tasks, by content, and their
summary.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launch.digests import digest_text
from launch.evaluation.models import ModelSource
from launch.evaluation.suites import RESULTS, digest_spec
from launch.evaluation.verdict import TaskScore
from launch.files import load_json, read_json_object, write_json
from launch.planning.digest_cache import DigestCache
from launch.planning.identity import TOKENIZER_FILES
from launch.worker.evaluating import HarnessJob, TaskSpec
from launch.worker.json_codec import from_json, versioned

SUMMARY = "evaluation.json"  # a file in the run folder


class ResultFiles:
    """Names the result files of a run by a digest of everything that decides the result."""

    def __init__(self, run: Path, tokenizer: Path, harness: str) -> None:
        self.folder = run / RESULTS
        self._digests = DigestCache(self.folder / "digests.json")
        contents = [str(self._digests.of(tokenizer / name)) for name in TOKENIZER_FILES]
        self._common = [harness, *contents]

    def job(self, model: ModelSource, spec: TaskSpec, limit: int | None) -> HarnessJob:
        """Return the job that scores a model, whose files are the same for the same model,
        tokenizer, tasks and harness.
        """
        base = model.adapter.local_base if model.adapter else None
        parts = [
            self._identify(model.folder),
            self._identify(base),
            str(model.quantized),
            digest_spec(spec),
            str(limit),
        ]
        parts += [self._identify(model.state)] if model.state else []
        key = digest_text("\n".join([*self._common, *parts]))
        return HarnessJob(
            model.label,
            model.request,
            spec,
            self.folder / f"{key}.json",
            self.folder / f"{key}.samples.jsonl",
        )

    def save_digests(self) -> None:
        self._digests.save()

    def _identify(self, path: Path | None) -> str:
        return "" if path is None else self._digests.of(path) or str(path)


def read_scores(result: Path) -> dict[str, TaskScore] | None:
    """Return the scores by task; None if the file is missing or not readable."""
    try:
        tasks = load_json(result)["tasks"]
        return {str(name): from_json(TaskScore, content) for name, content in tasks.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write_summary(run: Path, summary: object, checkpoint: str | None = None) -> None:
    """Write the evaluation.json of a run, or of one of its checkpoints. Raises OSError."""
    write_json(_summary_file(run, checkpoint), versioned(summary))


def read_summary(run: Path, checkpoint: str | None = None) -> dict[str, Any] | None:
    """Return the last evaluation of a run's model, or of a checkpoint; None without a readable
    one.
    """
    summary = read_json_object(_summary_file(run, checkpoint))
    return summary if isinstance(summary.get("tasks"), list) else None


def _summary_file(run: Path, checkpoint: str | None) -> Path:
    return run / RESULTS / f"{checkpoint}.{SUMMARY}" if checkpoint else run / SUMMARY


def describe_summary(summary: Mapping[str, Any]) -> str:
    """Return the number of each verdict of a run: `2 better, 1 same`."""
    verdicts = [
        "broken" if task.get("broken") else str(task.get("verdict") or "scored")
        for task in summary["tasks"]
    ]
    return ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in sorted(set(verdicts)))
