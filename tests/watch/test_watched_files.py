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

from buildd.builds.active_build import ActiveBuild
from buildd.watch import folder_events, watches
from buildd.watch.folder_events import Hints
from buildd.watch.watch import Watch
from buildd.watch.watches import Watches
from codegen.errors import RequestError
from codegen.plan import Knowledge, Plan
from protocol import messages as m
from tests.support.developer import why_no_namespaces
from tests.support.paths import ROOT
from tests.support.scheduler_harness import DEADLINE_S, Harness, Workspace, fake_plan
from tests.support.watch_request import Watcher, built, settled, wait_for, watching

NESTED = "include/sub/y.h"


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A source whose header includes another one, in a folder that nothing else names."""
    monkeypatch.setattr(watches, "SWEEP_S", 3600.0)  # what is told here is told at once
    workspace = Workspace(tmp_path)
    workspace.write("src/a.cu", '#include "x.h"\na\n')
    workspace.write("src/b.cu", "b\n")
    workspace.write("include/x.h", '#include "sub/y.h"\n')
    put(workspace, NESTED, "deep\n")
    return workspace


def put(workspace: Workspace, path: str, text: str) -> None:
    (workspace.project / path).parent.mkdir(parents=True, exist_ok=True)
    workspace.write(path, text)


async def started(workspace: Workspace) -> None:
    await asyncio.wait_for(asyncio.to_thread(wait_for, workspace.project / "started"), DEADLINE_S)


def test_headers_of_a_job_that_was_joined(workspace: Workspace) -> None:
    """As after a save during the first build: the next one takes over what is still right."""
    workspace.write("src/a.cu", '#include "x.h"\n//! touch started\n//! wait-for go\n')

    async def go() -> None:
        async with watching(workspace) as (harness, watcher):
            first = workspace.request()
            log = harness.submit(first)
            # The second build joins a job that has been told of: the file that the job makes comes before that.
            await harness.until(log, lambda body: isinstance(body, m.Started) and body.action == "a.cu.o")
            await started(workspace)
            workspace.write("src/b.cu", "saved\n")
            second = harness.submit(workspace.request(replaces=first.request_id))
            await harness.until(log, lambda body: isinstance(body, m.Done))
            workspace.write("go", "")
            assert "a.cu.o" not in (await harness.finish(second)).ran()
            await watcher.next(m.Watching)
            workspace.write(NESTED, "other\n")
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
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, before_learning: dict[int, Callable[[], object]]
) -> None:
    """To find out where a header would shadow another one, the first to learn looks at what includes it."""
    learn = Watches.learn

    async def learn_after_a_change(self: Watches, build: ActiveBuild, outcome: m.Outcome) -> None:
        build.inputs.renew_after(build.products)  # as when an input changed under the last job
        await learn(self, build, outcome)

    monkeypatch.setattr(Watches, "learn", learn_after_a_change)
    monkeypatch.setattr(watches, "BURST_S", 1.0)  # the save is told after that
    before_learning[0] = lambda: workspace.write("src/a.cu", "saved\n")

    async def go() -> None:
        async with watching(workspace) as (harness, watcher):
            other = Watcher(harness)
            await other.next(m.Watching)
            await built(harness, workspace.request())
            for each in (watcher, other):
                await each.changes({"src/a.cu"})

    asyncio.run(go())


def test_what_came_before_it_was_known_that_new_names_count(
    workspace: Workspace, before_learning: dict[int, Callable[[], object]]
) -> None:
    (workspace.project / "first/sub").mkdir()
    before_learning[0] = lambda: workspace.write("first/sub/y.h", "shadows\n")

    async def go() -> None:
        async with watching(workspace) as (harness, watcher):
            await built(harness, workspace.request())
            await watcher.changes({"first/sub/y.h"})
            await built(harness, workspace.request())
            assert sum(isinstance(body, m.Changed) for body in watcher.told()) == 1

    asyncio.run(go())


def test_headers_of_what_was_built_before_another_input_changed(workspace: Workspace) -> None:
    workspace.write("src/b.cu", '#include "z.h"\n//! touch started\n//! wait-for go\n')
    workspace.write("include/z.h", "z\n")

    async def go() -> None:
        async with watching(workspace) as (harness, watcher):
            log = harness.submit(workspace.request())
            await started(workspace)
            await harness.until(log, lambda body: isinstance(body, m.Finished) and body.action == "a.cu.o")
            workspace.write("include/z.h", "while it is read\n")
            workspace.write("go", "")
            assert (await harness.finish(log)).ran().count("b.cu.o") >= 2
            await watcher.next(m.Watching)
            workspace.write(NESTED, "other\n")
            await watcher.changes({NESTED})

    asyncio.run(go())


def test_headers_that_come_first_of_a_result_that_is_not_stored(workspace: Workspace) -> None:
    for name in ("a", "b"):
        workspace.write(f"src/{name}.cu", '#include "x.h"\n__TIME__\n')
    (workspace.project / "first/sub").mkdir()

    async def go() -> None:
        async with watching(workspace) as (harness, watcher):
            await built(harness, workspace.request())
            put(workspace, "first/sub/y.h", "shadows\n")
            await watcher.changes({"first/sub/y.h"})

    asyncio.run(go())


@pytest.mark.parametrize("is_there", [True, False])
def test_a_missing_header_that_a_header_names(workspace: Workspace, is_there: bool) -> None:
    """No file was read, and the compiler does not say where it looked."""
    (workspace.project / NESTED).unlink()
    if not is_there:
        (workspace.project / "include/sub").rmdir()

    async def go() -> None:
        async with watching(workspace) as (harness, watcher):
            assert (await built(harness, workspace.request())).done.outcome is m.Outcome.FAILED
            put(workspace, NESTED, "mended\n")
            await watcher.changes({NESTED})

    asyncio.run(go())


def test_a_header_that_the_first_build_fails_in(workspace: Workspace) -> None:
    workspace.write(NESTED, "//! error broken\n")

    async def go() -> None:
        async with watching(workspace) as (harness, watcher):
            assert (await built(harness, workspace.request())).done.outcome is m.Outcome.FAILED
            workspace.write(NESTED, "mended\n")
            await watcher.changes({NESTED})

    asyncio.run(go())


def test_a_folder_that_comes_with_files_in_it(workspace: Workspace) -> None:
    """A folder of sources, and one that is searched first."""

    async def go() -> None:
        async with watching(workspace) as (harness, watcher):
            await built(harness, workspace.request())
            for folder, name in (("src/more", "c.cu"), ("first/sub", "y.h")):
                aside = workspace.folder / "aside"
                aside.mkdir()
                (aside / name).write_text("came with it\n")
                aside.rename(workspace.project / folder)
                await watcher.changes({f"{folder}/{name}"})
                workspace.write(f"{folder}/late.h", "later\n")
                await watcher.changes({f"{folder}/late.h"})

    asyncio.run(go())


def test_what_editors_write_in_passing_is_no_change(workspace: Workspace) -> None:
    """After a failure, too, when anything may count."""
    workspace.write("src/a.cu", "//! error broken\n")

    async def go() -> None:
        async with watching(workspace) as (harness, watcher):
            for text in ("//! error broken\n", "mended\n"):
                workspace.write("src/a.cu", text)
                await built(harness, workspace.request())
                for name in ("src/.a.cu.swp", "src/a.cu~", "include/#x.h#", ".git/index", "compile_commands.json"):
                    put(workspace, name, text)
                workspace.write("src/4913", "").unlink()
                workspace.write("src/b.cu", text)
                await watcher.changes({"src/b.cu"})
            named = {path for body in watcher.told() if isinstance(body, m.Changed) for path in body.paths}
            assert named <= {"src/a.cu", "src/b.cu"}

    asyncio.run(go())


def test_what_a_project_waits_for_that_cannot_be_planned(workspace: Workspace) -> None:
    """A source in a folder that no plan knew of; and what is built then has a record."""

    def make(request: m.Request, knowledge: Knowledge) -> Plan:
        if not list(workspace.project.glob("kernels/fast/*.cu")):
            raise RequestError("missing-source", "no file matches kernels/fast/*.cu")
        plan = fake_plan(request, knowledge)
        return msgspec.structs.replace(plan, read=(*plan.read, f"{workspace.project}/kernels/fast"))

    put(workspace, "kernels/fast/k.cu", "")
    workspace.options["make"] = make

    async def go() -> None:
        async with Harness(workspace) as harness:
            async with asyncio.timeout(DEADLINE_S):
                while (await built(harness, workspace.request())).done.message != "nothing to do":
                    pass
            shutil.rmtree(workspace.project / "kernels")
            watcher = Watcher(harness)
            await watcher.next(m.Watching)
            assert (await built(harness, workspace.request())).done.outcome is m.Outcome.REFUSED
            put(workspace, "kernels/fast/k.cu", "")
            await watcher.changes({"kernels/fast/k.cu"})
            assert (await built(harness, workspace.request())).done.outcome is m.Outcome.BUILT
            workspace.write(NESTED, "other\n")
            await watcher.changes({NESTED})
            (workspace.project / "kernels/fast/k.cu").unlink()
            workspace.write("src/b.cu", "other\n")
            assert (await built(harness, workspace.request())).done.outcome is m.Outcome.REFUSED
            put(workspace, "kernels/fast/l.cu", "")
            await watcher.changes({"kernels/fast/l.cu"})

    asyncio.run(go())


def behind_links(workspace: Workspace, name: str) -> None:
    """A folder of headers through a link: include -> links/now -> one or two."""
    shutil.rmtree(workspace.project / "include")
    (workspace.project / "links").mkdir()
    for number in ("one", "two"):
        put(workspace, f"{number}/x.h", f"{number}\n")
    (workspace.project / "links/now").symlink_to(f"../{name}")
    (workspace.project / "include").symlink_to("links/now")


def turn(link: Path, to: str) -> None:
    """At once, and with no other name that an event could tell of."""
    link.unlink()
    link.symlink_to(to)


def replace(old: Path, new: Path) -> None:
    """Another folder in place of one: what is below has the names that it had."""
    aside = new.with_name("aside")
    old.rename(aside)
    new.rename(old)


async def stands_or_is_built(workspace: Workspace, change: Callable[[], None], told: str) -> None:
    """A change of a.cu's header is reported at once, and is in the next build of a client that knows the last one."""
    async with watching(workspace) as (harness, watcher):
        known = (await settled(harness, workspace)).request_id
        change()
        assert "a.cu.o" in (await built(harness, workspace.request(known=known))).ran()
        await watcher.changes({told})


