"""Shared tiers for tests: a server of Bazel's HTTP cache with faults on request, real nginx and S3 servers, keys."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import cast

import pytest

from buildd.store.signing import Signer, signer_of
from buildd.store.store import Store
from buildd.tier.tier import Tier
from buildd.tier.tier_settings import TierSettings
from buildd.tier.uploader import Uploader
from tests.support.waiting import until

ALICE = signer_of(b"a" * 32)
MALLORY = signer_of(b"m" * 32)
HTTP_AND_GRPC = ("http", pytest.param("grpc", marks=pytest.mark.slow))
"""For tests that plant objects in a server or break it (`cache_of`)."""
_DEADLINE_S = 20.0
_GRACE_S = 1.0


class Fault(Enum):
    """What is wrong with the server."""

    NONE = "none"
    FROZEN = "frozen"
    """It takes the request and answers nothing."""
    SLOW = "slow"
    """Each answer takes two seconds."""
    DRIPPING = "dripping"
    """A byte each tenth of a second."""
    CUT = "cut"
    """Half of the content that it promises."""
    SHORT = "short"
    """Half of the content, and it says so."""
    OTHER_BYTES = "other bytes"
    NO_RIGHTS = "no rights"
    FULL = "full"
    NO_HTTP = "no http"
    MOVED = "moved"
    """It leads to a page for signing in."""


class HttpCache:
    """A server of Bazel's HTTP cache in this process, on a real socket."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.authorized: list[str | None] = []
        self.fault = Fault.NONE
        self.thawed = threading.Event()
        outer = self

        class Handler(_Handler):
            cache = outer

        self._server = _Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/x"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self) -> None:
        self.thawed.set()
        self._server.shutdown()
        self._server.server_close()

    def records(self) -> dict[str, bytes]:
        return {path: data for path, data in self.objects.items() if "/ac/" in path}

    def blobs(self) -> dict[str, bytes]:
        return {path: data for path, data in self.objects.items() if "/cas/" in path}


class _Server(ThreadingHTTPServer):
    request_queue_size = 128
    """Many connections begin at once where records are read ahead."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    cache: HttpCache

    def log_message(self, *_: object) -> None:
        return None

    def do_GET(self) -> None:
        self.cache.asked.append(f"GET {self.path}")
        self.cache.authorized.append(self.headers["Authorization"])
        found = self.cache.objects.get(self.path)
        match self.cache.fault:
            case Fault.FROZEN:
                self.cache.thawed.wait(_DEADLINE_S)
                self.close_connection = True
                return
            case Fault.SLOW:
                self.cache.thawed.wait(2.0)
            case Fault.NO_RIGHTS:
                return self._answer(403, b"")
            case Fault.MOVED:
                return self._answer(302, b"sign in")
            case Fault.NO_HTTP:
                self.wfile.write(b"\x00\xff" * 4000)
                self.close_connection = True
                return
            case Fault.OTHER_BYTES if found is not None:
                return self._answer(200, bytes(255 - byte for byte in found))
            case Fault.SHORT if found is not None:
                return self._answer(200, found[: len(found) // 2])
            case Fault.CUT | Fault.DRIPPING if found is not None:
                return self._piecemeal(found)
        self._answer(200 if found is not None else 404, found or b"")

    def do_PUT(self) -> None:
        size_bytes = int(self.headers["Content-Length"])
        data = self.rfile.read(size_bytes)
        if len(data) < size_bytes:  # the client has given up: as real servers, this one keeps no part
            self.close_connection = True
            return None
        self.cache.asked.append(f"PUT {self.path}")
        match self.cache.fault:
            case Fault.FULL:
                return self._answer(507, b"")
            case Fault.NO_RIGHTS:
                return self._answer(403, b"")
            case Fault.FROZEN:
                self.cache.thawed.wait(_DEADLINE_S)
                self.close_connection = True
                return
        self.cache.objects[self.path] = data
        self._answer(201, b"")

    def _answer(self, status: int, content: bytes) -> None:
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
        except ConnectionError:  # the client has given up
            self.close_connection = True

    def _piecemeal(self, found: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(found)))
        self.end_headers()
        self.close_connection = True
        if self.cache.fault is Fault.CUT:
            self.wfile.write(found[: len(found) // 2])
            return
        try:
            for byte in found:
                self.wfile.write(bytes([byte]))
                self.wfile.flush()
                if self.cache.thawed.wait(0.1):
                    return
        except OSError:
            return


@contextmanager
def http_cache() -> Iterator[HttpCache]:
    cache = HttpCache()
    try:
        yield cache
    finally:
        cache.close()


@contextmanager
def cache_of(kind: str) -> Iterator[HttpCache]:
    """A server of Bazel's HTTP cache; a REAPI server where the kind is "grpc"."""
    if kind == "http":
        with http_cache() as made:
            yield made
        return
    pytest.importorskip("grpc", reason="no grpcio (extra `tier`)")
    from tests.support.reapi_cache import reapi_cache

    with reapi_cache() as other:
        yield cast(HttpCache, other)  # its objects are planted and looked at in the same way


