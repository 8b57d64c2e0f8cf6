"""The trainers in the lock: their names and scripts, and the flags that a trainer's YAML names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import PurePosixPath
from typing import Any

from launch.errors import did_you_mean, refusal
from launch.resources import CONFIGS
from launch.worker.moves import UPSTREAM_NAMES, known_path, path_at_pin

OPEN_INSTRUCT = {
    name: path_at_pin(f"open_instruct/{name}.py")
    for name in (
        "finetune",
        "dpo_tune_cache",
        "dpo",
        "olmo_core_finetune",
        "reward_modeling",
        "grpo_fast",
        "grpo",
    )
}
TRL = {
    "trl_sft": "trl.scripts.sft",
    "trl_dpo": "trl.scripts.dpo",
    "trl_kto": "trl.scripts.kto",
    "trl_grpo": "trl.scripts.grpo",
}
ENTRIES = {**OPEN_INSTRUCT, **TRL}
# The trainers over OLMo-core.
OLMO_CORE_DPO = "dpo"
OLMO_CORE_SFT = "olmo_core_finetune"


def trainer_name(script: str) -> str | None:
    """Map a trainer's name, script path or module name to the trainer's name; None for anything
    else.

    For example, both `open_instruct/finetune.py` and `open_instruct.finetune` are `finetune`, and
    `trl.scripts.sft` is `trl_sft`.
    """
    if script in ENTRIES:
        return script
    by_new_name = PurePosixPath(known_path(f"open_instruct/{script}.py")).stem
    if by_new_name in OPEN_INSTRUCT:  # what upstream calls it since it has moved
        return by_new_name
    for name, entry in ENTRIES.items():
        paths = {entry, known_path(entry)}
        if script in paths | {path.removesuffix(".py").replace("/", ".") for path in paths}:
            return name
    path = PurePosixPath(script.replace("\\", "/"))
    if path.suffix != ".py":
        return None
    if path.parts[-3:-1] == ("trl", "scripts"):
        name = f"trl_{path.stem}"
        return name if name in TRL else None
    stem = PurePosixPath(known_path(f"open_instruct/{path.name}")).stem
    return stem if stem in OPEN_INSTRUCT else None


def parse_trainer(script: str) -> str:
    """Return `trainer_name`. Raises UserError: unknown_trainer."""
    name = UPSTREAM_NAMES.get(script) or trainer_name(script)
    if name is None:
        cure = did_you_mean(script, ENTRIES) or f"use one of {', '.join(ENTRIES)}"
        raise refusal("unknown_trainer", f"unknown trainer '{script}'", cure=cure)
    return name


@cache
def trainer_files() -> dict[str, dict[str, Any]]:
    """Return the content of each shipped trainer's YAML file, by the trainer's name.

    A file that is not a map is skipped.
    """
    # slow to import; only lint and a refusal need it
    from launch.config.yaml_nodes import load_yaml

    files = sorted((CONFIGS / "trainer").glob("*.yaml"))
    contents = {path.stem: load_yaml(path.read_text(encoding="utf-8")) for path in files}
    return {name: content for name, content in contents.items() if isinstance(content, dict)}


# the sections of a trainer's YAML that set flags, and how many levels of keys are above these
_LEVELS = {"launch": 2, "tracking": 1, "lora_flags": 1}
_LEVELS |= dict.fromkeys(("push", "flags", "cpu_flags", "validation_flags"), 0)


def flags_named_in(trainer: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, ...], Any]]:
    """Yield every flag that a trainer's YAML names: its name, the path of its key, and the value
    that is set there.

    The value is None where the run sets it.
    """
    for section, levels in _LEVELS.items():
        yield from _flags_below(trainer.get(section), (section,), levels)


def _flags_below(
    node: Any, path: tuple[str, ...], levels: int
) -> Iterator[tuple[str, tuple[str, ...], Any]]:
    if isinstance(node, str):  # `output: output_dir`
        yield node, path, None
    elif isinstance(node, Mapping):
        for key, value in node.items():
            if levels:
                yield from _flags_below(value, (*path, key), levels - 1)
            else:
                yield key, (*path, key), value
