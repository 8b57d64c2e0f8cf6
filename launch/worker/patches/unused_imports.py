"""Provides placeholders for missing packages that open_instruct/dpo.py imports but never uses."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from ..evidence.trainer_objects import frames
from .patch import PatchContext, PatchInfo

PACKAGES = ("vllm", "docker", "openenv", "backoff", "aiohttp")
_IMPORTER = "open_instruct"  # only its modules get placeholders; for all others the packages stay missing


class Placeholder(type):
    """The type of every name in a placeholder package: a class that can be imported and inherited from, not used."""

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        raise ImportError(describe_misuse(cls))

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise ImportError(describe_misuse(cls))


def describe_misuse(cls: type) -> str:
    """Return the message for code that uses a placeholder, or a class that inherits from one."""
    base = next(parent for parent in reversed(cls.__mro__) if isinstance(parent, Placeholder))
    package = base.__module__.partition(".")[0]
    return (
        f"{base.__module__}.{base.__name__} is a placeholder, because {package} is not installed and DPO should "
        f"not use it; install {package} [unused_imports]"
    )


class PlaceholderModule(ModuleType):
    """A module of a missing package: any public name in it is a class of type `Placeholder`."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        placeholder = Placeholder(name, (), {"__module__": self.__name__})
        setattr(self, name, placeholder)
        return placeholder


class PlaceholderFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """The last resort of the import system: finds modules of `packages` for imports in open-instruct."""

    def __init__(self, packages: Sequence[str]) -> None:
        self._packages = frozenset(packages)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in self._packages or _importing_package() != _IMPORTER:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, origin="placeholder", is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return PlaceholderModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: names are created on first access."""


def _importing_package() -> str:
    names = (str(frame.f_globals.get("__name__", "")) for frame in frames())
    importer = next((name for name in names if name != __name__ and not name.startswith("importlib")), "")
    return importer.partition(".")[0]


def find_missing() -> list[str]:
    """Return the PACKAGES that this interpreter does not have."""
    return [name for name in PACKAGES if importlib.util.find_spec(name) is None]


def _not_needed(_: PatchContext) -> str | None:
    return None if find_missing() else f"{', '.join(PACKAGES)} are installed"


def _install_placeholders(context: PatchContext) -> None:
    packages = find_missing()
    sys.meta_path.append(PlaceholderFinder(packages))
    context.events.emit(
        "evidence", what="placeholders", value=",".join(packages), how="packages that are not installed"
    )


PATCH = PatchInfo(
    id="unused_imports",
    reason="dpo.py's data loader imports vllm, docker, openenv, backoff and aiohttp for GRPO; DPO uses none of them",
    condition="one of vllm, docker, openenv, backoff and aiohttp is not installed",
    lines={
        "open_instruct/dpo.py": {25: "from open_instruct import data_loader as data_loader_lib"},
        "open_instruct/data_loader.py": {29: "import vllm", 761: "generation_config: vllm.SamplingParams,"},
        "open_instruct/environments/base.py": {
            7: "from openenv.core.env_server.types import Action, Observation, State"
        },
        "open_instruct/environments/backends.py": {10: "import docker as docker_sdk"},
        "open_instruct/environments/tools/utils.py": {(9, 10): "import aiohttp\nimport backoff"},
        "open_instruct/environments/tools/parsers.py": {
            22: "from vllm.tool_parsers import ToolParser as VllmNativeToolParser"
        },
    },
    apply=_install_placeholders,
    not_needed=_not_needed,
)
