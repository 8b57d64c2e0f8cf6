"""A checkpoint of OLMo-core is complete by its files: torch's own index says how long each is."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from launch.config.schema import Family, Launcher
from launch.execution.record.checkpoints import (
    Layout,
    find_checkpoints,
    is_being_written,
    names_checkpoint,
)
from launch.execution.record.shards import find_shard_faults, read_file_ends

TWO = Layout(Family.open_instruct, 2, None, Launcher.torchrun)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint in OLMo-core's layout, as two ranks leave it; torch writes the tensors."""
    torch = pytest.importorskip("torch", reason="the `train` dependencies are not installed")
    import torch.distributed.checkpoint as dcp

    folder = tmp_path_factory.mktemp("saved") / "step4"
    (folder / "train").mkdir(parents=True)
    for rank in (0, 1):
        torch.save({"global_step": 4}, folder / "train" / f"rank{rank}.pt")
    weights = {f"layer{number}": torch.arange(64.0) + number for number in range(3)}
    writer = dcp.FileSystemWriter(folder / "model_and_optim")
    dcp.save({"model": weights, "optim": weights}, storage_writer=writer, no_dist=True)
    (folder / ".metadata.json").write_text("{}")
    return folder


@pytest.fixture
def output(saved: Path, tmp_path: Path) -> Path:
    shutil.copytree(saved, tmp_path / "step4")
    return tmp_path


def faults(output: Path, layout: Layout = TWO) -> tuple[str, ...]:
    [checkpoint] = find_checkpoints(output, layout)
    assert (checkpoint.unit, checkpoint.number) == ("step", 4)
    return checkpoint.faults


def test_a_whole_one_is_complete_at_its_width_alone(output: Path) -> None:
    assert faults(output) == ()
    for ranks in (1, 4):
        layout = Layout(Family.open_instruct, ranks, None, Launcher.torchrun)
        assert faults(output, layout) == (f"found 2 rank*.pt, expected {ranks}",)


@pytest.mark.parametrize("damage", [cut, Path.unlink])
@pytest.mark.parametrize(
    "pattern", ["train/rank1.pt", "model_and_optim/.metadata", "model_and_optim/*.distcp"]
)
def test_every_file_counts(output: Path, pattern: str, damage: Callable[[Path], object]) -> None:
    damage(next((output / "step4").glob(pattern)))
    assert faults(output)


def test_the_file_that_is_written_last_counts(output: Path) -> None:
    (output / "step4" / ".metadata.json").unlink()
    assert is_being_written(output / "step4")
    assert ".metadata.json is missing" in faults(output)[0]


def test_what_else_is_in_the_folder_is_no_checkpoint(output: Path) -> None:
    for name in ("hf_model", "step_9", "steps", "dataset-common"):
        (output / name).mkdir()
    (output / "step12").mkdir()
    (output / "step8-tmp").mkdir()  # a write that was cut off
    names = [checkpoint.path.name for checkpoint in find_checkpoints(output, TWO)]
    assert sorted(names) == ["step12", "step4", "step8-tmp"]
    assert [checkpoint.path.name for checkpoint in find_checkpoints(output, TWO)][-1] == "step12"
    assert not names_checkpoint(output / "hf_model") and not names_checkpoint(output / "steps")


class Trap:
    """Would make a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.mkdir, (self.folder,)


def test_nothing_that_the_index_names_is_called(output: Path) -> None:
    index = output / "step4" / "model_and_optim" / ".metadata"
    ends = read_file_ends(index)
    assert ends and all(size > 0 for size in ends.values())
    made = output / "made"
    index.write_bytes(pickle.dumps(Trap(made)))
    assert list(find_shard_faults(index.parent)) and not made.exists()
    assert faults(output)


def test_an_index_that_points_out_of_the_folder_is_a_fault(output: Path) -> None:
    index = output / "step4" / "model_and_optim" / ".metadata"
    content = index.read_bytes()
    name = next(iter(read_file_ends(index)))
    other = "../" + name[3:]
    index.write_bytes(content.replace(name.encode(), other.encode()))
    assert "unreadable (ValueError)" in next(find_shard_faults(index.parent))
