"""Bazel's HTTP cache as a carrier: GET and PUT of `/cas/<sha256>` and `/ac/<sha256>`.

bazel-remote, nginx with WebDAV, and hosted caches speak it. Keeps connections open; uses Python's own client, because
the tier needs a time limit for each read, which it sets on the socket.
"""

from __future__ import annotations

import base64
import http.client
import socket
import ssl
import threading
from collections.abc import Sequence
from contextlib import suppress
from urllib.parse import SplitResult, unquote

from buildd.tier.carrier import MAX_OBJECT_BYTES, Carrier, CarrierError, LargeObject, ObjectKind, Patience, Trouble

CONNECT_S = 1.0
_CHUNK_BYTES = 1 << 18
_CLOSED = "the tier is closed"
_FOUND, _GONE, _DONE = 200, (404, 410), (200, 201, 202, 204)
_RIGHTS, _FULL, _BUSY = (401, 403, 405, 407), (413, 507), (408, 425, 429, 500, 502, 503, 504)


class HttpCarrier(Carrier):
    """A server.

    Args:
        url: http or https; a user and a password or token in it are sent as basic authentication.
        headers: sent with each request.
    """

    words = "Bazel's HTTP cache"

    def __init__(self, url: SplitResult, headers: Sequence[tuple[str, str]] = ()) -> None:
        self._host, self._port, self._path = url.hostname or "", url.port, url.path.rstrip("/")
        self._context = ssl.create_default_context() if url.scheme == "https" else None
        self._headers = {"User-Agent": "buildd", "Accept-Encoding": "identity"}
        if url.username is not None:
            words = f"{unquote(url.username)}:{unquote(url.password or '')}".encode()
            self._headers["Authorization"] = f"Basic {base64.b64encode(words).decode()}"
        self._headers |= {name.title(): value for name, value in headers}
        self._lock = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []
        self._busy: set[http.client.HTTPConnection] = set()
        self._closed = False

    def get(
        self,
        kind: ObjectKind,
        name: str,
        patience: Patience,
        most_bytes: int = MAX_OBJECT_BYTES,
        size_bytes: int | None = None,
    ) -> bytes | None:
        status, content = self._ask("GET", f"{self._path}/{kind.value}/{name}", None, patience, most_bytes)
        if status == _FOUND:
            return content
        if status in _GONE:
            return None
        raise _trouble(status)

    def put(self, kind: ObjectKind, name: str, data: bytes, patience: Patience) -> None:
        status, _ = self._ask("PUT", f"{self._path}/{kind.value}/{name}", data, patience, MAX_OBJECT_BYTES)
        if status not in _DONE:
            raise _trouble(status)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, busy = [*self._idle], [*self._busy]
            self._idle.clear()
        for connection in busy:
            sock = connection.sock
            if sock is not None:
                with suppress(OSError):
                    # Wakes the thread that uses it, which closes it: until then it reckons with a socket. TLS's own
                    # shutdown would take that thread's state away.
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)
        for connection in idle:
            connection.close()

    # ----------------------------------------------------------------

    def _ask(
        self, method: str, path: str, data: bytes | None, patience: Patience, most_bytes: int
    ) -> tuple[int, bytes]:
        connection, was_open = self._take()
        try:
            try:
                answer = self._exchange(connection, method, path, data, patience, most_bytes)
            except (ConnectionError, http.client.RemoteDisconnected):
                if not was_open:
                    raise
                # The server has closed a connection that was idle.
                self._drop(connection)
                connection, _ = self._take(fresh=True)
                answer = self._exchange(connection, method, path, data, patience, most_bytes)
        except BaseException as error:
            self._drop(connection)
            if isinstance(error, TimeoutError):
                raise CarrierError(Trouble.SLOW) from error
            if isinstance(error, ssl.SSLError):
                raise CarrierError(Trouble.ODD, error.reason or "TLS") from error
            if isinstance(error, OSError):
                raise CarrierError(Trouble.UNREACHABLE, error.strerror or str(error)) from error
            if isinstance(error, http.client.HTTPException | ValueError):
                raise CarrierError(Trouble.ODD, type(error).__name__) from error
            raise
        self._give_back(connection, keep=answer[2])
        return answer[:2]

    def _exchange(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        data: bytes | None,
        patience: Patience,
        most_bytes: int,
    ) -> tuple[int, bytes, bool]:
        """The status, the content, and whether the connection may be used again."""
        connection.timeout = min(CONNECT_S, patience.left_s())
        if connection.sock is None:
            connection.connect()
        if self._closed:  # while it connected there was no socket to shut down
            raise CarrierError(Trouble.UNREACHABLE, _CLOSED)
        # A long body waits for the socket piece by piece: each piece has its own time.
        connection.sock.settimeout(patience.left_s())
        headers = {**self._headers, **({} if data is None else {"Content-Length": str(len(data))})}
        connection.putrequest(method, path, skip_accept_encoding=True)
        for key, value in headers.items():
            connection.putheader(key, value)
        connection.endheaders()
        for start in range(0, len(data or b""), _CHUNK_BYTES):
            connection.sock.settimeout(patience.left_s())
            connection.sock.sendall(memoryview(data or b"")[start : start + _CHUNK_BYTES])
        sock = connection.sock
        sock.settimeout(patience.left_s())
        response = connection.getresponse()
        content, count = [], 0
        try:
            while True:
                sock.settimeout(patience.left_s())
                piece = response.read1(_CHUNK_BYTES)
                if not piece:
                    break
                content.append(piece)
                count += len(piece)
                if count > most_bytes:
                    raise LargeObject
            if response.length:
                raise CarrierError(Trouble.ODD, "the content was cut short")
            keep = response.isclosed() and not response.will_close and not response.length
        finally:
            response.close()
        return response.status, b"".join(content), keep

    def _take(self, *, fresh: bool = False) -> tuple[http.client.HTTPConnection, bool]:
        with self._lock:
            if self._closed:
                raise CarrierError(Trouble.UNREACHABLE, _CLOSED)
            was_open = bool(self._idle) and not fresh
            connection = self._idle.pop() if was_open else self._new()
            self._busy.add(connection)
            return connection, was_open

    def _new(self) -> http.client.HTTPConnection:
        if self._context is not None:
            return http.client.HTTPSConnection(self._host, self._port, timeout=CONNECT_S, context=self._context)
        return http.client.HTTPConnection(self._host, self._port, timeout=CONNECT_S)

    def _give_back(self, connection: http.client.HTTPConnection, *, keep: bool) -> None:
        with self._lock:
            self._busy.discard(connection)
            if keep and not self._closed and connection.sock is not None:
                self._idle.append(connection)
                return
        connection.close()

    def _drop(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            self._busy.discard(connection)
        connection.close()


def _trouble(status: int) -> CarrierError:
    if status in _RIGHTS:
        return CarrierError(Trouble.RIGHTS, f"status {status}")
    if status in _FULL:
        return CarrierError(Trouble.FULL, f"status {status}")
    if status in _BUSY:
        return CarrierError(Trouble.UNREACHABLE, f"status {status}")
    return CarrierError(Trouble.ODD, f"status {status}")
