"""vLLM's server: the ports of one that the run starts, and whether one that was named fits the run."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from launch.check.machine.rule import Host, rule
from launch.planning.flags import values_of
from launch.planning.plan import Plan
from launch.planning.vllm_server import (
    GENERATION_BY_SERVER,
    group_port,
    planned_server,
    server_port,
)
from launch.rules.code import failed, passed, skipped
from launch.worker.finding import Finding, Fix

_TIMEOUT = 5.0  # seconds of a request


@rule("server_port_in_use", "vLLM ports")
def ports_are_free(plan: Plan, host: Host) -> Finding:
    """A port that is taken shows after minutes: once vLLM has loaded the model, or when TRL first
    sends weights.
    """
    server = planned_server(plan)
    if server is None:
        return skipped("the run starts no vLLM server")
    ports = {"vllm_server_port": server.port}
    if server.gpus:  # a shared GPU needs no group of NCCL's
        ports["vllm_group_port"] = group_port(values_of(plan.flags))
    for flag, port in ports.items():
        if not _is_free(port):
            cure = Fix.of("end what listens there, or set {0}", f"flags.{flag}={port + 1}")
            return failed(f"port {port} is in use", cure, f"flags.{flag}")
    return passed(f"{' and '.join(map(str, ports.values()))} are free")


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@rule("no_vllm_server", "vLLM server")
def named_server_fits(plan: Plan, host: Host) -> Finding:
    """TRL waits 240 s for a server that is not there (trl/trainer/grpo_config.py,
    vllm_server_timeout), and samples from whatever model answers.
    """
    if plan.config.recipe.generation != GENERATION_BY_SERVER or planned_server(plan) is not None:
        return skipped("no vLLM server is named")
    flags = values_of(plan.flags)
    url = str(
        flags.get("vllm_server_base_url")
        or f"http://{flags.get('vllm_server_host')}:{server_port(flags)}"
    )
    try:
        served = _get(url, "/v1/models")["data"][0]
        config = _get(url, "/server_info?config_format=json").get("vllm_config")
    except _NotThereError:
        config = None
    except (OSError, http.client.HTTPException, ValueError, LookupError) as error:
        cure = "start it, or remove its address: the run then starts one"
        return failed(f"no vLLM server answers at {url}: {error}", cure)
    problem = _find_mismatch(plan, flags, served, config)
    if problem is not None:
        return failed(f"the server at {url} {problem}", "start it again with `trl vllm-serve`")
    return passed(f"{url} serves {served['id']}")


def _find_mismatch(
    plan: Plan, flags: Mapping[str, Any], served: Mapping[str, Any], config: Any
) -> str | None:
    """Return what of a named server does not fit the run, as a predicate; None if nothing is known.

    `served` is its entry of /v1/models, `config` vLLM's configuration, None if it does not show it.
    """
    model = str(flags["model_name_or_path"])
    names = [str(served.get(key)) for key in ("root", "id") if served.get(key)]
    if not any(_is_same_model(name, model) for name in names):
        return f"serves {names[0] if names else 'another model'}, and the run trains {model}"
    longest = served.get("max_model_len")
    if isinstance(longest, int) and longest < plan.config.recipe.max_seq_length:
        return (
            f"takes {longest} tokens (max_model_len), and prompt and answer have up to "
            f"{plan.config.recipe.max_seq_length}"
        )
    if config is None:
        return "does not take weights: VLLM_SERVER_DEV_MODE is not set there"
    revision = (config.get("model_config") or {}).get("revision")
    if revision != flags.get("model_revision"):
        return f"has revision {revision}, and the run {flags.get('model_revision')}"
    if config.get("weight_transfer_config") is None:
        return "does not take weights: it has no --weight-transfer-config"
    return None


def _is_same_model(served: str, planned: str) -> bool:
    if served == planned:
        return True
    return Path(planned).exists() and Path(served).resolve() == Path(planned).resolve()


class _NotThereError(Exception):
    """The server has no such page."""


def _get(url: str, page: str) -> Any:
    """Return the JSON of a page. Raises OSError, HTTPException, ValueError and _NotThereError."""
    parts = urlsplit(url)
    is_encrypted = parts.scheme == "https"
    connect = http.client.HTTPSConnection if is_encrypted else http.client.HTTPConnection
    connection = connect(parts.hostname or "", parts.port, timeout=_TIMEOUT)
    try:
        connection.request("GET", parts.path.rstrip("/") + page)
        answer = connection.getresponse()
        if answer.status == http.client.NOT_FOUND and page != "/v1/models":
            raise _NotThereError
        if answer.status != http.client.OK:
            raise ValueError(f"status {answer.status}")
        return json.loads(answer.read())
    finally:
        connection.close()
