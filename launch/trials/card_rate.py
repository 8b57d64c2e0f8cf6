"""The peak rate of a plan's card: measured by a matrix product in the trainer's interpreter, and by its data sheet."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.check.machine.rule import Host
from launch.check.machine.trainer import run_environment
from launch.config.schema import Device, Precision
from launch.external import run_command
from launch.host.nvidia import Gpus
from launch.planning.estimate.cards import Card, card_named
from launch.planning.plan import Plan

_SCRIPT = Path(__file__).with_name("matrix_product.py")
_SECONDS = 1.0
_TIMEOUT = 180.0  # seconds; importing torch from a cold file system takes most of it


@dataclass(frozen=True)
class CardRate:
    """The peak rate of one card in one precision."""

    name: str
    device: Device
    precision: Precision
    measured: float | None = None  # operations per second of one card, on CPU of the whole machine
    size: int | None = None  # of the square matrices
    torch: str | None = None  # version
    why: str | None = None  # why it could not be measured

    @property
    def card(self) -> Card | None:
        """The data sheet; None for a CPU and for an unknown card."""
        return card_named(self.name) if self.device == Device.cuda else None

    @property
    def datasheet(self) -> float | None:
        """Operations per second; the data sheets list bf16 only."""
        return self.card.tflops * 1e12 if self.card and self.precision == Precision.bf16 else None

    def __str__(self) -> str:
        if self.measured is None:
            measured = f"not measured ({self.why})"
        else:
            whole = " of the whole machine" if self.device == Device.cpu else ""
            measured = f"{self.measured / 1e12:.3g} TFLOP/s{whole} measured ({self.size} x {self.size} x {self.size})"
        datasheet = "no data sheet known"
        if self.datasheet is not None and self.card is not None:
            datasheet = f"{self.datasheet / 1e12:.3g} by the data sheet ({self.card.name}, {self.card.source})"
        return f"{self.name}, {self.precision.value}: {measured}; {datasheet}"

    def as_json(self) -> dict[str, Any]:
        card = self.card
        return {
            "name": self.name,
            "device": self.device.value,
            "precision": self.precision.value,
            "measured_tflops": None if self.measured is None else self.measured / 1e12,
            "matrix": self.size,
            "torch": self.torch,
            "message": self.why,
            "datasheet_tflops": None if self.datasheet is None else self.datasheet / 1e12,
            "datasheet": None if card is None else f"{card.name}: {card.source}",
        }


def parse_card_rate(fields: Mapping[str, Any]) -> CardRate:
    """The inverse of `as_json`. Raises KeyError, TypeError or ValueError for anything else."""
    measured = fields["measured_tflops"]
    return CardRate(
        name=str(fields["name"]),
        device=Device(fields["device"]),
        precision=Precision(fields["precision"]),
        measured=None if measured is None else float(measured) * 1e12,
        size=fields["matrix"],
        torch=fields["torch"],
        why=fields["message"],
    )


def card_name(plan: Plan, gpus: Gpus) -> str:
    """The name of the plan's first card, on CPU of the processor with its cores."""
    if plan.parallel.width.device == Device.cuda:
        return gpus.seen[0].name if gpus.seen else "unknown"
    return f"{_processor()}, {os.cpu_count()} cores"


def measure_card_rate(plan: Plan, name: str, environ: Mapping[str, str]) -> CardRate:
    """Measure the card `name` that `plan` runs on, in the plan's precision. Takes a second, plus importing torch."""
    device, precision = plan.parallel.width.device, plan.parallel.precision
    argv = [plan.command[0], str(_SCRIPT), device.value, precision.value, str(_SECONDS)]
    try:
        process = run_command(argv, env=run_environment(plan, Host(environ)), timeout=_TIMEOUT, check=True)
        result = json.loads(process.stdout.strip().splitlines()[-1])
        return CardRate(name, device, precision, float(result["flops"]), int(result["size"]), str(result["torch"]))
    except subprocess.CalledProcessError as error:
        output = (error.stderr or "").strip().splitlines()
        return CardRate(name, device, precision, why=output[-1] if output else f"exit status {error.returncode}")
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, IndexError) as error:
        return CardRate(name, device, precision, why=str(error) or type(error).__name__)


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
