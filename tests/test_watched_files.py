"""Saves that are told: of headers that a build knows in roundabout ways, in folders that are other ones now."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from estate import why_no_namespaces
from floor import DEADLINE_S, Floor, Shop, fake_plan
from test_watch import Watcher, built, settled, wait_for, watching

from buildd import hints, watches
from buildd.building import Building
from buildd.hints import Hints
from buildd.watches import Watches
from buildd.watching import Watch
from codegen.plan import Knowledge, Plan, RequestError
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


@pytest.fixture
def before_learning(monkeypatch: pytest.MonkeyPatch) -> dict[int, Callable[[], object]]:
    """What happens just before a watch learns of a good build, by how many did so before."""
    calls: dict[int, Callable[[], object]] = {}
    numbers = itertools.count()
    learn = Watch.learn

    def learn_later(watch: Watch, lesson: Any, outcome: m.Outcome) -> dict[str, None]:
        if outcome is m.Outcome.BUILT:
            calls.get(next(numbers), lambda: None)()
        return learn(watch, lesson, outcome)

    monkeypatch.setattr(Watch, "learn", learn_later)
    return calls


def test_two_watches_learn_the_same_of_files_that_were_looked_at_afresh(
    floor: Floor, monkeypatch: pytest.MonkeyPatch, before_learning: dict[int, Callable[[], object]]
) -> None:
    """To find out where a header would shadow another one, the first to learn looks at what includes it."""
    learn = Watches.learn

    async def learn_after_a_change(self: Watches, building: Building, outcome: m.Outcome) -> None:
        building.forget_inputs(building.plan.actions[0])  # as when an input changed under the last job
        await learn(self, building, outcome)

    monkeypatch.setattr(Watches, "learn", learn_after_a_change)
    monkeypatch.setattr(watches, "BURST_S", 1.0)  # the save is told after that
    before_learning[0] = lambda: floor.write("src/a.cu", "saved\n")

    async def go() -> None:
        async with watching(floor) as (shop, watcher):
            other = Watcher(shop)
            await other.next(m.Watching)
            await built(shop, floor.request())
            for each in (watcher, other):
                await each.changes({"src/a.cu"})

    asyncio.run(go())


def test_what_came_before_it_was_known_that_new_names_count(
    floor: Floor, before_learning: dict[int, Callable[[], object]]
) -> None:
    (floor.project / "first/sub").mkdir()
    before_learning[0] = lambda: floor.write("first/sub/y.h", "shadows\n")

    async def go() -> None:
        async with watching(floor) as (shop, watcher):
            await built(shop, floor.request())
            await watcher.changes({"first/sub/y.h"})
            await built(shop, floor.request())
            assert sum(isinstance(body, m.Changed) for body in watcher.told()) == 1

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
            assert (await shop.finish(log)).ran().count("b.cu.o") >= 2
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


@pytest.mark.parametrize("is_there", [True, False])
def test_a_missing_header_that_a_header_names(floor: Floor, is_there: bool) -> None:
    """Nobody has read anything, and the compiler does not say where it looked."""
    (floor.project / NESTED).unlink()
    if not is_there:
        (floor.project / "include/sub").rmdir()

    async def go() -> None:
        async with watching(floor) as (shop, watcher):
            assert (await built(shop, floor.request())).done.outcome is m.Outcome.FAILED
            put(floor, NESTED, "mended\n")
            await watcher.changes({NESTED})

    asyncio.run(go())


def test_a_header_that_the_first_build_fails_in(floor: Floor) -> None:
    floor.write(NESTED, "//! error broken\n")

    async def go() -> None:
        async with watching(floor) as (shop, watcher):
            assert (await built(shop, floor.request())).done.outcome is m.Outcome.FAILED
            floor.write(NESTED, "mended\n")
            await watcher.changes({NESTED})

    asyncio.run(go())


def test_a_folder_that_comes_with_files_in_it(floor: Floor) -> None:
    """Of sources, and one that is searched first."""

    async def go() -> None:
        async with watching(floor) as (shop, watcher):
            await built(shop, floor.request())
            for folder, name in (("src/more", "c.cu"), ("first/sub", "y.h")):
                aside = floor.folder / "aside"
                aside.mkdir()
                (aside / name).write_text("came with it\n")
                aside.rename(floor.project / folder)
                await watcher.changes({f"{folder}/{name}"})
                floor.write(f"{folder}/late.h", "later\n")
                await watcher.changes({f"{folder}/late.h"})

    asyncio.run(go())


def test_what_editors_write_in_passing_is_no_change(floor: Floor) -> None:
    """After a failure, too, when anything may count."""
    floor.write("src/a.cu", "//! error broken\n")

    async def go() -> None:
        async with watching(floor) as (shop, watcher):
            for text in ("//! error broken\n", "mended\n"):
                floor.write("src/a.cu", text)
                await built(shop, floor.request())
                for name in ("src/.a.cu.swp", "src/a.cu~", "include/#x.h#", ".git/index", "compile_commands.json"):
                    put(floor, name, text)
                floor.write("src/4913", "").unlink()
                floor.write("src/b.cu", text)
                await watcher.changes({"src/b.cu"})
            named = {path for body in watcher.told() if isinstance(body, m.Changed) for path in body.paths}
            assert named <= {"src/a.cu", "src/b.cu"}

    asyncio.run(go())


def test_what_a_project_waits_for_that_cannot_be_planned(floor: Floor) -> None:
    """A source in a folder that no plan knew of; and what is built then has a record."""

    def make(request: m.Request, knowledge: Knowledge) -> Plan:
        if not list(floor.project.glob("kernels/fast/*.cu")):
            raise RequestError("missing-source", "no file matches kernels/fast/*.cu")
        plan = fake_plan(request, knowledge)
        return msgspec.structs.replace(plan, read=(*plan.read, f"{floor.project}/kernels/fast"))

    put(floor, "kernels/fast/k.cu", "")
    floor.options["make"] = make

    async def go() -> None:
        async with Shop(floor) as shop:
            async with asyncio.timeout(DEADLINE_S):
                while (await built(shop, floor.request())).done.message != "nothing to do":
                    pass
            shutil.rmtree(floor.project / "kernels")
            watcher = Watcher(shop)
            await watcher.next(m.Watching)
            assert (await built(shop, floor.request())).done.outcome is m.Outcome.REFUSED
            put(floor, "kernels/fast/k.cu", "")
            await watcher.changes({"kernels/fast/k.cu"})
            assert (await built(shop, floor.request())).done.outcome is m.Outcome.BUILT
            floor.write(NESTED, "other\n")
            await watcher.changes({NESTED})
            (floor.project / "kernels/fast/k.cu").unlink()
            floor.write("src/b.cu", "other\n")
            assert (await built(shop, floor.request())).done.outcome is m.Outcome.REFUSED
            put(floor, "kernels/fast/l.cu", "")
            await watcher.changes({"kernels/fast/l.cu"})

    asyncio.run(go())


def behind_links(floor: Floor, name: str) -> None:
    """A folder of headers through a link: include -> links/now -> one or two."""
    shutil.rmtree(floor.project / "include")
    (floor.project / "links").mkdir()
    for number in ("one", "two"):
        put(floor, f"{number}/x.h", f"{number}\n")
    (floor.project / "links/now").symlink_to(f"../{name}")
    (floor.project / "include").symlink_to("links/now")


def turn(link: Path, to: str) -> None:
    """At once, and with no other name that an event could tell of."""
    link.unlink()
    link.symlink_to(to)


def replace(old: Path, new: Path) -> None:
    """Another folder in place of one: what is below has the names that it had."""
    aside = new.with_name("aside")
    old.rename(aside)
    new.rename(old)


async def stands_or_is_built(floor: Floor, change: Callable[[], None], told: str) -> None:
    """A change of a.cu's header is told at once, and is in the next build of whoever watches and knows the last one."""
    async with watching(floor) as (shop, watcher):
        known = (await settled(shop, floor)).request_id
        change()
        assert "a.cu.o" in (await built(shop, floor.request(known=known))).ran()
        await watcher.changes({told})


