"""The door of one store: a socket by which programs have entries fetched from the tier, and tell of new ones, and by
which commands do so with measurements.

The programs' side is `hooks.tier_door`. A line of JSON asks. The first answer is a line that says how long the second
one may take: so a program knows at once whether the daemon is well. A program can only have things fetched that a key
which the user trusts has signed, and things uploaded that are in the store. Knows no entry and no measurement.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec

from buildd.hooks.tier_door import FOLDER, NAME
from buildd.store.shared_kernels import is_place
from protocol.described import described

PROGRAMS = 128
"""So many programs may wait at once; others wait for their turn, or compile."""
_SILENCE_S = 2.0
"""A program sends its line at once."""
_MOST_BYTES = 4096
_CREDENTIALS = struct.Struct("3i")
_log = logging.getLogger(__name__)


class _Question(msgspec.Struct, frozen=True):
    """What a program says: one of the fields but `seconds`."""

    get: str = ""
    made: str = ""
    rows: str = ""
    """A GPU model, whose measurements are wanted."""
    measured: bool = False
    seconds: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 0.0
    """How long it took to make; 0 where that is unknown."""


class Door:
    """The socket, from its making on until `close`. Raises OSError where a socket cannot be there.

    Args:
        store: the store's folder.
        begin: begins a look-up, and says how long it may take; None where the tier is not asked.
        made: gets the place of a new entry, and how long it took to make.
        begin_rows: as `begin`, for the measurements of a GPU model.
        measured: is told that the store has new measurements.
    """

    def __init__(
        self,
        store: Path,
        begin: Callable[[str], tuple[Future[bool], float] | None],
        made: Callable[[str, float], None],
        begin_rows: Callable[[str], tuple[Future[bool], float] | None],
        measured: Callable[[], None],
    ) -> None:
        self._begin, self._made, self._begin_rows, self._measured = begin, made, begin_rows, measured
        folder = store / FOLDER
        folder.mkdir(mode=0o700, exist_ok=True)
        self._folder = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # By its folder's descriptor: the path of a socket has room for 107 bytes. By rename: a daemon that ends
            # while the next one begins leaves no gap.
            new = f"/proc/self/fd/{self._folder}/.{os.getpid()}-{os.urandom(4).hex()}"
            self._socket.bind(new)
            os.chmod(new, 0o600)
            self._socket.listen(PROGRAMS)
            self._inode = os.stat(new).st_ino
            os.replace(new, f"/proc/self/fd/{self._folder}/{NAME}")
        except OSError:
            self._socket.close()
            os.close(self._folder)
            raise
        self._pool = ThreadPoolExecutor(PROGRAMS, thread_name_prefix="tier-door")
        self._thread = threading.Thread(target=self._listen, name="tier-door", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answer nobody any more. The socket of a later daemon stays."""
        with suppress(OSError):
            if os.stat(NAME, dir_fd=self._folder, follow_symlinks=False).st_ino == self._inode:
                os.unlink(NAME, dir_fd=self._folder)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # ends `accept`
        self._thread.join(timeout=2.0)
        self._socket.close()
        self._pool.shutdown(wait=False, cancel_futures=True)
        os.close(self._folder)

    # ----------------------------------------------------------------

    def _listen(self) -> None:
        while True:
            try:
                program, _ = self._socket.accept()
            except OSError:
                return
            try:
                self._pool.submit(self._serve, program)
            except RuntimeError:  # it is being closed
                program.close()
                return

    def _serve(self, program: socket.socket) -> None:
        try:
            with program:
                program.settimeout(_SILENCE_S)
                if _user_of(program) == os.geteuid():
                    self._answer(program, _line(program))
        except (OSError, ValueError, msgspec.MsgspecError) as error:  # the program has gone, or says something odd
            _log.debug("a program at the door: %r", error)
        except Exception:  # the edge: the next program is answered
            _log.exception("a program's question failed inside")

    def _answer(self, program: socket.socket, line: bytes) -> None:
        asked = msgspec.json.decode(line, type=described(_Question))
        if is_place(asked.made):
            self._made(asked.made, asked.seconds)
        elif asked.measured:
            self._measured()
        elif is_place(asked.get) or asked.rows:
            begun = self._begin(asked.get) if asked.get else self._begin_rows(asked.rows)
            if begun is None:
                program.sendall(b"0\n0")
                return
            looking, wait_s = begun
            program.sendall(b"%.3f\n" % wait_s)
            is_found = False
            with suppress(TimeoutError):
                is_found = looking.result(timeout=wait_s)
            program.sendall(b"1" if is_found else b"0")


def _user_of(program: socket.socket) -> int:
    credentials = program.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[1])


def _line(program: socket.socket) -> bytes:
    """What the program says, up to the end of its line. Raises OSError, ValueError."""
    line = b""
    while not line.endswith(b"\n"):
        more = program.recv(_MOST_BYTES)
        line += more
        if not more or len(line) > _MOST_BYTES:
            raise ValueError("no line")
    return line
