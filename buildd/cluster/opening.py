"""Opens the user's cluster, and describes it for `buildd status`.

A cluster that cannot be used is no reason not to build: what is wrong is told, and builds go on without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from buildd.cluster.ray_settings import read
from codegen.errors import RequestError
from codegen.variables.settings import Settings
from protocol.messages import ClusterStatus
from protocol.problem import in_one_line

if TYPE_CHECKING:
    from buildd.cluster.ray_engine import RayEngine


@dataclass(frozen=True, slots=True)
class OpenedCluster:
    """The engine, if the user has named a cluster, and what is wrong with what was said."""

    engine: RayEngine | None = None
    problem: str = ""

    def status(self) -> ClusterStatus | None:
        """For `buildd status`; None where the user has named no cluster."""
        if self.engine is not None:
            return self.engine.status()
        return ClusterStatus(address="", problem=self.problem) if self.problem else None


def open_cluster(settings: Settings, environ: Mapping[str, str]) -> OpenedCluster:
    """The user's cluster. Raises nothing: what is wrong is told, and builds go on without it."""
    try:
        wanted = read(settings, environ)
    except RequestError as error:
        return OpenedCluster(None, in_one_line(error))
    if wanted is None:
        return OpenedCluster()
    from buildd.cluster.ray_engine import RayEngine  # most users have no cluster

    return OpenedCluster(RayEngine(wanted, environ))
