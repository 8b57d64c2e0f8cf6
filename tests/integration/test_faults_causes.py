"""Faults by which a run dies, and what the user reads: real failures of the real libraries."""

from __future__ import annotations

import http.server
import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from launch.config.guards import GuardsConfig
from launch.config.schema import Device, Mode
from launch.execution.diagnosis.advice import Situation
from launch.execution.supervise.watch import WatchConfig
from launch.planning.parallel import Batch
from tests.integration.faults import TWO_RANKS, check, run

pytestmark = pytest.mark.slow
PLAN = Situation(trainer="finetune", batch=Batch(32, 8, 2, 2), mode=Mode.ddp, device=Device.cpu)
ON = WatchConfig(guards=GuardsConfig(), situation=PLAN)


def test_an_allocation_that_fails(tmp_path: Path) -> None:
    body = """
    import resource, torch
    step(1)
    held = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (8 * 2**30, held[1]))
    fault()
    batch = torch.zeros(8, 2**30)
    """
    finished = run(tmp_path, body, watch_config=ON)
    check("memory runs out in an allocation", finished.shown, finished.outcome.exit_code, finished.seconds)
    assert "recipe.per_device_batch_size=4: the same global batch of 32, with 4 accumulation steps" in finished.shown
    failed = json.loads((finished.folder.path / "FAILED").read_text())
    assert failed["cause_id"] == "host_memory"


def test_a_rank_killed_by_the_system(tmp_path: Path) -> None:
    body = """
    import tempfile
    open(f"{tempfile.gettempdir()}/of-rank-{RANK}", "w").close()
    dist = group(600)
    if RANK == 1:
        fault()
        os.kill(os.getpid(), signal.SIGKILL)
    import torch
    dist.all_reduce(torch.ones(1))
    """
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    env = {"TMPDIR": str(temporary)}
    finished = run(tmp_path, body, before=TWO_RANKS, ranks=2, watch_config=ON, env=env)
    # torch's agent makes a folder of its own and leaves it
    assert sorted(path.name for path in temporary.iterdir()) == ["of-rank-0", "of-rank-1"]
    check("a rank is killed by SIGKILL", finished.shown, finished.outcome.exit_code, finished.seconds)


def test_a_segmentation_fault(tmp_path: Path) -> None:
    body = """
    fault()
    os.kill(os.getpid(), signal.SIGSEGV)
    """
    finished = run(tmp_path, body, watch_config=ON)
    check("the trainer crashes", finished.shown, finished.outcome.exit_code, finished.seconds)


def test_a_missing_package(tmp_path: Path) -> None:
    body = """
    fault()
    import liger_kernel_of_another_world.transformers
    """
    finished = run(tmp_path, body, watch_config=ON)
    check("a package is missing", finished.shown, finished.outcome.exit_code, finished.seconds)


