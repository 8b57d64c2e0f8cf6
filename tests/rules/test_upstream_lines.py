"""The lines of upstream that the rows of the table come from. A row whose line is gone can't be
relied on: it is read again at the pin, and corrected or removed.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from launch.rules.table import table
from launch.upstream.trainers import OPEN_INSTRUCT
from tests.upstream.checkouts import checkout

LINES = sorted({line for rule in table() for line in rule.upstream.items()})


def folder_of(package: str) -> Path | None:
    """Return the folder that contains a package: open-instruct's checkout, or site-packages."""
    if package in ("open_instruct", "scripts"):
        return checkout()
    spec = importlib.util.find_spec(package)
    return Path(str(spec.origin)).parents[1] if spec and spec.origin else None


@pytest.mark.parametrize(("place", "text"), LINES)
def test_a_line_of_upstream_is_where_a_row_says(place: str, text: str) -> None:
    file, _, number = place.rpartition(":")
    folder = folder_of(file.partition("/")[0])
    if folder is None:
        pytest.skip(f"{file} is not on this machine")
    lines = (folder / file).read_text(encoding="utf-8").splitlines()
    line = lines[int(number) - 1] if int(number) <= len(lines) else ""
    others = [index for index, other in enumerate(lines, 1) if text in other]
    assert text in line, f"{place} is {line.strip()!r}; {text!r} is at {others or 'no line'}"


def test_a_row_about_what_a_trainer_does_has_a_line() -> None:
    about_upstream = (rule for rule in table() if rule.trainers and rule.id not in OF_LAUNCH)
    without = {(rule.id, rule.flag) for rule in about_upstream if not rule.upstream}
    assert without - REFUSED_BY_LAUNCH == set()


# What launch itself does; nothing but its absence is upstream of a flag's neglect.
OF_LAUNCH = (
    "flash_needs_gpu",
    "ignored_flag",
    "lora_init_splits_weights",
    "packing_flag",
    "server_gpus_unused",
    "vllm_correction",
)
# Flags that work upstream, and that a recipe key or a parallel mode of launch stands for.
REFUSED_BY_LAUNCH = {
    ("refused_flag", flag)
    for flag in (
        "deepspeed",
        "fsdp",
        "fsdp_config",
        "generation_batch_size",
        "reward_funcs",
        "reward_model_name_or_path",
        "reward_weights",
        "steps_per_generation",
        "use_vllm",
    )
}


IGNORED = sorted(
    {
        (rule.flag, trainer)
        for rule in table()
        if rule.id == "ignored_flag" and rule.flag
        for trainer in rule.trainers
        if trainer in OPEN_INSTRUCT
    }
)


def test_an_ignored_flag_is_read_nowhere_in_the_script_of_its_trainer() -> None:
    folder = checkout()
    if folder is None:
        pytest.skip("needs an open-instruct checkout")
    assert len(IGNORED) > 100
    read = []
    for flag, trainer in IGNORED:
        text = (folder / OPEN_INSTRUCT[trainer]).read_text(encoding="utf-8")
        if re.search(rf"\bargs\.(?:\w+\.)?{flag}\b(?! = )", text):
            read.append((flag, trainer))
    assert read == []
