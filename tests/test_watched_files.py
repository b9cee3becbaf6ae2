"""Saves that are told: of headers that a build knows in roundabout ways, in folders that are other ones now."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from floor import DEADLINE_S, Floor
from test_watch import built, wait_for, watching

from buildd import watches
from protocol import messages as m

NESTED = "include/sub/y.h"


@pytest.fixture
def floor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Floor:
    """A source whose header includes another one, in a folder that nothing else names."""
    monkeypatch.setattr(watches, "SWEEP_S", 3600.0)  # what is told here is told at once
    floor = Floor(tmp_path)
    floor.write("src/a.cu", '#include "x.h"\na\n')
    floor.write("src/b.cu", "b\n")
    floor.write("include/x.h", '#include "sub/y.h"\n')
    put(floor, NESTED, "deep\n")
    return floor


def put(floor: Floor, path: str, text: str) -> None:
    (floor.project / path).parent.mkdir(parents=True, exist_ok=True)
    floor.write(path, text)


async def started(floor: Floor) -> None:
    await asyncio.wait_for(asyncio.to_thread(wait_for, floor.project / "started"), DEADLINE_S)


def test_headers_of_a_job_that_was_joined(floor: Floor) -> None:
    """As after a save during the first build: the next one takes over what is still right."""
    floor.write("src/a.cu", '#include "x.h"\n//! touch started\n//! wait-for go\n')

    async def go() -> None:
        async with watching(floor) as (shop, watcher):
            first = floor.request()
            log = shop.submit(first)
            await started(floor)
            floor.write("src/b.cu", "saved\n")
            second = shop.submit(floor.request(replaces=first.request_id))
            await shop.until(log, lambda body: isinstance(body, m.Done))
            floor.write("go", "")
            assert "a.cu.o" not in (await shop.finish(second)).ran()
            await watcher.next(m.Watching)
            floor.write(NESTED, "other\n")
            await watcher.changes({NESTED})

    asyncio.run(go())


def test_headers_of_what_was_built_before_another_input_changed(floor: Floor) -> None:
    floor.write("src/b.cu", '#include "z.h"\n//! touch started\n//! wait-for go\n')
    floor.write("include/z.h", "z\n")

    async def go() -> None:
        async with watching(floor) as (shop, watcher):
            log = shop.submit(floor.request())
            await started(floor)
            await shop.until(log, lambda body: isinstance(body, m.Finished) and body.action == "a.cu.o")
            floor.write("include/z.h", "while it is read\n")
            floor.write("go", "")
            assert (await shop.finish(log)).ran().count("b.cu.o") == 2
            await watcher.next(m.Watching)
            floor.write(NESTED, "other\n")
            await watcher.changes({NESTED})

    asyncio.run(go())


def test_headers_that_come_first_of_a_result_that_is_not_stored(floor: Floor) -> None:
    for name in ("a", "b"):
        floor.write(f"src/{name}.cu", '#include "x.h"\n__TIME__\n')
    (floor.project / "first/sub").mkdir()

    async def go() -> None:
        async with watching(floor) as (shop, watcher):
            await built(shop, floor.request())
            put(floor, "first/sub/y.h", "shadows\n")
            await watcher.changes({"first/sub/y.h"})

    asyncio.run(go())
