"""A terminal for tests, with a program in front: what it writes, keys, resizes, Ctrl-Z, and the end of the terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import signal
import struct
import termios
import threading
from collections.abc import Mapping
from types import TracebackType

from tests.support.waiting import until


class Terminal:
    """A session of its own on a pseudo-terminal.

    Args:
        command: its first word is a path.
        environ: the command's environment.
        columns, rows: the size at the beginning.
    """

    def __init__(
        self, *command: str, environ: Mapping[str, str], columns: int = 80, rows: int = 24, cwd: str = "/"
    ) -> None:
        ready, go = os.pipe()
        self.pid, self._ours = pty.fork()
        if self.pid == 0:
            try:
                os.read(ready, 1)
                os.chdir(cwd)
                os.execve(command[0], command, dict(environ))
            finally:
                os._exit(127)
        self.resize(columns, rows)
        os.write(go, b"x")
        os.close(ready)
        os.close(go)
        self._chunks: list[bytes] = []
        self._status: int | None = None
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is None:
            for number in (signal.SIGCONT, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.pid, number)
            os.waitpid(self.pid, 0)
        if self._ours >= 0:
            os.close(self._ours)
        self._reader.join(60)

    def _read(self) -> None:
        descriptor = self._ours
        while True:
            try:
                chunk = os.read(descriptor, 65536)
            except OSError:  # EIO: no program has it any more
                return
            self._chunks.append(chunk)

    @property
    def output(self) -> bytes:
        return b"".join(self._chunks)

    @property
    def modes(self) -> int:
        """The local modes, as of `termios`."""
        return int(termios.tcgetattr(self._ours)[3])

    def has_shown(self, words: bytes) -> None:
        try:
            until(lambda: words in self.output)
        except TimeoutError as error:
            raise TimeoutError(f"{words!r} is not in {self.output!r}") from error

    def type(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def hang_up(self) -> None:
        """Take the terminal away."""
        descriptor, self._ours = self._ours, -1
        os.close(descriptor)

    def ended(self) -> int:
        """Wait for the program's end; its exit status, negative for a signal. All its output is there then."""
        found = until(lambda: (ended := os.waitpid(self.pid, os.WNOHANG))[0] and ended, "it has ended")
        self._status = os.waitstatus_to_exitcode(found[1])
        self._reader.join(60)
        return self._status
