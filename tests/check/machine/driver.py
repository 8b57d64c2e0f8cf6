"""A program that answers like nvidia-smi, and what a rule finds, by its id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from launch.check.machine.rule import Host
from launch.check.machine.rules import RULES
from launch.planning.plan import Plan
from launch.worker.finding import Finding

RULE = {rule.id: rule for rule in RULES}
CARD = "{index}, GPU-{index}aaa, NVIDIA H100 80GB HBM3, 81559, {used}, {busy}, 570.86"


def install_driver(
    folder: Path, used: Sequence[int], busy: int = 0, processes: str = "", sleep: str = ""
) -> dict[str, str]:
    """Return the environment of a machine with a card for each of `used`, MiB; `sleep` is run
    before each answer.
    """
    cards = "\n".join(CARD.format(index=i, used=mib, busy=busy) for i, mib in enumerate(used))
    (folder / "cards").write_text(cards + "\n", encoding="utf-8")
    (folder / "processes").write_text(processes, encoding="utf-8")
    program = folder / "nvidia-smi"
    text = (
        f'#!/bin/sh\n{sleep}\ncase "$1" in --query-gpu*) cat {folder}/cards;; *) cat '
        f"{folder}/processes;; esac\n"
    )
    program.write_text(text, encoding="utf-8")
    program.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


def find(id: str, plan: Plan, host: Host) -> Finding:
    """Return what the rule of this id finds, with the id that `check` prints."""
    finding = RULE[id].judge(plan, host)
    return replace(finding, id=finding.id or id)
