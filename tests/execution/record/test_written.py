"""Which checkpoints a run has written, and whether those that a resume finds are these."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from launch.digests import hash_file
from launch.execution.record.attempts import begin_attempt
from launch.execution.record.checkpoints import MARK
from launch.execution.record.written import (
    CheckpointRecorder,
    read_written,
    record_found,
    record_last,
    writers_of,
)
from launch.files import write_json_lines

FILES = ("model.safetensors", "optimizer.pt", "global_step10/rank0.pt")


def write(folder: Path, text: str = "weights") -> Path:
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{text} {name}")
    return folder


def run_with(folder: Path, *, is_digested: bool = True) -> Path:
    """A run that has written checkpoint-10; `is_digested`: its files were read before it ended."""
    begin_attempt(folder, None, ())
    output = folder / "model"
    output.mkdir()
    recorder = CheckpointRecorder(folder, output)
    write(output / "checkpoint-10")
    recorder.record_new(is_whole=True)
    if is_digested:
        wait_for(lambda: bool(read_written(folder)["checkpoint-10"].digests))
    recorder.close(is_writing=False)
    if not is_digested:  # the thread may have been faster
        first, *_ = (folder / "checkpoints.jsonl").read_text().splitlines()
        (folder / "checkpoints.jsonl").write_text(f"{first}\n")
    return output / "checkpoint-10"


def wait_for(holds: Callable[[], bool]) -> None:
    while not holds():
        threading.Event().wait(0.01)


def find_change(run: Path, checkpoint: Path) -> str | None:
    return read_written(run)[checkpoint.name].find_change(checkpoint, hash_file)


def replace_content(folder: Path) -> None:
    """As a copy from elsewhere does that keeps the size and the time of the file."""
    file = folder / "model.safetensors"
    times = file.stat().st_mtime_ns
    file.write_text(file.read_text().replace("weights", "WEIGHTS"))
    os.utime(file, ns=(times, times))


def add_shard(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text("{}")


def remove_rank(folder: Path) -> None:
    (folder / FILES[2]).unlink()


def edit(folder: Path) -> None:
    (folder / "model.safetensors").write_text("others")


def swap(folder: Path) -> None:
    (folder / "optimizer.pt").rename(folder / "other")
    (folder / "model.safetensors").rename(folder / "optimizer.pt")
    (folder / "other").rename(folder / "model.safetensors")


@pytest.mark.parametrize("is_digested", [True, False])
@pytest.mark.parametrize(
    ("change", "described"),
    [
        (edit, "model.safetensors changed"),
        (add_shard, "model.safetensors.index.json was added"),
        (remove_rank, "global_step10/rank0.pt no longer exists"),
        (swap, "model.safetensors changed, optimizer.pt changed"),
    ],
)
def test_another_content_is_found_with_and_without_digests(
    tmp_path: Path, change: Callable[[Path], None], described: str, is_digested: bool
) -> None:
    checkpoint = run_with(tmp_path, is_digested=is_digested)
    assert find_change(tmp_path, checkpoint) is None
    change(checkpoint)
    assert find_change(tmp_path, checkpoint) == described


def test_a_copy_that_keeps_size_and_time_is_found_by_the_digest_alone(tmp_path: Path) -> None:
    for is_digested in (True, False):
        (tmp_path / str(is_digested)).mkdir()
        checkpoint = run_with(tmp_path / str(is_digested), is_digested=is_digested)
        replace_content(checkpoint)
        found = find_change(tmp_path / str(is_digested), checkpoint)
        assert found == ("model.safetensors changed" if is_digested else None)


def test_other_rights_and_what_no_resume_reads_are_no_change(tmp_path: Path) -> None:
    checkpoint = run_with(tmp_path, is_digested=False)
    (checkpoint / "model.safetensors").chmod(0o600)
    (checkpoint / "pytorch_model.bin").write_text("as zero_to_fp32.py writes it")
    (checkpoint / "results.json").write_text("{}")
    assert find_change(tmp_path, checkpoint) is None


def test_the_mark_of_a_finished_one_is_no_part_of_it(tmp_path: Path) -> None:
    checkpoint = run_with(tmp_path)
    (checkpoint / MARK).write_text(MARK)
    (checkpoint / ".nfs0001").touch()
    assert find_change(tmp_path, checkpoint) is None


def test_a_copy_of_the_run_has_the_same_checkpoint_by_its_digests(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    run_with(tmp_path / "run")
    copied = Path(shutil.copytree(tmp_path / "run", tmp_path / "copy"))
    assert find_change(copied, copied / "model" / "checkpoint-10") is None
    replace_content(copied / "model" / "checkpoint-10")
    assert find_change(copied, copied / "model" / "checkpoint-10") == "model.safetensors changed"


def test_a_file_whose_state_is_known_is_not_read_again(tmp_path: Path) -> None:
    checkpoint = run_with(tmp_path)

    def refuse(path: Path) -> str:
        raise AssertionError(path)

    assert read_written(tmp_path)["checkpoint-10"].find_change(checkpoint, refuse) is None


def test_what_changes_after_every_rank_has_written_was_not_written_by_the_run(
    tmp_path: Path,
) -> None:
    begin_attempt(tmp_path, None, ())
    output = tmp_path / "model"
    recorder = CheckpointRecorder(tmp_path, output)
    checkpoint = write(output / "checkpoint-10")
    recorder.record_new(is_whole=False)  # rank 0 evaluates; another rank still writes
    assert recorder.is_waiting
    (checkpoint / "rng_state_1.pth").write_text("late")
    recorder.record_new(is_whole=True)
    assert not recorder.is_waiting
    assert find_change(tmp_path, checkpoint) is None
    edit(checkpoint)
    write(output / "checkpoint-20")
    recorder.record_new(is_whole=True)
    recorder.close(is_writing=False)
    assert find_change(tmp_path, checkpoint) == "model.safetensors changed"
    assert find_change(tmp_path, output / "checkpoint-20") is None


def test_the_first_checkpoint_of_an_attempt_removes_what_it_was_converted_from(
    tmp_path: Path,
) -> None:
    begin_attempt(tmp_path, None, ())
    output = tmp_path / "model"
    write(output / "checkpoint-10")
    converted = write(tmp_path / "converted" / "checkpoint-10")
    for number, is_kept in ((None, True), (20, False)):
        recorder = CheckpointRecorder(tmp_path, output)
        if number is not None:
            write(output / f"checkpoint-{number}")
        recorder.record_new(is_whole=True)
        recorder.close(is_writing=False)
        assert converted.parent.exists() is is_kept
        assert (output / "checkpoint-10").is_dir()


def test_what_lay_there_before_the_attempt_is_not_recorded_as_its_own(tmp_path: Path) -> None:
    begin_attempt(tmp_path, None, ())
    output = tmp_path / "model"
    write(output / "checkpoint-10")
    recorder = CheckpointRecorder(tmp_path, output)
    write(output / "checkpoint-20")
    recorder.close(is_writing=True)
    assert read_written(tmp_path).keys() == {"checkpoint-20"}


def test_the_attempts_that_made_a_checkpoint(tmp_path: Path) -> None:
    resumed = {1: None, 2: "checkpoint-10", 3: "checkpoint-20", 4: "step_30", 5: "checkpoint-40"}
    attempts = [{"attempt": number, "resumed_from": name} for number, name in resumed.items()]
    write_json_lines(tmp_path / "attempts.jsonl", attempts)
    wrote = {"checkpoint-10": 1, "checkpoint-20": 2, "checkpoint-30": 3, "checkpoint-40": 4}
    lines = [{"checkpoint": name, "attempt": number, "files": {}} for name, number in wrote.items()]
    write_json_lines(tmp_path / "checkpoints.jsonl", lines)
    assert writers_of(tmp_path, "checkpoint-30") == [3, 2, 1]
    assert writers_of(tmp_path, "checkpoint-10") == [1]
    assert writers_of(tmp_path, "checkpoint-40") == [4]  # nobody recorded step_30
    assert writers_of(tmp_path, "step_30") == writers_of(tmp_path, None) == []
    found = write(tmp_path / "model" / "step_30")
    record_found(tmp_path, found)
    record_found(tmp_path, found)
    assert writers_of(tmp_path, "step_30") == []
    assert find_change(tmp_path, found) is None
    assert len((tmp_path / "checkpoints.jsonl").read_text().splitlines()) == 5


def test_lines_that_are_damaged_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "checkpoints.jsonl").write_text(
        '{"checkpoint": "a"}\n{"checkpoint": "b", "attempt": 1, "files": {"x": {"state": [1]}}}\n'
        '{"checkpoint": "c", "attempt": 1, "files": []}\n[]\n{"checkpoint": "d", "att'
    )
    assert read_written(tmp_path) == {}


@pytest.mark.parametrize("goes_on", [False, True])
def test_what_another_node_writes_last_belongs_to_the_checkpoint(
    tmp_path: Path, goes_on: bool
) -> None:
    """`goes_on`: the run trained a step after the checkpoint, so that every rank had written it."""
    begin_attempt(tmp_path, None, ())
    checkpoint = tmp_path / "model" / "checkpoint-10"
    checkpoint.parent.mkdir()
    recorder = CheckpointRecorder(tmp_path, checkpoint.parent)
    write(checkpoint)
    recorder.record_new(is_whole=False)
    if goes_on:
        recorder.record_new(is_whole=True)
    recorder.close(is_writing=False)
    (checkpoint / FILES[2]).write_text("written by a rank of another node")
    (checkpoint / "model-00002.safetensors").write_text("so is this shard")
    assert find_change(tmp_path, checkpoint) is not None
    record_last(tmp_path, checkpoint.parent)
    assert (find_change(tmp_path, checkpoint) is None) == (not goes_on)
    # nothing is taken for the run's that is written later
    swap(checkpoint)
    record_last(tmp_path, checkpoint.parent)
    assert find_change(tmp_path, checkpoint) is not None


def test_the_hidden_index_of_a_sharded_checkpoint_belongs_to_it(tmp_path: Path) -> None:
    """torch.distributed.checkpoint unpickles it."""
    checkpoint = tmp_path / "model" / "checkpoint-10"
    checkpoint.parent.mkdir()
    begin_attempt(tmp_path, None, ())
    recorder = CheckpointRecorder(tmp_path, checkpoint.parent)
    write(checkpoint)
    (checkpoint / ".metadata").write_bytes(b"index")
    (checkpoint / ".nfs0001").write_bytes(b"a file that is removed while it is open")
    recorder.record_new(is_whole=True)
    recorder.close(is_writing=False)
    (checkpoint / ".nfs0001").unlink()
    assert find_change(tmp_path, checkpoint) is None
    (checkpoint / ".metadata").write_bytes(b"INDEX")
    assert find_change(tmp_path, checkpoint) == ".metadata changed"


def test_a_file_whose_device_has_another_number_is_not_read_again(tmp_path: Path) -> None:
    """As on another node, or after the file system was mounted again."""
    checkpoint = run_with(tmp_path)
    written = read_written(tmp_path)[checkpoint.name]
    elsewhere = replace(
        written, files={name: (7, *state[1:]) for name, state in written.files.items()}
    )

    def refuse(path: Path) -> str:
        raise AssertionError(path)

    assert elsewhere.find_change(checkpoint, refuse) is None
