"""Read the files that lint checks: each kind of file has a reader that finds its commands."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from launch.check.lint.code_blocks import CodeBlock, find_code_blocks, find_notebook_blocks
from launch.check.lint.job_yaml import find_commands_in_yaml
from launch.check.lint.makefile import (
    dockerfile_as_shell,
    find_in_justfile,
    find_in_makefile,
    template_as_shell,
)
from launch.check.lint.shell import find_commands, line_lookup
from launch.check.lint.trainer_commands import (
    HINT,
    NO_COMMANDS,
    LintFinding,
    ScanResult,
    error,
    merge_scans,
    not_followed,
    starts_trainer,
    warning,
)
from launch.config.yaml_nodes import NotYamlError, read_yaml

MAX_BYTES = 64 * 1024 * 1024  # of a file; larger ones are not read
# The first line of a script; group 1 is the interpreter's name.
_SHEBANG = re.compile(r"#!\s*(?:\S*/env\s+(?:-\S+\s+|\w+=\S*\s+)*)?(?:\S*/)?([^\s/]+)")
_SHELLS = re.compile(r"\w*sh|g?make|just")  # interpreters whose scripts are read
# A placeholder that the reader of a document is meant to replace.
_PLACEHOLDER = re.compile(
    r"(?<=[\s=])(?:<[A-Za-z][\w ./-]*>|\.\.\.|\N{HORIZONTAL ELLIPSIS})(?=\s|$)"
)
# In a program: what starts another one; a line of a notebook that a shell runs has a mark.
_STARTS_PROGRAM = re.compile(
    r"system|popen|exec|subprocess|spawn|\brun\b|`|^\s*[!%]", re.IGNORECASE | re.MULTILINE
)
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_CODE_SUFFIX = re.compile(
    r"\.(?:py|c|cc|cpp|cu|h|js|ts|rs|go|java|toml|ini|cfg|lock|csv|jsonl|html|css|xml|conf)"
)


def list_files(path: Path) -> Iterator[Path]:
    """Yield the file itself, or the files of a folder that lint reads, sorted.

    Hidden and linked folders are skipped.
    """
    if not path.is_dir():
        yield path
        return
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            inner = Path(folder, name)
            is_readable = _reader_of(inner) is not None and inner.is_file()
            if is_readable and inner.suffix != ".json":  # JSON files are mostly data
                yield inner


def scan_file(path: Path, explicit: bool) -> ScanResult:
    """Read the commands and YAML documents of one file, with notes about it.

    No content raises an error. `explicit` means that the user named this file; a file of a kind that
    lint does not read is then reported.
    """
    text, notes = _read_text(path)
    if text is None:
        return ScanResult(notes=tuple(notes))
    read = _reader_of(path)
    if read is None:
        if not explicit:
            return NO_COMMANDS
        if _CODE_SUFFIX.fullmatch(path.suffix.lower()) and not text.startswith("#!"):
            kinds = "lint reads shell, Markdown, notebooks, YAML and make files"
            message = f"{path.suffix} files are not supported: {kinds}"
            return ScanResult(notes=(*notes, warning("not_read", message, 1)))
        read = _read_shell
    scan = _scan_text(text, path.suffix, read)
    return replace(scan, notes=(*notes, *scan.notes))


def _scan_text(text: str, suffix: str, read: _Reader) -> ScanResult:
    """Read the text of a file whose name ends with `suffix`."""
    shebang = _SHEBANG.match(text)
    interpreter = "" if shebang is None else shebang.group(1)
    is_other_language = bool(interpreter) and _SHELLS.fullmatch(interpreter) is None
    if is_other_language and read is _read_shell:
        if _may_start_trainer(text):
            return not_followed(f"lint does not read {interpreter}", 1)
        return NO_COMMANDS
    scan = read(text.replace("\r\n", "\n"), 1)
    if "zsh" in (interpreter, suffix[1:]) and "$" in text:
        scan = scan.doubted("not_followed", "not followed: zsh splits variables unlike bash")
    if "\r\n" in text and read in (_read_shell, find_in_makefile):
        message = (
            "the lines end with CRLF, "
            "and bash passes the carriage return on with the last word of a line"
        )
        scan = scan.doubted("carriage_return", message, "convert the file: sed -i 's/\\r$//' FILE")
    return scan


def _may_start_trainer(text: str) -> bool:
    """Return whether a program in a language that lint does not read may start a trainer.

    A text that only imports TRL, for example, does not.
    """
    return starts_trainer(text) and _STARTS_PROGRAM.search(text) is not None


def _read_text(path: Path) -> tuple[str | None, list[LintFinding]]:
    """Return the text of a file, or None, and notes about the file.

    The note is an error if the file is missing or cannot be opened.
    """
    try:
        if path.exists() and not path.is_file():
            return None, [error("not_a_file", "not a regular file", 1)]
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as fault:
        reason = getattr(fault, "strerror", None) or str(fault)
        return None, [error("cannot_open", f"cannot be opened: {reason}", 1)]
    if len(raw) > MAX_BYTES:
        message = f"the file is larger than {MAX_BYTES // 2**20} MiB and is not read"
        return None, [warning("too_large", message, 1)]
    return _decode(raw)


def _decode(raw: bytes) -> tuple[str | None, list[LintFinding]]:
    """Return the text of a file's content, or None, and notes about the content."""
    if not raw.strip():
        return None, [warning("empty_file", "the file is empty", 1)]
    if raw.startswith(_UTF16):
        return None, [warning("not_utf8", "the file is UTF-16; save it as UTF-8", 1)]
    if b"\0" in raw:
        return None, [warning("binary_file", "the file is binary and is not read", 1)]
    try:
        return raw.decode("utf-8-sig"), []
    except UnicodeDecodeError as fault:
        line = raw.count(b"\n", 0, fault.start) + 1
        byte = f"0x{raw[fault.start]:02x}"
        replacement = "'\N{REPLACEMENT CHARACTER}'"
        message = f"byte {byte} is not UTF-8; invalid bytes are read as {replacement}"
        return raw.decode("utf-8-sig", errors="replace"), [warning("not_utf8", message, line)]


