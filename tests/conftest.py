"""Shared by the tests: composing in this process, a machine that is the same everywhere, golden
files.
"""

from __future__ import annotations

import contextlib
import copy
import difflib
import os
import shutil
import subprocess
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from launch import resources
from launch.__main__ import main
from launch.config.compose import Composed, compose
from launch.config.line import parse_line
from launch.digests import Digest
from launch.errors import UserError
from launch.planning.build import build_plan
from launch.planning.digest_cache import DigestCache
from launch.planning.machine import Machine, SourceKind, UpstreamState
from launch.planning.olmo_preset import LISTED
from launch.planning.plan import Plan
from launch.upstream.pin.lock import load_lock, locked_schema
from launch.upstream.schema import Schema
from launch.upstream.trainers import ENTRIES
from launch.worker.finding import Finding
from tests.composing import keep_files

_BUILD_SECONDS = 600.0  # longer than any build of an extension
GOLDEN = Path(__file__).parent / "golden"
PIN = load_lock().pin


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write the golden files instead of comparing"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Give the tests a configuration folder of their own, as the user's may hold stages and
    settings that change them; and let the shipped files be read once.
    """
    keep_files()
    # no random letters, which the tests of messages could take for a name
    folder = Path(tempfile.gettempdir()) / f"config-{uuid.uuid4().hex}"
    folder.mkdir(0o700)
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    os.environ["XDG_CONFIG_HOME"] = str(folder)
    os.environ.pop("LAUNCH_CONFIG_DIR", None)


def pytest_sessionstart() -> None:
    """Remove locks of builds that were killed: torch would wait for them for ever (DeepSpeed builds
    when imported).
    """
    extensions = Path(
        os.environ.get("TORCH_EXTENSIONS_DIR") or Path.home() / ".cache" / "torch_extensions"
    )
    for lock in extensions.glob("*/*/lock"):
        with contextlib.suppress(OSError):
            if time.time() - lock.stat().st_mtime > _BUILD_SECONDS:
                lock.unlink()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what starts the real Slurm, and put the files that train first: side by side, the last
    file sets the end.
    """
    slow: Counter[Path] = Counter()
    for item in items:
        if "slurm" in getattr(item, "fixturenames", ()):
            item.add_marker("slurm")
        slow[item.path] += item.get_closest_marker("slow") is not None
    items.sort(key=lambda item: -slow[item.path])


def composed(*overrides: str) -> Composed:
    """Compose one configuration in this process, as `python -m launch plan OVERRIDES` would."""
    configurations: list[Composed] = []

    def keep(configuration: Composed) -> int:
        configurations.append(configuration)
        return 0

    assert compose(parse_line(["plan", *overrides], ["run", "plan"]), keep) == 0
    return configurations[0]


_compose_once = cache(composed)


def composed_at(width: Mapping[str, Any], *overrides: str) -> Composed:
    """Compose a line once, and set the keys of a width after that."""
    configuration = _compose_once(*overrides)
    return replace(configuration, config=replace(copy.deepcopy(configuration.config), **width))


class FixedDigests(DigestCache):
    """Digests that a test sets; by default local paths have no content."""

    def __init__(self, digest: Digest = lambda path: None) -> None:
        super().__init__(Path("/nowhere/digests.json"))
        self._digest = digest

    def of(self, path: Path) -> str | None:
        return self._digest(path)


@dataclass(frozen=True)
class FixedMachine(Machine):
    """A machine whose GPU and packages a test sets."""

    card: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)


def machine_in(folder: Path) -> FixedMachine:
    """`fixed_machine` in a folder whose files are digested."""
    return fixed_machine(folder, digest=DigestCache(folder / "digests.json").of)


@cache
def _locked_schemas() -> Mapping[str, Schema]:
    return {name: locked_schema(name) for name in ENTRIES}


def fixed_machine(
    cwd: Path = Path("/cwd"),
    checkout: Path | None = Path("/upstream"),
    digest: Digest = lambda path: None,
) -> FixedMachine:
    """A machine that is the same wherever the tests run."""
    source = SourceKind.live if checkout else SourceKind.none
    return FixedMachine(
        cwd=cwd,
        # else a user's caches would be found, and the hub be asked
        environ={"XDG_CACHE_HOME": "/nowhere", "HF_HUB_OFFLINE": "1"},
        python="/python",
        packages=(),
        upstream=UpstreamState(PIN, source, checkout, "the tests' own", matches_pin=True),
        schemas=_locked_schemas(),
        # any model is built
        registries={flag: names for flag, names in load_lock().names.items() if flag != LISTED},
        digests=FixedDigests(digest),
    )


def planned(*overrides: str, machine: Machine | None = None) -> Plan:
    """Return the plan of a line on `machine`, or on `fixed_machine`."""
    return build_plan(composed(*overrides), machine or fixed_machine())


def problems(*overrides: str, machine: Machine | None = None) -> tuple[Finding, ...]:
    """Return the problems that a line has."""
    with pytest.raises(UserError) as caught:
        planned(*overrides, machine=machine)
    return tuple(caught.value.problems)


def problem_ids(*overrides: str, machine: Machine | None = None) -> list[str]:
    return [found.id for found in problems(*overrides, machine=machine)]


def problem(*overrides: str) -> tuple[str, str]:
    """Return the id and the message of the one problem that a line has."""
    (found,) = problems(*overrides)
    return found.id, found.message


Launch = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Launch:
    """Run a command line of `launch` in `tmp_path` and in this process, whose start takes longer
    than most commands.
    """
    monkeypatch.chdir(tmp_path)

    def run(*argv: str) -> subprocess.CompletedProcess[str]:
        code = main(list(argv))
        return subprocess.CompletedProcess(argv, code, *capsys.readouterr())

    return run


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, Sequence[str]], None]:
    """Compare lines with `tests/golden/NAME.txt`; a difference is shown line by line."""

    def check(name: str, lines: Sequence[str]) -> None:
        path = GOLDEN / f"{name}.txt"
        text = "\n".join(lines).replace(str(resources.ROOT), "{project}") + "\n"
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        recorded = path.read_text(encoding="utf-8") if path.is_file() else ""
        if text != recorded:
            diff = difflib.unified_diff(
                recorded.splitlines(),
                text.splitlines(),
                f"recorded {path.name}",
                "rendered now",
                lineterm="",
            )
            hint = (
                "if the change is meant: ./scripts/test TEST_FILE --update-golden, and read "
                "the "
                "diff in git"
            )
            pytest.fail("\n".join([*diff, "", hint]), pytrace=False)

    return check
