"""One small cluster for the tests of this folder that do no harm to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    """The address of a cluster with one worker node, "beta", of eight CPUs."""
    from tests.support.ray_cluster import RayCluster

    cluster = RayCluster()
    try:
        cluster.add("beta", cpus=8)
        yield cluster.address
    finally:
        cluster.close()
