"""Check one command: whether the trainer's parser accepts it, and whether the trainer honours what
it accepts.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from launch.check.lint.cautions import GivenFlags, find_cautions, find_unusable
from launch.check.lint.flag_files import FlagEntry, FlagMap, flag_arguments
from launch.check.lint.schemas import TrainerSchemas
from launch.check.lint.shell_syntax import Argument, literal_argument
from launch.check.lint.trainer_commands import (
    LintFinding,
    TrainerCommand,
    TrainerScript,
    error,
    warning,
)
from launch.config.yaml_nodes import Scalar, load_yaml, resolve_alias
from launch.errors import UserError
from launch.planning.library_key_check import check_config_file
from launch.upstream.libraries.library_keys import library_keys
from launch.upstream.pin.ledger import explain_unknown_flag
from launch.upstream.rules.argv import ArgvReport, check_argv
from launch.upstream.rules.contradictions import unchecked_code
from launch.upstream.rules.parser import ArgvToken
from launch.upstream.schema import Field, Schema
from launch.worker.finding import Finding, Fix
from launch.worker.json_codec import versioned

_SOURCE = "accelerate/commands/launch.py"
# trl/cli/accelerate_config.py consumes it before accelerate starts
_TRL_OPTIONS = {"--accelerate_config": True}
_FILES = {"--config_file": "accelerate", "--deepspeed_config_file": "deepspeed"}


@cache
def read_launcher_flags(packages: tuple[Path, ...]) -> Mapping[str, bool] | None:
    """Read {option string: whether it takes a value} from accelerate's source; None if it is not
    installed.
    """
    source = next((path for folder in packages if (path := folder / _SOURCE).is_file()), None)
    if source is None:
        return None
    flags = dict(_TRL_OPTIONS)
    for node in ast.walk(ast.parse(source.read_bytes())):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "add_argument"
        ):
            names = [
                arg.value
                for arg in node.args
                if isinstance(arg, ast.Constant) and isinstance(arg.value, str)
            ]
            takes_value = all(
                "store_" not in ast.unparse(it) for it in node.keywords if it.arg == "action"
            )
            for name in names:
                if name.startswith("--"):
                    flags[name] = flags["--" + name[2:].replace("_", "-")] = takes_value
    return flags


def _value_of(arguments: Sequence[Argument], index: int | None) -> str:
    """Return the value of the flag at `index`: behind `=`, or the next argument; empty where there
    is none.
    """
    if index is None or index >= len(arguments):
        return ""
    _, equals, value = arguments[index].text.partition("=")
    following = arguments[index + 1].text if index + 1 < len(arguments) else ""
    return value if equals else following


def drop_launcher_flags(
    arguments: Sequence[Argument],
    launcher_flags: Mapping[str, bool],
    trainer_flags: Collection[str],
) -> tuple[Argument, ...]:
    """Return the arguments left for the trainer, which keeps its own flags (`trainer_flags`, with
    underscores).
    """
    kept: list[Argument] = []
    index = 0
    while index < len(arguments):
        argument = arguments[index]
        index += 1
        name, equals, _ = argument.prefix.partition("=")
        is_trainer_flag = name not in launcher_flags or name[2:].replace("-", "_") in trainer_flags
        if is_trainer_flag or not (argument.is_resolved or equals):
            kept.append(argument)
        elif launcher_flags[name] and not equals:
            index += 1
    return tuple(kept)


def named_files(
    arguments: Sequence[Argument], script: str, options: Container[str]
) -> Iterator[tuple[str, int, Path]]:
    """Yield the option, its line and the path of each file that one of the options names and that
    exists.

    Its path is relative to the working folder, to that of the script, or to one above it.
    """
    for argument, following in pairwise([*arguments, literal_argument("", 0)]):
        name, equals, value = argument.text.partition("=")
        option = name.replace("-", "_").replace("__", "--", 1)
        if option in options and argument.is_resolved and (equals or following.is_resolved):
            folders = (Path(), *Path(script).absolute().parents)
            paths = (folder / (value if equals else following.text) for folder in folders)
            with suppress(OSError):  # the name is too long
                yield from (
                    (option, argument.line, path) for path in islice(filter(Path.is_file, paths), 1)
                )


def check_named_files(
    script: str, launcher: Sequence[Argument], packages: Sequence[Path]
) -> Iterator[LintFinding]:
    """Check the configuration files that a launcher's options name, against the libraries among the
    packages.
    """
    for option, line, path in named_files(launcher, script, _FILES):
        for problem in check_config_file(path, library_keys(_FILES[option], packages)):
            yield error(
                problem.id,
                f"{problem.where}: {problem.message}",
                line,
                option.removeprefix("--"),
                cure=problem.cure,
            )


# from an argument's index to its line; None: the command's own
LineAt = Callable[[int | None], int]

MAX_CONFIG = 1_000_000  # bytes of a `--config` file


@dataclass(frozen=True)
class LintVerdict:
    """The result for one command or map of flags."""

    file: str
    line: int
    script: str
    ok: bool | None  # None if it cannot be decided
    findings: tuple[LintFinding, ...]
    unchecked: tuple[
        str, ...
    ] = ()  # the trainer's functions that would refuse more, without their source here

    @property
    def problems(self) -> list[LintFinding]:
        return [finding for finding in self.findings if finding.stops]

    @property
    def warnings(self) -> list[LintFinding]:
        return [finding for finding in self.findings if not finding.stops]

    def as_json(self) -> dict[str, Any]:
        subject = {"file": self.file, "line": self.line, "script": self.script, "ok": self.ok}
        found = {"problems": self.problems, "warnings": self.warnings, "unchecked": self.unchecked}
        return versioned({**subject, **found})


@dataclass(frozen=True)
class CommandChecker:
    """Checks commands and maps of flags."""

    schemas: TrainerSchemas

    def check_command(self, file: str, command: TrainerCommand) -> LintVerdict:
        """Check a command of a file."""
        arguments = command.arguments
        # `trl sft` passes on what it does not define (trl/cli/commands/training.py)
        if command.takes_accelerate_options:
            options = read_launcher_flags(self.schemas.packages)
            arguments = drop_launcher_flags(
                arguments, options or {}, self.schemas.fields(command.trainer)
            )
        verdict = self._check(file, command.line, command.trainer, arguments)
        if command.takes_accelerate_options and options is None:
            verdict = _leave_undecided(verdict)
        in_files = tuple(check_named_files(file, command.launcher, self.schemas.packages))
        ok = False if in_files else None if command.is_truncated and verdict.ok else verdict.ok
        return replace(verdict, ok=ok, findings=(*in_files, *command.notes, *verdict.findings))

    def check_flag_map(self, file: str, trainer: TrainerScript, flags: FlagMap) -> LintVerdict:
        """Check a YAML map of flags as the command line it represents; a list flag must be given a
        YAML list.
        """
        verdict = self._check(file, flags.line, trainer, tuple(flag_arguments(flags.entries)))
        fields = self.schemas.fields(trainer)
        strings = [
            problem for entry in flags.entries if (problem := _list_as_string(fields, entry))
        ]
        if not strings:
            return verdict
        wrong_flags = {problem.where for problem in strings}
        others = (
            finding
            for finding in verdict.findings
            if finding.stops or finding.where not in wrong_flags
        )
        findings = sorted((*strings, *others), key=lambda finding: finding.line)
        return replace(verdict, ok=False, findings=tuple(findings))

    def _check(
        self, file: str, line: int, trainer: TrainerScript, arguments: tuple[Argument, ...]
    ) -> LintVerdict:
        try:
            schema = self.schemas.load(trainer)
        except UserError as refusal:
            reasons = (warning(it.id, it.message, line, cure=it.cure) for it in refusal.problems)
            return LintVerdict(file, line, trainer.script, None, tuple(reasons))
        tokens = [
            ArgvToken(
                argument.text, not argument.is_resolved, argument.prefix, not argument.is_single
            )
            for argument in arguments
        ]
        report = check_argv(schema, tokens, self._load_config(schema, file, arguments))

        def line_at(index: int | None) -> int:
            return arguments[index].line if index is not None and index < len(arguments) else line

        # An unknown flag may be the misspelt one that a rule would miss.
        is_complete = all(problem.id != "unknown_flag" for _, problem in report.problems) and all(
            argument.is_resolved or argument.is_single for argument in arguments
        )
        problems = (
            self._explain_problem(
                trainer, schema, problem, line_at(index), _value_of(arguments, index)
            )
            for index, problem in report.problems
        )
        warnings = self._find_warnings(trainer, schema, report, is_complete, line_at)
        findings = (*problems, *warnings)
        return LintVerdict(file, line, trainer.script, report.ok, findings, unchecked_code(schema))

    def _explain_problem(
        self, trainer: TrainerScript, schema: Schema, problem: Finding, line: int, value: str
    ) -> LintFinding:
        """Return the finding of a problem, with what became of a flag. `value`: what is given with
        the flag.
        """
        message, cure = problem.message, problem.cure
        if problem.id in ("unknown_flag", "abbreviated") and problem.where is not None:
            explanation = explain_unknown_flag(
                trainer.name, problem.where.replace("-", "_"), schema.fields
            )
            if explanation is not None and (explanation.use or problem.id == "unknown_flag"):
                message = f"{message}: {explanation.message}"
                cure = Fix(f"write --{explanation.use}" if explanation.use else "leave it out")
                if value in explanation.instead:
                    cure = Fix(f"no flag does it, {explanation.instead[value]} of launch does")
        report = warning if problem.id == "unverified" else error
        return report(problem.id, message, line, problem.where, cure=cure)

    def _find_warnings(
        self,
        trainer: TrainerScript,
        schema: Schema,
        report: ArgvReport,
        is_complete: bool,
        line_at: LineAt,
    ) -> Iterator[LintFinding]:
        """Warn about given flags that do nothing or do not work, and combinations that the trainer
        does not honour.
        """
        wrong_flags = {problem.where for _, problem in report.problems}
        kinds = {problem.id for _, problem in report.problems}
        checkout = self.schemas.checkout
        given = GivenFlags(trainer, report.values, is_complete, schema.names if checkout else {})
        for caution in (*find_unusable(trainer, report.given), *find_cautions(given)):
            if caution.where not in wrong_flags and not (
                "positional" in kinds and caution.id == "mixer_pairs"
            ):
                yield replace(caution, line=line_at(report.given.get(str(caution.where))))
        args_file = schema.entry.removesuffix(".py") + ".args"
        if checkout and (checkout.root / args_file).is_file():
            message = (
                f"{args_file} exists beside the script: its arguments are silently put before these"
            )
            yield warning("arguments_file", message, line_at(None))
        if not trainer.is_trl:  # every TRL command depends on the machine, which has bf16 or not
            yield from (
                warning("depends_on_machine", reason, line_at(None)) for reason in report.assumed
            )
        if report.ok is None:
            for reason in report.undecided:
                yield warning("undecided", f"not decided: {reason}", line_at(None))

    def _load_config(
        self, schema: Schema, file: str, arguments: tuple[Argument, ...]
    ) -> dict[str, Any] | None:
        """Load the file that TRL's `--config` names, if it exists."""
        if schema.config_flag:
            for _, _, path in named_files(arguments, file, ("--config",)):
                with suppress(OSError, ValueError):
                    if path.stat().st_size <= MAX_CONFIG:
                        content = load_yaml(path.read_text(encoding="utf-8"))
                        return content if isinstance(content, dict) else None
        return None


