"""Find trainer commands in shell text, also in `bash -c`, here-documents and substitutions."""

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
    TrainerCommand,
    merge_scans,
    not_followed,
    warning,
)
from launch.check.lint.unfollowed import explain_unfollowed, find_unfollowed_declarations, is_python
from launch.check.lint.variables import Variables, collect_variables

MAX_REPARSES = 5  # levels of shell text inside shell words: `bash -c "ssh host '...'"`

_SCRIPT_OPTION = re.compile(r"-[a-z]*c|--(?:wrap|command|cmd|run|script)")
_WRAP = re.compile(r"--(?:wrap|command|cmd)=")
_HEREDOC_ESCAPE = re.compile(r"\\([$`\\])")
# The programs that join their arguments for another shell, which splits them again.
_JOINING = re.compile(r"(?:.*/)?(?:ssh|rsh|mosh|pdsh|clush|watch|parallel)")
_SPECIAL = re.compile(r"[^\w@%+=:,./-]")
_BLANK = re.compile(r"[ \t\n]")
# The command of arguments that do not come from a shell text.
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
    """Find every trainer command in a shell text; `functions` are those of Variables.functions.

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
    variables = collect_variables(document, line_of, functions)
    return _find_in_document(document, variables, reparses)


def find_in_arguments(
    arguments: Sequence[Argument],
    reparses: int = 0,
    command: SimpleCommand = _ALONE,
    variables: Variables = _NO_VARIABLES,
) -> ScanResult:
    """Find the trainer commands that one simple command starts, or may start.

    `command` and `variables` are those of the arguments, if these come from a shell text.
    """
    name = command_name(arguments)
    if name is None or only_reads_arguments(name, arguments):
        return NO_COMMANDS
    if is_mason(arguments):
        groups = [group[1:] for group in split_at_separators(arguments)[1:]]
        return merge_scans(_find_in_mason_group(group, reparses + 1) for group in groups if group)
    arguments = with_supplied(name, arguments)
    commands = [] if name.text == "eval" else find_trainer_starts(arguments)
    if commands:
        scan = ScanResult(tuple(commands))
        if _JOINING.fullmatch(name.text) and any(map(_has_special_sign, commands)):
            message = f"not followed: {name.text} joins the arguments for another shell"
            return scan.doubted("not_followed", message)
        return scan
    texts = _shell_texts(name, arguments)
    scan = merge_scans(_find_in_text(text, reparses, variables.functions) for text in texts)
    if scan != NO_COMMANDS:
        return scan
    reason = explain_unfollowed(name, arguments, command, variables)
    return NO_COMMANDS if reason is None else not_followed(reason, arguments[0].line)


def _has_special_sign(command: TrainerCommand) -> bool:
    """Return True if another shell may split or replace one of the command's known arguments."""
    return any(
        argument.is_resolved and _SPECIAL.search(argument.text) for argument in command.arguments
    )


def _find_in_text(argument: Argument, reparses: int, functions: frozenset[str]) -> ScanResult:
    """Find the commands in an argument that is shell text.

    The outer shell's unknown values are unknown there, too.
    """
    text = _shell_text(argument)
    scan = find_commands(text, line_lookup(text, argument.line), reparses + 1, functions)
    if argument.is_resolved:
        return scan
    commands = []
    for command in scan.commands:
        arguments = tuple(_unresolve(argument) for argument in command.arguments)
        commands.append(replace(command, arguments=arguments))
    return replace(scan, commands=tuple(commands))


def _unresolve(argument: Argument) -> Argument:
    """Mark an argument that the inner shell quotes and the outer one has replaced.

    That is `'$X'` in `bash -c "... '$X'"`.
    """
    if not argument.is_resolved or "$" not in argument.text:
        return argument
    return argument._replace(is_resolved=False, prefix=argument.text.partition("$")[0])