def test_an_error_in_the_trainer_s_import(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def train(:\n    pass\n", encoding="utf-8")
    finished = run(tmp_path, f"fault()\nsys.path.insert(0, {str(tmp_path)!r})\nimport broken\n", watch_config=ON)
    check("the trainer's source is broken", finished.shown, finished.outcome.exit_code, finished.seconds)


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        body = """
        import torch.distributed as dist
        fault()
        dist.TCPStore("127.0.0.1", int(os.environ["TAKEN"]), world_size=1, is_master=True)
        """
        finished = run(tmp_path, body, watch_config=ON, env={"TAKEN": str(taken.getsockname()[1])})
    check("the port is in use", finished.shown, finished.outcome.exit_code, finished.seconds)


def test_a_collective_that_times_out(tmp_path: Path) -> None:
    body = """
    dist = group(3)
    import torch
    dist.all_reduce(torch.ones(1))
    if RANK == 1: time.sleep(600)
    fault()
    dist.all_reduce(torch.ones(1))
    """
    finished = run(tmp_path, body, before=TWO_RANKS, ranks=2, watch_config=ON)
    check("a rank does not arrive in a collective", finished.shown, finished.outcome.exit_code, finished.seconds)


def test_the_second_of_two_errors_is_not_the_cause(tmp_path: Path) -> None:
    body = """
    dist = group(600)
    import torch
    step(1)
    if RANK == 1:
        fault()
        raise IndexError("sample 4711 has no assistant turn")
    dist.all_reduce(torch.ones(1))
    """
    finished = run(tmp_path, body, before=TWO_RANKS, ranks=2, watch_config=ON)
    check("one rank fails and the others fail of it", finished.shown, finished.outcome.exit_code, finished.seconds)
    assert "trainer.py" in finished.shown and "runpy" not in finished.shown


def test_an_unknown_flag(tmp_path: Path) -> None:
    body = """
    from dataclasses import dataclass
    from transformers import HfArgumentParser
    @dataclass
    class Arguments:
        learning_rate: float = 1.0
    fault()
    HfArgumentParser(Arguments).parse_args_into_dataclasses(["--use_flash_attn", "true"])
    """
    finished = run(tmp_path, body, watch_config=ON)
    check("a flag that the trainer does not know", finished.shown, finished.outcome.exit_code, finished.seconds)


def test_a_half_written_cache(tmp_path: Path) -> None:
    body = """
    import datasets
    datasets.Dataset.from_dict({"x": [1, 2, 3]}).save_to_disk("cache")
    os.remove("cache/state.json")
    fault()
    datasets.load_from_disk("cache")
    """
    finished = run(tmp_path, body, watch_config=ON)
    check("the tokenised cache is half-written", finished.shown, finished.outcome.exit_code, finished.seconds)


def test_a_model_whose_weights_are_cut_off(tmp_path: Path) -> None:
    body = """
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
    shape = LlamaConfig(vocab_size=16, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1)
    LlamaForCausalLM(shape).save_pretrained("model")
    os.truncate("model/model.safetensors", 1000)
    fault()
    AutoModelForCausalLM.from_pretrained("model")
    """
    finished = run(tmp_path, body, watch_config=ON)
    check("the model's weights are cut off", finished.shown, finished.outcome.exit_code, finished.seconds)


def test_a_hub_name_with_its_namespace_twice(tmp_path: Path) -> None:
    body = """
    from huggingface_hub import HfApi
    fault()
    HfApi().create_repo("allenai/allenai/tulu")
    """
    finished = run(tmp_path, body, watch_config=ON)
    check("a hub name has its namespace twice", finished.shown, finished.outcome.exit_code, finished.seconds)


class _Gate(http.server.BaseHTTPRequestHandler):
    """A hub that shows its repositories to nobody."""

    def do_GET(self) -> None:
        self.send_response(401)
        self.send_header("X-Error-Code", "GatedRepo")
        self.send_header("X-Error-Message", "Access to this repository is restricted.")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def hub() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Gate)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


def test_a_gated_repository(tmp_path: Path, hub: str) -> None:
    body = """
    from huggingface_hub import snapshot_download
    fault()
    snapshot_download("meta-llama/Llama-3.1-8B", cache_dir="cache")
    """
    finished = run(tmp_path, body, watch_config=ON, env={"HF_ENDPOINT": hub, "HF_HUB_OFFLINE": "0", "NO_PROXY": "*"})
    check("the hub asks for authentication", finished.shown, finished.outcome.exit_code, finished.seconds)


def test_a_log_flood(tmp_path: Path) -> None:
    body = """
    fault()
    for number in range(200_000):
        sys.stdout.write(f"2026-08-20 09:00:00 - INFO - x.py:1 - line {number} of a flood that says nothing\\n")
    raise ValueError("the needle")
    """
    finished = run(tmp_path, body, watch_config=ON)
    check("a flood of output, then an error", finished.shown, finished.outcome.exit_code, finished.seconds)
    assert (finished.folder.logs / "rank-0.log").read_bytes().count(b"\n") >= 200_000


def test_a_flood_of_invalid_utf_8(tmp_path: Path) -> None:
    body = """
    event("phase", phase="training")
    fault()
    for number in range(200):
        os.write(1, b"\\xff\\xfe\\x00\\x80" * 4096 + b"\\r")
    os.write(1, b"\\n")
    step(7, loss=1.5)
    time.sleep(0.5)
    """
    finished = run(tmp_path, body, watch_config=ON)
    check("a flood of invalid UTF-8", finished.shown, finished.outcome.exit_code, finished.seconds)
    assert finished.outcome.steps == 7
    assert os.path.getsize(finished.folder.logs / "rank-0.log") >= 200 * 16384  # noqa: PTH202
