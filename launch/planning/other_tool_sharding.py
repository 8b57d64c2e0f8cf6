"""Translates how another tool shards the model: DeepSpeed's ZeRO stage, and offloading."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launch.config.other_tools import known_names
from launch.planning.other_tool_values import Translation

_FILES = ("deepspeed", "deepspeed_config", "deepspeed_config_file")
_STAGES = ("zero_stage", "zero", "zero_optimization_stage")


def translate_sharding(t: Translation) -> None:
    """Replace DeepSpeed's settings by one setting with the ZeRO stage, and `_offload` after it.

    The settings are on the line, in the file, or in DeepSpeed's JSON file. The table of other
    tools' names has the override for the result.
    """
    offloads = any(_is_on(t.take(name)) for name in sorted(known_names("offloading")))
    named = t.take(*_FILES)
    stage = t.take(*_STAGES)
    zero = _read_zero(named, t.file)
    if zero:
        devices = [_device_of(zero.get(key)) for key in ("offload_optimizer", "offload_param")]
        offloads = offloads or any(_is_on(device) for device in devices)
        text = f"zero{zero.get('stage', 0)}"
    elif stage is not None:
        text = str(stage)
    elif named is not None:
        text = "deepspeed" if named is True else str(named)
    else:
        text = "zero3" if offloads else ""
    if str(named).endswith(".json") and not zero:
        t.differences.append(f"{named} is not read here: what its name says is taken of it")
    if offloads and "offload" not in text:
        text = _offload(t, text)
    if text:
        t.settings["deepspeed"] = text


def _offload(t: Translation, text: str) -> str:
    """Return a ZeRO stage with offloading, which launch has for ZeRO-3 alone."""
    stage = re.search(r"[012]", text)
    if stage is None:
        return "zero3_offload"
    t.differences.append(
        "offloading: parallel=zero3_offload alone keeps optimizer and weights in the CPU's memory; "
        f"zero{stage[0]} keeps them on the GPUs"
    )
    return text


def _read_zero(named: Any, file: Path) -> Mapping[str, Any]:
    """Return `zero_optimization` of DeepSpeed's settings, which may be inline or in a JSON file; {}
    for the name of a stage.
    """
    folders = (Path(), *file.absolute().parents[:4])
    content: Any = named
    if isinstance(named, str) and named.endswith(".json"):
        content = next(filter(None, (_read_json(folder / named) for folder in folders)), None)
    zero = content.get("zero_optimization") if isinstance(content, Mapping) else None
    return zero if isinstance(zero, Mapping) else {}


def _read_json(path: Path) -> Any:
    """Return the content of a JSON file; None if it cannot be read."""
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None


def _device_of(offload: Any) -> str | None:
    """Return the device that an entry of DeepSpeed's JSON offloads to; None without one."""
    return str(offload.get("device", "none")) if isinstance(offload, dict) else None


def _is_on(value: Any) -> bool:
    return value is not None and str(value).lower() not in ("false", "none", "0", "no")
