"""Lists the ids that `allow=[ID]` takes: those of rules, gates, guards and evidence, and of other
problems that may be turned into a warning.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import cache

from launch.config.origins import Origins
from launch.errors import did_you_mean
from launch.worker.finding import Finding

# The lists of rules, each with an `id` and whether `allow` takes it, by module and name. The modules
# are in layers above this one, so they are imported only when a line has an `allow`.
_REGISTERS = (
    ("launch.rules.table", "table"),
    ("launch.planning.rules.register", "RULES"),
    ("launch.check.machine.rules", "RULES"),
    ("launch.execution.guards", "GUARDS"),
    ("launch.trials.rollout.gates_across", "GATES"),
)
# What the evidence shows of the model, besides the settings that it proves.
_MODEL = (
    "architecture",
    "weights",
    "schedule_peak",
    "movable_weights",
    "gradients",
    "last_update",
    "saved_weights",
)
# Problems which no list of rules has.
_OTHERS = (
    "base_changed",
    "foreign_checkpoint",  # of a resume
    "import_fails",
    "incomplete_model",
    "model_changed",
    "input_changed",  # a file that the run reads is not the planned one
    "no_interpreter",
    "validation_trained",
    # of data
    "no_loss_tokens",
    "answer_changed",
    "equal_pairs",
    "loss_on_user",
    "no_end_of_turn",
    "double_bos",
    "pad_is_end",
    "system_dropped",
    "calls_dropped",
    "padded_tools",
    # of pipelines and benches
    "other_tokenizer",
    "other_vocabulary",
    "short_context",
    "bench_global_batch",
    "bench_data",
    # of Slurm
    "partition_down",
    "time_beyond_partition",
    "sbatch_refused",
    "not_mounted",
    "account_not_admitted",
    "qos_not_admitted",
    "gpu_fault",
)


@cache
def allowable_ids() -> frozenset[str]:
    """Return every id that `allow` takes."""
    from launch.worker.expectations import EVIDENCE, STATE

    ids = set(_OTHERS)
    for module, name in _REGISTERS:
        register = getattr(importlib.import_module(module), name)
        rules = register() if callable(register) else register
        ids.update(rule.id for rule in rules if rule.allow)
    for key in (*STATE, *EVIDENCE, *_MODEL):
        ids |= {f"refuted_{key}", f"unproven_{key}"}
    return frozenset(ids)


def find_unknown_ids(allow: list[str], origins: Origins) -> Iterator[Finding]:
    """Find the ids in `allow` that turn nothing into a warning."""
    where = origins.of("allow").where
    for id in map(str, allow):  # OmegaConf takes a list in a list of texts
        if id not in allowable_ids():
            message = f"allow=[{id}] turns nothing into a warning"
            near = did_you_mean(id, sorted(allowable_ids()))
            cure = near or "use the id that the message ends with"
            yield Finding.error("unknown_id", message, where, cure)
