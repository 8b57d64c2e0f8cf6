"""The rules of evaluations while a stage trains: there is data for them, they come before the end, and
the best checkpoint is kept.
"""

from __future__ import annotations

from collections.abc import Iterator

from launch.config.kinds import KINDS, Kind
from launch.data.sources import DataFiles
from launch.planning.mixture import MixtureEntry
from launch.planning.rules.plan_rule import SettingsCase, plan_rule
from launch.planning.validation import KEY
from launch.rules.code import failed
from launch.worker.finding import Finding, Fix


@plan_rule("validation_unsupported")
def trainer_evaluates(case: SettingsCase) -> Iterator[Finding]:
    """A trainer that does not evaluate splits nothing off the data that it reads itself. Of local
    rows, what is held out is kept for `launch eval`, unless it was meant for curves of its own.
    """
    validation = case.config.data.validation
    trainer = case.config.trainer
    kind = case.config.stage.kind
    if validation is None or trainer.validation_flags:
        return
    trl_evaluates = KINDS[kind].evaluates
    # `launch eval` asks the held-out prompts of RLVR
    uses_held_out = (trl_evaluates or kind == Kind.rlvr) and not isinstance(validation, list)
    if uses_held_out and not _held_out_of_unstaged(case):
        return
    reason = trainer.unsupported_because.get("validation", "its file has no validation_flags")
    message = f"{trainer.name} does not evaluate while it trains: {reason}"
    sentence = "remove {0} and score the finished model with {1}"
    if trl_evaluates:
        sentence += ", or train with TRL ({2})"
    cure = Fix.of(sentence, f"~{KEY}", "$ launch eval", f"trainer={KINDS[kind].trainer}")
    yield failed(message, cure, case.locate(KEY))


def _held_out_of_unstaged(case: SettingsCase) -> list[MixtureEntry]:
    """Return the data sets that are not staged and that rows are to be held out of."""
    has_sets = isinstance(case.config.data.validation, list)
    unstaged = [entry for entry in case.mixture if entry.data is None]
    return [entry for entry in unstaged if entry.held_out is not None or not has_sets]


@plan_rule("validation_needs_local")
def held_out_rows_are_found(case: SettingsCase) -> Iterator[Finding]:
    """Files are held out beside converted rows; what the trainer's process reads, it splits by a share
    alone. Rows of a missing file are on no machine.
    """
    validation = case.config.data.validation
    unstaged = _held_out_of_unstaged(case)
    if validation is None or not unstaged or not case.config.trainer.validation_flags:
        return
    source = unstaged[0].source
    if source.local and not source.build:
        message = f"{KEY} is split off {source.reference}, which does not exist here"
        yield Finding.error("data_no_files", message, source.provenance.where)
    elif isinstance(validation, str):
        message = f"{KEY}={validation} needs local training data, and {source.reference} is not"
        cure = Fix.of(
            "set {0} to hold out a share, or download the data set and name its files in data.mix",
            f"{KEY}=0.02",
        )
        yield failed(message, cure, case.locate(KEY))


@plan_rule("validation_trained")
def validation_files_are_not_trained_on(case: SettingsCase) -> Iterator[Finding]:
    """The loss on rows that are trained on means little. Equal rows of other files are counted when
    they are staged.
    """
    for entry in case.mixture:
        if entry.data is None or not isinstance(entry.data.validation, DataFiles):
            continue
        shared = set(entry.data.files.paths) & set(entry.data.validation.paths)
        if shared:
            message = f"{min(shared)} is also in data.mix: its rows would be trained on"
            cure = "name the training files without it"
            yield failed(message, cure, case.locate(KEY))


@plan_rule("no_validation")
def evaluations_have_data(case: SettingsCase) -> Iterator[Finding]:
    """recipe.eval_steps and recipe.early_stop do nothing without validation data."""
    config = case.config
    # the recipe key itself is refused for a trainer that does not evaluate
    if config.data.validation is not None or not config.trainer.validation_flags:
        return
    for key in ("eval_steps", "early_stop"):
        value = getattr(config.recipe, key)
        if value is not None:
            message = f"recipe.{key}={value} needs validation data"
            cure = Fix.of("set {0} or to a file, or remove {1}", f"{KEY}=0.02", f"~recipe.{key}")
            yield failed(message, cure, case.locate(f"recipe.{key}"))


@plan_rule("eval_never")
def evaluations_come_before_the_end(case: SettingsCase) -> Iterator[Finding]:
    """An evaluation after the last step never happens."""
    recipe = case.config.recipe
    if not recipe.eval_steps or not recipe.max_steps or recipe.eval_steps <= recipe.max_steps:
        return
    message = (
        f"recipe.eval_steps={recipe.eval_steps} is more than recipe.max_steps={recipe.max_steps}"
    )
    cure = Fix.of("set fewer; null evaluates at the end only", "recipe.eval_steps=null")
    yield failed(message, cure, case.locate("recipe.eval_steps"))


@plan_rule("early_stop_checkpoints")
def best_checkpoint_is_saved(case: SettingsCase) -> Iterator[Finding]:
    """With recipe.early_stop the best checkpoint becomes the model, so that every evaluation needs one.

    Transformers loads it at the end, and requires the same of --save_steps and --eval_steps
    (training_args.py:1749-1775).
    """
    recipe = case.config.recipe
    if recipe.early_stop is None or case.config.data.validation is None:
        return
    where = case.locate("recipe.early_stop")
    needs = f"recipe.early_stop={recipe.early_stop} keeps the best checkpoint, so it needs"
    if recipe.eval_steps is None:
        steps = recipe.checkpoint_steps or 100
        cure = Fix.of("set {0}", f"recipe.eval_steps={steps} recipe.checkpoint_steps={steps}")
        yield failed(f"{needs} recipe.eval_steps", cure, where)
    elif recipe.checkpoint_steps != recipe.eval_steps:
        saved = "null" if recipe.checkpoint_steps is None else recipe.checkpoint_steps
        message = (
            f"{needs} one at each evaluation: recipe.checkpoint_steps is {saved}, eval_steps "
            f"{recipe.eval_steps}"
        )
        cure = Fix.of("set {0}", f"recipe.checkpoint_steps={recipe.eval_steps}")
        yield failed(message, cure, where)
