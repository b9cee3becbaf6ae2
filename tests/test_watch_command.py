"""`buildd watch` as a program: rounds, failures, kernels, a daemon that ends under it."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
from collections.abc import Iterator
from functools import partial

import pytest
import watcher
from estate import DEADLINE_S, Estate, until, why_no_namespaces
from household import ROOT
from watcher import Line

from protocol import messages as m
from tests.toolkit import host_compiler

pytestmark = pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")


def watch(estate: Estate) -> watcher.Session:
    return watcher.Session(estate, "-C", str(estate.project))


def save(estate: Estate, path: str, text: str) -> None:
    """At once: nobody sees half of it."""
    aside = estate.folder / "aside"
    aside.write_text(text)
    aside.rename(estate.project / path)


def test_a_save_builds_a_break_is_told_and_the_mend_too(guest: Estate) -> None:
    session = watch(guest)
    try:
        assert session.round()["misses"] == 3
        save(guest, "src/a.cu", "other\n")
        assert session.until(lambda body: body["type"] == "changed")["paths"] == ["src/a.cu"]
        assert session.round()["misses"] == 2
        save(guest, "src/b.cu", "//! fail\n")
        assert session.until(lambda body: body["type"] == "failed")["action"] == "demo/src/b.cu.o"
        assert session.round()["outcome"] == "failed"
        save(guest, "src/b.cu", "mended\n")
        assert session.round()["outcome"] == "built"
    finally:
        session.end()
    assert "changed: src/b.cu" in session.text and "FAILED" in session.text


def test_a_save_during_a_build_replaces_it_and_keeps_what_is_still_right(guest: Estate) -> None:
    """b is compiled through; only a's compile is begun anew."""
    guest.write("src/a.cu", "//! sleep 60\n")
    guest.write("src/b.cu", "//! wait go\n")
    session = watch(guest)
    try:
        guest.until_compiling("src/a.cu")
        guest.until_compiling("src/b.cu")
        b = guest.compiler_of("src/b.cu")
        save(guest, "src/a.cu", "quick\n")
        session.until(lambda body: body["type"] == "changed")
        session.until(lambda body: body["type"] == "finished" and body["action"] == "demo/src/a.cu.o")
        still = guest.compiler_of("src/b.cu")
        assert b is not None and still is not None and still.pid == b.pid
        guest.write("go", "")
        assert session.round()["outcome"] == "built"
    finally:
        session.end()


def test_a_broken_project_file_is_said_and_mended(guest: Estate) -> None:
    session = watch(guest)
    try:
        session.round()
        good = (guest.project / "buildd.toml").read_text()
        save(guest, "buildd.toml", "[target.demo\n")
        assert session.round()["outcome"] == "refused"
        save(guest, "buildd.toml", good)
        assert session.round()["outcome"] == "built"
    finally:
        session.end()


def test_while_the_project_file_is_broken_the_last_good_one_counts(guest: Estate) -> None:
    session = watch(guest)
    try:
        session.round()
        until(partial(is_carried, guest, session, itertools.count()), "no build begins with what stands")
        good = (guest.project / "buildd.toml").read_text()
        save(guest, "buildd.toml", f"{good}[target.demo\n")
        # It ends the round, or the round is built in spite of it where not all was known to stand.
        session.until(lambda body: "not valid TOML" in f"{body.get('message')} {body.get('text')}")
        save(guest, "src/a.cu", "three\n")
        notice = session.until(lambda body: body["type"] == "notice")["text"]
        assert "not valid TOML" in notice and notice.endswith("; built as the last good one says")
        assert session.round()["misses"] == 2
        made = guest.library.read_bytes()
        assert guest.build().status == 2, "who does not watch is told of the mistake"
        save(guest, "buildd.toml", f"# mended\n{good}")
        assert session.round()["outcome"] == "built"
        assert made == guest.library.read_bytes() == guest.clean()
    finally:
        session.end()


def test_a_daemon_that_ends_is_replaced_and_nothing_is_missed(estate: Estate) -> None:
    session = watch(estate)
    try:
        session.round()
        before = estate.daemon()
        assert before is not None
        before.kill()
        estate.write("src/a.cu", "while nobody watched\n")
        assert session.round()["misses"] == 2
        after = estate.daemon()
        assert after is not None and after.pid != before.pid
    finally:
        session.end()


