"""The keys of a DeepSpeed config: the locked list equals what the library reads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from launch.host.interpreter import installed_version
from launch.planning.library_key_check import check_config, check_config_file
from launch.upstream.libraries.library_keys import (
    library_keys,
    library_keys_file,
)
from launch.upstream.pin.checkout import SUBMODULE, is_checkout
from maintain.relock import renewed_library_keys
from tests.paths import ROOT

PROJECT = ROOT
LOCKED = library_keys("deepspeed", [])

# Every section of DeepSpeed's configuration page whose keys the source really reads.
DOCUMENTED: dict[str, Any] = {
    "train_batch_size": 32,
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 1,
    "optimizer": {
        "type": "Adam",
        "params": {"lr": 0.001, "betas": [0.8, 0.999], "eps": 1e-8, "weight_decay": 3e-7},
    },
    "scheduler": {
        "type": "WarmupLR",
        "params": {"warmup_min_lr": 0, "warmup_max_lr": 0.001, "warmup_num_steps": 1000},
    },
    "communication_data_type": "fp32",
    "prescale_gradients": False,
    "gradient_predivide_factor": 1.0,
    "fp16": {
        "auto_cast": False,
        "consecutive_hysteresis": False,
        "enabled": True,
        "hysteresis": 2,
        "initial_scale_power": 16,
        "loss_scale": 0,
        "loss_scale_window": 1000,
        "min_loss_scale": 1,
    },
    "bf16": {"enabled": "auto"},
    "gradient_clipping": 1.0,
    "zero_optimization": {
        "stage": 3,
        "allgather_partitions": True,
        "allgather_bucket_size": 5e8,
        "overlap_comm": False,
        "reduce_scatter": True,
        "reduce_bucket_size": "auto",
        "contiguous_gradients": True,
        "offload_param": {
            "device": "nvme",
            "nvme_path": "/local_nvme",
            "pin_memory": False,
            "buffer_count": 5,
        },
        "offload_optimizer": {
            "device": "cpu",
            "pin_memory": True,
            "ratio": 0.3,
            "fast_init": False,
        },
        "stage3_max_live_parameters": 1e9,
        "stage3_max_reuse_distance": 1e9,
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": 1e6,
        "sub_group_size": 1e12,
        "stage3_gather_16bit_weights_on_model_save": True,
        "ignore_unused_parameters": True,
        "round_robin_gradients": False,
        "zero_hpz_partition_size": 1,
        "zero_quantized_weights": False,
        "zero_quantized_gradients": False,
    },
    "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": False,
    "steps_per_print": 10,
    "wall_clock_breakdown": False,
    "dump_state": False,
    "aio": {
        "block_size": 1048576,
        "queue_depth": 8,
        "single_submit": False,
        "overlap_events": True,
    },
    "flops_profiler": {
        "enabled": False,
        "profile_step": 1,
        "module_depth": -1,
        "top_modules": 1,
        "detailed": True,
    },
    "activation_checkpointing": {
        "partition_activations": False,
        "cpu_checkpointing": False,
        "contiguous_memory_optimization": False,
        "number_checkpoints": None,
        "synchronize_checkpoint_boundary": False,
        "profile": False,
    },
    "tensorboard": {"enabled": True, "output_path": "output/", "job_name": "train"},
    "wandb": {"enabled": True, "group": "g", "team": "t", "project": "p"},
    "comet": {"enabled": True, "workspace": "w", "project": "p", "samples_log_interval": 50},
    "csv_monitor": {"enabled": True, "output_path": "output/", "job_name": "train"},
    "comms_logger": {
        "enabled": True,
        "verbose": False,
        "prof_all": True,
        "debug": False,
        "prof_ops": ["all_reduce"],
    },
    "checkpoint": {
        "tag_validation": "Warn",
        "load_universal": True,
        "use_node_local_storage": False,
        "parallel_write": {"pipeline_stage": False},
    },
    "data_types": {"grad_accum_dtype": "fp32"},
    "data_efficiency": {
        "enabled": True,
        "seed": 1234,
        "data_routing": {"enabled": True, "random_ltd": {"enabled": True, "total_layer_num": 24}},
        "data_sampling": {
            "enabled": True,
            "num_epochs": 1,
            "curriculum_learning": {"enabled": False},
        },
    },
    "autotuning": {"enabled": False, "fast": True, "metric": "throughput", "arg_mappings": None},
    "timers": {"throughput": {"enabled": True, "synchronized": True}},
    "compile": {"deepcompile": True},
    "torch_autocast": {
        "enabled": True,
        "dtype": "bfloat16",
        "lower_precision_safe_modules": ["torch.nn.Linear"],
    },
    "tensor_parallel": {
        "autotp_size": 2,
        "partition_config": {"use_default_specs": False, "layer_specs": []},
    },
    "seq_parallel_communication_data_type": "fp32",
    "data_parallel_size": 2,
    "sequence_parallel_size": 4,
    "vocabulary_size": 32000,
}


def ids_and_messages(config: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (problem.id, f"{problem.message}; {problem.cure}")
        for problem in check_config(config, LOCKED, "ds.json")
    ]


def test_everything_documented_and_read_is_accepted() -> None:
    assert check_config(DOCUMENTED, LOCKED) == []


@pytest.mark.parametrize("kind", ["bf16", "fp16"])
def test_zero_of_bool_and_old_names_are_accepted(kind: str) -> None:
    assert (
        check_config(
            {"zero_optimization": True, "bfloat16": {"enabled": True}, kind: {"enabled": "auto"}},
            LOCKED,
        )
        == []
    )


@pytest.mark.parametrize(
    ("config", "problem", "fragment"),
    [
        ({"gradient_clipp1ng": 0.3}, "unknown_deepspeed_key", "did you mean 'gradient_clipping'?"),
        ({"gradient_accumulation": 4}, "unknown_deepspeed_key", "'gradient_accumulation_steps'"),
        (
            {"zero_optimisation": {"stage": 3}},
            "unknown_deepspeed_key",
            "did you mean 'zero_optimization'",
        ),
        ({"zero_optimization": {"stag": 3}}, "unknown_deepspeed_key", "'stage'"),
        (
            {"zero_optimization": {"offload_param": {"devise": "cpu"}}},
            "unknown_deepspeed_key",
            "'device'",
        ),
        ({"stage": 3}, "unknown_deepspeed_key", "it belongs at zero_optimization.stage"),
        (
            {"activation_checkpointing": {"partitioned_activations": True}},
            "unknown_deepspeed_key",
            "'partition_act",
        ),
        ({"aio": {"thread_count": 1}}, "unknown_deepspeed_key", "'aio'"),
        ({"optimizer": {"typ": "Adam"}}, "unknown_deepspeed_key", "'type'"),
        (
            {"sparse_gradients": True},
            "unknown_deepspeed_key",
            "'sparse_gradients' was removed from deepspeed",
        ),
        (
            {"zero_optimization": {"mics_shard_size": 1}},
            "unknown_deepspeed_key",
            "'zero_optimization.mics_shard_size' w",
        ),
        (
            {"curriculum_learning": {}},
            "unknown_deepspeed_key",
            "or use data_efficiency.data_sampling.curriculum_learning",
        ),
        (
            {"amp": {"enabled": True}},
            "unknown_deepspeed_key",
            "delete it, or use fp16, bf16, torch_autocast",
        ),
        ({"wall_clock_breakdown": "false"}, "bad_deepspeed_value", "true or false"),
        ({"gradient_clipping": "1.0"}, "bad_deepspeed_value", "a number"),
        ({"fp16": True}, "bad_deepspeed_value", "a map"),
        ({"zero_optimization": {"stage": 4}}, "bad_deepspeed_value", "0, 1, 2, 3"),
        ({"zero_optimization": {"reduce_bucket_size": 0.5}}, "bad_deepspeed_value", "an integer"),
        (
            {"zero_optimization": {"offload_optimizer": {"device": "gpu"}}},
            "bad_deepspeed_value",
            "none, cpu, nvme",
        ),
    ],
)
def test_mistakes(config: dict[str, Any], problem: str, fragment: str) -> None:
    ((problem_id, message),) = ids_and_messages(config)
    assert problem_id == problem
    assert fragment in message


def test_comments_are_accepted_and_every_mistake_is_reported() -> None:
    mistakes = ids_and_messages(
        {"_comment": "why", "//": 1, "a": 1, "zero_optimization": {"b": 2}, "dump_state": 7}
    )
    assert [problem for problem, _ in mistakes] == ["unknown_deepspeed_key"] * 2 + [
        "bad_deepspeed_value"
    ]


def test_the_lock_equals_the_installed_library(installed_deepspeed: list[Path]) -> None:
    fresh = renewed_library_keys("deepspeed", sys.executable)
    if fresh["version"] != LOCKED.version:
        pytest.skip(f"the lock is of another version than the installed {fresh['version']}")
    assert fresh == json.loads(library_keys_file("deepspeed").read_text(encoding="utf-8"))


def test_another_version_is_checked_against_the_lock_and_the_problem_names_both(
    tmp_path: Path,
) -> None:
    (tmp_path / "deepspeed-9.9.9.dist-info").mkdir()
    keys = library_keys("deepspeed", [tmp_path])
    assert (keys.version, keys.installed, keys.spec) == (LOCKED.version, "9.9.9", LOCKED.spec)
    assert keys.describe() == f"deepspeed {LOCKED.version} from the lock (9.9.9 is installed)"
    (problem,) = check_config({"gradient_clipp1ng": 1.0}, keys)
    assert (
        problem.message
        == f"deepspeed {LOCKED.version} (9.9.9 is installed) has no key 'gradient_clipp1ng'"
    )
    assert check_config({"gradient_clipping": 1.0}, keys) == []


def test_the_locked_version_is_named_alone(tmp_path: Path) -> None:
    (tmp_path / f"deepspeed-{LOCKED.version}.dist-info").mkdir()
    keys = library_keys("deepspeed", [tmp_path])
    assert keys.describe() == f"deepspeed {LOCKED.version} as installed"
    (problem,) = check_config({"gradient_clipp1ng": 1.0}, keys)
    assert problem.message == f"deepspeed {LOCKED.version} has no key 'gradient_clipp1ng'"


def test_every_key_is_of_a_model_or_has_its_line(installed_deepspeed: list[Path]) -> None:
    content = json.loads(library_keys_file("deepspeed").read_text(encoding="utf-8"))
    if content["version"] != installed_version("deepspeed", installed_deepspeed):
        pytest.skip("the lock is of another version than the installed DeepSpeed")
    package = next(folder for folder in installed_deepspeed if (folder / "deepspeed").is_dir())

    def check_keys(spec: dict[str, Any]) -> int:
        by_hand = {
            name: key for name, key in spec["keys"].items() if not {"model", "removed"} & set(key)
        }
        for name, key in by_hand.items():
            path, _, line = key["source"].rpartition(":")
            assert (
                name in (package / path).read_text(encoding="utf-8").splitlines()[int(line) - 1]
            ), key["source"]
        return len(by_hand) + sum(check_keys(key) for key in by_hand.values() if "keys" in key)

    assert check_keys(content["spec"]) > 150


def test_what_is_named_in_place_of_a_removed_key_is_a_key() -> None:
    removed = [
        key
        for spec in (LOCKED.spec, LOCKED.spec.keys["zero_optimization"])
        for key in spec.keys.values()
    ]
    named = {name for key in removed for name in key.instead}
    assert len(named) > 5 and named <= {".".join(path) for path in LOCKED.spec.names()}
    assert all(" " not in (key.removed or "").partition(", ")[0] for key in removed), (
        "the library's texts stay there"
    )


def test_without_the_library_the_lock_is_used() -> None:
    assert LOCKED.installed is None
    assert "not installed" in LOCKED.describe()


# The real DeepSpeed, on a map that records every key that is read: the locked keys must include all
# of them, and no key that nothing reads.
_RECORD = """
import json, sys
class Recorder(dict):
    def __init__(self, content, path, seen):
        super().__init__({k: Recorder(v, (*path, k), seen) if isinstance(v, dict) else v for k, v in content.items()})
        self.path, self.seen = path, seen
    def _note(self, key): self.seen.add((*self.path, key))
    def __getitem__(self, key): self._note(key); return super().__getitem__(key)
    def __contains__(self, key): self._note(key); return super().__contains__(key)
    def get(self, key, default=None): self._note(key); return super().get(key, default)
    def keys(self): return Keys(self)
    def __deepcopy__(self, memo): return self
    __copy__ = lambda self: self
