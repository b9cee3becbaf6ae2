"""Requests on their way: what they replace, and what becomes of one that is replaced before it is there."""

from __future__ import annotations

from buildd.scheduling.arrivals import Arrivals
from protocol.messages import BuildId, Request, RequestId

A, B, C, NOBODY = RequestId("a"), RequestId("b"), RequestId("c"), RequestId("")


def request(name: RequestId, replaces: RequestId = NOBODY) -> Request:
    return Request(request_id=name, build_id=BuildId(name), project="/p", replaces=replaces)


def test_who_replaces_one_that_is_not_there_yet_takes_over_what_it_was_to_replace() -> None:
    """A runs, B was to replace it and is still being planned when C comes: A's jobs wait for C."""
    arrivals = Arrivals()
    arrivals.add(request(B, replaces=A))
    arrivals.add(request(C, replaces=B))
    assert arrivals.forget(B).replaces == (), "its end must not end what C wants as well"
    assert arrivals.forget(C).replaces == (B, A)


def test_one_that_is_cancelled_on_its_way_says_so_when_it_is_there() -> None:
    arrivals = Arrivals()
    arrivals.add(request(A))
    arrivals.add(request(B))
    assert arrivals.cancel(A) and not arrivals.cancel(C)
    assert A in arrivals and arrivals.names == [A, B]
    assert arrivals.forget(A).cancelled and not arrivals.forget(B).cancelled
    assert A not in arrivals
