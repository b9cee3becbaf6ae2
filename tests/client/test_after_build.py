"""The command of `buildd watch -- COMMAND`: when it runs, and how a run ends."""

from __future__ import annotations

import os
import queue
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from buildd.client.after_build import AfterBuild
from buildd.host.proc import stat_of
from protocol import messages as m
from tests.support.waiting import DEADLINE_S, until


class Watch:
    """Stands for the watch and its display."""

    def __init__(self, *command: str) -> None:
        self.begun: list[tuple[str, ...]] = []
        self.shown: list[m.Ran] = []
        self._told: queue.Queue[m.Ran] = queue.Queue()
        self.after = AfterBuild(command, dict(os.environ), self, self._told.put)

    def watching(self, body: m.Watching) -> None:
        raise AssertionError

    def begin(self, build_id: m.BuildId, changed: m.Changed | None) -> None: ...

    def event(self, event: m.Event) -> None: ...

    def note(self, words: str) -> None: ...

    def measured(self, body: m.Measured) -> None: ...

    def running(self, command: Sequence[str], *, again: bool = False) -> None:
        self.begun.append((*command, *(["again"] if again else [])))

    def ran(self, body: m.Ran) -> None:
        self.shown.append(body)

    def build(self, *bodies: m.EventBody, outcome: m.Outcome = m.Outcome.BUILT) -> None:
        for body in (*bodies, m.Done(outcome=outcome)):
            self.after.event(m.Event(request_id=m.RequestId("1"), sequence=1, time_ns=0, body=body))

    def ended(self) -> m.Ran:
        return self._told.get(timeout=DEADLINE_S)


def made(content: str, path: str = "build/libt.so") -> m.Artifact:
    return m.Artifact(target="t", name="libt.so", path=path, digest=m.Digest(content), size_bytes=1)


def test_it_runs_when_an_output_is_new_and_not_otherwise() -> None:
    watch = Watch(sys.executable, "-c", "raise SystemExit(3)")
    watch.build(made("1"))
    assert watch.ended().exit_status == 3
    watch.build(made("1"))
    watch.build(made("2"), outcome=m.Outcome.FAILED)
    assert len(watch.begun) == 1
    watch.build()  # the failed build has made it
    assert watch.ended().exit_status == 3
    watch.build(made("2"))
    assert len(watch.begun) == 2
    watch.after.close()


def test_in_a_tree_of_another_tool_it_runs_if_a_command_ran() -> None:
    watch = Watch("true")
    watch.build()
    watch.ended()
    watch.build()
    watch.build(m.CacheHit(job_id=m.JobId(1), action="a.o", reason="same inputs"))
    watch.ended()
    assert len(watch.begun) == 2
    watch.after.close()


def test_a_newer_build_ends_the_run_with_its_group_and_starts_another(tmp_path: Path) -> None:
    """The command's own process is gone at once; what it has started takes its time to end, and is given it."""
    at_end = f'trap "sleep 0.3; echo ended >> {tmp_path}/order; exit" TERM'
    slow = f"{at_end}; echo $$ > {tmp_path}/child; while :; do sleep 0.05; done"
    watch = Watch("sh", "-c", f"echo begun >> {tmp_path}/order; sh -c '{slow}' & wait")
    watch.build(made("1"))
    child = tmp_path / "child"
    until(lambda: child.exists() and child.read_text(), "the command's child")
    watch.build(made("2"))
    stopped = watch.ended()
    assert stopped.signal == signal.SIGTERM and stopped.stopped
    assert [words[-1] == "again" for words in watch.begun] == [False, True]
    order = tmp_path / "order"
    until(lambda: order.read_text().count("begun") == 2, "the second run")
    assert order.read_text().split() == ["begun", "ended", "begun"]
    watch.after.close()


def test_at_the_end_nothing_of_the_command_is_left(tmp_path: Path) -> None:
    place = tmp_path / "child"
    watch = Watch("sh", "-c", f"sleep 1000 & echo $! > {place}.part; mv {place}.part {place}")
    watch.build(made("1"))
    assert watch.ended().exit_status == 0
    watch.after.close()
    until(lambda: stat_of(int(place.read_text())) is None, "the end of the command's child")


def test_a_command_that_cannot_start_is_told_and_tried_again(tmp_path: Path) -> None:
    program = tmp_path / "later"
    watch = Watch(str(program))
    watch.build(made("1"))
    assert watch.ended().message == "No such file or directory"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    watch.build(made("2"))
    assert watch.ended() == watch.shown[-1] and watch.shown[-1].message == ""
    watch.after.close()
