"""A NaN or an infinity in safetensors files, found without torch."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from launch.config.guards import NonFiniteLimits
from launch.execution.facts import GuardContext
from launch.execution.guards import NonFinite
from launch.planning import finite_weights
from launch.planning.finite_weights import find_non_finite_weight
from tests.execution.guards.facts import first, steps

FORMS = {"F64": "d", "F32": "f", "F16": "e"}
LARGEST = {"F64": 1.7e308, "F32": 3.4e38, "F16": 65504.0, "BF16": 3.38e38}


def write_model(folder: Path, kind: str, values: Sequence[float]) -> Path:
    """Write a model of two tensors; the second one, `bad`, has the values."""
    folder.mkdir(exist_ok=True)

    def encode(numbers: Sequence[float]) -> bytes:
        if kind == "BF16":  # the upper half of a float
            return b"".join(struct.pack("<f", number)[2:] for number in numbers)
        return b"".join(struct.pack(f"<{FORMS[kind]}", number) for number in numbers)

    parts = {"good": encode([0.5, -LARGEST[kind], 0.0]), "bad": encode(values)}
    header = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, data in parts.items():
        offsets = [at, at + len(data)]
        header[name] = {"dtype": kind, "shape": [1], "data_offsets": offsets}  # type: ignore[dict-item]
        at += len(data)
    text = json.dumps(header).encode()
    content = len(text).to_bytes(8, "little") + text + b"".join(parts.values())
    (folder / "model.safetensors").write_bytes(content)
    return folder


@pytest.mark.parametrize("kind", LARGEST)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("block", [8, 1 << 24])
def test_a_number_that_is_not_finite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, value: float, block: int
) -> None:
    monkeypatch.setattr(finite_weights, "_BLOCK", block)
    model = write_model(tmp_path / "m", kind, [1.0, LARGEST[kind], 2.0, value, 3.0])
    assert find_non_finite_weight(model) == "bad in model.safetensors"
    model = write_model(tmp_path / "m", kind, [1.0, LARGEST[kind], -LARGEST[kind], 1e-7, 3.0])
    assert find_non_finite_weight(model) is None


def test_torch_writes_the_same(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    save_file = pytest.importorskip("safetensors.torch").save_file
    for kind in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        weight = torch.randn(1000).to(kind)
        save_file({"a": weight}, tmp_path / "model.safetensors")
        assert find_non_finite_weight(tmp_path) is None
        weight[777] = math.nan
        save_file({"a": weight}, tmp_path / "model.safetensors")
        assert find_non_finite_weight(tmp_path) == "a in model.safetensors"


@pytest.mark.parametrize("content", [b"", b"x" * 5, b"\xff" * 40, b"\x02\0\0\0\0\0\0\0[]"])
def test_a_damaged_file_is_passed_over(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    assert find_non_finite_weight(tmp_path) is None


def test_the_guard_names_the_weights_that_were_loaded(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m", "BF16", [math.nan])
    for values, is_named in (([math.nan], True), ([2.0, math.nan], False)):
        guard = NonFinite(NonFiniteLimits(steps=1), GuardContext(model=model))
        found = first(guard, steps("loss", values))
        assert found is not None
        assert ("bad in model.safetensors" in found[1].message) is is_named
