"""A worker script that runs in warm processes and reports what it finds there, and a runner for it."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from buildd.host.proc import children_of, stat_of
from buildd.processes.launch import Exit, Launch
from buildd.processes.runner import Runner

DEADLINE_S = 60.0

WORKER = """
import json, os, sys
sys.dont_write_bytecode = True

def warm_up():
    global imported_by, library
    import library
    imported_by = os.getpid()
    library.at_import()

def main(arguments):
    if "imported_by" not in globals():
        warm_up()
    line = sys.stdin.read()
    print(json.dumps({
        "fresh": imported_by == os.getpid(), "by": imported_by, "version": library.VERSION, "stdin": line,
        "arguments": arguments, "argv": sys.argv[1:], "cwd": os.getcwd(), "private": os.environ.get("TMPDIR"),
        "wide": os.environ.get("WIDE"), "session": os.getsid(0) == os.getpid(), "umask": os.umask(0),
        "threads": len(os.listdir("/proc/self/task")), "open": len(os.listdir("/proc/self/fd")),
    }))
    print("told", file=sys.stderr)
    return library.how_it_ends(arguments)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
"""

LIBRARY = """
import os, signal, sys, time
VERSION = 1

def at_import():
    pass

def how_it_ends(arguments):
    match arguments:
        case ["status"]:
            return 7
        case ["exits"]:
            sys.exit(5)
        case ["raises"]:
            raise RuntimeError("no luck")
        case ["crashes"]:
            os.kill(os.getpid(), signal.SIGSEGV)
        case ["waits"]:
            sys.stdout.flush()
            signal.pause()
    return 0
"""


class Place:
    """A worker with the library that it imports, and a runner."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.worker, self.library = folder / "a worker.py", folder / "library.py"
        self.worker.write_text(WORKER)
        self.library.write_text(LIBRARY)
        self.runner = Runner(grace_s=0.5)

    def launch(self, *arguments: str, known_by: str = "one", private: str = "/tmp", **environment: str) -> Launch:
        variables = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(self.folder), "TMPDIR": private, **environment}
        return Launch(
            argv=(sys.executable, str(self.worker), *arguments),
            cwd=str(self.folder),
            environment=tuple(sorted(variables.items())),
            payload=b"said to it",
            umask=0o027,
            warm=known_by,
        )

    async def run(self, *arguments: str, **how: str) -> tuple[dict[str, Any], Exit]:
        ended = await self.runner.run(self.launch(*arguments, **how), lambda stream, line: None)
        lines = ended.stdout.decode().splitlines()
        return (json.loads(lines[0]) if lines else {}), ended

    async def until(self, fresh: bool, **how: str) -> dict[str, Any]:
        """Jobs one after another, until one is as wanted."""
        deadline_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline_s:
            found, ended = await self.run(**how)
            assert ended.ok, ended.stderr
            if found["fresh"] is fresh:
                return found
        raise AssertionError("no such job within the deadline")


def story(place: Place, told: Callable[[], Awaitable[None]]) -> None:
    """What happens on a loop of its own; nothing of it is left."""

    async def whole() -> list[int]:
        try:
            await told()
            return [pid for keeper in place.runner.processes()[:1] for pid in (keeper, *children_of(keeper))]
        finally:
            await place.runner.close()

    assert [pid for pid in asyncio.run(whole()) if stat_of(pid) is not None] == []