def test_a_watch_outlives_the_installation_that_it_was_started_from(estate: Estate) -> None:
    """Another client brings a daemon of newer code; a daemon ends and cannot be started; it can be again."""
    code = estate.folder / "code"
    for package in ("buildd", "codegen", "protocol"):
        shutil.copytree(ROOT / package, code / package)  # with what is compiled
    estate.environ["PYTHONPATH"] = f"{code}{os.pathsep}{estate.environ['PYTHONPATH']}"
    module = code / "buildd" / "daemon.py"
    text = module.read_text()
    session = watch(estate)
    try:
        assert session.round()["misses"] == 3
        first = estate.daemon()
        module.write_text(f"{text}# newer\n")
        assert estate.build().status == 0
        second = estate.daemon()
        assert first is not None and second is not None and first.pid != second.pid
        assert session.round()["hits"] == 3
        estate.write("src/a.cu", "newer\n")
        assert session.round()["misses"] == 2
        daemon = estate.daemon()
        assert daemon is not None and daemon.pid == second.pid, "the watch has thrown the newer one out"

        module.write_text("raise TypeError('half of it')\n")

        def ends_for_good() -> bool:
            if living := estate.daemon():  # also one that was on its way when the second one got its place
                living.kill(signal.SIGTERM)
            return "ended with status 3 at its start: " in session.text

        until(ends_for_good, "the watch does not say why there is no daemon")
        module.write_text(f"{text}# newer still\n")
        # Not the next round: a daemon that was on its way may have had one that found nothing to do.
        estate.write("src/a.cu", "while nobody watched\n")
        session.until(lambda body: body["type"] == "done" and body.get("misses") == 2)
        estate.write("src/a.cu", "and after\n")
        session.until(lambda body: body["type"] == "done" and body.get("misses") == 2)
    finally:
        session.end()
    assert session.text.count("ended with status 3 at its start: ") == 1, "it is said once"


def test_a_build_of_a_daemon_that_gives_way_is_ended_for_the_next_one(estate: Estate) -> None:
    estate.write("src/a.cu", "//! sleep 600\n")
    session = watch(estate)
    try:
        compiler = estate.until_compiling("src/a.cu")
        before = estate.daemon()
        assert before is not None
        before.kill(signal.SIGTERM)  # it finishes what it has
        assert session.until(ends_a_build)["outcome"] == "cancelled"
        until(lambda: not compiler.lives, "the old daemon goes on")
        until(lambda: estate.compiler_of("src/a.cu"), "no new build")
        estate.write("src/a.cu", "quick\n")
        assert session.round()["outcome"] == "built"
    finally:
        session.end()


def test_a_project_that_is_deleted_and_comes_back_is_built_again(guest: Estate) -> None:
    session = watch(guest)
    try:
        session.round()
        kept = guest.folder / "kept"
        shutil.copytree(guest.project, kept, ignore=shutil.ignore_patterns("build"))
        shutil.rmtree(guest.project)
        assert session.round()["outcome"] == "refused"
        (kept / "src/a.cu").write_text("it came back changed\n")
        kept.rename(guest.project)
        session.until(lambda body: body["type"] == "done" and body["outcome"] == "built")
        assert guest.library.read_bytes() == guest.clean()
    finally:
        session.end()


@pytest.mark.slow
@pytest.mark.skipif(bool(why_no_namespaces()), reason="no namespaces")
def test_a_disk_that_fills_is_said_and_the_next_save_after_it_has_room_builds(estate: Estate) -> None:
    script = (
        "mkdir -p project/build && mount -t tmpfs -o size=1m none project/build\n"
        "$BUILDD watch -C project > words 2>&1 & watch=$!\n"
        "until grep -q 'built 1 target' words; do sleep 0.05; done\n"
        "head -c 2000000 /dev/zero > project/build/fill || true\n"
        "echo full > project/src/a.cu\n"
        "until grep -q 'no space left' words; do sleep 0.05; done\n"
        "rm project/build/fill\n"
        "echo room > project/src/a.cu\n"
        "until [ $(grep -c 'built 1 target' words) = 2 ]; do sleep 0.05; done\n"
        "kill $watch; wait $watch || true; cat words\n"
    )
    said = estate.inside(script)
    assert said.status == 0, said.text


def test_two_watch_one_target_and_the_work_is_done_once(guest: Estate) -> None:
    first = watch(guest)
    second = watch(guest)
    try:
        first.round(), second.round()
        save(guest, "src/a.cu", "//! sleep 1\nother\n")
        jobs = [session.until(finished_a)["job_id"] for session in (first, second)]
        assert jobs[0] == jobs[1]
        first.round(), second.round()
    finally:
        first.end(), second.end()


def is_carried(user: Estate, session: watcher.Session, numbers: Iterator[int]) -> bool:
    """Whether the next build begins with what stands: all is known of a good one. Not while folders come."""
    save(user, "src/a.cu", f"{next(numbers)}\n")
    told: list[Line] = []
    session.until(lambda body: told.append(body) or (body["type"] == "done" and body["outcome"] == "built"))
    return not [body for body in told if body["type"] == "cache_hit"]


def ends_a_build(body: Line) -> bool:
    """Not the watch itself."""
    return body["type"] == "done" and body.get("code") != "draining"


def finished_a(body: Line) -> bool:
    return body["type"] == "finished" and body["action"] == "demo/src/a.cu.o"


def test_without_a_daemon_nothing_watches(guest: Estate) -> None:
    said = guest.start("watch", "--no-daemon", "-C", str(guest.project))
    output, _ = said.communicate(timeout=DEADLINE_S)
    assert said.returncode == 2 and "only a daemon watches" in output


def test_kernels_are_part_of_the_protocol() -> None:
    kernel = m.Kernel(name="k", arch="sm_80", registers=10)
    assert m.Finished(job_id=m.JobId(1), action="a", timing=m.Timing(), kernels=(kernel,)).kernels == (kernel,)
