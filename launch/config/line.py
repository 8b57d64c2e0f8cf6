"""Parses the command line before Hydra reads it: verb, `--json` and overrides."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from launch.errors import UserError, did_you_mean, refusal
from launch.resources import group_options
from launch.worker.finding import Finding, Fix

# Programs of other tools, which a command of the tool follows.
OTHER_COMMANDS = (
    "axolotl",
    "llamafactory-cli",
    "trl",
    "swift",
    "unsloth",
    "tune",
    "dvc",
    "hf",
    "huggingface-cli",
)
DATA_FILES = (".csv", ".tsv", ".jsonl", ".json", ".parquet", ".jsonl.gz", ".jsonl.zst")
SCRIPT_SUFFIXES = (".sh", ".sbatch", ".slurm", ".bash")
# `rows.jsonl:alpaca`: a data file and the name of its format, as in axolotl and LLaMA-Factory.
NAME_AFTER_FILE = re.compile(rf"(.+(?:{'|'.join(map(re.escape, DATA_FILES))})):\w+")
_RANK_LAUNCHERS = ("accelerate", "torchrun", "deepspeed")
_METHOD = re.compile(r"sft|dpo|ipo|kto|orpo|simpo|grpo|ppo|rloo|reinforce|rlvr|rm")
MULTIRUN = ("--multirun", "-m")  # Hydra's own options for sweep=true
SWEEP_VERB = "trial"  # the verb that takes comma lists as sweeps without sweep=true
# Hydra's options that show a configuration.
SHOWING_OPTIONS = frozenset(("--help", "-h", "--cfg", "-c"))
# Hydra's options that take the next argument as their value.
VALUE_OPTIONS = frozenset(("--cfg", "-c", "--package", "-p"))
# An override of one stage of a pipeline: `dpo:recipe.beta=0.1`.
STAGE_KEY = re.compile(r"(\w[\w.-]*):([^=:]+)=")


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
        following = (*self.argv[1:], "")
        return any(
            argument.partition("=")[0] in SHOWING_OPTIONS and not value.endswith((".yaml", ".yml"))
            for argument, value in zip(self.argv, following, strict=False)
        )

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
                is_value = argument in VALUE_OPTIONS
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
                raise UserError(set_twice(key))
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
    if not arguments or not is_bare_word(arguments[0]):
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
    if not environ.get("LOCAL_RANK") or line.verb in ("plan", "submit", "node"):
        return
    ranks = environ.get("LOCAL_WORLD_SIZE", environ.get("WORLD_SIZE", "1"))
    message = (
        f"torchrun or accelerate started this process as one of {ranks} ranks, and launch "
        "starts a run's ranks"
    )
    words = list(line.argv)
    if line.verb == "run":
        words += overrides_of_ranks(words, environ)
    command = shlex.join(["launch", line.verb, *words])
    cure = Fix.of("start it alone: {0}", f"$ {command}")
    raise refusal("started_as_rank", message, "LOCAL_RANK", cure)


def is_later_rank(environ: Mapping[str, str]) -> bool:
    """Return whether torchrun or accelerate started this process as another rank than the first, which
    speaks for all.
    """
    local = environ.get("LOCAL_RANK")
    return bool(local) and (local != "0" or environ.get("RANK", "0") != "0")


def overrides_of_ranks(words: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Return the overrides that torchrun's or accelerate's ranks of this process are, but for those
    that a line has: `gpus=2 parallel=zero3`.
    """
    if not environ.get("LOCAL_RANK"):
        return []
    keys = {override_key(word) for word in words}
    total = environ.get("WORLD_SIZE", "1")
    ranks = environ.get("LOCAL_WORLD_SIZE", total)
    width = "processes" if "device=cpu" in words else "gpus"
    values = {width: ranks}
    if ranks.isdigit() and total.isdigit() and int(total) > int(ranks) > 0:
        values["nodes"] = str(int(total) // int(ranks))
    zero = environ.get("ACCELERATE_DEEPSPEED_ZERO_STAGE", "0")
    if environ.get("ACCELERATE_USE_DEEPSPEED") == "true" and zero in ("1", "2", "3"):
        device = environ.get("ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", "none")
        offloads = zero == "3" and device not in ("none", "")
        values["parallel"] = f"zero{zero}{'_offload' if offloads else ''}"
    return [f"{key}={value}" for key, value in values.items() if key not in keys]


def is_bare_word(argument: str) -> bool:
    """Return whether an argument is neither an option nor an override."""
    return not argument.startswith(("-", "+", "~")) and "=" not in argument


def _unknown_verb(word: str, rest: Sequence[str], names: Sequence[str]) -> Finding:
    """Return the problem of a first word that is not a verb: a stage's name, another tool's word,
    or a typing error. `rest` are the arguments after it, `names` the verbs to suggest.
    """
    # only an answer to a mistake needs the names of other tools
    from launch.config.other_tools import explain_value, find_verb

    answer = _answer_to_word(word, rest)
    if answer is not None:
        return Finding.error("unknown_verb", f"'{word}' is not a command", cure=answer)
    if word in OTHER_COMMANDS and rest:
        return _unknown_verb(rest[0], rest[1:], names)
    known_verb = find_verb(word)
    stage = None if known_verb else explain_value("stage", word)
    if stage:
        command = shlex.join(["launch", str(stage.actions[0]), *rest])
        cure = Fix.of("a stage is set as a key: {0}", f"$ {command}")
        return Finding.error("unknown_verb", f"'{word}' is not a command", cure=cure)
    typed = re.match(r"(?:stage[: ])?(\S+)(.*)", " ".join([word, *rest]))
    for group in ("stage", "trainer"):
        if typed and typed[1] in group_options(group):
            command = f"$ launch {group}={typed[1]}{typed[2]}"
            cure = Fix.of(f"a {group} is set as a key: {{0}}", command)
            message = f"'{typed[1]}' is a {group}, not a command"
            return Finding.error("unknown_verb", message, cure=cure)
    if word.endswith(SCRIPT_SUFFIXES):
        cure = Fix.of("check it: {0}", f"$ launch lint {word}")
        return Finding.error("unknown_verb", f"'{word}' is a script, not a command", cure=cure)
    suggestion = _suggest_verb(word, known_verb, names)
    listed = f"commands: {', '.join(names)}; a value is set as key=value"
    return Finding.error("unknown_verb", f"unknown command '{word}'", cure=suggestion or listed)


def _suggest_verb(word: str, known_verb: str | None, names: Sequence[str]) -> str | None:
    """Return the question `did you mean VERB?`; None if no verb is similar.

    The verb is `known_verb`, which is launch's word for another tool's word; else one of `names`
    that is spelt alike, else the verb of another tool's word that is spelt alike.
    """
    from launch.config.other_tools import find_verb

    if known_verb:
        return f"did you mean '{known_verb}'?"
    # `trian` is `train`, which is `run`, rather than `trial`
    candidates = [name for name in names if name != SWEEP_VERB or "l" in word]
    near = did_you_mean(word, candidates)
    if near:
        return near
    similar_verb = find_verb(word, near=True)
    return f"did you mean '{similar_verb}'?" if similar_verb else None


def _answer_to_word(word: str, rest: Sequence[str]) -> Fix | None:
    """Return the answer to a word that is typed as a command, such as one about a run."""
    from launch.config.other_commands import explain_command

    if word in _RANK_LAUNCHERS and rest:
        command = f"$ launch lint -- {shlex.join([word, *rest])}"
        return Fix.of("launch starts the ranks itself; {0} checks such a line", command)
    if not rest and word in group_options("stage"):
        return None
    return explain_command(word, rest)


def stage_name(file: str) -> str:
    """Return a stage's name for a file of data: `data/my chats.jsonl` -> `my_chats`. A method keeps
    its own name: `grpo.jsonl` -> `my_grpo`.
    """
    stem = file.rpartition("/")[2].partition(".")[0]
    name = re.sub(r"\W+", "_", stem).strip("_") or "mine"
    return f"my_{name}" if _METHOD.fullmatch(name) else name


def override_key(override: str) -> str:
    """Return the key that an override sets: `++recipe.epochs=2` -> `recipe.epochs`."""
    return override.partition("=")[0].lstrip("+~").partition("@")[0]


def format_value(value: Any) -> str:
    """Return a value as an override has it: `true` for True."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def set_twice(key: str) -> Finding:
    """Return the problem of a key that is set twice."""
    return Finding.error(
        "duplicate_override", f"'{key}' is set twice", f"override {key}", "remove one"
    )
