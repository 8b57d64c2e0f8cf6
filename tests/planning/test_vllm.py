"""TRL with vLLM: what is planned and checked before it starts."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path

import pytest

from launch.api.planning import PlannedRun
from launch.check.machine.gpus import enough_gpus, gpus_are_free
from launch.check.machine.rule import Host
from launch.check.machine.trainer import interpreter_has_packages
from launch.commands.plan import describe_plan
from launch.config.guards import SamplerMismatchLimits
from launch.errors import UserError
from launch.host import interpreter
from launch.host.nvidia import Gpu, GpuProcess, Gpus
from launch.planning.build import build_plan
from launch.planning.estimate.cards import CardMemory
from launch.planning.estimate.forecast import forecast_memory
from launch.planning.plan import Plan
from launch.planning.vllm_server import planned_server, server_environment
from launch.worker.finding import Finding
from tests.check.machine.driver import find
from tests.conftest import composed, fixed_machine

NAMED = "flags.vllm_server_host=10.0.0.1"
COLOCATE, SERVER = "recipe.generation=vllm_colocate", "recipe.generation=vllm_server"


def planned(*overrides: str) -> Plan:
    width = () if any(override.startswith("gpus=") for override in overrides) else ("gpus=8",)
    return build_plan(composed("stage=rlvr", *width, *overrides), fixed_machine())


@pytest.mark.parametrize("mode", ["colocate", "server"])
def test_a_plan_has_its_flags(mode: str) -> None:
    plan = planned(f"recipe.generation=vllm_{mode}")
    assert plan.flags["use_vllm"].value is True and plan.flags["vllm_mode"].value == mode
    assert not plan.warnings
    assert "PYTORCH_ALLOC_CONF" not in plan.env, (
        "vLLM's sleep mode does not work with expandable segments"
    )
    assert "PYTORCH_ALLOC_CONF" in planned().env and not planned().warnings


@pytest.mark.parametrize("flag", ["top_p=0.9", "top_k=50", "min_p=0.1"])
def test_a_cut_distribution_is_not_corrected(flag: str) -> None:
    with pytest.raises(UserError) as caught:
        planned(SERVER, f"flags.{flag}")
    assert caught.value.problems[0].id == "vllm_correction"
    assert planned(SERVER, f"flags.{flag}", "flags.vllm_importance_sampling_correction=false").flags
    assert planned(f"flags.{flag}").flags, (
        "transformers samples and scores with the same distribution"
    )


def test_ports_differ() -> None:
    with pytest.raises(UserError) as caught:
        planned(SERVER, "flags.vllm_group_port=8000")
    assert caught.value.problems[0].id == "vllm_ports"


def test_its_share_of_the_card_and_the_training_fit_or_not() -> None:
    card = CardMemory(80.0, "H100")

    def forecast(*overrides: str) -> tuple[str, float]:
        plan = planned("cluster.gpu_memory=80", *overrides)
        found = forecast_memory(plan, {}, card=card, lengths=None, flash=True)
        assert found.worst
        return found.fit.value, found.worst.total

    (fits, shared), (_, apart) = forecast(COLOCATE), forecast(SERVER)
    assert fits == "fits" and shared - apart == pytest.approx(0.3 * 80)
    assert forecast(COLOCATE, "flags.vllm_gpu_memory_utilization=0.9")[0] == "won't fit"


def test_the_versions_that_go_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = replace(planned(SERVER), command=(sys.executable,))
    absent = interpreter_has_packages.judge(plan, Host({}))
    assert absent.severity == "fail" and absent.message.endswith("vllm")
    assert "'trl[vllm]'" in str(absent.cure)
    (tmp_path / "vllm.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    interpreter._ask.cache_clear()
    install(tmp_path, "trl", "1.16.0", "vllm<=0.31.0,>=0.22.0; extra == 'vllm'")
    install(tmp_path, "torch", "2.11.0+cu130")
    machine = replace(plan.machine, packages=(tmp_path,))
    plan = replace(plan, machine=machine)
    for version, torch, unmet in (
        ("0.21.0", "2.11.0", "trl 1.16.0 requires vllm<=0.31.0,>=0.22.0, found vllm 0.21.0"),
        ("0.25.1", "2.11.0", None),
        ("0.30.0", "2.13.0", "vllm 0.30.0 requires torch==2.13.0, found torch 2.11.0+cu130"),
        ("0.31.0", "2.11.0", None),
        ("0.31.1", "2.11.0", "trl 1.16.0 requires vllm<=0.31.0,>=0.22.0, found vllm 0.31.1"),
    ):
        install(tmp_path, "vllm", version, f"torch=={torch}", "numpy")
        found = interpreter_has_packages.judge(plan, Host({}))
        assert found.severity == ("fail" if unmet else "pass"), found.message
        assert unmet is None or found.message.endswith(unmet)


def install(folder: Path, name: str, version: str, *requirements: str) -> None:
    """Write the metadata of an installed package, in place of that of another version."""
    for other in folder.glob(f"{name}-*.dist-info"):
        shutil.rmtree(other)
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    lines = ["Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {requirement}" for requirement in requirements]
    (info / "METADATA").write_text("\n".join(lines) + "\n")


def test_a_card_that_holds_the_server_is_not_trained_on() -> None:
    """The server's GPUs and the run's are others, or the run is refused."""
    free = Gpu("0", "GPU-0", "H100", 81_559.0, used=4.0)
    server = GpuProcess("7", "VLLM::EngineCore", 70_000.0)
    cards = (*[free] * 7, replace(free, used=70_000.0, processes=(server,)))
    plan = planned(SERVER, NAMED)
    found = gpus_are_free.judge(plan, Host({}, Gpus(cards, cards)))
    assert found.severity == "fail" and "VLLM::EngineCore" in found.message
    assert gpus_are_free.judge(plan, Host({}, Gpus((*cards[:7], free), cards))).severity == "pass"


def test_the_runs_own_server_needs_free_gpus_behind_the_trainers() -> None:
    free = Gpu("0", "GPU-0", "H100", 81_559.0, used=4.0)
    busy = replace(free, used=70_000.0, processes=(GpuProcess("7", "python", 70_000.0),))
    plan = planned(SERVER, "gpus=4", "recipe.server_gpus=4")
    eight = Gpus((*[free] * 8,), (*[free] * 8,))
    assert enough_gpus.judge(plan, Host({}, eight)).severity == "pass"
    assert enough_gpus.judge(planned(SERVER), Host({}, eight)).severity == "fail"
    cards = (*[free] * 7, busy)
    assert gpus_are_free.judge(plan, Host({}, Gpus(cards, cards))).severity == "fail"


MODEL = "allenai/Llama-3.1-Tulu-3-8B-DPO"  # of stage=rlvr
CONFIG = {"model_config": {"revision": None}, "weight_transfer_config": {"backend": "nccl"}}


@contextlib.contextmanager
def serving(
    config: dict[str, object] | None, *, model: str = MODEL, longest: int = 4096
) -> Iterator[int]:
    """Answers as vLLM's server does, without a model; yields its port."""

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            pages = {"/v1/models": {"data": [{"id": model, "max_model_len": longest}]}}
            if config is not None:
                pages["/server_info?config_format=json"] = {"vllm_config": config}  # type: ignore[dict-item]
            self.send_response(200 if self.path in pages else 404)
            self.end_headers()
            self.wfile.write(json.dumps(pages.get(self.path)).encode())

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def find_named(port: int, *overrides: str) -> Finding:
    address = f"flags.vllm_server_base_url=http://127.0.0.1:{port}"
    return find("no_vllm_server", planned(SERVER, address, *overrides), Host({}))


