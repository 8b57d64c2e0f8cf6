"""The rules about files, limits, ports and clocks, on this machine; and how all rules are run."""

from __future__ import annotations

import importlib.util
import shutil
import socket
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from launch.check.machine.rule import Host, rule
from launch.check.machine.rules import RULES, inspect, preflight
from launch.planning.build import build_plan
from launch.planning.plan import Plan
from launch.worker.finding import Finding
from tests.check.machine.driver import find
from tests.conftest import composed, fixed_machine
from tests.integration import warm
from tests.messages import values_of


def planned(cwd: Path, *overrides: str) -> Plan:
    return build_plan(composed(*overrides), replace(fixed_machine(cwd), python=sys.executable))


def test_what_imports_the_trainer_is_slow() -> None:
    assert {entry.id for entry in RULES if entry.slow} == {"parser_refuses", "no_collective"}


@pytest.mark.parametrize(
    ("nodes", "limits", "expected"),
    [
        (1, (1024, 1_048_576), ["pass", "1024", "65536"]),
        (1, (300, None), ["pass", "300", "65536"]),
        (1, (300, 600), ["warn", "1", "600", "640"]),
        (1, (None, None), ["pass"]),
        (32, (1024, 4096), ["pass", "1024", "4096"]),
        (512, (1024, 4096), ["warn", "4096", "6144"]),
    ],
)
def test_the_first_nodes_store_needs_a_descriptor_for_every_rank(
    nodes: int,
    limits: tuple[int | None, int | None],
    expected: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("launch.check.machine.limits._resource_limits", lambda name: limits)
    width = (
        (
            "gpus=8",
            f"nodes={nodes}",
            f"recipe.global_batch_size={nodes * 8}",
            "recipe.per_device_batch_size=1",
        )
        if nodes > 1
        else ()
    )
    finding = find("open_files_limit", planned(tmp_path, "stage=demo", *width), Host({}))
    assert [finding.severity, *values_of(finding.message)] == expected


def test_a_taken_port_is_found(tmp_path: Path) -> None:
    plan = planned(tmp_path, "stage=demo")
    assert find("port_taken", plan, Host({})).severity == "pass"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = str(taken.getsockname()[1])
        at = plan.command.index("--main_process_port") + 1
        fixed = replace(plan, command=(*plan.command[:at], port, *plan.command[at + 1 :]))
        finding = find("port_taken", fixed, Host({}))
        assert finding.severity == "fail" and values_of(finding.message) == [port]


def test_infiniband_needs_locked_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(tmp_path, "stage=demo", "gpus=2", "device=cuda")
    monkeypatch.setattr("launch.check.machine.limits._INFINIBAND", tmp_path / "infiniband")
    assert find("memlock_limit", plan, Host({})).severity == "skipped"
    (tmp_path / "infiniband" / "mlx5_0").mkdir(parents=True)
    for soft, level, values in ((64 << 10, "warn", ["64"]), (None, "pass", [])):
        monkeypatch.setattr(
            "launch.check.machine.limits._resource_limits", lambda name, soft=soft: (soft, None)
        )
        finding = find("memlock_limit", plan, Host({}))
        assert (finding.severity, values_of(finding.message)) == (level, values)


def test_shared_memory_of_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(tmp_path, "stage=demo", "gpus=2", "device=cuda")
    monkeypatch.setattr("launch.check.machine.limits._SHM", tmp_path)
    usage = shutil.disk_usage(tmp_path)
    for mib, level in ((64, "warn"), (64 << 10, "pass")):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, mib=mib: usage._replace(free=mib << 20))
        finding = find("small_shm", plan, Host({}))
        assert finding.severity == level
        assert level == "pass" or {"64", "2"} <= set(values_of(finding.message))
    assert find("small_shm", planned(tmp_path, "stage=demo"), Host({})).severity == "skipped"


def test_a_model_that_was_removed_after_the_plan(tmp_path: Path) -> None:
    plan = planned(tmp_path, "stage=demo")
    assert find("no_such_input", plan, Host({})).severity == "pass", (
        "the demo's model is built later"
    )
    model = replace(plan.inputs.model, build=False, local=tmp_path / "gone")
    removed = replace(plan, inputs=replace(plan.inputs, model=model))
    finding = find("no_such_input", removed, Host({}))
    assert finding.severity == "fail" and str(tmp_path / "gone") in finding.message


def test_a_hub_id_is_refused_at_once_where_the_hub_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(tmp_path, "stage=demo", "trainer=trl_sft", "model.path=owner/base")
    cache = {"HF_HUB_CACHE": str(tmp_path / "hub")}
    with socket.socket() as silent:  # it takes connections and never answers
        silent.bind(("127.0.0.1", 0))
        silent.listen(8)
        port = silent.getsockname()[1]
        began = time.monotonic()
        host = Host({**cache, "HF_ENDPOINT": f"http://127.0.0.1:{port}"})
        finding = find("hub_unreachable", plan, host)
        assert time.monotonic() - began < 3
    assert finding.severity == "fail" and finding.where == "override model.path"
    assert "owner/base" in finding.message

    def hang(*_: object, **__: object) -> None:
        time.sleep(5)
        raise OSError("no name server answers")

    with monkeypatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", hang)
        began = time.monotonic()
        host = Host({**cache, "HF_ENDPOINT": "http://hub.invalid"})
        unnamed = find("hub_unreachable", plan, host)
        assert time.monotonic() - began < 3 and "1.5" in values_of(unnamed.message)
        assert all(
            thread.daemon
            for thread in threading.enumerate()
            if thread is not threading.main_thread()
        )
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "none"))
    found = {finding.id: finding for finding in inspect(plan)}
    assert found["parser_refuses"].severity == "skipped"  # the trainer is not imported to say so


