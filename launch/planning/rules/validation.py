"""The rules of evaluations while a stage trains: there is data for them, they come before the end, and
the best checkpoint is kept.
"""

from __future__ import annotations

from collections.abc import Iterator

from launch.planning.rules.plan_rule import SettingsCase, plan_rule
from launch.planning.validation import KEY
from launch.rules.code import failed
from launch.worker.finding import Finding, Fix


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
