"""The machine that a plan is made on, as a value: what is installed here, and the content of local files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from launch.host.interpreter import installed_versions
from launch.host.nvidia import find_gpus
from launch.planning.digests import DigestCache
from launch.planning.tuned import PACKAGES
from launch.planning.upstream import UpstreamState
from launch.upstream.schema import Schema


@dataclass(frozen=True)
class Machine:
    """What a plan takes from the machine. The GPU and the versions are read when a plan needs them."""

    cwd: Path
    environ: Mapping[str, str]
    python: str  # the trainer's interpreter
    packages: Sequence[Path]  # folders of its installed packages; none where it does not answer
    upstream: UpstreamState
    schemas: Mapping[str, Schema]  # trainer: what its parser accepts
    registries: Mapping[str, Sequence[str]]  # flag: the names that the trainer looks its value up in while it runs
    digests: DigestCache  # of local models and data

    @property
    def card(self) -> str | None:
        """The name of the first GPU; None without one, as on a machine that only plans."""
        return next((gpu.name for gpu in find_gpus(self.environ).seen), None)

    @cached_property
    def versions(self) -> Mapping[str, str]:
        """Versions of those PACKAGES that are installed for the trainer."""
        return installed_versions(self.packages, PACKAGES)

    @property
    def has_flash_attention(self) -> bool:
        """Whether flash-attn is installed for the trainer: faster to find out than its version."""
        return any((folder / "flash_attn").is_dir() for folder in self.packages)
