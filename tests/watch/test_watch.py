"""What a watch says: every change of content, once, and nothing else."""

from __future__ import annotations

import asyncio
import mmap
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest

from buildd.watch import folder_events, watches
from buildd.watch.folder_events import Hints
from codegen.plan import Knowledge, Plan
from protocol import messages as m
from tests.support.paths import ROOT
from tests.support.scheduler_harness import DEADLINE_S, Harness, Workspace, fake_plan
from tests.support.waiting import until
from tests.support.watch_request import Watcher, built, clean, settled, wait_for, watching


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    workspace = Workspace(tmp_path)
    workspace.write("src/a.cu", '#include "x.h"\na\n')
    workspace.write("src/b.cu", "b\n")
    workspace.write("include/x.h", "x\n")
    return workspace


def test_a_save_is_told_with_its_path(workspace: Workspace) -> None:
    async def go() -> None:
        async with watching(workspace) as (_, watcher):
            workspace.write("src/a.cu", "other\n")
            assert await watcher.change() == {"src/a.cu"}

    asyncio.run(go())


def test_headers_count_once_a_build_has_read_them(workspace: Workspace) -> None:
    async def go() -> None:
        async with watching(workspace) as (harness, watcher):
            await harness.build(workspace.request())
            more = await watcher.next(m.Watching)
            assert isinstance(more, m.Watching) and more.files >= 3
            workspace.write("include/x.h", "y\n")
            assert await watcher.change() == {"include/x.h"}

    asyncio.run(go())


def test_headers_of_a_result_that_is_not_stored_count_too(workspace: Workspace) -> None:
    workspace.write("src/a.cu", '#include "x.h"\n__TIME__\n')

    async def go() -> None:
        async with watching(workspace) as (harness, watcher):
            await harness.build(workspace.request())
            await watcher.next(m.Watching)
            workspace.write("include/x.h", "y\n")
            assert await watcher.change() == {"include/x.h"}

    asyncio.run(go())


def test_a_header_saved_while_the_first_build_reads_it_is_told(workspace: Workspace) -> None:
    """When the file was written it was not known to count."""
    workspace.write("src/a.cu", '#include "x.h"\n//! touch started\n//! wait-for go\n')

    async def go() -> None:
        async with watching(workspace) as (harness, watcher):
            log = harness.submit(workspace.request())
            await asyncio.wait_for(asyncio.to_thread(wait_for, workspace.project / "started"), DEADLINE_S)
            workspace.write("include/x.h", "y\n")
            workspace.write("go", "")
            await harness.finish(log)
            # The job saw it change and ran again, or the watch says so: either way the last build is of the new text.
            story = await harness.build(workspace.request())
            assert story.done.outcome is m.Outcome.BUILT
            workspace.write("include/x.h", "z\n")
            await watcher.changes({"include/x.h"})

    asyncio.run(go())


def test_a_touch_is_no_change_and_a_rename_over_a_file_is_one(workspace: Workspace) -> None:
    async def go() -> None:
        async with watching(workspace) as (_, watcher):
            os.utime(workspace.project / "src/a.cu")
            workspace.write("src/b.cu", "b\n")  # the same again
            workspace.write("new", "renamed\n").rename(workspace.project / "src/a.cu")
            assert await watcher.change() == {"src/a.cu"}
            assert [body.paths for body in watcher.told() if isinstance(body, m.Changed)] == [("src/a.cu",)]

    asyncio.run(go())


def test_new_and_removed_sources_and_headers_that_come_first(workspace: Workspace) -> None:
    async def go() -> None:
        async with watching(workspace) as (harness, watcher):
            await harness.build(workspace.request())
            await watcher.next(m.Watching)
            workspace.write("src/c.cu", "c\n")
            assert await watcher.change() == {"src/c.cu"}
            workspace.write("first/x.h", "shadows\n")
            assert await watcher.change() == {"first/x.h"}
            (workspace.project / "src/b.cu").unlink()
            assert await watcher.change() == {"src/b.cu"}

    asyncio.run(go())


