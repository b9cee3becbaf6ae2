"""Notices at once when a local client's process ends, by its pidfd.

Knows no message. Does not trust a pid alone: the process must have the start ticks that the client named.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Generic, TypeVar

from protocol.endpoint import open_pidfd

ClientT = TypeVar("ClientT")
Process = tuple[int, int]
"""Pid and start ticks."""


class DeathWatch(Generic[ClientT]):
    """Calls `died(client)` for each client of a process that ends. Holds one descriptor for each process."""

    def __init__(self, died: Callable[[ClientT], None]) -> None:
        self._died = died
        self._loop = asyncio.get_running_loop()
        self._descriptors: dict[Process, int] = {}
        self._clients: dict[Process, set[ClientT]] = {}
        self._process_of: dict[ClientT, Process] = {}

    def watch(self, client: ClientT, pid: int, start_ticks: int) -> bool:
        """Watch a client's process. False if it is not alive, or is not the process with these start ticks."""
        process = (pid, start_ticks)
        self.forget(client)
        if process not in self._descriptors:
            descriptor = open_pidfd(pid, start_ticks)
            if descriptor is None:
                return False
            self._descriptors[process] = descriptor
            self._clients[process] = set()
            self._loop.add_reader(descriptor, self._ended, process)
        self._clients[process].add(client)
        self._process_of[client] = process
        return True

    def forget(self, client: ClientT) -> None:
        process = self._process_of.pop(client, None)
        if process is None:
            return
        self._clients[process].discard(client)
        if not self._clients[process]:
            self._close(process)

    def _ended(self, process: Process) -> None:
        clients = list(self._clients.get(process, ()))
        for client in clients:
            self.forget(client)
            self._died(client)

    def _close(self, process: Process) -> None:
        del self._clients[process]
        descriptor = self._descriptors.pop(process)
        self._loop.remove_reader(descriptor)
        os.close(descriptor)

    def close(self) -> None:
        for process in list(self._descriptors):
            self._close(process)
        self._process_of.clear()
