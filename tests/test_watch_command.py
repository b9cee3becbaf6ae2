"""`buildd watch` as a program: rounds, failures, kernels, a daemon that ends under it."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
from estate import DEADLINE_S, Estate

from protocol import messages as m
from tests.toolkit import host_compiler

pytestmark = pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")
Line = dict


class Session:
    """`buildd watch --json` of an estate, read line by line."""

    def __init__(self, estate: Estate, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "buildd", "watch", "--json", "-C", str(estate.project), *arguments],
            cwd=estate.folder,
            env=estate.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.words: list[str] = []
        self._lines: queue.Queue[Line | None] = queue.Queue()
        self._threads = [threading.Thread(target=self._read_events), threading.Thread(target=self._read_words)]
        for thread in self._threads:
            thread.start()

    def _read_events(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(json.loads(line))
        self._lines.put(None)

    def _read_words(self) -> None:
        assert self.process.stderr is not None
        self.words.extend(self.process.stderr)

    def until(self, what: Callable[[Line], bool]) -> Line:
        """The next event's body that is so."""
        seen = []
        while True:
            try:
                line = self._lines.get(timeout=DEADLINE_S)
            except queue.Empty:
                line = None
            assert line is not None, seen
            seen.append(line["body"])
            if what(line["body"]):
                return line["body"]

    def round(self) -> Line:
        """The end of the next round that was not replaced."""
        return self.until(lambda body: body["type"] == "done" and body["outcome"] in ("built", "failed", "refused"))

    def end(self) -> int:
        self.process.send_signal(signal.SIGINT)
        status = self.process.wait(DEADLINE_S)
        for thread in self._threads:
            thread.join()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        return status


def test_a_save_builds_a_break_is_told_and_the_mend_too(estate: Estate) -> None:
    session = Session(estate)
    try:
        assert session.round()["misses"] == 3
        estate.write("src/a.cu", "other\n")
        assert session.until(lambda body: body["type"] == "changed")["paths"] == ["src/a.cu"]
        assert session.round()["misses"] == 2
        estate.write("src/b.cu", "//! fail\n")
        assert session.until(lambda body: body["type"] == "failed")["action"] == "demo/src/b.cu.o"
        assert session.round()["outcome"] == "failed"
        estate.write("src/b.cu", "mended\n")
        assert session.round()["outcome"] == "built"
    finally:
        session.end()
    text = "".join(session.words)
    assert "changed: src/b.cu" in text and "FAILED" in text


def test_a_save_during_a_build_replaces_it_and_keeps_what_is_still_right(estate: Estate) -> None:
    """b is compiled through; only a's compile is begun anew."""
    estate.write("src/a.cu", "//! sleep 60\n")
    estate.write("src/b.cu", "//! wait go\n")
    session = Session(estate)
    try:
        estate.until_compiling("src/a.cu")
        estate.until_compiling("src/b.cu")
        b = estate.compiler_of("src/b.cu")
        estate.write("src/a.cu", "quick\n")
        session.until(lambda body: body["type"] == "changed")
        session.until(lambda body: body["type"] == "finished" and body["action"] == "demo/src/a.cu.o")
        still = estate.compiler_of("src/b.cu")
        assert b is not None and still is not None and still.pid == b.pid
        estate.write("go", "")
        assert session.round()["outcome"] == "built"
    finally:
        session.end()


def test_a_broken_project_file_is_said_and_mended(estate: Estate) -> None:
    session = Session(estate)
    try:
        session.round()
        good = (estate.project / "buildd.toml").read_text()
        estate.write("buildd.toml", "[target.demo\n")
        assert session.round()["outcome"] == "refused"
        estate.write("buildd.toml", good)
        assert session.round()["outcome"] == "built"
    finally:
        session.end()


def test_a_daemon_that_ends_is_replaced_and_nothing_is_missed(estate: Estate) -> None:
    session = Session(estate)
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


def test_two_watch_one_target_and_the_work_is_done_once(estate: Estate) -> None:
    first = Session(estate)
    second = Session(estate)
    try:
        first.round(), second.round()
        estate.write("src/a.cu", "//! sleep 1\nother\n")
        jobs = [session.until(finished_a)["job_id"] for session in (first, second)]
        assert jobs[0] == jobs[1]
        first.round(), second.round()
    finally:
        first.end(), second.end()


def finished_a(body: Line) -> bool:
    return body["type"] == "finished" and body["action"] == "demo/src/a.cu.o"


def test_without_a_daemon_nothing_watches(estate: Estate) -> None:
    said = estate.start("watch", "--no-daemon", "-C", str(estate.project))
    output, _ = said.communicate(timeout=DEADLINE_S)
    assert said.returncode == 2 and "only a daemon watches" in output


def test_kernels_are_part_of_the_protocol() -> None:
    kernel = m.Kernel(name="k", arch="sm_80", registers=10)
    assert m.Finished(job_id=m.JobId(1), action="a", timing=m.Timing(), kernels=(kernel,)).kernels == (kernel,)
