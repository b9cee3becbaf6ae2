"""Workers forked from a process that has their packages imported: as fresh ones are, and never of a former package."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from buildd import warm_workers
from buildd.launch import Exit, KillReason, Launch
from buildd.runner import Job, Runner
from buildd.spawner import children_of, stat_of
from buildd.warm_workers import HOST, READY

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


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def story(place: Place, told: Callable[[], Awaitable[None]]) -> None:
    """What happens on a loop of its own; nothing of it is left."""

    async def whole() -> list[int]:
        try:
            await told()
            return [pid for keeper in place.runner.processes()[:1] for pid in (keeper, *children_of(keeper))]
        finally:
            await place.runner.close()

    assert [pid for pid in asyncio.run(whole()) if stat_of(pid) is not None] == []


def test_a_job_finds_what_a_fresh_process_finds(place: Place) -> None:
    async def told() -> None:
        first, ended = await place.run("a", "b")
        assert first["fresh"] and ended.stderr == b"told\n"
        await place.until(fresh=False)
        second, again = await place.run("a", "b", private=str(place.folder))
        assert not second["fresh"] and second["by"] != first["by"]
        same = ("version", "stdin", "arguments", "argv", "cwd", "session", "umask", "threads", "open", "wide")
        assert {name: second[name] for name in same} == {name: first[name] for name in same}
        assert (first["private"], second["private"]) == ("/tmp", str(place.folder))
        assert (again.status, again.stderr) == (0, b"told\n")

    story(place, told)


def test_its_end_is_that_of_a_process(place: Place) -> None:
    async def told() -> None:
        await place.until(fresh=False)
        for how, status, said in (
            ("status", 7, b"told\n"),
            ("exits", 5, b"told\n"),
            ("raises", 1, b"RuntimeError: no luck\n"),
            ("crashes", 128 + signal.SIGSEGV, b"told\n"),
        ):
            found, ended = await place.run(how)
            assert ended.status == status and ended.stderr.endswith(said), (how, ended)
            # A crash takes what was not written yet along.
            assert how == "crashes" or not found["fresh"]

    story(place, told)


def test_it_is_ended_like_any_tool(place: Place) -> None:
    async def told() -> None:
        await place.until(fresh=False)
        heard = asyncio.Event()
        job: Job = await place.runner.launch(place.launch("waits"), lambda stream, line: heard.set())
        await asyncio.wait_for(heard.wait(), DEADLINE_S)
        assert stat_of(job.pid) is not None
        job.kill(KillReason.CANCELLED)
        ended = await job.wait()
        assert ended.cancelled and ended.signal == signal.SIGTERM and stat_of(job.pid) is None
        # The process that it was forked from goes on.
        assert not (await place.run())[0]["fresh"]

    story(place, told)


def test_a_package_that_changes_on_disk_is_imported_again(place: Place) -> None:
    async def told() -> None:
        former = await place.until(fresh=False)
        text = LIBRARY.replace("VERSION = 1", "VERSION = 2")
        place.library.write_text(text)
        found, _ = await place.run()
        assert found["fresh"] and found["version"] == 2
        later = await place.until(fresh=False)
        assert later["version"] == 2 and later["by"] != former["by"]
        assert stat_of(former["by"]) is None or former["by"] not in children_of(place.runner.processes()[0])

    story(place, told)


def test_a_module_that_may_be_found_first_now_is_not_missed(place: Place) -> None:
    async def told() -> None:
        await place.until(fresh=False)
        (place.folder / "library").mkdir()
        (place.folder / "library/__init__.py").write_text(LIBRARY.replace("VERSION = 1", "VERSION = 3"))
        found, _ = await place.run()
        assert found["fresh"] and found["version"] == 3

    story(place, told)


def test_another_environment_or_tool_is_another_process(place: Place) -> None:
    async def told() -> None:
        usual = await place.until(fresh=False)
        assert (await place.run(WIDE="1"))[0]["fresh"]
        assert (await place.until(fresh=False, WIDE="1"))["wide"] == "1"
        assert not (await place.run())[0]["fresh"]
        assert (await place.run(known_by="another"))[0]["fresh"]
        # In its place: of the former tool there will be no job any more.
        assert (await place.until(fresh=False, known_by="another"))["by"] != usual["by"]
        assert len(children_of(place.runner.processes()[0])) <= 3

    story(place, told)


@pytest.mark.parametrize(
    "trouble",
    [
        "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
        "raise SystemExit(3) if __name__ == 'library' and sys.argv[0].endswith('host.py') else ValueError('cold too')",
        "os.kill(os.getpid(), signal.SIGKILL) if sys.argv[0].endswith('host.py') else None",
    ],
    ids=["threads", "exits", "killed"],
)
def test_where_it_cannot_be_every_job_is_a_fresh_process(place: Place, trouble: str) -> None:
    text = LIBRARY.replace(
        "def at_import():\n    pass",
        f"def at_import():\n    try:\n        {trouble}\n    except ValueError:\n        pass",
    )
    place.library.write_text(text)

    async def told() -> None:
        keeper = 0
        deadline_s = time.monotonic() + DEADLINE_S
        while not keeper or children_of(keeper):  # until the process that was tried has ended
            found, ended = await place.run()
            assert ended.ok and found["fresh"], ended.stderr
            keeper = place.runner.processes()[0]
            assert time.monotonic() < deadline_s
        found, _ = await place.run()
        assert found["fresh"] and not children_of(keeper)

    story(place, told)


def test_one_that_is_killed_is_not_missed(place: Place) -> None:
    async def told() -> None:
        former = await place.until(fresh=False)
        os.kill(former["by"], signal.SIGKILL)
        found, ended = await place.run()
        assert ended.ok and found["by"] != former["by"]

    story(place, told)


def test_one_that_is_starved_is_taken_back_when_it_answers(place: Place) -> None:
    async def told() -> None:
        former = await place.until(fresh=False)
        os.kill(former["by"], signal.SIGSTOP)
        try:
            for _ in range(2):
                found, ended = await place.run()
                assert ended.ok and found["fresh"], "its job does not wait"
        finally:
            os.kill(former["by"], signal.SIGCONT)
        assert (await place.until(fresh=False))["by"] == former["by"]
        keeper = place.runner.processes()[0]
        deadline_s = time.monotonic() + DEADLINE_S
        while children_of(keeper) != [former["by"]]:  # what it forked too late ends
            assert time.monotonic() < deadline_s
            await asyncio.sleep(0.01)
        os.kill(former["by"], signal.SIGSTOP)
        assert (await place.run())[0]["fresh"]
        os.kill(former["by"], signal.SIGKILL)
        assert (await place.until(fresh=False))["by"] != former["by"]

    story(place, told)


def test_one_that_never_answers_is_replaced(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_workers, "FORK_S", 0.01)
    poll, launch = select.poll(), place.launch()
    variables = {name.encode(): value.encode() for name, value in launch.environment}
    key = warm_workers.key_of(b"one", [os.fsencode(word) for word in launch.argv], variables)
    with open(os.devnull, "rb") as null:
        hosts = warm_workers.Hosts(poll, null.fileno())
        try:
            deadline_s = time.monotonic() + DEADLINE_S
            while key not in hosts._hosts or not hosts._hosts[key].ready:
                assert time.monotonic() < deadline_s
                hosts._failed.clear()  # a file that was written a moment before is not trusted
                hosts.want(key)
                for descriptor, _ in poll.poll(1000):
                    hosts.receive(descriptor)
            pid = hosts._hosts[key].pid
            os.kill(pid, signal.SIGSTOP)
            assert hosts.fork(key, 0o022, [null.fileno()] * 3, with_input=False) == 0
            hosts.want(key)
            assert hosts._hosts[key].pid == pid, "it may still answer"
            monkeypatch.setattr(warm_workers, "AGAIN_S", 0.0)
            hosts.want(key)
            assert hosts._hosts[key].pid != pid
        finally:
            hosts.close()
            for child in hosts.pids:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)


def test_it_ends_with_the_process_that_keeps_it(place: Place) -> None:
    async def told() -> None:
        found = await place.until(fresh=False)
        keeper = place.runner.processes()[0]
        os.kill(keeper, signal.SIGKILL)
        deadline_s = time.monotonic() + DEADLINE_S
        while stat_of(found["by"]) is not None or keeper in place.runner.processes():
            assert time.monotonic() < deadline_s
            await asyncio.sleep(0.01)
        again, ended = await place.run()
        assert ended.ok and again["fresh"]

    story(place, told)


def test_one_that_nobody_asks_for_ends_by_itself(place: Place) -> None:
    said, deadline_s = b"", time.monotonic() + DEADLINE_S
    # Files that were written a moment before are not trusted to be what was imported: it ends at once then.
    while said != READY:
        assert time.monotonic() < deadline_s
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            with theirs:
                host = subprocess.Popen(
                    [sys.executable, HOST, str(theirs.fileno()), str(place.worker), "0.05"],
                    env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(place.folder)},
                    pass_fds=(theirs.fileno(),),
                )
            ours.settimeout(DEADLINE_S)
            said = ours.recv(64)
            assert ours.recv(64) == b"", "our end is open, it has gone by itself"
            assert host.wait(DEADLINE_S) == 0


def test_where_memory_is_short_it_ends_and_its_job_goes_on(place: Place) -> None:
    async def told() -> None:
        assert not place.runner.warm_s()
        former = await place.until(fresh=False)
        assert place.runner.warm_s()
        keeper = place.runner.processes()[0]
        heard = asyncio.Event()
        job: Job = await place.runner.launch(place.launch("waits"), lambda stream, line: heard.set())
        await asyncio.wait_for(heard.wait(), DEADLINE_S)
        place.runner.spare()
        assert not place.runner.warm_s()
        deadline_s = time.monotonic() + DEADLINE_S
        while former["by"] in children_of(keeper):
            assert time.monotonic() < deadline_s
            await asyncio.sleep(0.01)
        assert stat_of(job.pid) is not None
        job.kill(KillReason.CANCELLED)
        assert (await job.wait()).cancelled
        # None is made for a while: a process that imports the packages would be short of memory again.
        assert (await place.run())[0]["fresh"] and not children_of(keeper)

    story(place, told)
