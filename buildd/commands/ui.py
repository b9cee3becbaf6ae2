"""`buildd ui`: serves pages about builds to a browser on this machine; `--stop` ends the server.

Knows the server's place, not its routes. The packages of the extra `ui` are imported late: most commands need none.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

from buildd.exits import OK, USAGE
from buildd.ui.problems import parser, print_note, print_problem

if TYPE_CHECKING:
    from buildd.web.serve import ServerPlace

_NEEDED = ("starlette", "uvicorn")
_INSTALL = 'install them: pip install "PATH/TO/CHECKOUT[ui]"'


def run(arguments: list[str]) -> int:
    """Carry out `buildd ui`."""
    from buildd.web import serve

    command = parser(
        "ui",
        "Show builds, the cache, kernels and profiles in a browser, live. The pages are for this machine's user only.",
        details="The link holds a token, which is new each time. Ctrl-C ends the server.",
    )
    command.add_argument("build", metavar="BUILD", nargs="?", default="", help="show this build (see `buildd log`)")
    command.add_argument("--port", type=int, default=-1, metavar="N", help=f"listen there (default: {serve.PORT})")
    command.add_argument("--no-open", action="store_true", help="print the link and start no browser")
    command.add_argument("--export", metavar="FILE", default="", help="write BUILD's page as one HTML file, and end")
    command.add_argument("--stop", action="store_true", help="end the server that runs")
    command.add_argument("--background", action="store_true", help="end after an hour without a visitor")
    options = command.parse_args(arguments)
    if options.export:
        return _export(options.build or "last", options.export)
    running = serve.find(os.environ)
    if options.stop:
        return _stop(running)
    if not installed():
        return USAGE
    path = serve.build_path(options.build) if options.build else "/"
    if running is not None:
        print_note(f"buildd: the server of process {running.pid} runs already")
        _lead(running, path, is_opened=not options.no_open)
        return OK
    from buildd.client.request import store_of

    def ready(place: ServerPlace) -> None:
        if not options.background:
            _lead(place, path, is_opened=not options.no_open)

    store = Path(store_of(os.environ))
    wanted = [options.port] if options.port >= 0 else [serve.PORT, 0]
    for port in wanted:
        try:
            serve.serve(os.environ, store, port=port, background=options.background, ready=ready)
            return OK
        except OSError as error:
            if port == wanted[-1]:
                print_problem(
                    f"cannot listen on port {port}: {error.strerror}", next_step="name another port with --port"
                )
    return USAGE


def installed() -> bool:
    """Whether the packages of the extra are there; says how to get them."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print_problem(f"`buildd ui` needs {' and '.join(missing)}, which this Python does not have", next_step=_INSTALL)
    return not missing


def open_build(name: str) -> bool:
    """Lead a browser to a build's page; False if there can be no server. A problem is said, and ends nothing."""
    from buildd.errors import BuilddError
    from buildd.web import serve

    if not installed():
        return False
    try:
        place = serve.find_or_start(os.environ)
    except BuilddError as error:
        print_problem(error.message, file=error.file, next_step=error.next_step)
        return False
    _lead(place, serve.build_path(name), is_opened=True)
    return True


def _lead(place: ServerPlace, path: str, *, is_opened: bool) -> None:
    """Print the link, and open it in a browser."""
    from buildd.web import serve

    print(place.link(path), file=sys.stderr if path != "/" else sys.stdout, flush=True)
    if is_opened:
        webbrowser.open(serve.opener(os.environ, place, path).as_uri())


def _stop(running: ServerPlace | None) -> int:
    if running is None:
        print("no server of `buildd ui` runs")
        return OK
    os.kill(running.pid, signal.SIGTERM)
    print(f"ended the server of process {running.pid}")
    return OK


def _export(build: str, file: str) -> int:
    import msgspec

    from buildd.client.request import store_of
    from buildd.web import export
    from buildd.web.archive import Archive
    from buildd.web.pages_of_builds import BuildPage, page_of

    archive = Archive(Path(store_of(os.environ)))
    try:
        page: BuildPage | None = page_of(archive, build)
    finally:
        archive.close()
    if page is None:
        print_problem(f"the log has no build {build!r}", next_step="buildd log lists the builds")
        return USAGE
    try:
        Path(file).write_bytes(export.page(msgspec.json.encode(page)))
    except OSError as error:
        print_problem(f"cannot write the page: {error.strerror}", file=file, next_step="name another file")
        return USAGE
    return OK
