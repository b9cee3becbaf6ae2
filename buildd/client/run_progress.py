"""Asks the daemon twice a second how a foreign build is doing, on a thread of its own.

The terminal must not wait for a daemon that is busy or gone: `status` returns the last answer. Knows the control socket
and the shims' notes; words nothing.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from types import TracebackType

from buildd.store.hit_notes import Notes
from buildd.ui.run_status import RunningCompile, RunStatus
from protocol.client import Client
from protocol.errors import ProtocolError
from protocol.messages import BuildFigures, BuildId, Mode, Status

_ASK_S = 0.5
_ANSWER_S = 2.0


class RunProgress:
    """The progress of one build, from `with` on.

    Args:
        environ: says where the daemon is.
        build: the build's id.
        notes: the direct hits of its shims; None where shims note nothing.
    """

    def __init__(self, environ: Mapping[str, str], build: BuildId, notes: Notes | None) -> None:
        self.status = RunStatus()
        self._environ = environ
        self._build = build
        self._notes = notes
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="buildd-progress", daemon=True)

    def __enter__(self) -> RunProgress:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _ask(self) -> None:
        while not self._stop.wait(_ASK_S):
            try:
                # A new connection if that daemon has ended: shims start another one.
                with Client.connect(environ=self._environ, timeout_s=_ANSWER_S) as client:
                    while True:
                        hits = self._notes.figures()[0] if self._notes is not None else 0
                        self.status = moment(client.status(), self._build, hits)
                        if self._stop.wait(_ASK_S):
                            return
            except (ProtocolError, OSError):
                self.status = RunStatus(done=self.status.done, hits=self.status.hits)


def moment(status: Status, build: BuildId, direct_hits: int) -> RunStatus:
    """The part of the daemon's status that concerns one build."""
    figures = status.builds.get(build, BuildFigures())
    ours = [each for each in status.work if each.build_id == build and each.mode is Mode.COMPILE]
    running = sorted((each for each in ours if each.jobs_running), key=lambda each: -each.elapsed_s)
    waiting = sum(each.jobs_waiting > 0 and not each.jobs_running for each in ours)
    hits = figures.hits + direct_hits
    return RunStatus(
        done=hits + figures.misses,
        hits=hits,
        running=[RunningCompile(os.path.basename(each.what), each.elapsed_s, each.expected_s) for each in running],
        waiting=waiting,
        waiting_for=status.waiting_for if waiting else "",
    )
