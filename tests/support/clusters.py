"""Clusters without Ray: the engine with tests/fakes/fake-ray-bridge, and a project whose compiles may travel."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec

from buildd.cluster.node_steps import Step
from buildd.cluster.ray_engine import RayEngine
from buildd.cluster.ray_settings import RaySettings
from codegen.plan import Discovery, Knowledge, Place, Plan, Ref, Tool, ToolFile
from protocol import messages as m
from tests.support.paths import FAKES, ROOT
from tests.support.scheduler_harness import fake_plan

KEPT = Path(f"/tmp/buildd-inputs-{os.getuid()}-{os.environ.get('PYTEST_XDIST_WORKER', 'alone')}")
"""Where the fake's nodes keep files: tests at the same time have each their own."""


def fake_cluster(folder: Path, *, fault: str = "", **nodes: int) -> RayEngine:
    """An engine whose bridge runs jobs itself. `fault`: see the fake."""
    return RayEngine(fake_settings(folder, fault=fault, **nodes), environ())


def fake_settings(
    folder: Path,
    *,
    fault: str = "",
    hidden: Path | None = None,
    steps: list[Step] | None = None,
    gpus: dict[str, int] | None = None,
    **nodes: int,
) -> RaySettings:
    """`hidden`: a folder that is empty for the nodes. `steps`: what they have seen of each job; None: what they see.
    `gpus`: how many nodes have, by their names."""
    python = folder / "fake-python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{FAKES}/fake-ray-bridge" "$@"\n')
    python.chmod(0o700)
    plan = {"nodes": nodes or {"beta": 2, "gamma": 2}, "fault": fault, "hidden": str(hidden or ""), "gpus": gpus or {}}
    plan["kept"] = str(KEPT)
    plan |= {} if steps is None else {"steps": steps}
    return RaySettings(json.dumps(plan), str(python))


def environ() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *os.environ.get("PYTHONPATH", "").split(":")])}


def travelling_plan(request: m.Request, knowledge: Knowledge) -> Plan:
    """As `fake_plan`, with compiles that are worth a journey."""
    plan = fake_plan(request, knowledge)
    actions = tuple(
        msgspec.structs.replace(
            action,
            argv=(*action.argv, "-c"),
            resources=msgspec.structs.replace(action.resources, wall_s=5.0),
        )
        if action.discovery is Discovery.GCC
        else action
        for action in plan.actions
    )
    return msgspec.structs.replace(plan, actions=actions)


def gcc_plan(request: m.Request, knowledge: Knowledge, *options: str) -> Plan:
    """The compiles of `travelling_plan` with gcc, for C, and no link."""
    plan = travelling_plan(request, knowledge)
    actions = tuple(
        msgspec.structs.replace(
            action,
            argv=("gcc", *options, "-x", "c", "-c", action.inputs[0], "-o", Ref(place=Place.OUTPUT, name="o")),
            environment=(("PATH", "/usr/bin:/bin"),),
            path_sensitive="-g" in options,
        )
        for action in plan.actions
        if action.discovery is Discovery.GCC
    )
    tool = Tool(
        name="fake",
        files=(ToolFile(role="driver", path=gcc_program("gcc")), ToolFile(role="cc1", path=gcc_program("cc1"))),
    )
    return msgspec.structs.replace(plan, actions=actions, tools=(tool,), artifacts=())


def gcc_program(name: str) -> str:
    """The path of gcc, or of a program that it calls."""
    if name == "gcc":
        return str(shutil.which(name))
    asked = subprocess.run(["gcc", f"-print-prog-name={name}"], capture_output=True, text=True, check=True)
    return asked.stdout.strip()
