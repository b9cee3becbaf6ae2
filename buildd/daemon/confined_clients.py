"""Clients with other limits than the daemon: a compile of theirs runs below them, or is refused.

Knows what a client says of itself and where its process is; `confinement` reads limits, `tool_host` carries it out.
"""

from __future__ import annotations

import os
from pathlib import Path

from buildd.builds.event_log import RequestLog
from buildd.daemon.handler import ClientInfo
from buildd.host.confinement import confinement_of
from buildd.processes.tool_host import ToolHost
from protocol.messages import Host, Mode, Request

HOST = "host"
"""Capability of a client that starts a `Host` event's command."""


class Outside(Exception):
    """The daemon would run the client's compile outside the client's limits."""


class ConfinedClients:
    """The clients of one daemon.

    Args:
        folder: the runtime folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._own = confinement_of(os.getpid())

    def host_of(self, client: ClientInfo, request: Request, log: RequestLog) -> ToolHost | None:
        """The client as the place where the request's tools have to run; None if they may run below the daemon.

        Raises: Outside if the client is to run its tool itself.
        """
        if request.mode is not Mode.COMPILE or not client.pid:
            return None
        limits = confinement_of(client.pid, beside=self._own)
        if limits == self._own:
            return None
        if limits is None or HOST not in client.capabilities:
            raise Outside
        return ToolHost(limits, self._folder, lambda command, place: log.append(Host(command=command, socket=place)))
