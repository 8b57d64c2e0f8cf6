"""Check one command: whether the trainer's parser accepts it, and what the trainer then ignores."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from launch.check.lint.accelerate_options import (
    TRANSFORMERS_FILES,
    TRL_FILES,
    check_named_files,
    drop_launcher_flags,
    find_named_files,
    named_files,
    read_launcher_flags,
)
from launch.check.lint.config_files import ConfigFile, read_config
from launch.check.lint.flag_files import FlagEntry, FlagMap, flag_arguments
from launch.check.lint.flag_rules import GivenFlags, find_flag_warnings
from launch.check.lint.schemas import TrainerSchemas
from launch.check.lint.shell_syntax import Argument, literal_argument
from launch.check.lint.trainer_commands import (
    LintFinding,
    TrainerCommand,
    TrainerScript,
    error,
    warning,
)
from launch.config.yaml_nodes import Scalar, resolve_alias
from launch.errors import UserError, did_you_mean
from launch.upstream.pin.ledger import Explanation, explain_unknown_flag, replace_unsettable
from launch.upstream.rules.argv import ArgvReport, check_argv
from launch.upstream.rules.contradictions import unchecked_code
from launch.upstream.rules.parser import ArgvToken, list_options
from launch.upstream.schema import Field, Schema
from launch.worker.finding import Finding, Fix
from launch.worker.json_codec import to_json

# The flags whose values are names of a table of the schema, and the table.
_NAMES = {
    "dataset_transform_fn": "dataset_transform_fn",
    "transform_fn": "dataset_transform_fn",
    "get_tokenizer_fn": "get_tokenizer_fn",
}
# Maps an argument's index to its line; None stands for the command itself.
LineAt = Callable[[int | None], int]


@dataclass(frozen=True)
class LintVerdict:
    """The result for one command or map of flags."""

    file: str
    line: int
    script: str
    ok: bool | None  # None if it cannot be decided
    findings: tuple[LintFinding, ...]
    # The trainer's functions that may refuse more, but whose source this machine lacks.
    unchecked: tuple[str, ...] = ()

    @property
    def problems(self) -> list[LintFinding]:
        return [finding for finding in self.findings if finding.stops]

    @property
    def warnings(self) -> list[LintFinding]:
        return [finding for finding in self.findings if not finding.stops]

    def json_fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "file": self.file,
            "line": self.line,
            "script": self.script,
            "ok": self.ok,
            "problems": self.problems,
            "warnings": self.warnings,
            "unchecked": self.unchecked,
        }
        return {name: to_json(value) for name, value in fields.items()}


@dataclass(frozen=True)
class CommandChecker:
    """Checks commands and maps of flags."""

    schemas: TrainerSchemas

    def check_command(self, file: str, command: TrainerCommand) -> LintVerdict:
        """Check a command of a file."""
        arguments = command.arguments
        # Only `trl sft` passes unknown keys of its file on to accelerate.
        passed_on = None
        # `trl sft` passes on the options that it does not define (trl/cli/commands/training.py).
        if command.takes_accelerate_options:
            launcher_flags = read_launcher_flags(self.schemas.packages)
            trainer_flags = self.schemas.fields(command.trainer)
            arguments = drop_launcher_flags(arguments, launcher_flags, trainer_flags)
            passed_on = {name.removeprefix("--") for name in launcher_flags}
        verdict = self._check(file, command.line, command.trainer, arguments, passed_on)
        in_files = (
            *check_named_files(file, command.launcher, self.schemas.packages),
            *self._check_files_of_trl(file, command),
        )
        ok = verdict.ok
        if any(finding.stops for finding in (*in_files, *command.notes)):
            ok = False
        elif ok and command.is_truncated:
            ok = None
        return replace(verdict, ok=ok, findings=(*in_files, *command.notes, *verdict.findings))

    def _check_files_of_trl(self, file: str, command: TrainerCommand) -> Iterator[LintFinding]:
        """Check the files that TRL's own options name, on the command line or in its YAML file."""
        if not command.trainer.is_trl:
            return
        arguments = [*command.arguments]
        for option, line, path in named_files(command.arguments, file, ("--config",)):
            for key, value in (read_config(path, option, line).values or {}).items():
                if isinstance(value, str):
                    arguments.append(literal_argument(f"--{key}={value}", line))
        libraries = TRANSFORMERS_FILES
        if command.takes_accelerate_options:
            libraries = TRANSFORMERS_FILES | TRL_FILES
        yield from check_named_files(file, arguments, self.schemas.packages, libraries)

    def check_flag_map(self, file: str, trainer: TrainerScript, flags: FlagMap) -> LintVerdict:
        """Check a YAML map of flags as the command line it represents.

        A flag that takes a list must be given a YAML list.
        """
        verdict = self._check(file, flags.line, trainer, tuple(flag_arguments(flags.entries)))
        fields = self.schemas.fields(trainer)
        problems = [_list_as_string(fields, entry) for entry in flags.entries]
        findings = [problem for problem in problems if problem is not None]
        if not findings:
            return verdict
        wrong_flags = {problem.where for problem in findings}
        findings += [
            finding
            for finding in verdict.findings
            if finding.stops or finding.where not in wrong_flags
        ]
        findings.sort(key=lambda finding: finding.line)
        return replace(verdict, ok=False, findings=tuple(findings))

    def _check(
        self,
        file: str,
        line: int,
        trainer: TrainerScript,
        arguments: tuple[Argument, ...],
        passed_on: Collection[str] | None = None,
    ) -> LintVerdict:
        """Check the trainer's own arguments.

        `passed_on` are the keys of a YAML file that the trainer passes on to another program.
        """
        try:
            schema = self.schemas.load(trainer)
        except UserError as refusal:
            reasons = [
                warning(problem.id, problem.message, line, cure=problem.cure)
                for problem in refusal.problems
            ]
            return LintVerdict(file, line, trainer.script, None, tuple(reasons))
        tokens = [_as_token(argument) for argument in arguments]
        config_file = _find_config(schema, file, arguments)
        config = None if config_file is None else config_file.values
        report = check_argv(schema, tokens, config, passed_on)

        def line_at(index: int | None) -> int:
            if index is None or index >= len(arguments):
                return line
            return arguments[index].line

        findings: list[LintFinding] = []
        for index, problem in report.problems:
            value = _value_of(arguments, index)
            placed = problem if config_file is None else config_file.with_place(problem)
            findings.append(_explain_problem(trainer, schema, placed, line_at(index), value))
        # a rule about an absent flag must not apply if an unknown flag may be that flag, misspelt
        has_unknown_flag = any(problem.id == "unknown_flag" for _, problem in report.problems)
        # an unquoted variable may stand for further flags
        may_have_more = any(not (item.is_resolved or item.is_single) for item in arguments)
        if config_file is not None and config_file.problem is not None:
            where = config_file.option.removeprefix("--") or None
            reason = f"the trainer cannot read {config_file.problem}"
            findings.append(error("bad_config_file", reason, config_file.line, where))
        is_unread = config is None and any(item.text == "--config" for item in arguments)
        is_complete = not (has_unknown_flag or may_have_more or is_unread)
        given = self._given_flags(trainer, schema, report, is_complete, config or {})
        findings.extend(self._find_warnings(given, schema, report, line_at))
        findings.extend(_possible_unknown_flags(trainer, schema, arguments, passed_on or ()))
        unchecked = unchecked_code(schema)
        is_refused = any(finding.stops for finding in findings)
        ok = False if is_refused else report.ok
        return LintVerdict(file, line, trainer.script, ok, tuple(findings), unchecked)

    def _given_flags(
        self,
        trainer: TrainerScript,
        schema: Schema,
        report: ArgvReport,
        is_complete: bool,
        config: Mapping[str, Any],
    ) -> GivenFlags:
        """Return what the rules of the table are applied to."""
        names = schema.names if self.schemas.checkout else {}
        defaults = {
            name: flag.default
            for name, flag in schema.fields.items()
            if "default" not in flag.unknown
        }
        return GivenFlags(trainer, report.values, is_complete, names, defaults, config.keys())

    def _find_warnings(
        self, given: GivenFlags, schema: Schema, report: ArgvReport, line_at: LineAt
    ) -> Iterator[LintFinding]:
        """Warn about flags that do nothing or do not work, and combinations that are ignored."""
        wrong_flags = {problem.where for _, problem in report.problems}
        has_positional = any(problem.id == "positional" for _, problem in report.problems)
        checkout = self.schemas.checkout
        for finding in find_flag_warnings(given):
            if finding.where in wrong_flags:
                continue
            # The positional argument is already reported, and explains the odd number.
            if has_positional and finding.id == "mixer_pairs":
                continue
            yield replace(finding, line=line_at(report.given.get(str(finding.where))))
        yield from _unknown_names(given, line_at, report)
        args_file = schema.entry.removesuffix(".py") + ".args"
        if checkout and (checkout.root / args_file).is_file():
            message = (
                f"{args_file} exists beside the script: its arguments are silently put before these"
            )
            yield warning("arguments_file", message, line_at(None))
        if (
            not given.script.is_trl
        ):  # every TRL command depends on the machine, which has bf16 or not
            for reason in report.assumed:
                yield warning("depends_on_machine", reason, line_at(None))
        if report.ok is None:
            for reason in report.undecided:
                yield warning("undecided", f"not decided: {reason}", line_at(None))