def tier_at(url: str, *, writer: Signer | None = None, believes: tuple[Signer, ...] = (ALICE,)) -> Tier:
    """A tier as a machine of its own sees it."""
    return Tier(TierSettings(url, tuple((signer.public, "alice") for signer in believes), writer))


def write_all(store: Path, url: str, writer: Signer = ALICE, *, sure_after_s: float = 1000.0) -> int:
    """Write what waits in a store's queue, as the next process does; how many results are left."""
    tier = tier_at(url, writer=writer)
    with Store.open(store) as opened:
        uploader = Uploader(tier, opened, writer, sure_after_s=sure_after_s)
        try:
            return uploader.write_all()
        finally:
            tier.close()
            uploader.close()


@contextmanager
def nginx_cache(folder: Path) -> Iterator[str]:
    """nginx as a WebDAV server; the URL."""
    port = free_port()
    (folder / "root").mkdir(parents=True)
    folder.chmod(0o755)
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/pid; error_log {folder}/errors; worker_processes 1;\n"
        f"{'user root;' if os.getuid() == 0 else ''} events {{}}\n"
        f"http {{ access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/p;\n"
        f"fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;\n"
        f"server {{ listen 127.0.0.1:{port}; root {folder}/root; client_max_body_size 0;\n"
        "location / { dav_methods PUT; create_full_put_path on; } } }\n"
    )
    with running([str(shutil.which("nginx", path=_PATH)), "-c", str(folder / "nginx.conf"), "-p", str(folder)], port):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def s3_server(folder: Path) -> Iterator[str]:
    """rclone as an S3 server with a bucket; the URL of a tier in it. The credentials are in the environment then."""
    port = free_port()
    (folder / "bucket").mkdir(parents=True)
    key, secret = "tierkey", "tiersecret"
    rclone = shutil.which("rclone", path=f"{Path(sys.executable).parent}:{_PATH}")
    with running(
        [str(rclone), "serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key", f"{key},{secret}", str(folder)], port
    ):
        os.environ.update(AWS_ACCESS_KEY_ID=key, AWS_SECRET_ACCESS_KEY=secret)
        try:
            yield f"s3://bucket/tier?region=us-east-1&endpoint=http://127.0.0.1:{port}"
        finally:
            del os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]


_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin"


def has_nginx() -> bool:
    return shutil.which("nginx", path=_PATH) is not None


def has_rclone() -> bool:
    return shutil.which("rclone", path=f"{Path(sys.executable).parent}:{_PATH}") is not None


def _takes_connections(port: int) -> bool:
    with suppress(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True
    return False


@contextmanager
def running(argv: list[str], port: int) -> Iterator[None]:
    """A server as a process of its own, from when it takes connections."""
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: process.poll() is not None or _takes_connections(port), f"{argv[0]} does not serve", _DEADLINE_S)
        assert process.poll() is None, f"{argv[0]} has ended"
        yield
    finally:
        process.terminate()
        try:
            process.wait(timeout=_GRACE_S)
        except subprocess.TimeoutExpired:  # rclone waits for connections whose answers nobody has read
            process.kill()
            process.wait()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
