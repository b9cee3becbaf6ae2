"""`buildd watch` as a program: rounds, failures, kernels, a daemon that ends under it."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from functools import partial

import pytest

from protocol import messages as m
from tests.support import watcher
from tests.support.developer import Developer, why_no_namespaces
from tests.support.terminal import Terminal
from tests.support.toolkit import host_compiler
from tests.support.user import ROOT
from tests.support.waiting import DEADLINE_S, until
from tests.support.watcher import Line

pytestmark = pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")


def watch(developer: Developer) -> watcher.Session:
    return watcher.Session(developer, "-C", str(developer.project))


def save(developer: Developer, path: str, text: str) -> None:
    """At once: nobody sees half of it."""
    aside = developer.folder / "aside"
    aside.write_text(text)
    aside.rename(developer.project / path)


def test_a_save_builds_a_break_is_told_and_the_mend_too(another_developer: Developer) -> None:
    session = watch(another_developer)
    try:
        assert session.round()["misses"] == 3
        save(another_developer, "src/a.cu", "other\n")
        assert session.until(lambda body: body["type"] == "changed")["paths"] == ["src/a.cu"]
        assert session.round()["misses"] == 2
        save(another_developer, "src/b.cu", "//! fail\n")
        assert session.until(lambda body: body["type"] == "failed")["action"] == "demo/src/b.cu.o"
        assert session.round()["outcome"] == "failed"
        save(another_developer, "src/b.cu", "mended\n")
        assert session.round()["outcome"] == "built"
        session.until_told("changed: src/b.cu", 2)
    finally:
        session.end()
    assert "FAILED" in session.text


def test_a_save_during_a_build_replaces_it_and_keeps_what_is_still_right(another_developer: Developer) -> None:
    """b is compiled through; only a's compile is begun anew."""
    another_developer.write("src/a.cu", "//! sleep 60\n")
    another_developer.write("src/b.cu", "//! wait go\n")
    session = watch(another_developer)
    try:
        another_developer.until_compiling("src/a.cu")
        another_developer.until_compiling("src/b.cu")
        b = another_developer.compiler_of("src/b.cu")
        save(another_developer, "src/a.cu", "quick\n")
        session.until(lambda body: body["type"] == "changed")
        # Found, where another build has begun since a's compile ended.
        session.until(lambda body: body["type"] in ("finished", "cache_hit") and body["action"] == "demo/src/a.cu.o")
        still = another_developer.compiler_of("src/b.cu")
        assert b is not None and still is not None and still.pid == b.pid
        another_developer.write("go", "")
        assert session.round()["outcome"] == "built"
    finally:
        session.end()


def test_a_broken_project_file_is_said_and_mended(another_developer: Developer) -> None:
    session = watch(another_developer)
    try:
        session.round()
        good = (another_developer.project / "buildd.toml").read_text()
        save(another_developer, "buildd.toml", "[target.demo\n")
        assert session.round()["outcome"] == "refused"
        session.until_told("not valid TOML")
        save(another_developer, "buildd.toml", good)
        assert session.round()["outcome"] == "built"
    finally:
        session.end()


def test_a_command_runs_below_each_good_build_that_made_something(another_developer: Developer) -> None:
    command = ("sh", "-c", "exit 4")
    session = watcher.Session(another_developer, "-C", str(another_developer.project), "--", *command)
    try:
        ran = session.until(lambda body: body["type"] == "ran")
        assert ran["command"] == list(command) and ran["exit_status"] == 4
        save(another_developer, "src/b.cu", "//! fail\n")
        assert session.round()["outcome"] == "failed"
        save(another_developer, "src/b.cu", "mended\n")
        assert session.until(lambda body: body["type"] in ("ran", "done"))["type"] == "done"
        session.until(lambda body: body["type"] == "ran")
        session.until_told("\nsh ended with status 4 after ", 2)
    finally:
        session.end()
    assert session.text.count("\nsh ended with status 4 after ") == 2
    assert "watching for changes\nrunning sh -c " in session.text


def test_a_marker_without_a_command_is_wrong_usage(another_developer: Developer) -> None:
    session = watcher.Session(another_developer, "-C", str(another_developer.project), "--")
    assert session.process.wait(watcher.DEADLINE_S) == 2
    session.end()
    assert "no command to run" in session.text and "next: put a command after --" in session.text


