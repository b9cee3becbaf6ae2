"""What a watch says: every change of content, once, and nothing else."""

from __future__ import annotations

import asyncio
import mmap
import os
import shutil
import threading
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from floor import DEADLINE_S, Floor, Shop, fake_plan

from buildd import hints, watches
from buildd.eventlog import RequestLog
from buildd.hints import Hints
from codegen.plan import Knowledge, Plan
from protocol import messages as m


def _wake(loop: asyncio.AbstractEventLoop, came: asyncio.Event, event: m.Event) -> None:
    loop.call_soon_threadsafe(came.set)


class Watcher:
    """A WATCH request of a shop, read event by event."""

    def __init__(self, shop: Shop, **fields: object) -> None:
        self.shop = shop
        self.request = shop.floor.request(mode=m.Mode.WATCH, **fields)
        self.log: RequestLog = shop.submit(self.request)
        self._read = 0

    async def next(self, kind: type[m.Body]) -> m.EventBody:
        """The next event of a kind; those before it are passed over."""
        deadline = asyncio.get_running_loop().time() + DEADLINE_S
        while True:
            for event in self.log.after(self._read, 1 << 30):
                self._read = event.sequence
                if isinstance(event.body, kind):
                    return event.body
            seen = self._read
            left = deadline - asyncio.get_running_loop().time()
            assert left > 0, self.told()
            came, loop = asyncio.Event(), asyncio.get_running_loop()
            stop = self.log.listen(partial(_wake, loop, came))
            try:
                if not self.log.after(seen, 1):
                    await asyncio.wait_for(came.wait(), left)
            finally:
                stop()

    async def change(self) -> set[str]:
        body = await self.next(m.Changed)
        assert isinstance(body, m.Changed)
        return set(body.paths)

    async def changes(self, wanted: Iterable[str]) -> None:
        """Until all of these were told."""
        missing = set(wanted)
        while missing:
            missing -= await self.change()

    def told(self) -> list[m.EventBody]:
        return [event.body for event in self.log.after(0, 1 << 30)]


@asynccontextmanager
async def watching(floor: Floor) -> AsyncIterator[tuple[Shop, Watcher]]:
    """A shop, and a watch of its targets that has begun."""
    async with Shop(floor) as shop:
        watcher = Watcher(shop)
        await watcher.next(m.Watching)
        yield shop, watcher


@pytest.fixture
def floor(tmp_path: Path) -> Floor:
    floor = Floor(tmp_path)
    floor.write("src/a.cu", '#include "x.h"\na\n')
    floor.write("src/b.cu", "b\n")
    floor.write("include/x.h", "x\n")
    return floor


def test_a_save_is_told_with_its_path(floor: Floor) -> None:
    async def go() -> None:
        async with watching(floor) as (_, watcher):
            floor.write("src/a.cu", "other\n")
            assert await watcher.change() == {"src/a.cu"}

    asyncio.run(go())


def test_headers_count_once_a_build_has_read_them(floor: Floor) -> None:
    async def go() -> None:
        async with watching(floor) as (shop, watcher):
            await shop.build(floor.request())
            more = await watcher.next(m.Watching)
            assert isinstance(more, m.Watching) and more.files >= 3
            floor.write("include/x.h", "y\n")
            assert await watcher.change() == {"include/x.h"}

    asyncio.run(go())


def test_a_header_saved_while_the_first_build_reads_it_is_told(floor: Floor) -> None:
    """Nobody knew that it counts when it was written."""
    floor.write("src/a.cu", '#include "x.h"\n//! touch started\n//! wait-for go\n')

    async def go() -> None:
        async with watching(floor) as (shop, watcher):
            log = shop.submit(floor.request())
            await asyncio.wait_for(asyncio.to_thread(wait_for, floor.project / "started"), DEADLINE_S)
            floor.write("include/x.h", "y\n")
            floor.write("go", "")
            await shop.finish(log)
            # The job saw it change and ran again, or the watch says so: either way the last build is of the new text.
            story = await shop.build(floor.request())
            assert story.done.outcome is m.Outcome.BUILT
            floor.write("include/x.h", "z\n")
            await watcher.changes({"include/x.h"})

    asyncio.run(go())


def wait_for(path: Path) -> None:
    tick = threading.Event()
    while not path.exists():
        tick.wait(0.005)


def test_a_touch_is_no_change_and_a_rename_over_a_file_is_one(floor: Floor) -> None:
    async def go() -> None:
        async with watching(floor) as (_, watcher):
            os.utime(floor.project / "src/a.cu")
            floor.write("src/b.cu", "b\n")  # the same again
            floor.write("new", "renamed\n").rename(floor.project / "src/a.cu")
            assert await watcher.change() == {"src/a.cu"}
            assert [body.paths for body in watcher.told() if isinstance(body, m.Changed)] == [("src/a.cu",)]

    asyncio.run(go())


