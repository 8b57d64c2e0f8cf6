"""Warnings that need more than the command: a file of the checkout, a value that is unknown."""

from __future__ import annotations

from launch.check.lint.cautions import GivenFlags, find_cautions
from launch.check.lint.trainers import TrainerScript
from launch.upstream.reader.registries import REGISTRIES_FILE
from launch.upstream.rules.conversion import UNKNOWN

TEMPLATES = 'CHAT_TEMPLATES = {"tulu": "", "zephyr": ""}\n'


def kinds(values: dict[str, object], source: str | None = TEMPLATES) -> list[str]:
    given = GivenFlags(
        TrainerScript("finetune", "open_instruct/finetune.py"), {"logging_steps": 1, **values}, True, {}.get
    )
    if source is not None:
        given = GivenFlags(given.trainer, given.values, True, {REGISTRIES_FILE: source}.get)
    return [caution.id for caution in find_cautions(given)]


def test_a_template_that_the_checkout_lacks() -> None:
    assert kinds({"chat_template_name": "tulo"}) == ["unknown_chat_template"]
    assert kinds({"chat_template_name": "tulu"}) == []
    assert kinds({"chat_template_name": "tulo"}, None) == [], "without a checkout nothing is known"
    assert kinds({"chat_template_name": UNKNOWN}) == [], "a shell variable"
