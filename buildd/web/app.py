"""The routes of the page's server: pages, their data as JSON, a live stream, exports, metrics.

Knows HTTP, and which question each route answers; the answers come from other modules of this room. Nothing here
changes anything. Questions that read the store run in worker threads.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from importlib.resources import files
from pathlib import Path
from threading import Event

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from buildd.store.build_log import Build
from buildd.ui.trace import chrome_trace
from buildd.web import cache_views, export, metrics, views
from buildd.web.archive import Archive
from buildd.web.live import Live
from buildd.web.pages_of_builds import BuildPage, page_of
from buildd.web.views import BuildLine

BEAT_S = 10.0
"""A stream says something at least this often: a page that hears nothing for longer asks again."""
_PAGES = ("/", "/build/{name}", "/cache", "/kernels", "/profiles", "/programs", "/target", "/search")
_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html"}
_PER_PAGE = 2000
_MOST_DIGITS = 18
Answer = Callable[[Request], object]


class Pages:
    """The answers.

    Args:
        environ: says where the daemon is.
        store: the store's folder.
    """

    def __init__(self, environ: Mapping[str, str], store: Path) -> None:
        self.archive = Archive(store)
        self.live = Live(environ, store)
        self.asked = 0
        """Number of requests so far, for a server that ends when nobody asks."""
        self.streams = 0
        self._environ = environ
        self._stop = Event()

    def app(self) -> Starlette:
        """The application."""
        data = {
            "/api/builds": self._builds,
            "/api/cache": lambda request: cache_views.cache(self.archive),
            "/api/kernels": lambda request: views.kernels(self.archive, _asked(request)),
            "/api/profiles": lambda request: cache_views.problems(self.archive, self.archive.folder),
            "/api/candidates": self._candidates,
            "/api/programs": lambda request: views.programs(self.archive),
            "/api/target": self._target,
            "/api/search": lambda request: views.search(self.archive, _asked(request)),
            "/api/build/{name}": self._build,
        }
        routes = [Route(path, self._shell) for path in _PAGES]
        routes += [Route(path, self._json(answer)) for path, answer in data.items()]
        routes += [
            Route("/api/stream", self._stream),
            Route("/build/{name}/export.html", self._export),
            Route("/build/{name}/trace.json", self._trace),
            Route("/metrics", self._metrics),
            Route("/assets/{name}", self._asset),
        ]
        return Starlette(routes=routes, lifespan=self._lifespan)

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        gathering = asyncio.create_task(asyncio.to_thread(self.archive.gather, self._stop))
        try:
            yield
        finally:
            self._stop.set()
            await gathering
            await self.live.close()
            self.archive.close()

    # ------------------------------------------------------------ pages

    def _shell(self, request: Request) -> Response:
        self.asked += 1
        return Response(asset("index.html"), media_type="text/html")

    def _asset(self, request: Request) -> Response:
        name = request.path_params["name"]
        kind = _TYPES.get(Path(name).suffix)
        if kind is None or name not in asset_names():
            return Response("no such file\n", status_code=404)
        return Response(asset(name), media_type=kind, headers={"Cache-Control": "no-cache"})

    # ------------------------------------------------------------ data

    def _json(self, answer: Answer) -> Callable[[Request], Response]:
        def respond(request: Request) -> Response:
            self.asked += 1
            found = answer(request)
            return Response(
                msgspec.json.encode(found),
                media_type="application/json",
                status_code=200 if found is not None else 404,
            )

        return respond

    def _builds(self, request: Request) -> list[BuildLine]:
        return views.listed(self.archive.builds(), _asked(request))[:_PER_PAGE]

    def _candidates(self, request: Request) -> object:
        asked = request.query_params
        return cache_views.candidates(self.archive, asked.get("gpu", ""), asked.get("problem", ""))

    def _target(self, request: Request) -> object:
        asked = request.query_params
        return views.target(self.archive, asked.get("project", ""), asked.get("name", ""))

    def _build(self, request: Request) -> BuildPage | None:
        return self.page(request.path_params["name"])

    def page(self, name: str) -> BuildPage | None:
        """The page of a build; None if it is neither going on nor in the log."""
        picture = self.live.pictures.get(name)
        if picture is not None and not picture.head.ended:
            return BuildPage(id=name, line=None, change=picture.since(0), live=True)
        kept = page_of(self.archive, name)
        if kept is None and picture is not None:  # the daemon ended before it was written down
            return BuildPage(id=name, line=None, change=picture.since(0))
        return kept

    # ------------------------------------------------------------ stream

    async def _stream(self, request: Request) -> Response:
        name = request.query_params.get("build", "")
        revision, _, picture = request.query_params.get("since", "").partition("-")
        since = int(revision) if revision.isdecimal() and len(revision) <= _MOST_DIGITS else 0
        return StreamingResponse(
            self._moments(name, since, picture),
            media_type="text/event-stream",
            headers={"X-Accel-Buffering": "no"},
        )

    async def _moments(self, name: str, revision: int, picture: str) -> AsyncIterator[bytes]:
        self.streams += 1
        ended = False
        try:
            async with self.live.reader():
                while True:
                    self.asked += 1
                    yield _event("now", self.live.now)
                    current = self.live.pictures.get(name) if name and not ended else None
                    if current is not None and (
                        current.is_run or (revision, picture) != (current.revision, current.id)
                    ):
                        change = current.since(revision, picture)
                        revision, picture, ended = change.revision, change.picture, change.head.ended
                        yield _event("build", change, f"{revision}-{picture}")
                    await self.live.changed(BEAT_S)
        finally:
            self.streams -= 1

    # ------------------------------------------------------------ files

    def _of_build(self, request: Request) -> Build | None:
        return self.archive.find(request.path_params["name"])

    def _export(self, request: Request) -> Response:
        page = self.page(request.path_params["name"])
        if page is None:
            return Response("no such build\n", status_code=404)
        return _file(export.page(msgspec.json.encode(page)), f"buildd-{page.id}.html", "text/html")

    def _trace(self, request: Request) -> Response:
        build = self._of_build(request)
        if build is None:
            return Response("no such build\n", status_code=404)
        trace = chrome_trace(self.archive.events(build.request_id))
        return _file(trace, f"buildd-{build.request_id}.json", "application/json")

    def _metrics(self, request: Request) -> Response:
        self.asked += 1
        text = metrics.text(metrics.ask(self._environ), self.archive)
        return Response(text, media_type=metrics.MEDIA_TYPE)


def asset(name: str) -> bytes:
    """A file of the front end."""
    return (files("buildd.web") / "pages" / name).read_bytes()


def asset_names() -> frozenset[str]:
    """The files of the front end."""
    return frozenset(entry.name for entry in (files("buildd.web") / "pages").iterdir() if entry.is_file())


def _asked(request: Request) -> str:
    return request.query_params.get("q", "")


def _event(kind: str, data: object, name: str = "") -> bytes:
    head = f"id: {name}\n" if name else ""
    return f"{head}event: {kind}\ndata: ".encode() + msgspec.json.encode(data) + b"\n\n"


def _file(content: bytes, name: str, kind: str) -> Response:
    safe = "".join(letter if letter.isalnum() or letter in "-." else "_" for letter in name)
    return Response(content, media_type=kind, headers={"Content-Disposition": f'attachment; filename="{safe}"'})
