"""The peak rate of a plan's card: measured by a matrix product in the trainer's interpreter, and by
its data sheet.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.check.machine.rule import Host
from launch.check.machine.trainer import run_environment
from launch.config.schema import Device, Precision
from launch.external import run_command
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
    # 1e12 operations per second of one card, on CPU of the whole machine
    measured_tflops: float | None = None
    matrix: int | None = None  # rows and columns of the multiplied matrices
    torch: str | None = None  # version
    message: str | None = None  # why it could not be measured

    @property
    def card(self) -> Card | None:
        """The data sheet; None for a CPU and for an unknown card."""
        return card_named(self.name) if self.device == Device.cuda else None

    @property
    def datasheet_tflops(self) -> float | None:
        """1e12 operations per second; the data sheets list bf16 only."""
        return self.card.tflops if self.card and self.precision == Precision.bf16 else None

    def __str__(self) -> str:
        if self.measured_tflops is None:
            measured = f"not measured ({self.message})"
        else:
            whole, size = " of the whole machine" if self.device == Device.cpu else "", self.matrix
            measured = (
                f"{self.measured_tflops:.3g} TFLOP/s{whole} measured ({size} x {size} x {size})"
            )
        datasheet = "no data sheet known"
        if self.datasheet_tflops is not None and self.card is not None:
            datasheet = (
                f"{self.datasheet_tflops:.3g} by the data sheet ({self.card.name}, "
                f"{self.card.source})"
            )
        return f"{self.name}, {self.precision.value}: {measured}; {datasheet}"

    def as_json(self) -> dict[str, Any]:
        datasheet = f"{self.card.name}: {self.card.source}" if self.card else None
        return {**vars(self), "datasheet_tflops": self.datasheet_tflops, "datasheet": datasheet}


def card_name(plan: Plan) -> str:
    """The name of the plan's first card, on CPU of the processor with its cores."""
    if plan.parallel.width.device == Device.cuda:
        return plan.machine.card or "unknown"
    return f"{_processor()}, {os.cpu_count()} cores"


def measure_card_rate(plan: Plan, name: str) -> CardRate:
    """Measure the card `name` that `plan` runs on, in the plan's precision. Takes a second, plus
    importing torch.
    """
    device, precision = plan.parallel.width.device, plan.parallel.precision
    argv = [plan.command[0], str(_SCRIPT), device.value, precision.value, str(_SECONDS)]
    try:
        process = run_command(
            argv,
            env=run_environment(plan, Host(plan.machine.environ)),
            timeout=_TIMEOUT,
            check=True,
        )
        result = json.loads(process.stdout.strip().splitlines()[-1])
        return CardRate(
            name, device, precision, result["flops"] / 1e12, result["size"], result["torch"]
        )
    except subprocess.CalledProcessError as error:
        output = error.stderr.strip().splitlines()
        message = output[-1] if output else f"exit status {error.returncode}"
    except (
        OSError,
        subprocess.SubprocessError,
        ValueError,
        KeyError,
        IndexError,
        TypeError,
    ) as error:
        message = str(error) or type(error).__name__
    return CardRate(name, device, precision, message=message)


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
