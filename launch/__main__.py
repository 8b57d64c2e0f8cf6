"""`python -m launch [VERB] [key=value ...]`: runs the verb's function and prints its problems."""

from __future__ import annotations

import errno
import gc
import io
import os
import shlex
import signal
import sys

if sys.version_info < (3, 11):  # noqa: UP036  before anything is imported that an older Python cannot read
    print(
        f"launch needs Python 3.11 or newer; {sys.executable} is {sys.version.split()[0]}",
        file=sys.stderr,
    )
    raise SystemExit(2)

try:
    from collections.abc import Sequence
    from dataclasses import replace
    from pathlib import Path
    from traceback import format_exception
    from types import FrameType, TracebackType

    from launch.commands.verbs import VERBS, VISIBLE, Verb
    from launch.config.line import (
        CommandLine,
        is_later_rank,
        overrides_of_ranks,
        parse_line,
        refuse_rank,
    )
    from launch.errors import EXIT_DONE, EXIT_INTERRUPTED, EXIT_REFUSED, UserError, path_problem
    from launch.external import configure_logging
    from launch.resources import ROOT
    from launch.terminal import echo, notify
    from launch.worker.finding import Finding, Fix
except KeyboardInterrupt:  # `main` reports one that comes later
    raise SystemExit(130) from None

