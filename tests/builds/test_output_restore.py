"""Outputs that are gone and whose inputs stand are put back without a plan, and only then."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from buildd.builds.event_log import RequestLog
from buildd.files.listings import folders_above, names_in
from buildd.store import garbage_collection
from buildd.store.figures import stats
from buildd.store.store import Store
from codegen.plan import Discovery, GeneratedFile, Knowledge, Plan
from protocol import messages as m
from tests.support.scheduler_harness import Harness, Story, Workspace, fake_plan
from tests.support.settled_builds import build, built, clean, during, settle
from tests.support.waiting import until

plans = 0
SEARCHED = (".", "build")


def counted(request: m.Request, knowledge: Knowledge) -> Plan:
    """Folders are searched in which outputs come and go."""
    global plans
    plans += 1
    plan = fake_plan(request, knowledge)
    *compiles, link = plan.actions
    more = [word for folder in SEARCHED for word in ("-I", folder)]
    compiles = [
        msgspec.structs.replace(each, argv=(*each.argv, *more), search=(*each.search, *SEARCHED)) for each in compiles
    ]
    notes = GeneratedFile(path="made/notes.txt", content=b"for people\n")
    return msgspec.structs.replace(plan, actions=(*compiles, link), files=(notes,))


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    workspace = Workspace(tmp_path, make=counted)
    workspace.write("include/x.h", "x\n")
    workspace.write("src/a.cu", '#include "x.h"\na\n')
    workspace.write("src/b.cu", "b\n")
    build(workspace)
    return workspace


def gone(workspace: Workspace) -> None:
    shutil.rmtree(workspace.project / "build")


@contextmanager
def planned(times: int) -> Iterator[None]:
    before = plans
    yield
    assert plans - before == times


def assert_hits(story: Story) -> None:
    done = story.done
    assert (done.outcome, done.hits, done.misses, done.message) == (m.Outcome.BUILT, 3, 0, ""), story


def test_outputs_that_are_gone_are_put_back_without_a_plan(workspace: Workspace) -> None:
    long_way = build(workspace)
    left = {path.name: path.read_bytes() for path in (workspace.project / "build").iterdir()}
    gone(workspace)
    with planned(0):
        story = build(workspace)
    assert_hits(story)
    assert {path.name: path.read_bytes() for path in (workspace.project / "build").iterdir()} == left
    assert sorted(hit.action for hit in story.of(m.CacheHit)) == ["a.cu.o", "all.so", "b.cu.o"]
    assert story.of(m.Artifact) == long_way.of(m.Artifact)
    assert story.done.saved_s == sum(hit.saved_s for hit in story.of(m.CacheHit)) > 0
    assert story.of(m.Planned)[0].actions == 3
    with Store.open(workspace.store) as store:
        last = store.builds()[0]
        assert last.targets == ("all",) and last.summary.hits == 3
    with planned(0):
        assert build(workspace).done.message == "nothing to do"


def test_what_is_as_it_should_be_is_not_written_again(workspace: Workspace) -> None:
    kept, lost = workspace.project / "build/b.cu.o", workspace.project / "build/a.cu.o"
    inode = kept.stat().st_ino
    lost.write_text("tampered")
    with planned(0):
        story = build(workspace)
    assert_hits(story)
    assert [hit.action for hit in story.of(m.CacheHit) if hit.saved_s] == ["a.cu.o"], "the others lay there"
    assert kept.stat().st_ino == inode and built(workspace) == clean(workspace)


def test_the_kinds_of_hits_and_misses_add_up(workspace: Workspace) -> None:
    build(workspace)
    gone(workspace)
    build(workspace)
    workspace.write("src/b.cu", "another\n")
    build(workspace)
    with Store.open(workspace.store) as store:
        found = stats(store)
    assert found.hit == {"up to date": 3, "by content": 4} and sum(found.hit.values()) == found.counters["hits"]
    assert found.missed == {"new": 3, "input": 2} and sum(found.missed.values()) == found.counters["misses"]


def test_the_folder_of_outputs_may_come_and_go_in_one_that_is_searched(workspace: Workspace) -> None:
    """Its stamp is another one then, and its names are looked at: as after `rm -rf build` in the project's folder."""
    for _ in range(3):
        shutil.rmtree(workspace.project / "build")
        with planned(0):
            assert_hits(build(workspace))
        assert built(workspace) == clean(workspace)
    with planned(0):
        assert build(workspace).done.message == "nothing to do"


@pytest.mark.parametrize(
    "change",
    [
        lambda workspace: workspace.write("include/x.h", "y\n"),
        lambda workspace: workspace.write("first/x.h", "found first\n"),
        lambda workspace: workspace.write("src/c.cu", "c\n"),
        lambda workspace: (workspace.project / "made/notes.txt").unlink(),
        lambda workspace: workspace.write("unrelated", "beside the folder of outputs, where headers are searched\n"),
    ],
    ids=["input", "shadowing", "source", "generated", "name"],
)
def test_whatever_else_changed_takes_a_plan(workspace: Workspace, change: Callable[[Workspace], object]) -> None:
    gone(workspace)
    change(workspace)
    with planned(1):
        assert build(workspace).done.outcome is m.Outcome.BUILT
    assert built(workspace) == clean(workspace)
    assert (workspace.project / "made/notes.txt").read_text() == "for people\n"


def test_results_that_were_flushed_are_made_again(workspace: Workspace) -> None:
    with Store.open(workspace.store) as store:
        assert garbage_collection.flush(store, "a.cu*").results == 1
    gone(workspace)
    story = build(workspace)
    assert story.ran() == ["a.cu.o"] and story.done.hits == 2, story
    assert built(workspace) == clean(workspace)


