"""Extensions that DeepSpeed builds when it is first used."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from launch.check.machine.rule import Host, failed, passed, rule, skipped, warned
from launch.planning.plan import Plan
from launch.worker.finding import Finding

_BUILD_SECONDS = 600.0  # longer than any build takes


@rule("stale_build_lock")
def no_build_was_killed(plan: Plan, host: Host) -> Finding:
    """Torch waits without end for the lock of an extension's build, and a build that was killed leaves it behind."""
    if plan.parallel.zero_stage is None:
        return skipped("DeepSpeed is not used")
    stale, held = {}, 0
    for lock in (path for pattern in ("*/lock", "*/*/lock") for path in _extensions(host.environ).glob(pattern)):
        with contextlib.suppress(FileNotFoundError):  # the build has ended
            age = time.time() - lock.stat().st_mtime
            if _is_held(lock):
                held += 1
            else:
                stale[str(lock)] = age
    if not stale:
        return passed("a build is under way" if held else "no build under way")
    facts = f"{next(iter(stale))} is there, and no process of this machine holds it"
    cure = f"rm {' '.join(stale)}, unless another machine builds there now"
    return failed(facts, cure) if max(stale.values()) > _BUILD_SECONDS else warned(facts, cure)


def _extensions(environ: Mapping[str, str]) -> Path:
    """The folder of the builds (torch/utils/cpp_extension.py, _get_build_directory)."""
    set_by_user = environ.get("TORCH_EXTENSIONS_DIR")
    return Path(set_by_user or Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torch_extensions")


def _is_held(lock: Path) -> bool:
    """Whether a process has the lock open, as its maker does until the build ends (torch/utils/file_baton.py)."""
    for process in psutil.process_iter():
        try:
            if any(Path(file.path) == lock for file in process.open_files()):
                return True
        except psutil.Error:
            continue
    return False
