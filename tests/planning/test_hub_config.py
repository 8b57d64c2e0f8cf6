"""The config.json of a hub model, asked from a server on this machine."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from launch.planning.estimate.planned_setting import UnknownMemoryError, planned_setting
from launch.planning.hub_config import find_hub_config
from tests.conftest import planned

OLMO3 = {
    "model_type": "olmo3",
    "num_hidden_layers": 8,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "vocab_size": 300,
    "sliding_window": 16,
}


@dataclass
class Hub:
    """A server with one model; `answer` is a status and a body."""

    address: str = ""
    answer: tuple[int, bytes] = (200, json.dumps(OLMO3).encode())
    asked: list[tuple[str, str | None]] = field(default_factory=list)  # path and token


@pytest.fixture
def hub() -> Iterator[Hub]:
    state = Hub()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.asked.append((self.path, self.headers.get("Authorization")))
            status, body = state.answer
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.address = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield state
    server.shutdown()
    server.server_close()
    thread.join()


def environ_of(folder: Path, address: str, **more: str) -> dict[str, str]:
    return {"HF_ENDPOINT": address, "HOME": str(folder), "NO_PROXY": "*", **more}


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")


def test_the_hub_is_asked_once_and_its_answer_serves_offline_too(hub: Hub, tmp_path: Path) -> None:
    environ = environ_of(tmp_path, hub.address, HF_TOKEN="hf_x")
    for more in ({}, {}, {"HF_HUB_OFFLINE": "1"}):
        found = find_hub_config("some/model", "a1b2", {**environ, **more})
        assert found.config == OLMO3
    assert hub.asked == [("/some/model/resolve/a1b2/config.json", "Bearer hf_x")]
    assert find_hub_config("some/model", None, environ).config == OLMO3
    assert hub.asked[1][0] == "/some/model/resolve/main/config.json", "another revision"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ((404, b""), "has no config.json"),
        ((401, b""), "gated"),
        ((403, b""), "gated"),
        ((503, b""), "answers 503"),
        ((200, b"<html>"), "can't be read"),
        ((200, b"[1]"), "not an object"),
        ((200, b" " * (2 << 20)), "can't be read"),
    ],
)
def test_a_failure_is_named_and_not_asked_for_again_within_an_hour(
    hub: Hub, tmp_path: Path, answer: tuple[int, bytes], why: str
) -> None:
    hub.answer = answer
    environ = environ_of(tmp_path, hub.address)
    for _ in range(2):
        found = find_hub_config("some/model", None, environ)
        assert found.config is None and why in found.why
    assert len(hub.asked) == 1
    kept = next((tmp_path / ".cache/launch/hub_configs").iterdir())
    record = json.loads(kept.read_text())
    kept.write_text(json.dumps({**record, "failed_at": time.time() - 7200}))
    hub.answer = (200, json.dumps(OLMO3).encode())
    assert find_hub_config("some/model", None, environ).config == OLMO3


def test_a_hub_that_does_not_answer_costs_the_time_limit_once(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        environ = environ_of(tmp_path, f"http://127.0.0.1:{silent.getsockname()[1]}")
        start = time.monotonic()
        found = find_hub_config("some/model", None, environ, limit=0.3)
        assert time.monotonic() - start < 5 and found.config is None
        start = time.monotonic()
        again = find_hub_config("some/model", None, environ, limit=30)
        assert time.monotonic() - start < 5 and again.config is None


@pytest.mark.parametrize("reference", ["../../etc/passwd", "model", "a/b/c", "https://x/y"])
def test_what_is_no_name_of_the_hub_is_not_asked_for(
    hub: Hub, tmp_path: Path, reference: str
) -> None:
    assert find_hub_config(reference, None, environ_of(tmp_path, hub.address)).config is None
    assert hub.asked == [] and not (tmp_path / ".cache").exists()


LINE = ("stage=sft", "model.path=some/model", "gpus=1")


def test_the_memory_of_a_hub_model_is_predicted_from_its_config(hub: Hub, tmp_path: Path) -> None:
    environ = environ_of(tmp_path, hub.address)
    setting = planned_setting(planned(*LINE), environ, flash=True)
    shape = setting.shape
    assert (shape.layers, shape.sliding_layers, shape.window) == (8, 6, 16)
    assert planned_setting(planned("stage=sft", "gpus=1"), environ, flash=True).shape.layers == 32
    assert len(hub.asked) == 1, "a shape in YAML is not asked for"


@pytest.mark.parametrize(
    ("answer", "more", "why"),
    [
        ((200, b'{"model_type": "mixtral"}'), {}, "model_type mixtral"),
        ((200, b'{"model_type": "llama"}'), {}, "lacks a size"),
        ((404, b""), {}, "has no config.json"),
        ((200, b"{}"), {"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE=1 forbids"),
    ],
)
def test_an_unknown_shape_has_its_reason(
    hub: Hub, tmp_path: Path, answer: tuple[int, bytes], more: dict[str, str], why: str
) -> None:
    hub.answer = answer
    environ = environ_of(tmp_path, hub.address, **more)
    with pytest.raises(UnknownMemoryError, match=why):
        planned_setting(planned(*LINE), environ, flash=True)
    assert bool(hub.asked) is not bool(more)
