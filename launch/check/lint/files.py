"""Read files, and find the commands and flag maps in them according to the kind of file."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from launch.check.lint.job_yaml import find_commands_in_yaml
from launch.check.lint.makefile import dockerfile_as_shell, find_recipes, template_as_shell
from launch.check.lint.markdown import find_code_blocks
from launch.check.lint.scan_result import NO_COMMANDS, LintFinding, ScanResult, error, merge, warning
from launch.check.lint.shell import find_commands, line_lookup
from launch.check.lint.trainers import starts_trainer
from launch.check.lint.unfollowed import not_followed
from launch.config.yaml_nodes import Node, NotYamlError, read_yaml

MAX_BYTES = 64 * 1024 * 1024


class FileKind(Enum):
    """How to read a file."""

    SHELL = "shell"
    MARKDOWN = "Markdown"
    YAML = "YAML"
    MAKEFILE = "Makefile"
    JUSTFILE = "justfile"
    DOCKERFILE = "Dockerfile"
    TEMPLATE = "template"
    OTHER = "other"


_SUFFIXES = {
    **dict.fromkeys((".sh", ".bash", ".sbatch", ".slurm", ".zsh", ".ksh", ".txt", ".cmd", ".job"), FileKind.SHELL),
    **dict.fromkeys((".md", ".markdown", ".mdx"), FileKind.MARKDOWN),
    **dict.fromkeys((".yaml", ".yml", ".json"), FileKind.YAML),
    **dict.fromkeys((".mk", ".make"), FileKind.MAKEFILE),
    **dict.fromkeys((".j2", ".jinja", ".jinja2", ".tpl", ".tmpl"), FileKind.TEMPLATE),
    ".just": FileKind.JUSTFILE,
    ".dockerfile": FileKind.DOCKERFILE,
}
_NAMES = {
    **dict.fromkeys(("makefile", "gnumakefile"), FileKind.MAKEFILE),
    **dict.fromkeys(("justfile", ".justfile"), FileKind.JUSTFILE),
}
_SHELL_LANGUAGES = ("", "bash", "sh", "shell", "zsh", "console", "shell-session", "shellsession", "text", "txt")
_LANGUAGES = {  # of the blocks in Markdown
    **dict.fromkeys(_SHELL_LANGUAGES, FileKind.SHELL),
    **dict.fromkeys(("yaml", "yml", "json"), FileKind.YAML),
    **dict.fromkeys(("make", "makefile"), FileKind.MAKEFILE),
    **dict.fromkeys(("just", "justfile"), FileKind.JUSTFILE),
    **dict.fromkeys(("docker", "dockerfile"), FileKind.DOCKERFILE),
}
# Usually data: skipped when a folder is searched, read when the user names the file.
_SKIPPED_IN_FOLDERS = frozenset({".json"})
_SHEBANG = re.compile(r"#!\s*(?:\S*/env\s+(?:-\S+\s+|\w+=\S*\s+)*)?(?:\S*/)?([^\s/]+)")
_SHELLS = re.compile(r"\w*sh|g?make|just")
_PLACEHOLDER = re.compile(
    r"(?<=[\s=])(?:<[A-Za-z][\w ./-]*>|\.\.\.|\N{HORIZONTAL ELLIPSIS})(?=\s|$)"
)  # for a reader to fill in
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_CODE_SUFFIX = re.compile(
    r"\.(?:py|ipynb|c|cc|cpp|cu|h|js|ts|rs|go|java|toml|ini|cfg|lock|csv|jsonl|html|css|xml|conf)"
)


@dataclass(frozen=True)
class FileContent:
    """What lint reads in a file."""

    scan: ScanResult = NO_COMMANDS  # its commands, and notes about the file
    documents: tuple[tuple[Node, ...], ...] = ()  # its YAML documents, which may contain maps of flags


def list_files(path: Path) -> Iterator[Path]:
    """Yield the file itself, or the files of a folder that lint reads, sorted; skip hidden and linked folders."""
    if not path.is_dir():
        yield path
        return
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            inner = Path(folder, name)
            if inner.suffix not in _SKIPPED_IN_FOLDERS and file_kind(inner) is not FileKind.OTHER and inner.is_file():
                yield inner


def file_kind(path: Path) -> FileKind:
    """Derive the kind from the name. A name without a suffix is shell, as many job scripts have none."""
    name = path.name.lower()
    if name in _NAMES or name.startswith("dockerfile"):
        return _NAMES.get(name, FileKind.DOCKERFILE)
    suffix = path.suffix.lower()
    if suffix in _SUFFIXES:
        return _SUFFIXES[suffix]
    return FileKind.OTHER if suffix else FileKind.SHELL


def read_content(path: Path, explicit: bool) -> FileContent:
    """Read the commands and YAML documents of one file; never raises because of its content.

    `explicit` means that the user named this file: then a kind that lint does not read is reported.
    """
    text, notes = _read_text(path)
    if text is None:
        return FileContent(ScanResult((), tuple(notes)))
    kind = file_kind(path)
    if kind is FileKind.OTHER:
        if not explicit:
            return FileContent()
        if _CODE_SUFFIX.fullmatch(path.suffix.lower()) and not text.startswith("#!"):
            message = f"{path.suffix} files are not supported: lint reads shell, Markdown, YAML and make files"
            return FileContent(ScanResult((), (*notes, warning("not_read", message, 1))))
        kind = FileKind.SHELL
    interpreter = _SHEBANG.match(text)
    name = "" if interpreter is None else interpreter.group(1)
    if name and _SHELLS.fullmatch(name) is None and kind is FileKind.SHELL:
        unread = (not_followed(f"lint does not read {name}", 1),) if starts_trainer(text) else ()
        return FileContent(ScanResult((), tuple(notes), unread))
    content = _parse(text.replace("\r\n", "\n"), kind)
    scan = content.scan
    if "zsh" in (name, path.suffix[1:]) and "$" in text:
        scan = scan.doubted("not_followed", "not followed: zsh splits variables unlike bash")
    if "\r\n" in text and kind in (FileKind.SHELL, FileKind.MAKEFILE):
        message = "the lines end with CRLF, and bash passes the carriage return on with the last word of a line"
        scan = scan.doubted("carriage_return", message, "convert the file: sed -i 's/\\r$//' FILE")
    return replace(content, scan=replace(scan, notes=(*notes, *scan.notes)))


def _read_text(path: Path) -> tuple[str | None, list[LintFinding]]:
    """Return the text, or None, and notes about the file; one that is missing or cannot be opened is an error."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            return None, [error("not_a_file", "not a regular file", 1)]
        raw = b"" if status.st_size > MAX_BYTES else path.read_bytes()
    except (OSError, ValueError) as fault:
        reason = fault.strerror if isinstance(fault, OSError) and fault.strerror else str(fault)
        return None, [error("cannot_open", f"cannot be opened: {reason}", 1)]
    if status.st_size > MAX_BYTES:
        message = f"the file is larger than {MAX_BYTES // 2**20} MiB and is not read"
        return None, [warning("too_large", message, 1)]
    return _decode(raw)


