"""A call of `buildd profile` as a row of the build log: compiles of candidates, and their measurements on GPUs.

Knows reports and events; measures nothing. `buildd ui` draws the row, with a lane for each GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from buildd.profiling.reports import Summary, Tried
from buildd.store.build_log import Build, BuildSummary
from buildd.store.store import Store
from protocol.events import EventBody
from protocol.messages import Done, Event, Finished, JobId, Measured, Outcome, Planned, Request, Started, Timing

_KIND = "candidate"


def events_of(request: Request, tried: Iterable[Tried], summary: Summary, began_ns: int) -> list[Event]:
    """The events of a call, in the order of time.

    Args:
        began_ns: when the call began, since the epoch.
    """
    tried = list(tried)
    told: list[tuple[float, EventBody]] = [(0.0, Planned(targets=request.targets, actions=len(tried)))]
    for number, one in enumerate(tried, 1):
        name = f"{one.target}/{one.candidate}"
        if one.built and one.ready_s > one.began_s:
            job, timing = JobId(number), Timing(wall_s=one.ready_s - one.began_s, user_s=one.cpu_s)
            told.append((one.began_s, Started(job_id=job, action=name, command="", kind=_KIND)))
            told.append((one.ready_s, Finished(job_id=job, action=name, timing=timing)))
        if one.gpu:
            told.append((one.measured_s, _measured(one, name)))
    done = Done(
        outcome=Outcome.BUILT,
        hits=summary.hits,
        misses=summary.built,
        failures=summary.failed,
        wall_s=summary.wall_s,
    )
    told.sort(key=lambda pair: pair[0])
    told.append((max(summary.wall_s, told[-1][0]), done))
    return [
        Event(request_id=request.request_id, sequence=number, time_ns=began_ns + round(at_s * 1e9), body=body)
        for number, (at_s, body) in enumerate(told, 1)
    ]


def _measured(one: Tried, name: str) -> Measured:
    return Measured(
        target=name,
        problem=one.problem,
        gpu=one.gpu,
        outcome=one.outcome,
        time_us=one.time_us,
        spread=one.spread,
        error=one.error,
        wall_s=one.gpu_s,
    )


def keep(store: Store, request: Request, tried: Sequence[Tried], summary: Summary, began_ns: int) -> None:
    """Write the row, unless nothing was compiled or measured. Raises StoreError."""
    if not summary.built and not summary.measured:
        return
    events = events_of(request, tried, summary, began_ns)
    done = events[-1].body
    assert isinstance(done, Done)
    store.save_build(
        Build(
            build_id=request.build_id,
            request_id=request.request_id,
            project=request.project,
            targets=request.targets or tuple(dict.fromkeys(one.target for one in tried)),
            started_ns=began_ns,
            finished_ns=events[-1].time_ns,
            outcome=done.outcome,
            summary=BuildSummary.of(done),
        ),
        msgspec.msgpack.encode(events),
    )