def test_a_link_on_the_way_to_a_folder_is_turned(workspace: Workspace) -> None:
    behind_links(workspace, "one")
    link = workspace.project / "links/now"
    asyncio.run(stands_or_is_built(workspace, lambda: turn(link, "../two"), "include/x.h"))


def test_a_link_on_the_way_is_turned_in_a_tree_that_was_found_untouched(workspace: Workspace) -> None:
    behind_links(workspace, "one")

    async def go() -> None:
        async with watching(workspace) as (harness, _):
            await verified(harness, workspace)
            turn(workspace.project / "links/now", "../two")
            assert "a.cu.o" in (await harness.build(workspace.request())).ran()

    asyncio.run(go())


def test_a_link_to_a_link_to_a_file_is_turned(workspace: Workspace) -> None:
    for number in ("one", "two"):
        put(workspace, f"{number}/y.h", f"{number}\n")
    (workspace.project / "links").mkdir()
    (workspace.project / "links/now.h").symlink_to("../one/y.h")
    (workspace.project / NESTED).unlink()
    (workspace.project / NESTED).symlink_to("../../links/now.h")
    link = workspace.project / "links/now.h"
    asyncio.run(stands_or_is_built(workspace, lambda: turn(link, "../two/y.h"), NESTED))


def test_a_folder_above_is_replaced(workspace: Workspace) -> None:
    put(workspace, "include/a/b/c/z.h", "old\n")
    put(workspace, "../new/c/z.h", "new\n")
    workspace.write("include/x.h", '#include "a/b/c/z.h"\n')
    change = partial(replace, workspace.project / "include/a/b", workspace.folder / "new")
    asyncio.run(stands_or_is_built(workspace, change, "include/a/b/c/z.h"))


