"""A job on a node of a cluster. What comes back is believed only if the tool read the same files; else the job is lost.

Knows the engine, and that only this process writes results. A lost job runs again here: `state` decides that.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from buildd.cluster import wire
from buildd.cluster.node_files import digest_of
from buildd.cluster.parcel import Parcel, new_folder
from buildd.cluster.ray_engine import RayEngine
from buildd.cluster.remote_tool import RemoteTool
from buildd.processes.executor import Executor
from buildd.processes.launch import EndReason, Launch
from buildd.scheduling.carriage import Carriage, declared
from buildd.scheduling.execution import Execution
from buildd.scheduling.job_failures import storage_failure
from buildd.scheduling.second_start import SecondStart
from buildd.scheduling.travel import depfiles_of, outputs_of, tool_files
from buildd.state.events import Ending
from protocol import messages as m


class AwayJob(Execution):
    """One job, on a node.

    Args:
        engine: the cluster.
    """

    def __init__(self, *args: Any, engine: RayEngine, **more: Any) -> None:
        super().__init__(*args, **more)
        self._engine = engine
        self._parcel = Parcel(folder="")
        self._carriages: list[Carriage] = []
        """Its ways to a node, at most two; the last one counts."""
        self._here = Launch((), "")
        self._given_s = 0.0
        """When it was given to the cluster."""
        self._seen: frozenset[str] = frozenset()
        self._why = ""
        self._stays = False
        """It may use a precompiled header, which stands in no depfile."""

    @property
    def memory_bytes(self) -> int:
        return self._tool.memory_bytes if self._tool is not None else 0

    @property
    def node(self) -> str:
        return self._engine.name_of(self._tool.node) if self._tool is not None and self._tool.node else ""

    @property
    def steps(self) -> tuple[m.Step, ...]:
        """The processes that the tool started on its node."""
        tool = self._tool
        if tool is None or tool.found is None:
            return ()
        return tuple(
            m.Step(
                name=name,
                start_s=max(0.0, tool.begun_s - self._given_s) + start_s,
                wall_s=wall_s,
                peak_rss_bytes=peak_bytes,
                node=self.node,
            )
            for name, start_s, wall_s, peak_bytes in tool.found.steps
        )

    @property
    def _tool(self) -> RemoteTool | None:
        return self._carriages[-1].tool if self._carriages else None

    @property
    def why_lost(self) -> str:
        return self._why

    def prepare(self) -> Launch:
        self._here = super().prepare()
        folder, action = new_folder(), self.action
        files = {path: digest_of(path) for path in tool_files(self.build, action)}
        snapshot = self.build.inputs.snapshot
        taken = self.build.inputs.lookup.precompiled_of(action)
        self._stays = bool(taken.present or taken.computed)
        search = (*action.search, *self.build.tool(action).search)
        self._parcel = Parcel(
            folder=folder,
            outputs=outputs_of(action, folder),
            depfiles=depfiles_of(action),
            files=files,
            search=tuple(dict.fromkeys(map(snapshot.absolute, search))),
            cpus=action.resources.cpus,
            memory_bytes=self.build.resources[self.index].memory_bytes,
            cargo=declared(self.build, action),
        )
        return self._launch_in(folder)

    async def perform(self, runner: Executor, launch: Launch) -> Ending | None:
        if self._stays:
            return self._lose("")
        self._began_ns, self._given_s = self.build.files.now_ns(), time.monotonic()
        first = Carriage(
            self._engine,
            self.build,
            self.action,
            launch=launch,
            here=self._here,
            parcel=self._parcel,
            in_pool=self._in_pool,
            runner=runner,
            on_line=self._line,
        )
        start = SecondStart(self._engine, first, self._launch_in, self._in_pool, self._line_again, self.expected_s)
        self._carriages = start.carriages
        if self._kill is not None:
            first.end(self._kill)
        counts = await start.run()
        self._parcel, exit, tool = counts.parcel, counts.exit, counts.tool
        if self._kill is EndReason.CANCELLED or (exit is not None and exit.cancelled):
            return Ending.KILLED
        if exit is None or exit.lost or tool is None:
            return self._lose(counts.problem)
        if tool.found is None or not exit.ok:
            # Only a failure on this machine is the user's: the node may have a full disk, or lack a header.
            return self._lose(f"{self.action.kind} ended with status {exit.status}")
        private, folder = os.fsencode(self._private), os.fsencode(self._parcel.folder)
        stdout, stderr = (text.replace(folder, private) for text in (exit.stdout, exit.stderr))
        self.exit = self._as_called(launch, replace(exit, stdout=stdout, stderr=stderr))
        try:
            other: str = await self._in_pool(self._unpack, tool.found)
        except OSError as error:
            self.failure = storage_failure(error, self._private)
            return Ending.FAILED
        if other and tool.listed:
            self._engine.distrust(tool, other)
        elif other:
            # The next jobs bring their files.
            self._engine.holds.apart.add(self.build.project)
        if other:
            return self._lose(other)
        return None

    def kill(self, reason: EndReason) -> None:
        self._kill = self._kill or reason
        for carriage in self._carriages:
            carriage.end(reason)

    def _line(self, stream: str, text: str) -> None:
        if self._here.quiet:
            return  # what a step says is told with the job that it is a part of
        self.told[stream, text] += 1
        super()._line(stream, text)

    def _line_again(self, told: Counter[tuple[str, str]], stream: str, text: str) -> None:
        """Tell a line of a second start, unless the first one has told it: it is in `told` then, and leaves it."""
        if told[stream, text]:
            told[stream, text] -= 1
        else:
            self._line(stream, text)

    def _lose(self, why: str) -> Ending:
        self._why = f"{self.node or 'the cluster'}: {why}" if why else ""
        return Ending.LOST

    def _unpack(self, found: wire.Ended) -> str:
        """Write what came back into the job's folder; returns which file was another one there, if any. In a worker
        thread; raises OSError."""
        for name, content in found.outputs.items():
            if name in self._parcel.depfiles:
                content = content.replace(os.fsencode(self._parcel.folder), os.fsencode(self._private))
            if name in self._parcel.outputs or name in self._parcel.depfiles:
                Path(self._private, name).write_bytes(content)
        return self._differing(found.read)

    def _differing(self, there: Mapping[str, str]) -> str:
        project = self.build.project
        absolute = {path: os.path.join(project, path) for path in self._inputs() or ()}
        for spelled, path in absolute.items():
            if path.startswith(f"{self._private}/"):
                continue
            if spelled not in there or there[spelled] != digest_of(path):
                return f"{path} is another file there"
        assert self._tool is not None and self._tool.found is not None
        self._seen = frozenset(map(os.path.normpath, (*absolute.values(), *self._tool.found.rivals)))
        if self._tool.listed:
            self._seen |= self._carriages[-1].told
        return ""

    def _seen_there(self) -> frozenset[str] | None:
        return self._seen

    def keep(self) -> Ending:
        ending = super().keep()
        # What is not stored may depend on more than could be compared: a file that an assembler embeds, the time.
        if ending is Ending.STALE or (ending is Ending.SUCCESS and self.result.note):
            return self._lose("")
        return ending
