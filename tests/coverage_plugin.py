"""A plugin of coverage.py that leaves out trainers' processes, whatever started them."""

from __future__ import annotations

import sys
from typing import Any

# What a trainer's process, or one that forks trainers, has on its command line.
_TRAINERS = ("launch/worker/entry.py", "accelerate.commands.launch", "torch.distributed.run", "warm/server.py")


class _LeaveTrainersOut:
    """A configurer, the kind of plugin that sees the configuration before the measurement starts."""

    _coverage_plugin_name = "tests.coverage_plugin"
    _coverage_enabled = True

    def configure(self, config: Any) -> None:
        if any(argument.endswith(_TRAINERS) for argument in sys.orig_argv):
            config.set_option("run:omit", ["*"])


def coverage_init(registry: Any, options: dict[str, Any]) -> None:
    """Register the plugin; coverage.py calls it in every process."""
    registry.add_configurer(_LeaveTrainersOut())
