"""Follows a request through restarts of the daemon: the next one gets it again.

Knows nothing of builds, nor of how a daemon is started."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from protocol.client import POLL_S, Client
from protocol.endpoint import Endpoint, is_alive
from protocol.errors import ConnectionLost, RemoteError
from protocol.messages import Event, Notice, Request, RequestId, Severity

_DRAIN_S = 2.0
"""How long a client waits for a draining daemon to end; it does not wait for a long build."""


def submit_through(connect: Callable[[], Client], request: Request, *, restarts: int = 2) -> Iterator[Event]:
    """Events of a build to its `Done`, even if the daemon is restarted meanwhile.

    The same daemon is followed from the last event on. Another one gets the request again: acknowledged results are in
    the store, so only the rest runs; its events are numbered from 1 again, after a `Notice` that says so.

    Args:
        connect: makes a client, starting a daemon if none runs.
        restarts: most restarts in a row without an event between them.

    Raises as `Client.submit`; ConnectionLost after too many restarts.
    """
    instance, last, left = "", 0, restarts
    while True:
        try:
            with connect() as client:
                before, instance = instance, client.instance
                if last and before == instance:
                    events = client.follow(request.request_id, last)
                else:
                    events = client.submit(request)
                if before and before != instance:
                    yield _restarted(request.request_id, last)
                    last = 0
                for event in events:
                    last, left = event.sequence, restarts
                    yield event
                return
        except ConnectionLost:
            if left == 0:
                raise
        except RemoteError as error:
            # Met between its decision to end and its end: wait for the end, then start another.
            if error.code != "draining" or left == 0 or not _ends_soon(client.route.endpoint):
                raise
        left -= 1


def _ends_soon(endpoint: Endpoint | None) -> bool:
    deadline = time.monotonic() + _DRAIN_S
    while endpoint is not None and is_alive(endpoint) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return endpoint is not None and not is_alive(endpoint)


def _restarted(request_id: RequestId, last: int) -> Event:
    text = "the daemon ended; the request continues in a new one"
    return Event(
        request_id=request_id,
        sequence=last,
        time_ns=time.time_ns(),
        body=Notice(text=text, severity=Severity.WARNING),
    )
