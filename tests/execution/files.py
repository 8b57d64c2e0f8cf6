"""Small files of the kinds that trainers write, made without torch."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path


def safetensors(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> Path:
    """A safetensors file of float32 zeros."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        size = 4
        for length in shape:
            size *= length
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(end))
    return path


def torch_file(path: Path) -> Path:
    """A zip archive as torch.save writes one."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{path.stem}/data.pkl", b"\x80\x02}q\x00." * 20)
        archive.writestr(f"{path.stem}/data/0", bytes(2000))
    return path


def cut(path: Path, fraction: float = 0.5) -> Path:
    """Truncate a file, as an interrupted write does."""
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * fraction)])
    return path


def model(folder: Path, shards: int = 1) -> Path:
    """A model folder: configuration, tokenizer, weights in `shards` files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_text("{}")
    if shards == 1:
        safetensors(folder / "model.safetensors", {"embed": (8, 4), "head": (8, 4)})
        return folder
    weight_map = {}
    for number in range(1, shards + 1):
        shard = f"model-{number:05}-of-{shards:05}.safetensors"
        names = {f"layer{number}.a": (4, 4), f"layer{number}.b": (4,)}
        safetensors(folder / shard, names)
        weight_map |= dict.fromkeys(names, shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def saved_state(folder: Path, ranks: int = 1, zero_stage: int | None = None) -> Path:
    """The files of accelerate's save_state."""
    folder.mkdir(parents=True)
    for rank in range(ranks):
        torch_file(folder / f"random_states_{rank}.pkl")
    torch_file(folder / "scheduler.bin")
    if zero_stage is None:
        torch_file(folder / "optimizer.bin")
        safetensors(folder / "model.safetensors", {"w": (4, 4)})
    else:
        deepspeed(folder, "pytorch_model", ranks, zero_stage)
    return folder


def deepspeed(folder: Path, tag: str, ranks: int, zero_stage: int) -> None:
    (folder / tag).mkdir(parents=True)
    (folder / "latest").write_text(tag)
    for rank in range(ranks):
        torch_file(folder / tag / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
        if zero_stage == 3:
            torch_file(folder / tag / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
    if zero_stage != 3:
        torch_file(folder / tag / "mp_rank_00_model_states.pt")


def trl_checkpoint(folder: Path, step: int, ranks: int = 1, zero_stage: int | None = None) -> Path:
    """The files of transformers' Trainer."""
    model(folder)
    names = ["rng_state.pth"] if ranks == 1 else [f"rng_state_{rank}.pth" for rank in range(ranks)]
    names.append("scheduler.pt")
    if zero_stage is None:
        names.append("optimizer.pt")
    else:
        deepspeed(folder, f"global_step{step}", ranks, zero_stage)
    for name in names:
        torch_file(folder / name)
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return folder