def _find_in_document(document: ShellDocument, variables: Variables, reparses: int) -> ScanResult:
    scans: list[ScanResult] = []
    expanded = [_expand(command, variables) for command in document.commands]
    for index, arguments in enumerate(expanded):
        command = document.commands[index]
        scan = find_in_arguments(arguments, reparses, command, variables)
        if scan.commands:
            lost = _note_lost_arguments(document.commands, index, variables.line_of)
            scan = _add_doubts(scan, command, lost)
            name = command_name(arguments)
            if name is not None and _may_be_function(name, variables):
                message = (
                    f"not followed: {name.text} may be a function of this text, "
                    "which passes other arguments on"
                )
                scan = scan.doubted("not_followed", message)
        scans.append(scan)
    scans.extend(find_unfollowed_declarations(document, expanded, variables))
    line_of = variables.line_of
    scans += [_find_in_heredoc(heredoc, line_of, reparses) for heredoc in document.heredocs]
    scan = merge_scans(scans)
    # Of several reasons on a line, the first one is listed.
    by_line = {entry.line: entry for entry in reversed(scan.unfollowed)}
    return replace(scan, unfollowed=tuple(by_line[line] for line in sorted(by_line)))


def _add_doubts(
    scan: ScanResult, command: SimpleCommand, notes: tuple[LintFinding, ...]
) -> ScanResult:
    """Add the notes to each trainer command of a simple command, and whether that is truncated."""
    commands = []
    for trainer_command in scan.commands:
        is_truncated = trainer_command.is_truncated or command.is_truncated
        all_notes = trainer_command.notes + notes
        commands.append(replace(trainer_command, is_truncated=is_truncated, notes=all_notes))
    return replace(scan, commands=tuple(commands))


def _may_be_function(name: Argument, variables: Variables) -> bool:
    """Return True if a command may call a function of the text that passes on other arguments."""
    if not variables.functions:
        return False
    return name.text in variables.functions or not name.is_resolved


def _expand(command: SimpleCommand, variables: Variables) -> list[Argument]:
    """Expand the command's words.

    The first argument gets the command's line, even if it is a variable's value.
    """
    arguments = expand_words(command.words, variables)
    if arguments:
        arguments[0] = arguments[0]._replace(line=variables.line_of(command.start))
    return arguments


def _find_in_heredoc(heredoc: Heredoc, line_of: LineLookup, reparses: int) -> ScanResult:
    body = _HEREDOC_ESCAPE.sub(r"\1", heredoc.body) if heredoc.expands else heredoc.body
    first = line_of(heredoc.start)
    mentions_trainer = MARKER.search(body) is not None
    if is_python_name(heredoc.command):
        if not mentions_trainer:
            return NO_COMMANDS
        return not_followed("a Python text mentions a trainer", first)
    if not heredoc.expands:
        return find_commands(body, line_lookup(body, first), reparses + 1)
    if not mentions_trainer and heredoc.command in ("cat", "tee"):
        return NO_COMMANDS
    # The outer shell substitutes its own variables before the inner shell assigns any.
    document = lex(body, tolerant=True)
    return _find_in_document(document, Variables(line_lookup(body, first)), reparses + 1)


def _note_lost_arguments(
    commands: list[SimpleCommand], index: int, line_of: LineLookup
) -> tuple[LintFinding, ...]:
    """Note a next line that starts with a flag.

    Its author meant the flag for this command, but the shell cuts it off.
    """
    command = commands[index]
    for following in commands[index + 1 :]:
        if following.depth > command.depth:
            continue
        first = following.words[0].text
        is_next_line = following.before == "\n" and command.after == "\n"
        is_flag = first.startswith("--") and len(first) > 2
        if not is_next_line or not is_flag:
            break
        line = line_of(following.start)
        flag = first.lstrip("-").partition("=")[0]
        message = (
            f"the shell ends the command before this line, so {first} and what follows never reach "
            "the trainer; end each line but the last with a backslash, without trailing blanks, "
            "comments or blank lines between"
        )
        return (warning("lost_arguments", message, line, flag),)
    return ()