def test_a_link_on_the_way_to_a_folder_is_turned(floor: Floor) -> None:
    behind_links(floor, "one")
    link = floor.project / "links/now"
    asyncio.run(stands_or_is_built(floor, lambda: turn(link, "../two"), "include/x.h"))


def test_a_link_on_the_way_is_turned_in_a_tree_that_was_found_untouched(floor: Floor) -> None:
    behind_links(floor, "one")

    async def go() -> None:
        async with watching(floor) as (shop, _):
            await verified(shop, floor)
            turn(floor.project / "links/now", "../two")
            assert "a.cu.o" in (await shop.build(floor.request())).ran()

    asyncio.run(go())


def test_a_link_to_a_link_to_a_file_is_turned(floor: Floor) -> None:
    for number in ("one", "two"):
        put(floor, f"{number}/y.h", f"{number}\n")
    (floor.project / "links").mkdir()
    (floor.project / "links/now.h").symlink_to("../one/y.h")
    (floor.project / NESTED).unlink()
    (floor.project / NESTED).symlink_to("../../links/now.h")
    link = floor.project / "links/now.h"
    asyncio.run(stands_or_is_built(floor, lambda: turn(link, "../two/y.h"), NESTED))


def test_a_folder_above_is_replaced(floor: Floor) -> None:
    put(floor, "include/a/b/c/z.h", "old\n")
    put(floor, "../new/c/z.h", "new\n")
    floor.write("include/x.h", '#include "a/b/c/z.h"\n')
    change = partial(replace, floor.project / "include/a/b", floor.folder / "new")
    asyncio.run(stands_or_is_built(floor, change, "include/a/b/c/z.h"))