def test_new_and_removed_sources_and_headers_that_come_first(floor: Floor) -> None:
    async def go() -> None:
        async with watching(floor) as (shop, watcher):
            await shop.build(floor.request())
            await watcher.next(m.Watching)
            floor.write("src/c.cu", "c\n")
            assert await watcher.change() == {"src/c.cu"}
            floor.write("first/x.h", "shadows\n")
            assert await watcher.change() == {"first/x.h"}
            (floor.project / "src/b.cu").unlink()
            assert await watcher.change() == {"src/b.cu"}

    asyncio.run(go())


def test_outputs_are_no_change(floor: Floor) -> None:
    async def go() -> None:
        async with watching(floor) as (shop, watcher):
            await shop.build(floor.request())
            (floor.project / "build/all.so").unlink()
            await shop.build(floor.request())
            floor.write("src/a.cu", "other\n")
            assert await watcher.change() == {"src/a.cu"}

    asyncio.run(go())


def test_after_a_failure_whatever_comes_may_mend_it(floor: Floor) -> None:
    floor.write("src/a.cu", '#include "missing.h"\n')

    async def go() -> None:
        async with watching(floor) as (shop, watcher):
            story = await shop.build(floor.request())
            assert story.done.outcome is m.Outcome.FAILED
            floor.write("include/missing.h", "found\n")
            await watcher.changes({"include/missing.h"})
            assert (await shop.build(floor.request())).done.outcome is m.Outcome.BUILT

    asyncio.run(go())


def test_a_folder_that_is_removed_and_comes_back_is_watched_again(floor: Floor) -> None:
    async def go() -> None:
        async with watching(floor) as (shop, watcher):
            await shop.build(floor.request())
            await watcher.next(m.Watching)
            kept = floor.folder / "kept"
            shutil.copytree(floor.project / "include", kept)
            shutil.rmtree(floor.project / "include")
            await watcher.changes({"include/x.h"})
            (kept / "x.h").write_text("filled at once\n")
            kept.rename(floor.project / "include")
            await watcher.changes({"include/x.h"})
            floor.write("include/x.h", "and again\n")
            await watcher.changes({"include/x.h"})

    asyncio.run(go())


def test_a_link_that_is_turned_is_a_change_of_what_it_led_to(floor: Floor) -> None:
    shutil.rmtree(floor.project / "include")
    for name in ("one", "two"):
        (floor.project / name).mkdir()
        floor.write(f"{name}/x.h", f"{name}\n")
    (floor.project / "include").symlink_to("one")

    async def go() -> None:
        async with watching(floor) as (shop, watcher):
            await shop.build(floor.request())
            await watcher.next(m.Watching)
            floor.write("one/x.h", "through the link\n")
            await watcher.changes({"include/x.h"})
            (floor.project / "turned").symlink_to("two")
            (floor.project / "turned").rename(floor.project / "include")
            await watcher.changes({"include/x.h"})

    asyncio.run(go())


