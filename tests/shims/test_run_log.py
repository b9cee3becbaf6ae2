"""What `buildd run` leaves in the build log, and what it does not."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from buildd.commands import run as commands_run
from buildd.errors import StoreError
from buildd.shims import run_log
from buildd.shims.run_log import RunNotes
from protocol.messages import (
    BuildFigures,
    BuildId,
    Event,
    EventBody,
    Failed,
    FailureKind,
    JobId,
    LogLine,
    Planned,
    RequestId,
    Started,
)
from tests.support.foreign_project import ForeignProject, declaration
from tests.support.toolkit import host_compiler
from tests.support.user import User
from tests.support.waiting import until

needs_gcc = pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")


@pytest.fixture(scope="module")
def user(kept_user: User) -> User:
    return kept_user


@pytest.fixture
def foreign(user: User, request: pytest.FixtureRequest) -> ForeignProject:
    made = ForeignProject(user, user.folder / request.node.name)
    made.write("a.c", declaration(request.node.name))
    made.write("bad.c", "int first = ;\nint second = ;\n")
    return made


def run(foreign: ForeignProject, script: str) -> int:
    """The exit status of `buildd run -- sh -c SCRIPT` in the project's folder."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "buildd", "run", "--", "sh", "-c", script],
        cwd=foreign.folder,
        env=foreign.plain,
        capture_output=True,
        timeout=60,
        check=False,
    ).returncode


def kept(foreign: ForeignProject) -> list[dict[str, object]]:
    status, said = foreign.user.buildd("log", "--json")
    assert status == 0
    rows = [json.loads(line) for line in said.splitlines()]
    return [row for row in rows if row["project"] == str(foreign.folder)]


@needs_gcc
def test_a_run_is_one_build_of_the_log(foreign: ForeignProject) -> None:
    assert run(foreign, "gcc -c a.c; gcc -c a.c; gcc -c bad.c") == 1
    assert run(foreign, "gcc -c bad.c; gcc -c a.c") == 0
    assert run(foreign, "gcc -c a.c; exit 3") == 3
    last, good, bad = kept(foreign)
    assert [row["outcome"] for row in (bad, good, last)] == ["failed", "built", "failed"]
    summary = bad["summary"]
    assert isinstance(summary, dict)
    assert (summary["hits"], summary["misses"], summary["failures"]) == (1, 2, 1)
    assert summary["command"] == "sh -c 'gcc -c a.c; gcc -c a.c; gcc -c bad.c'"
    assert isinstance(bad["started_ns"], int) and isinstance(bad["finished_ns"], int)
    assert 0 < summary["wall_s"] * 1e9 <= bad["finished_ns"] - bad["started_ns"]
    (line,) = [line for line in foreign.user.buildd("log")[1].splitlines() if str(bad["build_id"]) in line]
    assert "1 hit, 1 compiled, 1 failed  run -- sh -c" in line
    assert not list((foreign.user.store / "answers" / run_log.FOLDER).iterdir())


@needs_gcc
def test_what_failed_compiles_said_is_in_the_log_of_their_run(foreign: ForeignProject) -> None:
    said = foreign.plainly("gcc", "-c", "bad.c").stderr.decode().splitlines()
    assert len(said) >= 3
    assert run(foreign, "gcc -c a.c; gcc -c bad.c") == 1
    (row,) = kept(foreign)
    lines = foreign.user.buildd("log", str(row["build_id"]))[1].splitlines()
    assert lines[0] == "note: command: sh -c 'gcc -c a.c; gcc -c bad.c'"
    assert lines[1].startswith("[1/1] FAILED gcc bad.o") and lines[2 : 2 + len(said)] == said
    assert f"  command: cd {foreign.folder} && " in lines[2 + len(said)]
    assert lines[-2].startswith("note: compilers: 0 hits, 1 miss (new 1), 1 failed")
    assert lines[-1].startswith("failed: 1 action failed, 0 hits, 1 compiled")
    # Where no compile failed, the command's status says why.
    assert run(foreign, "gcc -c a.c; exit 3") == 3
    lines = foreign.user.buildd("log", str(kept(foreign)[0]["build_id"]))[1].splitlines()
    assert lines[-2].startswith("failed: 1 hit, 0 compiled") and lines[-1] == "error: sh ended with status 3"


