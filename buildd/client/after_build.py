"""The command of `buildd watch -- COMMAND`: runs after each good build that made something new.

A run that still goes on when a newer build is good is ended first, with its whole process group; after a failed build
the last good one's run goes on. Knows neither a daemon nor the display.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from buildd.client.watch_session import Listener
from buildd.host.proc import is_group_alive
from protocol import messages as m

GRACE_S = 10.0
"""How long the processes of a run may take to end after SIGTERM before they are killed."""
_LOOK_S = 0.02


class RunListener(Listener, Protocol):
    """A `Listener` that is also told measurements and the runs of the command."""

    def measured(self, body: m.Measured) -> None: ...

    def running(self, command: Sequence[str], *, again: bool = False) -> None: ...

    def ran(self, body: m.Ran) -> None: ...


class AfterBuild:
    """Listens in front of another listener, and runs a command after good builds.

    Args:
        command: its words.
        environ: of the command.
        listener: is told everything.
        tell: gets the event of a run that has ended.
        output: descriptor for the command's standard output; None for this process's own.
    """

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        listener: RunListener,
        tell: Callable[[m.Ran], None],
        output: int | None = None,
    ) -> None:
        self._command = tuple(command)
        self._environ = environ
        self._listener = listener
        self._tell = tell
        self._output = output
        self.call: Callable[[Callable[[], None]], None] = lambda what: what()
        """Has the thread of the watch call a function: `Saves.call`."""
        self._digests: dict[str, m.Digest] = {}
        """Path of an artifact -> what the last build made."""
        self._is_due = True
        """Something is new since the command last began."""
        self._run: _Run | None = None

    @property
    def is_running(self) -> bool:
        return self._run is not None and not self._run.has_ended

    # ---------------------------------------------------------------- called by `watch_session`

    def watching(self, body: m.Watching) -> None:
        self._listener.watching(body)

    def begin(self, build_id: m.BuildId, changed: m.Changed | None) -> None:
        self._listener.begin(build_id, changed)

    def measured(self, body: m.Measured) -> None:
        self._listener.measured(body)

    def note(self, words: str) -> None:
        self._listener.note(words)

    def event(self, event: m.Event) -> None:
        self._listener.event(event)
        match event.body:
            case m.Artifact(path=path, digest=digest):
                self._is_due = self._is_due or self._digests.get(path) != digest
                self._digests[path] = digest
            case m.Finished() | m.CacheHit() if not self._digests:
                self._is_due = True  # another tool's tree names no artifacts
            case m.Done(outcome=m.Outcome.BUILT) if self._is_due:
                self._is_due = False
                self._listener.running(self._command, again=self.is_running)  # before its first output
                self._run = _Run(self._ended, self._run)
                self._run.begin(self._command, self._environ, self._output)
            case _:
                pass

    # ---------------------------------------------------------------- the runs

    def close(self) -> None:
        """End the run, if one goes on. A second Ctrl-C meanwhile kills it at once."""
        if self._run is None:
            return
        try:
            self._run.end()
        except KeyboardInterrupt:
            self._run.kill()
            raise

    def _ended(self, body: m.Ran) -> None:
        self.call(lambda: self._show(body))

    def _show(self, body: m.Ran) -> None:
        self._tell(body)
        self._listener.ran(body)


class _Run:
    """One run of the command. Its process is reaped only at the end of its group, whose number stays taken so long.

    Args:
        ended: is called on the run's thread after the command itself has ended.
        before: the run to end first.
    """

    def __init__(self, ended: Callable[[m.Ran], None], before: _Run | None) -> None:
        self._ended = ended
        self._before = before
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_unwanted = False
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def has_ended(self) -> bool:
        return self._over.is_set()

    def begin(self, command: Sequence[str], environ: Mapping[str, str], output: int | None) -> None:
        self._thread = threading.Thread(target=self._work, args=(command, environ, output), daemon=True, name="command")
        self._thread.start()

    def end(self) -> None:
        """End all processes of the run and wait until they are gone."""
        process = self._signalled(signal.SIGTERM)
        if process is not None:
            until_s = time.monotonic() + GRACE_S
            while is_group_alive(process.pid) and time.monotonic() < until_s:
                time.sleep(_LOOK_S)
        self.kill()

    def kill(self) -> None:
        """The same without SIGTERM and its grace."""
        process = self._signalled(signal.SIGKILL)
        if self._thread is not None:
            self._thread.join()
        if process is not None:
            process.wait()

    def _signalled(self, number: signal.Signals) -> subprocess.Popen[bytes] | None:
        """Send a signal to the group of the run, which begins no more; None if there is no such group (any more)."""
        with self._lock:
            self._is_unwanted = True
            process = self._process
        if process is None or process.returncode is not None:
            return None
        os.killpg(process.pid, number)
        return process

    def _work(self, command: Sequence[str], environ: Mapping[str, str], output: int | None) -> None:
        try:
            if self._before is not None:
                self._before.end()
                self._before = None
            self._carry_out(tuple(command), environ, output)
        finally:
            self._over.set()

    def _carry_out(self, command: tuple[str, ...], environ: Mapping[str, str], output: int | None) -> None:
        began_s = time.monotonic()
        with self._lock:
            if self._is_unwanted:
                return
            try:
                # A group of its own: the terminal's Ctrl-C is for the watch, which ends the group. A process that reads
                # from the terminal outside of its foreground group would be stopped, so there is nothing to read.
                self._process = subprocess.Popen(
                    command, env=environ, stdin=subprocess.DEVNULL, stdout=output, process_group=0
                )
            except (OSError, ValueError) as error:
                words = (error.strerror if isinstance(error, OSError) else None) or str(error)
                self._ended(m.Ran(command=command, message=words))
                return
        how = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        assert how is not None
        has_exited = how.si_code == os.CLD_EXITED
        self._ended(
            m.Ran(
                command=command,
                exit_status=how.si_status if has_exited else 0,
                signal=0 if has_exited else how.si_status,
                wall_s=time.monotonic() - began_s,
                stopped=self._is_unwanted,
            )
        )
