"""Checks the cures of problems: a cure is planned before it is printed, as long as there is time.

A cure that leads back to the same problem, or to one whose own cure reverts it, is dropped. If none
is left, the cure is to remove the override that the problem is about, if that works. The printed
cure may therefore differ from the one that the rule has. A cure whose keys require other settings
includes these settings. Other problems of the same line are reported together with the first.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from launch.config.kinds import KINDS
from launch.config.line import CommandLine, override_key
from launch.errors import UserError, actions_of
from launch.planning.plan import Plan
from launch.resources import GROUPS
from launch.worker.finding import Action, Finding, Fix

CURED_VERBS = ("run", "plan", "check", "submit")  # the verbs whose line can be planned
# A part of a cure that names other trainers, which does not help if the key is to be removed.
_OF_OTHERS = re.compile(r": '\w+' is a flag of .*")
# problems that a line in the words of other tools has
_UNKNOWN_WORD_IDS = frozenset(
    (
        *("unknown_verb", "misplaced_verb", "unknown_option", "not_an_override", "unknown_key"),
        *("several_values", "unreadable_override", "no_stage", "unknown_stage", "unknown_model"),
        *("unknown_data", "other_tool", "no_global_header", "started_as_rank"),
    )
)
# torchtune's commands behind `tune`, each with the word whose answer it gets
_OF_TORCHTUNE = {
    "ls": "ls",
    "cp": "cp",
    "download": "download",
    "cat": "config",
    "validate": "keys",
}
_TYPING_ERROR_IDS = _UNKNOWN_WORD_IDS | {"bad_value"}
_MOST_NEEDED = 3  # further settings that a cure includes because its own keys require them
# The time limit for all of a line's cures; a plan takes 0.1 s, and on a busy machine a second.
_SECONDS = 6.0


def apply_action(action: Action, line: CommandLine) -> CommandLine:
    """Return the line that follows the advice.

    The keys that it sets, and what it removes, are dropped first; an option is dropped with its
    value.
    """
    dropped_keys = changed_keys(action)
    kept: list[str] = []
    follows_dropped_option = False
    for argument in line.argv:
        has_value = "=" in argument
        is_option = argument.startswith("-")
        is_option_value = follows_dropped_option and not has_value and not is_option
        name = argument.partition("=")[0]
        is_dropped = name in dropped_keys or override_key(argument) in dropped_keys
        if not is_dropped and not is_option_value:
            kept.append(argument)
        follows_dropped_option = is_dropped and is_option and not has_value
    return replace(line, argv=(*kept, *action.sets), verb="plan")


def keys_of(action: Action) -> set[str]:
    """Return the keys of the overrides that an action sets."""
    return {override_key(override) for override in action.sets}


def changed_keys(action: Action) -> set[str]:
    """Return the keys and options that an action sets or removes."""
    return keys_of(action) | {action.removes} if action.removes else keys_of(action)


def exact_actions(cure: Fix | None) -> list[Action]:
    """Return the actions of a cure that need no value from the reader."""
    return [action for action in actions_of(cure) if action.is_exact]


def explain_problems(
    argv: Sequence[str], line: CommandLine | None, problems: Sequence[Finding]
) -> list[Finding]:
    """Return what is printed for the problems of a line.

    A line in the words of other tools gets one answer. For any other line, each problem gets a cure
    that works. `line` is None if it could not be parsed.
    """
    is_of_torchtune = tuple(argv[:2]) == ("tune", "run")  # its own command; `tune` is a verb here
    if argv[:1] == ["tune"] and argv[1:2] and argv[1] in _OF_TORCHTUNE:
        from launch.config.other_commands import explain_command

        message = f"'tune {argv[1]}' is a command of torchtune"
        cure = explain_command(_OF_TORCHTUNE[argv[1]], argv[2:])
        return [Finding.error("unknown_verb", message, "command line", cure)]
    is_planned = line is None or line.verb in (*CURED_VERBS, "preview") or is_of_torchtune
    has_stage = line is None or any(override_key(item) == "stage" for item in line.overrides)
    is_foreign = any(problem.id in _UNKNOWN_WORD_IDS for problem in problems) or not has_stage
    if is_planned and is_foreign:
        from launch.planning.other_tool_line import answer_line  # slow; few lines need it

        whole = answer_line(argv)
        if whole is not None:
            return [whole]
    if line is None and argv and argv[0] in CURED_VERBS:
        line = CommandLine(argv[0], False, tuple(argv[1:]))  # an option of it is unknown
    if line is None or line.verb not in CURED_VERBS:
        return list(problems)
    end = time.monotonic() + _SECONDS
    checked = _check(line, problems, end)
    return [*checked, *_find_hidden_problems(line, checked, end)]


def check_cures(line: CommandLine, problems: Sequence[Finding]) -> list[Finding]:
    """Return the problems, each with the part of its cure that works."""
    if line.verb not in CURED_VERBS:
        return list(problems)
    return _check(line, problems, time.monotonic() + _SECONDS)


def _check(line: CommandLine, problems: Sequence[Finding], end: float) -> list[Finding]:
    """Return the problems, each with the part of its cure that works; no cure is tried after `end`
    (time.monotonic).
    """
    if line.sweeps:
        from launch.config.compose import expand_sweep

        line = expand_sweep(line)[0]  # the other settings of a sweep differ only in values
    return [_with_working_cure(line, problem, end) for problem in problems]


def _find_hidden_problems(
    line: CommandLine, problems: Sequence[Finding], end: float
) -> list[Finding]:
    """Return the other problems of a line, each of which shows only once the one before it is
    fixed.

    Only typing errors hide other problems. The search ends at a problem that has several cures or
    none, and at `end` (time.monotonic).
    """
    found: list[Finding] = []
    known = {(problem.id, problem.where) for problem in problems}
    while problems and time.monotonic() < end:
        for problem in problems:
            actions = exact_actions(problem.cure)
            if problem.id not in _TYPING_ERROR_IDS or len(actions) != 1:
                return found
            line = replace(apply_action(actions[0], line), verb=line.verb)
        after = [finding for finding in _find_after(line) if finding.stops]
        if any((problem.id, problem.where) in known for problem in after):
            return found
        known.update((problem.id, problem.where) for problem in after)
        problems = _check(line, after, end)
        found += problems
    return found


def _find_after(line: CommandLine) -> tuple[Finding, ...]:
    """Return the problems that keep a line from being planned, else the warnings of its plan."""
    from launch.config.compose import compose_once
    from launch.slurm.cluster import plan_with_cluster

    try:
        if line.is_pipeline:
            from launch.pipelines.links import plan_pipeline

            plan_pipeline(line, lambda text: None)
            return ()
        return tuple(plan_with_cluster(compose_once(line)).warnings)
    except UserError as error:
        return error.problems


def check_advice(plan: Plan, problems: Sequence[Finding]) -> list[Finding]:
    """Return the findings on a plan, each with the part of its cure that works."""
    return check_cures(CommandLine("plan", False, plan.origins.overrides), problems)


def _with_working_cure(line: CommandLine, problem: Finding, end: float) -> Finding:
    """Return the problem with the actions that work; none is tried after `end` (time.monotonic)."""
    actions = exact_actions(problem.cure)
    obstacles: dict[Action, str | None] = {}
    after: dict[Action, tuple[Finding, ...]] = {}
    for action in actions:
        is_late = time.monotonic() > end
        after[action] = () if is_late else _find_after(apply_action(action, line))
        obstacles[action] = _find_obstacle(after[action], problem, action)
    working = [action for action in actions if obstacles[action] is None]
    if len(working) == len(actions):
        mended = _with_needed_keys(line, _with_first(problem), after)
        return _with_supporting_trainer(line, mended)
    if working:
        parts = []
        for index, action in enumerate(working):
            verb = "set" if action.sets else "remove"
            parts.append(f"{verb} {{{index}}}")
        mended = replace(problem, cure=Fix.of(", or ".join(parts), *working))
        return _with_supporting_trainer(line, mended)
    reason = obstacles[actions[0]]
    with_trainer = _with_trainer(line, actions[0])
    if with_trainer is not None and reason:
        because = f"set {{0}}: {_OF_OTHERS.sub('', reason)}"
        return replace(problem, cure=Fix.of(because, with_trainer))
    return _with_removal(line, problem, actions[0], reason)


def _with_first(problem: Finding) -> Finding:
    """Return a problem with the first of the keys that may replace another tool's one."""
    cure = problem.cure
    if cure is None or len(cure.actions) < 2 or not all(action.removes for action in cure.actions):
        return problem
    sentence = re.sub(r" or \{\d\}", "", cure.sentence)
    return replace(problem, cure=Fix(sentence, cure.actions[:1]))


