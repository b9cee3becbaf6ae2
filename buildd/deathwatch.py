"""Tells at once when a local client's process ends, by its pidfd.

Knows no message. A pid alone is not believed: it must have the start ticks that the client named.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from protocol.endpoint import open_pidfd

Died = Callable[[bytes], None]
Process = tuple[int, int]
"""Pid and start ticks."""


class DeathWatch:
    """Calls `died(identity)` for each client of a process that ends. One descriptor a process."""

    def __init__(self, died: Died) -> None:
        self._died = died
        self._loop = asyncio.get_running_loop()
        self._descriptors: dict[Process, int] = {}
        self._clients: dict[Process, set[bytes]] = {}
        self._process_of: dict[bytes, Process] = {}

    def watch(self, identity: bytes, pid: int, start_ticks: int) -> bool:
        """Whether the process lives, is that very one, and is watched from now on."""
        process = (pid, start_ticks)
        self.forget(identity)
        if process not in self._descriptors:
            descriptor = open_pidfd(pid, start_ticks)
            if descriptor is None:
                return False
            self._descriptors[process] = descriptor
            self._clients[process] = set()
            self._loop.add_reader(descriptor, self._ended, process)
        self._clients[process].add(identity)
        self._process_of[identity] = process
        return True

    def forget(self, identity: bytes) -> None:
        process = self._process_of.pop(identity, None)
        if process is None:
            return
        self._clients[process].discard(identity)
        if not self._clients[process]:
            self._close(process)

    def _ended(self, process: Process) -> None:
        clients = list(self._clients.get(process, ()))
        for identity in clients:
            self.forget(identity)
            self._died(identity)

    def _close(self, process: Process) -> None:
        del self._clients[process]
        descriptor = self._descriptors.pop(process)
        self._loop.remove_reader(descriptor)
        os.close(descriptor)

    def close(self) -> None:
        for process in list(self._descriptors):
            self._close(process)
        self._process_of.clear()
