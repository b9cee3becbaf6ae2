"""Builds on nodes that do not see the project: its files are carried there, and results stay those of this machine."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from buildd.cluster.ray_engine import RayEngine
from codegen.generate import make_plan
from protocol import messages as m
from tests.support import hipcc_project, objects
from tests.support.clusters import KEPT, environ, fake_settings
from tests.support.nvcc_project import plain
from tests.support.scheduler_harness import Harness, Workspace
from tests.support.travelling_builds import (
    SOURCE,
    assert_built_once,
    built_objects,
    built_with,
    c_project,
    connected,
    differences_from_nvcc,
    needs_namespaces,
    nodes_of,
    nvcc_project,
    project,
)


@pytest.fixture(autouse=True)
def kept() -> Iterator[Path]:
    """The folder in which nodes on this machine keep files; empty at first."""
    needs_namespaces()
    shutil.rmtree(KEPT, ignore_errors=True)
    yield KEPT
    shutil.rmtree(KEPT, ignore_errors=True)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return project(tmp_path)


def test_a_node_that_sees_no_file_of_the_project_builds_it(workspace: Workspace, alone: bytes) -> None:
    story, engine = built_with(workspace, fake_settings(workspace.folder, hidden=workspace.project))
    assert_built_once(story, workspace, alone)
    assert any(nodes_of(story).values()) and not engine.losses and not story.of(m.Notice)
    assert workspace.build().done.hits == 4, "results of nodes are stored"
    workspace.write("include/x.h", "y\n")
    assert len(workspace.build().ran()) == 4, "headers that were read there are known"


@pytest.mark.parametrize("hidden", ["the folder above the project", "nothing, but a header is another one"])
def test_gcc_makes_the_same_object_there(tmp_path: Path, hidden: str) -> None:
    workspace = c_project(tmp_path / "held", "-g3", "-O1")
    assert workspace.build(store=workspace.another_store("other")).done.outcome is m.Outcome.BUILT
    here = built_objects(workspace)
    shutil.rmtree(workspace.project / "build")
    place = workspace.folder if hidden.startswith("the folder") else None
    settings = fake_settings(tmp_path, hidden=place or workspace.project / "other")
    story, engine = built_with(workspace, settings)
    assert story.done.outcome is m.Outcome.BUILT and built_objects(workspace) == here
    assert any(nodes_of(story).values()) or not place, engine.problem
    assert not engine.losses and workspace.build().done.hits == 3
    if not place:  # what differs there is a header: the first jobs are lost, the next ones carry it
        for name in "abc":
            workspace.write(f"src/{name}.cu", SOURCE.replace("NAME", f"{name}{name}"))
        assert built_with(workspace, settings)[0].done.outcome is m.Outcome.BUILT


@pytest.mark.cuda
@pytest.mark.slow  # each step of an nvcc on nodes is in the core tests
def test_nvcc_makes_the_same_object_there(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, make=make_plan, cpus=1)
    text = '[project]\nname = "p"\n[target.t]\nkind = "cuda"\nsources = ["src/*.cu"]\ninclude = ["include"]\n'
    workspace.write("buildd.toml", f'{text}arch = ["sm_80"]\noutput = "object"\n')
    workspace.write("include/h.h", "#define HOST 4\n")
    workspace.write("include/d.h", "static __device__ int d() { return __LINE__; }\n")
    for name in ("first", "second"):
        body = f"__global__ void k_{name}(int *p) {{\n#ifdef __CUDA_ARCH__\n*p = d();\n#endif\n}}\n"
        top = '#ifdef __CUDA_ARCH__\n#include "d.h"\n#else\n#include "h.h"\n#endif\n'
        workspace.write(f"src/{name}.cu", f'{top}{body}extern "C" const char *{name}() {{ return __FILE__; }}\n')
    settings = fake_settings(tmp_path, hidden=workspace.project)
    story, engine = built_with(workspace, settings, environment=dict(os.environ))
    assert story.done.outcome is m.Outcome.BUILT, story
    away = [action for action, node in nodes_of(story).items() if node]
    assert away and not engine.losses, engine.problem
    names = objects.Names(("first", "second"))
    for action in away:
        plain(workspace, tmp_path / "plain/k.o", action)
        made = workspace.project / f"build/t/obj/src/{action.rpartition('/')[2]}"
        found = objects.described(made, names=names), objects.described(tmp_path / "plain/k.o", names=names)
        assert not objects.differences(*found)


def test_what_a_node_has_kept_is_not_sent_again(workspace: Workspace, kept: Path) -> None:
    engine = RayEngine(fake_settings(workspace.folder, hidden=workspace.project), environ())
    sent: list[int] = []

    async def run() -> None:
        async with Harness(workspace, cluster=engine) as harness:
            await connected(engine)
            for text in ("a", "b"):
                for name in "abc":
                    workspace.write(f"src/{name}.cu", f'#include "x.h"\n//! line says {name}\n{name}{text}\n')
                # Another store each time: it has learned nothing of these quick jobs.
                request = workspace.request(store=workspace.another_store(text))
                assert (await harness.build(request)).done.outcome is m.Outcome.BUILT
                sent.append(len(list(kept.iterdir())))

    asyncio.run(run())
    assert 2 <= sent[0] <= 4 and sent[0] < sent[1] <= sent[0] + 3, "the header is there once"


def test_a_damaged_file_on_a_node_spoils_no_result(
    workspace: Workspace, kept: Path, alone: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    settings = fake_settings(workspace.folder, hidden=workspace.project)
    built_with(workspace, settings)
    for each in kept.iterdir():
        each.chmod(0o600)
        each.write_bytes(each.read_bytes() + b"damage\n")
    story, _ = built_with(workspace, settings, store=workspace.another_store("second"))
    assert workspace.library == alone and story.done.outcome is m.Outcome.BUILT
    # A job whose own files were not kept before, or were sent once more, may end on a node.
    assert "is another file" in caplog.text
    story, _ = built_with(workspace, settings, store=workspace.another_store("third"))
    assert any(nodes_of(story).values()) and workspace.library == alone, "what was damaged is gone"


def test_where_nodes_allow_no_mounts_the_jobs_stay_here(workspace: Workspace, alone: bytes) -> None:
    settings = fake_settings(workspace.folder, hidden=workspace.project, fault="closed")
    story, engine = built_with(workspace, settings)
    assert_built_once(story, workspace, alone)
    assert not any(nodes_of(story).values()) and "the node allows no namespaces for mounts" in engine.problem


@pytest.mark.cuda
def test_steps_of_one_compile_go_to_nodes(tmp_path: Path) -> None:
    workspace = nvcc_project(tmp_path / "held")
    settings = fake_settings(tmp_path, hidden=workspace.folder)
    story, engine = built_with(workspace, settings, environment=dict(os.environ))
    assert story.done.outcome is m.Outcome.BUILT, story
    assert engine.done and not engine.losses, engine.problem
    (compiled,) = [event for event in story.of(m.Finished) if event.steps]
    nodes = {step.name: step.node for step in compiled.steps}
    assert not compiled.node and {"", "beta", "gamma"} >= set(nodes.values()) != {""}, nodes
    assert sum(map(bool, nodes.values())) == engine.done
    assert not differences_from_nvcc(workspace, tmp_path / "plain/k.o")


@pytest.mark.slow
@pytest.mark.hip
def test_device_compiles_of_hipcc_go_to_nodes(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "held", make=make_plan, cpus=2)
    hipcc_project.furnish(workspace)
    hipcc_project.describe(workspace, "gfx90a", "gfx908", "gfx906")
    settings = fake_settings(tmp_path, hidden=workspace.folder)
    story, engine = built_with(workspace, settings, environment=dict(os.environ))
    assert story.done.outcome is m.Outcome.BUILT, story
    assert engine.done and not engine.losses, engine.problem
    (compiled,) = [event for event in story.of(m.Finished) if event.steps]
    away = [step.name for step in compiled.steps if step.node]
    assert not compiled.node and len(away) == engine.done and all("device compile" in name for name in away), away
    hipcc_project.assert_same(workspace)


@pytest.mark.hip
@pytest.mark.slow  # the steps of a hipcc on nodes are in the core tests
def test_hipcc_makes_the_same_object_there(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, make=make_plan, cpus=1)
    hipcc_project.furnish(workspace)
    body = "static __device__ int d() { return __LINE__; }\n__global__ void k(int *p) { *p = d(); }\n"
    for name in ("first", "second"):
        top = '#include <hip/hip_runtime.h>\n#include "always.h"\n'
        workspace.write(f"src/{name}.hip", f'{top}{body}extern "C" int {name}() {{ return FACTOR; }}\n')
    settings = fake_settings(tmp_path, hidden=workspace.project)
    environment = dict(os.environ)
    story, engine = built_with(workspace, settings, environment=environment)
    assert story.done.outcome is m.Outcome.BUILT, story
    away = [action for action, node in nodes_of(story).items() if node]
    assert away and not engine.losses, engine.problem
    there = built_objects(workspace)
    shutil.rmtree(workspace.project / "build")
    store = workspace.another_store("other")
    assert workspace.build(store=store, environment=environment).done.outcome is m.Outcome.BUILT
    assert built_objects(workspace) == there
