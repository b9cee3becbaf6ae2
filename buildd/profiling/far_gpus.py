"""The GPUs of a cluster's nodes, for one call of profiling: what they are, and a place on each to measure.

Has a bridge of its own. Nodes only measure: rows are written here.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

from buildd.cluster.ray_settings import RaySettings, read
from buildd.profiling.devices import Gpu
from buildd.profiling.gpus import QUERY, gpu_of
from codegen.errors import RequestError
from codegen.variables.settings import read_settings

if TYPE_CHECKING:
    from buildd.cluster.ray_engine import RayEngine
    from buildd.cluster.wire import ClusterNode
    from buildd.profiling.far_process import FarPlace


class FarGpus:
    """The GPUs of a cluster. Made by `find_far_gpus`; ends with `close`."""

    def __init__(self, engine: RayEngine, gpus: tuple[Gpu, ...], why: str) -> None:
        self._engine, self.gpus = engine, gpus
        self.why = why
        """Why there are none."""

    def like(self, here: Sequence[Gpu], say: Callable[[str], None]) -> tuple[Gpu, ...]:
        """Those that may measure beside the GPUs of this machine: of one model with them, or among themselves.

        Args:
            say: is called for each node whose GPUs are of another model.
        """
        first = next(iter((*here, *self.gpus)), None)
        if first is None:
            return ()
        alike = tuple(gpu for gpu in self.gpus if (gpu.name, gpu.driver) == (first.name, first.driver))
        others = {gpu.host: f"{gpu.name} with driver {gpu.driver}" for gpu in self.gpus if gpu not in alike}
        for host, model in others.items():
            say(f"measuring only on {first.name} with driver {first.driver}; {host} has {model}")
        return alike

    def place(self, gpu: Gpu, command: Sequence[str], environ: Mapping[str, str]) -> FarPlace:
        """A place on a GPU, for one lane."""
        from buildd.profiling.far_process import FarPlace

        return FarPlace(self._engine, gpu, command, dict(environ))

    async def close(self) -> None:
        await self._engine.close()


def cluster_of(environ: Mapping[str, str]) -> RaySettings | None:
    """The cluster that a shell or the user's config.toml names. Raises RequestError."""
    return read(read_settings(environ), environ)


async def find_far_gpus(settings: RaySettings | None, environ: Mapping[str, str]) -> FarGpus | None:
    """Connect to a cluster, and ask each node for its GPUs; None where no cluster is named. Raises nothing: a cluster
    that cannot be used is no reason not to measure here.

    Args:
        environ: of the bridge; the nodes look for nvidia-smi in its PATH.
    """
    if settings is None:
        return None
    from buildd.cluster.ray_engine import RayEngine  # most users have no cluster
    from buildd.profiling.far_process import CONNECT_S

    # In a command, what happens to the cluster is told by its lanes, not by a log.
    logging.getLogger("buildd.cluster").addHandler(logging.NullHandler())
    engine = RayEngine(settings, environ)
    if not await engine.connected(CONNECT_S):
        return FarGpus(engine, (), f"cluster {settings.address}: {engine.problem or 'it does not answer'}")
    having = [node for node in engine.nodes if node.gpus]
    found = await asyncio.gather(*(_gpus_of(engine, node, environ) for node in having))
    gpus = tuple(gpu for several in found for gpu in several)
    return FarGpus(engine, gpus, "" if gpus else f"cluster {settings.address}: {engine.problem or 'no node has GPUs'}")


@asynccontextmanager
async def reached(environ: Mapping[str, str], say: Callable[[str], None]) -> AsyncIterator[FarGpus | None]:
    """`find_far_gpus` for the cluster of a shell, and its end.

    Args:
        say: is told what is wrong with the cluster, or with its name.
    """
    far = None
    try:
        far = await find_far_gpus(cluster_of(environ), environ)
        if far is not None and far.why:
            say(far.why)
    except RequestError as error:
        say(f"the cluster is not used: {error.message}")
    try:
        yield far
    finally:
        if far is not None:
            await far.close()


async def _gpus_of(engine: RayEngine, node: ClusterNode, environ: Mapping[str, str]) -> tuple[Gpu, ...]:
    """A node's GPUs of its first model, as many as Ray gives away there."""
    from buildd.cluster.parcel import Parcel
    from buildd.processes.launch import Launch

    path = (("PATH", environ.get("PATH", os.defpath)),)
    asked = Launch(("nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader"), "/", path, timeout_s=20.0)
    tool = engine.lane(Parcel(node=node.id, cpus=0)).begin(asked, lambda stream, text: None)
    told = await tool.wait()
    listed = [gpu for line in told.stdout.decode(errors="replace").splitlines() if (gpu := gpu_of(line)) is not None]
    alike = [gpu for gpu in listed if (gpu.name, gpu.driver) == (listed[0].name, listed[0].driver)]
    return tuple(msgspec.structs.replace(gpu, node=node.id, host=node.name) for gpu in alike[: node.gpus])
