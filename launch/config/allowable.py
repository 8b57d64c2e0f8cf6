"""The ids that `allow=[ID]` takes: those of the rules, guards, gates and evidence, and of the other problems below."""

from __future__ import annotations

import dataclasses
import importlib
from functools import cache

from launch.config.guards import GuardsConfig
from launch.config.origins import Origins
from launch.errors import Problem, did_you_mean
from launch.worker.expectations import EVIDENCE, STATE

# The lists of rules with an `id` each. Layers above define them, so they are imported only when a line has an `allow`.
_REGISTERS = (("launch.check.machine.rules", "RULES"), ("launch.trials.rollout.gates", "GATES"))
_EVIDENCE = (*STATE, *EVIDENCE, "weights", "gradients", "last_update", "saved_weights")
_PLAN = (
    "base_changed",
    "data_small_epoch",
    "import_fails",
    "incomplete_model",
    "model_changed",
    "no_interpreter",
    "other_chat_template",
    "refused_flag",
    "refused_value",
)
_BENCH = ("bench_global_batch", "bench_data")
_SLURM = (
    *("unknown_partition", "partition_down", "time_beyond_partition", "unknown_gpu_type", "too_many_gpus"),
    *("too_many_cpus", "too_many_nodes", "unknown_account", "unknown_qos", "sbatch_refused", "not_mounted"),
    *("account_not_admitted", "qos_not_admitted", "gpu_fault"),
)

_RENAMED = {  # old id -> new id
    "clock_off": "clock_skew",
    "dealing_shared_samples": "balanced_sequence_parallel",
    "few_open_files": "open_files_limit",
    "locked_memory": "memlock_limit",
    "not_its_job": "job_mismatch",
    "not_its_launcher": "launcher_mismatch",
    "said_twice": "duplicate_override",
    "slurm_silent": "slurm_unresponsive",
}


@cache
def allowable_ids() -> frozenset[str]:
    """Return every id that `allow` takes."""
    registered = (rule.id for module, name in _REGISTERS for rule in getattr(importlib.import_module(module), name))
    guards = (field.name for field in dataclasses.fields(GuardsConfig))
    evidence = (f"{verdict}_{key}" for key in _EVIDENCE for verdict in ("refuted", "unproven"))
    return frozenset((*registered, *guards, *evidence, *_PLAN, *_BENCH, *_SLURM))


def unknown_ids(allow: list[str], origins: Origins) -> list[Problem]:
    """Find the ids in `allow` that turn nothing into a warning."""
    where, problems = origins.of("allow").where, []
    for id in allow:
        if id in allowable_ids():
            continue
        if id in _RENAMED:
            new = _RENAMED[id]
            cure = f"set allow=[{new}]" if new in allowable_ids() else "remove it: it cannot be allowed"
            problems.append(Problem("unknown_id", f"allow=[{id}]: this id is now {new}", where, cure))
            continue
        cure = did_you_mean(id, sorted(allowable_ids())) or "docs/reference/rules.md lists the rules, guards and gates"
        problems.append(Problem("unknown_id", f"allow=[{id}] turns nothing into a warning", where, cure))
    return problems