@needs_gcc
def test_what_compiles_nothing_or_is_part_of_a_run_is_no_build_of_its_own(foreign: ForeignProject) -> None:
    assert run(foreign, "true") == 0
    assert kept(foreign) == []
    assert run(foreign, f"{sys.executable} -P -m buildd run -- gcc -c a.c") == 0
    assert len(kept(foreign)) == 1
    # It is explained beside a project file too.
    foreign.write("buildd.toml", "")
    status, words = foreign.user.buildd("explain", "--last", "-C", str(foreign.folder))
    assert status == 0 and "ran a.c: never built before" in words


@needs_gcc
def test_a_report_has_the_program_of_a_run_and_not_its_arguments(foreign: ForeignProject) -> None:
    assert run(foreign, "gcc -c a.c; true --passphrase 'open sesame'") == 0
    report = foreign.folder / "report.tar.gz"
    foreign.user.buildd("doctor", "--bundle", str(report))
    with tarfile.open(report) as archive:
        member = archive.extractfile("buildd-report/builds.txt")
        assert member is not None
        text = member.read().decode()
    assert "  run -- sh  " in text and "sesame" not in text


# ---------------------------------------------------------------- the file


def events(*bodies: EventBody) -> list[Event]:
    return [Event(request_id=RequestId("c"), sequence=n, time_ns=n, body=body) for n, body in enumerate(bodies, 1)]


def failure(action: str, lines: int = 1) -> list[Event]:
    job = JobId(7)
    return events(
        Planned(targets=(), actions=1),
        Started(job_id=job, action=action, command="cc"),
        *(LogLine(job_id=job, stream="stderr", text=f"line {number}") for number in range(lines)),
        Failed(job_id=job, action=action, kind=FailureKind.COMPILE_ERROR, message="cc ended with status 1"),
    )


def said(told: list[Event]) -> list[str]:
    return [event.body.text for event in told if isinstance(event.body, LogLine)]


def test_failures_are_bounded(tmp_path: Path) -> None:
    with RunNotes(tmp_path, "a run") as mine:
        for number in range(run_log.MOST_FAILURES + 3):
            run_log.note(tmp_path, "a run", failure(f"{number}.o"))
        told = [event.body.action for each in mine.told() for event in each if isinstance(event.body, Failed)]
        assert told == [f"{number}.o" for number in range(3, run_log.MOST_FAILURES + 3)]
        run_log.note(tmp_path, "a run", failure("long.o", run_log.MOST_LINES + 10))
        *first, last = said(list(mine.told()[-1]))
        assert first == [f"line {number}" for number in range(run_log.MOST_LINES)] and last == "(10 more lines)"


def test_a_torn_line_costs_no_other(tmp_path: Path) -> None:
    with RunNotes(tmp_path, "a run") as mine:
        run_log.note(tmp_path, "a run", failure("a.o"))
        path = tmp_path / "answers" / run_log.FOLDER / "a_run"
        with path.open("ab") as file:
            file.write(b'[{"type":"event"\n')
        run_log.note(tmp_path, "a run", failure("b.o"))
        assert [each[0].body.action for each in mine.told() if isinstance(each[0].body, Started)] == ["a.o", "b.o"]


