"""What the pickles of checkpoints import, which are searched without unpickling them."""

from __future__ import annotations

import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launch.planning.weight_files import BrokenFileError, check_torch_file

torch = pytest.importorskip("torch", reason="checkpoints are written by torch")

MARK = "unpickled"


class Evil:
    """Writes a file when it is unpickled."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self._call = (function, arguments)

    def __reduce__(self) -> Any:
        return self._call


def text(value: str) -> bytes:
    encoded = value.encode()
    return b"\x8c" + struct.pack("<B", len(encoded)) + encoded


# os.system under two harmless texts that are taken off the stack again
HIDDEN = (
    b"\x80\x04"
    + text("os")
    + text("system")
    + text("torch")
    + text("Size")
    + b"00\x93"
    + text(f"touch {MARK}")
    + b"\x85R."
)
# a name that is looked up in what a trusted module imports
DOTTED = (
    b"\x80\x04"
    + text("torch.serialization")
    + text("os.system")
    + b"\x93"
    + text("true")
    + b"\x85R."
)
COMPUTED = b"\x80\x04" + text("os") + b"\x94" + b"N0h\x00" + text("system") + b"\x93."


def zipped(path: Path, data: bytes) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", data)


# argparse.FileType("w")("unpickled"): an object that a pickle makes, and then calls
CALLED = b"\x80\x04" + text("argparse") + text("FileType") + b"\x93" + text("w") + b"\x85R"
CALLED += text(MARK) + b"\x85R."


EVIL: dict[str, Callable[[Path], object]] = {
    "zip": lambda path: torch.save({"state": Evil(os.system, f"touch {MARK}")}, path),
    "nested": lambda path: torch.save({"a": [{"b": Evil(eval, "open('unpickled', 'w')")}]}, path),
    "getattr": lambda path: torch.save({"a": Evil(getattr, "", "join")}, path),
    "old protocol": lambda path: torch.save(
        Evil(os.system, f"touch {MARK}"), path, pickle_protocol=2
    ),
    "plain": lambda path: path.write_bytes(pickle.dumps(Evil(os.system, f"touch {MARK}"))),
    "plain, later": lambda path: path.write_bytes(
        pickle.dumps({"a": 1}) + pickle.dumps(Evil(os.system, f"touch {MARK}"))
    ),
    "before torch 1.6": lambda path: torch.save(
        {"state": Evil(os.system, f"touch {MARK}")}, path, _use_new_zipfile_serialization=False
    ),
    "protocol 0": lambda path: path.write_bytes(
        pickle.dumps(Evil(os.system, f"touch {MARK}"), protocol=0)
    ),
    "hidden": lambda path: zipped(path, HIDDEN),
    "dotted": lambda path: zipped(path, DOTTED),
    "computed": lambda path: zipped(path, COMPUTED),
    "called object": lambda path: zipped(path, CALLED),
    "cut": lambda path: zipped(path, HIDDEN[:-3]),
    "extension": lambda path: zipped(path, b"\x80\x04\x82\x01."),
}


@pytest.mark.parametrize("kind", EVIL)
def test_a_pickle_that_imports_what_no_trainer_writes_is_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "optimizer.pt"
    EVIL[kind](file)
    with pytest.raises(BrokenFileError):
        check_torch_file(file)
    assert not (tmp_path / MARK).exists()


@pytest.mark.parametrize(
    "name",
    [
        "_pickle loads",
        "torch load",
        "torch save",
        "torch.storage _load_from_bytes",
        "torch.serialization pickle",
        "torch.distributed.launcher.api launch_agent",
        "torch.distributed.elastic.multiprocessing.subprocess_handler Popen",
        "accelerate.test_utils.testing run_command",
        "accelerate.utils.launch PrepareForLaunch",
        "transformers.dynamic_module_utils get_class_in_module",
        "deepspeed.launcher.runner main",
        "numpy fromfile",
        "numpy save",
        "collections namedtuple",
        "copyreg add_extension",
        # classes that open a file or a connection as they are made
        "argparse FileType",
        "torch._C PyTorchFileWriter",
        "torch.distributed TCPStore",
        "torch.distributed FileStore",
        "torch.distributed.checkpoint FileSystemWriter",
        "accelerate.tracking WandBTracker",
        "transformers.integrations.integration_utils WandbCallback",
    ],
)
def test_a_function_of_a_trainers_library_is_no_class(tmp_path: Path, name: str) -> None:
    """Each runs, loads or writes what the pickle tells it to."""
    file = tmp_path / "optimizer.pt"
    zipped(file, f"c{name.replace(' ', chr(10))}\n(S'x'\ntR.".encode())
    with pytest.raises(BrokenFileError):
        check_torch_file(file)


def optimizer_state() -> dict[str, Any]:
    layer = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(torch.ones(4)).sum().backward()
    optimizer.step()
    return dict(optimizer.state_dict())


def rng_state() -> dict[str, Any]:
    import random

    import numpy

    return {
        "python": random.getstate(),
        "numpy": numpy.random.get_state(),
        "cpu": torch.random.get_rng_state(),
        "generator": numpy.random.default_rng(0),
        "type": torch.bfloat16,
        "size": torch.Size((2,)),
        "values": {1, 2.0, "a", b"b", None, complex(1)},
    }


def model_state() -> dict[str, Any]:
    return {"a": torch.nn.Parameter(torch.ones(2)), "b": torch.ones(2, dtype=torch.bfloat16)}


@pytest.mark.parametrize("state", [optimizer_state, rng_state, model_state])
@pytest.mark.parametrize("is_zip", [True, False])
def test_what_trainers_write_is_none(
    tmp_path: Path, state: Callable[[], dict[str, Any]], is_zip: bool
) -> None:
    file = tmp_path / "state.pt"
    torch.save(state(), file, _use_new_zipfile_serialization=is_zip)
    check_torch_file(file)


def test_the_state_of_deepspeed_is_none(tmp_path: Path) -> None:
    deepspeed = pytest.importorskip("deepspeed.runtime.fp16.loss_scaler")
    config = pytest.importorskip("deepspeed.runtime.zero.config")
    scaler = deepspeed.LossScaler(1.0)
    state = {"loss_scaler": scaler, "stage": config.ZeroStageEnum.weights}
    torch.save(state, tmp_path / "zero.pt")
    check_torch_file(tmp_path / "zero.pt")


def test_the_index_of_a_sharded_checkpoint_is_none(tmp_path: Path) -> None:
    from torch.distributed import checkpoint

    checkpoint.save({"a": torch.ones(4)}, checkpoint_id=tmp_path / "sharded", no_dist=True)
    check_torch_file(tmp_path / "sharded" / ".metadata")
