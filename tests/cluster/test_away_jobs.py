"""Builds whose jobs go to a cluster: what goes, what is checked, and that nothing of the cluster can fail a build."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from buildd.cluster import bridge, ray_engine, remote_tool
from buildd.cluster.parcel import Parcel
from buildd.cluster.ray_engine import RayEngine
from buildd.cluster.ray_settings import RaySettings
from buildd.cluster.remote_tool import RemoteTool
from buildd.processes.launch import Launch
from buildd.ui.trace import chrome_trace
from protocol import messages as m
from tests.support import ray_builds
from tests.support.clusters import environ, fake_settings
from tests.support.recorded import events
from tests.support.scheduler_harness import Harness, Story, Workspace
from tests.support.travelling_builds import assert_built_once, built_with, connected, nodes_of, project
from tests.support.waiting import until_async


@pytest.fixture(params=["fake", pytest.param("ray", marks=pytest.mark.ray)])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> RaySettings:
    if request.param == "fake":
        return fake_settings(tmp_path)
    import sys

    return RaySettings(request.getfixturevalue("address"), sys.executable)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return project(tmp_path)


def gated(workspace: Workspace) -> None:
    """The job that runs here waits until another one has run on a node."""
    for name in "abc":
        workspace.write(
            f"src/{name}.cu", f'#include "x.h"\n//! log ran\n//! wait-for both\n//! line says {name}\n{name}\n'
        )


def test_compiles_go_away_once_the_cpus_here_are_taken(workspace: Workspace, settings: RaySettings) -> None:
    engine = RayEngine(settings, environ())

    async def run() -> Story:
        async with Harness(workspace, cluster=engine) as harness:
            await connected(engine)
            gated(workspace)
            log = harness.submit(workspace.request())
            ran = workspace.project / "ran"
            await until_async(lambda: ran.exists() and len(ran.read_text().splitlines()) == 3, "all three run")
            status = engine.status()
            assert sum(node.jobs for node in status.nodes) == 2 and not status.losses
            workspace.write("both", "")
            return await harness.finish(log)

    story = asyncio.run(run())
    assert story.done.outcome is m.Outcome.BUILT
    nodes = nodes_of(story)
    assert nodes["all.so"] == "", "links stay here"
    assert sorted(map(bool, (nodes[f"{name}.cu.o"] for name in "abc"))) == [False, True, True]
    assert sorted(event.text for event in story.of(m.LogLine)) == ["says a", "says b", "says c"]
    assert workspace.build().done.hits == 4, "results of nodes are stored"
    workspace.write("include/x.h", "y\n")
    assert len(workspace.build().ran()) == 4, "headers that were read there are known"


def test_results_are_those_of_this_machine(workspace: Workspace, settings: RaySettings, alone: bytes) -> None:
    story, engine = built_with(workspace, settings)
    assert_built_once(story, workspace, alone)
    assert engine.losses == 0


def test_gpus_of_a_node_are_hidden(workspace: Workspace, settings: RaySettings) -> None:
    for name in "abc":
        workspace.write(f"src/{name}.cu", f"//! show CUDA_VISIBLE_DEVICES\n{name}\n")
    environment = {"PATH": "/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": "7"}
    story, _ = built_with(workspace, settings, environment=environment)
    away = {event.job_id for event in story.of(m.Finished) if event.node}
    said = {event.job_id: event.text for event in story.of(m.LogLine)}
    assert story.done.outcome is m.Outcome.BUILT
    assert away and {said[job] for job in away} == {""}
    assert {text for job, text in said.items() if job not in away} == {"7"}


@pytest.mark.parametrize("fault", ["exit", "lost", "another", "fails", "unfit", "silent", "hang", "never", "refused"])
def test_a_fault_of_the_cluster_fails_no_build(
    workspace: Workspace, alone: bytes, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_tool, "SILENT_S", 0.4)
    monkeypatch.setattr(remote_tool, "PENDING_S", 0.4)
    monkeypatch.setattr(bridge, "SILENT_S", 2.0)
    monkeypatch.setattr(ray_engine, "LOOK_S", 0.05)
    settings = fake_settings(workspace.folder, fault=fault)
    engine = RayEngine(settings, environ())

    async def run() -> Story:
        async with Harness(workspace, cluster=engine) as harness:
            engine.wake()
            await until_async(lambda: engine.slots() > 0 or engine.problem, "the engine is connected or failed")
            return await harness.build(workspace.request())

    story = asyncio.run(run())
    assert_built_once(story, workspace, alone)
    if fault == "refused":
        assert engine.problem == "ConnectionError: no cluster at this address"
    assert set(nodes_of(story).values()) == {""}, "what came back was not used"


def test_a_header_that_only_this_machine_has_makes_the_job_run_here(workspace: Workspace) -> None:
    workspace.write("include/y.h", "behind\n")
    for name in "abc":
        workspace.write(f"src/{name}.cu", f'#include "y.h"\n{name}\n')
    story, _ = built_with(workspace, fake_settings(workspace.folder, fault="shadowed"))
    assert any(nodes_of(story).values()), "neither machine has another one"
    workspace.write("first/y.h", "before\n")
    story, _ = built_with(workspace, fake_settings(workspace.folder, fault="shadowed"))
    library = workspace.library
    assert len(story.of(m.Finished)) == 4 and not any(nodes_of(story).values())
    assert workspace.build(recache=True).done.outcome is m.Outcome.BUILT and workspace.library == library


def test_what_cannot_be_stored_is_not_taken_from_a_node(workspace: Workspace) -> None:
    """It may depend on more than the files that were compared."""
    for name in "abc":
        workspace.write(f"src/{name}.cu", f"__TIME__ {name}\n")
    story, engine = built_with(workspace, fake_settings(workspace.folder))
    assert story.done.outcome is m.Outcome.BUILT and engine.done
    assert not any(nodes_of(story).values())


def test_the_steps_of_a_compile_on_a_node_are_told(workspace: Workspace) -> None:
    seen = [("cicc", 0.5, 2.0, 1 << 20), ("ptxas", 2.5, 0.25, 1 << 10)]
    story, _ = built_with(workspace, fake_settings(workspace.folder, steps=seen))
    away = [event for event in story.of(m.Finished) if event.node]
    assert away and not any(event.steps for event in story.of(m.Finished) if not event.node)
    for event in away:
        cicc, ptxas = event.steps
        assert (cicc.name, cicc.wall_s, cicc.peak_rss_bytes, cicc.node) == ("cicc", 2.0, 1 << 20, event.node)
        assert cicc.start_s >= 0.5 and ptxas.start_s == pytest.approx(cicc.start_s + 2.0)
    lanes = json.loads(chrome_trace(events(*enumerate(story))))
    names = {(lane["pid"], lane["tid"]): lane["args"]["name"] for lane in lanes if lane["name"] == "thread_name"}
    drawn = {names[lane["pid"], lane["tid"]] for lane in lanes if lane["name"] == "ptxas"}
    assert drawn <= {f"{node} {lane}, steps" for node in ("beta", "gamma") for lane in (1, 2)} and drawn


def test_a_cancelled_build_ends_its_jobs_on_nodes(workspace: Workspace, settings: RaySettings) -> None:
    engine = RayEngine(settings, environ())

    async def run() -> None:
        async with Harness(workspace, cluster=engine) as harness:
            await connected(engine)
            gated(workspace)
            request = workspace.request()
            log = harness.submit(request)
            ran = workspace.project / "ran"
            await until_async(lambda: ran.exists() and len(ran.read_text().splitlines()) == 3, "all three run")
            harness.scheduler.cancel(request.request_id)
            story = await harness.finish(log)
            assert story.done.outcome is m.Outcome.CANCELLED
            await until_async(lambda: not sum(node.jobs for node in engine.status().nodes), "the nodes are free")

    asyncio.run(run())


def test_a_node_with_other_files_gets_nothing_for_a_while(workspace: Workspace) -> None:
    story, engine = built_with(workspace, fake_settings(workspace.folder, fault="unfit", beta=2))
    status = engine.status()
    assert story.done.outcome is m.Outcome.BUILT
    assert "is another file" in status.problem and status.problem.startswith("beta: ")
    warned = [event.text for event in story.of(m.Notice)]
    assert warned and all("beta: " in text and text.endswith("; runs again here") for text in warned)


def test_a_node_where_all_jobs_fail_gets_nothing_for_a_while(tmp_path: Path) -> None:
    workspace = ray_builds.project(tmp_path)
    engine = RayEngine(fake_settings(workspace.folder, fault="fails", beta=4), environ())

    async def run() -> Story:
        async with Harness(workspace, cluster=engine) as harness:
            await connected(engine)
            log = harness.submit(workspace.request())
            ran = workspace.project / "ran"
            await until_async(lambda: ran.exists() and len(ran.read_text().splitlines()) == 5, "one here, four there")
            workspace.write("gate", "")
            story = await harness.finish(log)
            late = engine.lane(Parcel()).begin(Launch(("true",), cwd=str(tmp_path)), lambda *_: None)
            assert isinstance(late, RemoteTool) and late.done and late.why == engine.status().problem, (
                "it waits for no node"
            )
            return story

    assert asyncio.run(run()).done.outcome is m.Outcome.BUILT
    assert engine.status().problem == "beta: its last 3 jobs failed; is its disk full?"
    assert engine.slots() == 0
