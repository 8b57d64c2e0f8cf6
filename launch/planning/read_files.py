"""The local files that a run reads: those that were planned are those that the trainer has loaded.

They are compared before the start, and in the state in which each was loaded. What changes later is
only reported. A file whose device, inode, size and times are the same is not read again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from launch.digests import Digest, digest_folder
from launch.errors import UserError
from launch.planning.identity import digest_flag_files
from launch.planning.model_folder import is_model_folder, is_unrelated
from launch.planning.plan import Plan
from launch.worker.finding import Finding, Fix
from launch.worker.opened import FileState, FileUse, file_state, is_same_file

CHANGED = "input_changed"
# The files of a model's folder that transformers looks for by their names, or by those in others.
_LOADED = (
    *("*.safetensors", "*.bin", "*.index.json", "*config.json", "*.py", "*.jinja", "*.model"),
    *("tokenizer*", "vocab*", "merges.txt", "*tokens*.json", "chat_template*"),
)
_SHOWN = 2  # files that a message names
_CURE = Fix.of("start again: it plans with the file as it is now; or set {0}", f"allow=[{CHANGED}]")

_CURE_OF_NODES = Fix.of("make the file the same on all nodes, or set {0}", f"allow=[{CHANGED}]")


@dataclass(frozen=True)
class ReadFile:
    """A file as it was when the run began."""

    state: FileState
    digest: str


@dataclass(frozen=True)
class ReadFiles:
    """The files that a run reads, by their paths, as they were when it began."""

    files: Mapping[Path, ReadFile]
    folders: tuple[Path, ...] = ()  # in which a file may be added


class LoadedFiles:
    """Compares the files that a run's processes load with those that were planned.

    What counts is the state of a file when it was loaded: `changes` has what was not as planned
    then, and ends the run; `notes` has what changed afterwards, and ends nothing. Each is a phrase.
    """

    def __init__(self, planned: ReadFiles, digest: Digest) -> None:
        self.changes: list[str] = []
        self.notes: list[str] = []
        self.planned = planned
        self._digest = digest
        # the states of planned files that were found to have the planned content
        self._same = {path: {read.state} for path, read in planned.files.items()}
        self._loaded: set[Path] = set()  # planned files that were loaded as they were planned
        # other files that a verifier uses, as each was when it was first used
        self.used: dict[Path, ReadFile] = {}
        self._rewritten: set[Path] = set()  # by the verifier that has read them
        self._listed: dict[Path, set[Path]] = {}  # what a loaded folder held then
        self._is_compared = False

    def add(self, path: Path, state: FileState, use: FileUse) -> None:
        """Add a file that a process has used, in the state that it saw."""
        folder = next((each for each in self.planned.folders if each in path.parents), None)
        if use == "load" and folder is not None:
            if is_unrelated(path.relative_to(folder).as_posix()):
                return
            self._listed.setdefault(folder, set()).add(path)
        if use == "write":
            self._add_rewritten(path)
        elif path in self.planned.files:
            self._add_planned(path, state, use)
        elif use == "load":
            if folder is not None and _is_loaded(path.name):
                self._add_change(f"{path} was added")
        else:
            self._add_other(path, state, use)

    def _add_planned(self, path: Path, state: FileState, use: FileUse) -> None:
        is_read_again = use == "read" and path in self._loaded
        if self._is_planned(path, state):
            self._loaded.add(path)
        elif is_read_again:
            self._add_note(f"{path} has changed, and a verifier has read it again")
        elif path in self._rewritten:
            self._add_change(f"{path} was loaded again after the verifier itself had rewritten it")
        else:
            self._add_change(f"{path} was another file when it was loaded")

    def _add_other(self, path: Path, state: FileState, use: FileUse) -> None:
        """Add a file that was not planned: each process of the verifiers has to import one content.

        What a verifier reads may change: it may be kept by other programs.
        """
        first = self.used.get(path)
        if first is None:
            digest = self._digest(path) if _state_of(path) == state else None
            self.used[path] = ReadFile(state, digest or "")
            return
        is_same = state == first.state
        if not is_same and _state_of(path) == state:
            is_same = self._digest(path) == first.digest
        if is_same:
            return
        if use == "read":
            self._add_note(f"{path} has changed, and a verifier has read it again")
            return
        whose = "the verifier itself" if path in self._rewritten else "another program"
        self._add_change(f"{path} was imported again after {whose} had rewritten it")

    def _add_rewritten(self, path: Path) -> None:
        self._rewritten.add(path)
        self._add_note(f"the verifier itself rewrites {path}, which it has read")

    def compare(self) -> None:
        """Compare the files of which no process has reported that it has loaded them, once.

        It is called when the trainer has loaded everything.
        """
        if self._is_compared:
            return
        self._is_compared = True
        for path in self.planned.files.keys() - self._loaded - self._rewritten:
            state = _state_of(path)
            if state is None:
                self._add_change(f"{path} no longer exists")
            elif self._is_planned(path, state):
                self._loaded.add(path)
            else:
                self._add_change(f"{path} changed")
        for folder in self.planned.folders:
            for path in self._listed.get(folder, _files_of(folder, lambda file: "known")):
                if path not in self.planned.files and _is_loaded(path.name):
                    self._add_change(f"{path} was added")

    def find_later_changes(self) -> list[str]:
        """Return what has changed since it was loaded as planned, a phrase for each file; [] for a
        run that has loaded something else.
        """
        later: list[str] = []
        if self.changes:
            return later
        for path in sorted(self._loaded - self._rewritten):
            state = _state_of(path)
            if state is None:
                later.append(f"{path} no longer exists")
            elif not self._is_planned(path, state):
                later.append(f"{path} changed")
        for path, first in sorted(self.used.items()):
            state = _state_of(path)
            if path in self._rewritten or state == first.state:
                continue
            if state is None or self._digest(path) != first.digest:
                later.append(f"{path} changed" if state else f"{path} no longer exists")
        return later

    def _is_planned(self, path: Path, state: FileState) -> bool:
        """Return whether a planned file had its planned content in this state.

        The content of a state that is neither a known one nor the present one can't be read any
        more.
        """
        if state in self._same[path]:
            return True
        is_present = _state_of(path) == state
        if not is_present or self._digest(path) != self.planned.files[path].digest:
            return False
        self._same[path].add(state)
        return True

    def _add_change(self, phrase: str) -> None:
        if phrase not in self.changes:
            self.changes.append(phrase)

    def _add_note(self, phrase: str) -> None:
        if phrase not in self.notes:
            self.notes.append(phrase)


def _is_loaded(name: str) -> bool:
    """Return whether transformers may load a file of this name that was added to a model."""
    return any(fnmatchcase(name, pattern) for pattern in _LOADED)


def name_first(changes: list[str]) -> str:
    """Return the first files that have changed, and how many more there are."""
    more = f" and {len(changes) - _SHOWN} more" if len(changes) > _SHOWN else ""
    return f"{', '.join(changes[:_SHOWN])}{more}"


def describe_changes(changes: list[str]) -> str:
    """Return the sentence about files that are not those that were planned."""
    return f"what the run reads is not what was planned: {name_first(changes)}"


def describe_later(changes: list[str]) -> str:
    """Return the sentence about files that have changed since they were loaded."""
    return f"since it was loaded as planned, {name_first(changes)}"


def _state_of(path: Path) -> FileState | None:
    try:
        return file_state(path)
    except OSError:
        return None


@dataclass(frozen=True)
class _Input:
    """A file or a folder of this machine that the plan names."""

    path: Path
    planned: str | None = None  # its digest by the plan; None if the plan has none
    is_read: bool = True  # by the trainer; an adapter is not that is merged before the start


def snapshot_inputs(
    plan: Plan, digest: Digest, proven: Mapping[Path, str] | None = None
) -> ReadFiles:
    """Return the files that the trainer of a plan reads, as they are now.

    `proven`: the digests of the files that the verifiers used in the reward proof.

    Raises UserError (input_changed) if one is not that which was planned or proven.
    """
    changes = []
    files: dict[Path, ReadFile] = {}
    folders = []
    inputs = list(dict.fromkeys(_inputs(plan, proven or {})))
    for each in inputs:
        if each.planned is not None and digest(each.path) != each.planned:
            changes.append(
                f"{each.path} changed" if each.path.exists() else f"{each.path} no longer exists"
            )
        if not each.is_read:
            continue
        if each.path.is_dir():
            folders.append(each.path)
        for path, value in _files_of(each.path, digest).items():
            state = _state_of(path)
            if state is not None:
                files[path] = ReadFile(state, value)
    if changes and CHANGED not in plan.config.allow:
        changed = name_first(list(dict.fromkeys(changes)))
        message = f"what the run reads is not what was planned: {changed}"
        raise UserError(Finding.error("input_changed", message, None, _CURE))
    return ReadFiles(files, tuple(dict.fromkeys(folders)))


def find_here(planned: ReadFiles, digest: Digest, allow: Collection[str]) -> ReadFiles:
    """Return the files that another machine has planned, in their state on this one.

    A file whose state shows that it is the same one is not read.

    Raises UserError (input_changed) if a file has another content here.
    """
    changes = []
    files = {}
    for path, read in planned.files.items():
        state = _state_of(path)
        if state is None:
            changes.append(f"{path} is not on this node")
            continue
        if not is_same_file(state, read.state) and digest(path) != read.digest:
            changes.append(f"{path} is another file on this node")
        files[path] = ReadFile(state, read.digest)
    if changes and CHANGED not in allow:
        message = f"the files of this node are not those that were planned: {name_first(changes)}"
        raise UserError(Finding.error("input_changed", message, None, _CURE_OF_NODES))
    return ReadFiles(files, planned.folders)


def _files_of(place: Path, digest: Digest) -> dict[Path, str]:
    """Return the digest of a file, or those of a folder's files, by path."""
    if place.is_file():
        value = digest(place)
        return {place: value} if value is not None else {}
    is_left_out = is_unrelated if is_model_folder(place) else _never
    return {
        place / name: value for name, value in digest_folder(place, digest, is_left_out).items()
    }