def test_a_folder_outside_of_the_project_is_replaced(floor: Floor) -> None:
    for name in ("shared", "new"):
        (floor.folder / name).mkdir()
        (floor.folder / name / "z.h").write_text(f"{name}\n")
    floor.write("include/x.h", '#include "../../shared/z.h"\n')
    change = partial(replace, floor.folder / "shared", floor.folder / "new")
    asyncio.run(stands_or_is_built(floor, change, f"{floor.folder}/shared/z.h"))


def test_the_folder_that_the_project_is_in_is_replaced(floor: Floor) -> None:
    """As a clone that is made anew around it: nothing tells of that in the project."""

    async def go() -> None:
        above = floor.folder / "above"
        floor.project = floor.project.rename(above.with_name("project"))
        above.mkdir()
        floor.project = floor.project.rename(above / "project")
        async with watching(floor) as (shop, _):
            known = (await settled(shop, floor)).request_id
            shutil.copytree(above, floor.folder / "new")
            (floor.folder / "new/project" / NESTED).write_text("new\n")
            replace(above, floor.folder / "new")
            request = floor.request(known=known)
            assert "a.cu.o" in (await built(shop, request)).ran()
            floor.write(NESTED, "and a save\n")
            assert "a.cu.o" in (await built(shop, floor.request(known=request.request_id))).ran()

    asyncio.run(go())


def test_a_file_is_saved_under_another_of_its_names(floor: Floor) -> None:
    os.link(floor.project / NESTED, floor.folder / "elsewhere.h")

    async def go() -> None:
        async with watching(floor) as (shop, _):
            known = (await settled(shop, floor)).request_id
            (floor.folder / "elsewhere.h").write_text("saved there\n")
            assert "a.cu.o" in (await built(shop, floor.request(known=known))).ran()
            await verified(shop, floor)
            (floor.folder / "elsewhere.h").write_text("and again\n")
            assert "a.cu.o" in (await built(shop, floor.request())).ran()

    asyncio.run(go())


