"""Asks the daemon twice a second how a foreign build is doing, on a thread of its own.

The terminal must not wait for a daemon that is busy or gone: `status` returns the last answer. Knows the control socket
and the shims' notes; words nothing. Imports the client only on its thread: a short command ends before.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from buildd import caller
from buildd.ui.run_status import RunningCompile, RunStatus

if TYPE_CHECKING:
    from protocol.messages import BuildId, Status

_ASK_S = 0.5
_ANSWER_S = 2.0
_INDUCTOR = re.compile(r"(c[a-z2-7]{5})[a-z2-7]{40,}((?:\.\w+)+)")
"""A name that Inductor gives to a source: "c" and a digest in base32."""


class RunProgress:
    """The progress of one build, from `with` on.

    Args:
        environ: the command's: says where the daemon and its store are.
        build: the build's id.
    """

    def __init__(self, environ: Mapping[str, str], build: str) -> None:
        self.status = RunStatus()
        self._environ = environ
        self._build = build
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
        caller.take_no_signals()
        if self._stop.wait(_ASK_S):
            return
        from buildd.store.hit_notes import noted
        from protocol.client import Client
        from protocol.errors import ProtocolError
        from protocol.messages import BuildId

        while not self._stop.is_set():
            try:
                # A new connection if that daemon has ended: shims start another one.
                with Client.connect(environ=self._environ, timeout_s=_ANSWER_S) as client:
                    while True:
                        hits = noted(self._environ["BUILDD_DIR"], self._build)
                        self.status = moment(client.status(), BuildId(self._build), hits)
                        if self._stop.wait(_ASK_S):
                            return
            except (ProtocolError, OSError):
                self.status = RunStatus(done=self.status.done, hits=self.status.hits)
                self._stop.wait(_ASK_S)


def shown_name(path: str) -> str:
    """A source's name for people: of a file that Inductor wrote, the first letters of its digest are enough."""
    name = os.path.basename(path)
    found = _INDUCTOR.fullmatch(name)
    return f"Inductor's {found[1]}{found[2]}" if found else name


def moment(status: Status, build: BuildId, direct_hits: int) -> RunStatus:
    """The part of the daemon's status that concerns one build."""
    from protocol.messages import BuildFigures, Mode

    figures = status.builds.get(build, BuildFigures())
    ours = [each for each in status.work if each.build_id == build and each.mode is Mode.COMPILE]
    running = sorted((each for each in ours if each.jobs_running), key=lambda each: -each.elapsed_s)
    waiting = sum(each.jobs_waiting > 0 and not each.jobs_running for each in ours)
    hits = figures.hits + direct_hits
    return RunStatus(
        done=hits + figures.misses,
        hits=hits,
        running=[RunningCompile(shown_name(each.what), each.elapsed_s, each.expected_s) for each in running],
        waiting=waiting,
        waiting_for=status.waiting_for if waiting else "",
    )
