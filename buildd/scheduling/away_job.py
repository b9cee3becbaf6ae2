"""A job on a node of a cluster. What comes back is believed only if the tool read the same files; else the job is lost.

Knows the engine, and that only this process writes results. A lost job runs again here: `state` decides that.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from buildd.cluster import wire
from buildd.cluster.node_task import digest_of
from buildd.cluster.parcel import Parcel, new_folder
from buildd.cluster.ray_engine import RayEngine
from buildd.cluster.remote_tool import RemoteTool
from buildd.errors import RunnerError
from buildd.processes.executor import BegunTool, Executor
from buildd.processes.launch import EndReason, Launch
from buildd.scheduling.carriage import Carriage, declared
from buildd.scheduling.execution import Execution
from buildd.scheduling.job_failures import storage_failure
from buildd.scheduling.travel import depfiles_of, outputs_of, tool_files
from buildd.state.events import Ending


class AwayJob(Execution):
    """One job, on a node.

    Args:
        engine: the cluster.
    """

    def __init__(self, *args: Any, engine: RayEngine, **more: Any) -> None:
        super().__init__(*args, **more)
        self._engine = engine
        self._parcel = Parcel()
        self._tool: RemoteTool | None = None
        self._carriage: Carriage | None = None
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
    def why_lost(self) -> str:
        return self._why

    def prepare(self) -> Launch:
        super().prepare()
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
        self._began_ns = time.time_ns()
        carriage = self._carriage = Carriage(
            self._engine, self.build, self.action, in_pool=self._in_pool, runner=runner, on_tool=self._hold_on_to
        )
        try:
            here = await self._in_pool(self._launch_in, self._private)
            exit, problem = await carriage.run(launch, here, self._parcel, self._line)
        except RunnerError as error:
            return self._lose(error.message)
        except OSError as error:
            return self._lose(f"{error.filename}: {error.strerror}")
        if exit.cancelled or self._kill is EndReason.CANCELLED:
            return Ending.KILLED
        if exit.lost or self._tool is None:
            return self._lose(problem or (self._tool.why if self._tool is not None else ""))
        if not exit.ok or self._tool.found is None:
            # Only a failure on this machine is the user's: the node may have a full disk, or lack a header.
            return self._lose(f"{self.action.kind} ended with status {exit.status}")
        private, folder = os.fsencode(self._private), os.fsencode(self._parcel.folder)
        self.exit = replace(
            exit, stdout=exit.stdout.replace(folder, private), stderr=exit.stderr.replace(folder, private)
        )
        try:
            other: str = await self._in_pool(self._unpack, self._tool.found)
        except OSError as error:
            self.failure = storage_failure(error, self._private)
            return Ending.FAILED
        if other and self._tool.listed:
            self._engine.distrust(self._tool, other)
        elif other:
            # The next jobs bring their files.
            self._engine.holds.apart.add(self.build.project)
        if other:
            return self._lose(other)
        return None

    def _hold_on_to(self, tool: BegunTool) -> bool:
        self._job = tool
        if isinstance(tool, RemoteTool):
            self._tool = tool
        return self._kill is not None

    def _line(self, stream: str, text: str) -> None:
        self.told[stream, text] += 1
        super()._line(stream, text)

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
        assert self._tool is not None and self._tool.found is not None and self._carriage is not None
        self._seen = frozenset(map(os.path.normpath, (*absolute.values(), *self._tool.found.rivals)))
        if self._tool.listed:
            self._seen |= self._carriage.told
        return ""

    def _seen_there(self) -> frozenset[str] | None:
        return self._seen

    def keep(self) -> Ending:
        ending = super().keep()
        # What is not stored may depend on more than could be compared: a file that an assembler embeds, the time.
        if ending is Ending.STALE or (ending is Ending.SUCCESS and self.result.note):
            return self._lose("")
        return ending