def test_outputs_are_no_change(workspace: Workspace) -> None:
    async def go() -> None:
        async with watching(workspace) as (harness, watcher):
            await harness.build(workspace.request())
            (workspace.project / "build/all.so").unlink()
            await harness.build(workspace.request())
            workspace.write("src/a.cu", "other\n")
            assert await watcher.change() == {"src/a.cu"}

    asyncio.run(go())


def test_the_object_of_a_source_that_came_is_no_change(workspace: Workspace) -> None:
    """It comes to a folder in which new names count: the linker would look there too."""

    def make(request: m.Request, knowledge: Knowledge) -> Plan:
        plan = fake_plan(request, knowledge)
        *compiles, link = plan.actions
        return msgspec.structs.replace(plan, actions=(*compiles, msgspec.structs.replace(link, search=("build",))))

    workspace.options["make"] = make

    async def go() -> None:
        async with watching(workspace) as (harness, watcher):
            await harness.build(workspace.request())
            workspace.write("src/c.cu", "c\n")
            workspace.write("src/d.cu", "//! wait-for go\n")
            await watcher.changes({"src/c.cu", "src/d.cu"})
            log = harness.submit(workspace.request())
            await asyncio.wait_for(asyncio.to_thread(wait_for, workspace.project / "build/c.cu.o"), DEADLINE_S)
            workspace.write("src/a.cu", "other\n")
            assert await watcher.change() == {"src/a.cu"}
            workspace.write("go", "")
            await harness.finish(log)

    asyncio.run(go())


def test_after_a_failure_whatever_comes_may_mend_it(workspace: Workspace) -> None:
    workspace.write("src/a.cu", '#include "missing.h"\n')

    async def go() -> None:
        async with watching(workspace) as (harness, watcher):
            story = await harness.build(workspace.request())
            assert story.done.outcome is m.Outcome.FAILED
            workspace.write("include/missing.h", "found\n")
            await watcher.changes({"include/missing.h"})
            assert (await harness.build(workspace.request())).done.outcome is m.Outcome.BUILT

    asyncio.run(go())


def test_a_folder_that_is_removed_and_comes_back_is_watched_again(workspace: Workspace) -> None:
    async def go() -> None:
        async with watching(workspace) as (harness, watcher):
            await harness.build(workspace.request())
            await watcher.next(m.Watching)
            kept = workspace.folder / "kept"
            shutil.copytree(workspace.project / "include", kept)
            shutil.rmtree(workspace.project / "include")
            await watcher.changes({"include/x.h"})
            (kept / "x.h").write_text("filled at once\n")
            kept.rename(workspace.project / "include")
            await watcher.changes({"include/x.h"})
            workspace.write("include/x.h", "and again\n")
            await watcher.changes({"include/x.h"})

    asyncio.run(go())


def test_a_link_that_is_turned_is_a_change_of_what_it_led_to(workspace: Workspace) -> None:
    shutil.rmtree(workspace.project / "include")
    for name in ("one", "two"):
        (workspace.project / name).mkdir()
        workspace.write(f"{name}/x.h", f"{name}\n")
    (workspace.project / "include").symlink_to("one")

    async def go() -> None:
        async with watching(workspace) as (harness, watcher):
            await harness.build(workspace.request())
            await watcher.next(m.Watching)
            workspace.write("one/x.h", "through the link\n")
            await watcher.changes({"include/x.h"})
            (workspace.project / "turned").symlink_to("two")
            (workspace.project / "turned").rename(workspace.project / "include")
            await watcher.changes({"include/x.h"})

    asyncio.run(go())


