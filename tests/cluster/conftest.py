"""For the tests of this folder: one small cluster that they do no harm to, and the library that all builds make."""

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


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The library, as a build without a cluster makes it."""
    from protocol import messages as m
    from tests.support.travelling_builds import project

    other = project(tmp_path_factory.mktemp("alone"))
    assert other.build().done.outcome is m.Outcome.BUILT
    return other.library