class Keys:
    def __init__(self, owner): self.owner = owner
    def __contains__(self, key): return key in self.owner
    def __iter__(self): return dict.__iter__(self.owner)
    def __len__(self): return len(self.owner)
from deepspeed.runtime.config import DeepSpeedConfig
seen = set()
DeepSpeedConfig(Recorder(json.loads(sys.argv[1]), (), seen))
print("SEEN" + json.dumps(sorted(map(list, seen))))
"""


def run_real_deepspeed(script: str, *arguments: str) -> str:
    environment = {**os.environ, "DS_ACCELERATOR": "cpu", "PYTHONPATH": ""}
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True, timeout=300
    ).stdout


@pytest.mark.slow
def test_the_keys_include_every_key_that_the_real_library_reads(
    installed_deepspeed: list[Path],
) -> None:
    config = {
        key: value for key, value in DOCUMENTED.items() if key not in ("train_batch_size", "fp16")
    }
    config["zero_optimization"] = {"stage": 2}
    output = run_real_deepspeed(_RECORD, json.dumps(config))
    seen = {tuple(path) for path in json.loads(output.split("SEEN")[1])}
    keys = library_keys("deepspeed", installed_deepspeed)
    assert seen - set(keys.spec.names()) == set()
    top = {path[0] for path in seen if len(path) == 1}
    by_other_readers = {"data_parallel_size", "sequence_parallel_size"}  # deepspeed.initialize
    assert {
        name for name, key in keys.spec.keys.items() if key.removed is None
    } - top <= by_other_readers | {
        "allgather_size",  # only with the old `zero_optimization: true`
        "bfloat16",  # only without bf16
    }


@pytest.mark.slow
def test_the_real_library_accepts_the_typo_that_is_caught_here(
    installed_deepspeed: list[Path],
) -> None:
    script = """