@pytest.mark.parametrize(
    ("files", "step"),
    [
        ((), ""),
        (("build/build.ninja",), "; or run buildd watch --ninja build"),
        (("Makefile",), "; or run buildd watch --make ."),
        (("build.ninja", "build/Makefile"), "; or run buildd watch --ninja . or buildd watch --make build"),
    ],
)
def test_a_folder_of_another_tool_is_told_how_to_be_watched(
    another_developer: Developer, files: tuple[str, ...], step: str
) -> None:
    folder = another_developer.folder / "theirs"
    (folder / "build").mkdir(parents=True)
    for name in files:
        (folder / name).touch()
    status, text = another_developer.buildd("watch", cwd=folder)
    assert status == 2 and text.endswith(f"or let `buildd init` write one{step}\n"), text


def test_an_unknown_target_of_the_command_ends_the_watch(another_developer: Developer) -> None:
    session = watcher.Session(another_developer, "-C", str(another_developer.project), "nosuch")
    try:
        assert session.round()["outcome"] == "refused"
        assert session.process.wait(watcher.DEADLINE_S) == 2
    finally:
        session.end()
    assert 'error: there is no target "nosuch"' in session.text and "next: name one of" in session.text
    assert "watching" not in session.text.partition("next:")[2]


def test_ctrl_c_ends_a_watch_with_a_line_of_its_own(another_developer: Developer) -> None:
    command = (sys.executable, "-P", "-m", "buildd", "watch", "-C", str(another_developer.project))
    with Terminal(*command, environ={**another_developer.environ, "TERM": "xterm"}) as terminal:
        terminal.has_shown(b"watching for changes, building")
        until(lambda: re.search(rb"watching for changes(?!, building)", terminal.output), "the end of the round")
        terminal.type(b"\x03")
        assert terminal.ended() == 0
        assert terminal.output.endswith(b"^C\r\nthe watch has ended\r\n")


def test_a_daemon_that_does_not_answer_is_spoken_of(developer: Developer) -> None:
    assert developer.build().status == 0
    daemon = developer.daemon()
    assert daemon is not None
    os.kill(daemon.pid, signal.SIGSTOP)
    try:
        command = (sys.executable, "-P", "-m", "buildd", "status")
        with Terminal(*command, environ=developer.environ) as terminal:
            terminal.has_shown(b"the daemon has not answered yet")
            os.kill(daemon.pid, signal.SIGCONT)
            assert terminal.ended() == 0
    finally:
        os.kill(daemon.pid, signal.SIGCONT)


def test_an_unknown_target_in_the_project_file_is_waited_for(another_developer: Developer) -> None:
    good = (another_developer.project / "buildd.toml").read_text()
    another_developer.write("buildd.toml", good.replace("[target.demo]", '[target.demo]\ndeps = ["later"]'))
    session = watch(another_developer)
    try:
        assert session.round()["outcome"] == "refused"
        save(another_developer, "buildd.toml", good)
        assert session.round()["outcome"] == "built"
    finally:
        session.end()


def test_while_the_project_file_is_broken_the_last_good_one_counts(another_developer: Developer) -> None:
    session = watch(another_developer)
    try:
        session.round()
        until(partial(is_carried, another_developer, session, itertools.count()), "no build begins with what stands")
        good = (another_developer.project / "buildd.toml").read_text()
        save(another_developer, "buildd.toml", f"{good}[target.demo\n")
        # It ends the round, or the round is built in spite of it where not all was known to stand.
        session.until(lambda body: "not valid TOML" in f"{body.get('message')} {body.get('text')}")
        save(another_developer, "src/a.cu", "three\n")
        notice = session.until(lambda body: body["type"] == "notice")["text"]
        assert "not valid TOML" in notice and notice.endswith("; built as the last good one says")
        assert session.round()["misses"] == 2
        made = another_developer.library.read_bytes()
        assert another_developer.build().status == 2, "who does not watch is told of the mistake"
        save(another_developer, "buildd.toml", f"# mended\n{good}")
        assert session.round()["outcome"] == "built"
        assert made == another_developer.library.read_bytes() == another_developer.clean()
    finally:
        session.end()


def test_a_daemon_that_ends_is_replaced_and_nothing_is_missed(developer: Developer) -> None:
    session = watch(developer)
    try:
        session.round()
        before = developer.daemon()
        assert before is not None
        before.kill()
        developer.write("src/a.cu", "while nobody watched\n")
        assert session.round()["misses"] == 2
        after = developer.daemon()
        assert after is not None and after.pid != before.pid
    finally:
        session.end()


