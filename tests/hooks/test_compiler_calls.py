"""Which calls of a compiler the store answered, by what shims and the daemon note."""

from __future__ import annotations

from pathlib import Path

import pytest

from buildd.hooks import compiler_calls
from buildd.hooks.compiler_calls import CompilerCalls
from buildd.shims import run_log
from buildd.shims.run_log import RunNotes
from buildd.store import answers
from protocol.messages import BuildId, CacheHit, Event, EventBody, Finished, JobId, Progress, RequestId, Started, Timing

RUN = BuildId("run1")


@pytest.fixture
def direct(tmp_path: Path) -> Path:
    """The file to which shims add their hits."""
    folder = answers.prepare(tmp_path) / answers.NOTES
    assert folder == tmp_path / compiler_calls.DIRECT
    return folder / RUN


def note(store: Path, *bodies: EventBody) -> None:
    run_log.note_job(
        store, RUN, [Event(request_id=RequestId("r"), sequence=1, time_ns=1, body=body) for body in bodies]
    )


def test_the_daemon_and_the_shims_say_what_was_found(tmp_path: Path, direct: Path) -> None:
    with RunNotes(tmp_path, RUN):
        note(tmp_path, Finished(job_id=JobId(1), action="/early.so", timing=Timing(wall_s=1.0)))
        calls = CompilerCalls(str(tmp_path), RUN)
        mark = calls.mark()
        note(tmp_path, Started(job_id=JobId(1), action="/a.so", command="g++", kind="g++"))
        note(tmp_path, Finished(job_id=JobId(1), action="/a.so", timing=Timing(wall_s=1.0)))
        note(tmp_path, CacheHit(job_id=JobId(0), action="/b.so", reason="same inputs"))
        run_log.note_memory(tmp_path, RUN, 2, Progress(done=1, total=0))
        assert calls.found("/b.so", mark)
        assert not calls.found("/a.so", mark)
        assert not calls.found("/passed-through.so", mark)
        direct.write_bytes(b"x" * 40)
        assert calls.found("/direct.so", mark)
        assert not calls.found("/direct.so", calls.mark())
        note(tmp_path, Finished(job_id=JobId(2), action="/c.so", timing=Timing(wall_s=1.0)))
        assert not calls.found("/c.so", mark), "a hit of another thread's call is not its own"


def test_without_a_run_every_call_is_the_plain_compilers(tmp_path: Path) -> None:
    calls = CompilerCalls(str(tmp_path), RUN)
    assert not calls.found("/a.so", calls.mark())