async def verified(shop: Shop, floor: Floor) -> None:
    """Until the next build is answered without a look at any file under watch."""
    await built(shop, floor.request())
    for folder, names, _ in os.walk(floor.project):
        for path in (folder, *(f"{folder}/{name}" for name in names)):
            os.utime(path, (1_700_000_000, 1_700_000_000))
    known = shop.scheduler.intake.watches._verified
    deadline = asyncio.get_running_loop().time() + DEADLINE_S
    while not known:
        assert asyncio.get_running_loop().time() < deadline
        assert (await built(shop, floor.request())).done.misses == 0


MOUNTED = """
import asyncio, subprocess, sys
from pathlib import Path
from typing import Any
from tests.floor import Floor
from tests.test_watch import built, settled, watching

floor = Floor(Path(sys.argv[1]))
for path, text in (("src/a.cu", '#include "x.h"'), ("src/b.cu", "b"), ("include/x.h", "x"), ("../x.h", "mounted")):
    floor.write(path, text)

async def go():
    async with watching(floor) as (shop, watcher):
        known = (await settled(shop, floor)).request_id
        subprocess.run(["mount", "--bind", str(floor.folder), str(floor.project / "include")], check=True)
        request = floor.request(known=known)
        assert "a.cu.o" in (await built(shop, request)).ran(), "what was there before"
        floor.write("include/x.h", "and a save")
        await watcher.changes({"include/x.h"})
        assert "a.cu.o" in (await built(shop, floor.request(known=request.request_id))).ran(), "a save there"

asyncio.run(go())
"""


@pytest.mark.skipif(bool(why_no_namespaces()), reason="no namespaces")
def test_another_folder_is_mounted_over_one(tmp_path: Path) -> None:
    root = Path(__file__).parents[1]
    done = subprocess.run(
        ["unshare", "--mount", sys.executable, "-c", MOUNTED, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{root}/tests"},
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr


def test_a_folder_that_is_searched_first_is_replaced(floor: Floor) -> None:
    """It was empty, and comes with a file in it."""
    put(floor, "../new/x.h", "comes first\n")

    async def go() -> None:
        async with watching(floor) as (shop, watcher):
            await built(shop, floor.request())
            replace(floor.project / "first", floor.folder / "new")
            await watcher.changes({"first/x.h"})

    asyncio.run(go())


def test_headers_of_a_result_that_is_not_stored_where_another_one_was(floor: Floor) -> None:
    """The stored one was met first, and did not fit."""

    async def go() -> None:
        async with watching(floor) as (shop, watcher):
            await built(shop, floor.request())
            put(floor, "first/sub/z.h", "below\n")
            floor.write("first/x.h", '#include "sub/z.h"\n__TIME__\n')
            assert "a.cu.o" in (await built(shop, floor.request())).ran()
            floor.write("first/sub/z.h", "one\n")
            await watcher.changes({"first/sub/z.h"})
            await built(shop, floor.request())
            floor.write("first/sub/z.h", "two\n")
            await watcher.changes({"first/sub/z.h"})

    asyncio.run(go())


def test_what_comes_and_goes_where_nothing_gives_events(floor: Floor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "SWEEP_S", 0.05)
    monkeypatch.setattr(hints, "file_system_of", lambda path: "nfs4")

    async def go() -> None:
        async with watching(floor) as (shop, watcher):
            await built(shop, floor.request())
            floor.write("src/c.cu", "a new source\n")
            await watcher.changes({"src/c.cu"})
            floor.write("first/x.h", "comes first\n")
            await watcher.changes({"first/x.h"})
            (floor.project / "src/b.cu").unlink()
            await watcher.changes({"src/b.cu"})
            floor.write("src/b.cu", "it is back\n")
            await watcher.changes({"src/b.cu"})

    asyncio.run(go())


def test_barriers_of_several_requests_at_once(tmp_path: Path) -> None:
    found = Hints(lambda: None)
    found.watch([str(tmp_path)])
    try:
        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(lambda _: found.barrier(tmp_path), range(100)))
    finally:
        found.close()
