"""Plan, check, run and record post-training with a pinned, unmodified open-instruct (or TRL)."""

import sys

if (
    sys.argv[:1] == ["-m"]
    and sys.orig_argv[-len(sys.argv)].partition(".")[0] == "launch"
    and not sys.flags.safe_path
):
    # `python -m launch` has put the working folder first: a random.py among the data would be
    # imported as Python's own. A clone that is not installed is needed, but last
    first = sys.path.pop(0)
    if __file__.startswith(f"{first}/launch/"):
        sys.path.append(first)
    del first

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from launch.api.planning import PlannedRun, plan
    from launch.api.running import PipelineHandle, RunHandle, run, runs
    from launch.api.tables import compare, status
    from launch.errors import UserError
    from launch.worker.finding import Finding

__version__ = "0.1.0"
__all__ = [
    "Finding",
    "PipelineHandle",
    "PlannedRun",
    "RunHandle",
    "UserError",
    "__version__",
    "compare",
    "plan",
    "run",
    "runs",
    "status",
]

_MODULES = {
    **dict.fromkeys(("PlannedRun", "plan"), "launch.api.planning"),
    **dict.fromkeys(("PipelineHandle", "RunHandle", "run", "runs"), "launch.api.running"),
    **dict.fromkeys(("compare", "status"), "launch.api.tables"),
    "Finding": "launch.worker.finding",
    "UserError": "launch.errors",
}


def __getattr__(name: str) -> Any:
    """Import the API when it is first used: `import launch` itself costs nothing."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_MODULES[name]), name)