def _with_trainer(line: CommandLine, action: Action) -> Action | None:
    """Return an action with the trainer that supports what it sets: TRL's for the stage, where the
    line names no trainer; None if that does not plan.
    """
    from launch.config.compose import compose_once

    if not action.sets or line.sets("trainer") or _changes_no_number(action):
        return None
    without = Action(removes=action.removes or override_key(action.sets[0]))
    try:
        kind = compose_once(apply_action(without, line)).config.stage.kind
    except UserError:
        return None
    trainer = KINDS[kind].trainer
    if trainer is None:
        return None
    with_trainer = replace(action, sets=(f"trainer={trainer}", *action.sets))
    after = _find_after(apply_action(with_trainer, line))
    return None if any(finding.stops for finding in after) else with_trainer


def _changes_no_number(action: Action) -> bool:
    """Return whether an action sets a flag that changes no number of the training: the trainer stays."""
    from launch.planning.other_tool_defaults import names_without_counterpart

    names = [key.removeprefix("flags.") for key in keys_of(action) if key.startswith("flags.")]
    patterns = [pattern for pattern, change in names_without_counterpart() if not change]
    return any(pattern.fullmatch(name) for name in names for pattern in patterns)


def _with_supporting_trainer(line: CommandLine, problem: Finding) -> Finding:
    """Return a problem whose trainer does not support a key with the trainer that does, too."""
    key = (problem.where or "").removeprefix("override ")
    given = [item for item in line.overrides if override_key(item) == override_key(key)]
    if problem.id != "unsupported_recipe" or not given:
        return problem
    with_trainer = _with_trainer(line, Action(tuple(given)))
    if with_trainer is None:
        return problem
    number = len(actions_of(problem.cure))
    actions = (*actions_of(problem.cure), Action(with_trainer.sets[:1]))
    sentence = f"{problem.cure.sentence}, or " if problem.cure else "set "
    return replace(problem, cure=Fix(f"{sentence}{{{number}}}", actions))


