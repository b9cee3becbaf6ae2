"""A client that hosts the tools of its request: they run below it, inside its limits, and the daemon only directs them.

The client starts a spawner of its own, which connects to the daemon; from there on all is as with the daemon's spawner.
Knows no request: `limits` says what the client's children share, and the caller when a host is needed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from buildd.errors import RunnerError
from buildd.host.confinement import Confinement
from buildd.host.memory import OomCounter
from buildd.processes import spawner
from buildd.processes.runner import GRACE_S, Runner
from buildd.processes.spawner_client import HelperProcess

DESCRIPTOR = 3
"""The client gives its spawner the connection under this number."""
COMMAND = (sys.executable, "-I", "-S", spawner.__file__, str(DESCRIPTOR), str(GRACE_S))
CONNECT_S = 10.0
_CREDENTIALS = struct.Struct("=iII")
_log = logging.getLogger(__name__)


class ToolHost:
    """The client of one request, as the place where its tools run.

    Args:
        limits: of the client.
        folder: the runtime folder; the spawner connects to a socket there.
        tell: sends the client a command that it is to start, with the path of the socket.
    """

    def __init__(self, limits: Confinement, folder: Path, tell: Callable[[tuple[str, ...], str], object]) -> None:
        self.limits = limits
        self._path = folder / f"host-{os.urandom(6).hex()}"
        self._tell = tell
        self._runner: asyncio.Task[HostedRunner] | None = None
        self._users = 0
        self._ended = False

    @asynccontextmanager
    async def lent(self) -> AsyncIterator[Runner]:
        """A runner whose tools run below the client; each of them fails if the client is gone."""
        self._users += 1
        try:
            yield await self._begun()
        finally:
            self._users -= 1
            if self._ended and not self._users:
                await self._shut()

    async def close(self) -> None:
        """Let the client's spawner end, now or with the last job: another request may wait for it."""
        self._ended = True
        if self._runner is not None and not self._runner.done():
            self._runner.cancel()
        if not self._users:
            await self._shut()

    async def _begun(self) -> HostedRunner:
        if self._runner is None:
            self._runner = asyncio.get_running_loop().create_task(self._begin())
            if self._ended:
                self._runner.cancel()
        await asyncio.wait([self._runner])
        return HostedRunner(self.limits) if self._runner.cancelled() else self._runner.result()

    async def _begin(self) -> HostedRunner:
        """The runner, once the client's spawner has connected."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as listener:
            try:
                listener.bind(os.fspath(self._path))
                listener.listen(1)
                self._tell(COMMAND, os.fspath(self._path))
                accepting = asyncio.get_running_loop().sock_accept(listener)
                channel, _ = await asyncio.wait_for(accepting, CONNECT_S)
            except OSError as error:  # or TimeoutError, which is one
                _log.warning("no client hosts tools at %s: %s", self._path, error)
                return HostedRunner(self.limits)
            finally:
                with contextlib.suppress(OSError):
                    self._path.unlink()
        pid, uid, _ = _CREDENTIALS.unpack(channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        try:
            if uid == os.geteuid():
                return HostedRunner(self.limits, (channel, PeerProcess(pid)))
        except ProcessLookupError:
            pass
        channel.close()
        return HostedRunner(self.limits)

    async def _shut(self) -> None:
        if self._runner is not None and self._runner.done() and not self._runner.cancelled():
            await self._runner.result().close()


class HostedRunner(Runner):
    """Runs tools below another process.

    Args:
        limits: of that process.
        given: the connection to its spawner, and the spawner; without them, or once they are gone, nothing can run.
    """

    def __init__(self, limits: Confinement, given: tuple[socket.socket, HelperProcess] | None = None) -> None:
        super().__init__(oom_counter=OomCounter(membership=limits.membership))
        self._given = given
        if given is not None:
            self._current()

    def _spawner(self) -> tuple[socket.socket, HelperProcess]:
        given, self._given = self._given, None
        if given is None:
            text = "the client that was to run this tool inside its own limits is gone"
            raise RunnerError(text, next_step="build again")
        return given


class PeerProcess:
    """A process that is no child of this one. Raises ProcessLookupError if it is gone already."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; its status is not known, and 0 stands for it. Raises TimeoutExpired."""
        if not select.select([self._descriptor], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(COMMAND, timeout or 0.0)
        return 0

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, 9)

    def __del__(self) -> None:
        os.close(self._descriptor)