def test_nothing_is_noted_where_no_run_wants_it_and_what_a_killed_one_left_goes(tmp_path: Path) -> None:
    run_log.note(tmp_path, "nobody", failure("a.o"))
    run_log.note(tmp_path, "", failure("a.o"))
    assert not list(tmp_path.rglob("*"))
    with RunNotes(tmp_path, "killed"):
        shutil.copy(tmp_path / "answers" / run_log.FOLDER / "killed", tmp_path / "left")
        with RunNotes(tmp_path, "another"):
            names = {path.name for path in (tmp_path / "answers" / run_log.FOLDER).iterdir()}
            assert names == {
                f"{name}{end}" for name in ("killed", "another") for end in ("", ".calls", ".jobs", ".programs")
            }, "that one goes on"
    (tmp_path / "left").rename(tmp_path / "answers" / run_log.FOLDER / "killed")
    with RunNotes(tmp_path, "next"):
        names = {path.name for path in (tmp_path / "answers" / run_log.FOLDER).iterdir()}
        assert names == {f"next{end}" for end in ("", ".calls", ".jobs", ".programs")}


def test_a_row_that_cannot_be_written_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise StoreError("index.db: disk is full")

    monkeypatch.setattr(run_log, "keep", refuse)
    with RunNotes(tmp_path, "b") as failures:
        commands_run._keep(tmp_path, BuildId("b"), ["make"], 0, 0, BuildFigures(hits=1), failures)
    said = (
        "buildd: the store may not have kept this run's results, and `buildd log` lacks the run: index.db: disk is full"
    )
    assert said in capsys.readouterr().err


@needs_gcc
def test_a_run_that_goes_on_is_in_the_log_and_can_be_followed(foreign: ForeignProject) -> None:
    waits = "gcc -c bad.c; while ! test -e go; do sleep 0.01; done; gcc -c a.c"
    buildd = [sys.executable, "-P", "-m", "buildd"]
    run_it = subprocess.Popen(
        [*buildd, "run", "--", "sh", "-c", waits],
        cwd=foreign.folder,
        env=foreign.plain,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        (going,) = until(lambda: [r for r in run_log.running(foreign.user.store) if r.project == str(foreign.folder)])
        status, listed = foreign.user.buildd("log")
        line = listed.splitlines()[0]
        assert status == 0 and line.startswith(going.build_id) and "  running  " in line and "run -- sh -c" in line
        status, shown = foreign.user.buildd("status")
        assert status == 0 and f"in {foreign.folder}, for " in shown
        following = foreign.user.start("log", "-f", going.build_id[:6])
        assert following.stdout is not None
        said = ""
        while "bad.c" not in said.partition("\n")[2]:  # behind the command, which names it too
            said += following.stdout.readline()
        foreign.write("go", "")
        rest, _ = following.communicate(timeout=60)
        assert run_it.wait(60) == 0 and following.returncode == 0
        assert said.startswith("note: command: sh -c ") and "expected" in said + rest
        assert "compilers: 0 hits, 1 miss (new 1), 1 failed" in rest
    finally:
        run_it.kill()
        run_it.wait()
    assert run_log.running(foreign.user.store) == []
    last = foreign.user.buildd("log", "last")
    assert last[0] == 0 and "compilers: 0 hits, 1 miss (new 1), 1 failed" in last[1]
    status, trace = foreign.user.buildd("trace")
    assert status == 0 and json.loads(trace)


@needs_gcc
def test_the_jobs_of_a_run_are_in_its_row(foreign: ForeignProject) -> None:
    """What `buildd ui` and `buildd trace` draw, and `buildd log` does not print."""
    assert run(foreign, "gcc -c a.c; gcc -c bad.c") == 1
    status, said = foreign.user.buildd("log", "last", "--json")
    assert status == 0
    bodies = [json.loads(line)["body"] for line in said.splitlines()]
    kinds = [body["type"] for body in bodies]
    assert (kinds.count("queued"), kinds.count("started"), kinds.count("finished"), kinds.count("failed")) == (
        2,
        2,
        1,
        1,
    )
    (finished,) = (body for body in bodies if body["type"] == "finished")
    assert finished["timing"]["wall_s"] > 0 and "outputs" not in finished
    status, words = foreign.user.buildd("log", "last")
    assert status == 0 and "a.o" not in words and "bad.c" in words
    trace = json.loads(foreign.user.buildd("trace", "last")[1])
    assert len([entry for entry in trace if entry["ph"] == "X"]) == 2
