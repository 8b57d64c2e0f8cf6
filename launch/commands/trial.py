"""What the verbs `bench`, `rollout` and `tune` share: Hydra's own options, and the record that `--json` prints."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from launch.config.compose import compose
from launch.config.line import CommandLine
from launch.errors import EXIT_DONE
from launch.execution.display import Display, display_for
from launch.terminal import print_json


def run_trial(line: CommandLine, own_keys: Sequence[str], run: Callable[[Display], tuple[object, int]]) -> int:
    """Run a trial and return its exit code. With one of Hydra's own options the configuration is shown, nothing runs.

    `own_keys`: those of the verb, which Hydra does not know.
    """
    if line.asks_hydra:
        return compose(line.without(*own_keys), lambda composed: EXIT_DONE)
    record, code = run(display_for(sys.stderr if line.json else sys.stdout))
    if line.json:
        print_json(record)
    return code
