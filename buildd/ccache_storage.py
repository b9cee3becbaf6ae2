"""`ccache-storage-buildd`: ccache's remote storage in buildd's store, and through it in the shared tier.

ccache starts this program for a URL such as `buildd:`, or `buildd:///FOLDER` for the store in a folder, and speaks its
protocol for storage helpers with it, on a socket that it names. The values are entries beside the store's results
(`hooks.entries`), each signed by the user. Knows the protocol, and nothing of what the values mean.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

from buildd.hooks import tier_door
from buildd.hooks.entries import MOST_BYTES, Entry, Shelf
from buildd.store import shared_kernels

GROUP = "value"
_VERSION, _CAPABILITIES = 1, b"\0\1"
_OK, _NOOP, _ERROR = b"\0", b"\1", b"\2"
_GET, _PUT, _REMOVE, _STOP, _INFO = range(5)
_OVERWRITE = 1
_LENGTH = struct.Struct("=Q")
_MOST_WORDS_BYTES = 255
_TRIM_BYTES = 64 << 20
"""After so many new bytes the entries are trimmed to their bound."""
_POLL_S = 1.0
_log = logging.getLogger(__name__)


class Values:
    """The values in one store. Every method may be called from any thread; each raises OSError and ValueError.

    Args:
        store: the store's folder.
        limit_bytes: bound of all entries beside the store.
    """

    def __init__(self, store: Path, limit_bytes: int, environ: Mapping[str, str]) -> None:
        self._store, self._limit_bytes = store, limit_bytes
        # ccache's keys do not depend on Triton's tools.
        kept = {name: value for name, value in environ.items() if not name.startswith("TRITON_")}
        self._shelf = Shelf(os.fspath(store), shared_kernels.CCACHE, kept)
        self._lock = threading.Lock()
        self._untrimmed = 0

    def get(self, key: bytes) -> bytes | None:
        """A value, also from the shared tier."""
        found = self._taken(key)
        if found is None:
            with suppress(OSError, ValueError):  # without the tier ccache compiles
                if tier_door.fetch(self._shelf, key.hex(), GROUP):
                    found = self._taken(key)
        return found

    def put(self, key: bytes, value: bytes, *, overwrite: bool) -> bool:
        """Keep a value; False where there is one already, or where nothing can be kept."""
        if not self._shelf.open() or (not overwrite and self._taken(key) is not None):
            return False
        self._shelf.put(Entry(key.hex(), GROUP, {GROUP: value}))
        tier_door.offer(self._shelf, key.hex(), GROUP)
        with self._lock:
            self._untrimmed += len(value)
            if self._untrimmed <= _TRIM_BYTES:
                return True
            self._untrimmed = 0
        shared_kernels.trim(self._store, self._limit_bytes)
        return True

    def remove(self, key: bytes) -> bool:
        """Remove a value from this store; False where there was none."""
        try:
            os.unlink(os.path.join(self._shelf.folder, self._shelf.name_of(key.hex(), GROUP)))
        except FileNotFoundError:
            return False
        return True

    def _taken(self, key: bytes) -> bytes | None:
        try:
            entry = self._shelf.take(key.hex(), GROUP)
        except ValueError as error:  # damaged, or of somebody who is not trusted: it is none
            _log.info("an entry is rejected: %s", error)
            return None
        return None if entry is None else entry.files[GROUP]


class StorageHelper:
    """The listening socket. Raises OSError where it cannot be made.

    Args:
        endpoint: the socket's path, as ccache gave it.
        idle_s: ends after so long without a request; 0: never.
    """

    def __init__(self, endpoint: str, values: Values, idle_s: float) -> None:
        self._values, self._idle_s, self._endpoint = values, idle_s, endpoint
        self._ended = threading.Event()
        self._asked_s = time.monotonic()
        before = os.umask(0o077)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if _is_abandoned(endpoint):  # ccache, which holds a lock meanwhile, does not remove it
                os.unlink(endpoint)
            self._socket.bind(endpoint)
            self._socket.listen(128)
        except OSError:
            self._socket.close()
            raise
        finally:
            os.umask(before)
        self._socket.settimeout(min(_POLL_S, idle_s) if idle_s else _POLL_S)

    def serve(self) -> None:
        """Answer until a client asks to stop, or nobody has asked for long."""
        while not self._ended.is_set():
            try:
                client, _ = self._socket.accept()
            except TimeoutError:
                if self._idle_s and time.monotonic() - self._asked_s > self._idle_s:
                    break
                continue
            if self._ended.is_set():
                client.close()
                break
            threading.Thread(target=self._converse, args=(client,), daemon=True).start()
        with suppress(OSError):
            os.unlink(self._endpoint)
        self._socket.close()

    def end(self) -> None:
        self._ended.set()
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as nobody:
            nobody.connect(self._endpoint)  # wakes `accept`

    def _converse(self, client: socket.socket) -> None:
        with client, suppress(OSError, EOFError), client.makefile("rb") as words:
            client.sendall(bytes([_VERSION, len(_CAPABILITIES)]) + _CAPABILITIES)
            while request := words.read(1):
                self._asked_s = time.monotonic()
                client.sendall(self._answer(request[0], words))
                if request[0] == _STOP:
                    self.end()
                    return

    def _answer(self, request: int, words: BinaryIO) -> bytes:
        """Raises OSError, EOFError."""
        if request == _STOP:
            return _OK
        if request == _INFO:
            return _said(b"buildd") + b"\0"
        if request not in (_GET, _PUT, _REMOVE):
            raise EOFError("a request of another version")
        key = _exactly(words, _exactly(words, 1)[0])
        try:
            if request == _GET:
                found = self._values.get(key)
                return _NOOP if found is None else _OK + _LENGTH.pack(len(found)) + found
            if request == _REMOVE:
                return _OK if self._values.remove(key) else _NOOP
            flags = _exactly(words, 1)[0]
            (size,) = _LENGTH.unpack(_exactly(words, _LENGTH.size))
            if size > MOST_BYTES:
                raise EOFError("a value is larger than allowed")
            value = _exactly(words, size)
            return _OK if self._values.put(key, value, overwrite=bool(flags & _OVERWRITE)) else _NOOP
        except (OSError, ValueError) as error:
            return _ERROR + _said(f"buildd: {error}".encode())


def _is_abandoned(endpoint: str) -> bool:
    """Whether a helper that was killed has left its socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(endpoint)
        except ConnectionRefusedError:
            return True
        except OSError:
            pass
    return False