def _read_shell(text: str, first: int) -> ScanResult:
    """Read a shell text that starts on line `first` of its file."""
    return find_commands(text, line_lookup(text, first))


def _read_markdown(text: str, first: int) -> ScanResult:
    """Read each code block of a Markdown file."""
    return _read_blocks(find_code_blocks(text))


def _read_notebook(text: str, first: int) -> ScanResult:
    """Read the commands of a Jupyter notebook."""
    if HINT.search(text) is None:  # most of a notebook is output
        return NO_COMMANDS
    try:
        return _read_blocks(find_notebook_blocks(text))
    except (ValueError, RecursionError) as fault:
        return ScanResult(notes=(warning("not_read", f"not a notebook: {fault}", 1),))


def _read_blocks(blocks: Iterable[CodeBlock]) -> ScanResult:
    scans: list[ScanResult] = []
    for block in blocks:
        read = _reader_of_language(block.language)
        if read is None:
            if _may_start_trainer(block.text):
                scans.append(not_followed(f"lint does not read {block.language}", block.line))
            continue
        inner = read(_PLACEHOLDER.sub("${_}", block.text), block.line)
        if block.fenced or inner.commands:  # an indented block may be prose
            scans.append(inner)
    return merge_scans(scans)


def _read_yaml(text: str, first: int) -> ScanResult:
    blank_lines = "\n" * (first - 1)  # they give each node its line in the file
    try:
        documents = tuple(read_yaml(blank_lines + text))
    except NotYamlError as fault:
        note = warning("not_yaml", f"not valid YAML: {fault.reason}", fault.line)
        return ScanResult(notes=(note,))
    return replace(find_commands_in_yaml(documents), documents=(documents,))


def _read_dockerfile(text: str, first: int) -> ScanResult:
    return _read_shell(dockerfile_as_shell(text), first)


def _read_template(text: str, first: int) -> ScanResult:
    return _read_shell(template_as_shell(text), first)


_Reader = Callable[[str, int], ScanResult]
_NEVER = "(?!)"  # a pattern that matches nothing
# Each reader, with a pattern of the names of its files, in lower case, and a pattern of the
# languages of its code blocks in Markdown.
_READERS: tuple[tuple[_Reader, str, str], ...] = (
    (find_in_makefile, r"(?:gnu)?makefile|.+\.(?:mk|make)", "make|makefile"),
    (find_in_justfile, r"\.?justfile|.+\.just", "just|justfile"),
    (_read_dockerfile, r"dockerfile.*|.+\.dockerfile", "docker|dockerfile"),
    (_read_markdown, r".+\.(?:md|markdown|mdx)", _NEVER),
    (_read_notebook, r".+\.ipynb", _NEVER),
    (_read_yaml, r".+\.(?:ya?ml|json)", "ya?ml|json"),
    (_read_template, r".+\.(?:j2|jinja2?|tmpl|tpl)", _NEVER),
    # Many job scripts have no suffix.
    (
        _read_shell,
        r".+\.(?:(?:ba|z|k)?sh|sbatch|slurm|txt|cmd|job)|\.?[^.]*\.?",
        "|(?:ba|z)?sh|shell|console|shell-?session|text|txt",
    ),
)


def _reader_of(path: Path) -> _Reader | None:
    """Return the reader of a file by its name; None if lint does not read such files."""
    for read, names, _ in _READERS:
        if re.fullmatch(names, path.name.lower(), re.DOTALL):
            return read
    return None


def _reader_of_language(language: str) -> _Reader | None:
    """Return the reader of a code block; None if lint does not read its language."""
    for read, _, languages in _READERS:
        if re.fullmatch(languages, language):
            return read
    return None