def _find_config(schema: Schema, file: str, arguments: tuple[Argument, ...]) -> ConfigFile | None:
    """Return the YAML file of a command, if it exists: that of TRL's `--config`, or the first
    argument of the trainers of open-instruct that take one.
    """
    if schema.config_flag:
        for option, line, path in named_files(arguments, file, ("--config",)):
            return read_config(path, option, line)
    if schema.yaml_file and arguments and arguments[0].text.endswith(".yaml"):
        for path in find_named_files(arguments[0], file):
            return read_config(path, "", arguments[0].line)
    return None


def _as_token(argument: Argument) -> ArgvToken:
    """Return an argument as the parser's rules take it."""
    is_unknown = not argument.is_resolved
    may_split = not argument.is_single
    return ArgvToken(argument.text, is_unknown, argument.prefix, may_split)


def _explain_problem(
    trainer: TrainerScript, schema: Schema, problem: Finding, line: int, value: str
) -> LintFinding:
    """Return a problem of the parser as lint's finding, with the history of an unknown flag.

    `value` is the value that is given with the flag.
    """
    message = problem.message
    cure = problem.cure
    is_key = problem.id in ("unknown_key", "dropped_key")  # of a YAML file
    is_unknown = is_key or problem.id in ("unknown_flag", "dropped_flag")
    if (is_unknown or problem.id == "abbreviated") and problem.where is not None:
        flag = problem.where.replace("-", "_")
        explanation = explain_unknown_flag(trainer.name, flag, schema.fields)
        if explanation is not None and (explanation.use or is_unknown):
            message = f"{message}: {explanation.message}"
            cure = Fix(_cure_of(explanation, trainer, value, is_key))
    known = schema.fields.get(problem.where or "")
    if known is not None and not known.settable:
        replacement = replace_unsettable(known.name, value, schema.fields)
        cure = cure if replacement is None else Fix(replacement)
    report = warning if problem.id == "unverified" else error
    return report(problem.id, message, line, problem.where, cure=cure)


