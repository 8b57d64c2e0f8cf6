"""The keys of an accelerate YAML: the locked list equals accelerate's own parser and dataclass."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from launch.planning.library_key_check import check_config_file
from launch.upstream.libraries.library_keys import library_keys, library_keys_file
from launch.worker.finding import Finding
from maintain.relock import renewed_library_keys
from tests.paths import ROOT

PROJECT = ROOT
LOCKED = library_keys("accelerate", [])


def check(folder: Path, text: str, name: str = "a.yaml") -> list[Finding]:
    (folder / name).write_text(text)
    return check_config_file(folder / name, LOCKED)


GOOD = """
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: DEEPSPEED
downcast_bf16: 'no'
deepspeed_config:
  deepspeed_multinode_launcher: standard
  offload_optimizer_device: none
  zero3_init_flag: true
  zero_stage: 3
fsdp_config:
  fsdp_state_dict_type: FULL_STATE_DICT
  offload_params: false
dynamo_config:
  dynamo_backend: INDUCTOR
machine_rank: 0
mixed_precision: bf16
num_machines: 1
num_processes: 8
rdzv_backend: static
same_network: true
tpu_env: []
use_cpu: false
fp16: true
"""


def test_a_good_file(tmp_path: Path) -> None:
    assert check(tmp_path, GOOD) == []


@pytest.mark.parametrize(
    ("text", "problem", "line", "fragment"),
    [
        ("deepspeed_config:\n  zero_stag: 3\n", "unknown_accelerate_key", 2, "'zero_stage'"),
        (
            "deepspeed_config:\n  zero_stage: 3\n  offload_optimiser_device: cpu\n",
            "unknown_accelerate_key",
            3,
            "offload_",
        ),
        (
            "fsdp_config:\n  fsdp_offload_param: true\n",
            "unknown_accelerate_key",
            2,
            "'fsdp_offload_params'",
        ),
        (
            "fp8_config:\n  amax_history_length: 16\n",
            "unknown_accelerate_key",
            2,
            "'amax_history_len'",
        ),
        ("num_process: 8\n", "unknown_accelerate_key", 1, "'num_processes'"),
        ("zero_stage: 3\n", "unknown_accelerate_key", 1, "it belongs at "),
        ("mixed_precision: no\n", "bad_accelerate_value", 1, "quote it"),
        ("gpu_ids: 0\n", "bad_accelerate_value", 1, "a string"),
        ("num_processes: '8'\n", "bad_accelerate_value", 1, "an integer"),
        ("distributed_type: DEEPSPED\n", "bad_accelerate_value", 1, "DEEPSPEED"),
        ("deepspeed_config: 3\n", "bad_accelerate_value", 1, "a map"),
        ("debug: false\ndebug: true\n", "duplicate_accelerate_key", 2, "twice"),
    ],
)
def test_mistakes(tmp_path: Path, text: str, problem: str, line: int, fragment: str) -> None:
    (reported,) = check(tmp_path, text)
    assert (reported.id, reported.where) == (problem, f"{tmp_path / 'a.yaml'}:{line}")
    assert fragment in f"{reported.message}; {reported.cure}"


@pytest.mark.parametrize(
    "text", ["", "- 1\n", "a: [\n", "a: b: c\n", "x\n", "{" * 5000, "&a [*a]", "\x00"]
)
def test_bad_files_are_one_clear_problem(tmp_path: Path, text: str) -> None:
    (reported,) = check(tmp_path, text)
    assert reported.id == "bad_accelerate_file"


def test_json_and_sagemaker(tmp_path: Path) -> None:
    (reported,) = check(tmp_path, '{\n"num_process": 1}', "a.json")
    assert (reported.id, reported.where) == ("unknown_accelerate_key", f"{tmp_path / 'a.json'}:2")
    (reported,) = check(tmp_path, "compute_environment: AMAZON_SAGEMAKER\nec2_instance_type: x\n")
    assert (reported.id, "SageMaker" in reported.message) == ("bad_accelerate_file", True)


def test_the_lock_equals_the_installed_library(installed_accelerate: list[Path]) -> None:
    fresh = renewed_library_keys("accelerate", sys.executable)
    if fresh["version"] != LOCKED.version:
        pytest.skip(f"the lock is of another version than the installed {fresh['version']}")
    assert fresh == json.loads(library_keys_file("accelerate").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_the_keys_equal_the_real_parser_and_dataclass(installed_accelerate: list[Path]) -> None:
    script = """
import dataclasses, json
from accelerate.commands.launch import launch_command_parser
from accelerate.commands.config.config_args import ClusterConfig
from accelerate.utils import DistributedType
print("REAL" + json.dumps([sorted({a.dest for a in launch_command_parser()._actions}),
    [f.name for f in dataclasses.fields(ClusterConfig)], [t.value for t in DistributedType]]))
"""
    environment = {**os.environ, "PYTHONPATH": ""}
    run = subprocess.run(
        [sys.executable, "-c", script], env=environment, check=True, capture_output=True, text=True
    )
    options, fields, types = json.loads(run.stdout.split("REAL")[1])
    spec = library_keys("accelerate", installed_accelerate).spec
    assert set(spec.keys["deepspeed_config"].keys) == set(options)
    assert set(spec.keys) == {*fields, "fp16", "dynamo_backend"}
    assert set(spec.keys["distributed_type"].choices) == set(types)


def test_the_projects_own_files_are_accepted() -> None:
    files = sorted((PROJECT / "accelerate_configs").glob("*.yaml"))
    if not files:
        pytest.skip("accelerate_configs/ holds no file yet")
    assert [check_config_file(file, LOCKED) for file in files] == [[]] * len(files)
