"""The rules of what is learnt of the rows: some answers of a conversation, or plain text."""

from __future__ import annotations

from collections.abc import Iterator

from launch.config.kinds import DataFormat, Kind
from launch.config.recipe_keys import Packing
from launch.config.schema import TrainOn
from launch.planning.learnt import FORMAT, TRAIN_ON, key_of_learning, requested_learning
from launch.planning.rules.plan_rule import FlagsCase, SettingsCase, plan_rule
from launch.rules.code import failed
from launch.worker.finding import Finding, Fix
from launch.worker.trl_options import LEARNS_TEXT

_TRL = "trainer=trl_sft"  # which can learn all that the keys name


@plan_rule("learning_unsupported")
def trainer_learns_what_is_requested(case: SettingsCase) -> Iterator[Finding]:
    """A trainer learns all answers unless it has a way to learn less, or plain text; pairs and prompts
    have one answer to learn.
    """
    requested = requested_learning(case.config)
    if requested is None:
        return
    trainer = case.config.trainer
    kind = case.config.stage.kind
    key = key_of_learning(case.config)
    if kind != Kind.sft:
        message = f"{key}={requested} is for SFT, and a {kind} stage does not learn all answers"
        if requested == LEARNS_TEXT:
            message = f"{key}={requested} is for SFT: a {kind} stage can't learn plain text"
        yield failed(message, Fix.of("remove {0}", f"~{key}"), case.locate(key))
    elif requested not in trainer.learns:
        reason = trainer.unsupported_because.get(requested, "its YAML does not define it")
        message = f"{trainer.name} does not support {key}={requested}: {reason}"
        cure = Fix.of("train with TRL ({0}), or remove {1}", _TRL, f"~{key}")
        yield failed(message, cure, case.locate(key))


@plan_rule("text_has_no_turns")
def text_is_learnt_as_a_whole(case: SettingsCase) -> Iterator[Finding]:
    """Plain text has no answers of which some could be learnt."""
    data = case.config.data
    if data.format == DataFormat.text and data.train_on != TrainOn.all:
        message = f"{TRAIN_ON}={data.train_on} chooses answers, and plain text has none"
        yield failed(message, Fix.of("remove {0}", f"~{TRAIN_ON}"), case.locate(TRAIN_ON))


@plan_rule("text_cut", allow=True)
def text_is_packed(case: SettingsCase) -> Iterator[Finding]:
    """Without packing, what is longer than a sequence is cut off, which is most of a long document."""
    if case.config.data.format != DataFormat.text or case.config.recipe.packing == Packing.bins:
        return
    limit = case.config.recipe.max_seq_length
    message = (
        f"recipe.packing={case.config.recipe.packing} cuts each text off after {limit:,} tokens, "
        "and what follows is not learnt"
    )
    cure = Fix.of("set {0}, or {1}", "recipe.packing=bins", "allow=[text_cut]")
    yield failed(message, cure, case.locate("recipe.packing"))


@plan_rule("marks_not_read")
def marked_rows_are_local(case: FlagsCase) -> Iterator[Finding]:
    """The marks of turns are read where local rows are converted; a trainer reads hub data as it is."""
    if case.config.data.train_on != TrainOn.marked:
        return
    for entry in case.inputs.mixture:
        if entry.data is None:
            message = f"{TRAIN_ON}=marked reads the marks of local rows, and {entry.source.reference} is not local"
            cure = "download the data set and name its files in data.mix"
            if entry.source.build:
                message = f"{TRAIN_ON}=marked: the rows of {entry.source.build} have no marks"
                cure = "name rows of your own in data.mix"
            yield failed(message, cure, case.origins.of(TRAIN_ON).where)


@plan_rule("text_of_other_format")
def built_data_is_no_text(case: FlagsCase) -> Iterator[Finding]:
    """The demo's data are conversations, which can't be learnt as plain text."""
    if case.config.data.format != DataFormat.text:
        return
    for entry in case.inputs.mixture:
        if entry.source.build:
            message = f"{FORMAT}=text: {entry.source.build} are conversations"
            cure = "name rows of your own in data.mix"
            yield failed(message, cure, case.origins.of(FORMAT).where)
