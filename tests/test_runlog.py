"""What `buildd run` leaves in the build log, and what it does not."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from buildd import runlog
from buildd.commands import run as commands_run
from buildd.errors import StoreError
from buildd.runlog import FailedCompiles
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
from tests.foreign import Foreign
from tests.household import Household
from tests.toolkit import host_compiler

needs_gcc = pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")


@pytest.fixture(scope="module")
def user(kept_user: Household) -> Household:
    return kept_user


@pytest.fixture
def foreign(user: Household, request: pytest.FixtureRequest) -> Foreign:
    made = Foreign(user, user.folder / request.node.name)
    made.write("a.c", f"/* {request.node.name} */\n")
    made.write("bad.c", "int first = ;\nint second = ;\n")
    return made


def run(foreign: Foreign, script: str) -> int:
    """The exit status of `buildd run -- sh -c SCRIPT` in the project's folder."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "buildd", "run", "--", "sh", "-c", script],
        cwd=foreign.folder,
        env=foreign.plain,
        capture_output=True,
        timeout=60,
        check=False,
    ).returncode


def kept(foreign: Foreign) -> list[dict[str, object]]:
    status, said = foreign.user.buildd("log", "--json")
    assert status == 0
    rows = [json.loads(line) for line in said.splitlines()]
    return [row for row in rows if row["project"] == str(foreign.folder)]


@needs_gcc
def test_a_run_is_one_build_of_the_log(foreign: Foreign) -> None:
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
    assert not list((foreign.user.store / "answers" / runlog.FOLDER).iterdir())


@needs_gcc
def test_what_failed_compiles_said_is_in_the_log_of_their_run(foreign: Foreign) -> None:
    said = foreign.plainly("gcc", "-c", "bad.c").stderr.decode().splitlines()
    assert len(said) >= 3
    assert run(foreign, "gcc -c a.c; gcc -c bad.c") == 1
    (row,) = kept(foreign)
    lines = foreign.user.buildd("log", str(row["build_id"]))[1].splitlines()
    assert lines[0] == "note: command: sh -c 'gcc -c a.c; gcc -c bad.c'"
    assert lines[1].startswith("[1/1] FAILED gcc bad.o") and lines[2 : 2 + len(said)] == said
    assert f"  command: cd {foreign.folder} && " in lines[2 + len(said)]
    assert lines[-2].startswith("note: compilers: 0 hits, 2 misses, 1 failed")
    assert lines[-1].startswith("failed: 1 action failed, 0 hits, 1 compiled")
    # Where no compile failed, the command's status says why.
    assert run(foreign, "gcc -c a.c; exit 3") == 3
    lines = foreign.user.buildd("log", str(kept(foreign)[0]["build_id"]))[1].splitlines()
    assert lines[-2].startswith("failed: 1 hit, 0 compiled") and lines[-1] == "error: sh ended with status 3"


@needs_gcc
def test_what_compiles_nothing_or_is_part_of_a_run_is_no_build_of_its_own(foreign: Foreign) -> None:
    assert run(foreign, "true") == 0
    assert kept(foreign) == []
    assert run(foreign, f"{sys.executable} -P -m buildd run -- gcc -c a.c") == 0
    assert len(kept(foreign)) == 1
    # Requests alone are explained.
    foreign.write("buildd.toml", "")
    status, words = foreign.user.buildd("explain", "--last", "-C", str(foreign.folder))
    assert status == 2 and "no build of" in words


@needs_gcc
def test_a_report_has_the_program_of_a_run_and_not_its_arguments(foreign: Foreign) -> None:
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
    with FailedCompiles(tmp_path, "a run") as mine:
        for number in range(runlog.MOST_FAILURES + 3):
            runlog.note(tmp_path, "a run", failure(f"{number}.o"))
        told = [event.body.action for each in mine.told() for event in each if isinstance(event.body, Failed)]
        assert told == [f"{number}.o" for number in range(3, runlog.MOST_FAILURES + 3)]
        runlog.note(tmp_path, "a run", failure("long.o", runlog.MOST_LINES + 10))
        *first, last = said(list(mine.told()[-1]))
        assert first == [f"line {number}" for number in range(runlog.MOST_LINES)] and last == "(10 more lines)"


def test_a_torn_line_costs_no_other(tmp_path: Path) -> None:
    with FailedCompiles(tmp_path, "a run") as mine:
        runlog.note(tmp_path, "a run", failure("a.o"))
        (path,) = (tmp_path / "answers" / runlog.FOLDER).iterdir()
        with path.open("ab") as file:
            file.write(b'[{"type":"event"\n')
        runlog.note(tmp_path, "a run", failure("b.o"))
        assert [each[0].body.action for each in mine.told() if isinstance(each[0].body, Started)] == ["a.o", "b.o"]


def test_nothing_is_noted_where_no_run_wants_it_and_what_a_killed_one_left_goes(tmp_path: Path) -> None:
    runlog.note(tmp_path, "nobody", failure("a.o"))
    runlog.note(tmp_path, "", failure("a.o"))
    assert not list(tmp_path.rglob("*"))
    with FailedCompiles(tmp_path, "killed"):
        shutil.copy(tmp_path / "answers" / runlog.FOLDER / "killed", tmp_path / "left")
        with FailedCompiles(tmp_path, "another"):
            names = {path.name for path in (tmp_path / "answers" / runlog.FOLDER).iterdir()}
            assert names == {"killed", "another"}, "that one goes on"
    (tmp_path / "left").rename(tmp_path / "answers" / runlog.FOLDER / "killed")
    with FailedCompiles(tmp_path, "next"):
        assert [path.name for path in (tmp_path / "answers" / runlog.FOLDER).iterdir()] == ["next"]


def test_a_row_that_cannot_be_written_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise StoreError("index.db: disk is full")

    monkeypatch.setattr(runlog, "keep", refuse)
    with FailedCompiles(tmp_path, "b") as failures:
        commands_run._keep(tmp_path, BuildId("b"), ["make"], 0, 0, BuildFigures(hits=1), failures)
    assert "`buildd log` does not know of this run: index.db: disk is full" in capsys.readouterr().err
