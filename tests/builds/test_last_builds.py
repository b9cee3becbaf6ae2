"""A build after an edit looks up only what the edit reaches, and its outputs are those of a clean build."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from buildd.builds.last_builds import MOST_KEPT
from buildd.files.kernel_clock import STEP_NS
from protocol import messages as m
from tests.support.scheduler_harness import Harness, Story, Workspace
from tests.support.watch_request import built, clean


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    workspace = Workspace(tmp_path)
    workspace.write("src/a.cu", '#include "x.h"\na\n')
    workspace.write("src/b.cu", "b\n")
    workspace.write("include/x.h", "x\n")
    return workspace


@asynccontextmanager
async def settled(workspace: Workspace) -> AsyncIterator[Harness]:
    """A scheduler that has built twice, the second time with every stamp old enough to tell the next write."""
    async with Harness(workspace) as harness:
        await built(harness, workspace.request())
        await aged()
        workspace.write("src/b.cu", "b, again\n")
        await built(harness, workspace.request())
        await aged()
        yield harness


async def aged() -> None:
    """Wait until a write now changes every stamp that there is."""
    written_ns = time.time_ns()
    while time.time_ns() - written_ns <= 2 * STEP_NS:
        await asyncio.sleep(2 * STEP_NS / 1e9)


def looked_up(story: Story) -> list[str]:
    """What hit after a look-up; what stands is told nothing of."""
    return [hit.action for hit in story.of(m.CacheHit)]


def test_only_what_an_edit_reaches_is_looked_up(workspace: Workspace) -> None:
    async def go() -> None:
        async with settled(workspace) as harness:
            workspace.write("src/b.cu", "saved\n")
            story = await built(harness, workspace.request())
            assert story.ran() == ["b.cu.o", "all.so"] and not looked_up(story)
            assert (story.done.hits, story.done.misses, story.done.saved_s) == (1, 2, 0), "what lay there saves nothing"
            assert workspace.library == await clean(workspace)
            await aged()
            workspace.write("include/x.h", "and a header\n")
            story = await built(harness, workspace.request())
            assert story.ran() == ["a.cu.o", "all.so"] and not looked_up(story)
            assert workspace.library == await clean(workspace)

    asyncio.run(go())


def test_the_time_of_one_of_two_equal_headers_counts(workspace: Workspace) -> None:
    """A compiler may read one of them alone while their times are equal."""
    workspace.write("src/a.cu", '#include "x.h"\n#include "y.h"\na\n')
    for name in ("x.h", "y.h"):
        os.utime(workspace.write(f"include/{name}", "#pragma once\n"), (7, 7))

    async def go() -> None:
        async with settled(workspace) as harness:
            workspace.write("src/b.cu", "saved\n")
            os.utime(workspace.project / "include/y.h", (7.5, 7.5))
            assert (await built(harness, workspace.request())).ran() == ["b.cu.o", "all.so"]
            await aged()
            os.utime(workspace.project / "include/y.h", (8, 8))
            assert "a.cu.o" in (await built(harness, workspace.request())).ran()

    asyncio.run(go())


def test_it_outlives_a_rest_of_the_daemon(workspace: Workspace) -> None:
    async def go() -> None:
        async with settled(workspace) as harness:
            harness.scheduler.rest()
            workspace.write("src/b.cu", "saved\n")
            story = await built(harness, workspace.request())
            assert story.ran() == ["b.cu.o", "all.so"] and not looked_up(story)

    asyncio.run(go())


def test_a_new_source_is_planned(workspace: Workspace) -> None:
    async def go() -> None:
        async with settled(workspace) as harness:
            workspace.write("src/c.cu", "came\n")
            assert "c.cu.o" in (await built(harness, workspace.request())).ran()
            assert workspace.library == await clean(workspace)

    asyncio.run(go())


def test_a_client_that_wants_every_action_is_told_of_it(workspace: Workspace) -> None:
    async def go() -> None:
        async with settled(workspace) as harness:
            workspace.write("include/x.h", "saved\n")
            assert looked_up(await built(harness, workspace.request(known=""))) == ["b.cu.o"]

    asyncio.run(go())


def _shadow(workspace: Workspace) -> None:
    workspace.write("first/x.h", "found before the other one\n")


def _same_size_and_time(workspace: Workspace) -> None:
    source = workspace.project / "src/a.cu"
    status = source.stat()
    source.write_text(source.read_text().replace("a", "z"))
    os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns))


def _replaced_object(workspace: Workspace) -> None:
    workspace.write("build/a.cu.o", "damaged\n")


def _object_gone(workspace: Workspace) -> None:
    (workspace.project / "build/a.cu.o").unlink()


@pytest.mark.parametrize("change", [_shadow, _same_size_and_time, _replaced_object, _object_gone])
def test_what_an_edit_reaches_in_other_ways(workspace: Workspace, change: Callable[[Workspace], None]) -> None:
    async def go() -> None:
        async with settled(workspace) as harness:
            change(workspace)
            workspace.write("src/b.cu", "saved\n")
            story = await built(harness, workspace.request())
            assert story.done.outcome is m.Outcome.BUILT
            assert workspace.library == await clean(workspace)
            assert (workspace.project / "build/a.cu.o").read_bytes() != b"damaged\n"

    asyncio.run(go())


def test_the_last_builds_of_a_few_targets_are_kept(workspace: Workspace) -> None:
    async def go() -> None:
        async with Harness(workspace) as harness:
            for number in range(MOST_KEPT + 2):
                await built(harness, workspace.request(environment={"PATH": "/usr/bin:/bin", "ROUND": str(number)}))
                await aged()
            opened = harness.scheduler.stores.get(str(workspace.store))
            assert opened is not None and 0 < len(opened.last_builds._kept) <= MOST_KEPT

    asyncio.run(go())


def test_what_is_kept_while_the_store_closes_is_closed_too(workspace: Workspace) -> None:
    async def go() -> None:
        async with Harness(workspace) as harness:
            await built(harness, workspace.request())
            opened = harness.scheduler.stores.get(str(workspace.store))
            assert opened is not None
            opened.last_builds.close()
            workspace.write("src/b.cu", "saved\n")
            await built(harness, workspace.request())
            assert not opened.last_builds._kept

    asyncio.run(go())


def test_of_two_equal_requests_at_once_one_is_kept(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have forgotten the one before, and then each keeps its own."""

    async def go() -> None:
        async with settled(workspace) as harness:
            opened = harness.scheduler.stores.get(str(workspace.store))
            assert opened is not None
            (before,) = opened.last_builds._kept.values()
            with monkeypatch.context() as patch:
                patch.setattr(opened.last_builds, "_forget", lambda name: None)
                workspace.write("src/b.cu", "saved\n")
                await built(harness, workspace.request())
            (after,) = opened.last_builds._kept.values()
            assert before.closed and not after.closed

    asyncio.run(go())
