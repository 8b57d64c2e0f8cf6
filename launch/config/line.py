"""Parses and checks the command line before Hydra reads it: verb, `--json` and overrides."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile, zip_longest
from typing import Any

from launch.errors import UserError, did_you_mean, refusal
from launch.resources import GROUPS, config_roots, group_options
from launch.worker.finding import Finding, Fix

_TOOLS = ("axolotl", "llamafactory-cli", "trl")  # other tools, whose own commands follow
_RANK_LAUNCHERS = ("accelerate", "torchrun", "deepspeed")
MULTIRUN = ("--multirun", "-m")  # Hydra's own options for sweep=true
SWEEP_VERB = "trial"  # the verb that takes comma lists as sweeps without sweep=true
# Hydra's options that show a configuration.
_SHOWING_OPTIONS = frozenset(("--help", "-h", "--cfg", "-c"))
# Hydra's options that take the next argument as their value.
_HYDRA_VALUE_OPTIONS = frozenset(("--cfg", "-c", "--package", "-p"))
# Text that Hydra's grammar of overrides does not accept outside quotes: non-ASCII letters, shell
# characters, "(1)".
_NEEDS_QUOTES = re.compile(r"[^\x00-\x7f]|[&!#~;^<>`\n]|(?<!\w)\(")
# Brackets, commas, quoted texts and colons of a list or a map. The text between them is a value.
_CONTAINER_PART = re.compile(r"""('(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|[\[\]{},]|:(?=\s))""")
_NOT_A_NAME = re.compile(
    r"null|true|false|[-+]?[\d.]+(?:e[-+]?\d+)?|[\[{].*", re.IGNORECASE | re.DOTALL
)
# An override of one stage of a pipeline: `dpo:recipe.beta=0.1`.
STAGE_KEY = re.compile(r"(\w[\w.-]*):([^=:]+)=")
_END = "\0"  # separates arguments
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
        return any(argument.partition("=")[0] in _SHOWING_OPTIONS for argument in self.argv)

    @property
    def is_pipeline(self) -> bool:
        """Whether it names a pipeline, or sets a key of one of its stages."""
        return self.sets("pipeline") or any(map(STAGE_KEY.match, self.overrides))

    @property
    def overrides(self) -> tuple[str, ...]:
        """The `key=value` arguments, without Hydra's own options and their values."""
        overrides = []
        is_value = False  # whether the argument is the value of the option before it
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
            is_removal = argument.startswith("~")
            is_override = argument in overrides and ("=" in argument or is_removal)
            if not is_override or key not in keys:
                remaining.append(argument)
            elif key in values:
                raise UserError(_set_twice(key))
            elif not is_removal:
                values[key] = argument.partition("=")[2]
        return values, replace(self, argv=tuple(remaining))

    def pop_flag(self, key: str, *, default: bool = False) -> tuple[bool, CommandLine]:
        """Return whether `key`, which Hydra does not know, is true, and the line without it.

        Raises UserError: bad_value, duplicate_override.
        """
        values, line = self.pop_overrides((key,))
        value = values.get(key, str(default)).lower()
        if value not in ("true", "false"):
            message = f"{key} must be true or false, got {value}"
            cure = f"set {key}=true, or leave it out"
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
    if _begins_with_verb(arguments):
        verb = arguments.pop(0)
        if verb not in verbs:
            candidates = list(verbs) if suggested is None else suggested
            raise UserError(_unknown_verb(verb, arguments, candidates))
    else:
        _refuse_misplaced_verb(arguments, verbs)
    line = CommandLine(verb, "--json" in arguments, tuple(arguments))
    sweeps, line = line.pop_flag("sweep", default=verb == SWEEP_VERB)
    argv = [argument for argument in line.argv if argument != "--json"]
    if sweeps and not line.sweeps:
        argv.insert(0, MULTIRUN[0])
    return replace(line, argv=tuple(argv))


def _begins_with_verb(arguments: Sequence[str]) -> bool:
    """Return whether the first argument is a verb, known or not, and not `key = value` or a file."""
    if not arguments or not _is_bare_word(arguments[0]):
        return False
    if arguments[0].endswith((".yaml", ".yml")):
        return False
    return len(arguments) == 1 or not arguments[1].startswith("=")


def _refuse_misplaced_verb(arguments: Sequence[str], verbs: Collection[str]) -> None:
    """Refuse a verb that is not the first argument. Raises UserError: misplaced_verb."""
    for position, argument in enumerate(arguments):
        if argument not in verbs:
            continue
        others = [*arguments[:position], *arguments[position + 1 :]]
        command = " ".join(["launch", argument, *others])
        before = arguments[position - 1]
        cure = (
            f"put it first: {command}; if it belongs to the value before it, quote both: "
            f"'{before} {argument}'"
        )
        message = f"the command '{argument}' stands behind its keys"
        raise refusal("misplaced_verb", message, cure=cure)


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
    cure = Fix.of("start it alone: {0}", f"$ {command}")
    raise refusal("started_as_rank", message, "LOCAL_RANK", cure)


def _is_bare_word(argument: str) -> bool:
    """Return whether an argument is neither an option nor an override."""
    return not argument.startswith(("-", "+", "~")) and "=" not in argument


def _unknown_verb(word: str, rest: Sequence[str], names: Sequence[str]) -> Finding:
    """Return the problem of a first word that is not a verb: a stage's name, another tool's word,
    or a typing error. `rest` are the arguments after it, `names` the verbs to suggest.
    """
    # only an answer to a mistake needs the names of other tools
    from launch.config.other_tools import explain_value, explain_verb

    if word in _RANK_LAUNCHERS and rest:
        command = f"$ launch lint -- {shlex.join([word, *rest])}"
        cure = Fix.of("launch starts the ranks itself; {0} checks such a line", command)
        return Finding.error("unknown_verb", f"'{word}' is not a command of launch", cure=cure)
    if word in _TOOLS and rest:
        return _unknown_verb(rest[0], rest[1:], names)
    known_verb = explain_verb(word, exact=True)
    stage = None if known_verb else explain_value("stage", word)
    if stage:
        command = shlex.join(["launch", str(stage.ways[0]), *rest])
        cure = Fix.of("a stage is set as a key: {0}", f"$ {command}")
        return Finding.error("unknown_verb", f"'{word}' is not a command", cure=cure)
    typed = re.match(r"(?:stage[: ])?(\S+)(.*)", " ".join([word, *rest]))
    for group in ("stage", "trainer"):
        if typed and typed[1] in group_options(group):
            command = f"$ launch {group}={typed[1]}{typed[2]}"
            cure = Fix.of(f"a {group} is set as a key: {{0}}", command)
            message = f"'{typed[1]}' is a {group}, not a command"
            return Finding.error("unknown_verb", message, cure=cure)
    if word.endswith((".sh", ".sbatch", ".slurm")):
        cure = Fix.of("check it: {0}", f"$ launch lint {word}")
        return Finding.error("unknown_verb", f"'{word}' is a script, not a command", cure=cure)
    # `trian` is `train`, which is `run`, rather than `trial`
    candidates = [name for name in names if name != SWEEP_VERB or "l" in word]
    meant = known_verb or did_you_mean(word, candidates) or explain_verb(word)
    listed = f"commands: {', '.join(names)}; a value is set as key=value"
    return Finding.error("unknown_verb", f"unknown command '{word}'", cure=meant or listed)


def override_key(override: str) -> str:
    """Return the key that an override sets: `++recipe.epochs=2` -> `recipe.epochs`."""
    return override.partition("=")[0].lstrip("+~").partition("@")[0]


def format_value(value: Any) -> str:
    """Return a value as an override has it: `true` for True."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def check_overrides(line: CommandLine) -> None:
    """Reject overrides that Hydra would misread.

    A comma list outside brackets is a sweep and needs `sweep=true`; an argument without `=` is not
    an override. Hydra's own settings are refused: they write folders, or are ignored.

    Raises UserError, with all of them: unknown_option, duplicate_override, not_an_override,
    several_values, reserved_key; shell_split, spaces, bad_value, unknown_tuned.
    """
    split = _find_split(line.overrides) or _find_spaces(line.overrides)
    if split:
        raise UserError(split)
    problems, option_values = _find_unknown_options(line)
    values: dict[str, str] = {}
    previous = ""
    for override in line.overrides:
        if override in option_values:
            continue
        key = override_key(override)
        value = override.partition("=")[2]
        if key in values:
            problems.append(_repeated_key(key, values[key] + value))
        values[key] = value
        problem = _override_problem(line, override, previous)
        if problem is not None:
            problems.append(problem)
        previous = override
    if problems:
        raise UserError(problems)


def _repeated_key(key: str, values: str) -> Finding:
    """Return the problem of a key that is set twice: by the user, or as the shell expanded braces.

    `values` are the two values, one after the other.
    """
    has_two_lists = values.count("[") == values.count("]") == 2
    if not has_two_lists or ":" not in values:
        return _set_twice(key)
    message = f"'{key}' is set twice: the shell expands braces outside quotes"
    cure = f"quote the whole argument: '{key}=[{{name: X}}]'"
    return Finding.error("shell_split", message, f"override {key}", cure)


def _override_problem(line: CommandLine, override: str, previous: str) -> Finding | None:
    """Return the problem of one override; `previous` is the override before it."""
    key = override_key(override)
    value = override.partition("=")[2]
    if re.match(r"hydra\b", key):
        return hydra_problem(key, f"override {key}")
    is_override = "=" in override or override.startswith("~")
    if not key or not is_override:
        message = f"'{override}' is not a key=value override"
        cure = _explain_bare_word(override, previous)
        return Finding.error("not_an_override", message, "command line", cure)
    if key in GROUPS and _NOT_A_NAME.fullmatch(value):
        from launch.config.other_tools import explain_value

        cure = explain_value(key, value)
        if cure is None and value.startswith("["):
            cure = Fix("add sweep=true and write stage=A,B to run each")
        message = f"{key}={value} must be the name of a file of configs/tulu"
        return Finding.error("bad_value", message, None, cure or "set its name")
    overlays = group_options("tuned") if key == "tuned" else []
    if key == "tuned" and not line.sweeps and value.strip("'\"") not in overlays:
        message = f"there is no overlay '{value}' in {config_roots()[0] / 'tuned'}"
        near = did_you_mean(value, overlays, prefix="tuned=")
        where = f"override {override}"
        return Finding.error("unknown_tuned", message, where, near or "`tune` writes one")
    if not line.sweeps and _BARE_COMMA.match(value):
        from launch.config.other_tools import explain_name

        named = None if key.startswith("flags.") else explain_name(key, value)
        message = f"'{line.verb}' takes one value"
        cure = named or _one_value(key, value)
        return Finding.error("several_values", message, f"override {key}", cure)
    return None


def _explain_bare_word(word: str, previous: str) -> Fix | None:
    """Return what an argument without `=` may have been meant for."""
    if word in group_options("stage"):
        return Fix(f"a stage is set as stage={word}")
    from launch.config.other_tools import explain_name

    named = explain_name(word, None)
    if named is not None or not previous:
        return named
    return Fix(f"if it belongs to the value before it, quote both: '{previous} {word}'")


# The cure for a comma list where one value is expected, by key.
_ONE_VALUE_CURES = {
    "stage": "set one stage, or add sweep=true to run each in turn",
    "pipeline": "set stage=; `run`, `plan`, `check` and `submit` take a pipeline",
    "gpus": "set one width, add sweep=true to run each, or use rollout, which puts gates between "
    "them",
}


def _one_value(key: str, value: str) -> Fix:
    """Return the cure for a comma list where one value is expected."""
    if value.endswith(","):
        return Fix.of("remove the comma: {0}", f"{key}={value.rstrip(',')}")
    if key == "gpus" and value.startswith("0,"):  # the numbers of GPUs, not several widths
        width = f"gpus={len(value.split(','))}"
        return Fix.of("set {0}, after {1}", width, f"$ export CUDA_VISIBLE_DEVICES={value}")
    if re.fullmatch(r"0,\d+", value):
        return Fix.of("write {0}", f"{key}={value.replace(',', '.')}")
    if key in _ONE_VALUE_CURES:
        return Fix(_ONE_VALUE_CURES[key])
    sweep = "add sweep=true to run each value in turn"
    if key.startswith(("flags.", "cluster.")):
        return Fix(f"write a list as '{key}=[{value}]', or {sweep}")
    return Fix(sweep)


def _find_unknown_options(line: CommandLine) -> tuple[list[Finding], list[str]]:
    """Find options that neither the verb nor Hydra has. Hydra would print its own usage for them.

    Also returns the arguments that are such an option's value, as in `--learning_rate 1e-5`.
    """
    problems: list[Finding] = []
    values: list[str] = []
    hydra_options = set(MULTIRUN)
    if line.asks_hydra:
        hydra_options |= {*_SHOWING_OPTIONS, *_HYDRA_VALUE_OPTIONS, "--resolve"}
    is_value = False  # whether the argument is the value of an option of Hydra's
    for argument, following in zip_longest(line.argv, line.argv[1:], fillvalue=""):
        name, equals, value = argument.partition("=")
        if not is_value and argument.startswith("-") and name not in hydra_options:
            if not equals:
                value = "true"
                is_stage = name != "--stage" and following in group_options("stage")
                if following and _is_bare_word(following) and not is_stage:
                    value = following
                    values.append(following)
            message = f"'{line.verb}' has no option {name}"
            cure = _explain_option(name, value)
            problems.append(Finding.error("unknown_option", message, "command line", cure))
        is_value = not is_value and argument in _HYDRA_VALUE_OPTIONS
    return problems, values


def _explain_option(name: str, value: str) -> Fix | str | None:
    """Return what to write in place of an unknown option: a key, another option or a flag."""
    from launch.config.other_tools import explain_like, explain_name, trainer_flag

    exact = explain_name(name, value)
    if exact is not None:
        return exact
    near = did_you_mean(name, ("--json", "--help", "--version"), cutoff=0.66)
    return near or explain_like(name, value) or trainer_flag(name, value)


def hydra_problem(key: str, where: str) -> Finding:
    """Return the problem of a setting of Hydra itself, such as `hydra.run.dir`, which `launch`
    sets.
    """
    from launch.config.other_tools import explain_name

    message = f"{key} cannot be set: launch sets it"
    return Finding.error("reserved_key", message, where, explain_name(key, None) or "remove it")


def quote_value(override: str, *, sweeps: bool = False) -> str:
    """Return the override with quotes around values that Hydra's grammar cannot read as they are:
    `name=прогон`.

    With `sweeps` commas separate values, as under `--multirun`.
    """
    key, equals, value = override.partition("=")
    if sweeps and "," in value and value[0] not in "'\"[{":
        quoted = [quote_value(f"={part}").removeprefix("=") for part in value.split(",")]
        return f"{key}={','.join(quoted)}"
    if not equals or not _NEEDS_QUOTES.search(value) or value[0] in "'\"":
        return override
    if value[0] not in "[{":
        has_quotes = "'" in value or '"' in value
        return override if has_quotes else f"{key}={quote_text(value)}"
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
    # the backslashes before a quote, or before the closing quote at the end, are doubled
    doubled = re.sub(r"(\\+)(?='|$)", r"\1\1", text)
    escaped = doubled.replace("'", "\\'")
    return f"'{escaped}'"


def _find_split(overrides: Sequence[str]) -> list[Finding]:
    """Find an argument that the shell split at its spaces: a bracket that opens in one and closes
    in another.
    """
    for start, override in enumerate(overrides, 1):
        if "=" not in override or _count_open(override) <= 0:
            continue
        rest = takewhile(_sets_nothing, overrides[start:])
        whole = " ".join([override, *rest])
        if _count_open(whole) <= 0:
            message = f"the shell split {whole} at its spaces"
            return [Finding.error("shell_split", message, "command line", f"quote it: '{whole}'")]
    return []


def _sets_nothing(argument: str) -> bool:
    return re.match(r"[^=\s]+=", argument) is None


def _find_spaces(overrides: Sequence[str]) -> list[Finding]:
    """Find spaces around a `=`, which make three arguments of one: `stage = demo`."""
    spaced = _SPACES.search(_END.join(overrides))
    if spaced is None:
        return []
    message = f"'{spaced[0].replace(_END, ' ')}' has spaces around its ="
    cure = f"write {spaced[0].replace(_END, '')}"
    return [Finding.error("spaces", message, "command line", cure)]


def _count_open(text: str) -> int:
    """Count the brackets that are open at the end of a text; those in quotes do not count."""
    unquoted = re.sub(r"""'[^']*'|"[^"]*\"""", "", text)
    opened = unquoted.count("[") + unquoted.count("{")
    closed = unquoted.count("]") + unquoted.count("}")
    return opened - closed


def _set_twice(key: str) -> Finding:
    return Finding.error(
        "duplicate_override", f"'{key}' is set twice", f"override {key}", "remove one"
    )