_HELP = frozenset(("-h", "--help"))
_PATH_ERRORS = (errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES, errno.EPERM, errno.ENOTDIR)
_WRITE_ERRORS = (errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_OF_ONE_RUN = ("logs", "stop", "report", "eval", "merge")
# Problems of a line with options or values that other tools have.
_OF_OPTIONS = ("usage", "unknown_option", "data_no_files")
_OPTIONS = {"-h": "help", "--help": "help", "--version": "version"}


def main(argv: Sequence[str]) -> int:
    """Run one command line and return its exit code (see launch.errors)."""
    try:
        # A shell requests the candidates for completion.
        if any(argument.startswith("query=") for argument in argv):
            from launch.commands.shell_completion import answer_query

            if answer_query(argv, os.environ):
                return EXIT_DONE
        configure_logging(os.environ)
        return _run_verb(list(argv))
    except UserError as error:
        for problem in error.problems:
            notify(str(problem))
        return EXIT_REFUSED
    except KeyboardInterrupt as interrupt:
        signal_name = str(interrupt)
        notify(f"interrupted by {signal_name}" if signal_name else "interrupted")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of the output has ended, as `head` does; Python must not flush into it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_DONE
    except (OSError, RuntimeError, ModuleNotFoundError) as error:
        mistake = _explain(error)
        if mistake is None:
            raise
        notify(mistake)
        return EXIT_REFUSED


def _explain(error: OSError | RuntimeError | ModuleNotFoundError) -> str | None:
    """Return the message of an error that is a user's mistake, None for any other error."""
    if isinstance(error, ModuleNotFoundError):
        return _missing_package(error)
    problem = _failed_write(error) or _mistaken_path(error)
    return None if problem is None else str(problem)


def _missing_package(error: ModuleNotFoundError) -> str | None:
    """Return the command that provides a required package which this Python lacks.

    It is missing, for instance, in a clone whose .venv is not active.
    """
    package = (error.name or "launch").partition(".")[0]
    if package == "launch":
        return None
    activate = ROOT / ".venv/bin/activate"
    setup = ROOT / "scripts/setup"
    if activate.is_file():
        cure = f"activate this clone's environment: source {shlex.quote(str(activate))}"
    elif setup.is_file():
        cure = f"install what launch requires: {shlex.quote(str(setup))}"
    else:
        python = shlex.quote(sys.executable)
        cure = f"install it with what it requires: {python} -m pip install tulu-launch"
    return f"this Python ({sys.executable}) lacks the package {package}; {cure}"


def _failed_write(error: OSError | RuntimeError) -> Finding | None:
    """Return the problem of a file that a verb cannot write: the disk is full, or read-only."""
    if not isinstance(error, OSError) or error.errno not in _WRITE_ERRORS:
        return None
    file = error.filename if isinstance(error.filename, str) else "a file"
    message = f"{file} cannot be written: {error.strerror}"
    cure = "free some space, or correct its permissions"
    return Finding.error("not_writable", message, None, cure)


def _mistaken_path(error: OSError | RuntimeError) -> Finding | None:
    """Return the problem of a path in an argument or a variable that is impossible or forbidden."""
    if isinstance(error, OSError):
        is_path = isinstance(error.filename, str) and error.errno in _PATH_ERRORS
        return path_problem(error, error.filename) if is_path else None
    return path_problem(error, "~") if "home directory" in str(error) else None


def _run_verb(arguments: list[str]) -> int:
    """Run the verb that the line begins with, `run` without one; return its exit code."""
    first = arguments[0] if arguments else "help"
    verb = VERBS.get(_OPTIONS.get(first, first))
    end = arguments.index("--") if "--" in arguments else len(arguments)
    asks_help = not _HELP.isdisjoint(arguments[1:end])
    if verb is not None and not verb.composes and not asks_help:
        return _run_with_arguments(verb, arguments)
    if is_later_rank(os.environ) and first != "node":
        return _leave_to_first_rank(first)
    try:
        line = parse_line(arguments, list(VERBS), VISIBLE)
    except UserError as error:
        raise _explained(arguments, None, error) from error
    if not _HELP.isdisjoint(line.argv):
        return VERBS["help"].function()([line.verb])
    if "--version" in line.argv:
        return VERBS["version"].function()([])
    try:
        refuse_rank(line, os.environ)
        return VERBS[line.verb].function()(line)
    except UserError as error:
        raise _explained(arguments, line, error) from error


def _leave_to_first_rank(verb: str) -> int:
    """Return the exit code of another rank of torchrun or accelerate than the first, which plans the
    line or refuses it.
    """
    if verb == "plan":
        return EXIT_DONE
    notify("this is not the first rank: it starts nothing, and the first one answers")
    return EXIT_REFUSED


def _explained(arguments: list[str], line: CommandLine | None, error: UserError) -> UserError:
    """Return the error with the cures that work, for as many ranks as this process is one of."""
    from launch.api.cures import explain_problems

    words = [*arguments, *overrides_of_ranks(arguments, os.environ)]
    return UserError(explain_problems(words, line, error.problems))


def _run_with_arguments(verb: Verb, arguments: list[str]) -> int:
    """Run a verb that takes arguments. Options of other tools are answered with its own."""
    try:
        return verb.function()(arguments[1:])
    except UserError as error:
        problem = error.problems[0]
        if verb.name in _OF_ONE_RUN and "needs RUN" in problem.message:
            raise UserError(replace(problem, cure=_about_newest(verb, arguments))) from error
        has_options = any(argument.startswith("-") for argument in arguments)
        if problem.id not in _OF_OPTIONS or not has_options:
            raise
        cure = _explain_options(verb, arguments, problem)
        if cure is None:
            raise
        raise UserError(replace(problem, cure=cure)) from error


def _explain_options(verb: Verb, arguments: list[str], problem: Finding) -> Fix | None:
    """Return the line that one with options of other tools is; only an answer imports their names."""
    if verb.name == "new":
        if problem.id == "usage" and "does not take" not in problem.message:
            return None
        if problem.id == "data_no_files" and "," not in " ".join(arguments):
            return None  # a file that is missing, and no list of files
        from launch.planning.other_tool_new import explain_new

        return explain_new(arguments[1:])
    from launch.config.other_commands import explain_command

    return explain_command(verb.name, arguments[1:])


def _about_newest(verb: Verb, arguments: list[str]) -> Fix:
    """Return the cure for a verb without the run that it is about."""
    command = shlex.join(["launch", verb.name, "latest", *arguments[1:]])
    return Fix.of("name it; the newest one is `latest`: {0}", f"$ {command}")


def console() -> None:
    """Run the console script `launch`."""
    # A command allocates much and frees little as it starts: with the default threshold of 700
    # objects the garbage collector takes a tenth of the time of `plan`.
    gc.set_threshold(50_000, 20, 50)
    open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        # A character that the terminal's encoding lacks is escaped.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _interrupt)
    sys.excepthook = _print_traceback
    raise SystemExit(main(sys.argv[1:]))


def open_closed_streams() -> None:
    """Replace streams that were closed at the start (`>&-`) by some that discard all output."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            stream = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  open to the end
            setattr(sys, name, stream)


def _print_traceback(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    echo("".join(format_exception(kind, error, traceback)), end="", file=sys.stderr)


class _Interrupt(KeyboardInterrupt):
    """An interrupt by a signal, with the signal's name.

    If KeyboardInterrupt itself leaves an `exec` of text, as in making a dataclass, Python kills its
    process with SIGINT in the end, whatever its exit code (pythonrun.c, run_eval_code_obj). It does
    not do so for a subclass.
    """


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Unwind as Ctrl-C does, so that locks are released.

    A run replaces this handler once it has processes to end.
    """
    raise _Interrupt(signal.Signals(number).name)


if __name__ == "__main__":
    console()
