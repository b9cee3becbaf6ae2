"""What a watch says: every change of content, once, and nothing else."""

from __future__ import annotations

import asyncio
import itertools
import mmap
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from estate import until
from floor import DEADLINE_S, Floor, Shop, Story, fake_plan

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
            came, loop = asyncio.Event(), asyncio.get_running_loop()
            stop = self.log.listen(partial(_wake, loop, came))
            try:
                if not self.log.after(seen, 1):
                    await asyncio.wait_for(came.wait(), left)
            except TimeoutError:
                raise AssertionError(f"no {kind.__name__} came; told: {self.told()}") from None
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


def test_headers_of_a_result_that_is_not_stored_count_too(floor: Floor) -> None:
    floor.write("src/a.cu", '#include "x.h"\n__TIME__\n')

    async def go() -> None:
        async with watching(floor) as (shop, watcher):
            await shop.build(floor.request())
            await watcher.next(m.Watching)
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


def test_a_network_file_system_is_polled_and_said(floor: Floor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "SWEEP_S", 0.05)
    monkeypatch.setattr(hints, "file_system_of", lambda path: "nfs4")

    async def go() -> None:
        async with Shop(floor) as shop:
            watcher = Watcher(shop)
            said = await watcher.next(m.Watching)
            assert isinstance(said, m.Watching) and str(floor.project / "src") in said.polled
            known = floor.request().request_id
            for text in ("one\n", "two\n"):
                floor.write("src/b.cu", text)
                await watcher.changes({"src/b.cu"})
                request = floor.request(known=known)
                assert "b.cu.o" in (await built(shop, request)).ran()
                known = request.request_id

    asyncio.run(go())


UNREADABLE = """
import asyncio, sys
from pathlib import Path
from buildd import watches
from protocol import messages as m
from tests.floor import Floor
from tests.test_watch import watching

watches.SWEEP_S = 0.05
floor = Floor(Path(sys.argv[1]))
for name in ("src/a.cu", "src/b.cu", "first/known.h"):
    floor.write(name, name)
(floor.project / "first").chmod(0o300)

async def go():
    async with watching(floor) as (shop, watcher):
        first, *others = watcher.told()
        assert isinstance(first, m.Watching), "whoever watches builds at this"
        words = [body.text for body in others if isinstance(body, m.Notice)]
        (watch,) = shop.scheduler.intake.watches._watches.values()
        assert watch.polled == (f"{floor.project}/first",), watch.polled
        floor.write("src/b.cu", "other")
        assert await watcher.change() == {"src/b.cu"}, "the rest is watched"
        print(*words, sep="\\n")

asyncio.run(go())
"""


@pytest.mark.skipif(os.geteuid() == 0 and shutil.which("setpriv") is None, reason="root, and no setpriv to be less")
def test_a_folder_that_may_not_be_read_is_said_once_and_the_rest_is_watched(tmp_path: Path) -> None:
    # Root may read everything but for want of its capabilities.
    less = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [*less, sys.executable, "-c", UNREADABLE, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{root}/tests"},
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_S,
    )
    (tmp_path / "project/first").chmod(0o700)
    assert done.returncode == 0, done.stderr
    words = f"{tmp_path}/project/first may not be read: its files are looked at every few seconds, and new ones are not"
    assert done.stdout.splitlines() == [f"{words} noticed (chmod u+r makes it watched)"]


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


