"""Forks of a warm process that take further jobs: each as in a fork of its own, and none where something was left."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from buildd.host.proc import children_of, stat_of
from buildd.processes.launch import EndReason, Exit
from buildd.processes.running_tool import RunningTool
from buildd.processes.worker_host import MOST_JOBS
from tests.support.waiting import until_async
from tests.support.warm_worker import DEADLINE_S, LIBRARY, WORKER, Place, story

TAKES_MORE = WORKER.replace('"fresh":', '"pid": os.getpid(), "fresh":') + (
    "\n\ndef as_before():\n    return library.is_as_before\n"
)
CAREFUL = LIBRARY.replace("VERSION = 1", "VERSION = 1\nis_as_before = True").replace(
    "    match arguments:\n",
    """    match arguments:
        case ["works"]:
            begun_s = time.process_time()
            while time.process_time() < begun_s + 0.5:
                pass
        case ["is changed"]:
            global is_as_before
            is_as_before = False
        case ["leaves a thread"]:
            import threading
            threading.Thread(target=threading.Event().wait, daemon=True).start()
        case ["leaves a child"]:
            if os.fork() == 0:
                for descriptor in range(3):
                    os.close(descriptor)
                time.sleep(0.2)
                os._exit(0)
        case ["leaves an orphan"]:
            if os.fork() == 0:
                if os.fork() == 0:
                    time.sleep(0.2)
                os._exit(0)
            os.wait()
        case ["buffers"]:
            import ctypes
            ctypes.CDLL(None).printf(b"late\\n")
""",
)


class Careful(Place):
    """Its worker says that it is as before, unless a job has changed that."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.worker.write_text(TAKES_MORE)
        self.library.write_text(CAREFUL)

    async def twice(self, *arguments: str) -> tuple[dict[str, Any], Exit]:
        """A job in a fork that has had one: what it said, and its end."""
        former = await self.until(fresh=False)
        deadline_s = asyncio.get_running_loop().time() + DEADLINE_S
        while True:
            found, ended = await self.run(*arguments)
            if found and found["pid"] == former["pid"]:
                return found, ended
            assert asyncio.get_running_loop().time() < deadline_s
            former = await self.until(fresh=False)


@pytest.fixture
def place(tmp_path: Path) -> Careful:
    return Careful(tmp_path)


def test_a_job_in_a_fork_that_had_one_finds_what_it_found(place: Careful) -> None:
    async def told() -> None:
        first = await place.until(fresh=False)
        second, ended = await place.twice("a", "b")
        assert (ended.status, ended.stderr) == (0, b"told\n") and second["arguments"] == ["a", "b"]
        third, _ = await place.run(private=str(place.folder))
        assert third["pid"] == second["pid"] and third["private"] == str(place.folder)
        same = ("version", "stdin", "cwd", "session", "umask", "threads", "open", "wide")
        assert {name: third[name] for name in same} == {name: first[name] for name in same}

    story(place, told)


def test_a_fork_ends_after_many_jobs(place: Careful) -> None:
    async def told() -> None:
        await place.until(fresh=False)
        pids = []
        for number in range(2 * MOST_JOBS + 2):
            found, ended = await place.run(str(number))
            assert ended.ok and found["arguments"] == [str(number)], ended
            pids.append(found["pid"])
        assert max(map(pids.count, pids)) <= MOST_JOBS < len(pids)

    story(place, told)


def test_what_a_job_has_used_is_its_own(place: Careful) -> None:
    async def told() -> None:
        worked, ended = await place.twice("works")
        assert ended.timing.user_s + ended.timing.system_s >= 0.4
        later, ended = await place.run("status")
        assert ended.status == 7
        # Of a job that ends with its process, too.
        if later["pid"] == worked["pid"]:
            assert ended.timing.user_s + ended.timing.system_s < 0.4
        assert ended.timing.peak_rss_bytes > 1 << 20

    story(place, told)


@pytest.mark.parametrize("how", ["status", "is changed", "leaves a thread", "leaves a child", "raises"])
def test_a_fork_that_is_not_as_before_gets_no_other_job(place: Careful, how: str) -> None:
    async def told() -> None:
        former, _ = await place.twice(how)
        for _ in range(3):
            found, ended = await place.run()
            assert ended.ok and found["pid"] != former["pid"]

    story(place, told)


def test_what_an_orphan_holds_is_waited_for(place: Careful) -> None:
    async def told() -> None:
        former, ended = await place.twice("leaves an orphan")
        assert ended.ok
        found, ended = await place.run()
        assert ended.ok and found["pid"] != former["pid"]

    story(place, told)


def test_output_that_a_library_holds_back_is_that_of_its_job(place: Careful) -> None:
    async def told() -> None:
        _, ended = await place.twice("buffers")
        assert b"late\n" in ended.stdout
        _, ended = await place.run()
        assert b"late\n" not in ended.stdout

    story(place, told)


def test_a_job_that_is_ended_in_such_a_fork_costs_no_other(place: Careful) -> None:
    async def told() -> None:
        await place.twice()
        heard = asyncio.Event()
        job: RunningTool = await place.runner.launch(place.launch("waits"), lambda stream, line: heard.set())
        await asyncio.wait_for(heard.wait(), DEADLINE_S)
        job.kill(EndReason.CANCELLED)
        ended = await job.wait()
        assert ended.cancelled and ended.signal == signal.SIGTERM and stat_of(job.pid) is None
        found, ended = await place.run()
        assert ended.ok and found["pid"] != job.pid

    story(place, told)


def test_one_that_is_killed_while_it_waits_is_not_missed(place: Careful) -> None:
    async def told() -> None:
        former, _ = await place.twice()
        os.kill(former["pid"], signal.SIGKILL)
        found, ended = await place.run()
        assert ended.ok and found["pid"] != former["pid"]

    story(place, told)


def test_a_package_that_changes_while_it_waits_is_imported_again(place: Careful) -> None:
    async def told() -> None:
        await place.twice()
        place.library.write_text(CAREFUL.replace("VERSION = 1", "VERSION = 2"))
        found, ended = await place.run()
        assert ended.ok and found["version"] == 2 and found["fresh"]

    story(place, told)


@asynccontextmanager
async def waiting(place: Careful) -> AsyncIterator[int]:
    """The pid of a fork without a job."""
    found, _ = await place.twice()
    yield found["pid"]
    await until_async(lambda: stat_of(found["pid"]) is None, "the fork ends")


def test_a_fork_that_waits_ends_by_itself_and_where_memory_is_short(place: Careful) -> None:
    async def told() -> None:
        async with waiting(place):
            pass
        async with waiting(place) as pid:
            place.runner.spare()
        keeper = place.runner.processes()[0]
        await until_async(lambda: pid not in children_of(keeper), "the fork is reaped, just after its end")

    story(place, told)
