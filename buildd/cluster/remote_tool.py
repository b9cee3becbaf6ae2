"""A tool that runs on a node: its lines, its signs of life, its end. Knows no socket; messages come from the engine."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from buildd.cluster import wire
from buildd.cluster.parcel import Parcel
from buildd.processes.launch import SIGKILL, EndReason, Exit, Launch, out_of_memory
from buildd.processes.running_tool import OnLine
from buildd.processes.streams import Capture, Lines
from protocol.messages import Timing

_log = logging.getLogger(__name__)

PENDING_S = 20.0
"""A job that no node has taken for this long is done here."""
CHECK_S = 30.0
"""A node may take this long to compare the files before it starts the tool."""
SILENT_S = 8.0
"""A node that runs a tool tells of it once a second. One that is silent for this long hangs."""
RECALL_S = 3.0
"""A worker that is asked to end its tool may take this long before it is ended itself."""


class RemoteTool:
    """A tool on a node. Made by the engine.

    Args:
        recall: asks the bridge to end it; the argument says whether the worker is ended too.
        patience_s: how long it may wait for a node.
    """

    def __init__(
        self,
        number: int,
        launch: Launch,
        parcel: Parcel,
        on_line: OnLine,
        recall: Callable[[bool], None],
        *,
        patience_s: float | None = None,
    ) -> None:
        self.number = number
        self.launch = launch
        self.parcel = parcel
        self.memory_bytes = 0
        self.node = ""
        """Id of the node that has it; empty before."""
        self.why = ""
        """Why it was lost."""
        self.unfit = False
        """The node has other files."""
        self.lacks: tuple[str, ...] | None = None
        """The node has not begun it, because it needs these contents; none are named where it needs the whole list."""
        self.asked_s = time.monotonic()
        """When it was given to the cluster."""
        self.begun_s = 0.0
        """When it began on its node, as far as was heard; 0 before."""
        self.settled = asyncio.Event()
        """Set once it has begun on a node, or has ended before."""
        self.found: wire.Ended | None = None
        """What the node says of its end."""
        self._on_line = on_line
        self._recall = recall
        self._done: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self._lines = {name: Lines() for name in ("stdout", "stderr")}
        self._captures = {name: Capture() for name in ("stdout", "stderr")}
        self._reason: EndReason | None = None
        self._due_s = time.monotonic() + (PENDING_S if patience_s is None else patience_s)
        """When it is lost, unless it is heard of before."""

    async def wait(self) -> Exit:
        """How the tool ended; `Exit.lost` where the cluster cannot say it. Cancelling a waiter leaves it alone."""
        return await asyncio.shield(self._done)

    @property
    def listed(self) -> bool:
        """Whether the node was told of all files that it reads."""
        return self.parcel.cargo.listed

    @property
    def recalled(self) -> bool:
        """Whether it was ended from here."""
        return self._reason is not None

    @property
    def done(self) -> bool:
        return self._done.done()

    def hold(self, held: bool) -> None:
        """Do nothing: the tool takes no memory of this machine."""

    def kill(self, reason: EndReason = EndReason.CANCELLED) -> None:
        if self.done or self._reason is not None:
            return
        self._reason = reason
        self._due_s = time.monotonic() + RECALL_S
        self._recall(False)

    def pardon(self, late_s: float) -> None:
        """Give it so much more time: for so long, nothing could be heard of it."""
        self._due_s += late_s

    def overdue(self, now_s: float) -> bool:
        """Whether too much time has passed without a sign of it; then it is given up."""
        if self.done or now_s < self._due_s:
            return False
        self._recall(True)
        if not self.node:
            self.lost("no node of the cluster has taken it")
        else:
            self.lost("its node is silent")
        return True

    def lost(self, why: str, *, unfit: bool = False) -> None:
        """End it: how the tool would have ended is unknown."""
        if self.done:
            return
        self.why, self.unfit = why, unfit
        self._end(128 + SIGKILL, SIGKILL, Timing(), lost=True)

    def take(self, message: wire.FromBridge) -> None:
        """Take a message about it."""
        if self.done:
            return
        now_s = time.monotonic()
        if self._reason is None:
            self._due_s = now_s + (SILENT_S if self.begun_s else CHECK_S)
        match message:
            case wire.At():
                self.node = message.node
            case wire.Begun():
                self.begun_s = now_s
                self.settled.set()
                self._due_s = min(self._due_s, now_s + SILENT_S)
            case wire.Beat():
                self.memory_bytes = message.memory_bytes
            case wire.Printed() if message.stream in self._lines:
                self._captures[message.stream].add(message.data)
                self._tell(message.stream, self._lines[message.stream].feed(message.data))
            case wire.Unfit():
                self.lost(message.reason, unfit=True)
            case wire.Lacks():
                self.lacks = message.digests
                self.lost("")
            case wire.Lost():
                self.lost(message.reason)
            case wire.Late():
                self._reason = self._reason or EndReason.TIMEOUT
                self._end(128 + SIGKILL, SIGKILL, Timing())
            case wire.Ended() if message.too_large:
                self.lost("its outputs are too large to be brought back")
            case wire.Ended():
                self.found = message
                wall_s, user_s, system_s, peak = message.figures
                signal = max(0, -message.status)
                timing = Timing(wall_s=wall_s, user_s=user_s, system_s=system_s, peak_rss_bytes=peak)
                self._end(128 + signal if signal else message.status, signal, timing)
            case _:
                pass

    def _tell(self, stream: str, lines: list[str]) -> None:
        try:
            for line in lines:
                self._on_line(stream, line)
        except Exception:  # the edge: a listener's fault must not end the tool
            _log.exception("the listener of %s failed", self.launch.command)

    def _end(self, status: int, signal: int, timing: Timing, *, lost: bool = False) -> None:
        if not lost:
            for stream, lines in self._lines.items():
                self._tell(stream, lines.finish())
        self.settled.set()
        cancelled = self._reason is EndReason.CANCELLED
        said = {name: capture.value() for name, capture in self._captures.items()}
        self._done.set_result(
            Exit(
                status=status,
                signal=signal,
                timing=timing,
                timed_out=self._reason is EndReason.TIMEOUT,
                cancelled=cancelled,
                out_of_memory=not lost and self._reason is None and out_of_memory(status, said.values(), 0),
                output_truncated=any(capture.truncated for capture in self._captures.values()),
                lost=lost and not cancelled,
                stdout=said["stdout"],
                stderr=said["stderr"],
            )
        )
