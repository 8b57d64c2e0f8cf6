"""The ids that `allow=[ID]` takes. tests/config/test_validate.py compares them with the rules, guards and gates."""

from __future__ import annotations

import dataclasses

from launch.config.origins import Origins
from launch.config.schema import GuardsConfig
from launch.errors import Problem, did_you_mean

_PREFLIGHT = (
    *("no_checkout", "upstream_mismatch", "no_interpreter", "missing_packages", "import_fails", "too_few_gpus"),
    *("gpus_busy", "no_collective", "model_too_big", "tokens_wasted", "no_such_input", "disk_full", "not_writable"),
    *("no_hub_token", "push_refused", "no_wandb_login", "port_taken", "few_open_files", "locked_memory", "small_shm"),
    "clock_off",
)
_GUARDS = tuple(field.name for field in dataclasses.fields(GuardsConfig))
_GATES = (
    *("finished_steps", "loss_finite", "memory_room", "evidence_complete", "all_ranks_step", "grad_norm_sane"),
    *("loss_falls", "first_dpo_loss", "reference_cached", "reward_accuracy", "chosen_above_rejected"),
    *("margins_finite", "same_data", "same_schedule", "loss_parity", "throughput_steady", "padding", "scaling"),
)
_EVIDENCE = (
    *("liger", "packing", "balanced", "loss_averaging", "attention", "clip", "dtype", "gradient_checkpointing"),
    *("chat_template", "lora", "base_dtype", "first_update", "resumed_step", "weights", "global_batch"),
)
_PLAN = ("data_small_epoch", "incomplete_model", "refused_flag", "refused_value")
_BENCH = ("bench_global_batch", "bench_data")
_SLURM = (
    *("unknown_partition", "partition_down", "time_beyond_partition", "unknown_gpu_type", "too_many_gpus"),
    *("too_many_cpus", "too_many_nodes", "unknown_account", "unknown_qos", "sbatch_refused", "not_mounted"),
    *("account_not_admitted", "qos_not_admitted", "gpu_fault"),
)
ALLOWABLE = frozenset(
    (
        *(*_PREFLIGHT, *_GUARDS, *_GATES, *_PLAN, *_BENCH, *_SLURM),
        *(f"{verdict}_{key}" for key in _EVIDENCE for verdict in ("refuted", "unproven")),
    )
)


def unknown_ids(allow: list[str], origins: Origins) -> list[Problem]:
    """Find the ids in `allow` that turn nothing into a warning."""
    where = origins.of("allow").where
    return [
        Problem("unknown_id", f"allow=[{id}] turns nothing into a warning", where, _suggest(id))
        for id in allow
        if id not in ALLOWABLE
    ]


def _suggest(id: str) -> str:
    return did_you_mean(id, sorted(ALLOWABLE)) or "docs/reference/rules.md lists the rules, guards and gates"
