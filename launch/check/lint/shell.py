"""Find trainer commands in shell text, through mason, `bash -c`, `sbatch --wrap`, here-documents,
substitutions.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate

from launch.check.lint.expansion import expand_words
from launch.check.lint.launchers import (
    command_name,
    find_trainer_starts,
    is_mason,
    is_python_name,
    only_reads_arguments,
    split_at_separators,
    with_supplied,
)
from launch.check.lint.lexer import lex
from launch.check.lint.shell_syntax import (
    Argument,
    Heredoc,
    ShellDocument,
    SimpleCommand,
    TooDeepError,
    UnbalancedError,
    logical_lines,
)
from launch.check.lint.trainer_commands import (
    HINT,
    MARKER,
    NO_COMMANDS,
    LintFinding,
    ScanResult,
    merge,
    not_followed,
    warning,
)
from launch.check.lint.unfollowed import explain_unfollowed, find_unfollowed_declarations, is_python
from launch.check.lint.variables import Variables, collect_variables

MAX_REPARSES = 5  # levels of shell text inside shell words: `bash -c "ssh host '...'"`

_SCRIPT_OPTION = re.compile(r"-[a-z]*c|--(?:wrap|command|cmd|run|script)")
_WRAP = re.compile(r"--(?:wrap|command|cmd)=")
_HEREDOC_ESCAPE = re.compile(r"\\([$`\\])")
# another shell splits the arguments again
_JOINING = re.compile(r"(?:.*/)?(?:ssh|rsh|mosh|pdsh|clush|watch|parallel)")
_SPECIAL = re.compile(r"[^\w@%+=:,./-]")
_BLANK = re.compile(r"[ \t\n]")
# of arguments that come from no shell text
_ALONE = SimpleCommand((), 0, "", "", 0)
_NO_VARIABLES = Variables(lambda offset: 1)


LineLookup = Callable[[int], int]  # from a character offset to its 1-based line


def line_lookup(text: str, first: int = 1) -> LineLookup:
    """Return the function from an offset in `text` to its line; the text starts on line `first`."""
    newlines = [match.start() for match in re.finditer("\n", text)]
    return lambda offset: bisect_left(newlines, offset) + first


def find_commands(
    text: str, line_of: LineLookup, reparses: int = 0, functions: frozenset[str] = frozenset()
) -> ScanResult:
    """Find every trainer command in a shell text. `functions`: see Variables.functions.

    A text with a quote that is never closed is parsed line by line instead, with every variable
    unknown.
    """
    if (MARKER if reparses else HINT).search(text) is None:
        return NO_COMMANDS
    if reparses > MAX_REPARSES:
        return not_followed(f"shell text inside {MAX_REPARSES} others", line_of(0))
    try:
        document = lex(text)
    except UnbalancedError as error:
        return _find_line_by_line(text, line_of, error, reparses)
    return _find_in_document(document, collect_variables(document, line_of, functions), reparses)


def find_in_arguments(
    arguments: Sequence[Argument],
    reparses: int = 0,
    command: SimpleCommand = _ALONE,
    variables: Variables = _NO_VARIABLES,
) -> ScanResult:
    """Find the trainer commands that one simple command starts, and whether it may start one that
    is not followed.

    `command` and `variables`: the arguments' own, if they come from a shell text.
    """
    name = command_name(arguments)
    if name is None or only_reads_arguments(name, arguments):
        return NO_COMMANDS
    if is_mason(arguments):
        return merge(
            _find_in_mason_group(group, reparses + 1)
            for _, *group in split_at_separators(arguments)[1:]
            if group
        )
    arguments = with_supplied(name, arguments)
    commands = [] if name.text == "eval" else find_trainer_starts(arguments)
    if commands:
        scan = ScanResult(tuple(commands))
        words = [
            word.text for command in commands for word in command.arguments if word.is_resolved
        ]
        if _JOINING.fullmatch(name.text) and any(map(_SPECIAL.search, words)):
            return scan.doubted(
                "not_followed", f"not followed: {name.text} joins the arguments for another shell"
            )
        return scan
    scan = merge(
        _find_in_text(argument, reparses, variables.functions)
        for argument in _shell_texts(name, arguments)
    )
    if scan != NO_COMMANDS:
        return scan
    reason = explain_unfollowed(name, arguments, command, variables)
    return NO_COMMANDS if reason is None else not_followed(reason, arguments[0].line)


def _find_in_text(argument: Argument, reparses: int, functions: frozenset[str]) -> ScanResult:
    """Find the commands in an argument that is shell text, where the outer shell's unknown values
    are unknown too.
    """
    text = _shell_text(argument)
    scan = find_commands(text, line_lookup(text, argument.line), reparses + 1, functions)
    if argument.is_resolved:
        return scan
    return replace(
        scan,
        commands=tuple(
            replace(found, arguments=_unresolve(found.arguments)) for found in scan.commands
        ),
    )


def _unresolve(arguments: Sequence[Argument]) -> tuple[Argument, ...]:
    """Mark what quotes of the inner shell make literal and the outer shell has replaced: `bash -c
    "... '$X'"`.
    """
    return tuple(
        argument._replace(is_resolved=False, prefix=argument.text.partition("$")[0])
        if argument.is_resolved and "$" in argument.text
        else argument
        for argument in arguments
    )


def _find_in_document(document: ShellDocument, variables: Variables, reparses: int) -> ScanResult:
    scans: list[ScanResult] = []
    expanded = [_expand(command, variables) for command in document.commands]
    for index, (command, arguments) in enumerate(zip(document.commands, expanded, strict=True)):
        scan = find_in_arguments(arguments, reparses, command, variables)
        if scan.commands:
            lost = _note_lost_arguments(document.commands, index, variables.line_of)
            commands = [
                replace(
                    started,
                    is_truncated=started.is_truncated or command.is_truncated,
                    notes=started.notes + lost,
                )
                for started in scan.commands
            ]
            scan = replace(scan, commands=tuple(commands))
            name = command_name(arguments)
            if (
                name is not None
                and variables.functions
                and (name.text in variables.functions or not name.is_resolved)
            ):
                message = (
                    f"not followed: {name.text} may be a function of this text, which "
                    "passes "
                    "other arguments on"
                )
                scan = scan.doubted("not_followed", message)
        scans.append(scan)
    bodies = [
        _find_in_heredoc(heredoc, variables.line_of, reparses) for heredoc in document.heredocs
    ]
    scan = merge([*scans, *find_unfollowed_declarations(document, expanded, variables), *bodies])
    by_line = {entry.line: entry for entry in reversed(scan.unfollowed)}
    return replace(scan, unfollowed=tuple(by_line[line] for line in sorted(by_line)))


def _expand(command: SimpleCommand, variables: Variables) -> list[Argument]:
    """Expand the command's words; the first argument gets the command's line, even if it is a
    variable's value.
    """
    arguments = expand_words(command.words, variables)
    if arguments:
        arguments[0] = arguments[0]._replace(line=variables.line_of(command.start))
    return arguments


def _find_in_heredoc(heredoc: Heredoc, line_of: LineLookup, reparses: int) -> ScanResult:
    body = _HEREDOC_ESCAPE.sub(r"\1", heredoc.body) if heredoc.expands else heredoc.body
    first = line_of(heredoc.start)
    is_text = MARKER.search(body) is None  # a file's, or a program's that starts no trainer
    if is_python_name(heredoc.command):
        return NO_COMMANDS if is_text else not_followed("a Python text mentions a trainer", first)
    if not heredoc.expands:
        return find_commands(body, line_lookup(body, first), reparses + 1)
    if is_text and heredoc.command in ("cat", "tee"):
        return NO_COMMANDS
    # The outer shell substitutes its own variables before the inner shell assigns any.
    document = lex(body, tolerant=True)
    return _find_in_document(document, Variables(line_lookup(body, first)), reparses + 1)


def _note_lost_arguments(
    commands: list[SimpleCommand], index: int, line_of: LineLookup
) -> tuple[LintFinding, ...]:
    """Note a next line that starts with a flag: the author meant it for this command, but the shell
    cuts it off.
    """
    command = commands[index]
    for following in commands[index + 1 :]:
        if following.depth > command.depth:
            continue
        first = following.words[0].text
        if (
            following.before != "\n"
            or command.after != "\n"
            or not first.startswith("--")
            or len(first) == 2
        ):
            break
        line = line_of(following.start)
        flag = first.lstrip("-").partition("=")[0]
        message = (
            f"the shell ends the command before this line, so {first} and what follows never reach "
            "the trainer; end "
            "each line but the last with a backslash, without trailing blanks, comments or blank "
            "lines between"
        )
        return (warning("lost_arguments", message, line, flag),)
    return ()


def _find_line_by_line(
    text: str, line_of: LineLookup, error: UnbalancedError, reparses: int
) -> ScanResult:
    line = line_of(error.offset)
    if isinstance(error, TooDeepError):
        scans = [not_followed(f"{error}; each other line is checked separately", line)]
    else:
        message = f"{error}: bash stops here, so each line is checked separately"
        scans = [ScanResult(notes=(warning("unbalanced_quote", message, line),))]
    offset = 0
    for parts in logical_lines(text):
        logical = "\n".join(parts)
        if MARKER.search(logical) is not None:
            document = lex(logical, tolerant=True)

            def at(inner: int, start: int = offset) -> int:
                return line_of(start + inner)

            inner = _find_in_document(document, Variables(at), reparses)
            notes: tuple[LintFinding, ...] = ()
            if opened := document.unbalanced:
                cut = f"{opened}, so the rest is not checked"
                notes = (warning("unbalanced_quote", cut, at(opened.offset)),)
            commands = (
                replace(command, notes=command.notes + notes) if command.is_truncated else command
                for command in inner.commands
            )
            # the text has one of its own
            scans.append(replace(inner, commands=tuple(commands), notes=()))
        offset += len(logical) + 1
    return merge(scans)


def _is_shell_text(arguments: Sequence[Argument], index: int) -> bool:
    """Return True if an argument is a whole command line: `bash -c "..."`, `--wrap="..."`, `eval
    "..."`.
    """
    argument = arguments[index]
    text = _shell_text(argument)
    if _BLANK.search(text) is None or MARKER.search(text) is None:
        return False
    before = arguments[index - 1].text if index else ""
    if before == "-c" and any(map(is_python, arguments[max(0, index - 4) : index])):
        return False  # Python's text
    return (
        _WRAP.match(argument.text) is not None
        or not before.startswith("-")
        or _SCRIPT_OPTION.fullmatch(before) is not None
    )


def _shell_texts(name: Argument, arguments: Sequence[Argument]) -> list[Argument]:
    """Return the arguments that are shell text; eval joins its own."""
    if name.text == "alias":
        return []
    if name.text != "eval":
        return [
            argument for index, argument in enumerate(arguments) if _is_shell_text(arguments, index)
        ]
    rest = arguments[arguments.index(name) + 1 :]
    text, raw = (
        " ".join(argument.text for argument in rest),
        " ".join(argument.raw for argument in rest),
    )
    return [Argument(text, name.line, all(argument.is_resolved for argument in rest), raw=raw)]


def _shell_text(argument: Argument) -> str:
    wrap = _WRAP.match(argument.raw)
    return argument.raw if wrap is None else argument.raw[wrap.end() :]


def _find_in_mason_group(arguments: Sequence[Argument], reparses: int) -> ScanResult:
    """Find the commands in arguments that mason joins with blanks for another shell
    (mason.py:389-392, 529-532).
    """
    texts = [argument.text for argument in arguments]
    texts = [
        f"'{text}'" if "{" in text.replace("${", "") or "</" in text else text for text in texts
    ]
    offsets = list(accumulate((len(text) + 1 for text in texts), initial=0))[:-1]

    def line(offset: int) -> int:
        index = max(0, bisect_right(offsets, offset) - 1)
        return arguments[index].line + texts[index].count("\n", 0, max(0, offset - offsets[index]))

    return _find_in_document(lex(" ".join(texts), tolerant=True), Variables(line), reparses)