def test_a_clock_that_is_off_or_not_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(tmp_path, "stage=demo")
    assert find("clock_skew", plan, Host({})).severity == "pass"
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3600)
    assert find("clock_skew", plan, Host({})).severity == "warn"
    monkeypatch.setattr(time, "time", lambda: 86400.0)
    assert "1970-01-02" in values_of(find("clock_skew", plan, Host({})).message)


def test_a_folder_that_is_a_file_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("no folder", encoding="utf-8")
    host = Host({"HF_HOME": str(tmp_path)})
    finding = find("not_writable", planned(tmp_path, "stage=demo"), host)
    assert finding.severity == "fail" and str(tmp_path / "runs") in finding.message
    there = find("not_writable", planned(tmp_path, "stage=demo", "runs=other"), host)
    assert there.severity == "pass"
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]  # nothing is left of the trying


def test_packages_are_looked_for_in_the_trainers_interpreter(tmp_path: Path) -> None:
    complete = find(
        "missing_packages", planned(tmp_path, "stage=demo", "trainer=trl_sft"), Host({})
    )
    empty = tmp_path / "python"
    empty.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n', encoding="utf-8")
    empty.chmod(0o755)
    plan = build_plan(
        composed("stage=demo", "trainer=trl_sft"),
        replace(fixed_machine(tmp_path), python=str(empty)),
    )
    finding = find("missing_packages", plan, Host({}))
    assert finding.severity == "fail" and "torch, transformers" in finding.message
    assert complete.message != finding.message
    gone = build_plan(composed("stage=demo"), replace(fixed_machine(tmp_path), python="/no/python"))
    assert find("missing_packages", gone, Host({})).id == "no_interpreter"


@pytest.mark.parametrize(
    ("words", "module", "installed"),
    [
        ("stage=demo trainer=trl_sft tracking=trackio", "trackio", "trackio"),
        ("stage=demo trainer=trl_sft tracking=mlflow_offline", "mlflow", "mlflow"),
        ("stage=demo trainer=trl_sft tracking=azure_ml", "azureml.core", "azureml.core"),
        (
            (
                "stage=dpo trainer=dpo model=olmo2_1b recipe.per_device_batch_size=1 gpus=2 "
                "recipe.optimizer=muon"
            ),
            "dion",
            "git+https://github.com/microsoft/dion.git",
        ),
    ],
)
def test_what_a_tracker_or_an_optimizer_needs_is_installed_by_the_cure(
    words: str, module: str, installed: str, tmp_path: Path
) -> None:
    if importlib.util.find_spec(module.partition(".")[0]):
        pytest.skip(f"{module} is installed")
    machine = replace(fixed_machine(tmp_path), python=sys.executable)
    finding = find("missing_packages", build_plan(composed(*words.split()), machine), Host({}))
    assert finding.severity == "fail" and module in finding.message
    assert f" {installed}`" in str(finding.cure)


@pytest.mark.parametrize(
    ("version", "level"),
    [("1.16.0", "pass"), ("1.16.4", "pass"), ("1.17.0", "fail"), ("1.1", "fail")],
)
def test_another_version_of_trl_is_named_with_both(
    tmp_path: Path, version: str, level: str
) -> None:
    (tmp_path / f"trl-{version}.dist-info").mkdir()
    machine = replace(fixed_machine(tmp_path), python=sys.executable, packages=(tmp_path,))
    plan = build_plan(composed("stage=demo", "trainer=trl_sft"), machine)
    finding = find("missing_packages", plan, Host({}))
    assert finding.severity == level
    assert level == "pass" or {"1.16", version} <= set(values_of(finding.message))


@pytest.mark.slow
@pytest.mark.slow
def test_two_ranks_talk_over_gloo_and_a_bad_network_is_said(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the `train` dependencies are not installed")
    import os

    machine = replace(fixed_machine(tmp_path), python=warm.python())
    plan = build_plan(composed("stage=demo", "processes=2"), machine)
    finding = find("no_collective", plan, Host(dict(os.environ)))
    assert finding.severity == "pass" and "2" in values_of(finding.message)
    bad = find("no_collective", plan, Host({**os.environ, "GLOO_SOCKET_IFNAME": "nothing0"}))
    assert bad.severity == "fail" and "2" in values_of(bad.message)
    assert "nothing0" in bad.message


def test_what_fails_is_a_problem_unless_it_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    overrides = ["stage=sft", "gpus=2", "trainer=trl_sft"]
    stopping, _ = preflight(planned(tmp_path, *overrides))
    assert "too_few_gpus" in [problem.id for problem in stopping]
    stopping, warnings = preflight(planned(tmp_path, *overrides, "allow=[too_few_gpus]"))
    assert "too_few_gpus" not in [problem.id for problem in stopping]
    assert "too_few_gpus" in [problem.id for problem in warnings]

    @rule("always", "room")
    def always(plan: Plan, host: Host) -> Finding:
        """This one fails on every machine, with an id that is its own or a problem's."""
        return Finding.error("clock_skew", "so it is", None, "none")

    (finding,) = inspect(planned(tmp_path, "stage=demo", "allow=[clock_skew]"), [always])
    assert (finding.id, finding.allowed, finding.stops) == ("clock_skew", True, False)


def test_a_rule_that_cannot_look_is_skipped(tmp_path: Path) -> None:
    @rule("broken", "room")
    def broken(plan: Plan, host: Host) -> Finding:
        """This one stands for a file system that went away while it was looked at."""
        raise OSError("stale file handle")

    (finding,) = inspect(planned(tmp_path, "stage=demo"), [broken])
    assert finding.severity == "skipped" and "stale file handle" in finding.message
