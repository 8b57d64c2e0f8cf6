"""TRL with vLLM: what is planned and checked before it starts."""

from __future__ import annotations

import json
import shutil
import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from launch.check.machine.gpus import gpus_are_free
from launch.check.machine.rule import Host
from launch.check.machine.trainer import interpreter_has_packages
from launch.config.guards import SamplerMismatchLimits
from launch.errors import UserError
from launch.host import interpreter
from launch.host.nvidia import Gpu, GpuProcess, Gpus
from launch.planning.build import build_plan
from launch.planning.estimate.cards import CardMemory
from launch.planning.estimate.forecast import forecast_memory
from launch.planning.plan import Plan
from tests.check.machine.driver import find
from tests.conftest import composed, fixed_machine
from tests.messages import values_of

COLOCATE, SERVER = "recipe.generation=vllm_colocate", "recipe.generation=vllm_server"


def planned(*overrides: str) -> Plan:
    return build_plan(composed("stage=rlvr", "gpus=8", *overrides), fixed_machine())


@pytest.mark.parametrize("mode", ["colocate", "server"])
def test_a_plan_has_its_flags_and_says_what_was_not_run(mode: str) -> None:
    plan = planned(f"recipe.generation=vllm_{mode}")
    assert plan.flags["use_vllm"].value is True and plan.flags["vllm_mode"].value == mode
    untested = ["vllm_untested"] if mode == "server" else []
    assert [warning.id for warning in plan.warnings] == untested
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
    found = gpus_are_free.judge(planned(SERVER), Host({}, Gpus(cards, cards)))
    assert found.severity == "fail" and "VLLM::EngineCore" in found.message
    assert (
        gpus_are_free.judge(planned(SERVER), Host({}, Gpus((*cards[:7], free), cards))).severity
        == "pass"
    )


def test_a_server_that_nothing_answers_is_named_before_trl_waits() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        place = (
            "flags.vllm_server_host=127.0.0.1",
            f"flags.vllm_server_port={(port := str(server.getsockname()[1]))}",
        )
        absent = find("no_vllm_server", planned(SERVER, *place), Host({}))
        server.listen()  # as the cure does
        assert find("no_vllm_server", planned(SERVER, *place), Host({})).severity == "pass"
    assert absent.severity == "fail" and "trl vllm-serve" in str(absent.cure)
    assert {port, "127.0.0.1"} <= set(values_of(absent.message.replace(":", " ")))
    assert find("no_vllm_server", planned(COLOCATE), Host({})).severity == "skipped"


def test_the_run_on_a_card_proved_its_weights_and_waited_for_little_else() -> None:
    """The steps of benchmarks/h200_rlvr_vllm.json: all but generation and training is overhead."""
    recorded = json.loads(Path("benchmarks/h200_rlvr_vllm.json").read_text())
    (run,) = [setting for setting in recorded["settings"] if setting["vllm"]]
    assert run["exit_code"] == 0
    (weights,) = run["sampler_weights"]
    assert (weights["verdict"], weights["how"][:18]) == ("proven", "146 of 146 tensors")
    limit = SamplerMismatchLimits().most
    for step in run["steps"]:
        assert 0.018 <= step["sampling/sampling_logp_difference/mean"] < 0.0235 < limit / 2
    for step in run["steps"][1:]:  # the first one samples the start model
        work = step["generation_seconds"] + step["training_seconds"]
        assert step["seconds"] <= 1.4 * work
