"""Real data files in every shape that people have them in, and helpers that read them as a plan
does.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launch.config.kinds import DataFormat, Kind
from launch.data.conversion import Conversion
from launch.data.sources import DataFiles, LocalData, digest_files
from launch.errors import UserError
from launch.planning.digest_cache import DigestCache
from launch.worker.finding import Finding

CHAT = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}
PAIR = {
    "chosen": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}],
    "rejected": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "No"}],
}


def chat(question: str, answer: object) -> dict[str, Any]:
    return {
        "messages": [
            {"role": "user", "content": question},
            {"role": "assistant", "content": answer},
        ]
    }


def write_lines(path: Path, rows: Sequence[object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8"
    )
    return path


def write_csv(path: Path, rows: Sequence[Sequence[str]], delimiter: str = ",") -> Path:
    with path.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream, delimiter=delimiter).writerows(rows)
    return path


def local(
    *paths: Path,
    kind: Kind = Kind.sft,
    form: DataFormat = DataFormat.auto,
    columns: dict[str, str] | None = None,
    validation: Path | float | None = None,
    skips: bool = False,
) -> LocalData:
    """Describe files as a plan would; the cache is beside the first."""
    digests = DigestCache(paths[0].parent / "digests.json")

    def known(files: tuple[Path, ...]) -> DataFiles:
        content = digest_files(files, digests.of)
        assert content is not None
        return DataFiles(files, content)

    held_out = known((validation,)) if isinstance(validation, Path) else validation
    return LocalData(
        known(paths),
        kind,
        form,
        columns or {},
        paths[0].parent / "cache",
        "data.mix",
        held_out,
        skips,
    )


def converted(*paths: Path, kind: Kind = Kind.sft, **options: Any) -> list[dict[str, Any]]:
    data = local(*paths, kind=kind, **options)
    return [columns for _, columns in Conversion(data).rows(data.files.paths)]


def problems(*paths: Path, **options: Any) -> tuple[Finding, ...]:
    """Return what is wrong with the files; they must be refused."""
    try:
        converted(*paths, **options)
    except UserError as error:
        return error.problems
    raise AssertionError("the data was accepted")
