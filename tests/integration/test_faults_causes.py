"""Faults by which a run dies, and what the user reads: real failures of the real libraries."""

from __future__ import annotations

import http.server
import json
import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration import warm
from tests.integration.faults import run

pytestmark = pytest.mark.slow


def test_an_allocation_that_fails(tmp_path: Path) -> None:
    body = """
    import resource, torch
    step(1)
    held = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (8 * 2**30, held[1]))
    fault()
    batch = torch.zeros(8, 2**30)
    """
    finished = run(tmp_path, body, "memory runs out in an allocation")
    assert "recipe.per_device_batch_size=4" in finished.shown
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
    run(tmp_path, body, "a rank is killed by SIGKILL", ranks=2, env=env)
    # torch's agent makes a folder of its own and leaves it
    assert sorted(path.name for path in temporary.iterdir()) == ["of-rank-0", "of-rank-1"]


CAUSES = {
    "the trainer crashes": """
    fault()
    os.kill(os.getpid(), signal.SIGSEGV)
    """,
    "a package is missing": """
    fault()
    import liger_kernel_of_another_world.transformers
    """,
    "a flag that the trainer does not know": """
    from dataclasses import dataclass
    from transformers import HfArgumentParser
    @dataclass
    class Arguments:
        learning_rate: float = 1.0
    fault()
    HfArgumentParser(Arguments).parse_args_into_dataclasses(["--use_flash_attn", "true"])
    """,
    "the tokenised cache is half-written": """
    import datasets
    datasets.Dataset.from_dict({"x": [1, 2, 3]}).save_to_disk("cache")
    os.remove("cache/state.json")
    fault()
    datasets.load_from_disk("cache")
    """,
    "the model's weights are cut off": """
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
    shape = LlamaConfig(vocab_size=16, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1)
    LlamaForCausalLM(shape).save_pretrained("model")
    os.truncate("model/model.safetensors", 1000)
    fault()
    AutoModelForCausalLM.from_pretrained("model")
    """,
    "a hub name has its namespace twice": """
    from huggingface_hub import HfApi
    fault()
    HfApi().create_repo("allenai/allenai/tulu")
    """,
}


@pytest.mark.parametrize("row", CAUSES)
def test_what_a_trainer_dies_of(row: str, tmp_path: Path) -> None:
    is_cold = "transformers" not in CAUSES[row]  # whose import takes longer than the fault
    run(tmp_path, CAUSES[row], row, python=sys.executable if is_cold else warm.python())


@pytest.mark.thorough
def test_an_error_in_the_trainer_s_import(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def train(:\n    pass\n", encoding="utf-8")
    run(
        tmp_path,
        f"fault()\nsys.path.insert(0, {str(tmp_path)!r})\nimport broken\n",
        "the trainer's source is broken",
    )


@pytest.mark.thorough
def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        body = """
        import torch.distributed as dist
        fault()
        dist.TCPStore("127.0.0.1", int(os.environ["TAKEN"]), world_size=1, is_master=True)
        """
        run(tmp_path, body, "the port is in use", env={"TAKEN": str(taken.getsockname()[1])})


@pytest.mark.thorough
def test_a_collective_that_times_out(tmp_path: Path) -> None:
    body = """
    dist = group(3)
    import torch
    dist.all_reduce(torch.ones(1))
    if RANK == 1: time.sleep(600)
    fault()
    dist.all_reduce(torch.ones(1))
    """
    run(tmp_path, body, "a rank does not arrive in a collective", ranks=2)


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
    finished = run(tmp_path, body, "one rank fails and the others fail of it", ranks=2)
    assert "trainer.py" in finished.shown and "runpy" not in finished.shown


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


@pytest.mark.thorough
def test_a_gated_repository(tmp_path: Path, hub: str) -> None:
    body = """
    from huggingface_hub import snapshot_download
    fault()
    snapshot_download("meta-llama/Llama-3.1-8B", cache_dir="cache")
    """
    run(
        tmp_path,
        body,
        "the hub asks for authentication",
        env={"HF_ENDPOINT": hub, "HF_HUB_OFFLINE": "0", "NO_PROXY": "*"},
    )


@pytest.mark.thorough
def test_a_log_flood(tmp_path: Path) -> None:
    body = """
    fault()
    for number in range(200_000):
        sys.stdout.write(f"2026-08-20 09:00:00 - INFO - x.py:1 - line {number} of a flood that says nothing\\n")
    raise ValueError("the needle")
    """
    finished = run(tmp_path, body, "a flood of output, then an error")
    assert (finished.folder.logs / "rank-0.log").read_bytes().count(b"\n") >= 200_000


@pytest.mark.thorough
def test_a_flood_of_invalid_utf_8(tmp_path: Path) -> None:
    body = """
    event("phase", phase="training")
    fault()
    for number in range(200):
        os.write(1, b"\\xff\\xfe\\x00\\x80" * 4096 + b"\\r")
    os.write(1, b"\\n")
    step(7, loss=1.5)
    """
    finished = run(tmp_path, body, "a flood of invalid UTF-8")
    assert finished.outcome.steps == 7
    assert os.path.getsize(finished.folder.logs / "rank-0.log") >= 200 * 16384  # noqa: PTH202
