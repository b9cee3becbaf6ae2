"""The engine for a Ray cluster: how many jobs it may have, which tool is on which node, what happens when it fails.

Knows launches and parcels, no action. A job that the cluster loses ends as lost, and only its caller starts it again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import Counter
from collections.abc import Mapping

from buildd.cluster import bridge, wire
from buildd.cluster.node_contents import NodeContents
from buildd.cluster.parcel import Parcel
from buildd.cluster.ray_settings import RaySettings
from buildd.cluster.remote_bench import RemoteBench
from buildd.cluster.remote_tool import RemoteTool
from buildd.errors import RunnerError
from buildd.processes.launch import Launch
from buildd.processes.running_tool import OnLine
from buildd.tier.breaker import Breaker
from protocol.messages import ClusterStatus, NodeStatus

_log = logging.getLogger(__name__)

LOOK_S = 0.5
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
AVOIDED_S = 60.0
"""A node that has other files, or that fails, gets no job for this long."""
MOST_FAILURES = 3
"""After so many jobs in a row that failed on a node, the node itself may be what fails: its disk is full."""


class RayEngine:
    """One cluster. Used on one event loop.

    Args:
        environ: of the bridge.
    """

    def __init__(self, settings: RaySettings, environ: Mapping[str, str]) -> None:
        self.settings = settings
        self.problem = ""
        """The last thing that went wrong."""
        self.losses = 0
        """How many jobs were lost."""
        self.done = 0
        """How many jobs came back."""
        self.second_starts = 0
        """How many jobs were begun on a second node."""
        self._environ = dict(environ)
        self._nodes: dict[str, wire.ClusterNode] = {}
        self._avoided: dict[str, float] = {}
        """Id of a node -> until when it gets nothing (monotonic, s)."""
        self._failures: Counter[str] = Counter()
        """Id of a node -> how many of its last jobs failed."""
        self._tools: dict[int, RemoteTool] = {}
        self._beside = 0
        """How many of them are a second start."""
        self.begun = 0
        """How many jobs were given to it."""
        self.holds = NodeContents()
        self._breaker = Breaker()
        self._process: bridge.BridgeProcess | None = None
        self._is_ready = False
        """The bridge is connected to the cluster."""
        self._looked = asyncio.Event()
        """The nodes are known."""
        self._living: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._pause_s = FIRST_PAUSE_S
        self._connect_at_s = 0.0
        self._closed = False

    # ---------------------------------------------------------------- what there is

    def wake(self) -> None:
        """Connect, unless it is connected or has just failed to."""
        if self._living is None and not self._closed and time.monotonic() >= self._connect_at_s:
            self._living = asyncio.get_running_loop().create_task(self._live())

    async def connected(self, patience_s: float) -> bool:
        """Connect if need be, also after a pause, and wait until the nodes are known; False where that fails."""
        await asyncio.sleep(max(0.0, min(patience_s, self._connect_at_s - time.monotonic())))
        self.wake()
        if self._living is None:
            return self._looked.is_set()
        looked = asyncio.ensure_future(self._looked.wait())
        try:
            await asyncio.wait((self._living, looked), timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            looked.cancel()
        return self._looked.is_set()

    def slots(self, memory_bytes: int = 0) -> int:
        """How many jobs of this size the cluster may have at once; 0 while it cannot be used. Connects if need be."""
        self.wake()
        now_s = time.monotonic()
        if self._breaker.open_for_s(now_s):
            return 0
        fit = [node for node in self._fit(now_s) if node.memory_bytes >= memory_bytes]
        if self._breaker.is_open:
            return min(1, sum(node.cpus for node in fit))  # one job shows whether it is well again
        # Jobs that were begun a second time take slots of which their callers know nothing.
        return max(0, sum(node.cpus for node in fit) - self._beside)

    def has_room_beside(self, tool: RemoteTool) -> bool:
        """Whether a node other than a tool's could take the same job now, and no job waits for a node."""
        now_s = time.monotonic()
        taken: Counter[str] = Counter()
        for each in self._tools.values():
            taken[each.node] += each.parcel.cpus
        if taken[""] or self._breaker.is_open:
            return False
        asked = tool.parcel
        return any(
            node.id != tool.node
            and node.memory_bytes >= asked.memory_bytes
            and taken[node.id] + asked.cpus <= node.cpus
            for node in self._fit(now_s)
        )

    @property
    def tools(self) -> tuple[RemoteTool, ...]:
        """The tools that the cluster has."""
        return tuple(self._tools.values())

    @property
    def nodes(self) -> tuple[wire.ClusterNode, ...]:
        """The nodes that may have jobs; none while it is not connected."""
        return tuple(self._fit(time.monotonic()))

    @property
    def bridge_pid(self) -> int:
        """The bridge's process; 0 while there is none."""
        return self._process.process.pid if self._process is not None else 0

    def name_of(self, node: str) -> str:
        """A node's name."""
        return self._nodes[node].name if node in self._nodes else node[:8]

    def status(self) -> ClusterStatus:
        """For `buildd status`; from any thread."""
        now_s = time.monotonic()
        running = Counter(tool.node for tool in list(self._tools.values()))
        avoided = dict(self._avoided)
        return ClusterStatus(
            address=self.settings.address,
            nodes=tuple(
                NodeStatus(
                    name=node.name, cpus=node.cpus, jobs=running[node.id], avoided=avoided.get(node.id, 0.0) > now_s
                )
                for node in sorted(list(self._nodes.values()), key=lambda node: node.name)
            ),
            waiting=running[""],
            done=self.done,
            losses=self.losses,
            second_starts=self.second_starts,
            unused_for_s=max(self._breaker.open_for_s(now_s), self._connect_at_s - now_s, 0.0),
            problem=self.problem,
        )

    def _fit(self, now_s: float) -> list[wire.ClusterNode]:
        if not self._is_ready:
            return []
        return [node for node in self._nodes.values() if self._avoided.get(node.id, 0.0) <= now_s]

    # ---------------------------------------------------------------- jobs

    def lane(self, parcel: Parcel) -> RayLane:
        """The executor for one launch with this parcel."""
        return RayLane(self, parcel)

    def begin(self, launch: Launch, parcel: Parcel, on_line: OnLine) -> RemoteTool:
        """Give a tool to the cluster. If there is none, the tool is lost at once."""
        number = self._next()
        return self._given(RemoteTool(number, launch, parcel, on_line, lambda force: self._recall(number, force)))

    def measure(self, launch: Launch, parcel: Parcel, on_line: OnLine) -> RemoteBench:
        """Give a measuring process to the cluster, as `begin`. The parcel names its node."""
        number = self._next()
        bench = RemoteBench(number, launch, parcel, on_line, lambda force: self._recall(number, force), feed=self._send)
        self._given(bench)
        return bench

    def _next(self) -> int:
        self.begun += 1
        return self.begun

    def _given(self, tool: RemoteTool) -> RemoteTool:
        number, launch, parcel = tool.number, tool.launch, tool.parcel
        process = self._process
        now_s = time.monotonic()
        # While a job was prepared, the last node may have turned out to be unfit.
        is_refused = bool(self._nodes) and not parcel.node and not self._fit(now_s)
        if process is None or not self._is_ready or is_refused:
            tool.lost(self.problem or "the cluster is not connected")
            return tool
        self._tools[number] = tool
        self._beside += bool(parcel.beside)
        self.second_starts += bool(parcel.beside)
        self._breaker.allows(now_s)
        process.send(
            wire.Errand(
                job=number,
                argv=tuple(map(os.fsencode, launch.argv)),
                cwd=os.fsencode(launch.cwd),
                environment=tuple((os.fsencode(name), os.fsencode(value)) for name, value in launch.environment),
                payload=launch.payload,
                timeout_s=launch.timeout_s or 1e9,
                umask=launch.umask,
                folder=parcel.folder,
                outputs=parcel.outputs,
                depfiles=parcel.depfiles,
                files=parcel.files,
                search=parcel.search,
                cpus=parcel.cpus,
                memory_bytes=parcel.memory_bytes,
                avoided=(
                    *(node for node, until_s in self._avoided.items() if until_s > now_s),
                    *filter(None, (parcel.beside,)),
                ),
                node=parcel.node,
                inputs=parcel.cargo.files,
                listed=parcel.cargo.listed,
                links=dict(parcel.cargo.links),
                folders=parcel.cargo.folders,
                tops=dict(parcel.cargo.tops),
                blobs=parcel.blobs,
                gpus=parcel.gpus,
            )
        )
        if self._watching is None or self._watching.done():
            self._watching = asyncio.get_running_loop().create_task(self._watch())
        return tool

    def distrust(self, tool: RemoteTool, why: str) -> None:
        """Note that a node has other files than this machine: it gets nothing for a while."""
        self.problem = f"{self.name_of(tool.node)}: {why}"
        _log.warning("cluster: %s", self.problem)
        self._avoided[tool.node] = time.monotonic() + AVOIDED_S

    def _recall(self, number: int, force: bool) -> None:
        self._send(wire.Recall(job=number, force=force))

    def _send(self, message: wire.ToBridge) -> None:
        if self._process is not None:
            self._process.send(message)

    async def _watch(self) -> None:
        """Give up the jobs that nothing is heard of, as long as there are jobs."""
        while self._tools:
            due_s = time.monotonic() + LOOK_S
            await asyncio.sleep(LOOK_S)
            now_s = time.monotonic()
            for tool in list(self._tools.values()):
                # While this process was held up, it heard nobody: that is no node's silence.
                tool.pardon(max(0.0, now_s - due_s))
                if tool.overdue(now_s):
                    self._ended(tool)

    def _ended(self, tool: RemoteTool) -> None:
        if self._tools.pop(tool.number, None) is not None:
            self._beside -= bool(tool.parcel.beside)
        if tool.found is not None:
            self.done += 1
            self._breaker.succeeded()
            self._judge(tool, tool.found.status)
        elif tool.lacks is not None:
            self._breaker.succeeded()
        elif tool.unfit:
            self.distrust(tool, tool.why)
            if not self._fit(time.monotonic()):
                for other in [each for each in self._tools.values() if not each.node]:
                    other.lost(self.problem)  # else it would wait until it counts as lost
        elif tool.recalled or (tool.parcel.beside and not tool.node):
            pass  # nobody needs it, or jobs of others have taken the room that it was begun for
        elif tool.why:
            self.losses += 1
            self.problem = f"{self.name_of(tool.node)}: {tool.why}" if tool.node else tool.why
            _log.warning("cluster: %s was lost: %s", tool.launch.command, self.problem)
            self._breaker.failed(time.monotonic())

    def _judge(self, tool: RemoteTool, status: int) -> None:
        """Take note of how a job ended on its node. A kernel that is measured may end its process by itself."""
        if tool.parcel.gpus:
            return
        if status == 0 or tool.recalled:
            self._failures.pop(tool.node, None)
            return
        self._failures[tool.node] += 1
        if self._failures[tool.node] >= MOST_FAILURES:
            del self._failures[tool.node]
            self.distrust(tool, f"its last {MOST_FAILURES} jobs failed; is its disk full?")

    # ---------------------------------------------------------------- the connection

    async def _live(self) -> None:
        """One bridge from its start to its end."""
        reason = "the daemon ends"
        try:
            self._process = await bridge.start(self.settings.python, self.settings.address, self._environ, self._take)
            reason = await self._process.serve()
        except (RunnerError, OSError) as error:
            reason = error.message if isinstance(error, RunnerError) else str(error)
        finally:
            process, self._process, self._is_ready = self._process, None, False
            self._nodes.clear()
            self._looked.clear()
            self.holds = NodeContents()
            self._connect_at_s = time.monotonic() + self._pause_s
            self._pause_s = min(LONGEST_PAUSE_S, 2 * self._pause_s)
            if not self._closed:
                self.problem = reason
                _log.warning("cluster %s: %s", self.settings.address, reason)
            self.losses += len(self._tools)
            for tool in list(self._tools.values()):
                tool.lost(reason)
            self._tools.clear()
            self._beside = 0
            if process is not None:
                await process.close()
            self._living = None

    def _take(self, message: wire.FromBridge) -> None:
        match message:
            case wire.Connected():
                self._is_ready = True
                _log.info("cluster %s: connected, Ray %s", self.settings.address, message.ray)
            case wire.Nodes():
                self._pause_s = FIRST_PAUSE_S
                self._nodes = {node.id: node for node in message.nodes}
                self._looked.set()
            case wire.Gone():
                pass
            case _:
                tool = self._tools.get(message.job)
                if tool is not None:
                    tool.take(message)
                    if tool.done:
                        self._ended(tool)

    async def close(self) -> None:
        """End the bridge, and with it all jobs on the cluster."""
        self._closed = True
        if self._watching is not None:
            self._watching.cancel()
        if self._living is not None:
            self._living.cancel()
            await asyncio.wait([self._living])


class RayLane:
    """The engine as an executor, for one launch. See `processes.executor`."""

    def __init__(self, engine: RayEngine, parcel: Parcel) -> None:
        self._engine, self._parcel = engine, parcel

    def begin(self, launch: Launch, on_line: OnLine) -> RemoteTool:
        return self._engine.begin(launch, self._parcel, on_line)