def _cure_of(explanation: Explanation, trainer: TrainerScript, value: str, is_key: bool) -> str:
    """Return what to do about a flag that the trainer lacks, which is given with this value."""
    if explanation.use:
        use = explanation.use if is_key else f"--{explanation.renamed(value)}"
        return f"write {use}"
    if value in explanation.instead:
        return f"no flag does it, {explanation.instead[value]} of launch does"
    if explanation.write or explanation.otherwise or "$" in value:
        return explanation.replacement(value) or "leave it out"
    if explanation.removed:
        return "leave it out"
    return f"`launch flags {trainer.name}` lists what it has"


def _unknown_names(given: GivenFlags, line_at: LineAt, report: ArgvReport) -> Iterator[LintFinding]:
    """Yield the names that open-instruct looks up in a table without them: it fails when it does."""
    for flag, table in _NAMES.items():
        known = given.known_names(table)
        value = given.values.get(flag)
        for name in value if isinstance(value, list) else [value]:
            if not known or not isinstance(name, str) or name in known:
                continue
            message = f"{given.trainer} has no --{flag} '{name}'"
            cure = did_you_mean(name, known) or f"choose from {', '.join(known)}"
            yield warning("unknown_name", message, line_at(report.given.get(flag)), flag, cure=cure)


def _possible_unknown_flags(
    trainer: TrainerScript,
    schema: Schema,
    arguments: Sequence[Argument],
    passed_on: Collection[str],
) -> Iterator[LintFinding]:
    """Yield the unknown flags that a variable may hold, such as those that a branch adds to it."""
    known = [text for option in list_options(schema) for text in option.strings]
    seen = set()
    for argument in arguments:
        for word in argument.may_hold:
            flag = word.text.partition("=")[0]
            if not re.fullmatch(r"--[a-z]\w*(?:-\w+)*", flag):
                continue
            name = flag.removeprefix("--")
            if flag in seen or name in passed_on or any(text.startswith(flag) for text in known):
                continue
            seen.add(flag)
            script = schema.entry.rpartition("/")[2]
            reason = f"whether {argument.text} holds {flag}, which {script} lacks"
            history = explain_unknown_flag(trainer.name, name.replace("-", "_"), schema.fields)
            if history is not None:
                reason = f"{reason}: {history.message}"
            yield warning("undecided", f"not decided: {reason}", word.line, name)


def _list_as_string(fields: Mapping[str, Field], entry: FlagEntry) -> LintFinding | None:
    """Return the problem of an entry that gives a flag with a list a single string."""
    key, node = entry
    value = resolve_alias(node)
    flag = fields.get(key.text.replace("-", "_"))
    if flag is None or flag.nargs != "+":
        return None
    if not isinstance(value, Scalar) or value.type != "str":
        return None
    accepted_types = [part.strip() for part in flag.type.split("|")]
    if "str" in accepted_types:  # `str | list[str]` takes both
        return None
    items = ", ".join(value.text.replace(",", " ").split()[:6])
    message = f"{key.text} takes a list, but '{value.text[:80]}' is a single string"
    return error("bad_type", message, key.line, key.text, cure=f"write {key.text}: [{items}]")


def _value_of(arguments: Sequence[Argument], index: int | None) -> str:
    """Return the value of the flag at `index`: after `=`, or the next argument; "" if none.

    The argument at `index` may be the value itself.
    """
    if index is None or index >= len(arguments):
        return ""
    if not arguments[index].text.startswith("-"):
        return arguments[index].text
    _, equals, value = arguments[index].text.partition("=")
    if equals:
        return value
    return arguments[index + 1].text if index + 1 < len(arguments) else ""
