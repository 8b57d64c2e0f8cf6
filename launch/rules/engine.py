"""Applies the rules of the table to facts."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from launch.config.line import format_value
from launch.config.ranges import Range, is_number, shorten_number
from launch.rules.conditions import holds, is_set, small_counts, texts_of
from launch.rules.facts import ABSENT, UNKNOWN, Facts, Place
from launch.rules.table import Rule, table
from launch.worker.finding import Finding, Fix

_PLACEHOLDER = re.compile(r"\{([a-z_][\w.]*)\}")
_COUNT = "count_to"  # the condition that gives a message for each pair
_RANGE = "outside"  # the condition that gives {range}

Values = Mapping[str, Any]


def rules_for(facts: Facts) -> list[Rule]:
    """Return the rows that are for the trainer, at this place."""
    return [
        rule
        for rule in table()
        if facts.place in rule.places and rule.is_for(facts.trainer, facts.family)
    ]


def flags_with_rule(facts: Facts, id: str) -> set[str]:
    """Return the flags that the trainer's rows of an id are about."""
    return {rule.flag for rule in rules_for(facts) if rule.id == id and rule.flag}


def apply_rules(facts: Facts, rules: Iterable[Rule], allow: Collection[str] = ()) -> list[Finding]:
    """Return what the rules find, in their order. What `allow` names is allowed, if its rule can
    be.
    """
    findings: list[Finding] = []
    for rule in rules:
        for values in _cases(rule, facts):
            finding = _as_finding(rule, facts, values)
            findings.append(finding.apply_allow(allow) if rule.allow else finding)
    return findings


def _cases(rule: Rule, facts: Facts) -> Iterator[Values]:
    """Yield the values of the messages of a rule: nothing if it does not apply."""
    value = facts.value(rule.flag) if rule.flag else ABSENT
    asks_for_absence = rule.flag is not None and rule.when.get(rule.flag, {}).get("given") is False
    is_unused = rule.flag is not None and value is ABSENT and not asks_for_absence
    if is_unused or not all(holds(facts, name, rule.when[name]) for name in rule.when):
        return
    if rule.undoes:
        yield from _undone_key(rule.undoes, facts)
        return
    if rule.needs:
        yield from _unmet_needs(rule, facts)
        return
    for conditions in rule.when.values():
        if _COUNT in conditions:
            yield from small_counts(value, conditions[_COUNT])
            return
        if _RANGE in conditions and is_number(value):
            allowed = Range.parse(conditions[_RANGE])
            yield {"range": allowed.describe(value), "value": shorten_number(value)}
            return
    yield {}


def _undone_key(key: str, facts: Facts) -> Iterator[Values]:
    """Yield a key and its value, if it is set."""
    requested = facts.value(key)
    if is_set(requested) and requested not in (UNKNOWN, False):
        yield {"key": key, "requested": format_value(requested)}


def _unmet_needs(rule: Rule, facts: Facts) -> Iterator[Values]:
    """Yield each other flag without a value with which the flag has an effect."""
    for other, needed in rule.needs.items():
        value = facts.value(other)
        if value is ABSENT:
            value = facts.default(other)
        texts = texts_of(value)
        if value is UNKNOWN or any(re.fullmatch(needed, text) for text in texts):
            continue
        choices = needed.replace("|", ", ")
        yield {"other": other, "other_value": " ".join(texts), "choices": choices}


def _as_finding(rule: Rule, facts: Facts, values: Values) -> Finding:

    def fill(text: str) -> str:
        return _PLACEHOLDER.sub(lambda found: _value_of(found[1], rule, facts, values), text)

    has_fix = bool(rule.fix) and facts.place != Place.lint
    fix = Fix.of(*map(fill, rule.fix)) if has_fix else None
    about = rule.at or rule.flag
    where = facts.locate(about) if about else None
    finding = Finding.error(rule.id, fill(rule.text_for(facts.place)), where, fix)
    return finding.as_warning() if rule.severity == "warning" else finding


def _value_of(name: str, rule: Rule, facts: Facts, values: Values) -> str:
    """Return what stands for a placeholder of a message."""
    if name in values:
        return str(values[name])
    if name == "flag":
        return str(rule.flag)
    if name == "at":
        return str(rule.at)
    value = facts.value(str(rule.flag) if name == "value" else name)
    return format_value(value) if is_set(value) else "null"
