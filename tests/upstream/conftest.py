"""The checkout, schemas by name and the real parsers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from launch.host.interpreter import installed_version
from launch.upstream.pin.lock import load_lock, locked_schema
from launch.upstream.schema import Schema
from tests.upstream.captured import synthetic_schema
from tests.upstream.checkouts import SITE_PACKAGES, checkout
from tests.upstream.real_parsers import RealParsers


@pytest.fixture(scope="session")
def upstream() -> Path:
    root = checkout()
    if root is None:
        pytest.skip("no open-instruct checkout: set OPEN_INSTRUCT_DIR, or fetch the submodule")
    return root


@pytest.fixture(scope="session")
def schema_of() -> Callable[[str], Schema]:
    """The locked schema of a trainer by name, or that of the synthetic one; skips without what its
    parser needs.
    """

    def load(trainer: str) -> Schema:
        if trainer == "synthetic":
            return synthetic_schema()
        if trainer.startswith("trl"):
            if installed_version("trl", SITE_PACKAGES) != load_lock().packages["trl"]:
                pytest.skip("the locked trl isn't installed")
            return replace(locked_schema(trainer), sources=tuple(SITE_PACKAGES))
        root = checkout()
        if root is None:
            pytest.skip("no open-instruct checkout: set OPEN_INSTRUCT_DIR, or fetch the submodule")
        return replace(locked_schema(trainer), sources=(root,))

    return load


@pytest.fixture(scope="session")
def real_parsers() -> Iterator[RealParsers]:
    if installed_version("transformers", SITE_PACKAGES) is None:
        pytest.skip("transformers isn't installed")
    parsers = RealParsers()
    yield parsers
    parsers.close()