def _decode(raw: bytes) -> tuple[str | None, list[LintFinding]]:
    if not raw.strip():
        return None, [warning("empty_file", "the file is empty", 1)]
    if raw.startswith(_UTF16):
        return None, [warning("not_utf8", "the file is UTF-16; save it as UTF-8", 1)]
    if b"\0" in raw:
        return None, [warning("binary_file", "the file is binary and is not read", 1)]
    notes: list[LintFinding] = []
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        line = raw.count(b"\n", 0, fault.start) + 1
        message = f"byte 0x{raw[fault.start]:02x} is not UTF-8; invalid bytes are read as '\N{REPLACEMENT CHARACTER}'"
        notes.append(warning("not_utf8", message, line))
        text = raw.decode("utf-8", errors="replace").removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}")
    return text, notes


def _parse(text: str, kind: FileKind, first: int = 1) -> FileContent:
    """Parse a text that starts on line `first` of the file."""
    if kind is FileKind.MARKDOWN:
        return _parse_markdown(text)
    if kind is FileKind.YAML:
        return _parse_yaml(text, first)
    if kind in (FileKind.MAKEFILE, FileKind.JUSTFILE):
        recipes = find_recipes(text, kind is FileKind.MAKEFILE)
        scans = [find_commands(part, line_lookup(part, first + line - 1)) for line, part in recipes.parts]
        reason = "a trainer is named outside of the recipes"
        outside = tuple(not_followed(reason, first + line - 1) for line in recipes.outside)
        return FileContent(merge([*scans, ScanResult(unfollowed=outside)]))
    if kind is FileKind.TEMPLATE:
        text = template_as_shell(text)
    elif kind is FileKind.DOCKERFILE:
        text = dockerfile_as_shell(text)
    return FileContent(find_commands(text, line_lookup(text, first)))


def _parse_markdown(text: str) -> FileContent:
    scans: list[ScanResult] = []
    documents: list[tuple[Node, ...]] = []
    for block in find_code_blocks(text):
        if block.language not in _LANGUAGES:
            if starts_trainer(block.text):
                reason = f"lint does not read {block.language}"
                scans.append(ScanResult(unfollowed=(not_followed(reason, block.line),)))
            continue
        inner = _parse(_PLACEHOLDER.sub("${_}", block.text), _LANGUAGES[block.language], block.line)
        documents.extend(inner.documents)
        if block.fenced or inner.scan.commands:  # an indented block may be prose
            scans.append(inner.scan)
    return FileContent(merge(scans), tuple(documents))


def _parse_yaml(text: str, first: int) -> FileContent:
    try:  # blank lines replace what is before it
        documents = tuple(read_yaml("\n" * (first - 1) + text))
    except NotYamlError as fault:
        return FileContent(ScanResult((), (warning("not_yaml", f"not valid YAML: {fault.reason}", fault.line),)))
    return FileContent(find_commands_in_yaml(documents), (documents,))
