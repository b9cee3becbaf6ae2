"""Requests that are being planned: which were cancelled meanwhile, and which others they replace.

Knows names only; the scheduler acts on them.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.messages import Request, RequestId


@dataclass(slots=True)
class Arrival:
    """One request that is being planned."""

    replaces: tuple[RequestId, ...] = ()
    cancelled: bool = False


class Arrivals:
    """All requests that are being planned."""

    def __init__(self) -> None:
        self._arrivals: dict[RequestId, Arrival] = {}

    def __contains__(self, name: RequestId) -> bool:
        return name in self._arrivals

    def __getitem__(self, name: RequestId) -> Arrival:
        return self._arrivals[name]

    @property
    def names(self) -> list[RequestId]:
        return list(self._arrivals)

    def add(self, request: Request) -> None:
        """Add a request. It also replaces the requests that the one it replaces would have replaced."""
        arrival = self._arrivals[request.request_id] = Arrival()
        if request.replaces:
            arrival.replaces = (request.replaces,)
            before = self._arrivals.get(request.replaces)
            if before is not None:
                arrival.replaces += before.replaces
                before.replaces = ()

    def cancel(self, name: RequestId) -> bool:
        """Mark a request as cancelled; False where none of that name is being planned."""
        arrival = self._arrivals.get(name)
        if arrival is None:
            return False
        arrival.cancelled = True
        return True

    def forget(self, name: RequestId) -> Arrival:
        """Forget a request: it was planned, or planning failed."""
        return self._arrivals.pop(name)