def test_a_named_server_has_to_fit_the_run() -> None:
    with serving(CONFIG) as port:
        assert find_named(port).severity == "pass"
        assert "4096" in find_named(port, "recipe.max_seq_length=8192").message
        assert "has revision None" in find_named(port, "model.revision=main").message
    assert find_named(port).severity == "fail", "nothing answers"
    with serving(CONFIG, model="allenai/other") as port:
        assert "serves allenai/other" in find_named(port).message
    with serving(None) as port:
        assert "VLLM_SERVER_DEV_MODE" in find_named(port).message
    with serving({**CONFIG, "weight_transfer_config": None}) as port:
        assert "--weight-transfer-config" in find_named(port).message
    assert find("no_vllm_server", planned(SERVER), Host({})).severity == "skipped"


def test_a_port_of_the_runs_own_server_is_free() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        for flag in ("vllm_server_port", "vllm_group_port"):
            found = find("server_port_in_use", planned(SERVER, f"flags.{flag}={port}"), Host({}))
            assert found.severity == "fail" and str(port) in found.message
            assert f"flags.{flag}={port + 1}" in str(found.cure)
        shared = ("gpus=1", "recipe.server_gpus=0", f"flags.vllm_group_port={port}")
        assert find("server_port_in_use", planned(SERVER, *shared), Host({})).severity == "pass"


