"""Starts the page's server and finds the one that runs: one per user and runtime folder, on a loopback address.

`ui.json` in the runtime folder says where it is and holds its token; nobody else can read it. Knows no route.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from buildd.errors import BuilddError
from protocol.endpoint import Folder, runtime_folder, start_ticks
from protocol.places import boot_id

if TYPE_CHECKING:
    import uvicorn

    from buildd.web.app import Pages

PORT = 6392
"""The port that is tried first, so that links in a history stay right."""
_FILE = "ui.json"
_TOKEN = "ui.token"
_LINK = "ui-open.html"
_IDLE_S = 3600.0
_LOOK_S = 30.0
_START_S = 15.0
_POLL_S = 0.02
_NICE = 10
"""An open page must not slow a build down: the server gets what the compilers leave."""
_HOST = "127.0.0.1"


class ServerPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where a server listens."""

    pid: int
    start_ticks: int
    boot_id: str
    port: int
    token: str

    def link(self, path: str = "/") -> str:
        """The address of a page, with the token."""
        joint = "&" if "?" in path else "?"
        return f"http://{_HOST}:{self.port}{path}{joint}token={self.token}"


def build_path(name: str) -> str:
    """The path of a build's page."""
    return f"/build/{quote(name, safe='')}"


def find(environ: Mapping[str, str]) -> ServerPlace | None:
    """The server that runs; None if there is none."""
    folder = runtime_folder(environ)
    try:
        place = msgspec.json.decode((folder.path / _FILE).read_bytes(), type=ServerPlace)
    except (OSError, msgspec.MsgspecError, ValueError):
        return None
    lives = place.boot_id == boot_id() and start_ticks(place.pid) == place.start_ticks > 0
    return place if lives else None


def find_or_start(environ: Mapping[str, str]) -> ServerPlace:
    """The server that runs, or a new one in a process of its own, which ends after an hour in which nobody asks.

    Raises: BuilddError if it does not start.
    """
    if (place := find(environ)) is not None:
        return place
    folder = runtime_folder(environ)
    log = folder.path / "ui.log"
    with open(log, "ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "buildd", "ui", "--background"],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd="/",
        )
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if (place := find(environ)) is not None:
            return place
        if process.poll() is not None:
            break
        time.sleep(_POLL_S)
    raise BuilddError("the page's server did not start", file=str(log), next_step="run `buildd ui` to see why")


def serve(
    environ: Mapping[str, str], store: Path, *, port: int, background: bool, ready: Callable[[ServerPlace], None]
) -> None:
    """Serve until a signal ends the process.

    Args:
        port: 0 takes any.
        background: end after an hour without a request.
        ready: called with the place once the server listens.

    Raises: OSError if the port is taken.
    """
    import uvicorn

    from buildd.web.app import Pages
    from buildd.web.guard import Guard

    with contextlib.suppress(OSError):
        os.nice(_NICE)
    listener = _listener(port)
    taken: int = listener.getsockname()[1]
    token = os.urandom(24).hex()
    pages = Pages(environ, store)
    config = uvicorn.Config(
        Guard(pages.app(), token=token, port=taken),
        log_level="warning",
        access_log=False,
        lifespan="on",
        server_header=False,
        timeout_graceful_shutdown=1,
        ws="none",
    )
    server = _quiet(uvicorn.Server(config))
    pid = os.getpid()
    place = ServerPlace(pid=pid, start_ticks=start_ticks(pid), boot_id=boot_id(), port=taken, token=token)
    folder = runtime_folder(environ)
    _publish(folder, place)

    async def run() -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, _end, server)
        idle = asyncio.create_task(_end_if_idle(pages, server)) if background else None
        try:
            await server.serve(sockets=[listener])
        finally:
            if idle is not None:
                idle.cancel()

    try:
        ready(place)
        asyncio.run(run())
    finally:
        if find(environ) == place:
            for name in (_FILE, _TOKEN, _LINK):
                (folder.path / name).unlink(missing_ok=True)


def _quiet(server: uvicorn.Server) -> uvicorn.Server:
    """Uvicorn's own handling of signals sends the signal once more at the end, before anything can be tidied up."""
    server.capture_signals = contextlib.nullcontext  # type: ignore[assignment,method-assign]
    return server


def _end(server: uvicorn.Server) -> None:
    server.force_exit = server.should_exit  # a second signal waits for no open page
    server.should_exit = True


async def _end_if_idle(pages: Pages, server: uvicorn.Server) -> None:
    asked, since_s = pages.asked, time.monotonic()
    while time.monotonic() - since_s < _IDLE_S:
        await asyncio.sleep(_LOOK_S)
        if pages.asked != asked or pages.streams:
            asked, since_s = pages.asked, time.monotonic()
    server.should_exit = True


def _listener(port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((_HOST, port))
    except OSError:
        made.close()
        raise
    made.listen(64)
    return made


def _publish(folder: Folder, place: ServerPlace) -> None:
    """Write the server's token for Prometheus (`credentials_file`), then where the server is: that announces it."""
    _write_private(folder.path / _TOKEN, place.token.encode())
    _write_private(folder.path / _FILE, msgspec.json.encode(place))


def opener(environ: Mapping[str, str], place: ServerPlace, path: str) -> Path:
    """A file of the user's own that leads a browser to a page: a browser's command line, which would have the token
    in it, can be read by everybody on the machine."""
    file = runtime_folder(environ).path / _LINK
    link = place.link(path).replace("&", "&amp;").replace('"', "&quot;")
    _write_private(file, f'<!doctype html><meta http-equiv="refresh" content="0;url={link}">\n'.encode())
    return file


def _write_private(path: Path, content: bytes) -> None:
    aside = path.with_name(f"{path.name}.{os.getpid()}.new")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "wb") as file:
        file.write(content)
    os.replace(aside, path)
