"""What the daemon does now, for open pages: its status, and the pictures of builds that go on.

Asks only while a page is open. A target's build is followed from its first event, once it is old enough to be worth it;
what a `buildd run` compiles is read from its file in the store. A daemon that ends, or starts again, is no error: the
next look finds another one, or none. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import msgspec

from buildd.shims import run_log
from buildd.store.hit_notes import name_of, noted_so_far
from buildd.web.timeline import Timeline
from protocol.aio import AsyncClient
from protocol.client import find
from protocol.endpoint import Endpoint, runtime_folder
from protocol.errors import ProtocolError
from protocol.messages import BuildFigures, Done, Mode, RequestStatus, Status
from protocol.session import Route

EVERY_S = 1.0
BUSY_EVERY_S = 2.0
"""While jobs run: the browser that draws each moment takes its time from the same processors."""
FOLLOW_AFTER_S = 0.4
"""A build that is over sooner is read from the store."""
_MOST_PICTURES = 32
_ANSWER_S = 3.0
_FOLLOWED = (Mode.BUILD, Mode.WARM)


class LiveBuild(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A build that goes on."""

    id: str
    project: str
    what: str = ""
    is_run: bool = False
    elapsed_s: float = 0.0
    done: int = 0
    total: int = 0
    running: int = 0
    waiting: int = 0
    hits: int = 0
    misses: int = 0