import sys
from deepspeed.runtime.config import DeepSpeedConfig
config = DeepSpeedConfig({"train_batch_size": 1, "gradient_clipp1ng": 0.3, "aio": {"thread_count": 8}})
print("CLIP", config.gradient_clipping)
"""
    assert "CLIP 1.0" in run_real_deepspeed(script)
    assert len(check_config({"gradient_clipp1ng": 0.3, "aio": {"thread_count": 8}}, LOCKED)) == 2


def test_reading_is_fast(installed_deepspeed: list[Path]) -> None:
    def seconds(read: Any) -> float:
        start = time.process_time()
        read("deepspeed", installed_deepspeed)
        return time.process_time() - start

    assert min(seconds(library_keys) for _ in range(3)) < 0.05


def test_upstreams_own_files_are_accepted() -> None:
    named = os.environ.get("OPEN_INSTRUCT_DIR")
    root = Path(named) if named else PROJECT / SUBMODULE
    if not is_checkout(root):
        pytest.skip("no open-instruct checkout: set OPEN_INSTRUCT_DIR or fetch the submodule")
    files = sorted((root / "configs/ds_configs").glob("*.conf"))
    assert len(files) >= 5
    assert [check_config_file(file, LOCKED) for file in files] == [[]] * len(files)


def test_files_with_line_numbers_and_repeated_keys(tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text(
        '{\n "zero_optimization": {"stage": 2,\n  "offload_param": {"device": "cpu"},\n'
        '  "offload_optimizer": {\n   "devise": "a \\"quoted\\" {"}},\n "dump_state": [{"x": 1}, '
        '{"y": 2}],\n'
        ' "dump_state": false,\n "dump_stat": 1}\n'
    )
    problems = check_config_file(file, LOCKED)
    assert [(problem.id, problem.where) for problem in problems] == [
        ("duplicate_deepspeed_key", f"{file}:7"),
        ("unknown_deepspeed_key", f"{file}:5"),
        ("unknown_deepspeed_key", f"{file}:8"),
    ]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1]", b"\xff\xfe", b"{'a': 1}", b'{"a": 1} x', b"[" * 100_000, b"null"]
)
def test_bad_files_are_one_clear_problem(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "ds.json"
    file.write_bytes(content)
    (problem,) = check_config_file(file, LOCKED)
    assert problem.id == "bad_deepspeed_file"
    assert (problem.where or "").startswith(str(file))


def test_missing_and_huge_files(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b" " * 2_000_000)
    for name in ("none", "big", "."):
        (problem,) = check_config_file(tmp_path / name, LOCKED)
        assert problem.id == "bad_deepspeed_file"
