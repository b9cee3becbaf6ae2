"""Projects whose compiles may travel, and builds of them with a cluster."""

from __future__ import annotations

import asyncio
import os
import subprocess
from functools import partial
from pathlib import Path

import pytest

from buildd.cluster.ray_engine import RayEngine
from buildd.cluster.ray_settings import RaySettings
from codegen.generate import make_plan
from codegen.plan import Knowledge, Plan
from protocol import messages as m
from tests.support import objects
from tests.support.clusters import environ, gcc_plan, travelling_plan
from tests.support.nvcc_project import plain
from tests.support.scheduler_harness import Harness, Story, Workspace
from tests.support.toolkit import small_toolkit
from tests.support.waiting import until_async

HEADERS = {
    "include/x.h": '#include "linked/y.h"\n#define HERE __FILE__\n',
    "other/y.h": "static inline int y(int n) { return n + 1; }\nstatic const char *const y_file = __FILE__;\n",
    # Two files of one content that are read once each: a compiler tells them apart by their times and inodes.
    "include/one/z.h": '#pragma once\n#include "part.h"\n',
    "include/two/z.h": '#pragma once\n#include "part.h"\n',
    "include/one/part.h": "int one(void);\n",
    "include/two/part.h": "int two(void);\n",
    "include/asked.h": "#error nobody reads this\n",
}
SOURCE = """\
#include <stdio.h>
#include "x.h"
#include "one/z.h"
#include "two/z.h"
#if !__has_include("asked.h")
#error this machine has it
#endif
const char *NAME(void) { printf("%s %s %s", HERE, __FILE__, y_file); return one() + two() + y(3) ? "NAME" : ""; }
"""


def project(folder: Path) -> Workspace:
    workspace = Workspace(folder, make=travelling_plan, cpus=1)
    workspace.write("include/x.h", "x\n")
    for name in "abc":
        workspace.write(f"src/{name}.cu", f'#include "x.h"\n//! line says {name}\n{name}\n')
    return workspace


async def connected(engine: RayEngine) -> None:
    engine.wake()
    await until_async(lambda: engine.slots() > 0, "the engine has slots")


def built_with(workspace: Workspace, settings: RaySettings, **fields: object) -> tuple[Story, RayEngine]:
    """Build once, with a cluster that is connected."""
    engine = RayEngine(settings, environ())

    async def run() -> Story:
        async with Harness(workspace, cluster=engine) as harness:
            await connected(engine)
            return await harness.build(workspace.request(**fields))

    return asyncio.run(run()), engine


def nodes_of(story: Story) -> dict[str, str]:
    return {event.action: event.node for event in story.of(m.Finished)}


def assert_built_once(story: Story, workspace: Workspace, alone: bytes) -> None:
    """The build ended well, with the library of a build without a cluster, and no line was lost or told twice."""
    assert story.done.outcome is m.Outcome.BUILT, story
    assert workspace.library == alone
    lines = [event.text for event in story.of(m.LogLine) if event.stream == "stdout"]
    assert sorted(lines) == ["says a", "says b", "says c"]
    assert sorted(event.action for event in story.of(m.Finished)) == ["a.cu.o", "all.so", "b.cu.o", "c.cu.o"]


def c_project(folder: Path, *options: str, sources: str = "abc") -> Workspace:
    workspace = Workspace(folder, make=partial(_with, options), cpus=1)
    for sub in ("other", "include/one", "include/two"):
        (workspace.project / sub).mkdir()
    (workspace.project / "include/linked").symlink_to("../other")
    for number, (path, text) in enumerate(HEADERS.items()):
        os.utime(workspace.write(path, text), ns=(0, 1_700_000_000_123_456_789 + number * 10**9))
    for name in sources:
        workspace.write(f"src/{name}.cu", SOURCE.replace("NAME", name))
    return workspace


def _with(options: tuple[str, ...], request: m.Request, knowledge: Knowledge) -> Plan:
    return gcc_plan(request, knowledge, "-Iinclude", *options)


def built_objects(workspace: Workspace) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((workspace.project / "build").rglob("*.o"))}


def needs_namespaces() -> None:
    """Skip the test where a node on this machine could not show files to a tool."""
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine allows no user namespaces")


def nvcc_project(folder: Path) -> Workspace:
    """One source for three architectures: more steps at a time than the two CPUs that it has here."""
    workspace = Workspace(folder, make=make_plan, cpus=2)
    text = f'[project]\nname = "p"\n[toolchain]\ncuda = "{small_toolkit()}"\n'
    text += '[target.t]\nkind = "cuda"\nsources = ["src/*.cu"]\n'
    workspace.write("buildd.toml", f'{text}arch = ["sm_80", "sm_86", "sm_90"]\noutput = "object"\n')
    workspace.write("src/k.cu", "__global__ void k(int *p) { *p = 3; }\nvoid first(int *p) { k<<<1, 1>>>(p); }\n")
    return workspace


def differences_from_nvcc(workspace: Workspace, made: Path) -> list[str]:
    """How the object of `nvcc_project` differs from what nvcc makes itself, at `made`."""
    plain(workspace, made)
    names = objects.Names(("k", "first"))
    ours = objects.described(workspace.project / "build/t/obj/src/k.cu.o", names=names)
    return objects.differences(ours, objects.described(made, names=names))