class Now(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The daemon at one moment; `state` is "stopped" where there is none."""

    state: str = "stopped"
    instance: str = ""
    daemon: str = ""
    uptime_s: float = 0.0
    rss_bytes: int = 0
    cpus: int = 0
    running: int = 0
    queued: int = 0
    waiting_for: str = ""
    memory_bytes: int = 0
    budget_bytes: int = 0
    hits_per_s: float = 0.0
    builds: tuple[LiveBuild, ...] = ()


class Live:
    """The moments, for any number of readers.

    Args:
        environ: says where the daemon is.
        store: folder of the store with the files of runs that go on.
    """

    def __init__(self, environ: Mapping[str, str], store: Path) -> None:
        self.now = Now()
        self.pictures: OrderedDict[str, Timeline] = OrderedDict()
        """The pictures of builds that go on, and of those that ended last."""
        self._environ = environ
        self._store = store
        self._readers = 0
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._client: AsyncClient | None = None
        self._instance = ""
        self._following: dict[str, asyncio.Task[None]] = {}
        self._runs: dict[str, int] = {}
        """Run -> how much of its file has been read."""
        self._counted: tuple[float, int] | None = None

    @contextlib.asynccontextmanager
    async def reader(self) -> AsyncIterator[None]:
        """While a reader is there, the daemon is asked."""
        self._readers += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._ask())
        try:
            yield
        finally:
            self._readers -= 1

    async def changed(self, timeout_s: float) -> bool:
        """Wait for the next moment; False if none came in time."""
        event = self._changed
        try:
            await asyncio.wait_for(event.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._disconnect()

    # ------------------------------------------------------------ asking

    async def _ask(self) -> None:
        while self._readers:
            began_s = time.monotonic()
            try:
                await self._look()
            except (ProtocolError, OSError):
                await self._disconnect()
                self.now = Now()
            self._changed.set()
            self._changed = asyncio.Event()
            # A picture of ten thousand actions takes a while: never more than a tenth of one processor.
            every_s = BUSY_EVERY_S if self.now.running > 0 else EVERY_S
            await asyncio.sleep(max(every_s, 10 * (time.monotonic() - began_s)))
        await self._disconnect()

    async def _look(self) -> None:
        endpoint = await asyncio.to_thread(self._endpoint)
        if endpoint is None or endpoint.instance != self._instance:
            await self._disconnect()
        if endpoint is None:
            self.now = Now(builds=tuple(self._run_lines(None)))
            return
        if self._client is None:
            self._client = AsyncClient(
                Route.local(endpoint), environ=self._environ, timeout_s=_ANSWER_S, name="buildd-ui"
            )
            self._instance = endpoint.instance
        status = await self._client.status()
        self.now = self._moment(status)
        for work in status.work:
            wanted = work.mode in _FOLLOWED and work.elapsed_s >= FOLLOW_AFTER_S
            if wanted and work.request_id not in self._following:
                self._following[work.request_id] = asyncio.create_task(self._follow(self._client, work))

    def _endpoint(self) -> Endpoint | None:
        try:
            return find(runtime_folder(self._environ))
        except ProtocolError:
            return None

    async def _disconnect(self) -> None:
        tasks, self._following = list(self._following.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        client, self._client, self._instance = self._client, None, ""
        self._counted = None
        if client is not None:
            await client.close()

    async def _follow(self, client: AsyncClient, work: RequestStatus) -> None:
        picture = Timeline()
        self._keep(work.request_id, picture)
        try:
            async for event in await client.follow(work.request_id, observe=True):
                picture.add(event)
                if isinstance(event.body, Done):
                    break
        except ProtocolError:
            pass  # the daemon has ended, or does not know the build any more: what is known stays on the page
        finally:
            picture.close()

    def _keep(self, name: str, picture: Timeline) -> None:
        self.pictures[name] = picture
        self.pictures.move_to_end(name)
        while len(self.pictures) > _MOST_PICTURES:
            self.pictures.popitem(last=False)

    # ------------------------------------------------------------ figures

    def _moment(self, status: Status) -> Now:
        hits = status.counters.get("hits", 0) + sum(noted_so_far(self._store).values())
        now_s = time.monotonic()
        rate = 0.0
        if self._counted is not None and now_s > self._counted[0]:
            rate = max(0, hits - self._counted[1]) / (now_s - self._counted[0])
        self._counted = (now_s, hits)
        lines = list(self._run_lines(status))
        runs = {line.id for line in lines}
        for work in status.work:
            if work.mode is Mode.COMPILE or work.build_id in runs:
                continue
            picture = self.pictures.get(work.request_id)
            head = picture.head if picture is not None else None
            lines.append(
                LiveBuild(
                    id=work.request_id,
                    project=work.project,
                    what=f"{work.mode.value} {work.what}".strip(),
                    elapsed_s=work.elapsed_s,
                    done=head.done if head is not None else 0,
                    total=head.total if head is not None else 0,
                    running=work.jobs_running,
                    waiting=work.jobs_waiting,
                )
            )
        return Now(
            state=status.state,
            instance=status.instance,
            daemon=status.daemon,
            uptime_s=status.uptime_s,
            rss_bytes=status.rss_bytes,
            cpus=status.cpus,
            running=len(status.running),
            queued=status.queued,
            waiting_for=status.waiting_for,
            memory_bytes=sum(job.memory_bytes for job in status.running),
            budget_bytes=status.budget_bytes,
            hits_per_s=rate,
            builds=tuple(lines),
        )

    def _run_lines(self, status: Status | None) -> list[LiveBuild]:
        """The runs that go on; their pictures get what was written since the last look."""
        lines = []
        there = run_log.running(self._store)
        for name in [name for name in self._runs if name not in {run.build_id for run in there}]:
            del self._runs[name]
            if (ended := self.pictures.get(name)) is not None:
                ended.close()
        direct = noted_so_far(self._store) if there else {}
        for run in there:
            picture = self.pictures.get(run.build_id)
            if picture is None or run.build_id not in self._runs:
                picture = Timeline(is_run=True)
                picture.head.began_ns, picture.head.command = run.started_ns, run.command
                self._keep(run.build_id, picture)
                self._runs[run.build_id] = 0
            news = run_log.jobs_so_far(self._store, run, self._runs[run.build_id])
            if news is not None:
                events, self._runs[run.build_id] = news
                for event in events:
                    picture.add(event)
            works = [each for each in status.work if each.build_id == run.build_id] if status is not None else []
            figures = status.builds.get(run.build_id) if status is not None else None
            head = picture.head
            head.elapsed_s = max(head.elapsed_s, (time.time_ns() - run.started_ns) / 1e9)
            head.running = sum(each.jobs_running for each in works)
            # Another daemon than before begins to count again.
            ours = figures if figures is not None else BuildFigures()
            head.hits = max(head.hits, ours.hits + direct.get(name_of(run.build_id), 0))
            head.misses, head.failures = max(head.misses, ours.misses), max(head.failures, ours.failures)
            lines.append(
                LiveBuild(
                    id=run.build_id,
                    project=run.project,
                    what=run.command,
                    is_run=True,
                    elapsed_s=head.elapsed_s,
                    running=head.running,
                    waiting=sum(each.jobs_waiting > 0 and not each.jobs_running for each in works),
                    hits=head.hits,
                    misses=head.misses,
                )
            )
        return lines
