"""A storage helper of ccache's as a carrier: any program `ccache-storage-SCHEME` on PATH, for tiers at `SCHEME:` URLs.

The helper is a process of its own, which is started with the first question and speaks on a socket in a folder of this
carrier's. A helper that has ended is started again by the next question. Knows ccache's protocol for storage helpers,
and neither the helper nor what it speaks itself.
"""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from buildd.tier.carrier import MAX_OBJECT_BYTES, Carrier, CarrierError, LargeObject, ObjectKind, Patience, Trouble

PREFIX = "ccache-storage-"
START_S = 5.0
_IDLE_S = 120
"""A helper whose daemon was killed ends by itself after so long."""
_VERSION, _GET_PUT_REMOVE = 1, 0
_GET, _PUT, _STOP = b"\0", b"\1", b"\3"
_OVERWRITE = b"\1"
_DONE, _ABSENT, _FAILED = 0, 1, 2
_LENGTH = struct.Struct("=Q")
_CHUNK_BYTES = 1 << 18
_POLL_S = 0.01


def program_of(scheme: str) -> str | None:
    """The helper for URLs of a scheme; None where there is none."""
    return shutil.which(PREFIX + scheme) if scheme.isascii() and scheme.isalnum() else None


class HelperCarrier(Carrier):
    """A helper.

    Args:
        program: its file.
        url: what it gets as the place of the objects.
    """

    def __init__(self, program: str, url: str) -> None:
        self._program, self._url = program, url
        self.words = f"the helper {os.path.basename(program)}"
        self._lock = threading.Lock()
        self._starting = threading.Lock()
        self._folder = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._idle: list[socket.socket] = []
        self._busy: set[socket.socket] = set()
        self._closed = False

    def get(
        self,
        kind: ObjectKind,
        name: str,
        patience: Patience,
        most_bytes: int = MAX_OBJECT_BYTES,
        size_bytes: int | None = None,
    ) -> bytes | None:
        def ask(helper: socket.socket) -> bytes | None:
            helper.sendall(_GET + _key(kind, name))
            if _status(helper, patience) == _ABSENT:
                return None
            (size,) = _LENGTH.unpack(_received(helper, _LENGTH.size, patience))
            if size > most_bytes:
                raise LargeObject
            return _received(helper, size, patience)

        return self._exchanged(ask, patience)

    def put(self, kind: ObjectKind, name: str, data: bytes, patience: Patience) -> None:
        def ask(helper: socket.socket) -> bytes | None:
            helper.sendall(_PUT + _key(kind, name) + _OVERWRITE + _LENGTH.pack(len(data)))
            for start in range(0, len(data), _CHUNK_BYTES):
                helper.settimeout(patience.left_s())
                helper.sendall(memoryview(data)[start : start + _CHUNK_BYTES])
            if _status(helper, patience) == _ABSENT:
                raise CarrierError(Trouble.RIGHTS, "the helper stores nothing")
            return None

        self._exchanged(ask, patience)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, busy, process = self._idle, [*self._busy], self._process
            self._idle = []
        for helper in idle:
            helper.close()
        for helper in busy:
            with suppress(OSError):
                helper.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for it
        if process is not None:
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as last:
                last.settimeout(_POLL_S)
                last.connect(f"{self._folder}/s")
                last.sendall(_STOP)
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=1.0)
            if process.poll() is None:
                process.kill()
                process.wait()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    # ----------------------------------------------------------------

    def _exchanged(self, ask: Callable[[socket.socket], bytes | None], patience: Patience) -> bytes | None:
        helper: socket.socket | None = None
        try:
            helper = self._taken(patience)
            helper.settimeout(patience.left_s())
            found = ask(helper)
        except BaseException as error:
            if helper is not None:
                self._drop(helper)
            if isinstance(error, TimeoutError):
                raise CarrierError(Trouble.SLOW) from error
            if isinstance(error, OSError):
                raise CarrierError(Trouble.UNREACHABLE, error.strerror or str(error)) from error
            raise
        with self._lock:
            self._busy.discard(helper)
            if not self._closed:
                self._idle.append(helper)
                return found
        helper.close()
        return found

    def _taken(self, patience: Patience) -> socket.socket:
        """A connection to the helper. Raises OSError, `CarrierError`."""
        with self._lock:
            while self._idle:
                helper = self._idle.pop()
                if _is_quiet(helper):
                    self._busy.add(helper)
                    return helper
                helper.close()
        with self._starting:
            helper = self._begun(patience)
        try:
            version, count = _received(helper, 2, patience)
            if version != _VERSION or _GET_PUT_REMOVE not in _received(helper, count, patience):
                raise CarrierError(Trouble.ODD, "the helper speaks another version")
        except BaseException:
            helper.close()
            raise
        with self._lock:
            self._busy.add(helper)
        return helper

    def _begun(self, patience: Patience) -> socket.socket:
        """A connection to the helper, which is started unless it runs. One thread at a time. Raises as `_taken`."""
        if self._process is not None and self._process.poll() is None:
            return _connected(f"{self._folder}/s", patience.left_s())
        with self._lock:
            if self._closed:
                raise CarrierError(Trouble.UNREACHABLE, "the tier is closed")
            if not self._folder:
                self._folder = tempfile.mkdtemp(prefix="buildd-tier-")
            place = f"{self._folder}/s"
            with suppress(FileNotFoundError):
                os.unlink(place)
            variables = {"CRSH_IPC_ENDPOINT": place, "CRSH_URL": self._url, "CRSH_NUM_ATTR": "0"}
            variables["BUILDD_TIER"] = "no"  # buildd's own helper must not ask this daemon
            self._process = subprocess.Popen(
                [self._program],
                env={**os.environ, **variables, "CRSH_IDLE_TIMEOUT": str(_IDLE_S)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        # Its start is no silence of the tier's.
        until_s = min(patience.until_s, time.monotonic() + START_S)
        while True:
            with suppress(FileNotFoundError, ConnectionRefusedError):
                return _connected(place, patience.left_s())
            if self._process.poll() is not None:
                raise CarrierError(Trouble.UNREACHABLE, f"{os.path.basename(self._program)} ended at once")
            if self._closed or time.monotonic() > until_s:
                raise CarrierError(Trouble.SLOW, f"{os.path.basename(self._program)} does not start")
            time.sleep(_POLL_S)

    def _drop(self, helper: socket.socket) -> None:
        with self._lock:
            self._busy.discard(helper)
        helper.close()


def _key(kind: ObjectKind, name: str) -> bytes:
    key = kind.value.encode() + bytes.fromhex(name)
    return bytes([len(key)]) + key


def _status(helper: socket.socket, patience: Patience) -> int:
    """Whether it was done, or there is nothing. Raises `CarrierError`."""
    status = _received(helper, 1, patience)[0]
    if status == _FAILED:
        said = _received(helper, _received(helper, 1, patience)[0], patience)
        raise CarrierError(Trouble.UNREACHABLE, said.decode(errors="replace"))
    if status not in (_DONE, _ABSENT):
        raise CarrierError(Trouble.ODD, "the helper speaks another version")
    return status


def _received(helper: socket.socket, size: int, patience: Patience) -> bytes:
    pieces, left = [], size
    while left:
        helper.settimeout(patience.left_s())
        piece = helper.recv(min(left, _CHUNK_BYTES))
        if not piece:
            raise CarrierError(Trouble.UNREACHABLE, "the helper has gone")
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def _is_quiet(helper: socket.socket) -> bool:
    """Whether a connection that was idle is still there."""
    helper.setblocking(False)
    try:
        helper.recv(1)  # its end, or words that nobody has asked for
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def _connected(place: str, within_s: float) -> socket.socket:
    """Raises OSError."""
    helper = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        helper.settimeout(within_s)
        helper.connect(place)
    except BaseException:
        helper.close()
        raise
    return helper
