"""The verbs about launch itself: `help [VERB]`, `version` and `schema`.

`schema` prints the JSON Schema of a stage file.
"""

from __future__ import annotations

import os
import platform
import sys

from launch import __version__, resources
from launch.commands.tool_parsers import (
    build_help_parser,
    build_schema_parser,
    build_version_parser,
)
from launch.commands.verbs import VERBS, VISIBLE, help_text, overview
from launch.errors import EXIT_DONE, did_you_mean, refusal
from launch.host.interpreter import installed_versions, package_folders
from launch.planning.estimate.cards import list_cards, rates_for_card
from launch.table import Table
from launch.terminal import echo, print_json
from launch.upstream.pin.checkout import find_checkout
from launch.upstream.pin.lock import load_lock
from launch.worker.json_codec import versioned

_KEYS = "keys"
GPUS = "gpus"


def help(arguments: list[str]) -> int:
    """Print the overview, the help of one verb, the keys and choices, or the known GPUs.

    Raises UserError: unknown_verb.
    """
    topic = build_help_parser().parse(arguments).topic
    if topic is None:
        echo(overview(), end="")
    elif topic == _KEYS:
        return _print_keys()
    elif topic == GPUS:
        echo("\n".join(_describe_gpus()))
    elif topic in VERBS:
        echo(help_text(VERBS[topic]), end="")
    else:
        cure = did_you_mean(topic, [*VISIBLE, _KEYS, GPUS]) or "`launch help` lists the verbs"
        raise refusal("unknown_verb", f"there is no help for '{topic}'", "command line", cure)
    return EXIT_DONE


def _print_keys() -> int:
    """Print Hydra's help of a stage, which lists the keys and choices used most."""
    from launch.config.compose import compose  # Hydra is slow to import
    from launch.config.line import CommandLine

    line = CommandLine("run", False, ("stage=demo", "--help"))
    return compose(line, lambda composed: EXIT_DONE)


def _describe_gpus() -> list[str]:
    """Return the table of the GPUs whose memory and speed are known."""
    rows = [["cluster.gpu_type", "GPU", "GB", "TFLOP/s", "speed", "data sheet"]]
    for name, card in list_cards().items():
        speed = "measured" if rates_for_card(card.name).measured else "scaled"
        sizes = [f"{card.memory_gb:g}", f"{card.tflops:g}"]
        rows.append([name, card.name, *sizes, speed, card.source])
    notes = (
        "TFLOP/s: dense bf16. speed: measured in training, or scaled by the data sheets from an H200.",
        "Names that nvidia-smi, Slurm and people use are accepted, too: nvidia_a100-sxm4-80gb, 4090. If",
        "a cluster uses one name for two kinds, cluster.gpu_memory=GIB distinguishes them; it also makes",
        "a kind usable that is not listed.",
    )
    return [*Table("", rows).lines(), "", *notes]


_PACKAGES = (
    "torch",
    "transformers",
    "trl",
    "accelerate",
    "deepspeed",
    "liger-kernel",
    "flash-attn",
    "hydra-core",
)


def version(arguments: list[str]) -> int:
    """Print the versions as text, or with `--json` as an object."""
    options = build_version_parser().parse(arguments)
    pin = load_lock().pin
    checkout = find_checkout(None, os.environ, resources.ROOT)
    packages = installed_versions(package_folders(sys.executable), _PACKAGES)
    python = platform.python_version()
    if options.json:
        content: dict[str, object] = {
            "launch": __version__,
            "python": python,
            "pin": pin,
            "checkout": None,
            "packages": packages,
        }
        if checkout:
            content["checkout"] = {"dir": checkout.root, "matches_pin": checkout.matches_pin}
        print_json(versioned(content))
        return EXIT_DONE
    echo(f"launch {__version__}, Python {python}")
    if checkout:
        echo(checkout.describe())
    else:
        echo(f"open-instruct: no checkout; flags come from the lock of {pin[:9]}")
    installed = ", ".join(f"{name} {number}" for name, number in packages.items())
    echo(installed or "no package that trains is installed")
    return EXIT_DONE


def schema(arguments: list[str]) -> int:
    """Print the schema as JSON; with or without `--json`, since it has no other form."""
    from launch.config.json_schema import stage_schema

    build_schema_parser().parse(arguments)
    print_json(stage_schema())
    return EXIT_DONE
