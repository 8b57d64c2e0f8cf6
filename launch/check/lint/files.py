"""Check files: read each by its kind, find its commands and maps of flags, return the verdicts."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from launch.check.lint.checker import CommandChecker, LintVerdict
from launch.check.lint.flag_files import FlagMap, find_flag_maps
from launch.check.lint.job_yaml import find_commands_in_yaml
from launch.check.lint.makefile import (
    dockerfile_as_shell,
    find_in_justfile,
    find_in_makefile,
    template_as_shell,
)
from launch.check.lint.shell import find_commands, find_in_arguments, line_lookup
from launch.check.lint.shell_syntax import literal_argument
from launch.check.lint.trainer_commands import (
    NO_COMMANDS,
    LintFinding,
    ScanResult,
    TrainerScript,
    error,
    merge,
    not_followed,
    starts_trainer,
    warning,
)
from launch.config.yaml_nodes import NotYamlError, read_yaml

_PROMPT = re.compile(
    r"^[^\S\n]*(?:\([\w.-]+\)[^\S\n]*)?(?:\[[^\]\n]*\][^\S\n]*)?[$%][^\S\n]+", re.MULTILINE
)
MAX_ADMONITIONS = 4  # levels of one inside another


@dataclass(frozen=True)
class CodeBlock:
    """A block of code."""

    language: str  # "" if none is given
    text: str
    line: int  # 1-based line where the text starts
    fenced: bool


def find_code_blocks(text: str, line: int = 1, depth: int = 0) -> Iterator[CodeBlock]:
    """Yield the code blocks of a Markdown text that starts on `line`.

    A fence that is never closed extends to the end. `depth` is the number of indented blocks around
    the text: an admonition is such a block, and may contain fences.
    """
    from markdown_it import MarkdownIt  # slow to import, and most files are scripts

    parser = MarkdownIt("zero").enable(["fence", "code", "list", "blockquote"])
    for token in parser.parse(text.replace("\r", " ")):
        start = line + (token.map or [0])[0]
        if token.type == "fence":
            language = re.split(r"[\s,{:]", token.info.strip().lower() + " ")[0]
            yield CodeBlock(language, _PROMPT.sub("", token.content), start + 1, True)
        elif token.type == "code_block":
            fences: list[CodeBlock] = []
            if depth < MAX_ADMONITIONS:
                inner = find_code_blocks(token.content, start, depth + 1)
                fences = [block for block in inner if block.fenced]
            if fences:
                yield from fences
            else:
                yield CodeBlock("", _PROMPT.sub("", token.content), start, False)


MAX_BYTES = 64 * 1024 * 1024


_SHEBANG = re.compile(r"#!\s*(?:\S*/env\s+(?:-\S+\s+|\w+=\S*\s+)*)?(?:\S*/)?([^\s/]+)")
_SHELLS = re.compile(r"\w*sh|g?make|just")
# A placeholder that the reader of a document is meant to replace.
_PLACEHOLDER = re.compile(
    r"(?<=[\s=])(?:<[A-Za-z][\w ./-]*>|\.\.\.|\N{HORIZONTAL ELLIPSIS})(?=\s|$)"
)
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_CODE_SUFFIX = re.compile(
    r"\.(?:py|ipynb|c|cc|cpp|cu|h|js|ts|rs|go|java|toml|ini|cfg|lock|csv|jsonl|html|css|xml|conf)"
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
            # JSON is left out: it is mostly data.
            if inner.suffix != ".json" and _reader_of(inner) is not None and inner.is_file():
                yield inner


def scan_file(path: Path, explicit: bool) -> ScanResult:
    """Read the commands and YAML documents of one file, with notes about it.

    Its content never raises an error. `explicit` means that the user named this file: then a kind
    of file that lint does not read is reported.
    """
    text, notes = _read_text(path)
    if text is None:
        return ScanResult(notes=tuple(notes))
    read = _reader_of(path)
    if read is None:
        if not explicit:
            return NO_COMMANDS
        if _CODE_SUFFIX.fullmatch(path.suffix.lower()) and not text.startswith("#!"):
            kinds = "lint reads shell, Markdown, YAML and make files"
            message = f"{path.suffix} files are not supported: {kinds}"
            return ScanResult(notes=(*notes, warning("not_read", message, 1)))
        read = _read_shell
    interpreter = _SHEBANG.match(text)
    name = "" if interpreter is None else interpreter.group(1)
    is_other_language = bool(name) and _SHELLS.fullmatch(name) is None
    if not is_other_language or read is not _read_shell:
        scan = read(text.replace("\r\n", "\n"), 1)
    elif starts_trainer(text):
        scan = not_followed(f"lint does not read {name}", 1)
    else:
        scan = NO_COMMANDS
    if "zsh" in (name, path.suffix[1:]) and "$" in text:
        scan = scan.doubted("not_followed", "not followed: zsh splits variables unlike bash")
    if "\r\n" in text and read in (_read_shell, find_in_makefile):
        message = (
            "the lines end with CRLF, "
            "and bash passes the carriage return on with the last word of a line"
        )
        scan = scan.doubted("carriage_return", message, "convert the file: sed -i 's/\\r$//' FILE")
    return replace(scan, notes=(*notes, *scan.notes))


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
        reason = fault.strerror if isinstance(fault, OSError) and fault.strerror else str(fault)
        return None, [error("cannot_open", f"cannot be opened: {reason}", 1)]
    if len(raw) > MAX_BYTES:
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
    scans: list[ScanResult] = []
    for block in find_code_blocks(text):
        read = _reader_of_language(block.language)
        if read is None:
            if starts_trainer(block.text):
                scans.append(not_followed(f"lint does not read {block.language}", block.line))
            continue
        inner = read(_PLACEHOLDER.sub("${_}", block.text), block.line)
        if block.fenced or inner.commands:  # an indented block may be prose
            scans.append(inner)
    return merge(scans)


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
# Each reader with a pattern of its files' names, in lower case, and one of the languages of its
# code blocks in Markdown.
_READERS: tuple[tuple[_Reader, str, str], ...] = (
    (find_in_makefile, r"(?:gnu)?makefile|.+\.(?:mk|make)", "make|makefile"),
    (find_in_justfile, r"\.?justfile|.+\.just", "just|justfile"),
    (_read_dockerfile, r"dockerfile.*|.+\.dockerfile", "docker|dockerfile"),
    (_read_markdown, r".+\.(?:md|markdown|mdx)", _NEVER),
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


# In the order of preference when a file of flags suits several.
_NAMES = (
    "finetune",
    "dpo_tune_cache",
    "dpo",
    "olmo_core_finetune",
    "reward_modeling",
    "trl_sft",
    "trl_dpo",
)
TRAINERS = tuple(map(TrainerScript, _NAMES))


@dataclass(frozen=True)
class FileReport:
    """The result for one file."""

    file: str
    verdicts: tuple[LintVerdict, ...]  # verdicts in the order of their lines
    notes: tuple[LintFinding, ...]  # findings about the file itself


def check_files(
    paths: Iterable[str], checker: CommandChecker, trainer: TrainerScript | None = None
) -> Iterator[FileReport]:
    """Check each file, and each file of each folder.

    Unreadable content in one file does not affect the others.
    """
    for name in paths:
        path = Path(name)
        for file in list_files(path):
            yield check_file(file, checker, trainer, explicit=file == path)


def check_file(
    path: Path, checker: CommandChecker, trainer: TrainerScript | None = None, explicit: bool = True
) -> FileReport:
    """Check one file's commands and maps of flags.

    `trainer` is the one that YAML files of flags are checked against, None to detect it. `explicit`
    means that the user named this file, rather than a folder that contains it.
    """
    return _check(str(path), scan_file(path, explicit), checker, trainer)


def check_argv(argv: Sequence[str], checker: CommandChecker) -> FileReport:
    """Check one command as the shell has expanded it.

    A command is undecided if it starts no trainer that lint knows.
    """
    arguments = [literal_argument(text, 1) for text in argv]
    scan = find_in_arguments(arguments)
    if not scan.commands and not scan.unfollowed:
        scan = merge([scan, not_followed(f"'{argv[0]}' starts no trainer that lint knows", 1)])
    return _check("command line", scan, checker)


def _check(
    file: str, scan: ScanResult, checker: CommandChecker, trainer: TrainerScript | None = None
) -> FileReport:
    verdicts = [checker.check_command(file, command) for command in scan.commands]
    verdicts += [LintVerdict(file, entry.line, "", None, (entry,)) for entry in scan.unfollowed]
    trainer = None if verdicts else trainer
    for documents in scan.documents:
        for flags in find_flag_maps(documents, trainer, TRAINERS, checker.schemas.fields):
            if flags.trainer is not None:
                verdicts.append(checker.check_flag_map(file, flags.trainer, flags))
            else:
                verdicts.append(_check_with_best_trainer(file, flags, checker))
    verdicts.sort(key=lambda verdict: verdict.line)
    return FileReport(file, tuple(verdicts), scan.notes)


def _check_with_best_trainer(file: str, flags: FlagMap, checker: CommandChecker) -> LintVerdict:
    """Check a map of flags whose file names no trainer.

    It is checked against the first trainer that accepts it, else against the closest one.
    """
    names = [key.text.replace("-", "_") for key, _ in flags.entries]
    unknown_counts: dict[TrainerScript, int] = {}
    for trainer in TRAINERS:
        fields = checker.schemas.fields(trainer)
        unknown_counts[trainer] = sum(1 for name in names if name not in fields)
    candidates = [trainer for trainer in TRAINERS if unknown_counts[trainer] == 0]
    if not candidates:
        candidates = [min(TRAINERS, key=lambda trainer: unknown_counts[trainer])]
    verdicts = [checker.check_flag_map(file, trainer, flags) for trainer in candidates]
    closest = min(verdicts, key=_distance)
    if closest.ok is not False:
        return closest
    message = (
        "no trainer accepts this file; the problems listed are those of the closest one, "
        f"{closest.script} (use --trainer to choose another)"
    )
    note = warning("no_trainer_accepts", message, flags.line)
    return replace(closest, findings=(note, *closest.findings))


def _distance(verdict: LintVerdict) -> tuple[int, int]:
    """Order verdicts: accepted, undecided, refused; the fewest problems first."""
    return ((True, None, False).index(verdict.ok), len(verdict.problems))
