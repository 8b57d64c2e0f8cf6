"""Which models OLMo-core's trainers can build: those of upstream's own table, and any with the preset of its shape."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

from launch.errors import Problem, UserError, did_you_mean
from launch.planning.flags import Flag
from launch.planning.packing import SFT, TRAINER

_FILE = "open_instruct/olmo_core_utils.py"
_TABLE = "OLMO_MODEL_CONFIG_MAP"  # hub id -> preset (olmo_core_utils.py:367-385)


def refuse_model(trainer: str, flags: Mapping[str, Flag], checkout: Path | None) -> None:
    """Raises UserError (`no_olmo_preset`) for a model that upstream builds for none of its presets, which it says when
    the data is tokenised and the ranks have met (olmo_core_utils.py:410). Says nothing without a checkout."""
    if trainer not in (TRAINER, SFT) or checkout is None:
        return
    if "config_name" in flags and flags["config_name"].value:
        return
    model = flags["model_name_or_path"]
    known = _presets(checkout / _FILE)
    if not known or str(model.value) in known:
        return
    near = did_you_mean(str(model.value), sorted(known))
    families = "OLMo-2, Olmo-3, OLMoE and Qwen3"
    message = f"{trainer} builds {families} and has no preset for {model.value}"
    cure = f"{near + ' ' if near else ''}say model=olmo2_1b, or flags.config_name=PRESET for a model of that shape"
    raise UserError(Problem("no_olmo_preset", message, model.said.where, cure))


def _presets(file: Path) -> dict[str, str]:
    """Upstream's table; empty where it can't be read."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return {}
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == _TABLE:
            try:
                found = ast.literal_eval(node.value) if node.value else {}
            except ValueError:
                return {}
            return found if isinstance(found, dict) else {}
    return {}
