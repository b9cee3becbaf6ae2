"""A project with one HIP source, built in steps by a scheduler, and the same source compiled by hipcc itself."""

from __future__ import annotations

import asyncio
import shutil
import subprocess

from buildd.builds.command import launch_of
from protocol import messages as m
from tests.support.carry_out import plan_for, request_for
from tests.support.scheduler_harness import Harness, Story, Workspace

KERNEL = """
#include <hip/hip_runtime.h>
#include "always.h"
#ifdef __HIP_DEVICE_COMPILE__
#include "device.h"
#define HOST 0
#else
#include "host.h"
#endif
template <typename T> __global__ void scale(T *x) { x[threadIdx.x] *= FACTOR; }
__global__ void first(float *x) { x[threadIdx.x] += FACTOR; }
extern "C" int run_first(float *x) { scale<<<1, 32>>>(x); first<<<1, 32>>>(x); return HOST; }
"""


def furnish(workspace: Workspace) -> None:
    describe(workspace, "gfx90a")
    workspace.write("include/always.h", "#define FACTOR 3\n")
    workspace.write("include/device.h", "\n")
    workspace.write("include/host.h", "#define HOST 4\n")
    workspace.write("src/k.hip", KERNEL)


def describe(workspace: Workspace, *archs: str) -> None:
    text = '[project]\nname = "steps"\n[target.t]\nkind = "hip"\noutput = "object"\nsources = ["src/*.hip"]\n'
    workspace.write(
        "buildd.toml", f'{text}include = ["include"]\nflags = ["-O2"]\narch = {list(archs)}\n'.replace("'", '"')
    )


def build(workspace: Workspace) -> Story:
    async def run() -> Story:
        async with Harness(workspace) as harness:
            return await harness.build(request_for(workspace.project, store=str(workspace.store)))

    return asyncio.run(run())


def all_that_ran(story: Story) -> list[str]:
    """The steps that ran."""
    assert story.done.outcome is m.Outcome.BUILT, story
    (finished,) = story.of(m.Finished)
    assert finished.steps, "it ran whole"
    return sorted(step.name for step in finished.steps if not step.hit)


def plain(workspace: Workspace) -> subprocess.CompletedProcess[str]:
    """What hipcc itself says, and makes at plain/k.hip.o."""
    folder = workspace.folder / "plain"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    plan = plan_for(request_for(workspace.project))
    launch = launch_of(plan.actions[0], plan.tools[0], project=str(workspace.project), private=str(folder), where=str)
    return subprocess.run(launch.argv, cwd=launch.cwd, env=dict(launch.environment), capture_output=True, text=True)


def assert_same(workspace: Workspace) -> None:
    done = plain(workspace)
    assert done.returncode == 0, done.stderr
    made = (workspace.project / "build/t/obj/src/k.hip.o").read_bytes()
    assert made == (workspace.folder / "plain/k.hip.o").read_bytes()
