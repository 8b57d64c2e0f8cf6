"""Tokens: where they are looked for, and what the hub says of their rights (a server of the test's own)."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from launch.check.machine.accounts import (
    find_hub_token,
    find_wandb_key,
    hub_token_exists,
    push_is_allowed,
    wandb_key_exists,
)
from launch.check.machine.rule import Host
from tests.conftest import planned

ACCOUNTS: dict[str, dict[str, Any]] = {
    "hf_writer": {"name": "ann", "orgs": [{"name": "lab"}], "auth": {"accessToken": {"role": "write"}}},
    "hf_reader": {"name": "ann", "orgs": [], "auth": {"accessToken": {"role": "read"}}},
}


class _Hub(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        account = ACCOUNTS.get(self.headers["Authorization"].removeprefix("Bearer "))
        self.send_response(200 if account and self.path == "/api/whoami-v2" else 401)
        self.end_headers()
        self.wfile.write(json.dumps(account).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on the terminal."""


@pytest.fixture
def hub() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.mark.parametrize(
    ("owner", "token", "verdict", "facts"),
    [
        ("ann", "hf_writer", "pass", "ann may write to ann"),
        ("lab", "hf_writer", "pass", "ann may write to lab"),
        ("other", "hf_writer", "fail", "cannot write to other"),
        ("ann", "hf_reader", "fail", "read-only"),
        ("ann", "hf_revoked", "fail", "rejects this token (401)"),
    ],
)
def test_the_rights_of_a_push(hub: str, owner: str, token: str, verdict: str, facts: str) -> None:
    plan = planned("stage=sft", f"hub.push={owner}/model")
    finding = push_is_allowed.inspect(plan, Host({"HF_ENDPOINT": hub, "HF_TOKEN": token}))
    assert finding.level == verdict and facts in finding.message
    assert token not in finding.message


def test_a_hub_that_does_not_answer_is_a_warning() -> None:
    plan = planned("stage=sft", "hub.push=ann/model")
    finding = push_is_allowed.inspect(plan, Host({"HF_ENDPOINT": "http://127.0.0.1:9", "HF_TOKEN": "hf_x"}))
    assert finding.level == "warn" and "cannot be reached" in finding.message


def test_a_token_is_found_where_huggingface_hub_finds_it(tmp_path: Path) -> None:
    assert find_hub_token({"HOME": str(tmp_path)}) is None
    file = tmp_path / ".cache" / "huggingface" / "token"
    file.parent.mkdir(parents=True)
    file.write_text("hf_cached\n", encoding="utf-8")
    assert find_hub_token({"HOME": str(tmp_path)}) == "hf_cached"
    assert find_hub_token({"HOME": str(tmp_path), "HF_HOME": str(tmp_path)}) is None
    assert find_hub_token({"HOME": str(tmp_path), "HF_TOKEN": "hf_said"}) == "hf_said"
    assert find_hub_token({"HOME": "/nowhere", "HF_TOKEN_PATH": str(file)}) == "hf_cached"


def test_a_push_needs_a_token_and_a_gated_model_wants_one(tmp_path: Path) -> None:
    without = Host({"HOME": str(tmp_path)})
    push = planned("stage=sft", "hub.push=ann/model")
    assert hub_token_exists.inspect(push, without).level == "fail"
    gated = planned("stage=sft")
    finding = hub_token_exists.inspect(gated, without)
    assert finding.level == "warn" and "meta-llama/Llama-3.1-8B is gated" in finding.message
    assert hub_token_exists.inspect(gated, Host({"HF_TOKEN": "hf_x"})).level == "pass"
    free = planned("stage=sft", "model=olmo2_1b")
    assert hub_token_exists.inspect(free, without).level == "skipped"


def test_wandb_needs_a_login_only_online(tmp_path: Path) -> None:
    without = Host({"HOME": str(tmp_path)})
    online = planned("stage=sft", "tracking=wandb", "tracking_entity=me")
    offline = planned("stage=sft", "tracking=wandb_offline")
    finding = wandb_key_exists.inspect(online, without)
    assert finding.level == "fail" and finding.cure and "tracking=wandb_offline" in finding.cure
    assert wandb_key_exists.inspect(offline, without).level == "skipped"
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password x\n", encoding="utf-8")
    (tmp_path / ".netrc").chmod(0o600)
    assert wandb_key_exists.inspect(online, without).level == "pass"
    overrides = ["stage=dpo", "trainer=dpo", "model=olmo2_1b", "tracking=wandb", "tracking_entity=me"]
    olmo_core = planned(*overrides)
    assert "WANDB_API_KEY only" in wandb_key_exists.inspect(olmo_core, without).message
    key = Host({"WANDB_API_KEY": "x"})
    assert wandb_key_exists.inspect(olmo_core, key).level == "pass"
    assert find_wandb_key({"HOME": str(tmp_path), "WANDB_BASE_URL": "https://wandb.example.org"}) is None
