"""A plugin of coverage.py: measures launch/ by its folder, and leaves out trainers' processes,
whatever started them.

A program that is run by its path is `__main__`, and the worker's package has a name of its own:
neither is found by the name `launch`, and a relative folder would be looked up where the process
was started.
"""

from __future__ import annotations

import sys
from typing import Any

from tests.paths import ROOT

# What a trainer's process, or one that forks trainers, has on its command line.
_TRAINERS = (
    "launch/worker/entry.py",
    "accelerate.commands.launch",
    "torch.distributed.run",
    "warm/server.py",
)


class _LeaveTrainersOut:
    """A configurer, the kind of plugin that sees the configuration before the measurement
    starts.
    """

    _coverage_plugin_name = "tests.coverage_plugin"
    _coverage_enabled = True

    def configure(self, config: Any) -> None:
        config.set_option("run:source_dirs", [str(ROOT / "launch")])
        # of a module of the worker, for the launcher's own work
        is_call = "--call" in sys.orig_argv
        if not is_call and any(argument.endswith(_TRAINERS) for argument in sys.orig_argv):
            config.set_option("run:omit", ["*"])


def coverage_init(registry: Any, options: dict[str, Any]) -> None:
    """Register the plugin; coverage.py calls it in every process."""
    registry.add_configurer(_LeaveTrainersOut())
