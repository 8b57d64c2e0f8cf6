"""The command line before Hydra reads it: verb, `--json`, overrides, and values that Hydra would
take for a sweep.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile, zip_longest
from typing import Any

from launch.config.other_tools import (
    explain_like,
    explain_name,
    explain_value,
    explain_verb,
    trainer_flag,
)
from launch.errors import UserError, did_you_mean, refusal
from launch.resources import GROUPS, config_roots, group_options
from launch.worker.finding import Finding, Fix

_TOOLS = ("axolotl", "llamafactory-cli", "trl")  # whose own commands follow
_STARTERS = ("accelerate", "torchrun", "deepspeed")  # of a trainer's ranks
MULTIRUN = ("--multirun", "-m")  # Hydra's own for sweep=true
SWEEP_VERB = "trial"  # whose comma lists are sweeps by themselves
# Hydra's own options that show a configuration, and those that go with them
_SHOWING = frozenset(("--help", "-h", "--cfg", "-c"))
_HYDRA_VALUE_OPTIONS = frozenset(("--cfg", "-c", "--package", "-p"))  # they take the next argument
# what Hydra's grammar of overrides has no place for outside quotes: non-ASCII letters, shell
# characters, "(1)"
_NEEDS_QUOTES = re.compile(r"[^\x00-\x7f]|[&!#~;^<>`\n]|(?<!\w)\(")
# in a list or a map: brackets, commas, quoted texts, keys; what is between them is a value
_CONTAINER_PART = re.compile(r"""('(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|[\[\]{},]|:(?=\s))""")
_NOT_A_NAME = re.compile(
    r"null|true|false|[-+]?[\d.]+(?:e[-+]?\d+)?|[\[{].*", re.IGNORECASE | re.DOTALL
)
# of one stage of a pipeline: `dpo:recipe.beta=0.1`
STAGE_KEY = re.compile(r"(\w[\w.-]*):([^=:]+)=")
_END = "\0"  # of an argument
# `key = value`, `key =value`, `key= value`
_SPACES = re.compile(
    rf"(?<![^{_END}])[^{_END}]*?(?:{_END}={_END}?|={_END}(?![^{_END}]*=))[^{_END}]+"
)
# a comma outside quotes and brackets
_BARE_COMMA = re.compile(
    r"""^(?:[^'"\[\](){},]|'[^']*'|"[^"]*"|\[.*\]|\{.*\}|\(.*\))*,""", re.DOTALL
)


@dataclass(frozen=True)
class CommandLine:
    """A parsed command line, as a value: its methods return changed copies."""

    verb: str
    json: bool
    argv: tuple[str, ...]  # overrides and Hydra's own options, in order

    @property
    def sweeps(self) -> bool:
        """Whether a comma list stands for a run of each of its values."""
        return not set(MULTIRUN).isdisjoint(self.argv)

    @property
    def asks_hydra(self) -> bool:
        """Whether Hydra itself answers: --help and --cfg show the configuration, and nothing
        runs.
        """
        return any(argument.partition("=")[0] in _SHOWING for argument in self.argv)

    @property
    def is_pipeline(self) -> bool:
        """Whether it names a pipeline, or sets a key of one of its stages."""
        return self.sets("pipeline") or any(map(STAGE_KEY.match, self.overrides))

    @property
    def overrides(self) -> tuple[str, ...]:
        """The `key=value` arguments, without Hydra's own options and their values."""
        overrides = []
        is_value = False  # of an option
        for argument in self.argv:
            if is_value or argument.startswith("-"):
                is_value = argument in _HYDRA_VALUE_OPTIONS
                continue
            overrides.append(argument)
        return tuple(overrides)

    def sets(self, key: str) -> bool:
        return any(override_key(override) == key for override in self.overrides)

    def pop_overrides(self, keys: Collection[str]) -> tuple[dict[str, str], CommandLine]:
        """Return the values set for `keys`, which Hydra does not know, and the line without them.

        Raises UserError: duplicate_override.
        """
        values: dict[str, str] = {}
        remaining: list[str] = []
        overrides = set(self.overrides)
        for argument in self.argv:
            key = override_key(argument)
            if (
                argument not in overrides
                or key not in keys
                or not ("=" in argument or argument.startswith("~"))
            ):
                remaining.append(argument)
            elif key in values:
                raise UserError(_set_twice(key))
            elif not argument.startswith("~"):
                values[key] = argument.partition("=")[2]
        return values, replace(self, argv=tuple(remaining))

    def pop_flag(self, key: str, *, default: bool = False) -> tuple[bool, CommandLine]:
        """Return whether `key`, which Hydra does not know, is true, and the line without it.

        Raises UserError: bad_value, duplicate_override.
        """
        values, line = self.pop_overrides((key,))
        value = values.get(key, str(default)).lower()
        if value not in ("true", "false"):
            message, cure = (
                f"{key} must be true or false, got {value}",
                f"set {key}=true, or leave it out",
            )
            raise refusal("bad_value", message, f"override {key}", cure)
        return value == "true", line

    def without(self, *keys: str) -> CommandLine:
        """Return the line without the overrides of `keys`. Raises UserError: duplicate_override."""
        return self.pop_overrides(keys)[1]

    def with_overrides(self, *overrides: str) -> CommandLine:
        """Return the line with more overrides at its end."""
        return replace(self, argv=(*self.argv, *overrides))


def parse_line(
    argv: Sequence[str], verbs: Collection[str], suggested: Sequence[str] | None = None
) -> CommandLine:
    """Split off the verb (the first argument, if it is neither an option nor an override) and
    `--json`.

    The default verb is `run`. A message suggests the verbs in `suggested`, by default all.

    Raises UserError: unknown_verb, bad_value.
    """
    arguments = list(argv)
    verb = "run"
    is_verb = _is_word(arguments[:1]) and not arguments[0].endswith((".yaml", ".yml"))
    if is_verb and not (len(arguments) > 1 and arguments[1].startswith("=")):
        verb = arguments.pop(0)
        if verb not in verbs:
            raise UserError(
                _unknown_verb(verb, arguments, list(verbs) if suggested is None else suggested)
            )
    elif misplaced := next((argument for argument in arguments if argument in verbs), None):
        position = arguments.index(misplaced)
        before = arguments[position - 1]
        first = " ".join(["launch", misplaced, *arguments[:position], *arguments[position + 1 :]])
        cure = (
            f"put it first: {first}; if it belongs to the value before it, quote both: "
            f"'{before} {misplaced}'"
        )
        raise refusal(
            "misplaced_verb", f"the command '{misplaced}' stands behind its keys", cure=cure
        )
    line = CommandLine(verb, "--json" in arguments, tuple(arguments))
    sweeps, line = line.pop_flag("sweep", default=verb == SWEEP_VERB)
    options = MULTIRUN[:1] if sweeps and not line.sweeps else ()
    return replace(
        line, argv=(*options, *(argument for argument in line.argv if argument != "--json"))
    )


def refuse_rank(line: CommandLine, environ: Mapping[str, str]) -> None:
    """Refuse to start a run as a rank of torchrun or `accelerate launch -m launch`: each rank would
    start all ranks.

    Raises UserError: started_as_rank.
    """
    ranks = environ.get("LOCAL_WORLD_SIZE", environ.get("WORLD_SIZE", "1"))
    if not environ.get("LOCAL_RANK") or line.verb in ("plan", "submit", "node"):
        return
    message = (
        f"torchrun or accelerate started this process as one of {ranks} ranks, and launch "
        "starts a run's ranks"
    )
    command = shlex.join(["launch", line.verb, *line.argv])
    raise refusal(
        "started_as_rank", message, "LOCAL_RANK", Fix.of("start it alone: {0}", f"$ {command}")
    )


def _is_word(arguments: Sequence[str]) -> bool:
    """Whether an argument is neither an option nor an override."""
    return (
        bool(arguments) and not arguments[0].startswith(("-", "+", "~")) and "=" not in arguments[0]
    )


def _unknown_verb(word: str, rest: Sequence[str], names: Sequence[str]) -> Finding:
    """Return the problem of a first word that is not a verb: a stage's name, another tool's word,
    or a slip.
    """
    if word in _STARTERS and rest:
        command = Fix.of(
            "launch starts the ranks itself; {0} checks such a line",
            f"$ launch lint -- {shlex.join([word, *rest])}",
        )
        return Finding.error("unknown_verb", f"'{word}' is not a command of launch", cure=command)
    if word in _TOOLS and rest:
        return _unknown_verb(rest[0], rest[1:], names)
    if not explain_verb(word, exact=True) and (meant := explain_value("stage", word)):
        command = Fix.of(
            "a stage is set as a key: {0}", f"$ {shlex.join(['launch', str(meant.ways[0]), *rest])}"
        )
        return Finding.error("unknown_verb", f"'{word}' is not a command", cure=command)
    typed = re.match(r"(?:stage[: ])?(\S+)(.*)", " ".join([word, *rest]))
    for group in ("stage", "trainer"):
        if typed and typed[1] in group_options(group):
            command = Fix.of(
                f"a {group} is set as a key: {{0}}", f"$ launch {group}={typed[1]}{typed[2]}"
            )
            return Finding.error(
                "unknown_verb", f"'{typed[1]}' is a {group}, not a command", cure=command
            )
    if word.endswith((".sh", ".sbatch", ".slurm")):
        command = Fix.of("check it: {0}", f"$ launch lint {word}")
        return Finding.error("unknown_verb", f"'{word}' is a script, not a command", cure=command)
    # `trian` is `train`, which is `run`
    near = [name for name in names if name != SWEEP_VERB or "l" in word]
    cure = explain_verb(word, exact=True) or did_you_mean(word, near) or explain_verb(word)
    listed = f"commands: {', '.join(names)}; a value is set as key=value"
    return Finding.error("unknown_verb", f"unknown command '{word}'", cure=cure or listed)


def override_key(override: str) -> str:
    """Return the key that an override sets: `++recipe.epochs=2` -> `recipe.epochs`."""
    return override.partition("=")[0].lstrip("+~").partition("@")[0]


def format_value(value: Any) -> str:
    """Return a value as an override has it: `true` for True."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def check_overrides(line: CommandLine) -> None:
    """Reject overrides that Hydra would misread.

    A comma list outside brackets is a sweep and needs `sweep=true`; an argument without `=` is no
    override. Hydra's own settings are refused: they write folders, or are ignored.
    Raises UserError, with all of them: unknown_option, duplicate_override, not_an_override,
    several_values, reserved_key.
    """
    split = _find_split(line.overrides) or _find_spaces(line.overrides)
    if split:
        raise UserError(split)
    problems, values = _find_unknown_options(line)
    given: dict[str, str] = {}
    previous = ""
    for override in line.overrides:
        if override in values:
            continue
        key, value = override_key(override), override.partition("=")[2]
        if key in given:
            both = given[key] + value
            in_braces = both.count("[") == both.count("]") == 2 and ":" in both
            message = f"'{key}' is set twice: the shell expands braces outside quotes"
            cure = Fix(f"quote the whole argument: '{key}=[{{name: X}}]'")
            expanded = Finding.error("shell_split", message, f"override {key}", cure)
            problems.append(expanded if in_braces else _set_twice(key))
        given[key] = value
        if re.match(r"hydra\b", key):
            problems.append(hydra_problem(key, f"override {key}"))
        elif not key or ("=" not in override and not override.startswith("~")):
            message = f"'{override}' is not a key=value override"
            quoted = (
                Fix(f"if it belongs to the value before it, quote both: '{previous} {override}'")
                if previous
                else None
            )
            named = (
                Fix(f"a stage is set as stage={override}")
                if override in group_options("stage")
                else None
            )
            named = named or explain_name(override, None) or quoted
            problems.append(Finding.error("not_an_override", message, "command line", named))
        elif key in GROUPS and _NOT_A_NAME.fullmatch(value):
            several = (
                "add sweep=true and write stage=A,B to run each"
                if value.startswith("[")
                else "set its name"
            )
            message = f"{key}={value} must be the name of a file of configs/tulu"
            problems.append(
                Finding.error("bad_value", message, None, explain_value(key, value) or several)
            )
        elif (
            key == "tuned" and not line.sweeps and value.strip("'\"") not in group_options("tuned")
        ):
            folder = config_roots()[0] / "tuned"
            message = f"there is no overlay '{value}' in {folder}"
            meant = did_you_mean(value, group_options("tuned"), prefix="tuned=")
            cure = Fix(meant or "`tune` writes one")
            problems.append(Finding.error("unknown_tuned", message, f"override {override}", cure))
        elif not line.sweeps and _BARE_COMMA.match(value):
            named = None if key.startswith("flags.") else explain_name(key, value)
            cure = named or _one_value(key, value)
            problems.append(
                Finding.error(
                    "several_values", f"'{line.verb}' takes one value", f"override {key}", cure
                )
            )
        previous = override
    if problems:
        raise UserError(problems)


def _one_value(key: str, value: str) -> Fix:
    """Return the cure for a comma list where one value is expected."""
    if value.endswith(","):
        return Fix.of("remove the comma: {0}", f"{key}={value.rstrip(',')}")
    if key == "gpus" and value.startswith("0,"):  # cards, not widths
        return Fix.of(
            "set {0}, after {1}",
            f"gpus={len(value.split(','))}",
            f"$ export CUDA_VISIBLE_DEVICES={value}",
        )
    if re.fullmatch(r"0,\d+", value):
        return Fix.of("write {0}", f"{key}={value.replace(',', '.')}")
    listed = (
        f"write a list as '{key}=[{value}]', or " if key.startswith(("flags.", "cluster.")) else ""
    )
    of_key = {
        "stage": "set one stage, or add sweep=true to run each in turn",
        "pipeline": "set stage=; `run`, `plan`, `check` and `submit` take a pipeline",
        "gpus": "set one width, add sweep=true to run each, or use rollout, which puts gates "
        "between them",
    }
    return Fix(of_key.get(key, f"{listed}add sweep=true to run each value in turn"))


def _find_unknown_options(line: CommandLine) -> tuple[list[Finding], list[str]]:
    """Find options that neither the verb nor Hydra has; of an unknown one, Hydra would print its
    own usage.

    Also returns the arguments that are such an option's value, `--learning_rate 1e-5`.
    """
    problems, values = [], []
    of_hydra = {
        *MULTIRUN,
        *((*_SHOWING, *_HYDRA_VALUE_OPTIONS, "--resolve") if line.asks_hydra else ()),
    }
    is_value = False
    for argument, following in zip_longest(line.argv, line.argv[1:], fillvalue=""):
        name, equals, value = argument.partition("=")
        if not is_value and argument.startswith("-") and name not in of_hydra:
            takes_next = bool(not equals and following) and _is_word([following])
            takes_next &= name == "--stage" or following not in group_options("stage")
            near = did_you_mean(name, ("--json", "--help", "--version"), cutoff=0.66)
            given = value if equals else following if takes_next else "true"
            cure = (
                explain_name(name, given)
                or near
                or explain_like(name, given)
                or trainer_flag(name, given)
            )
            problems.append(
                Finding.error(
                    "unknown_option", f"'{line.verb}' has no option {name}", "command line", cure
                )
            )
            values += [following] * takes_next
        is_value = not is_value and argument in _HYDRA_VALUE_OPTIONS
    return problems, values


def hydra_problem(key: str, where: str) -> Finding:
    """Return the problem of a setting of Hydra itself, `hydra.run.dir`, which `launch` makes."""
    return Finding.error(
        "reserved_key",
        f"{key} cannot be set: launch sets it",
        where,
        explain_name(key, None) or "remove it",
    )


def quote_value(override: str, *, sweeps: bool = False) -> str:
    """Return the override with quotes around values that Hydra's grammar cannot read as they are:
    `name=прогон`.

    `sweeps`: commas separate values, as under `--multirun`.
    """
    key, equals, value = override.partition("=")
    if sweeps and "," in value and value[0] not in "'\"[{":
        return f"{key}={','.join(quote_value(f'={part}').removeprefix('=') for part in value.split(','))}"
    if not equals or not _NEEDS_QUOTES.search(value) or value[0] in "'\"":
        return override
    if value[0] not in "[{":
        return override if "'" in value or '"' in value else f"{key}={quote_text(value)}"
    parts = _CONTAINER_PART.split(value)  # texts at even positions, separators at odd ones
    for position in range(0, len(parts), 2):
        text = parts[position].strip()
        if text and _NEEDS_QUOTES.search(text):
            parts[position] = parts[position].replace(text, quote_text(text))
    return f"{key}={''.join(parts)}"


def quote_text(text: str) -> str:
    """Quote a text for Hydra's grammar of overrides, where a backslash is special only before a
    quote.
    """
    escaped = re.sub(r"(\\*)('|$)", lambda match: match[1] * 2 + ("\\'" if match[2] else ""), text)
    return f"'{escaped}'"


def _find_split(overrides: Sequence[str]) -> list[Finding]:
    """Find an argument that the shell split at its spaces: a bracket that opens in one and closes
    in another.
    """
    for start, override in enumerate(overrides, 1):
        whole = " ".join(
            (override, *takewhile(lambda part: not re.match(r"[^=\s]+=", part), overrides[start:]))
        )
        if "=" in override and _count_open(override) > 0 >= _count_open(whole):
            message = f"the shell split {whole} at its spaces"
            return [Finding.error("shell_split", message, "command line", f"quote it: '{whole}'")]
    return []


def _find_spaces(overrides: Sequence[str]) -> list[Finding]:
    """Find spaces around a `=`, which make three arguments of one: `stage = demo`."""
    for apart in _SPACES.findall(_END.join(overrides)):
        parts, joined = apart.replace(_END, " "), apart.replace(_END, "")
        return [
            Finding.error(
                "spaces", f"'{parts}' has spaces around its =", "command line", f"write {joined}"
            )
        ]
    return []


def _count_open(text: str) -> int:
    """Count the brackets that are open at the end of a text; those in quotes do not count."""
    bare = re.sub(r"""'[^']*'|"[^"]*\"""", "", text)
    return sum(bare.count(bracket) for bracket in "[{") - sum(
        bare.count(bracket) for bracket in "]}"
    )


def _set_twice(key: str) -> Finding:
    return Finding.error(
        "duplicate_override", f"'{key}' is set twice", f"override {key}", "remove one"
    )
