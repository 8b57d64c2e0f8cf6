"""The local files that a run reads: those that were planned are those that the trainer has loaded.

They are compared before the start, when the trainer has loaded them, and at the end. A file whose
device, inode, size and times are the same is not read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from launch.digests import Digest, digest_folder
from launch.errors import UserError
from launch.planning.identity import digest_flag_files, digest_inputs
from launch.planning.model_folder import is_model_folder, is_no_part
from launch.planning.plan import Plan
from launch.worker.finding import Finding, Fix
from launch.worker.opened import FileState, file_state

CHANGED = "input_changed"
# The files of a model's folder that transformers looks for by their names, or by those in others.
_LOADED = (
    *("*.safetensors", "*.bin", "*.index.json", "*config.json", "*.py", "*.jinja", "*.model"),
    *("tokenizer*", "vocab*", "merges.txt", "*tokens*.json", "chat_template*"),
)
_SHOWN = 2  # files that a message names
_CURE = Fix.of("start again: it plans with the file as it is now; or set {0}", f"allow=[{CHANGED}]")


@dataclass(frozen=True)
class ReadFile:
    """A file as it was when the run began."""

    state: FileState
    digest: str


@dataclass(frozen=True)
class ReadFiles:
    """The files that a run reads, by their paths."""

    files: Mapping[Path, ReadFile]
    folders: tuple[Path, ...] = ()  # in which a file may be added

    def find_changes(self, digest: Digest) -> list[str]:
        """Return what has changed since the run began, a phrase for each file."""
        changes = []
        for path, read in self.files.items():
            if not self._is_same(path, read, digest):
                changes.append(f"{path} changed" if path.is_file() else f"{path} is gone")
        for folder in self.folders:
            present = _files_of(folder, lambda file: "known")
            added = [path for path in present if path not in self.files and _is_loaded(path.name)]
            changes += [f"{path} was added" for path in added]
        return changes

    def find_others(self, opened: Iterable[tuple[Path, FileState]], digest: Digest) -> list[str]:
        """Return which of the files that the trainer has `opened` were others than these.

        Each has the state that the trainer saw. One that is neither that at the start nor the
        present one belongs to a content that nobody knows any more.
        """
        changes = []
        for path, state in opened:
            read = self.files.get(path)
            if read is None or state == read.state:
                continue
            is_present = _state_of(path) == state
            if not is_present or not self._is_same(path, read, digest):
                changes.append(f"{path} was another file when the trainer loaded it")
        return changes

    def find_reported(self, opened: Iterable[tuple[Path, FileState]]) -> list[str]:
        """Return which files that were not planned, but `opened`, have changed while the run did.

        Such are the modules that a verifier imports. Every report of a file, and the file at the
        end, has to have one state. What else lies beside a model, such as a log, is no part of it.
        """
        states: dict[Path, set[FileState | None]] = {}
        for path, state in opened:
            if path not in self.files and path.parent not in self.folders:
                states.setdefault(path, {_state_of(path)}).add(state)
        return [f"{path} changed" for path, seen in states.items() if len(seen) > 1]

    @staticmethod
    def _is_same(path: Path, read: ReadFile, digest: Digest) -> bool:
        state = _state_of(path)
        return state is not None and (state == read.state or digest(path) == read.digest)


def _is_loaded(name: str) -> bool:
    """Return whether transformers may load a file of this name that was added to a model."""
    return any(fnmatchcase(name, pattern) for pattern in _LOADED)


def name_first(changes: list[str]) -> str:
    """Return the first files that have changed, and how many more there are."""
    more = f" and {len(changes) - _SHOWN} more" if len(changes) > _SHOWN else ""
    return f"{', '.join(changes[:_SHOWN])}{more}"


def describe(changes: list[str]) -> str:
    """Return the sentence about files that have changed since the start."""
    return f"what the run reads is not what was planned: {name_first(changes)}"


def _state_of(path: Path) -> FileState | None:
    try:
        return file_state(path)
    except OSError:
        return None


def read_files(plan: Plan, digest: Digest) -> ReadFiles:
    """Return the files that the trainer of a plan reads, as they are now."""
    files: dict[Path, ReadFile] = {}
    folders = []
    for place in dict.fromkeys(_places(plan)):
        if place.is_dir():
            folders.append(place)
        for path, value in _files_of(place, digest).items():
            state = _state_of(path)
            if state is not None:
                files[path] = ReadFile(state, value)
    return ReadFiles(files, tuple(folders))


def _files_of(place: Path, digest: Digest) -> dict[Path, str]:
    """Return the digest of a file, or those of a folder's files, by path."""
    if place.is_file():
        value = digest(place)
        return {place: value} if value is not None else {}
    is_left_out = is_no_part if is_model_folder(place) else _never
    return {
        place / name: value for name, value in digest_folder(place, digest, is_left_out).items()
    }


def _never(name: str) -> bool:
    return False


def _places(plan: Plan) -> Iterator[Path]:
    """Yield the files and folders of this machine that the trainer reads."""
    model = plan.inputs.model
    adapter = model.adapter
    candidates = [model.local, *plan.inputs.verifier_files, *plan.parallel.files]
    if adapter is not None and model.build is None:
        candidates += [adapter.folder, adapter.local_base]
    for entry in plan.inputs.mixture:
        candidates.append(entry.data.folder if entry.data is not None else entry.source.local)
    if plan.template is not None and plan.template.file is not None:
        of_trl = plan.trl_template is not None  # its other forms lie beside it
        candidates.append(plan.template.file.parent if of_trl else plan.template.file)
    cwd = plan.machine.cwd
    for key in digest_flag_files(plan.config.flags, lambda path: "known", cwd):
        candidates.append(cwd / Path(key.partition("=")[2]).expanduser())
    for candidate in candidates:
        if candidate is not None and candidate.exists():
            yield candidate


def refuse_changed_inputs(plan: Plan, digest: Digest) -> None:
    """Raise UserError (input_changed) if a local input is not the one that was planned."""
    if CHANGED in plan.config.allow:
        return
    planned = plan.content.digests
    now = digest_inputs(plan.inputs, digest)
    changes = [
        f"{path} changed" for path, value in now.items() if planned.get(path, value) != value
    ]
    template = plan.template.file if plan.template is not None else None
    is_own = template in planned and plan.trl_template is None  # a file of the user's
    if template is not None and is_own and digest(template) != planned[template]:
        changes.append(f"{template} changed")
    by_path = {str(path): digest(path) for path in plan.parallel.files}
    flag_files = digest_flag_files(plan.config.flags, digest, plan.machine.cwd)
    for name, value in {**by_path, **flag_files}.items():
        if plan.input_digests.get(name, value) != value:
            changes.append(f"{name} changed")
    if changes:
        message = f"what the run reads is not what was planned: {name_first(changes)}"
        raise UserError(Finding.error("input_changed", message, None, _CURE))
