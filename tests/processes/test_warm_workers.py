"""Workers forked from a process that has their packages imported: as fresh ones are, and never of a former package."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from buildd.host.proc import children_of, stat_of
from buildd.processes import warm_workers
from buildd.processes.launch import EndReason
from buildd.processes.running_tool import RunningTool
from buildd.processes.warm_workers import HOST, READY
from tests.support.waiting import until_async
from tests.support.warm_worker import DEADLINE_S, LIBRARY, Place, story


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


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
        job: RunningTool = await place.runner.launch(place.launch("waits"), lambda stream, line: heard.set())
        await asyncio.wait_for(heard.wait(), DEADLINE_S)
        assert stat_of(job.pid) is not None
        job.kill(EndReason.CANCELLED)
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
        await until_async(lambda: children_of(keeper) == [former["by"]], "what it forked too late ends")
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
        await until_async(
            lambda: stat_of(found["by"]) is None and keeper not in place.runner.processes(), "the keeper is gone"
        )
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
        job: RunningTool = await place.runner.launch(place.launch("waits"), lambda stream, line: heard.set())
        await asyncio.wait_for(heard.wait(), DEADLINE_S)
        place.runner.spare()
        assert not place.runner.warm_s()
        await until_async(lambda: former["by"] not in children_of(keeper), "the warm process ends")
        assert stat_of(job.pid) is not None
        job.kill(EndReason.CANCELLED)
        assert (await job.wait()).cancelled
        # None is made for a while: a process that imports the packages would be short of memory again.
        assert (await place.run())[0]["fresh"] and not children_of(keeper)

    story(place, told)
