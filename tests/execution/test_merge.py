"""What a merge reads of the run that trained the adapter."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from launch.errors import UserError
from launch.execution.merge import (
    QUANTIZED_TOLERANCE,
    TOLERANCES,
    Merged,
    Training,
    merge_adapter,
    read_training,
    refuse_difference,
)
from launch.planning import digest_cache
from launch.planning.adapter import Adapter, read_adapter
from tests.execution.files import model, safetensors


@pytest.fixture
def adapter(tmp_path: Path) -> Adapter:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "adapter_config.json").write_text(
        '{"peft_type": "LORA", "r": 4, "base_model_name_or_path": "base"}'
    )
    found = read_adapter(folder)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "plan",
    [None, "", "{}", "[]", '{"command": []}', '{"flags": 3, "command": ["x"], "parallel": {}}'],
)
def test_a_damaged_plan_is_as_none(adapter: Adapter, tmp_path: Path, plan: str | None) -> None:
    if plan is not None:
        (tmp_path / "plan.json").write_text(plan)
    training = read_training(adapter)
    assert (training.python, training.dtype, training.quantized, training.rows) == (
        sys.executable,
        "auto",
        False,
        (),
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("share", "quantized_share", "is_refused"), [
    (1.0, None, False),
    (1.01, None, True),
    (float("nan"), None, True),
    (1.0, 1.0, False),
    (0.0, 1.01, True),
    (1.01, 0.0, True),
])  # fmt: skip
def test_a_merge_is_kept_up_to_its_tolerance(
    dtype: str, share: float, quantized_share: float | None, is_refused: bool
) -> None:
    """The 4-bit base has a tolerance of its own; the merge is compared with the unquantised base
    all the same.
    """
    quantized = None if quantized_share is None else quantized_share * QUANTIZED_TOLERANCE
    error = share * TOLERANCES[dtype]
    merged = Merged(
        Path("merged"), error, TOLERANCES[dtype], 0.5, 64, built=True, quantized_error=quantized
    )
    if not is_refused:
        refuse_difference(merged)
        return
    with pytest.raises(UserError) as refused:
        refuse_difference(merged)
    [problem] = refused.value.problems
    assert problem.id == "merge_differs"
    assert ("4-bit" in problem.message) == (share == 0.0)


Change = Callable[[Path], object]


def write(name: str) -> Change:
    return lambda folder: (folder / name).write_text("other")


def mergeable(
    run: Path, monkeypatch: pytest.MonkeyPatch, merges: list[Path] | None = None
) -> tuple[Adapter, Training]:
    """Make an adapter in a run's folder and its base, for merges whose worker is not started: it
    would write the model that is added to `merges`.
    """
    base = model(run / "base")
    folder = run / "model"
    folder.mkdir()
    config = {"peft_type": "LORA", "r": 4, "base_model_name_or_path": str(base)}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    safetensors(folder / "adapter_model.safetensors", {"lora_A": (2, 4)})
    adapter = read_adapter(folder)
    assert adapter is not None
    written = [] if merges is None else merges

    def merge(adapter: Adapter, training: object, staging: Path) -> dict[str, object]:
        written.append(model(staging))
        return {"error": 0.0, "dtype": "float32", "adapter_effect": 0.5, "tokens": 64}

    monkeypatch.setattr("launch.execution.merge._run_merge", merge)
    monkeypatch.setattr("launch.execution.merge.require_modules", lambda *arguments: None)
    monkeypatch.setattr("launch.execution.merge.check_adapter", lambda *arguments: None)
    return adapter, read_training(adapter)


@pytest.mark.parametrize(
    ("change", "is_kept"),
    [
        (write("README.md"), True),
        (write("merged/model.safetensors"), False),
        (write("merged/additional.jinja"), False),
        (write("model/adapter_model.safetensors"), False),
        (write("base/model.safetensors"), False),
        (write("base/config.json"), False),
    ],
)
def test_a_merge_is_used_again_only_of_the_same_adapter_and_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Change, is_kept: bool
) -> None:
    """The worker that merges is not started: that it would be is what is tested."""
    merges: list[Path] = []
    adapter, training = mergeable(tmp_path, monkeypatch, merges)
    assert merge_adapter(adapter, training).built
    assert not merge_adapter(adapter, training).built
    change(tmp_path)
    assert merge_adapter(adapter, training).built != is_kept
    assert len(merges) == (1 if is_kept else 2)


def test_files_are_read_once_for_any_number_of_merges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for the merged model's own, which is read as it is written and where it is then."""
    read: list[str] = []
    hash_file = digest_cache.hash_file

    def note(path: Path, progress: Callable[[int], None]) -> str:
        read.append(path.name)
        return hash_file(path, progress)

    monkeypatch.setattr(digest_cache, "hash_file", note)
    monkeypatch.setattr(digest_cache, "_SETTLED", -1.0)  # the files are new
    adapter, training = mergeable(tmp_path / "sft" / "run", monkeypatch)
    (tmp_path / ".cache").mkdir()
    assert merge_adapter(adapter, training).built
    assert not merge_adapter(adapter, training).built
    read.clear()
    assert not merge_adapter(adapter, training).built
    assert read == []


def test_what_a_killed_merge_leaves_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process that merges holds the lock of its folder, and keeps it."""
    adapter, training = mergeable(tmp_path, monkeypatch)
    for name in ("abandoned", "working"):
        model(tmp_path / f".merged.{name}")
    (tmp_path / ".merged.new").mkdir()
    other = tmp_path / ".other.model"
    model(other)
    (tmp_path / ".merged.link").symlink_to(other)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / ".merged.working")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
    assert merge_adapter(adapter, training).built
    left = {path.name for path in tmp_path.glob(".merged.*")}
    assert left == {".merged.working", ".merged.new", ".merged.link"}
    assert (other / "config.json").is_file()
    holder.communicate()


HOLD = """import fcntl, os, sys
fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()"""


@pytest.mark.parametrize(
    "report", [None, [], "x", {"error": "x", "dtype": 3}, {"dtype": "float32"}]
)
def test_a_damaged_record_of_a_merge_is_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, report: object
) -> None:
    adapter, training = mergeable(tmp_path, monkeypatch)
    merge_adapter(adapter, training)
    record = tmp_path / "merged" / "merge.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "report": report}))
    assert merge_adapter(adapter, training).built
    assert not merge_adapter(adapter, training).built


@pytest.mark.parametrize("name", ["base/model.safetensors", "model/adapter_model.safetensors"])
def test_what_is_replaced_while_it_is_merged_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    adapter, training = mergeable(tmp_path, monkeypatch)

    def merge(adapter: Adapter, training: object, staging: Path) -> dict[str, object]:
        model(staging)
        (tmp_path / name).write_text("other")
        return {"error": 0.0, "dtype": "float32", "adapter_effect": 0.5, "tokens": 64}

    monkeypatch.setattr("launch.execution.merge._run_merge", merge)
    with pytest.raises(UserError, match="was changed while it was merged") as refused:
        merge_adapter(adapter, training)
    assert refused.value.problems[0].id == "merge_failed"
    assert not (tmp_path / "merged").exists() and not [*tmp_path.glob(".merged.*")]
