"""`version`: print the versions of launch, of the pinned open-instruct, and of the packages that train."""

from __future__ import annotations

import os
import platform
import sys

from launch import __version__, resources
from launch.commands.tool_parsers import build_version_parser
from launch.errors import EXIT_DONE
from launch.host.interpreter import installed_versions, package_folders
from launch.terminal import echo, print_json
from launch.upstream.pin.checkout import find_checkout
from launch.upstream.pin.lock import load_lock

PACKAGES = ("torch", "transformers", "trl", "accelerate", "deepspeed", "liger-kernel", "flash-attn", "hydra-core")


def version(arguments: list[str]) -> int:
    """Print the versions as text, or with `--json` as an object."""
    options = build_version_parser().parse(arguments)
    pin = load_lock().pin
    checkout = find_checkout(None, os.environ, resources.ROOT)
    packages = installed_versions(package_folders(sys.executable), PACKAGES)
    if options.json:
        content = {
            "schema_version": 1,
            "launch": __version__,
            "python": platform.python_version(),
            "pin": pin,
            "checkout": {"dir": str(checkout.root), "matches_pin": checkout.matches_pin} if checkout else None,
            "packages": packages,
        }
        print_json(content)
        return EXIT_DONE
    echo(f"launch {__version__}, Python {platform.python_version()}")
    echo(checkout.describe() if checkout else f"open-instruct: no checkout; flags come from the lock of {pin[:9]}")
    echo(", ".join(f"{name} {number}" for name, number in packages.items()) or "no package that trains is installed")
    return EXIT_DONE