def _exactly(words: BinaryIO, size: int) -> bytes:
    data = words.read(size)
    if len(data) != size:
        raise EOFError("the client has gone")
    return data


def _said(text: bytes) -> bytes:
    text = text[:_MOST_WORDS_BYTES]
    return bytes([len(text)]) + text


def store_of(url: str, environ: Mapping[str, str]) -> Path:
    """The folder of the store that a URL names."""
    from buildd.store import location

    path = unquote(urlsplit(url).path)
    return Path(path) if path.strip("/") else location.locate(environ).folder


def main() -> int:
    """Serve ccache; 1 where the socket or the store cannot be used."""
    from buildd.errors import BuilddError
    from buildd.store.store import Store
    from codegen.errors import RequestError
    from codegen.variables.settings import read_settings

    environ = os.environ
    try:
        endpoint = environ["CRSH_IPC_ENDPOINT"]
        store = store_of(environ.get("CRSH_URL", ""), environ)
        idle_s = float(environ.get("CRSH_IDLE_TIMEOUT", "0") or 0)
    except (KeyError, ValueError, BuilddError) as error:
        print(f"ccache-storage-buildd: ccache starts this program: {error}", file=sys.stderr)
        return 1
    try:
        limit_bytes = read_settings(environ).number("BUILDD_CACHE_SIZE")
        with Store.open(store, limit_bytes=limit_bytes) as opened:  # made, where there is none
            values = Values(store, opened.limit_bytes // shared_kernels.SHARE, environ)
        helper = StorageHelper(endpoint, values, idle_s)
    except (BuilddError, RequestError, OSError) as error:
        print(f"ccache-storage-buildd: {error}", file=sys.stderr)
        return 1
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: helper.end())
    with _daemon(store, environ):
        helper.serve()
    return 0


@contextmanager
def _daemon(store: Path, environ: Mapping[str, str]) -> Iterator[None]:
    """Keeps this user's daemon running meanwhile, if there is a shared tier: the daemon reads and writes it."""
    over = threading.Event()
    thread = threading.Thread(target=_hold, args=({**environ, "BUILDD_DIR": str(store)}, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=2.0)


def _hold(environ: Mapping[str, str], over: threading.Event) -> None:
    from buildd.client.connect import GOES_ON_WITHOUT_S, connect
    from buildd.errors import BuilddError
    from buildd.tier import tier_settings
    from codegen.errors import RequestError
    from protocol.errors import ProtocolError

    try:
        if tier_settings.of_user(environ) is not None:
            with connect(environ, start=True, start_s=GOES_ON_WITHOUT_S) as client:
                assert client.instance  # shakes hands
                over.wait()
    except (ProtocolError, BuilddError, RequestError, OSError) as error:
        _log.info("the shared tier is not used: %s", error)


if __name__ == "__main__":
    sys.exit(main())