def test_a_write_through_a_mapping_gives_no_event_and_is_found(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "SWEEP_S", 0.05)

    async def go() -> None:
        async with watching(workspace) as (_, watcher):
            with open(workspace.project / "src/b.cu", "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
                mapped[0:1] = b"c"
                mapped.flush()
            assert await watcher.change() == {"src/b.cu"}

    asyncio.run(go())


def test_beyond_the_share_of_the_limit_folders_are_polled(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "SWEEP_S", 0.05)
    monkeypatch.setattr(folder_events, "_limit", lambda: 1)

    async def go() -> None:
        async with Harness(workspace) as harness:
            watcher = Watcher(harness)
            said = await watcher.next(m.Watching)
            assert isinstance(said, m.Watching) and said.polled
            for name in ("src/a.cu", "src/b.cu"):
                workspace.write(name, "polled\n")
                await watcher.changes({name})

    asyncio.run(go())


def test_a_network_file_system_is_polled_and_said(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "SWEEP_S", 0.05)
    monkeypatch.setattr(folder_events, "network_file_system", lambda path: "nfs4")

    async def go() -> None:
        async with Harness(workspace) as harness:
            watcher = Watcher(harness)
            said = await watcher.next(m.Watching)
            assert isinstance(said, m.Watching) and str(workspace.project / "src") in said.polled
            known = workspace.request().request_id
            for text in ("one\n", "two\n"):
                workspace.write("src/b.cu", text)
                await watcher.changes({"src/b.cu"})
                request = workspace.request(known=known)
                assert "b.cu.o" in (await built(harness, request)).ran()
                known = request.request_id

    asyncio.run(go())


UNREADABLE = """
import asyncio, sys
from pathlib import Path
from buildd.watch import watches
from protocol import messages as m
from tests.support.scheduler_harness import Workspace
from tests.support.watch_request import watching

watches.SWEEP_S = 0.05
workspace = Workspace(Path(sys.argv[1]))
for name in ("src/a.cu", "src/b.cu", "first/known.h"):
    workspace.write(name, name)
(workspace.project / "first").chmod(0o300)

async def go():
    async with watching(workspace) as (harness, watcher):
        first, *others = watcher.told()
        assert isinstance(first, m.Watching), "a client that watches builds at this"
        words = [body.text for body in others if isinstance(body, m.Notice)]
        (watch,) = harness.scheduler.intake.watches._watches.values()
        assert watch.polled == (f"{workspace.project}/first",), watch.polled
        workspace.write("src/b.cu", "other")
        assert await watcher.change() == {"src/b.cu"}, "the rest is watched"
        print(*words, sep="\\n")

asyncio.run(go())
"""


@pytest.mark.skipif(os.geteuid() == 0 and shutil.which("setpriv") is None, reason="root, and no setpriv to be less")
def test_a_folder_that_may_not_be_read_is_said_once_and_the_rest_is_watched(tmp_path: Path) -> None:
    # Root may read everything but for want of its capabilities.
    less = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
    root = ROOT
    done = subprocess.run(
        [*less, sys.executable, "-c", UNREADABLE, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_S,
    )
    (tmp_path / "project/first").chmod(0o700)
    assert done.returncode == 0, done.stderr
    words = f"{tmp_path}/project/first may not be read: its files are looked at every few seconds, and new ones are not"
    assert done.stdout.splitlines() == [f"{words} noticed (chmod u+r makes it watched)"]


def test_many_files_at_once_are_few_changes(workspace: Workspace) -> None:
    """As a checkout does."""
    names = [f"src/{number}.cu" for number in range(300)]
    for name in names:
        workspace.write(name, "before\n")

    async def go() -> None:
        async with watching(workspace) as (_, watcher):
            for name in names:
                workspace.write(name, "after\n")
            told = 0
            while told < len(names):
                body = await watcher.next(m.Changed)
                assert isinstance(body, m.Changed)
                told += len(body.paths) + body.more
            assert told == len(names)
            assert sum(isinstance(body, m.Changed) for body in watcher.told()) < 30

    asyncio.run(go())


def test_an_overflow_has_everything_looked_at(workspace: Workspace) -> None:
    """The hints themselves are lost: only that they were lost is known."""

    async def go() -> None:
        async with watching(workspace) as (harness, watcher):
            said = harness.scheduler.intake.watches._hints
            with said._lock:  # no hint comes through meanwhile
                pass
            folders = list(said._folders.values())
            said.watch(())
            workspace.write("src/a.cu", "unseen\n")
            for folder in folders:
                folder.on_queue_overflow()
            assert await watcher.change() == {"src/a.cu"}

    asyncio.run(go())


def test_a_watch_ends_when_it_is_cancelled_and_nothing_is_left(workspace: Workspace) -> None:
    async def go() -> None:
        async with watching(workspace) as (harness, watcher):
            assert harness.scheduler.cancel(watcher.request.request_id)
            done = await watcher.next(m.Done)
            assert isinstance(done, m.Done) and done.outcome is m.Outcome.CANCELLED
            assert len(harness.scheduler.intake.watches) == 0
            assert not harness.scheduler.cancel(watcher.request.request_id)

    asyncio.run(go())


def test_what_was_saved_is_looked_up_before_the_rest(workspace: Workspace) -> None:
    """Among ten thousand actions the one that the user waits for is not the last."""

    async def go() -> None:
        async with watching(workspace) as (harness, watcher):
            await harness.build(workspace.request())
            await watcher.next(m.Watching)
            workspace.write("src/b.cu", "saved\n")
            assert await watcher.change() == {"src/b.cu"}
            story = await harness.build(workspace.request())
            first = next(body for body in story if isinstance(body, m.Queued | m.CacheHit))
            assert isinstance(first, m.Queued) and first.action == "b.cu.o"

    asyncio.run(go())


def test_a_watched_project_is_planned_anew_only_where_that_matters(workspace: Workspace) -> None:
    plans: list[m.RequestId] = []

    def make(request: m.Request, knowledge: Knowledge) -> Plan:
        plans.append(request.request_id)
        return fake_plan(request, knowledge)

    workspace.options["make"] = make

    async def go() -> None:
        async with watching(workspace) as (harness, _):
            deadline = asyncio.get_running_loop().time() + DEADLINE_S
            before = -1
            while before != len(plans):  # the folder of the sources grows old enough for its stamp to be trusted
                assert asyncio.get_running_loop().time() < deadline
                before = len(plans)
                workspace.write("include/x.h", f"{before}\n")
                assert (await harness.build(workspace.request())).done.misses > 0
            await harness.build(workspace.request(environment={"PATH": "/usr/bin:/bin", "OTHER": "1"}))
            assert len(plans) == before + 1, "the request of another client"
            workspace.write("src/c.cu", "c\n")
            assert "c.cu.o" in (await harness.build(workspace.request())).ran()
            assert len(plans) == before + 2

    asyncio.run(go())


def test_every_write_before_a_request_is_in_its_answer(workspace: Workspace) -> None:
    """Write, then build: never a stale answer, watched or not."""

    async def go() -> None:
        async with watching(workspace) as (harness, _):
            seen = set()
            for number in range(40):
                workspace.write("include/x.h", f"{number}\n")
                story = await harness.build(workspace.request())
                assert story.done.outcome is m.Outcome.BUILT
                seen.add(workspace.library)
            assert len(seen) == 40

    asyncio.run(go())


def test_an_untouched_tree_is_answered_without_a_look_and_a_touched_one_with(workspace: Workspace) -> None:
    async def go() -> None:
        async with watching(workspace) as (harness, watcher):
            await harness.build(workspace.request())
            await watcher.next(m.Watching)
            for folder in ("src", "include", "first", "build", "."):
                os.utime(workspace.project / folder, (1_700_000_000, 1_700_000_000))
            watched = harness.scheduler.intake.watches
            deadline = asyncio.get_running_loop().time() + DEADLINE_S
            while not any(
                targets.verified for targets in watched._targets.values()
            ):  # files grow old enough for their stamps to be trusted
                assert asyncio.get_running_loop().time() < deadline
                assert (await harness.build(workspace.request())).done.misses == 0
            (verified,) = (targets.verified for targets in watched._targets.values())
            assert not any(path.startswith(os.fsencode(workspace.project)) for path in verified.paths)
            assert (await harness.build(workspace.request())).done.message == "nothing to do"
            workspace.write("include/x.h", "other\n")
            assert (await harness.build(workspace.request())).done.misses == 2
            (workspace.project / "build/all.so").unlink()
            assert (await harness.build(workspace.request())).done.hits == 3
            assert workspace.library

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


def test_of_what_no_save_touched_nothing_is_looked_up_or_told(workspace: Workspace) -> None:
    async def go() -> None:
        async with watching(workspace) as (harness, _):
            first = await settled(harness, workspace)
            workspace.write("src/b.cu", "saved\n")
            request = workspace.request(known=first.request_id)
            story = await built(harness, request)
            assert story.done.misses == 2 and story.done.hits == 1
            assert story.ran() == ["b.cu.o", "all.so"] and not story.of(m.CacheHit)
            assert workspace.library == await clean(workspace)
            workspace.write("include/x.h", "and a header\n")
            second = workspace.request(known=request.request_id)
            story = await harness.build(second)
            assert story.ran() == ["a.cu.o", "all.so"] and story.done.hits == 1 and not story.of(m.CacheHit)
            assert workspace.library == await clean(workspace)
            workspace.write("include/x.h", "for somebody else\n")
            assert [hit.action for hit in (await harness.build(workspace.request(known=""))).of(m.CacheHit)] == [
                "b.cu.o"
            ]

    asyncio.run(go())


@pytest.mark.parametrize("is_watched", [True, False], ids=["watched", "by stamps"])
def test_whatever_is_touched_the_next_build_is_right(workspace: Workspace, is_watched: bool) -> None:
    """Saves that are followed by a build which begins with what stands."""
    include = workspace.project / "include"

    def editor() -> None:
        for name in ("4913", "b.cu~"):
            workspace.write(f"src/{name}", "b\n").unlink()
        workspace.write("src/.b.cu.new", "as an editor\n").rename(workspace.project / "src/b.cu")

    def link() -> None:
        (include / "x.h").unlink()
        (include / "x.h").symlink_to("one.h")

    def turn() -> None:
        (include / "turned").symlink_to("two.h")
        (include / "turned").rename(include / "x.h")

    changes: tuple[Callable[[], object], ...] = (
        lambda: workspace.write("include/x.h", "header\n"),
        lambda: workspace.write("first/x.h", "comes first\n"),
        (workspace.project / "first/x.h").unlink,
        (workspace.project / "build/a.cu.o").unlink,
        lambda: workspace.write("build/a.cu.o", "damaged\n"),
        lambda: workspace.write("build/all.so", "damaged\n"),
        editor,
        link,
        turn,
        lambda: workspace.write("include/two.h", "behind the link\n"),
        lambda: os.utime(workspace.project / "src/a.cu"),
        lambda: workspace.write("src/c.cu", "c\n"),
        (workspace.project / "src/c.cu").unlink,
    )

    async def go() -> None:
        for name in ("one", "two"):
            workspace.write(f"include/{name}.h", f"{name}\n")
        async with AsyncExitStack() as stack:
            known, carried = None, 0
            if is_watched:
                harness, _ = await stack.enter_async_context(watching(workspace))
                known = (await settled(harness, workspace)).request_id
            else:
                harness = await stack.enter_async_context(Harness(workspace))
                await built(harness, workspace.request())
            for number, change in enumerate(changes):
                change()
                request = workspace.request(known=known)
                story = await built(harness, request)
                assert story.done.outcome is m.Outcome.BUILT, number
                carried += story.done.hits - len(story.of(m.CacheHit))
                found, known = workspace.library, request.request_id if is_watched else None
                objects = [path.read_bytes() for path in sorted((workspace.project / "build").glob("[ab].cu.o"))]
                await built(harness, workspace.request(recache=True))
                assert found == workspace.library, number
                assert objects == [p.read_bytes() for p in sorted((workspace.project / "build").glob("[ab].cu.o"))], (
                    number
                )
            assert carried >= 5 or not is_watched, "it is of no use"

    asyncio.run(go())


def test_a_file_behind_a_linked_folder_is_looked_up(workspace: Workspace) -> None:
    """Its hint may have the name that the link leads to, or none."""
    shutil.rmtree(workspace.project / "include")
    for name in ("one", "two"):
        (workspace.project / name).mkdir()
        workspace.write(f"{name}/x.h", f"{name}\n")
    (workspace.project / "include").symlink_to("one")

    def turn() -> None:
        (workspace.project / "turned").symlink_to("two")
        (workspace.project / "turned").rename(workspace.project / "include")

    async def go() -> None:
        async with watching(workspace) as (harness, _):
            known = (await settled(harness, workspace)).request_id
            changes = (
                lambda: workspace.write("one/x.h", "behind\n"),
                lambda: workspace.write("include/x.h", "through\n"),
                turn,
            )
            for change in changes:
                change()
                request = workspace.request(known=known)
                story = await built(harness, request)
                assert "a.cu.o" in story.ran()
                known = request.request_id

    asyncio.run(go())


def test_what_said_something_says_it_again_and_is_looked_up(workspace: Workspace) -> None:
    workspace.write("src/c.cu", '#include "x.h"\n//! warning careful\n')

    async def go() -> None:
        async with watching(workspace) as (harness, _):
            known = (await settled(harness, workspace)).request_id
            saves = (
                ("src/b.cu", "other\n", "b.cu.o"),
                ("src/c.cu", '#include "x.h"\n//! warning be careful\n', "c.cu.o"),
                ("include/x.h", "other\n", "c.cu.o"),
            )
            for path, text, ran in saves:
                workspace.write(path, text)
                request = workspace.request(known=known)
                story = await built(harness, request)
                assert ran in story.ran() and any("careful" in line.text for line in story.of(m.LogLine)), path
                assert workspace.library == await clean(workspace)
                known = request.request_id

    asyncio.run(go())


def test_what_is_saved_while_others_are_built_is_no_part_of_what_stands(workspace: Workspace) -> None:
    async def go() -> None:
        async with watching(workspace) as (harness, _):
            known = (await settled(harness, workspace)).request_id
            workspace.write("src/b.cu", "//! touch started\n//! wait-for go\n")
            request = workspace.request(known=known)
            log = harness.submit(request)
            await asyncio.wait_for(asyncio.to_thread(wait_for, workspace.project / "started"), DEADLINE_S)
            workspace.write("include/x.h", "meanwhile\n")
            workspace.write("go", "")
            story = await harness.finish(log)
            assert not story.of(m.CacheHit), "a is not told of"
            assert "a.cu.o" in (await harness.build(workspace.request(known=request.request_id))).ran()
            assert workspace.library == await clean(workspace)

    asyncio.run(go())


def test_a_file_that_gives_no_event_is_looked_up_once_it_is_found(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "SWEEP_S", 0.05)

    async def go() -> None:
        async with watching(workspace) as (harness, watcher):
            known = (await settled(harness, workspace)).request_id
            with open(workspace.project / "include/x.h", "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
                mapped[0:1] = b"c"
                mapped.flush()
            await watcher.changes({"include/x.h"})
            assert "a.cu.o" in (await harness.build(workspace.request(known=known))).ran()

    asyncio.run(go())


def test_who_knows_another_build_is_told_of_everything(workspace: Workspace) -> None:
    async def go() -> None:
        async with watching(workspace) as (harness, _):
            for folder in ("src", "include", "first", "."):
                os.utime(workspace.project / folder, (1_700_000_000, 1_700_000_000))
            first = (await settled(harness, workspace)).request_id
            known, brief = first, 0
            deadline = asyncio.get_running_loop().time() + DEADLINE_S
            while brief < 2:  # files grow old enough for their stamps to be trusted
                assert asyncio.get_running_loop().time() < deadline
                request = workspace.request(known=known)
                story = await built(harness, request)
                assert story.done.hits == 3 and not story.of(m.CacheHit), "it knows as much as before"
                known, brief = request.request_id, brief + (story.done.message == "nothing to do")
            for known in ("", first):
                story = await built(harness, workspace.request(known=known))
                assert {hit.action for hit in story.of(m.CacheHit)} == {"a.cu.o", "b.cu.o", "all.so"}

    asyncio.run(go())


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