def test_a_watch_outlives_the_installation_that_it_was_started_from(developer: Developer) -> None:
    """Another client brings a daemon of newer code; a daemon ends and cannot be started; it can be again."""
    code = developer.folder / "code"
    for package in ("buildd", "codegen", "protocol"):
        shutil.copytree(ROOT / package, code / package)  # with what is compiled
    developer.environ["PYTHONPATH"] = f"{code}{os.pathsep}{developer.environ['PYTHONPATH']}"
    module = code / "buildd" / "daemon" / "daemon.py"
    text = module.read_text()
    session = watch(developer)
    try:
        assert session.round()["misses"] == 3
        first = developer.daemon()
        module.write_text(f"{text}# newer\n")
        assert developer.build().status == 0
        second = developer.daemon()
        assert first is not None and second is not None and first.pid != second.pid
        assert session.round()["hits"] == 3
        developer.write("src/a.cu", "newer\n")
        assert session.round()["misses"] == 2
        daemon = developer.daemon()
        assert daemon is not None and daemon.pid == second.pid, "the watch has thrown the newer one out"

        module.write_text("raise TypeError('half of it')\n")

        def ends_for_good() -> bool:
            if living := developer.daemon():  # also one that was on its way when the second one got its place
                living.kill(signal.SIGTERM)
            return "ended with status 3 at its start: " in session.text

        until(ends_for_good, "the watch does not say why there is no daemon")
        module.write_text(f"{text}# newer still\n")
        # Not the next round: a daemon that was on its way may have had one that found nothing to do.
        developer.write("src/a.cu", "while nobody watched\n")
        session.until(lambda body: body["type"] == "done" and body.get("misses") == 2)
        developer.write("src/a.cu", "and after\n")
        session.until(lambda body: body["type"] == "done" and body.get("misses") == 2)
    finally:
        session.end()
    assert session.text.count("ended with status 3 at its start: ") == 1, "it is said once"


def test_a_build_of_a_daemon_that_gives_way_is_ended_for_the_next_one(developer: Developer) -> None:
    developer.write("src/a.cu", "//! sleep 600\n")
    session = watch(developer)
    try:
        compiler = developer.until_compiling("src/a.cu")
        before = developer.daemon()
        assert before is not None
        before.kill(signal.SIGTERM)  # it finishes what it has
        assert session.until(ends_a_build)["outcome"] == "cancelled"
        until(lambda: not compiler.lives, "the old daemon goes on")
        until(lambda: developer.compiler_of("src/a.cu"), "no new build")
        developer.write("src/a.cu", "quick\n")
        assert session.round()["outcome"] == "built"
    finally:
        session.end()


def test_a_project_that_is_deleted_and_comes_back_is_built_again(another_developer: Developer) -> None:
    session = watch(another_developer)
    try:
        session.round()
        kept = another_developer.folder / "kept"
        shutil.copytree(another_developer.project, kept, ignore=shutil.ignore_patterns("build"))
        shutil.rmtree(another_developer.project)
        assert session.round()["outcome"] == "refused"
        (kept / "src/a.cu").write_text("it came back changed\n")
        kept.rename(another_developer.project)
        session.until(lambda body: body["type"] == "done" and body["outcome"] == "built")
        assert another_developer.library.read_bytes() == another_developer.clean()
    finally:
        session.end()


@pytest.mark.slow
@pytest.mark.skipif(bool(why_no_namespaces()), reason="no namespaces")
def test_a_disk_that_fills_is_said_and_the_next_save_after_it_has_room_builds(developer: Developer) -> None:
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
    said = developer.inside(script)
    assert said.status == 0, said.text


def test_two_watch_one_target_and_the_work_is_done_once(another_developer: Developer) -> None:
    first = watch(another_developer)
    second = watch(another_developer)
    try:
        first.round(), second.round()
        save(another_developer, "src/a.cu", "//! sleep 1\nother\n")
        jobs = [session.until(finished_a)["job_id"] for session in (first, second)]
        assert jobs[0] == jobs[1]
        first.round(), second.round()
    finally:
        first.end(), second.end()


def is_carried(user: Developer, session: watcher.Session, numbers: Iterator[int]) -> bool:
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


def test_without_a_daemon_nothing_watches(another_developer: Developer) -> None:
    said = another_developer.start("watch", "--no-daemon", "-C", str(another_developer.project))
    output, _ = said.communicate(timeout=DEADLINE_S)
    assert said.returncode == 2 and "watching needs the daemon" in output


def test_kernels_are_part_of_the_protocol() -> None:
    kernel = m.Kernel(name="k", arch="sm_80", registers=10)
    assert m.Finished(job_id=m.JobId(1), action="a", timing=m.Timing(), kernels=(kernel,)).kernels == (kernel,)
