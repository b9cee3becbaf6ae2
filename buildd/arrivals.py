"""Requests that are being planned: which were cancelled meanwhile, and which others they replace.

Knows names only; the scheduler acts on them.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.messages import Request, RequestId


@dataclass(slots=True)
class Arrival:
    """One request on its way."""

    replaces: tuple[RequestId, ...] = ()
    cancelled: bool = False


class Arrivals:
    """All that are on their way."""

    def __init__(self) -> None:
        self._under_way: dict[RequestId, Arrival] = {}

    def __contains__(self, name: RequestId) -> bool:
        return name in self._under_way

    @property
    def names(self) -> list[RequestId]:
        return list(self._under_way)

    def begin(self, request: Request) -> None:
        """It comes. With what it replaces it replaces what that would have."""
        arrival = self._under_way[request.request_id] = Arrival()
        if request.replaces:
            arrival.replaces = (request.replaces,)
            before = self._under_way.get(request.replaces)
            if before is not None:
                arrival.replaces += before.replaces
                before.replaces = ()

    def cancel(self, name: RequestId) -> bool:
        """It is not wanted any more; False where none of that name is on its way."""
        arrival = self._under_way.get(name)
        if arrival is None:
            return False
        arrival.cancelled = True
        return True

    def end(self, name: RequestId) -> Arrival:
        """It is there, or came to nothing."""
        return self._under_way.pop(name)
