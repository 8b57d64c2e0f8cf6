"""Where the libraries under test are installed."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from launch.host.interpreter import installed_version


@pytest.fixture(scope="session")
def site_packages() -> list[Path]:
    return [Path(sysconfig.get_paths()["purelib"]), Path(sysconfig.get_paths()["platlib"])]


@pytest.fixture(scope="session")
def installed_deepspeed(site_packages: list[Path]) -> list[Path]:
    if installed_version("deepspeed", site_packages) is None:
        pytest.skip("DeepSpeed is not installed in this interpreter")
    return site_packages


@pytest.fixture(scope="session")
def installed_accelerate(site_packages: list[Path]) -> list[Path]:
    if installed_version("accelerate", site_packages) is None:
        pytest.skip("accelerate is not installed in this interpreter")
    return site_packages
