"""A project with one CUDA source, built in steps by a scheduler, and the same source compiled by nvcc itself."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from pathlib import Path

from buildd.builds.command import launch_of
from codegen.generate import make_plan
from protocol import messages as m
from tests.support.carry_out import plan_for, request_for
from tests.support.scheduler_harness import Harness, Story, Workspace
from tests.support.toolkit import small_toolkit

KERNEL = """\
#include <cassert>
#include "always.h"
static __device__ float offset; // a comment
namespace { __global__ void hidden(float *x) { assert(x); *x = offset; } }
template <class T> __global__ void scale(T *x) { x[threadIdx.x] *= FACTOR; }
#ifndef __CUDA_ARCH__
#include "host.h"
extern "C" int NAME() { return FACTOR + HOST; }
#endif
extern "C" void SECOND(float *x) { hidden<<<1, 1>>>(x); scale<<<1, 32>>>(x); }
"""


def project(folder: Path, keys: str = "", source: str = KERNEL) -> Workspace:
    workspace = Workspace(folder, make=make_plan)
    text = f'[project]\nname = "steps"\n[toolchain]\ncuda = "{small_toolkit()}"\n[target.t]\n'
    text += 'kind = "cuda"\nsources = ["src/**/*.cu"]\ninclude = ["include"]\n'
    workspace.write("buildd.toml", text + (keys or 'arch = ["sm_80"]\noutput = "object"\n'))
    workspace.write("include/always.h", "#define FACTOR 3\n")
    workspace.write("include/host.h", "#define HOST 4\n")
    workspace.write("src/k.cu", source.replace("NAME", "first").replace("SECOND", "run_first"))
    return workspace


class Build:
    """One build in a scheduler of its own, and what its steps did."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.story, self.counters = asyncio.run(self._run())
        assert self.story.done.outcome is m.Outcome.BUILT, self.story

    async def _run(self) -> tuple[Story, dict[str, int]]:
        async with Harness(self.workspace) as harness:
            story = await harness.build(request_for(self.workspace.project, store=str(self.workspace.store)))
            return story, harness.scheduler.counters

    @property
    def object(self) -> Path:
        return self.workspace.project / "build/t/obj/src/k.cu.o"


def plain(workspace: Workspace, made: Path, name: str = "") -> subprocess.CompletedProcess[str]:
    """What nvcc itself makes of the project's first source, or of the one with an action of this name."""
    plan = plan_for(request_for(workspace.project))
    action = next(each for each in plan.actions if name in ("", each.name))
    launch = launch_of(action, plan.tools[0], project=str(workspace.project), private=str(made.parent), where=str)
    shutil.rmtree(made.parent, ignore_errors=True)
    made.parent.mkdir()
    done = subprocess.run(
        launch.argv, cwd=launch.cwd, env=dict(launch.environment), capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        (made.parent / action.outputs[0].path.rpartition("/")[2]).rename(made)
    return done
