"""Stories of requests from submit to the last event: real processes, a fake compiler, no socket."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import psutil
import pytest

from buildd.builds.active_build import ActiveBuild
from buildd.keys.file_names import names_below
from buildd.scheduling import completion
from buildd.state.events import NodeSpec
from buildd.store.store import Store
from protocol import messages as m
from tests.support.scheduler_harness import Harness, Story, Workspace
from tests.support.waiting import until_async


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    workspace = Workspace(tmp_path)
    workspace.write("include/x.h", "x\n")
    workspace.write("src/a.cu", '#include "x.h"\na\n')
    workspace.write("src/b.cu", "b\n")
    return workspace


def assert_built(story: Story, hits: int, misses: int) -> None:
    done = story.done
    assert (done.outcome, done.hits, done.misses) == (m.Outcome.BUILT, hits, misses), story


def test_built_then_hit_then_restored(workspace: Workspace) -> None:
    first = workspace.build()
    assert_built(first, 0, 3)
    assert sorted(first.ran()[:2]) == ["a.cu.o", "b.cu.o"] and first.ran()[2] == "all.so"
    assert [a.path for a in first.of(m.Artifact)] == ["build/all.so"]
    library = workspace.library
    inode = os.stat(workspace.project / "build/all.so").st_ino
    assert_built(workspace.build(), 3, 0)
    assert os.stat(workspace.project / "build/all.so").st_ino == inode, "what is there already is not written again"
    (workspace.project / "build/all.so").unlink()
    (workspace.project / "build/a.cu.o").write_text("tampered")
    assert_built(workspace.build(), 3, 0)
    assert workspace.library == library
    assert (workspace.project / "build/a.cu.o").read_bytes() != b"tampered"


def test_a_link_names_the_compile_for_which_it_waited_last(workspace: Workspace) -> None:
    first = workspace.build(jobs=1)
    ran = first.ran()
    assert {event.action: event.after for event in first.of(m.Queued)} == {
        "a.cu.o": "",
        "b.cu.o": "",
        "all.so": ran[1],
    }
    workspace.write("src/b.cu", "other\n")
    again = workspace.build()
    assert {event.action: event.after for event in again.of(m.Queued)} == {"b.cu.o": "", "all.so": "b.cu.o"}


def test_progress_tells_the_memory_of_jobs_and_their_budget(workspace: Workspace) -> None:
    told: list[m.Progress] = []

    async def run() -> None:
        async with Harness(workspace) as harness:
            gate = harness.scheduler.gate
            gate.relieve([])
            assert gate.budget_bytes > 0 == gate.memory_bytes
            told.extend((await harness.build(workspace.request())).of(m.Progress))

    asyncio.run(run())
    assert told[-1].memory_bytes == 0, "nothing runs any more"


def test_who_rests_keeps_no_names_of_files(workspace: Workspace) -> None:
    """They outlive a request: builds ask for the same headers again and again."""

    async def run() -> None:
        async with Harness(workspace) as harness:
            assert_built(await harness.build(workspace.request()), 0, 3)
            assert names_below.cache_info().currsize > 0
            harness.scheduler.rest()
            assert names_below.cache_info().currsize == 0
            assert_built(await harness.build(workspace.request()), 3, 0)

    asyncio.run(run())


def test_an_edited_header_rebuilds_what_includes_it(workspace: Workspace) -> None:
    workspace.build()
    workspace.write("include/x.h", "y\n")
    again = workspace.build()
    assert_built(again, 1, 2)
    assert again.of(m.Queued)[0].reasons == ("input include/x.h: content changed",)
    workspace.write("include/x.h", "x\n")
    assert_built(workspace.build(), 3, 0)


def test_a_new_header_that_shadows_is_seen(workspace: Workspace) -> None:
    workspace.build()
    before = workspace.library
    workspace.write("first/x.h", "other\n")
    assert_built(workspace.build(), 1, 2)
    assert workspace.library != before


def test_a_source_edited_while_it_is_compiled_is_compiled_again(workspace: Workspace) -> None:
    """The tool itself edits its header once: its result is of a mixture and must not be kept."""
    workspace.write("include/x.h", "x\n")
    workspace.write("src/a.cu", '#include "x.h"\n//! edit include/x.h\n')
    first = workspace.build()
    assert first.ran().count("a.cu.o") == 3, "redone until the third run is taken as it is"
    assert [f.note for f in first.of(m.Finished) if f.note] == ["not stored: include/x.h changed while it was read"]
    assert first.done.outcome is m.Outcome.BUILT
    assert "a.cu.o" in workspace.build().ran(), "nothing of it was stored"


def test_a_compile_error_is_told_and_stops_what_stands_on_it(workspace: Workspace) -> None:
    workspace.write("src/a.cu", "//! error no such thing\n")
    story = workspace.build()
    assert story.done.outcome is m.Outcome.FAILED
    (failed,) = story.of(m.Failed)
    assert failed.kind is m.FailureKind.COMPILE_ERROR and failed.exit_status == 1
    assert failed.command.startswith(f"cd {workspace.project} && ") and "src/a.cu" in failed.command
    assert failed.diagnostics[0].message == "no such thing" and failed.diagnostics[0].line == 1
    assert "all.so" not in story.ran()
    assert not (workspace.project / "build/all.so").exists()
    workspace.write("src/a.cu", "a\n")
    assert workspace.build().done.outcome is m.Outcome.BUILT


def test_keep_going(workspace: Workspace) -> None:
    workspace.write("src/a.cu", "//! exit 3\n")
    workspace.write("src/c.cu", "c\n")
    story = workspace.build(keep_going=True)
    assert sorted(story.ran()) == ["a.cu.o", "b.cu.o", "c.cu.o"]
    assert story.done.failures == 1


def test_warnings_are_said_again_on_a_hit(workspace: Workspace) -> None:
    workspace.write("src/a.cu", "//! warning watch out\n//! line hello\n")
    workspace.build()
    story = workspace.build()
    assert_built(story, 3, 0)
    assert {(line.stream, line.text.rpartition(": ")[2]) for line in story.of(m.LogLine)} == {
        ("stderr", "watch out"),
        ("stdout", "hello"),
    }


def test_a_killed_compiler_and_one_that_runs_too_long(workspace: Workspace) -> None:
    workspace.write("src/a.cu", "//! signal 11\n")
    (failed,) = workspace.build().of(m.Failed)
    assert failed.kind is m.FailureKind.KILLED and failed.signal == 11
    workspace.write("src/a.cu", "//! sleep 30\n")
    (failed,) = workspace.build(environment={"TIMEOUT": "0.5"}).of(m.Failed)
    assert failed.kind is m.FailureKind.TIMEOUT and "0.5 s" in failed.message


def test_out_of_memory_is_recognised_and_run_again_alone(workspace: Workspace) -> None:
    workspace.write("src/a.cu", "//! oom\n")
    story = workspace.build()
    assert story.ran().count("a.cu.o") == 2
    assert any("runs again alone" in notice.text for notice in story.of(m.Notice))
    (failed,) = story.of(m.Failed)
    assert failed.kind is m.FailureKind.OUT_OF_MEMORY
    assert "killed by signal 9 twice" in failed.message and "build again" in failed.next_step


def test_a_tool_that_writes_no_output(workspace: Workspace) -> None:
    workspace.write("src/a.cu", "//! no-output\n")
    (failed,) = workspace.build().of(m.Failed)
    assert failed.kind is m.FailureKind.OUTPUT_MISSING


def test_no_environment_of_one_request_reaches_another(workspace: Workspace) -> None:
    workspace.write("src/a.cu", "//! env SECRET\n")

    async def story() -> tuple[bytes, bytes, bytes]:
        async with Harness(workspace) as harness:
            libraries = []
            for value in ({"SECRET": "one"}, {}, {"SECRET": "one"}):
                await harness.build(workspace.request(environment={"PATH": "/usr/bin:/bin", **value}))
                libraries.append(workspace.library)
            return libraries[0], libraries[1], libraries[2]

    os.environ["SECRET"] = "the daemon's own"
    try:
        with_it, without, again = asyncio.run(story())
    finally:
        del os.environ["SECRET"]
    assert with_it == again != without


def test_equal_requests_in_flight_run_once(workspace: Workspace) -> None:
    workspace.write("src/a.cu", "//! touch started\n//! log runs\n//! wait-for go\n")

    async def story() -> list[Story]:
        async with Harness(workspace) as harness:
            first = harness.submit(workspace.request())
            await harness.until(first, lambda b: isinstance(b, m.Started) and b.action == "a.cu.o")
            others = [harness.submit(workspace.request()) for _ in range(5)]
            for log in others:
                await harness.until(log, lambda b: isinstance(b, m.Queued) and b.action == "a.cu.o" and b.shared)
            workspace.write("go", "")
            return [await harness.finish(log) for log in (first, *others)]

    stories = asyncio.run(story())
    assert all(s.done.outcome is m.Outcome.BUILT for s in stories)
    assert (workspace.project / "runs").read_text().count("\n") == 1


def test_cancel_leaves_no_process_behind(workspace: Workspace) -> None:
    workspace.write("src/a.cu", "//! ignore-term\n//! spawn-grandchild 60\n//! touch started\n//! wait-for never\n")

    async def story() -> Story:
        async with Harness(workspace) as harness:
            log = harness.submit(workspace.request())
            await harness.until(log, lambda b: isinstance(b, m.Started) and b.action == "a.cu.o")
            await until_async((workspace.project / "started").exists, "started is there")
            assert harness.scheduler.cancel(log.request_id)
            done = await harness.finish(log)
            assert harness.scheduler.cancel(log.request_id) is False
            return done

    assert asyncio.run(story()).done.outcome is m.Outcome.CANCELLED
    left = [p for p in psutil.process_iter(["cmdline"]) if str(workspace.project) in " ".join(p.info["cmdline"] or ())]
    assert not left
    assert not list((workspace.store / "tmp").glob("*/job-*"))


def test_cancelled_while_it_is_planned_nothing_runs(workspace: Workspace) -> None:
    async def story() -> Story:
        async with Harness(workspace) as harness:
            log = harness.submit(workspace.request())
            assert harness.scheduler.cancel(log.request_id)
            return await harness.finish(log)

    cancelled = asyncio.run(story())
    assert cancelled.done.outcome is m.Outcome.CANCELLED
    assert not cancelled.ran()


def test_cancel_of_one_follower_leaves_the_job_to_the_other(workspace: Workspace) -> None:
    workspace.write("src/a.cu", "//! log runs\n//! wait-for go\n")

    async def story() -> tuple[Story, Story]:
        async with Harness(workspace) as harness:
            first, second = harness.submit(workspace.request()), harness.submit(workspace.request())
            for log in (first, second):
                await harness.until(log, lambda b: isinstance(b, m.Queued) and b.action == "a.cu.o")
            harness.scheduler.cancel(first.request_id)
            workspace.write("go", "")
            return await harness.finish(first), await harness.finish(second)

    cancelled, built = asyncio.run(story())
    assert cancelled.done.outcome is m.Outcome.CANCELLED
    assert built.done.outcome is m.Outcome.BUILT
    assert (workspace.project / "runs").read_text().count("\n") == 1


def test_a_plan_that_waits_for_itself_ends_no_other_request(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace.write("src/a.cu", "//! wait-for go\n")
    sound = ActiveBuild.graph

    async def story() -> tuple[Story, Story]:
        async with Harness(workspace) as harness:
            first = harness.submit(workspace.request())
            await harness.until(first, lambda b: isinstance(b, m.Queued) and b.action == "a.cu.o")
            monkeypatch.setattr(ActiveBuild, "graph", lambda build: (NodeSpec((0,), 1.0), *sound(build)[1:]))
            second = await harness.finish(harness.submit(workspace.request()))
            workspace.write("go", "")
            return await harness.finish(first), second

    built, cyclic = asyncio.run(story())
    assert cyclic.done.outcome is m.Outcome.DAEMON_ERROR and "cycle" in cyclic.done.message
    assert built.done.outcome is m.Outcome.BUILT


def test_the_cap_of_a_request(workspace: Workspace) -> None:
    for n in range(2):
        workspace.write(
            f"src/n{n}.cu", f"//! touch in{n}\n//! wait-for in{1 - n}\n//! exclusive held\n//! sleep 1\n{n}\n"
        )
    assert workspace.build().done.outcome is m.Outcome.FAILED, "two at once: this test can tell"
    for n in range(4):
        workspace.write(f"src/n{n}.cu", f"//! exclusive held\n//! sleep 0.3\n{n}\n")
    assert workspace.build(jobs=1).done.outcome is m.Outcome.BUILT


def test_ten_megabytes_of_output(workspace: Workspace) -> None:
    workspace.write("src/a.cu", "//! print 10M\n//! print-error 10M\n")
    story = workspace.build()
    assert story.done.outcome is m.Outcome.BUILT
    assert_built(workspace.build(), 3, 0)


def test_warm_writes_no_outputs_and_prove_names_what_would_run(workspace: Workspace) -> None:
    cold = workspace.build(mode=m.Mode.PROVE)
    assert cold.done.outcome is m.Outcome.FAILED
    assert [e.action for e in cold.of(m.Explained)] == ["a.cu.o", "b.cu.o", "all.so"]
    assert not cold.ran()
    assert_built(workspace.build(mode=m.Mode.WARM), 0, 3)
    assert not (workspace.project / "build").exists()
    assert workspace.build(mode=m.Mode.PROVE).done.outcome is m.Outcome.BUILT
    workspace.write("src/b.cu", "b2\n")
    proved = workspace.build(mode=m.Mode.PROVE)
    assert {e.action: e.reasons for e in proved.of(m.Explained)} == {
        "b.cu.o": ("input src/b.cu: content changed",),
        "all.so": ("an input is made by b.cu.o, which would run",),
    }
    assert_built(workspace.build(mode=m.Mode.WARM), 1, 2)
    assert_built(workspace.build(), 3, 0)
    assert not list((workspace.store / "tmp").glob("*/warm-*"))


def test_explain_says_hit_or_why(workspace: Workspace) -> None:
    workspace.build()
    workspace.write("include/x.h", "y\n")
    explained = {e.action: e for e in workspace.build(mode=m.Mode.EXPLAIN).of(m.Explained)}
    assert explained["b.cu.o"].reasons == ("hit: same inputs",)
    assert explained["a.cu.o"].reasons == ("input include/x.h: content changed",)
    assert not explained["b.cu.o"].would_run and explained["all.so"].would_run


def test_explain_compares_with_a_build_that_has_not_written_its_notes(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are written after the end of a build is told."""
    monkeypatch.setattr(completion, "_keep_all", lambda *_: None)

    async def explained() -> Story:
        async with Harness(workspace) as harness:
            await harness.build(workspace.request())
            workspace.write("src/b.cu", "another\n")
            return await harness.build(workspace.request(mode=m.Mode.EXPLAIN))

    reasons = {body.action: body.reasons for body in asyncio.run(explained()).of(m.Explained)}
    assert reasons["b.cu.o"] == ("input src/b.cu: content changed",)