def _leave_undecided(verdict: LintVerdict) -> LintVerdict:
    """Return the verdict where each unknown flag may be an option of accelerate, which is not
    installed.
    """
    message = "not decided: it may be an option of accelerate, which is not installed"
    unknown = [finding for finding in verdict.findings if finding.id == "unknown_flag"]
    others = [finding for finding in verdict.findings if finding not in unknown]
    undecided = (warning("undecided", message, finding.line, finding.where) for finding in unknown)
    ok = verdict.ok if not unknown else False if any(finding.stops for finding in others) else None
    return replace(verdict, ok=ok, findings=(*others, *undecided))


def _list_as_string(fields: Mapping[str, Field], entry: FlagEntry) -> LintFinding | None:
    """Return the problem of an entry that gives a flag with a list a single string."""
    key, value = entry[0], resolve_alias(entry[1])
    flag = fields.get(key.text.replace("-", "_"))
    if flag is None or flag.nargs != "+" or not isinstance(value, Scalar) or value.type != "str":
        return None
    if "str" in [part.strip() for part in flag.type.split("|")]:  # `str | list[str]` takes both
        return None
    items = ", ".join(value.text.replace(",", " ").split()[:6])
    message = f"{key.text} takes a list, but '{value.text[:80]}' is a single string"
    return error("bad_type", message, key.line, key.text, cure=f"write {key.text}: [{items}]")