def test_a_folder_outside_of_the_project_is_replaced(workspace: Workspace) -> None:
    for name in ("shared", "new"):
        (workspace.folder / name).mkdir()
        (workspace.folder / name / "z.h").write_text(f"{name}\n")
    workspace.write("include/x.h", '#include "../../shared/z.h"\n')
    change = partial(replace, workspace.folder / "shared", workspace.folder / "new")
    asyncio.run(stands_or_is_built(workspace, change, f"{workspace.folder}/shared/z.h"))


def test_the_folder_that_the_project_is_in_is_replaced(workspace: Workspace) -> None:
    """As a clone that is made anew around it: nothing tells of that in the project."""

    async def go() -> None:
        above = workspace.folder / "above"
        workspace.project = workspace.project.rename(above.with_name("project"))
        above.mkdir()
        workspace.project = workspace.project.rename(above / "project")
        async with watching(workspace) as (harness, _):
            known = (await settled(harness, workspace)).request_id
            shutil.copytree(above, workspace.folder / "new")
            (workspace.folder / "new/project" / NESTED).write_text("new\n")
            replace(above, workspace.folder / "new")
            request = workspace.request(known=known)
            assert "a.cu.o" in (await built(harness, request)).ran()
            workspace.write(NESTED, "and a save\n")
            assert "a.cu.o" in (await built(harness, workspace.request(known=request.request_id))).ran()

    asyncio.run(go())