def _with_needed_keys(
    line: CommandLine, problem: Finding, after: Mapping[Action, Sequence[Finding]]
) -> Finding:
    """Return the problem with actions that also set what their own keys require: a quantization of
    LoRA requires a rank. `after` has what each action's line leads to.
    """
    if problem.cure is None:
        return problem
    actions = [
        _add_needed_keys(line, action, after.get(action, ())) for action in problem.cure.actions
    ]
    return replace(problem, cure=replace(problem.cure, actions=tuple(actions)))


def _add_needed_keys(line: CommandLine, action: Action, after: Sequence[Finding]) -> Action:
    for _ in range(_MOST_NEEDED):
        needed = _find_needed(after, action)
        if needed is None:
            break
        action = replace(action, sets=(*needed.sets, *action.sets))
        after = _find_after(apply_action(action, line))
    return action


def _find_needed(after: Sequence[Finding], action: Action) -> Action | None:
    """Return the action that a problem of the action's own keys advises; None without such a
    problem, or if the advised action removes a key or changes the same ones.
    """
    keys = keys_of(action)
    for finding in after:
        place = override_key(finding.where or "")
        matters = finding.stops or finding.id == "no_effect"
        is_about_it = matters and any(place.endswith(key) for key in keys)
        needed = exact_actions(finding.cure)
        if not is_about_it or not needed or needed[0].removes:
            continue
        if not keys_of(needed[0]) & (keys | {"allow"}):
            return needed[0]
    return None


def _with_removal(
    line: CommandLine, problem: Finding, action: Action, obstacle: str | None
) -> Finding:
    """Return the problem with the advice to remove its override, or with none if that fails, too.

    `obstacle` is why its own action does not work.
    """
    key = action.removes or (problem.where or "").removeprefix("override ")
    removal = Action(removes=key)
    is_set = key not in GROUPS and apply_action(removal, line).argv != line.argv
    if not is_set:
        return replace(problem, cure=None)
    after = _find_after(apply_action(removal, line))
    if _find_obstacle(after, problem, removal) is not None:
        return replace(problem, cure=None)
    is_guess = str(problem.cure).startswith("did you mean")
    reason = ""
    if obstacle and obstacle != problem.message and not is_guess:
        reason = f": {_OF_OTHERS.sub('', obstacle)}"
    return replace(problem, cure=Fix.of(f"remove {{0}}{reason}", removal))


def _find_obstacle(after: Sequence[Finding], problem: Finding, action: Action) -> str | None:
    """Return why an action leads back to the same problem; None if its line works.

    A line that leads to another problem counts as working, unless the cure of that problem reverts
    the action. `after` has what the action's line leads to.
    """
    for finding in after:
        if finding == problem or (finding.stops and _is_dead_end(finding, problem, action)):
            return finding.message
    return None


def _is_dead_end(after: Finding, problem: Finding, action: Action) -> bool:
    """Whether the problem `after` an action is the same one, or advises to revert the action."""
    is_same_place = after.id == problem.id and after.where == problem.where
    if is_same_place and (not action.removes or after.message == problem.message):
        return True
    # A removed key may be refused with the stage's value, or without one.
    keys = changed_keys(action)
    first = actions_of(after.cure)[:1]
    places = {(finding.where or "").removeprefix("override ") for finding in (after, problem)}
    if len(places) == 1 and first and keys_of(first[0]) == keys:
        return True  # another value is refused as well, in favour of a third one
    is_about_it = any(_names_key(f"{after.where} {after.message}", key) for key in keys)
    # Actions that need a value from the reader count as well.
    advised: set[str] = set()
    for advised_action in actions_of(after.cure):
        advised |= keys_of(advised_action)
    return is_about_it and (after.id.endswith("conflict") or not advised - keys)


def _names_key(text: str, key: str) -> bool:
    """Whether a text names a key, and not just a longer name that contains it."""
    return re.search(rf"(?<![\w.-]){re.escape(key)}(?![\w-])", text) is not None
