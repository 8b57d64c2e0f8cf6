"""What the rules find on a machine, a line each; the driver and the hub are the test's own."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from launch.check.machine.accounts import hub_token_exists, push_is_allowed, wandb_key_exists
from launch.check.machine.disk import disk_has_room
from launch.check.machine.gpus import enough_gpus, gpus_are_free
from launch.check.machine.inputs import hub_is_reachable
from launch.check.machine.memory import model_fits
from launch.check.machine.rule import Host, PreflightRule
from launch.host.nvidia import query_gpus
from launch.planning.plan import build_plan
from tests.check.machine.driver import install_driver
from tests.conftest import composed, fixed_machine

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
    rule: PreflightRule
    overrides: str
    machine: Machine
    verdict: str
    message: str = ""  # a part of it
    cure: str = ""  # a part of it


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
IN_USE = "GPU 0: 70000 of 81559 MiB in use by process 4242 (python3)"
USE_OTHERS = "`export CUDA_VISIBLE_DEVICES=1,2`"
MISMATCH = "Driver/library version mismatch"
FAILING = gpus(0, sleep=f"echo '{MISMATCH}'; exit 9")
HIDDEN = "one GPU (CUDA_VISIBLE_DEVICES hides 3)"
GPUS = (
    Case("four of eight GPUs", enough_gpus, "stage=sft gpus=8", FOUR, "fail", cure="set gpus=4"),
    Case(
        "hidden GPUs", enough_gpus, "stage=sft gpus=4", gpus(*[0] * 4, visible="3"), "fail", HIDDEN
    ),
    Case("enough GPUs", enough_gpus, "stage=sft gpus=4", FOUR, "pass"),
    Case(
        "no driver",
        enough_gpus,
        "stage=sft",
        NOTHING,
        "fail",
        "no GPU: nvidia-smi is not installed",
    ),
    Case("a driver that fails", enough_gpus, "stage=sft", FAILING, "fail", MISMATCH),
    Case("a GPU in use", gpus_are_free, "stage=sft gpus=2", SHARED, "fail", IN_USE, USE_OTHERS),
    Case("the other GPUs", gpus_are_free, "stage=sft gpus=2", FREE, "pass"),
    Case(
        "memory of nobody",
        gpus_are_free,
        "stage=sft",
        gpus(9000),
        "fail",
        "is not visible from here",
    ),
    Case("a busy GPU", gpus_are_free, "stage=sft", gpus(4, busy=97), "warn", "GPU 0 is 97% busy"),
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
OFTEN = f"{HUGE} recipe.checkpoint_steps=10"
ENDED = Machine(ends_after=50)
KEEP_ONE = "flags.keep_last_n_checkpoints=1"
NOTHING_SAVED = "a run that is ended after 50 steps saves nothing"
ROOM = (
    Case("70B", model_fits, SFT_70B, EIGHT, "fail", "take 132 GiB on each GPU", "zero3_offload"),
    Case("8B", model_fits, SFT, EIGHT, "pass", "take 15 GiB"),
    Case("8B with its activations", model_fits, SFT, EIGHT, "pass", "per GPU: fits"),
    Case("large batches", model_fits, LARGE, EIGHT, "warn", cure="recipe.liger=true"),
    Case("an adapter", model_fits, LORA_70B, EIGHT, "skipped"),
    Case(
        "an unknown model",
        model_fits,
        "stage=sft model.path=some/model",
        EIGHT,
        "skipped",
        "some/model",
    ),
    Case("tuned for four GPUs", model_fits, TUNED, gpus(0), "fail", cure="parallel=single"),
    Case("one GPU", model_fits, "stage=sft gpus=1", gpus(0), "pass"),
    Case("a small disk", disk_has_room, OFTEN, NOTHING, "fail", "4 checkpoints of", KEEP_ONE),
    Case("a small model", disk_has_room, "stage=sft model.shape.parameters=1e6", NOTHING, "pass"),
    Case("ended before a checkpoint", disk_has_room, HUGE, ENDED, "pass", NOTHING_SAVED),
    Case("ended after a checkpoint", disk_has_room, OFTEN, ENDED, "fail"),
)


def hub_with(token: str) -> Machine:
    return Machine({"HF_ENDPOINT": "{hub}", "HF_TOKEN": token})


PUSH = "stage=sft hub.push=ann/model"
WANDB = "stage=sft tracking=wandb tracking_entity=me"
OLMO_WANDB = "stage=dpo trainer=dpo model=olmo2_1b tracking=wandb tracking_entity=me"
LOGIN = Machine(files={".netrc": "machine api.wandb.ai login user password x\n"})
SILENT = Machine({"HF_ENDPOINT": "http://127.0.0.1:9", "HF_TOKEN": "hf_x"})
GATED = "meta-llama/Llama-3.1-8B is gated"
TO_LAB, TO_OTHER = PUSH.replace("ann", "lab"), PUSH.replace("ann", "other")
RIGHTS = (
    Case("one's own", push_is_allowed, PUSH, hub_with("hf_writer"), "pass", "ann may write to ann"),
    Case(
        "one's organisation",
        push_is_allowed,
        TO_LAB,
        hub_with("hf_writer"),
        "pass",
        "ann may write to lab",
    ),
    Case(
        "another's",
        push_is_allowed,
        TO_OTHER,
        hub_with("hf_writer"),
        "fail",
        "cannot write to other",
    ),
    Case("a token to read", push_is_allowed, PUSH, hub_with("hf_reader"), "fail", "read-only"),
    Case(
        "a revoked token",
        push_is_allowed,
        PUSH,
        hub_with("hf_revoked"),
        "fail",
        "rejects this token (401)",
    ),
    Case("no answer", push_is_allowed, PUSH, SILENT, "warn", "cannot be reached"),
    Case("a push", hub_token_exists, PUSH, NOTHING, "fail"),
    Case("a gated model", hub_token_exists, "stage=sft", NOTHING, "warn", GATED),
    Case(
        "a gated model with a token",
        hub_token_exists,
        "stage=sft",
        Machine({"HF_TOKEN": "hf_x"}),
        "pass",
    ),
    Case("a free model", hub_token_exists, "stage=sft model=olmo2_1b", NOTHING, "skipped"),
    Case("no login", wandb_key_exists, WANDB, NOTHING, "fail", cure="tracking=wandb_offline"),
    Case("offline", wandb_key_exists, "stage=sft tracking=wandb_offline", NOTHING, "skipped"),
    Case("a login", wandb_key_exists, WANDB, LOGIN, "pass"),
    Case(
        "a login for OLMo-core", wandb_key_exists, OLMO_WANDB, LOGIN, "fail", "WANDB_API_KEY only"
    ),
    Case(
        "a key for OLMo-core", wandb_key_exists, OLMO_WANDB, Machine({"WANDB_API_KEY": "x"}), "pass"
    ),
)


def hub_at(endpoint: str, **more: str) -> Machine:
    return Machine({"HF_HUB_CACHE": "{home}/hub", "HF_ENDPOINT": endpoint, **more})


BASE, LOCAL = "stage=demo trainer=trl_sft model.path=owner/base", "stage=demo"
OFFLINE = hub_at("{hub}/status/200", HF_HUB_OFFLINE="1")
CACHED = OFFLINE._replace(files={"hub/models--owner--base/snapshots/abc/config.json": "{}"})
FORBIDDEN = "owner/base would come from the hub, which HF_HUB_OFFLINE=1 forbids"
HUB = (
    Case("answers 200", hub_is_reachable, BASE, hub_at("{hub}/status/200"), "pass"),
    Case("answers 404", hub_is_reachable, BASE, hub_at("{hub}/status/404"), "pass"),
    # a proxy's
    Case("answers 403", hub_is_reachable, BASE, hub_at("{hub}/status/403"), "fail"),
    Case("answers 502", hub_is_reachable, BASE, hub_at("{hub}/status/502"), "fail"),
    Case(
        "refuses",
        hub_is_reachable,
        BASE,
        hub_at("http://127.0.0.1:9"),
        "fail",
        "Connection refused",
    ),
    Case("offline", hub_is_reachable, BASE, OFFLINE, "fail", FORBIDDEN),
    Case("offline with a cached model", hub_is_reachable, BASE, CACHED, "skipped"),
    Case("offline with a local model", hub_is_reachable, LOCAL, OFFLINE, "skipped"),
)


@pytest.mark.parametrize(
    "case", (*GPUS, *ROOM, *RIGHTS, *HUB), ids=lambda case: f"{case.rule.id}: {case.name}"
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
    finding = case.rule.inspect(plan, Host(environ, query_gpus(environ), facts.ends_after))
    assert finding.severity == case.verdict, finding
    assert case.message in finding.message and case.cure in str(finding.cure), finding
    assert "HF_TOKEN" not in environ or environ["HF_TOKEN"] not in str(finding)
