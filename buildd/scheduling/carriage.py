"""Brings the files of a job to a node that lacks them: lists what the job will read, asks the node, sends the rest.

Knows the engine and the job's action. Whether a result is believed is `away_job`'s decision.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from buildd.builds.active_build import ActiveBuild
from buildd.builds.command import DEPFILE
from buildd.cluster.cargo import Cargo, contents, known_alone, pack
from buildd.cluster.parcel import PLACE, Parcel
from buildd.cluster.ray_engine import RayEngine
from buildd.cluster.remote_tool import RemoteTool
from buildd.keys import depfiles
from buildd.processes.executor import BegunTool, Executor
from buildd.processes.launch import Exit, Launch
from buildd.processes.running_tool import OnLine
from buildd.scheduling.travel import declared_files, listing, tool_files
from codegen.plan import Action

MOST_TRIES = 5
"""A node may lose files between its answer and their arrival, for jobs of others; but not again and again."""


class Carriage:
    """One job's way to a node. Used once.

    Args:
        build, action: the job's.
        in_pool: runs a function that touches files in a worker thread.
        runner: runs tools on this machine.
        on_tool: is told of each tool that is begun, the last one counts; returns whether it is to be ended at once.
    """

    def __init__(
        self,
        engine: RayEngine,
        build: ActiveBuild,
        action: Action,
        *,
        in_pool: Callable[..., Awaitable[Any]],
        runner: Executor,
        on_tool: Callable[[BegunTool], bool],
    ) -> None:
        self._engine, self._build, self._action = engine, build, action
        self._in_pool, self._runner, self._on_tool = in_pool, runner, on_tool
        self.told: frozenset[str] = frozenset()
        """The files (absolute) of whole lists. A node that begins after such a list has all of them as they are here."""

    async def run(self, launch: Launch, here: Launch, parcel: Parcel, on_line: OnLine) -> tuple[Exit, str]:
        """Run a tool on a node; how it ended, and why it was not begun on any.

        Args:
            launch: as the node runs it.
            here: as this machine would run it, in a folder that exists.
            parcel: with the files that were declared.
            on_line: hears the tool's lines.

        Raises:
            RunnerError, OSError.
        """
        holds = self._engine.holds
        if self._build.project in holds.apart:
            parcel = replace(parcel, cargo=await self._whole(here) or parcel.cargo)
        tool = self._begin(launch, parcel, on_line)
        exit = await tool.wait()
        for _ in range(MOST_TRIES):
            if tool.lacks is None or exit.cancelled:
                return exit, ""
            if not parcel.cargo.listed:
                holds.apart.add(self._build.project)
                cargo = await self._whole(here)
                if cargo is None:
                    return exit, "the files that it reads cannot be listed beforehand"
                parcel = replace(parcel, cargo=cargo)
                tool = self._begin(launch, replace(parcel, node=tool.node), on_line)
            else:
                tool = await self._given(tool, launch, parcel, on_line)
            exit = await tool.wait()
        return exit, "the node keeps asking for files"

    def _begin(self, launch: Launch, parcel: Parcel, on_line: OnLine) -> RemoteTool:
        tool = self._engine.lane(parcel).begin(launch, on_line)
        if self._on_tool(tool):
            tool.kill()
        return tool

    async def _given(self, asked: RemoteTool, launch: Launch, parcel: Parcel, on_line: OnLine) -> RemoteTool:
        """The tool begun again, with the contents that its node has asked for."""
        node, holds = asked.node, self._engine.holds
        async with holds.turn(node):
            lacking = holds.still_lacking(node, asked.lacks or (), asked.asked_s)
            blobs = await self._in_pool(contents, parcel.cargo, lacking)
            tool = self._begin(launch, replace(parcel, node=node, blobs=blobs), on_line)
            await tool.settled.wait()
            if tool.lacks is None and not tool.done:
                holds.given(node, (file.sha256 for file in parcel.cargo.files), time.monotonic())
        return tool

    async def _whole(self, here: Launch) -> Cargo | None:
        """All files that the job will read, from a preprocessor's run on this machine."""
        async with self._engine.holds.listing:
            tool = self._runner.begin(listing(here, self._action), lambda stream, text: None)
            if self._on_tool(tool):
                tool.kill()
            if not (await tool.wait()).ok:
                return None
        cargo: Cargo | None = await self._in_pool(self._packed, dict(here.environment)["TMPDIR"])
        return cargo

    def _packed(self, folder: str) -> Cargo | None:
        """In a worker thread."""
        build, action = self._build, self._action
        read: dict[str, None] = {}
        for discovery, suffix in depfiles.parts(action.discovery):
            try:
                content = Path(f"{folder}/{DEPFILE}{suffix}").read_bytes()
                os.unlink(f"{folder}/{DEPFILE}{suffix}")  # gcc would append to it
            except OSError:
                return None
            read.update(dict.fromkeys(depfiles.parse(discovery, content)))
        tool, lookup, absolute = build.tool(action), build.inputs.lookup, build.inputs.snapshot.absolute
        spelled = [path for path in read if not path.startswith(f"{folder}/")]
        normal = list(dict.fromkeys(map(lookup.normal, spelled)))
        build.inputs.snapshot.see(normal)
        # A question with __has_include reads nothing, and its answer depends on these.
        present = lookup.files.survey([path for path in normal if path not in action.inputs], action, tool).present
        files = [*map(absolute, (*declared_files(build, action), *spelled, *present))]
        self.told = frozenset(map(os.path.normpath, files))
        return pack(
            files,
            map(absolute, (*action.search, *tool.search)),
            build.project,
            (*tool_files(build, action), PLACE),
        )


def declared(build: ActiveBuild, action: Action) -> Cargo:
    """The cargo of a job whose headers are not known. In a worker thread."""
    return known_alone(declared_files(build, action))