def test_a_barrier_outlives_the_store_that_its_files_were_made_in(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir(), other.mkdir()
    watched = Hints(lambda: None)
    try:
        assert watched.barrier(one)
        shutil.rmtree(one)
        until(lambda: watched.barrier(other), "no barrier any more")  # as soon as it is seen that the first is gone
        assert not one.exists()
    finally:
        watched.close()


def test_of_what_no_save_touched_nothing_is_looked_up_or_told(floor: Floor) -> None:
    async def go() -> None:
        async with watching(floor) as (shop, _):
            first = await settled(shop, floor)
            floor.write("src/b.cu", "saved\n")
            request = floor.request(known=first.request_id)
            story = await built(shop, request)
            assert story.done.misses == 2 and story.done.hits == 1
            assert story.ran() == ["b.cu.o", "all.so"] and not story.of(m.CacheHit)
            assert floor.library == await clean(floor)
            floor.write("include/x.h", "and a header\n")
            second = floor.request(known=request.request_id)
            story = await shop.build(second)
            assert story.ran() == ["a.cu.o", "all.so"] and story.done.hits == 1 and not story.of(m.CacheHit)
            assert floor.library == await clean(floor)
            floor.write("include/x.h", "for somebody else\n")
            assert [hit.action for hit in (await shop.build(floor.request())).of(m.CacheHit)] == ["b.cu.o"]

    asyncio.run(go())


def test_whatever_is_touched_the_next_build_is_right(floor: Floor) -> None:
    """Saves that are followed by a build which begins with what stands."""
    include = floor.project / "include"

    def editor() -> None:
        for name in ("4913", "b.cu~"):
            floor.write(f"src/{name}", "b\n").unlink()
        floor.write("src/.b.cu.new", "as an editor\n").rename(floor.project / "src/b.cu")

    def link() -> None:
        (include / "x.h").unlink()
        (include / "x.h").symlink_to("one.h")

    def turn() -> None:
        (include / "turned").symlink_to("two.h")
        (include / "turned").rename(include / "x.h")

    changes: tuple[Callable[[], object], ...] = (
        lambda: floor.write("include/x.h", "header\n"),
        lambda: floor.write("first/x.h", "comes first\n"),
        (floor.project / "first/x.h").unlink,
        (floor.project / "build/a.cu.o").unlink,
        lambda: floor.write("build/a.cu.o", "damaged\n"),
        lambda: floor.write("build/all.so", "damaged\n"),
        editor,
        link,
        turn,
        lambda: floor.write("include/two.h", "behind the link\n"),
        lambda: os.utime(floor.project / "src/a.cu"),
        lambda: floor.write("src/c.cu", "c\n"),
        (floor.project / "src/c.cu").unlink,
    )

    async def go() -> None:
        for name in ("one", "two"):
            floor.write(f"include/{name}.h", f"{name}\n")
        async with watching(floor) as (shop, _):
            known, carried = (await settled(shop, floor)).request_id, 0
            for number, change in enumerate(changes):
                change()
                request = floor.request(known=known)
                story = await built(shop, request)
                assert story.done.outcome is m.Outcome.BUILT, number
                carried += story.done.hits - len(story.of(m.CacheHit))
                found, known = floor.library, request.request_id
                objects = [path.read_bytes() for path in sorted((floor.project / "build").glob("[ab].cu.o"))]
                await built(shop, floor.request(recache=True))
                assert found == floor.library, number
                assert objects == [p.read_bytes() for p in sorted((floor.project / "build").glob("[ab].cu.o"))], number
            assert carried >= 5, "it is of no use"

    asyncio.run(go())


def test_a_file_behind_a_linked_folder_is_looked_up(floor: Floor) -> None:
    """Its hint may have the name that the link leads to, or none."""
    shutil.rmtree(floor.project / "include")
    for name in ("one", "two"):
        (floor.project / name).mkdir()
        floor.write(f"{name}/x.h", f"{name}\n")
    (floor.project / "include").symlink_to("one")

    def turn() -> None:
        (floor.project / "turned").symlink_to("two")
        (floor.project / "turned").rename(floor.project / "include")

    async def go() -> None:
        async with watching(floor) as (shop, _):
            known = (await settled(shop, floor)).request_id
            changes = (
                lambda: floor.write("one/x.h", "behind\n"),
                lambda: floor.write("include/x.h", "through\n"),
                turn,
            )
            for change in changes:
                change()
                request = floor.request(known=known)
                story = await built(shop, request)
                assert "a.cu.o" in story.ran()
                known = request.request_id

    asyncio.run(go())


def test_what_said_something_says_it_again_and_is_looked_up(floor: Floor) -> None:
    floor.write("src/c.cu", '#include "x.h"\n//! warning careful\n')

    async def go() -> None:
        async with watching(floor) as (shop, _):
            known = (await settled(shop, floor)).request_id
            saves = (
                ("src/b.cu", "other\n", "b.cu.o"),
                ("src/c.cu", '#include "x.h"\n//! warning be careful\n', "c.cu.o"),
                ("include/x.h", "other\n", "c.cu.o"),
            )
            for path, text, ran in saves:
                floor.write(path, text)
                request = floor.request(known=known)
                story = await built(shop, request)
                assert ran in story.ran() and any("careful" in line.text for line in story.of(m.LogLine)), path
                assert floor.library == await clean(floor)
                known = request.request_id

    asyncio.run(go())


def test_what_is_saved_while_others_are_built_is_no_part_of_what_stands(floor: Floor) -> None:
    async def go() -> None:
        async with watching(floor) as (shop, _):
            known = (await settled(shop, floor)).request_id
            floor.write("src/b.cu", "//! touch started\n//! wait-for go\n")
            request = floor.request(known=known)
            log = shop.submit(request)
            await asyncio.wait_for(asyncio.to_thread(wait_for, floor.project / "started"), DEADLINE_S)
            floor.write("include/x.h", "meanwhile\n")
            floor.write("go", "")
            story = await shop.finish(log)
            assert not story.of(m.CacheHit), "a is not told of"
            assert "a.cu.o" in (await shop.build(floor.request(known=request.request_id))).ran()
            assert floor.library == await clean(floor)

    asyncio.run(go())


def test_a_file_that_gives_no_event_is_looked_up_once_it_is_found(
    floor: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "SWEEP_S", 0.05)

    async def go() -> None:
        async with watching(floor) as (shop, watcher):
            known = (await settled(shop, floor)).request_id
            with open(floor.project / "include/x.h", "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
                mapped[0:1] = b"c"
                mapped.flush()
            await watcher.changes({"include/x.h"})
            assert "a.cu.o" in (await shop.build(floor.request(known=known))).ran()

    asyncio.run(go())


def test_who_knows_another_build_is_told_of_everything(floor: Floor) -> None:
    async def go() -> None:
        async with watching(floor) as (shop, _):
            for folder in ("src", "include", "first", "."):
                os.utime(floor.project / folder, (1_700_000_000, 1_700_000_000))
            first = (await settled(shop, floor)).request_id
            known, brief = first, 0
            deadline = asyncio.get_running_loop().time() + DEADLINE_S
            while brief < 2:  # files grow old enough for their stamps to be trusted
                assert asyncio.get_running_loop().time() < deadline
                request = floor.request(known=known)
                story = await built(shop, request)
                assert story.done.hits == 3 and not story.of(m.CacheHit), "it knows as much as before"
                known, brief = request.request_id, brief + (story.done.message == "nothing to do")
            for known in ("", first):
                story = await built(shop, floor.request(known=known))
                assert {hit.action for hit in story.of(m.CacheHit)} == {"a.cu.o", "b.cu.o", "all.so"}

    asyncio.run(go())


async def settled(shop: Shop, floor: Floor) -> m.Request:
    """The first build after which the next one can begin with what stands."""
    bases = shop.scheduler.intake.watches._bases
    deadline = asyncio.get_running_loop().time() + DEADLINE_S
    for number in itertools.count():
        floor.write("src/b.cu", f"{number}\n")
        request = floor.request()
        await built(shop, request)
        if any(base.request_id == request.request_id and len(base.able) == 3 for base in bases.values()):
            return request
        assert asyncio.get_running_loop().time() < deadline
    raise AssertionError


async def built(shop: Shop, request: m.Request) -> Story:
    """A build, and what the watch has learned of it."""
    story = await shop.build(request)
    while not shop.scheduler.idle:
        await asyncio.sleep(0)
    return story


async def clean(floor: Floor) -> bytes:
    """What a build from nothing makes."""
    folder = floor.folder / "clean"
    shutil.rmtree(folder, ignore_errors=True)
    other = Floor(folder)
    shutil.copytree(floor.project, other.project, dirs_exist_ok=True, ignore=shutil.ignore_patterns("build"))
    async with Shop(other) as shop:
        assert (await shop.build(other.request())).done.outcome is m.Outcome.BUILT
    return other.library


def test_what_was_touched_since_a_moment(tmp_path: Path) -> None:
    watched = Hints(lambda: None, most=10)
    try:
        assert watched.watch([str(tmp_path)]) == ()
        assert watched.barrier(tmp_path)
        mark = watched.mark()
        (tmp_path / "a").write_text("a")
        assert watched.barrier(tmp_path)
        later = watched.mark()
        (tmp_path / "b").write_text("b")
        watched.note(["/c"])
        assert watched.barrier(tmp_path)
        assert set(watched.touched_since(later) or ()) == {f"{tmp_path}/b", "/c"}
        assert set(watched.touched_since(mark) or ()) == {f"{tmp_path}/a", f"{tmp_path}/b", "/c"}
        watched.missed()
        assert watched.touched_since(later) is None and watched.touched_since(watched.mark()) == []
        last = watched.mark()
        watched.watch([])
        assert watched.touched_since(last) is None, "what happens there gives no hint any more"
    finally:
        watched.close()