def test_the_command_of_the_server_is_what_trls_parser_takes() -> None:
    """TRL's own parser and its own builder of vLLM's command line."""
    from trl.scripts.vllm_serve import build_command, make_parser

    for overrides, own in (
        (("gpus=4", "recipe.server_gpus=2"), ("2", "0.9", '{"backend": "nccl"}')),
        (("gpus=1", "recipe.server_gpus=0"), ("1", "0.3", '{"backend": "ipc"}')),
        (("flags.vllm_gpu_memory_utilization=0.5",), ("1", "0.5", '{"backend": "nccl"}')),
    ):
        plan = planned(SERVER, *overrides)
        server = planned_server(plan)
        assert server is not None
        assert server.command[:3] == (plan.command[0], "-m", "trl.scripts.vllm_serve")
        known, others = make_parser().parse_args_and_config(
            list(server.command[3:]), return_remaining_strings=True
        )
        command = build_command(known, others)
        values = dict(pairwise(command))  # the last one of a flag counts
        names = ("--tensor-parallel-size", "--gpu-memory-utilization", "--weight-transfer-config")
        assert tuple(values[name] for name in names) == own
        assert values["serve"] == MODEL and values["--host"] == "127.0.0.1"
        assert values["--max-model-len"] == str(plan.config.recipe.max_seq_length)


def test_where_the_server_runs() -> None:
    def devices(*overrides: str, visible: str = "") -> str:
        plan = planned(SERVER, *overrides)
        server = planned_server(plan)
        assert server is not None
        return server_environment(server, plan, {"CUDA_VISIBLE_DEVICES": visible})[
            "CUDA_VISIBLE_DEVICES"
        ]

    assert devices("gpus=4", "recipe.server_gpus=2") == "4,5"
    assert devices("gpus=2", visible="7,3,GPU-a") == "GPU-a"
    assert devices("gpus=1", "recipe.server_gpus=0", visible="5,6") == "5"
    assert planned_server(planned(SERVER, NAMED)) is None
    assert planned_server(planned(COLOCATE)) is None


def test_a_plan_without_vllm_names_it_and_what_it_saved() -> None:
    def fact(*overrides: str) -> str | None:
        return dict(PlannedRun(planned(*overrides)).facts()).get("generation")

    shown = fact()
    assert shown is not None and COLOCATE in shown
    folder = Path("benchmarks")
    [with_vllm, *_] = json.loads((folder / "h200_rlvr_vllm.json").read_text())["settings"]
    [without, *_] = json.loads((folder / "h200_rlvr_1b.json").read_text())["settings"]
    for run in (with_vllm, without):
        seconds = [step["seconds"] for step in run["steps"][1:]]
        assert f"{min(seconds):.1f} to {max(seconds):.1f} s" in shown
    assert fact(COLOCATE) is None and fact(SERVER) is None
    assert fact("gpus=0", "processes=1", "recipe.precision=fp32") is None


def test_a_plan_shows_the_server_that_it_starts() -> None:
    plan = planned(SERVER, "gpus=2", "recipe.server_gpus=2")
    server = planned_server(plan)
    assert server is not None
    assert PlannedRun(plan).as_json()["server"]["command"] == list(server.command)
    shown = describe_plan(PlannedRun(plan), {})[-1]
    assert "trl.scripts.vllm_serve" in shown and "CUDA_VISIBLE_DEVICES=2,3" in shown
    named = PlannedRun(planned(SERVER, NAMED))
    assert (
        "server" not in named.as_json() and "scripts.vllm_serve" not in describe_plan(named, {})[-1]
    )


@pytest.mark.parametrize(
    ("overrides", "id"),
    [
        ((SERVER, "recipe.server_gpus=0"), "shared_server_gpu"),
        ((SERVER, "nodes=2"), "vllm_server_nodes"),
        ((SERVER, "gpus=0", "processes=1", "recipe.precision=fp32"), "no_server_gpu"),
        ((COLOCATE, "recipe.server_gpus=1"), "server_gpus_unused"),
    ],
)
def test_a_server_that_cannot_be_is_refused(overrides: tuple[str, ...], id: str) -> None:
    with pytest.raises(UserError) as caught:
        planned(*overrides)
    assert caught.value.problems[0].id == id


@pytest.mark.parametrize("server", [False, True])
def test_the_run_on_a_card_proved_its_weights_and_waited_for_little_else(server: bool) -> None:
    """The steps of benchmarks/h200_rlvr_vllm.json: all but generation and training is overhead."""
    recorded = json.loads(Path("benchmarks/h200_rlvr_vllm.json").read_text())
    runs = [
        setting for setting in recorded["settings"] if setting["vllm"] and setting["model"] == "1b"
    ]
    (run,) = [setting for setting in runs if setting.get("server", False) == server]
    assert run["exit_code"] == 0 and len(run["steps"]) == 6
    (weights,) = run["sampler_weights"]
    assert (weights["verdict"], weights["how"][:18]) == ("proven", "146 of 146 tensors")
    limit = SamplerMismatchLimits().most
    for step in run["steps"]:
        assert 0.018 <= step["sampling/sampling_logp_difference/mean"] < 0.0235 < limit / 2
        assert step.get("weights_seconds", 0.0) < (0.2 if server else 0.06)
    for step in run["steps"][1:]:  # the first one samples the start model
        work = step["generation_seconds"] + step["training_seconds"]
        assert step["seconds"] <= 1.4 * work and 2.0 < step["seconds"] < 3.0
