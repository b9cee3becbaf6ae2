"""How many rooms a request and a saved file enter, and how often the way leads up.

docs/architecture.md has the figures; `pytest -s tests/repository/test_walk.py` prints the rooms and the climbs.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from buildd.builds.event_log import RequestLog
from protocol import messages as m
from tests.support.scheduler_harness import Harness, Workspace
from tests.support.walk import Walk
from tests.support.watch_request import settled, watching


def told(what: str, walk: Walk) -> None:
    ours = [name.removeprefix("buildd.") for name in walk.rooms if name.startswith("buildd.")]
    up = "; ".join(f"{low} -> {high}: {', '.join(sorted(names))}" for (low, high), names in walk.climbs.items())
    print(f"\n{what}: {len(ours)} rooms of buildd ({' '.join(ours)}), {len(walk.climbs)} climbs ({up})")


def check(walk: Walk) -> None:
    assert len([name for name in walk.rooms if name.startswith("buildd.")]) <= 8
    assert len(walk.climbs) <= 2


def test_taking_a_compile_in(tmp_path: Path) -> None:
    """The first compile of an empty store: compiler, source and store are all new."""
    workspace = Workspace(tmp_path)
    workspace.write("a.c", "int f(void) { return 1; }\n")
    command = ("/usr/bin/gcc", "-c", "a.c", "-o", "a.o")
    walk = Walk()

    async def go() -> None:
        walk.prepare()
        async with Harness(workspace) as harness:
            request = workspace.request(mode=m.Mode.COMPILE, command=command)
            with walk:
                taken = await harness.scheduler.intake.receive(request, RequestLog(request.request_id))
            assert taken is not None and len(taken.plan.actions) == 1
            taken.outputs.close()

    asyncio.run(go())
    told("a compile is taken in", walk)
    assert "codegen" in walk.rooms and "buildd.keys" in walk.rooms, "it is planned"
    check(walk)


def test_a_saved_file(tmp_path: Path) -> None:
    """From the save until the client knows of it."""
    workspace = Workspace(tmp_path)
    workspace.write("src/a.cu", '#include "x.h"\na\n')
    workspace.write("src/b.cu", "b\n")
    workspace.write("include/x.h", "x\n")
    walk = Walk()

    async def go() -> None:
        walk.prepare()
        async with watching(workspace) as (harness, watcher):
            await settled(harness, workspace)
            await watcher.changes({"src/b.cu"})
            with walk:
                workspace.write("include/x.h", "other\n")
                await watcher.changes({"include/x.h"})

    asyncio.run(go())
    told("a file is saved", walk)
    assert "buildd.watch" in walk.rooms
    check(walk)
