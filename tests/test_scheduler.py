"""Stories of requests from submit to the last event: real processes, a fake compiler, no socket."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import psutil
import pytest

from buildd.names import names_below
from protocol import messages as m
from tests.floor import Floor, Shop, Story


@pytest.fixture
def floor(tmp_path: Path) -> Floor:
    floor = Floor(tmp_path)
    floor.write("include/x.h", "x\n")
    floor.write("src/a.cu", '#include "x.h"\na\n')
    floor.write("src/b.cu", "b\n")
    return floor


def assert_built(story: Story, hits: int, misses: int) -> None:
    done = story.done
    assert (done.outcome, done.hits, done.misses) == (m.Outcome.BUILT, hits, misses), story


def test_built_then_hit_then_restored(floor: Floor) -> None:
    first = floor.build()
    assert_built(first, 0, 3)
    assert sorted(first.ran()[:2]) == ["a.cu.o", "b.cu.o"] and first.ran()[2] == "all.so"
    assert [a.path for a in first.of(m.Artifact)] == ["build/all.so"]
    library = floor.library
    inode = os.stat(floor.project / "build/all.so").st_ino
    assert_built(floor.build(), 3, 0)
    assert os.stat(floor.project / "build/all.so").st_ino == inode, "what is there already is not written again"
    (floor.project / "build/all.so").unlink()
    (floor.project / "build/a.cu.o").write_text("tampered")
    assert_built(floor.build(), 3, 0)
    assert floor.library == library
    assert (floor.project / "build/a.cu.o").read_bytes() != b"tampered"


def test_who_rests_keeps_no_names_of_files(floor: Floor) -> None:
    """They outlive a request: builds ask for the same headers again and again."""

    async def run() -> None:
        async with Shop(floor) as shop:
            assert_built(await shop.build(floor.request()), 0, 3)
            assert names_below.cache_info().currsize > 0
            shop.scheduler.rest()
            assert names_below.cache_info().currsize == 0
            assert_built(await shop.build(floor.request()), 3, 0)

    asyncio.run(run())


def test_an_edited_header_rebuilds_what_includes_it(floor: Floor) -> None:
    floor.build()
    floor.write("include/x.h", "y\n")
    again = floor.build()
    assert_built(again, 1, 2)
    assert again.of(m.Queued)[0].reasons == ("input include/x.h: content changed",)
    floor.write("include/x.h", "x\n")
    assert_built(floor.build(), 3, 0)


def test_a_new_header_that_shadows_is_seen(floor: Floor) -> None:
    floor.build()
    before = floor.library
    floor.write("first/x.h", "other\n")
    assert_built(floor.build(), 1, 2)
    assert floor.library != before


def test_a_source_edited_while_it_is_compiled_is_compiled_again(floor: Floor) -> None:
    """The tool itself edits its header once: its result is of a mixture and must not be kept."""
    floor.write("include/x.h", "x\n")
    floor.write("src/a.cu", '#include "x.h"\n//! edit include/x.h\n')
    first = floor.build()
    assert first.ran().count("a.cu.o") == 3, "redone until the third run is taken as it is"
    assert [f.note for f in first.of(m.Finished) if f.note] == ["not stored: include/x.h changed while it was read"]
    assert first.done.outcome is m.Outcome.BUILT
    assert "a.cu.o" in floor.build().ran(), "nothing of it was stored"


def test_a_compile_error_is_told_and_stops_what_stands_on_it(floor: Floor) -> None:
    floor.write("src/a.cu", "//! error no such thing\n")
    story = floor.build()
    assert story.done.outcome is m.Outcome.FAILED
    (failed,) = story.of(m.Failed)
    assert failed.kind is m.FailureKind.COMPILE_ERROR and failed.exit_status == 1
    assert failed.command.startswith(f"cd {floor.project} && ") and "src/a.cu" in failed.command
    assert failed.diagnostics[0].message == "no such thing" and failed.diagnostics[0].line == 1
    assert "all.so" not in story.ran()
    assert not (floor.project / "build/all.so").exists()
    floor.write("src/a.cu", "a\n")
    assert floor.build().done.outcome is m.Outcome.BUILT


def test_keep_going(floor: Floor) -> None:
    floor.write("src/a.cu", "//! exit 3\n")
    floor.write("src/c.cu", "c\n")
    story = floor.build(keep_going=True)
    assert sorted(story.ran()) == ["a.cu.o", "b.cu.o", "c.cu.o"]
    assert story.done.failures == 1


def test_warnings_are_said_again_on_a_hit(floor: Floor) -> None:
    floor.write("src/a.cu", "//! warning watch out\n//! line hello\n")
    floor.build()
    story = floor.build()
    assert_built(story, 3, 0)
    assert {(line.stream, line.text.rpartition(": ")[2]) for line in story.of(m.LogLine)} == {
        ("stderr", "watch out"),
        ("stdout", "hello"),
    }


def test_a_killed_compiler_and_one_that_runs_too_long(floor: Floor) -> None:
    floor.write("src/a.cu", "//! signal 11\n")
    (failed,) = floor.build().of(m.Failed)
    assert failed.kind is m.FailureKind.KILLED and failed.signal == 11
    floor.write("src/a.cu", "//! sleep 30\n")
    (failed,) = floor.build(environment={"TIMEOUT": "0.5"}).of(m.Failed)
    assert failed.kind is m.FailureKind.TIMEOUT and "0.5 s" in failed.message


def test_out_of_memory_is_recognised_and_run_again_alone(floor: Floor) -> None:
    floor.write("src/a.cu", "//! oom\n")
    story = floor.build()
    assert story.ran().count("a.cu.o") == 2
    assert any("runs again alone" in notice.text for notice in story.of(m.Notice))
    (failed,) = story.of(m.Failed)
    assert failed.kind is m.FailureKind.OUT_OF_MEMORY


def test_a_tool_that_writes_no_output(floor: Floor) -> None:
    floor.write("src/a.cu", "//! no-output\n")
    (failed,) = floor.build().of(m.Failed)
    assert failed.kind is m.FailureKind.OUTPUT_MISSING


def test_no_environment_of_one_request_reaches_another(floor: Floor) -> None:
    floor.write("src/a.cu", "//! env SECRET\n")

    async def story() -> tuple[bytes, bytes, bytes]:
        async with Shop(floor) as shop:
            libraries = []
            for value in ({"SECRET": "one"}, {}, {"SECRET": "one"}):
                await shop.build(floor.request(environment={"PATH": "/usr/bin:/bin", **value}))
                libraries.append(floor.library)
            return libraries[0], libraries[1], libraries[2]

    os.environ["SECRET"] = "the daemon's own"
    try:
        with_it, without, again = asyncio.run(story())
    finally:
        del os.environ["SECRET"]
    assert with_it == again != without


def test_equal_requests_in_flight_run_once(floor: Floor) -> None:
    floor.write("src/a.cu", "//! touch started\n//! log runs\n//! wait-for go\n")

    async def story() -> list[Story]:
        async with Shop(floor) as shop:
            first = shop.submit(floor.request())
            await shop.until(first, lambda b: isinstance(b, m.Started) and b.action == "a.cu.o")
            others = [shop.submit(floor.request()) for _ in range(5)]
            for log in others:
                await shop.until(log, lambda b: isinstance(b, m.Queued) and b.action == "a.cu.o" and b.shared)
            floor.write("go", "")
            return [await shop.finish(log) for log in (first, *others)]

    stories = asyncio.run(story())
    assert all(s.done.outcome is m.Outcome.BUILT for s in stories)
    assert (floor.project / "runs").read_text().count("\n") == 1


def test_cancel_leaves_no_process_behind(floor: Floor) -> None:
    floor.write("src/a.cu", "//! ignore-term\n//! spawn-grandchild 60\n//! touch started\n//! wait-for never\n")

    async def story() -> Story:
        async with Shop(floor) as shop:
            log = shop.submit(floor.request())
            await shop.until(log, lambda b: isinstance(b, m.Started) and b.action == "a.cu.o")
            while not (floor.project / "started").exists():
                await asyncio.sleep(0)
            assert shop.scheduler.cancel(log.request_id)
            done = await shop.finish(log)
            assert shop.scheduler.cancel(log.request_id) is False
            return done

    assert asyncio.run(story()).done.outcome is m.Outcome.CANCELLED
    left = [p for p in psutil.process_iter(["cmdline"]) if str(floor.project) in " ".join(p.info["cmdline"] or ())]
    assert not left
    assert not list((floor.store / "tmp").glob("*/job-*"))


def test_cancelled_while_it_is_planned_nothing_runs(floor: Floor) -> None:
    async def story() -> Story:
        async with Shop(floor) as shop:
            log = shop.submit(floor.request())
            assert shop.scheduler.cancel(log.request_id)
            return await shop.finish(log)

    cancelled = asyncio.run(story())
    assert cancelled.done.outcome is m.Outcome.CANCELLED
    assert not cancelled.ran()


def test_cancel_of_one_follower_leaves_the_job_to_the_other(floor: Floor) -> None:
    floor.write("src/a.cu", "//! log runs\n//! wait-for go\n")

    async def story() -> tuple[Story, Story]:
        async with Shop(floor) as shop:
            first, second = shop.submit(floor.request()), shop.submit(floor.request())
            for log in (first, second):
                await shop.until(log, lambda b: isinstance(b, m.Queued) and b.action == "a.cu.o")
            shop.scheduler.cancel(first.request_id)
            floor.write("go", "")
            return await shop.finish(first), await shop.finish(second)

    cancelled, built = asyncio.run(story())
    assert cancelled.done.outcome is m.Outcome.CANCELLED
    assert built.done.outcome is m.Outcome.BUILT
    assert (floor.project / "runs").read_text().count("\n") == 1


def test_the_cap_of_a_request(floor: Floor) -> None:
    for n in range(2):
        floor.write(f"src/n{n}.cu", f"//! touch in{n}\n//! wait-for in{1 - n}\n//! exclusive held\n//! sleep 1\n{n}\n")
    assert floor.build().done.outcome is m.Outcome.FAILED, "two at once: this test can tell"
    for n in range(4):
        floor.write(f"src/n{n}.cu", f"//! exclusive held\n//! sleep 0.3\n{n}\n")
    assert floor.build(jobs=1).done.outcome is m.Outcome.BUILT


def test_ten_megabytes_of_output(floor: Floor) -> None:
    floor.write("src/a.cu", "//! print 10M\n//! print-error 10M\n")
    story = floor.build()
    assert story.done.outcome is m.Outcome.BUILT
    assert_built(floor.build(), 3, 0)


def test_warm_writes_no_outputs_and_prove_names_what_would_run(floor: Floor) -> None:
    cold = floor.build(mode=m.Mode.PROVE)
    assert cold.done.outcome is m.Outcome.FAILED
    assert [e.action for e in cold.of(m.Explained)] == ["a.cu.o", "b.cu.o", "all.so"]
    assert not cold.ran()
    assert_built(floor.build(mode=m.Mode.WARM), 0, 3)
    assert not (floor.project / "build").exists()
    assert floor.build(mode=m.Mode.PROVE).done.outcome is m.Outcome.BUILT
    floor.write("src/b.cu", "b2\n")
    proved = floor.build(mode=m.Mode.PROVE)
    assert {e.action: e.reasons for e in proved.of(m.Explained)} == {
        "b.cu.o": ("input src/b.cu: content changed",),
        "all.so": ("an input is made by b.cu.o, which would run",),
    }
    assert_built(floor.build(mode=m.Mode.WARM), 1, 2)
    assert_built(floor.build(), 3, 0)
    assert not list((floor.store / "tmp").glob("*/warm-*"))


def test_explain_says_hit_or_why(floor: Floor) -> None:
    floor.build()
    floor.write("include/x.h", "y\n")
    explained = {e.action: e for e in floor.build(mode=m.Mode.EXPLAIN).of(m.Explained)}
    assert explained["b.cu.o"].reasons == ("hit: same inputs",)
    assert explained["a.cu.o"].reasons == ("input include/x.h: content changed",)
    assert not explained["b.cu.o"].would_run and explained["all.so"].would_run


def test_recache_runs_everything_again(floor: Floor) -> None:
    floor.build()
    assert_built(floor.build(recache=True), 0, 3)


def test_a_damaged_blob_is_rebuilt(floor: Floor) -> None:
    floor.write("src/a.cu", "a\n//! print 200K\n")
    floor.build()
    library = floor.library
    for blob in (floor.store / "blobs").glob("*/*"):
        content = bytearray(blob.read_bytes())
        content[len(content) // 2] ^= 1
        blob.chmod(0o600)
        blob.write_bytes(content)
    (floor.store / "index.db").write_bytes(b"not a database at all" * 1000)
    for beside in ("index.db-wal", "index.db-shm"):
        (floor.store / beside).unlink(missing_ok=True)
    (floor.project / "build/all.so").unlink()
    story = floor.build()
    assert story.done.outcome is m.Outcome.BUILT
    assert floor.library == library


def test_an_output_folder_that_cannot_be_written(floor: Floor) -> None:
    (floor.project / "build").write_text("a file where a folder should be")
    story = floor.build()
    assert story.done.outcome is m.Outcome.FAILED
    failed = story.of(m.Failed)[0]
    assert failed.kind is m.FailureKind.STORE and str(floor.project / "build") in failed.message


def test_an_output_that_is_a_link_is_replaced_not_followed(floor: Floor) -> None:
    elsewhere = floor.write("elsewhere", "precious")
    (floor.project / "build").mkdir()
    (floor.project / "build/all.so").symlink_to(elsewhere)
    floor.build()
    assert elsewhere.read_text() == "precious"
    assert not (floor.project / "build/all.so").is_symlink()


def test_symlinked_and_read_only_sources(floor: Floor) -> None:
    real = floor.write("real.txt", "real\n")
    (floor.project / "src/link.cu").symlink_to(real)
    floor.write("src/b.cu", "b\n").chmod(0o400)
    assert floor.build().done.outcome is m.Outcome.BUILT
    real.write_text("changed\n")
    assert "link.cu.o" in floor.build().ran()


def test_file_names_that_are_no_utf8(floor: Floor) -> None:
    Path(os.fsdecode(os.fsencode(floor.project) + b"/src/k\xe9rnel.cu")).write_text("k\n")
    first = floor.build()
    assert_built(first, 0, 4)
    assert_built(floor.build(), 4, 0)


def test_two_checkouts_with_the_same_content(floor: Floor) -> None:
    floor.build()
    first = floor.library
    twin = Floor(floor.folder / "twin")
    twin.store = floor.store
    for path in ("include/x.h", "src/a.cu", "src/b.cu"):
        twin.write(path, (floor.project / path).read_text())
    assert_built(twin.build(), 3, 0)
    assert twin.library == first


def test_the_build_is_kept_in_the_log(floor: Floor) -> None:
    from buildd.store import Store

    floor.build()
    with Store.open(floor.store) as store:
        (build,) = store.builds()
        assert build.outcome is m.Outcome.BUILT and build.summary.misses == 3
        assert store.build_events(build.request_id)


def test_nothing_to_do_is_known_from_stamps_alone(floor: Floor) -> None:
    floor.build()
    floor.build()
    third = floor.build()
    while third.done.message != "nothing to do":  # folders and outputs must be older than a clock step
        third = floor.build()
    assert_built(third, 3, 0)
    assert not third.of(m.CacheHit) and third.of(m.Artifact)
    changes = {
        "input include/x.h": lambda: floor.write("include/x.h", "y\n"),
        "a new source": lambda: floor.write("src/c.cu", "c\n"),
        "a shadowing header": lambda: floor.write("first/x.h", "z\n"),
        "an output gone": (floor.project / "build/a.cu.o").unlink,
        "an output altered": lambda: floor.write("build/all.so", "tampered"),
        "other variables": None,
    }
    for what, change in changes.items():
        library = floor.library if what != "other variables" else b""
        if change is not None:
            change()
        story = floor.build() if change else floor.build(environment={"PATH": "/usr/bin:/bin", "LANG": "C"})
        assert story.done.outcome is m.Outcome.BUILT, what
        assert story.done.message != "nothing to do", what
        if "output" in what:
            assert floor.library == library, what


def test_num_builders_caps_a_request_and_a_time_line_is_told_for_every_job(floor: Floor) -> None:
    for n in range(3):
        floor.write(f"src/n{n}.cu", f"//! exclusive held\n//! sleep 0.3\n{n}\n")
    environment = {"PATH": "/usr/bin:/bin", "NUM_BUILDERS": "1", "AIT_TIME_COMPILATION": "1"}
    story = floor.build(environment=environment)
    assert story.done.outcome is m.Outcome.BUILT
    lines = [line.text for line in story.of(m.LogLine) if line.text.startswith("exit_status=0 elapsed_sec=")]
    assert len(lines) == len(story.ran()) == 6
    untimed = floor.build(environment={"PATH": "/usr/bin:/bin", "AIT_TIME_COMPILATION": "yes"}, recache=True, jobs=1)
    assert not untimed.of(m.LogLine), "only exactly 1 is on"


def test_a_store_inside_the_project(floor: Floor) -> None:
    """What a job writes below the store, and reads again, is its own business wherever the store is."""
    floor.write("src/a.cu", "//! read-temporary\na\n")
    floor.store = floor.project / ".cache"
    first = floor.build()
    assert_built(first, 0, 3)
    assert len(first.ran()) == 3, "nothing looks as if it had changed meanwhile"
    assert_built(floor.build(), 3, 0)