def _find_line_by_line(
    text: str, line_of: LineLookup, error: UnbalancedError, reparses: int
) -> ScanResult:
    """Find the commands of a text that cannot be read as a whole, because of `error`."""
    line = line_of(error.offset)
    if isinstance(error, TooDeepError):
        scans = [not_followed(f"{error}; each other line is checked separately", line)]
    else:
        message = f"{error}: bash stops here, so each line is checked separately"
        scans = [ScanResult(notes=(warning("unbalanced_quote", message, line),))]
    offset = 0
    for parts in logical_lines(text):
        logical_line = "\n".join(parts)
        if MARKER.search(logical_line) is not None:
            scan = _find_in_logical_line(logical_line, offset, line_of, reparses)
            # the note about the whole text replaces those about its lines
            scans.append(replace(scan, notes=()))
        offset += len(logical_line) + 1
    return merge_scans(scans)


def _find_in_logical_line(
    logical_line: str, start: int, line_of: LineLookup, reparses: int
) -> ScanResult:
    """Find the commands of a line that starts at the offset `start` of its text.

    A command is noted if a quote in it is never closed.
    """
    document = lex(logical_line, tolerant=True)
    variables = Variables(lambda offset: line_of(start + offset))
    scan = _find_in_document(document, variables, reparses)
    unbalanced = document.unbalanced
    if unbalanced is None:
        return scan
    message = f"{unbalanced}, so the rest is not checked"
    note = warning("unbalanced_quote", message, variables.line_of(unbalanced.offset))
    commands = []
    for command in scan.commands:
        notes = (*command.notes, note) if command.is_truncated else command.notes
        commands.append(replace(command, notes=notes))
    return replace(scan, commands=tuple(commands))


def _is_shell_text(arguments: Sequence[Argument], index: int) -> bool:
    """Return True if an argument is a command line, as in `bash -c "..."` and `--wrap="..."`."""
    argument = arguments[index]
    text = _shell_text(argument)
    if _BLANK.search(text) is None or MARKER.search(text) is None:
        return False
    before = arguments[index - 1].text if index else ""
    if before == "-c" and any(map(is_python, arguments[max(0, index - 4) : index])):
        return False  # it is Python text
    if _WRAP.match(argument.text) or not before.startswith("-"):
        return True
    return _SCRIPT_OPTION.fullmatch(before) is not None


def _shell_texts(name: Argument, arguments: Sequence[Argument]) -> list[Argument]:
    """Return the arguments that are shell text; eval joins all of its arguments."""
    if name.text == "alias":
        return []
    if name.text != "eval":
        indices = [index for index in range(len(arguments)) if _is_shell_text(arguments, index)]
        return [arguments[index] for index in indices]
    joined = arguments[arguments.index(name) + 1 :]
    text = " ".join(argument.text for argument in joined)
    raw = " ".join(argument.raw for argument in joined)
    is_resolved = all(argument.is_resolved for argument in joined)
    return [Argument(text, name.line, is_resolved, raw=raw)]


def _shell_text(argument: Argument) -> str:
    """Return the argument's text, without `--wrap=` before it."""
    wrap = _WRAP.match(argument.raw)
    return argument.raw if wrap is None else argument.raw[wrap.end() :]


def _find_in_mason_group(arguments: Sequence[Argument], reparses: int) -> ScanResult:
    """Find the commands in arguments that mason joins with blanks for another shell.

    mason.py:389-392 and 529-532 quote and join them.
    """
    texts = [_quote_like_mason(argument.text) for argument in arguments]
    offsets = list(accumulate((len(text) + 1 for text in texts), initial=0))[:-1]

    def line_of(offset: int) -> int:
        index = max(0, bisect_right(offsets, offset) - 1)
        offset_in_text = max(0, offset - offsets[index])
        return arguments[index].line + texts[index].count("\n", 0, offset_in_text)

    document = lex(" ".join(texts), tolerant=True)
    return _find_in_document(document, Variables(line_of), reparses)


def _quote_like_mason(text: str) -> str:
    """Quote a text as mason does: if it has a brace that opens no variable, or a closing tag."""
    needs_quotes = "{" in text.replace("${", "") or "</" in text
    return f"'{text}'" if needs_quotes else text