def test_a_damaged_output_in_the_store_is_made_again(workspace: Workspace) -> None:
    with Store.open(workspace.store) as store:
        store.database.transact(lambda index: index.execute("UPDATE blobs SET data = zeroblob(20)"))
    gone(workspace)
    story = build(workspace)
    assert len(story.ran()) == 3 and len(story.of(m.CacheHit)) == 0, story
    assert built(workspace) == clean(workspace)


def test_a_lost_list_of_results_takes_a_plan(workspace: Workspace) -> None:
    with Store.open(workspace.store) as store:
        lists = [name for (name,) in store.database.rows("SELECT name FROM records") if store.record(name.hex())]
        lists = [name for name in lists if b"a.cu.o" in (store.record(name.hex()) or b"") and name]
        store.database.transact(
            lambda index: [index.execute("DELETE FROM records WHERE name = ?", (name,)) for name in lists[:1]]
        )
    gone(workspace)
    assert_hits(build(workspace))
    assert built(workspace) == clean(workspace)


@pytest.mark.parametrize("path", ["include/x.h", "src/a.cu", "src/new.cu", "first/x.h"])
def test_what_is_saved_when_the_end_is_told_is_built_next(workspace: Workspace, path: str) -> None:
    """The record of a build is written after its last event: it must be of what the build has seen."""

    async def saved_at_the_end(request: m.Request) -> None:
        async with Harness(workspace) as harness:
            log = RequestLog(request.request_id)
            log.listen(lambda event: workspace.write(path, "saved\n") if isinstance(event.body, m.Done) else None)
            harness.scheduler.submit(request, log)
            await harness.finish(log)

    for recache in (True, False):
        gone(workspace)
        settle(workspace)
        asyncio.run(saved_at_the_end(workspace.request(recache=recache)))
        build(workspace)
        assert built(workspace) == clean(workspace), path
        workspace.write(path, "again\n")
        build(workspace)
        assert built(workspace) == clean(workspace), path


def test_who_asks_right_after_the_end_finds_its_record(workspace: Workspace) -> None:
    async def twice() -> None:
        async with Harness(workspace) as harness:
            assert_hits(await harness.build(workspace.request()))
            assert (await harness.build(workspace.request())).done.message == "nothing to do"

    gone(workspace)
    settle(workspace)
    with planned(0):
        asyncio.run(twice())


def test_an_input_that_changed_when_its_own_action_was_done(tmp_path: Path) -> None:
    """The build does not look at the input again, and for another action it looks at the whole project afresh: the
    input is then not the one that was compiled."""

    def undiscovered(request: m.Request, knowledge: Knowledge) -> Plan:
        plan = fake_plan(request, knowledge)
        found = [
            msgspec.structs.replace(each, discovery=Discovery.NONE, search=()) if each.name == "b.cu.o" else each
            for each in plan.actions
        ]
        return msgspec.structs.replace(plan, actions=tuple(found), read=())

    workspace = Workspace(tmp_path, make=undiscovered)
    workspace.write("include/x.h", "x\n")
    workspace.write("src/a.cu", '#include "x.h"\na\n')
    workspace.write("src/b.cu", "b\n")

    def change() -> None:
        until((workspace.project / "build/b.cu.o").exists, "b.cu is not compiled")
        workspace.write("src/b.cu", "saved meanwhile\n")
        workspace.write("include/x.h", "saved as well\n")

    during(workspace, change)
    build(workspace)
    assert built(workspace) == clean(workspace) and built(workspace, "b.cu") == clean(workspace, "b.cu")


# ---------------------------------------------------------------- what is beside outputs


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("include", "build/obj"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("a.h", "build/obj/a.o"):
        (tmp_path / name).touch()
    (tmp_path / "link").symlink_to("include")
    return tmp_path


def test_outputs_come_and_go_and_nothing_else(project: Path) -> None:
    above = folders_above([f"{project}/build/obj/a.o", f"{project}/build/obj/b.o"])
    before = names_in(str(project), above)
    assert before and names_in(f"{project}/.", above) == before
    shutil.rmtree(project / "build")
    assert names_in(str(project), above) == before


def test_a_folder_of_outputs_alone_may_be_gone(project: Path) -> None:
    above = folders_above([f"{project}/build/obj/a.o"])
    before = names_in(f"{project}/build/obj", above)
    (project / "build/obj/a.o").unlink()
    assert names_in(f"{project}/build/obj", above) == before
    (project / "build/obj").rmdir()
    assert names_in(f"{project}/build/obj", above) == before and names_in(f"{project}/nothing", above) == ""
    (project / "build/obj").mkdir()
    (project / "build/obj/b.h").touch()
    assert names_in(f"{project}/build/obj", above) != before


@pytest.mark.parametrize("what", ["file", "removed", "folder", "link", "output"])
def test_every_other_name_counts_with_its_kind(project: Path, what: str) -> None:
    above = folders_above([f"{project}/build/obj/a.o"])
    before = names_in(str(project), above)
    if what == "file":
        (project / "b.h").touch()
    elif what == "removed":
        (project / "a.h").unlink()
    elif what == "folder":
        (project / "a.h").unlink()
        (project / "a.h").mkdir()
    elif what == "link":
        (project / "link").unlink()
        (project / "link").symlink_to("build")
    else:
        (project / "build").rename(project / "elsewhere")
        (project / "build").symlink_to("include")
    assert names_in(str(project), above) != before
