"""A model is complete when every file that it needs is there, to its last byte."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from launch.planning.model_folder import find_model_faults, find_other_tensor, find_output_faults
from launch.planning.weight_files import BrokenFileError, check_torch_file, read_safetensors_header
from tests.execution.files import cut, model, safetensors, torch_file


def test_complete_models_have_no_faults(tmp_path: Path) -> None:
    assert find_model_faults(model(tmp_path / "one")) == []
    assert find_model_faults(model(tmp_path / "three", shards=3)) == []


def _adapter(folder: Path) -> Path:
    folder.mkdir()
    for name in ("adapter_config.json", "tokenizer.json"):
        (folder / name).write_text("{}")
    safetensors(folder / "adapter_model.safetensors", {"lora_A": (2, 4)})
    return folder


def test_an_adapter_needs_no_model(tmp_path: Path) -> None:
    folder = _adapter(tmp_path / "lora")
    assert find_output_faults(folder, "config.json") == []
    cut(folder / "adapter_model.safetensors")
    assert (
        "truncated" in find_model_faults(folder)[0]
        or "header requires" in find_model_faults(folder)[0]
    )


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_an_adapter_beside_a_whole_model_is_a_fault(tmp_path: Path, name: str) -> None:
    """Which of the two is meant nobody can know; transformers loads the adapter's base."""
    folder = _adapter(tmp_path / "lora")
    (folder / name).write_bytes(b"weights")
    [fault] = find_model_faults(folder)
    assert "holds an adapter" in fault and name in fault


def _rewrite_shard(folder: Path) -> None:
    safetensors(folder / "model-00002-of-00003.safetensors", {"layer2.a": (4, 4)})


def _empty_tensor(folder: Path) -> None:
    safetensors(folder / "model-00001-of-00003.safetensors", {"layer1.a": (4, 4), "layer1.b": (0,)})


def _whole_beside_shards(folder: Path) -> None:
    safetensors(folder / "model.safetensors", {"layer1.a": (4, 4)})


def _index_of_another(folder: Path) -> None:
    _whole_beside_shards(folder)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "other"}}')


def _damaged_beside_shards(folder: Path) -> None:
    """It is what transformers loads. The index names it, so that there is no other fault."""
    (folder / "model.safetensors").write_bytes(b"")
    index = '{"weight_map": {"layer1.a": "model.safetensors"}}'
    (folder / "model.safetensors.index.json").write_text(index)


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (
            lambda f: (f / "model-00002-of-00003.safetensors").unlink(),
            "model-00002-of-00003.safetensors is missing",
        ),
        (lambda f: cut(f / "model-00003-of-00003.safetensors", 0.9), "but its header requires"),
        (lambda f: cut(f / "model-00003-of-00003.safetensors", 0.1), "has a truncated header"),
        (
            lambda f: (f / "model-00001-of-00003.safetensors").write_bytes(b""),
            "has a truncated header",
        ),
        (_rewrite_shard, "lacks 1 of 2 tensors (layer2.b"),
        (_empty_tensor, "1 empty tensors (layer1.b"),
        (
            lambda f: cut(f / "model.safetensors.index.json"),
            "model.safetensors.index.json is unreadable",
        ),
        (lambda f: (f / "config.json").unlink(), "config.json is missing"),
        (lambda f: (f / "config.json").write_text("{"), "config.json is unreadable"),
        (lambda f: (f / "tokenizer.json").unlink(), "the tokenizer is missing"),
        (_whole_beside_shards, "model.safetensors lies beside model.safetensors.index.json"),
        (_index_of_another, "model.safetensors lies beside model.safetensors.index.json"),
        (_damaged_beside_shards, "model.safetensors has a truncated header"),
        (lambda f: cut(f / "tokenizer.json"), "tokenizer.json is unreadable"),
    ],
)
def test_each_damage_is_reported(
    tmp_path: Path, damage: Callable[[Path], object], fault: str
) -> None:
    folder = model(tmp_path / "model", shards=3)
    damage(folder)
    faults = find_model_faults(folder)
    assert len(faults) == 1
    assert fault in faults[0]


def test_no_weights_at_all(tmp_path: Path) -> None:
    folder = model(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    assert find_model_faults(folder) == ["the weights are missing"]
    torch_file(folder / "pytorch_model.bin")
    assert find_model_faults(folder) == []


def test_the_output_of_other_trainers(tmp_path: Path) -> None:
    model(tmp_path / "exp__1" / "hf_model")
    assert find_output_faults(tmp_path, "**/hf_model/config.json") == []
    assert find_output_faults(tmp_path, "step*") == ["step* is missing"]
    (tmp_path / "exp__1" / "hf_model" / "model.safetensors").unlink()
    assert find_output_faults(tmp_path, "**/hf_model/config.json") == [
        "hf_model: the weights are missing"
    ]


def test_what_torch_and_safetensors_write_is_complete(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    save_file(
        {"a": torch.zeros(3, 5), "b": torch.ones(2, dtype=torch.bfloat16)},
        tmp_path / "m.safetensors",
    )
    assert read_safetensors_header(tmp_path / "m.safetensors") == {"a": (3, 5), "b": (2,)}
    path = tmp_path / "state.pt"
    torch.save({"x": torch.arange(5000)}, path)
    check_torch_file(path)
    for fraction in (0.99, 0.5, 0.001):
        with pytest.raises(BrokenFileError, match=r"state\.pt"):
            check_torch_file(cut(path, fraction))


def test_an_inconsistent_header_is_broken(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    for header in ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}, {"a": 5}, [1]):
        text = json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text)
        with pytest.raises(BrokenFileError):
            read_safetensors_header(path)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ({"a": [1.0, 2.0], "b": [3.0]}, None),
        ({"a": [1.0, 2.0]}, None),  # the other tensor is nowhere to compare with
        ({"a": [1.0, 2.5], "b": [3.0]}, "a"),
        ({"b": [4.0], "a": [1.0, 2.0]}, "b"),
        ({"a": [1.0, 2.0, 3.0]}, None),  # of another shape
        ({"c": [9.0]}, None),
    ],
)
def test_tensors_of_the_same_name_are_compared_byte_for_byte(
    tmp_path: Path, content: dict[str, list[float]], found: str | None
) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    for name, values in (("one", {"a": [1.0, 2.0], "b": [3.0]}), ("two", content)):
        (tmp_path / name).mkdir()
        tensors = {key: torch.tensor(numbers) for key, numbers in values.items()}
        save_file(tensors, tmp_path / name / "model.safetensors")
    assert find_other_tensor(tmp_path / "one", tmp_path / "two") == found
