"""Warnings that need more than the command: a file of the checkout, a value that is unknown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from launch.check.lint.cautions import GivenFlags, find_cautions
from launch.check.lint.trainers import TrainerScript
from launch.upstream.rules.conversion import UNKNOWN

NAMES = {"chat_template_name": ("tulu", "zephyr")}


def kinds(values: dict[str, object], names: Mapping[str, Sequence[str]] = NAMES) -> list[str]:
    trainer = TrainerScript("finetune", "open_instruct/finetune.py")
    given = GivenFlags(trainer, {"logging_steps": 1, **values}, True, names)
    return [caution.id for caution in find_cautions(given)]


def test_a_template_that_the_checkout_lacks() -> None:
    assert kinds({"chat_template_name": "tulo"}) == ["unknown_chat_template"]
    assert kinds({"chat_template_name": "tulu"}) == []
    assert kinds({"chat_template_name": "tulo"}, {}) == [], "without a checkout nothing is known"
    assert kinds({"chat_template_name": UNKNOWN}) == [], "a shell variable"
