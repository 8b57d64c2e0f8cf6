"""A real Slurm for a whole session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import open_instruct
from tests.integration.demo_kit import give_demo
from tests.slurm.cluster import Cluster, running, why_not

__all__ = ["open_instruct"]


@pytest.fixture(scope="session")
def slurm() -> Iterator[Cluster]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with running() as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def cluster_is_cleared(request: pytest.FixtureRequest) -> Iterator[None]:
    """Clear the cluster after each test that uses it."""
    cluster: Cluster | None = (
        request.getfixturevalue("slurm") if "slurm" in request.fixturenames else None
    )
    yield
    if cluster is not None:
        cluster.clear()


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all, with the demo's model and data. Its name has what scripts get wrong."""
    folder = tmp_path_factory.mktemp("slurm") / "a folder, 100% odd"
    folder.mkdir()
    return give_demo(tmp_path_factory, folder)
