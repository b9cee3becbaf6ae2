"""A build on a Ray cluster that meets a fault while jobs of it run on two nodes: what happened, and how long it took.

Used by the tests of faults, and by scripts/bench/ray, which prints the seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from buildd.cluster.ray_engine import RayEngine
from buildd.cluster.ray_settings import RaySettings
from tests.support.clusters import environ, travelling_plan
from tests.support.ray_cluster import RayCluster
from tests.support.scheduler_harness import Harness, Story, Workspace
from tests.support.waiting import until_async

SOURCES = "abcde"
DEADLINE_S = 120.0


@dataclass(frozen=True, slots=True)
class Met:
    """What came of a build that met a fault.

    Args:
        noticed_s: from the fault until the first job was given up.
        lost: how many jobs were lost.
        runs: how often each compile was begun.
    """

    story: Story
    library: bytes
    noticed_s: float
    lost: int
    runs: dict[str, int]


def project(folder: Path) -> Workspace:
    """Five compiles that wait for the file "gate" once they have begun; one of them runs on this machine at a time."""
    workspace = Workspace(folder, make=travelling_plan, cpus=1)
    workspace.write("include/x.h", "x\n")
    for name in SOURCES:
        text = f'#include "x.h"\n//! log ran\n//! line says {name}\n//! wait-for gate\n{name}\n'
        workspace.write(f"src/{name}.cu", text)
    return workspace


def kill_bridge(cluster: RayCluster, engine: RayEngine) -> None:
    assert engine.bridge_pid
    os.kill(engine.bridge_pid, signal.SIGKILL)


def kill_node(cluster: RayCluster, engine: RayEngine) -> None:
    cluster.nodes["beta"].end()


def kill_head(cluster: RayCluster, engine: RayEngine) -> None:
    cluster.nodes["head"].end()


def kill_worker(cluster: RayCluster, engine: RayEngine) -> None:
    for each in _workers(cluster):
        each.kill()


def stop_worker(cluster: RayCluster, engine: RayEngine) -> None:
    for each in _workers(cluster):
        each.suspend()


def stop_tools(cluster: RayCluster, engine: RayEngine) -> None:
    """Stop the tools of a node; its workers go on."""
    for each in _tools(cluster):
        each.suspend()


def freeze_node(cluster: RayCluster, engine: RayEngine) -> None:
    """Stop all of a node's processes: its connections stay open, and nobody answers."""
    for each in cluster.nodes["beta"].below():
        with contextlib.suppress(psutil.NoSuchProcess):
            each.suspend()


def cut_link(cluster: RayCluster, engine: RayEngine) -> None:
    assert cluster.network is not None
    cluster.network.cut()


def _workers(cluster: RayCluster) -> list[psutil.Process]:
    """The processes of a node that have a tool below them."""
    return [each for each in (tool.parent() for tool in _tools(cluster)) if each is not None]


def _tools(cluster: RayCluster) -> list[psutil.Process]:
    return [each for each in cluster.nodes["beta"].below() if any("fake-cc" in word for word in each.cmdline())]


FAULTS: dict[str, Callable[[RayCluster, RayEngine], None]] = {
    "bridge killed": kill_bridge,
    "worker process killed": kill_worker,
    "worker process hangs": stop_worker,
    "worker node killed": kill_node,
    "worker node frozen": freeze_node,
    "head killed": kill_head,
}

LINK_FAULTS = {"link cut": cut_link}
"""Faults of a cluster with a network of its own."""


def build_under(
    fault: str, cluster: RayCluster, workspace: Workspace, *, after: Callable[[], None] = lambda: None
) -> Met:
    """Build, and let the fault happen once all slots here and there are taken.

    Args:
        after: called once the fault was noticed.
    """
    engine = RayEngine(RaySettings(cluster.address, cluster.python), environ())

    async def run() -> Met:
        async with Harness(workspace, cluster=engine) as harness:
            engine.wake()
            await until_async(lambda: engine.slots() >= 4, "the nodes are there", DEADLINE_S)
            log = harness.submit(workspace.request())
            ran = workspace.project / "ran"
            await until_async(lambda: ran.exists() and len(ran.read_text().splitlines()) >= 5, "all run", DEADLINE_S)
            await asyncio.to_thread({**FAULTS, **LINK_FAULTS}[fault], cluster, engine)
            began_s = time.monotonic()
            await until_async(lambda: engine.losses, "the fault is noticed", DEADLINE_S)
            noticed_s = time.monotonic() - began_s
            await asyncio.to_thread(after)
            workspace.write("gate", "")
            story = await harness.finish(log)
            begun = ran.read_text().splitlines()
            runs = {name: sum(name in line for line in begun) for name in (f"src/{each}.cu" for each in SOURCES)}
            return Met(story, workspace.library, noticed_s, engine.losses, runs)

    return asyncio.run(run())