def test_a_write_through_a_mapping_gives_no_event_and_is_found(floor: Floor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "SWEEP_S", 0.05)

    async def go() -> None:
        async with watching(floor) as (_, watcher):
            with open(floor.project / "src/b.cu", "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
                mapped[0:1] = b"c"
                mapped.flush()
            assert await watcher.change() == {"src/b.cu"}

    asyncio.run(go())


def test_beyond_the_share_of_the_limit_folders_are_polled(floor: Floor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "SWEEP_S", 0.05)
    monkeypatch.setattr(hints, "_limit", lambda: 1)

    async def go() -> None:
        async with Shop(floor) as shop:
            watcher = Watcher(shop)
            said = await watcher.next(m.Watching)
            assert isinstance(said, m.Watching) and said.polled
            for name in ("src/a.cu", "src/b.cu"):
                floor.write(name, "polled\n")
                await watcher.changes({name})

    asyncio.run(go())


def test_many_files_at_once_are_few_changes(floor: Floor) -> None:
    """As a checkout does."""
    names = [f"src/{number}.cu" for number in range(300)]
    for name in names:
        floor.write(name, "before\n")

    async def go() -> None:
        async with watching(floor) as (_, watcher):
            for name in names:
                floor.write(name, "after\n")
            told = 0
            while told < len(names):
                body = await watcher.next(m.Changed)
                assert isinstance(body, m.Changed)
                told += len(body.paths) + body.more
            assert told == len(names)
            assert sum(isinstance(body, m.Changed) for body in watcher.told()) < 30

    asyncio.run(go())


def test_an_overflow_has_everything_looked_at(floor: Floor) -> None:
    """The hints themselves are lost: only that they were lost is known."""

    async def go() -> None:
        async with watching(floor) as (shop, watcher):
            said = shop.scheduler.intake.watches._hints
            with said._lock:  # no hint comes through meanwhile
                pass
            folders = list(said._folders.values())
            said.watch(())
            floor.write("src/a.cu", "unseen\n")
            for folder in folders:
                folder.on_queue_overflow()
            assert await watcher.change() == {"src/a.cu"}

    asyncio.run(go())


def test_a_watch_ends_when_it_is_cancelled_and_nothing_is_left(floor: Floor) -> None:
    async def go() -> None:
        async with watching(floor) as (shop, watcher):
            assert shop.scheduler.cancel(watcher.request.request_id)
            done = await watcher.next(m.Done)
            assert isinstance(done, m.Done) and done.outcome is m.Outcome.CANCELLED
            assert len(shop.scheduler.intake.watches) == 0
            assert not shop.scheduler.cancel(watcher.request.request_id)

    asyncio.run(go())


def test_what_was_saved_is_looked_up_before_the_rest(floor: Floor) -> None:
    """Among ten thousand actions the one that somebody waits for is not the last."""

    async def go() -> None:
        async with watching(floor) as (shop, watcher):
            await shop.build(floor.request())
            await watcher.next(m.Watching)
            floor.write("src/b.cu", "saved\n")
            assert await watcher.change() == {"src/b.cu"}
            story = await shop.build(floor.request())
            first = next(body for body in story if isinstance(body, m.Queued | m.CacheHit))
            assert isinstance(first, m.Queued) and first.action == "b.cu.o"

    asyncio.run(go())


def test_a_watched_project_is_planned_anew_only_where_that_matters(floor: Floor) -> None:
    plans: list[m.RequestId] = []

    def make(request: m.Request, knowledge: Knowledge) -> Plan:
        plans.append(request.request_id)
        return fake_plan(request, knowledge)

    floor.options["make"] = make

    async def go() -> None:
        async with watching(floor) as (shop, _):
            deadline = asyncio.get_running_loop().time() + DEADLINE_S
            before = -1
            while before != len(plans):  # the folder of the sources grows old enough for its stamp to be trusted
                assert asyncio.get_running_loop().time() < deadline
                before = len(plans)
                floor.write("include/x.h", f"{before}\n")
                assert (await shop.build(floor.request())).done.misses > 0
            await shop.build(floor.request(environment={"PATH": "/usr/bin:/bin", "OTHER": "1"}))
            assert len(plans) == before + 1, "somebody else's request"
            floor.write("src/c.cu", "c\n")
            assert "c.cu.o" in (await shop.build(floor.request())).ran()
            assert len(plans) == before + 2

    asyncio.run(go())


def test_every_write_before_a_request_is_in_its_answer(floor: Floor) -> None:
    """Write, then build: never a stale answer, watched or not."""

    async def go() -> None:
        async with watching(floor) as (shop, _):
            seen = set()
            for number in range(40):
                floor.write("include/x.h", f"{number}\n")
                story = await shop.build(floor.request())
                assert story.done.outcome is m.Outcome.BUILT
                seen.add(floor.library)
            assert len(seen) == 40

    asyncio.run(go())


def test_an_untouched_tree_is_answered_without_a_look_and_a_touched_one_with(floor: Floor) -> None:
    async def go() -> None:
        async with watching(floor) as (shop, watcher):
            await shop.build(floor.request())
            await watcher.next(m.Watching)
            for folder in ("src", "include", "first", "build", "."):
                os.utime(floor.project / folder, (1_700_000_000, 1_700_000_000))
            watched = shop.scheduler.intake.watches
            deadline = asyncio.get_running_loop().time() + DEADLINE_S
            while not watched._verified:  # files grow old enough for their stamps to be trusted
                assert asyncio.get_running_loop().time() < deadline
                assert (await shop.build(floor.request())).done.misses == 0
            (verified,) = watched._verified.values()
            assert not any(path.startswith(os.fsencode(floor.project)) for path in verified.paths)
            assert (await shop.build(floor.request())).done.message == "nothing to do"
            floor.write("include/x.h", "other\n")
            assert (await shop.build(floor.request())).done.misses == 2
            (floor.project / "build/all.so").unlink()
            assert (await shop.build(floor.request())).done.hits == 3
            assert floor.library

    asyncio.run(go())


def test_hints_name_what_was_touched(tmp_path: Path) -> None:
    told = threading.Event()
    watched = Hints(told.set)
    try:
        assert watched.watch([str(tmp_path)]) == ()
        (tmp_path / "a").write_text("a")
        assert told.wait(DEADLINE_S)
        paths, missed = watched.take()
        assert paths == {f"{tmp_path}/a"} and not missed
        assert watched.watch([str(tmp_path / "none")]) == (str(tmp_path / "none"),)
    finally:
        watched.close()
