"""The settings of an evaluation while training: what is held out, when it is measured, and when the run stops early."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from launch.config.origins import Origins
from launch.config.schema import Family, RootConfig
from launch.errors import Problem, UserError
from launch.planning.flags import Flag
from launch.planning.inputs import MixtureEntry

_KEY = "data.validation"


def check_validation(config: RootConfig, origins: Origins) -> None:
    """Check data.validation, recipe.eval_steps and recipe.early_stop.

    Raises UserError: validation_unsupported, bad_validation, no_validation, eval_never, early_stop_checkpoints.
    """
    problems = _data_problems(config, origins) or [
        *_schedule_problems(config, origins),
        *_early_stop_problems(config, origins),
    ]
    if problems:
        raise UserError(problems)


def check_evaluation(config: RootConfig, flags: Mapping[str, Flag], mixture: Sequence[MixtureEntry]) -> None:
    """Check that TRL finds the data which a flag has it evaluate on (trl/scripts/sft.py:107, trl/scripts/dpo.py:105).

    Local data has no other split than that to train on and the one that data.validation makes.

    Raises UserError: no_validation.
    """
    if config.trainer.family != Family.trl:
        return
    strategy, at_start = flags.get("eval_strategy"), flags.get("eval_on_start")
    if strategy is not None and str(strategy.value) != "no":
        name, flag, entry = "eval_strategy", strategy, mixture[0]
        split = flags["dataset_test_split"].value if "dataset_test_split" in flags else "test"
        here = [entry.split] if config.data.validation is None else [entry.split, "validation"]
        why = f"evaluates on the split '{split}', and the data has only {' and '.join(here)}"
        if split in here or not entry.source.local:
            return
    elif at_start is not None and str(at_start.value).lower() == "true":
        name, flag, why = "eval_on_start", at_start, "evaluates, and has no data for it"
    else:
        return
    value = str(flag.value).lower()
    message = f"with flags.{name}={value} {config.trainer.name} {why}"
    raise UserError(Problem("no_validation", message, flag.provenance.where, f"set {_KEY}=0.02 or to a file"))


def validation_warnings(config: RootConfig) -> tuple[Problem, ...]:
    """Return the warning best_not_saved where it applies: an evaluation at a step without a checkpoint."""
    evaluated, saved = config.recipe.eval_steps, config.recipe.checkpoint_steps
    if config.data.validation is None or evaluated is None or saved is None or evaluated % saved == 0:
        return ()
    message = f"recipe.eval_steps={evaluated} evaluates between checkpoints, so the best one may not be saved"
    cure = f"set recipe.eval_steps to a multiple of recipe.checkpoint_steps ({saved})"
    return (Problem("best_not_saved", message, "recipe.eval_steps", cure),)


def describe_schedule(config: RootConfig) -> str | None:
    """Describe what is held out and when the trainer evaluates on it; None without validation data."""
    value, recipe = config.data.validation, config.recipe
    if value is None:
        return None
    held_out = f"{value:.4g} of the rows" if isinstance(value, float) else str(value)
    evaluated = f"every {recipe.eval_steps} steps and at the end" if recipe.eval_steps else "at the end"
    stop = f"; stops after {recipe.early_stop} without a lower loss" if recipe.early_stop else ""
    return f"{held_out}, evaluated {evaluated}{stop}"


def _data_problems(config: RootConfig, origins: Origins) -> list[Problem]:
    value, trainer, where = config.data.validation, config.trainer, origins.of(_KEY).where
    if value is None:
        return []
    if not trainer.validation_flags:
        message = f"{trainer.name} does not evaluate while it trains: {trainer.why['validation']}"
        cure = f"remove {_KEY} and score the finished model with `launch eval`, or train with TRL (trl_sft, trl_dpo)"
        return [Problem("validation_unsupported", message, where, cure)]
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if (is_number and 0 < value < 1) or (isinstance(value, str) and value):
        return []
    wanted = "must be above 0 and below 1" if is_number else "must be a fraction of the rows or a path"
    return [Problem("bad_validation", f"{_KEY} {wanted}, got {value!r}", where, f"for example {_KEY}=0.02")]


def _schedule_problems(config: RootConfig, origins: Origins) -> list[Problem]:
    recipe, problems = config.recipe, []
    for key in ("eval_steps", "early_stop"):
        value = getattr(recipe, key)
        # for other trainers the recipe key itself is refused
        if value is not None and config.data.validation is None and config.trainer.validation_flags:
            message = f"recipe.{key}={value} needs validation data"
            cure = f"set {_KEY}=0.02 or to a file, or remove recipe.{key}"
            problems.append(Problem("no_validation", message, origins.of(f"recipe.{key}").where, cure))
    if recipe.eval_steps and recipe.max_steps and recipe.eval_steps > recipe.max_steps:
        message = f"recipe.eval_steps={recipe.eval_steps} is more than recipe.max_steps={recipe.max_steps}"
        cure = "set fewer; null evaluates at the end only"
        problems.append(Problem("eval_never", message, origins.of("recipe.eval_steps").where, cure))
    return problems


def _early_stop_problems(config: RootConfig, origins: Origins) -> list[Problem]:
    """Check that every evaluation has a checkpoint: the best one becomes the model (transformers loads it at the end,
    and asks for the same of --save_steps and --eval_steps, training_args.py:1749-1775)."""
    recipe, where = config.recipe, origins.of("recipe.early_stop").where
    if recipe.early_stop is None or config.data.validation is None:
        return []
    needs = f"recipe.early_stop={recipe.early_stop} keeps the best checkpoint, so it needs"
    if recipe.eval_steps is None:
        steps = recipe.checkpoint_steps or 100
        cure = f"set recipe.eval_steps={steps} recipe.checkpoint_steps={steps}"
        return [Problem("early_stop_checkpoints", f"{needs} recipe.eval_steps", where, cure)]
    if recipe.checkpoint_steps != recipe.eval_steps:
        saved = "null" if recipe.checkpoint_steps is None else recipe.checkpoint_steps
        message = f"{needs} one at each evaluation: recipe.checkpoint_steps is {saved}, eval_steps {recipe.eval_steps}"
        cure = f"set recipe.checkpoint_steps={recipe.eval_steps}"
        return [Problem("early_stop_checkpoints", message, where, cure)]
    return []
