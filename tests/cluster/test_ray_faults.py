"""A real cluster of two nodes that fails in the middle of a build: nothing is lost, nothing is told twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol import messages as m
from tests.support.ray_builds import FAULTS, SOURCES, build_under, project
from tests.support.ray_cluster import RayCluster

pytestmark = pytest.mark.ray
MOST_S = 30.0
"""To notice a fault. On an idle machine it takes less than 10 s (docs/ray.md)."""


@pytest.fixture
def cluster() -> Iterator[RayCluster]:
    cluster = RayCluster()
    try:
        cluster.add("beta")
        cluster.add("gamma")
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    workspace = project(tmp_path_factory.mktemp("alone"))
    workspace.write("gate", "")
    assert workspace.build().done.outcome is m.Outcome.BUILT
    return workspace.library


@pytest.mark.parametrize("fault", FAULTS)
def test_a_cluster_that_fails_costs_time_alone(fault: str, cluster: RayCluster, alone: bytes, tmp_path: Path) -> None:
    workspace = project(tmp_path)
    met = build_under(fault, cluster, workspace)
    assert met.story.done.outcome is m.Outcome.BUILT and met.library == alone
    assert met.noticed_s < MOST_S
    assert sorted(event.text for event in met.story.of(m.LogLine)) == [f"says {name}" for name in SOURCES]
    assert len(met.story.of(m.Finished)) == len(SOURCES) + 1, "each job ended once"
    assert sum(met.runs.values()) == len(SOURCES) + met.lost, "what was not lost ran once"
    assert workspace.build().done.hits == len(SOURCES) + 1
