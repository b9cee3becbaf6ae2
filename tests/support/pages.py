"""The page's server of a user, builds for its history, and a browser. Knows addresses, no daemon."""

from __future__ import annotations

import http.client
import json
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from buildd.store.build_log import Build, BuildSummary
from buildd.store.store import Store
from buildd.web import serve
from protocol.messages import (
    BuildId,
    CacheHit,
    Done,
    Event,
    EventBody,
    Failed,
    FailureKind,
    Finished,
    JobId,
    Kernel,
    Outcome,
    Planned,
    Progress,
    Queued,
    RequestId,
    Started,
    Step,
    Timing,
)
from tests.support.user import User
from tests.support.waiting import until

CHROMIUM = "/usr/bin/chromium"
BEGAN_NS = 1_790_000_000 * 10**9


class Site:
    """A running server, and requests to it: a program's, and a stranger's."""

    def __init__(self, place: serve.ServerPlace) -> None:
        self.place = place

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.place.port}"

    def ask(self, path: str, *, method: str = "GET", **headers: str) -> tuple[int, Mapping[str, str], bytes]:
        """Status, headers and content; with the token unless `authorization` says otherwise."""
        given = {"Authorization": f"Bearer {self.place.token}"} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        connection = http.client.HTTPConnection("127.0.0.1", self.place.port, timeout=20)
        try:
            connection.request(method, path, headers={name: value for name, value in given.items() if value})
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def data(self, path: str) -> Any:
        status, _, content = self.ask(path)
        assert status == 200, (status, content)
        return json.loads(content)


@contextmanager
def site_of(user: User) -> Iterator[Site]:
    """The user's server, on any port."""
    process = user.start("ui", "--no-open", "--port", "0")
    try:
        place = until(lambda: serve.find(user.environ), "the server does not start", timeout_s=30)
        yield Site(place)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)


class History:
    """Builds of one store, written as a daemon writes them."""

    def __init__(self, store: Path) -> None:
        self.folder = store
        self._number = 0

    def add(self, bodies: list[tuple[float, EventBody]], *, command: str = "", **fields: Any) -> str:
        """Add a build from its events, with the seconds after its beginning; its id."""
        with Store.open(self.folder) as store:
            return self.add_to(store, bodies, command=command, **fields)

    def add_to(self, store: Store, bodies: list[tuple[float, EventBody]], *, command: str = "", **fields: Any) -> str:
        self._number += 1
        name = f"{self._number:012x}"
        began_ns = BEGAN_NS + self._number * 60 * 10**9
        events = [
            Event(request_id=RequestId(name), sequence=number, time_ns=began_ns + int(at_s * 1e9), body=body)
            for number, (at_s, body) in enumerate(bodies, 1)
        ]
        done = next(body for _, body in reversed(bodies) if isinstance(body, Done))
        last_s = max(at_s for at_s, _ in bodies)
        given: dict[str, Any] = {"project": "/home/user/project", "targets": ("ops",), "outcome": done.outcome}
        store.save_build(
            Build(
                build_id=BuildId(name),
                request_id=RequestId(name),
                started_ns=began_ns,
                finished_ns=began_ns + int(last_s * 1e9),
                summary=msgspec.structs.replace(BuildSummary.of(done, command=command), wall_s=last_s),
                **{**given, **fields},
            ),
            msgspec.msgpack.encode(events),
        )
        return name


def a_build(
    *, registers: int = 40, target: str = "ops", fails: bool = False, name: str = "a.cu", text: str = "input src/a.cu"
) -> list[tuple[float, EventBody]]:
    """One compile in steps, one hit, one link that waits for the compile."""
    kernel = Kernel(name="_Z3addPf", arch="sm_80", registers=registers, shared_bytes=1024, spill_store_bytes=0)
    steps = (
        Step(name="cicc a", start_s=0.1, wall_s=1.0, peak_rss_bytes=500 << 20),
        Step(name="ptxas a", start_s=1.1, wall_s=0.5, peak_rss_bytes=40 << 20),
    )
    first = f"{target}/{name}.o"
    ran: EventBody = (
        Failed(
            job_id=JobId(1),
            action=first,
            kind=FailureKind.COMPILE_ERROR,
            message="nvcc ended with status 2",
            timing=Timing(wall_s=1.8),
        )
        if fails
        else Finished(
            job_id=JobId(1),
            action=first,
            timing=Timing(wall_s=1.8, user_s=1.5, system_s=0.2, peak_rss_bytes=600 << 20),
            kernels=(kernel,),
            steps=steps,
        )
    )
    bodies: list[tuple[float, EventBody]] = [
        (0.0, Planned(targets=(target,), actions=3)),
        (0.1, Queued(job_id=JobId(1), action=first, reasons=(text,))),
        (0.2, Started(job_id=JobId(1), action=first, command=f"nvcc -c {name}", kind="nvcc", expected_s=2.0)),
        (0.2, CacheHit(job_id=JobId(0), action=f"{target}/b.cu.o", reason="same inputs", saved_s=3.0)),
        (1.0, Progress(done=1, total=3, hits=1, running=1, memory_bytes=400 << 20, budget_bytes=4 << 30)),
        (2.0, ran),
    ]
    if not fails:
        bodies += [
            (2.0, Queued(job_id=JobId(2), action=f"{target}/lib.so", reasons=("input a.o",), after=first)),
            (2.1, Started(job_id=JobId(2), action=f"{target}/lib.so", command="g++ -shared", kind="link")),
            (
                2.6,
                Finished(job_id=JobId(2), action=f"{target}/lib.so", timing=Timing(wall_s=0.5, peak_rss_bytes=1 << 25)),
            ),
        ]
    outcome = Outcome.FAILED if fails else Outcome.BUILT
    bodies.append((2.7, Done(outcome=outcome, hits=1, misses=2, failures=int(fails), saved_s=3.0)))
    return bodies


def a_large_build(actions: int, lanes: int = 16) -> list[tuple[float, EventBody]]:
    """A build of so many compiles, side by side on some lanes."""
    bodies: list[tuple[float, EventBody]] = [(0.0, Planned(targets=("ops",), actions=actions))]
    for number in range(1, actions + 1):
        began_s = 0.05 + (number // lanes) * 0.5 + (number % lanes) * 0.01
        name, job = f"ops/src/kernel_{number:05d}.cu.o", JobId(number)
        kind = ("nvcc", "g++", "link", "cicc")[number % 4]
        timing = Timing(wall_s=0.45, peak_rss_bytes=(100 + number % 300) << 20)
        bodies += [
            (began_s, Queued(job_id=job, action=name, reasons=(f"input src/kernel_{number:05d}.cu",))),
            (began_s, Started(job_id=job, action=name, command=f"nvcc -c kernel_{number:05d}.cu", kind=kind)),
            (began_s + 0.45, Finished(job_id=job, action=name, timing=timing)),
        ]
    bodies.sort(key=lambda pair: pair[0])
    bodies.append((bodies[-1][0] + 0.1, Done(outcome=Outcome.BUILT, misses=actions)))
    return bodies
