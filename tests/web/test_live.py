"""What open pages hear of a daemon: builds that go on, runs, a daemon that ends and one that comes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from buildd.shims import run_log
from buildd.shims.run_log import RunNotes
from buildd.store import answers
from buildd.web.live import Live
from buildd.web.picture import BarOutcome
from protocol.messages import (
    BuildId,
    CacheHit,
    Done,
    Event,
    Finished,
    JobId,
    Mode,
    OnDisconnect,
    Outcome,
    Planned,
    Progress,
    Queued,
    RequestId,
    RequestStatus,
    Started,
    Status,
    Timing,
)
from tests.support.serving import DEADLINE_S, FakeHandler, a_request, serving, short_folder
from tests.support.waiting import until


class BusyHandler(FakeHandler):
    """Its status names every request that is open."""

    def __init__(self) -> None:
        super().__init__()
        self.manual = True

    def status(self, settle: bool) -> Status:
        work = tuple(
            RequestStatus(
                request_id=name,
                build_id=request.build_id,
                mode=Mode.BUILD,
                project=request.project,
                what="all",
                elapsed_s=5.0,
                jobs_running=1,
            )
            for name, request in self.requests.items()
            if self.logs[name].done is None
        )
        return msgspec.structs.replace(super().status(settle), work=work)


@asynccontextmanager
async def reading(base: Path, store: Path) -> AsyncIterator[Live]:
    live = Live({"BUILDD_RUNTIME_DIR": str(base)}, store)
    async with live.reader():
        yield live
    await live.close()


async def heard(live: Live, condition: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await live.changed(1.0)


def test_a_build_is_followed_and_a_lost_daemon_leaves_what_is_known(tmp_path: Path) -> None:
    with short_folder() as base:
        handler = BusyHandler()
        with serving(base, handler=handler) as served, served.client() as client:

            async def watch() -> None:
                async with reading(base, tmp_path) as live:
                    await heard(live, lambda: live.now.state == "serving")
                    events = await asyncio.to_thread(client.submit, a_request("r1"))
                    await asyncio.to_thread(next, _told(handler, events))
                    await heard(live, lambda: "r1" in live.pictures and live.pictures["r1"].bars)
                    (line,) = live.now.builds
                    assert (line.id, line.what, line.running) == ("r1", "build all", 1)
                    assert live.pictures["r1"].bars[0].outcome is BarOutcome.RUNNING
                    await asyncio.to_thread(served.stop)
                    served.stop = lambda linger_s=0.0: None  # type: ignore[method-assign]
                    await heard(live, lambda: live.now.state == "stopped" and live.pictures["r1"].head.ended)
                    assert live.pictures["r1"].bars[0].outcome is BarOutcome.LOST

            def _told(handler: BusyHandler, events: object) -> object:
                while "r1" not in handler.logs:
                    pass
                log = handler.logs[RequestId("r1")]
                log.append(Planned(targets=("all",), actions=1))
                log.append(Queued(job_id=JobId(1), action="a.o"))
                log.append(Started(job_id=JobId(1), action="a.o", command="gcc", kind="gcc"))
                return iter([1])

            asyncio.run(watch())


def test_a_run_is_read_from_its_file_with_the_memory_of_its_jobs(tmp_path: Path) -> None:
    def event(body: object) -> Event:
        return Event(request_id=RequestId("c1"), sequence=1, time_ns=clock(), body=body)  # type: ignore[arg-type]

    ticks = iter(range(1, 1000))

    def clock() -> int:
        return (1_700_000_000 + next(ticks)) * 10**9

    with short_folder() as base, RunNotes(tmp_path, BuildId("run1"), ["make", "-j2"]):
        asyncio.run(_watch_a_run(base, tmp_path, event, clock))


async def _watch_a_run(base: Path, store: Path, event: Callable[[object], Event], clock: Callable[[], int]) -> None:
    async with reading(base, store) as live:
        await heard(live, lambda: "run1" in live.pictures)
        assert live.pictures["run1"].head.command == "make -j2"
        told = [event(Queued(job_id=JobId(1), action="a.c", reasons=("never built before",)))]
        told.append(event(Started(job_id=JobId(1), action="a.c", command="gcc -c " + "x" * 1000, kind="gcc")))
        told.append(event(Finished(job_id=JobId(1), action="a.c", timing=Timing(wall_s=1.0, peak_rss_bytes=7))))
        run_log.note_job(store, "run1", told)
        run_log.note_memory(store, "run1", clock(), Progress(done=1, total=0, memory_bytes=5, budget_bytes=9))
        run_log.note_job(store, "run1", [event(CacheHit(job_id=JobId(0), action="b.c", reason="same inputs"))])
        await heard(live, lambda: len(live.pictures["run1"].bars) == 2)
        change = live.pictures["run1"].since(0)
        assert [bar.outcome for bar in change.bars] == [BarOutcome.BUILT, BarOutcome.HIT]
        assert [(sample.used_bytes, sample.budget_bytes) for sample in change.samples] == [(5, 9)]
        assert len(change.bars[0].command) < 500
        shim = notes_of(store) / "run1"
        shim.write_bytes(b"x" * 40 * 3)
        await heard(live, lambda: live.now.builds[0].hits == 3)
        run_log.note_job(store, "run2", told)
        assert not os.path.exists(store / "answers" / "failed" / "run2.jobs"), "no such run goes on"


def notes_of(store: Path) -> Path:
    """The folder of the files to which shims add their hits."""
    return answers.prepare(store) / answers.NOTES


def test_an_observer_does_not_keep_a_request_going() -> None:
    """`buildd build` is killed while a page shows it: the build ends as it would without the page."""
    with short_folder() as base:
        handler = FakeHandler()
        handler.manual = True
        with serving(base, handler=handler) as served, served.client() as client:
            client.submit(a_request("r1", on_disconnect=OnDisconnect.CANCEL))
            until(lambda: RequestId("r1") in handler.logs, "the request has come")

            async def watch() -> None:
                from protocol.aio import AsyncClient
                from protocol.session import Route

                async with AsyncClient(Route.local(served.server.endpoint()), timeout_s=DEADLINE_S) as page:
                    events = await page.follow(RequestId("r1"), observe=True)
                    served.on_loop(lambda: handler.logs[RequestId("r1")].append(Planned(targets=(), actions=1)))
                    first = await anext(events)
                    assert isinstance(first.body, Planned)
                    await asyncio.to_thread(client.close)
                    async for event in events:
                        if isinstance(event.body, Done):
                            assert event.body.outcome is Outcome.CANCELLED
                            return

            asyncio.run(asyncio.wait_for(watch(), DEADLINE_S))
        assert handler.cancelled == ["r1"]