def test_recache_runs_everything_again(workspace: Workspace) -> None:
    workspace.build()
    assert_built(workspace.build(recache=True), 0, 3)


def test_a_damaged_blob_is_rebuilt(workspace: Workspace) -> None:
    workspace.write("src/a.cu", "a\n//! print 200K\n")
    workspace.build()
    library = workspace.library
    for blob in (workspace.store / "blobs").glob("*/*"):
        content = bytearray(blob.read_bytes())
        content[len(content) // 2] ^= 1
        blob.chmod(0o600)
        blob.write_bytes(content)
    (workspace.store / "index.db").write_bytes(b"not a database at all" * 1000)
    for beside in ("index.db-wal", "index.db-shm"):
        (workspace.store / beside).unlink(missing_ok=True)
    (workspace.project / "build/all.so").unlink()
    story = workspace.build()
    assert story.done.outcome is m.Outcome.BUILT
    assert workspace.library == library


def test_an_output_folder_that_cannot_be_written(workspace: Workspace) -> None:
    (workspace.project / "build").write_text("a file where a folder should be")
    story = workspace.build()
    assert story.done.outcome is m.Outcome.FAILED
    failed = story.of(m.Failed)[0]
    assert failed.kind is m.FailureKind.STORE and str(workspace.project / "build") in failed.message


def test_an_output_that_is_a_link_is_replaced_not_followed(workspace: Workspace) -> None:
    elsewhere = workspace.write("elsewhere", "precious")
    (workspace.project / "build").mkdir()
    (workspace.project / "build/all.so").symlink_to(elsewhere)
    workspace.build()
    assert elsewhere.read_text() == "precious"
    assert not (workspace.project / "build/all.so").is_symlink()


def test_symlinked_and_read_only_sources(workspace: Workspace) -> None:
    real = workspace.write("real.txt", "real\n")
    (workspace.project / "src/link.cu").symlink_to(real)
    workspace.write("src/b.cu", "b\n").chmod(0o400)
    assert workspace.build().done.outcome is m.Outcome.BUILT
    real.write_text("changed\n")
    assert "link.cu.o" in workspace.build().ran()


def test_file_names_that_are_no_utf8(workspace: Workspace) -> None:
    Path(os.fsdecode(os.fsencode(workspace.project) + b"/src/k\xe9rnel.cu")).write_text("k\n")
    first = workspace.build()
    assert_built(first, 0, 4)
    assert_built(workspace.build(), 4, 0)


def test_two_checkouts_with_the_same_content(workspace: Workspace) -> None:
    workspace.build()
    first = workspace.library
    twin = Workspace(workspace.folder / "twin")
    twin.store = workspace.store
    for path in ("include/x.h", "src/a.cu", "src/b.cu"):
        twin.write(path, (workspace.project / path).read_text())
    assert_built(twin.build(), 3, 0)
    assert twin.library == first


def test_the_build_is_kept_in_the_log(workspace: Workspace) -> None:
    workspace.build()
    with Store.open(workspace.store) as store:
        (build,) = store.builds()
        assert build.outcome is m.Outcome.BUILT and build.summary.misses == 3
        assert store.build_events(build.request_id)


def test_nothing_to_do_is_known_from_stamps_alone(workspace: Workspace) -> None:
    workspace.build()
    workspace.build()
    third = workspace.build()
    while third.done.message != "nothing to do":  # folders and outputs must be older than a clock step
        third = workspace.build()
    assert_built(third, 3, 0)
    assert not third.of(m.CacheHit) and third.of(m.Artifact)
    with Store.open(workspace.store) as store:
        assert [build.targets for build in store.builds(2)] == [("all",)] * 2, "`buildd log` names the targets"
    changes = {
        "input include/x.h": lambda: workspace.write("include/x.h", "y\n"),
        "a new source": lambda: workspace.write("src/c.cu", "c\n"),
        "a shadowing header": lambda: workspace.write("first/x.h", "z\n"),
        "an output gone": (workspace.project / "build/a.cu.o").unlink,
        "an output altered": lambda: workspace.write("build/all.so", "tampered"),
        "other variables": None,
    }
    for what, change in changes.items():
        library = workspace.library if what != "other variables" else b""
        if change is not None:
            change()
        story = workspace.build() if change else workspace.build(environment={"PATH": "/usr/bin:/bin", "LANG": "C"})
        assert story.done.outcome is m.Outcome.BUILT, what
        assert story.done.message != "nothing to do", what
        if "output" in what:
            assert workspace.library == library, what


@pytest.mark.parametrize("place", ["shell", "buildd.toml", "config.toml"])
def test_num_builders_caps_a_request_and_a_time_line_is_told_for_every_job(workspace: Workspace, place: str) -> None:
    for n in range(3):
        workspace.write(f"src/n{n}.cu", f"//! exclusive held\n//! sleep 0.3\n{n}\n")
    environment, file = workspace.set_in(place, NUM_BUILDERS="1", AIT_TIME_COMPILATION="1")
    story = workspace.build(environment=environment, file=file)
    assert story.done.outcome is m.Outcome.BUILT
    lines = [line.text for line in story.of(m.LogLine) if line.text.startswith("exit_status=0 elapsed_sec=")]
    assert len(lines) == len(story.ran()) == 6
    untimed = workspace.build(
        environment={"PATH": "/usr/bin:/bin", "AIT_TIME_COMPILATION": "yes"}, recache=True, jobs=1
    )
    assert not untimed.of(m.LogLine), "only exactly 1 is on"


def test_the_shell_wins_over_the_files(workspace: Workspace) -> None:
    workspace.write("src/a.cu", "a\n")
    environment, file = workspace.set_in("buildd.toml", AIT_TIME_COMPILATION="1")
    assert not workspace.build(environment={**environment, "AIT_TIME_COMPILATION": "0"}, file=file).of(m.LogLine)


@pytest.mark.parametrize("place", ["shell", "buildd.toml", "config.toml"])
def test_the_profiles_in_cache_dir_are_emptied_once_for_a_build(workspace: Workspace, place: str) -> None:
    workspace.write("src/a.cu", "a\n")
    environment, file = workspace.set_in(place, FLUSH_PROFILE_CACHE="1", CACHE_DIR="profiles")
    said = "FLUSH_PROFILE_CACHE=1: the profiles are emptied"
    story = workspace.build(environment=environment, file=file, build_id="one")
    assert said in [notice.text for notice in story.of(m.Notice)]
    assert (workspace.project / "profiles/buildd/index.db").exists()
    again = workspace.build(environment=environment, file=file, build_id="one")
    assert said not in [notice.text for notice in again.of(m.Notice)]
    later = workspace.build(environment=environment, file=file, build_id="two")
    assert said in [notice.text for notice in later.of(m.Notice)], "also where nothing is to be built"


def test_a_store_inside_the_project(workspace: Workspace) -> None:
    """What a job writes below the store, and reads again, is its own business wherever the store is."""
    workspace.write("src/a.cu", "//! read-temporary\na\n")
    workspace.store = workspace.project / ".cache"
    first = workspace.build()
    assert_built(first, 0, 3)
    assert len(first.ran()) == 3, "nothing looks as if it had changed meanwhile"
    assert_built(workspace.build(), 3, 0)