def test_a_file_is_saved_under_another_of_its_names(workspace: Workspace) -> None:
    os.link(workspace.project / NESTED, workspace.folder / "elsewhere.h")

    async def go() -> None:
        async with watching(workspace) as (harness, _):
            known = (await settled(harness, workspace)).request_id
            (workspace.folder / "elsewhere.h").write_text("saved there\n")
            assert "a.cu.o" in (await built(harness, workspace.request(known=known))).ran()
            await verified(harness, workspace)
            (workspace.folder / "elsewhere.h").write_text("and again\n")
            assert "a.cu.o" in (await built(harness, workspace.request())).ran()

    asyncio.run(go())


async def verified(harness: Harness, workspace: Workspace) -> None:
    """Until the next build is answered without a look at any file under watch."""
    await built(harness, workspace.request())
    for folder, names, _ in os.walk(workspace.project):
        for path in (folder, *(f"{folder}/{name}" for name in names)):
            os.utime(path, (1_700_000_000, 1_700_000_000))
    (targets,) = harness.scheduler.intake.watches._targets.values()
    deadline = asyncio.get_running_loop().time() + DEADLINE_S
    while targets.verified is None:
        assert asyncio.get_running_loop().time() < deadline
        assert (await built(harness, workspace.request())).done.misses == 0


MOUNTED = """
import asyncio, subprocess, sys
from pathlib import Path
from typing import Any
from tests.support.scheduler_harness import Workspace
from tests.support.watch_request import built, settled, watching

workspace = Workspace(Path(sys.argv[1]))
for path, text in (("src/a.cu", '#include "x.h"'), ("src/b.cu", "b"), ("include/x.h", "x"), ("../x.h", "mounted")):
    workspace.write(path, text)

async def go():
    async with watching(workspace) as (harness, watcher):
        known = (await settled(harness, workspace)).request_id
        subprocess.run(["mount", "--bind", str(workspace.folder), str(workspace.project / "include")], check=True)
        request = workspace.request(known=known)
        assert "a.cu.o" in (await built(harness, request)).ran(), "what was there before"
        workspace.write("include/x.h", "and a save")
        await watcher.changes({"include/x.h"})
        assert "a.cu.o" in (await built(harness, workspace.request(known=request.request_id))).ran(), "a save there"

asyncio.run(go())
"""


@pytest.mark.skipif(bool(why_no_namespaces()), reason="no namespaces")
def test_another_folder_is_mounted_over_one(tmp_path: Path) -> None:
    root = ROOT
    done = subprocess.run(
        ["unshare", "--mount", sys.executable, "-c", MOUNTED, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{root}/tests"},
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr


def test_a_folder_that_is_searched_first_is_replaced(workspace: Workspace) -> None:
    """It was empty, and comes with a file in it."""
    put(workspace, "../new/x.h", "comes first\n")

    async def go() -> None:
        async with watching(workspace) as (harness, watcher):
            await built(harness, workspace.request())
            replace(workspace.project / "first", workspace.folder / "new")
            await watcher.changes({"first/x.h"})

    asyncio.run(go())


def test_headers_of_a_result_that_is_not_stored_where_another_one_was(workspace: Workspace) -> None:
    """The stored one was met first, and did not fit."""

    async def go() -> None:
        async with watching(workspace) as (harness, watcher):
            await built(harness, workspace.request())
            put(workspace, "first/sub/z.h", "below\n")
            workspace.write("first/x.h", '#include "sub/z.h"\n__TIME__\n')
            assert "a.cu.o" in (await built(harness, workspace.request())).ran()
            workspace.write("first/sub/z.h", "one\n")
            await watcher.changes({"first/sub/z.h"})
            await built(harness, workspace.request())
            workspace.write("first/sub/z.h", "two\n")
            await watcher.changes({"first/sub/z.h"})

    asyncio.run(go())


def test_what_comes_and_goes_where_nothing_gives_events(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "SWEEP_S", 0.05)
    monkeypatch.setattr(folder_events, "network_file_system", lambda path: "nfs4")

    async def go() -> None:
        async with watching(workspace) as (harness, watcher):
            await built(harness, workspace.request())
            workspace.write("src/c.cu", "a new source\n")
            await watcher.changes({"src/c.cu"})
            workspace.write("first/x.h", "comes first\n")
            await watcher.changes({"first/x.h"})
            (workspace.project / "src/b.cu").unlink()
            await watcher.changes({"src/b.cu"})
            workspace.write("src/b.cu", "it is back\n")
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
