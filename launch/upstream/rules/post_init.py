"""Find what a `__post_init__` of upstream raises for values of which some are unknown."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from launch.upstream.rules.post_init_interpreter import EndOfCodeError, PostInitInterpreter
from launch.upstream.rules.post_init_state import Contradiction
from launch.upstream.rules.source import Function
from launch.upstream.rules.uncertain_values import doubt_of, truth_of


def run_post_init(
    functions: Sequence[Function], constants: Mapping[str, Any], fields: Mapping[str, Any]
) -> list[Contradiction]:
    """Return what the first function raises for the values of an instance's fields.

    Upstream stops at the first error; this continues after it. `constants` are those of upstream's
    modules and classes, of which a text enum is {"enum": its values}.
    """
    interpreter = PostInitInterpreter(fields, constants, functions)
    try:
        interpreter.call_function(functions[0])
    except EndOfCodeError:
        pass
    except RecursionError:
        place = f"{functions[0].file}:{functions[0].node.lineno}"
        return [Contradiction("it is too deep to be followed", place, (), None)]
    return list(interpreter.contradictions.values())


def check_rules(
    rules: Mapping[str, Mapping[str, Any]], fields: Mapping[str, Any]
) -> list[Contradiction]:
    """Return the rules that the values of the fields break.

    Rules are given by file:line; each has `if`, a condition on fields, and `message`. A rule whose
    condition raises an error is not broken.
    """
    broken = []
    for where, rule in rules.items():
        interpreter = PostInitInterpreter(fields, {}, ())
        # a rule names a field without `self.`
        interpreter.variables = {**fields}
        interpreter.origins = {name: [name] for name in fields}
        condition = ast.parse(rule["if"], mode="eval").body
        try:
            value = interpreter.visit(condition)
        except EndOfCodeError:
            continue
        if truth_of(value) is not False:
            contradiction = interpreter.build_contradiction(where, rule["message"], doubt_of(value))
            broken.append(contradiction)
    return broken