def _never(name: str) -> bool:
    return False


def _inputs(plan: Plan, proven: Mapping[Path, str]) -> Iterator[_Input]:
    """Yield each input of a plan that is on this machine, with its planned digest."""
    planned = plan.content.digests
    model = plan.inputs.model
    adapter = model.adapter
    if model.content is not None and model.local is not None:
        is_read = model.content == model.local or model.build is None
        yield _Input(model.content, planned.get(model.local), is_read)
    if model.local is not None and model.local != model.content:
        yield _Input(model.local)
    if adapter is not None and adapter.local_base is not None:
        yield _Input(adapter.local_base, is_read=model.build is None)
    for entry in plan.inputs.mixture:
        if entry.data is not None:
            yield _Input(entry.data.folder)
        elif entry.source.local is not None:
            is_planned = entry.source.content is not None
            value = planned.get(entry.source.local) if is_planned else None
            yield _Input(entry.source.local, value)
    for file in plan.inputs.verifier_files:
        yield _Input(file, planned.get(file))
    for file, value in proven.items():
        yield _Input(file, value)
    for file in plan.parallel.files:
        yield _Input(file, plan.input_digests.get(str(file)))
    if plan.template is not None and plan.template.file is not None:
        file = plan.template.file
        of_trl = plan.trl_template is not None  # its other forms lie beside it
        yield _Input(file.parent) if of_trl else _Input(file, planned.get(file))
    cwd = plan.machine.cwd
    named = {*plan.input_digests, *digest_flag_files(plan.config.flags, lambda path: "known", cwd)}
    for key in sorted(named):
        flag, is_flag, text = key.partition("=")
        if is_flag and flag in plan.config.flags:
            yield _Input(cwd / Path(text).expanduser(), plan.input_digests.get(key))
