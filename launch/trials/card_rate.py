"""The peak rate of a plan's GPU, as measured by a matrix product and as given by its data sheet."""

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
from launch.config.recipe_keys import Precision
from launch.config.schema import Device
from launch.external import run_command
from launch.planning.estimate.cards import Card, card_named
from launch.planning.plan import Plan

_SCRIPT = Path(__file__).with_name("matrix_product.py")
_SECONDS = 1.0  # how long matrices are multiplied
_TIMEOUT = 180.0  # seconds; importing torch from a cold file system takes most of it


@dataclass(frozen=True)
class CardRate:
    """The peak rate of one GPU in one precision."""

    name: str
    device: Device
    precision: Precision
    # The unit is 1e12 operations per second, of one GPU, or of the whole machine on a CPU.
    measured_tflops: float | None = None
    matrix: int | None = None  # rows and columns of the multiplied matrices
    torch: str | None = None  # version
    message: str | None = None  # why it could not be measured

    @property
    def card(self) -> Card | None:
        """The data sheet; None for a CPU and for an unknown GPU."""
        return card_named(self.name) if self.device == Device.cuda else None

    @property
    def datasheet_tflops(self) -> float | None:
        """The data sheet's rate in 1e12 operations per second, which is known for bf16 only."""
        return self.card.tflops if self.card and self.precision == Precision.bf16 else None

    def __str__(self) -> str:
        measured = f"not measured ({self.message})"
        if self.measured_tflops is not None:
            unit = "TFLOP/s of the whole machine" if self.device == Device.cpu else "TFLOP/s"
            product = f"{self.matrix} x {self.matrix} x {self.matrix}"
            measured = f"{self.measured_tflops:.3g} {unit} measured ({product})"
        datasheet = "no data sheet known"
        if self.datasheet_tflops is not None and self.card is not None:
            source = f"{self.card.name}, {self.card.source}"
            datasheet = f"{self.datasheet_tflops:.3g} by the data sheet ({source})"
        return f"{self.name}, {self.precision.value}: {measured}; {datasheet}"

    def json_fields(self) -> dict[str, Any]:
        datasheet = f"{self.card.name}: {self.card.source}" if self.card else None
        return {**vars(self), "datasheet_tflops": self.datasheet_tflops, "datasheet": datasheet}


def card_name(plan: Plan) -> str:
    """Return the name of the plan's first GPU; on a CPU, the processor's name and its cores."""
    if plan.parallel.width.device == Device.cuda:
        return plan.machine.card or "unknown"
    return f"{_processor()}, {os.cpu_count()} cores"


def measure_card_rate(plan: Plan, name: str) -> CardRate:
    """Measure the GPU `name` that `plan` runs on, in the plan's precision.

    This takes a second and the time of importing torch. A failure is the `message` of the result.
    """
    device = plan.parallel.width.device
    precision = plan.parallel.precision
    interpreter = plan.command[0]
    argv = [interpreter, str(_SCRIPT), device.value, precision.value, str(_SECONDS)]
    environment = run_environment(plan, Host(plan.machine.environ))
    try:
        process = run_command(argv, env=environment, timeout=_TIMEOUT, check=True)
        last_line = process.stdout.strip().splitlines()[-1]
        result = json.loads(last_line)
        return CardRate(
            name,
            device,
            precision,
            measured_tflops=result["flops"] / 1e12,
            matrix=result["size"],
            torch=result["torch"],
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
    """Return the processor's name; its architecture where the name is unknown."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
