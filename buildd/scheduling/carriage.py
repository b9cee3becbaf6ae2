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
from buildd.errors import RunnerError
from buildd.keys import depfiles
from buildd.processes.executor import BegunTool, Executor
from buildd.processes.launch import EndReason, Exit, Launch
from buildd.processes.running_tool import OnLine
from buildd.scheduling.travel import declared_files, listing, tool_files
from codegen.plan import Action, Discovery

MOST_TRIES = 5
"""A node may lose files between its answer and their arrival, for jobs of others; but not again and again."""


class Carriage:
    """One job's way to a node. Used once.

    Args:
        build, action: the job's.
        launch: as the node runs it.
        here: as this machine would run it, in a folder that exists.
        parcel: with the files that were declared, or with all that the job reads.
        in_pool: runs a function that touches files in a worker thread.
        runner: runs tools on this machine.
        on_line: hears the tool's lines.
    """

    def __init__(
        self,
        engine: RayEngine,
        build: ActiveBuild,
        action: Action,
        *,
        launch: Launch,
        here: Launch,
        parcel: Parcel,
        in_pool: Callable[..., Awaitable[Any]],
        runner: Executor,
        on_line: OnLine,
    ) -> None:
        self.launch, self.here, self.parcel = launch, here, parcel
        self.tool: RemoteTool | None = None
        """The tool that was begun last."""
        self.exit: Exit | None = None
        """How it ended; None where it was not begun."""
        self.problem = ""
        """Why it has not ended well, as far as that is known."""
        self.told: frozenset[str] = frozenset()
        """The files (absolute) of its whole list. A node that begins after such a list has them as they are here."""
        self.lines: list[tuple[str, str]] = []
        """What it has said."""
        self._engine, self._build, self._action = engine, build, action
        self._in_pool, self._runner, self._on_line = in_pool, runner, on_line
        self._living: BegunTool | None = None
        self._ended: EndReason | None = None

    @property
    def good(self) -> bool:
        """Whether it has brought outputs back."""
        return self.exit is not None and self.exit.ok and self.tool is not None and self.tool.found is not None

    def again(self, launch: Launch, parcel: Parcel, on_line: OnLine) -> Carriage:
        """Another way for the same job."""
        other = Carriage(
            self._engine,
            self._build,
            self._action,
            launch=launch,
            here=self.here,
            parcel=parcel,
            in_pool=self._in_pool,
            runner=self._runner,
            on_line=on_line,
        )
        other.told = self.told
        return other

    def end(self, reason: EndReason = EndReason.CANCELLED) -> None:
        """End its tool, and begin no other. Its lines are not heard any more."""
        self._ended = self._ended or reason
        if self._living is not None:
            self._living.kill(reason)

    async def run(self) -> None:
        """Run the tool on a node; afterwards `exit` and `problem` say how it went."""
        try:
            self.exit = await self._run()
        except RunnerError as error:
            self.problem = error.message
        except OSError as error:
            self.problem = f"{error.filename}: {error.strerror}"
        if not self.problem and self.tool is not None:
            self.problem = self.tool.why

    async def _run(self) -> Exit | None:
        holds = self._engine.holds
        if self._build.project in holds.apart and not self.parcel.cargo.listed:
            self._load(await self._whole())
        tool = self._begin(self.parcel)
        exit = await tool.wait()
        for _ in range(MOST_TRIES):
            if tool.lacks is None or exit.cancelled:
                return exit
            if not self.parcel.cargo.listed:
                holds.apart.add(self._build.project)
                if not self._load(await self._whole()):
                    self.problem = "the files that it reads cannot be listed beforehand"
                    return exit
                tool = self._begin(replace(self.parcel, node=tool.node))
            else:
                tool = await self._given(tool)
            exit = await tool.wait()
        self.problem = "the node keeps asking for files"
        return exit

    def _load(self, cargo: Cargo | None) -> bool:
        if cargo is not None:
            self.parcel = replace(self.parcel, cargo=cargo)
        return cargo is not None

    def _begin(self, parcel: Parcel) -> RemoteTool:
        tool = self.tool = self._engine.lane(parcel).begin(self.launch, self._hear)
        self._living = tool
        if self._ended is not None:
            tool.kill(self._ended)
        return tool

    def _hear(self, stream: str, text: str) -> None:
        if self._ended is None:
            self.lines.append((stream, text))
            self._on_line(stream, text)

    async def _given(self, asked: RemoteTool) -> RemoteTool:
        """The tool begun again, with the contents that its node has asked for."""
        node, holds = asked.node, self._engine.holds
        async with holds.turn(node):
            lacking = holds.still_lacking(node, self.parcel.cargo.files, asked.lacks or (), asked.asked_s)
            blobs = await self._in_pool(contents, self.parcel.cargo, lacking)
            tool = self._begin(replace(self.parcel, node=node, blobs=blobs))
            await tool.settled.wait()
            if tool.begun_s:
                holds.given(node, self.parcel.cargo.files, time.monotonic())
        return tool

    async def _whole(self) -> Cargo | None:
        """All files that the job will read, from a preprocessor's run on this machine."""
        async with self._engine.holds.listing:
            if self._ended is not None:
                return None
            tool = self._living = self._runner.begin(listing(self.here, self._action), lambda stream, text: None)
            if not (await tool.wait()).ok:
                return None
        cargo: Cargo | None = await self._in_pool(self._packed, dict(self.here.environment)["TMPDIR"])
        return cargo

    def _packed(self, folder: str) -> Cargo | None:
        """In a worker thread."""
        build, action = self._build, self._action
        places = {suffix: f"{folder}/{DEPFILE}{suffix}" for _, suffix in depfiles.parts(action.discovery)}
        try:
            contents = {suffix: Path(place).read_bytes() for suffix, place in places.items()}
            for place in places.values():
                os.unlink(place)  # gcc would append to it
        except OSError:
            return None
        read = depfiles.read_files(action.discovery, contents.get) or ()
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
    """The cargo of a job as far as its plan says: all of it, where the tool reads nothing else. In a worker thread."""
    files = declared_files(build, action)
    if action.discovery is not Discovery.NONE:
        return known_alone(files)
    cwd = "" if action.apart else build.project
    return pack(files, (), cwd, (*tool_files(build, action), PLACE)) or known_alone(files)
