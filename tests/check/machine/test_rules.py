"""What the rules find on a machine, a line each; the driver and the hub are the test's own."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from launch.check.machine.rule import Host
from launch.host.nvidia import query_gpus
from launch.planning.build import build_plan
from tests.check.machine.driver import find, install_driver
from tests.conftest import composed, fixed_machine
from tests.messages import names

ACCOUNTS: dict[str, dict[str, Any]] = {
    "hf_writer": {
        "name": "ann",
        "orgs": [{"name": "lab"}],
        "auth": {"accessToken": {"role": "write"}},
    },
    "hf_reader": {"name": "ann", "orgs": [], "auth": {"accessToken": {"role": "read"}}},
}


class _Hub(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        account = ACCOUNTS.get(self.headers.get("Authorization", "").removeprefix("Bearer "))
        status = 200 if account and self.path == "/api/whoami-v2" else 401
        self.send_response(
            int(self.path.split("/")[2]) if self.path.startswith("/status/") else status
        )
        self.end_headers()
        self.wfile.write(json.dumps(account).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def hub() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


class Machine(NamedTuple):
    """The facts of a case."""

    environ: Mapping[str, str] = {}  # {hub}: the hub's address; {home}: a folder, which is HOME too
    files: Mapping[str, str] = {}  # in that folder, which is empty otherwise
    cards: Sequence[int] | None = None  # MiB in use on each; None: there is no driver
    driver: Mapping[str, Any] = {}  # how else the driver answers
    ends_after: int | None = None


class Case(NamedTuple):
    name: str
    id: str  # of the rule
    overrides: str
    machine: Machine
    verdict: str
    names: tuple[str, ...] = ()  # what the message and the cure name, besides others


def gpus(*used: int, visible: str | None = None, **driver: Any) -> Machine:
    return Machine(
        {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}, cards=used, driver=driver
    )


NOTHING = Machine()
FOUR, EIGHT = gpus(*[0] * 4), gpus(*[0] * 8)
PROCESSES = "GPU-0aaa, 4242, /opt/py/python3, 69990\n"
SHARED, FREE = (
    gpus(70_000, 4, 4, processes=PROCESSES, visible=visible) for visible in (None, "1,2")
)
FAILING = gpus(0, sleep="echo 'Driver/library version mismatch: 570.86'; exit 9")
GPUS = (
    Case(
        "four of eight GPUs", "too_few_gpus", "stage=sft gpus=8", FOUR, "fail", ("4", "8", "gpus=4")
    ),
    Case(
        "hidden GPUs",
        "too_few_gpus",
        "stage=sft gpus=4",
        gpus(*[0] * 4, visible="3"),
        "fail",
        ("4", "3", "gpus=1"),
    ),
    Case("enough GPUs", "too_few_gpus", "stage=sft gpus=4", FOUR, "pass"),
    Case("no driver", "too_few_gpus", "stage=sft", NOTHING, "fail", ("gpus=0",)),
    Case("a driver that fails", "too_few_gpus", "stage=sft", FAILING, "fail", ("570.86", "gpus=0")),
    Case(
        "a GPU in use",
        "gpus_busy",
        "stage=sft gpus=2",
        SHARED,
        "fail",
        ("0", "4242", "python3", "70000", "81559", "CUDA_VISIBLE_DEVICES=1,2"),
    ),
    Case("the other GPUs", "gpus_busy", "stage=sft gpus=2", FREE, "pass"),
    Case("memory of nobody", "gpus_busy", "stage=sft", gpus(9000), "fail", ("0", "9000", "81559")),
    Case("a busy GPU", "gpus_busy", "stage=sft", gpus(4, busy=97), "warn", ("0", "97%")),
)

SFT = "stage=sft gpus=8"
SFT_70B = f"{SFT} model=llama3_1_70b"
LARGE = f"{SFT} recipe.per_device_batch_size=16"
LORA_70B = "stage=sft model=llama3_1_70b flags.use_lora=true"
# what `tune` chose for four GPUs, on one: the state alone fits, and the second gradient does not
TUNED = (
    "stage=sft gpus=1 parallel=zero2 recipe.per_device_batch_size=16 recipe.packing=flatten "
    "recipe.liger=true"
)
TUNED += " recipe.gradient_checkpointing=false"
HUGE = f"{SFT} model.shape.parameters=1e15"
# whose model is made here, and not downloaded
MADE = (
    "stage=demo trainer=trl_sft device=cpu model.shape.parameters=1e15 recipe.checkpoint_steps=99"
)
OFTEN = f"{HUGE} recipe.checkpoint_steps=10"
ENDED = Machine(ends_after=50)
ROOM = (
    Case("70B", "model_too_big", SFT_70B, EIGHT, "fail", ("132", "79.6", "parallel=zero3_offload")),
    Case("8B", "model_too_big", SFT, EIGHT, "pass", ("15", "79.6")),
    Case("large batches", "model_too_big", LARGE, EIGHT, "warn", ("15", "16", "recipe.liger=true")),
    Case("an adapter", "model_too_big", LORA_70B, EIGHT, "skipped"),
    Case(
        "an unknown model",
        "model_too_big",
        "stage=sft model.path=some/model",
        EIGHT,
        "skipped",
        ("some/model",),
    ),
    Case(
        "tuned for four GPUs", "model_too_big", TUNED, gpus(0), "fail", ("120", "parallel=single")
    ),
    Case("one GPU", "model_too_big", "stage=sft gpus=1", gpus(0), "pass"),
    Case(
        "a small disk",
        "disk_full",
        OFTEN,
        NOTHING,
        "fail",
        ("4", "flags.keep_last_n_checkpoints=1"),
    ),
    Case("a small model", "disk_full", "stage=sft model.shape.parameters=1e6", NOTHING, "pass"),
    Case("ended before a checkpoint", "disk_full", MADE, ENDED, "pass", ("50",)),
    Case("ended after a checkpoint", "disk_full", OFTEN, ENDED, "fail"),
)


def hub_with(token: str) -> Machine:
    return Machine({"HF_ENDPOINT": "{hub}", "HF_TOKEN": token})


PUSH = "stage=sft hub.push=ann/model"
WANDB = "stage=sft tracking=wandb tracking_entity=me"
OLMO_WANDB = "stage=dpo trainer=dpo model=olmo2_1b tracking=wandb tracking_entity=me"
LOGIN = Machine(files={".netrc": "machine api.wandb.ai login user password x\n"})
SILENT = Machine({"HF_ENDPOINT": "http://127.0.0.1:9", "HF_TOKEN": "hf_x"})
TO_LAB, TO_OTHER = PUSH.replace("ann", "lab"), PUSH.replace("ann", "other")
RIGHTS = (
    Case("one's own", "push_refused", PUSH, hub_with("hf_writer"), "pass", ("ann",)),
    Case(
        "one's organisation", "push_refused", TO_LAB, hub_with("hf_writer"), "pass", ("ann", "lab")
    ),
    Case(
        "another's",
        "push_refused",
        TO_OTHER,
        hub_with("hf_writer"),
        "fail",
        ("ann", "other", "hub.push=OWNER/NAME", "lab"),
    ),
    Case("a token to read", "push_refused", PUSH, hub_with("hf_reader"), "fail"),
    Case(
        "a revoked token",
        "push_refused",
        PUSH,
        hub_with("hf_revoked"),
        "fail",
        ("401", "`hf auth login`"),
    ),
    Case("no answer", "push_refused", PUSH, SILENT, "warn", ("111",)),
    Case("a push", "no_hub_token", PUSH, NOTHING, "fail"),
    Case(
        "a gated model",
        "no_hub_token",
        "stage=sft",
        NOTHING,
        "warn",
        ("meta-llama/Llama-3.1-8B", "`hf auth login`"),
    ),
    Case(
        "a gated model with a token",
        "no_hub_token",
        "stage=sft",
        Machine({"HF_TOKEN": "hf_x"}),
        "pass",
    ),
    Case("a free model", "no_hub_token", "stage=sft model=olmo2_1b", NOTHING, "skipped"),
    Case(
        "no login",
        "no_wandb_login",
        WANDB,
        NOTHING,
        "fail",
        ("tracking=wandb", "tracking=wandb_offline"),
    ),
    Case("offline", "no_wandb_login", "stage=sft tracking=wandb_offline", NOTHING, "skipped"),
    Case("a login", "no_wandb_login", WANDB, LOGIN, "pass"),
    Case(
        "a login for OLMo-core",
        "no_wandb_login",
        OLMO_WANDB,
        LOGIN,
        "fail",
        ("dpo", "WANDB_API_KEY", "tracking=tensorboard"),
    ),
    Case(
        "a key for OLMo-core", "no_wandb_login", OLMO_WANDB, Machine({"WANDB_API_KEY": "x"}), "pass"
    ),
)


def hub_at(endpoint: str, **more: str) -> Machine:
    return Machine({"HF_HUB_CACHE": "{home}/hub", "HF_ENDPOINT": endpoint, **more})


BASE, LOCAL = "stage=demo trainer=trl_sft model.path=owner/base", "stage=demo"
OFFLINE = hub_at("{hub}/status/200", HF_HUB_OFFLINE="1")
CACHED = OFFLINE._replace(files={"hub/models--owner--base/snapshots/abc/config.json": "{}"})
HUB = (
    Case("answers 200", "hub_unreachable", BASE, hub_at("{hub}/status/200"), "pass"),
    Case("answers 404", "hub_unreachable", BASE, hub_at("{hub}/status/404"), "pass"),
    # a proxy's
    Case("answers 403", "hub_unreachable", BASE, hub_at("{hub}/status/403"), "fail"),
    Case("answers 502", "hub_unreachable", BASE, hub_at("{hub}/status/502"), "fail"),
    Case(
        "refuses",
        "hub_unreachable",
        BASE,
        hub_at("http://127.0.0.1:9"),
        "fail",
        ("owner/base", "111"),
    ),
    Case("offline", "hub_unreachable", BASE, OFFLINE, "fail", ("owner/base", "HF_HUB_OFFLINE=1")),
    Case("offline with a cached model", "hub_unreachable", BASE, CACHED, "skipped"),
    Case("offline with a local model", "hub_unreachable", LOCAL, OFFLINE, "skipped"),
)


@pytest.mark.parametrize(
    "case", (*GPUS, *ROOM, *RIGHTS, *HUB), ids=lambda case: f"{case.id}: {case.name}"
)
def test_rule(case: Case, hub: str, tmp_path: Path) -> None:
    home, facts = tmp_path / "home", case.machine
    home.mkdir()
    for name, text in facts.files.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text, encoding="utf-8")
        (home / name).chmod(0o600)
    environ = {"HOME": str(home), "PATH": "/nowhere"}
    if facts.cards is not None:
        environ |= install_driver(tmp_path, facts.cards, **facts.driver)
    environ |= {name: value.format(hub=hub, home=home) for name, value in facts.environ.items()}
    plan = build_plan(composed(*case.overrides.split()), fixed_machine(tmp_path))
    finding = find(case.id, plan, Host(environ, query_gpus(environ), facts.ends_after))
    assert finding.severity == case.verdict, finding
    assert all(names(str(finding), name) for name in case.names), finding
    assert "HF_TOKEN" not in environ or environ["HF_TOKEN"] not in str(finding)
