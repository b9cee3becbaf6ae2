"""The client against real daemons: found, started, killed, replaced."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from protocol import sockets
from protocol.aio import AsyncClient
from protocol.autostart import find_or_start, spawn
from protocol.client import Client, find
from protocol.endpoint import Folder, is_alive, runtime_folder, send_signal, write_endpoint
from protocol.errors import (
    ConnectionLost,
    NoDaemon,
    ProtocolError,
    RemoteError,
    StartFailed,
    TimedOut,
    VersionMismatch,
)
from protocol.messages import Digest, Done, JobId, LogLine, Notice, Outcome, Planned, Request, RequestId
from protocol.resubmission import submit_through
from protocol.session import Inbox, Route
from tests.support.paths import FAKES, ROOT
from tests.support.serving import Serving, a_request, serving, short_folder
from tests.support.waiting import until

FAKE_DAEMON = [sys.executable, str(FAKES / "fake-daemon")]


def _environ(process: Path) -> list[bytes]:
    try:
        return (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


class Place:
    """A runtime folder of its own and an environment that points there."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.environ = {
            "BUILDD_RUNTIME_DIR": str(base / "run"),
            "PATH": os.environ["PATH"],
            "FAKE_DAEMON_STARTS": str(base / "starts"),
        }

    @property
    def folder(self) -> Folder:
        return runtime_folder(self.environ)

    def start(self, **more: str) -> None:
        find_or_start(FAKE_DAEMON, environ={**self.environ, **more}, timeout_s=20)

    def connect(self) -> Client:
        return Client.connect(start=self.start, environ=self.environ, timeout_s=20)

    def starts(self) -> list[int]:
        return [int(text) for text in (self.base / "starts").read_text().split()]

    def sweep(self) -> None:
        """End every daemon of this place: one that lost the race may still be starting, and would win now."""
        mark = f"BUILDD_RUNTIME_DIR={self.base}/run".encode()
        while found := [process for process in Path("/proc").glob("[0-9]*") if mark in _environ(process)]:
            for process in found:
                try:
                    os.kill(int(process.name), signal.SIGKILL)
                    os.waitpid(int(process.name), 0)
                except (ProcessLookupError, ChildProcessError):
                    pass

    def end(self) -> None:
        """End the daemons that were started here, and wait until they are gone."""
        endpoint = find(self.folder)
        if endpoint is not None:
            send_signal(endpoint, signal.SIGKILL)
            until(lambda: not is_alive(endpoint))


@pytest.fixture
def place() -> Iterator[Place]:
    with short_folder() as base:
        made = Place(base)
        yield made
        made.sweep()


@pytest.fixture
def served() -> Iterator[Serving]:
    with short_folder() as base, serving(base / "run") as made:
        yield made


def hanging(name: str = "r1") -> Request:
    return msgspec.structs.replace(a_request(name), targets=("hang",))


def line(text: str) -> LogLine:
    return LogLine(job_id=JobId(1), stream="stdout", text=text)


# ---------------------------------------------------------------- find or start


def test_without_a_daemon_and_a_start_it_says_so(place: Place) -> None:
    with pytest.raises(NoDaemon) as caught:
        Client.connect(environ=place.environ)
    assert caught.value.next_step == "buildd up"


def test_a_daemon_is_started_and_found_again(place: Place) -> None:
    with place.connect() as client:
        first = client.status().instance
        assert client.instance == first
    with Client.connect(environ=place.environ) as client:
        assert client.status().instance == first
    assert len(place.starts()) == 1


def test_what_closing_waits_for_may_come_later(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.start()
    ends: list[Callable[[], None]] = []
    monkeypatch.setattr(sockets, "put_off", ends)
    with place.connect() as client:
        client.ping()
        context = client._sockets.context
    (end,) = ends
    assert not context.closed
    end()
    assert context.closed


def test_the_daemon_is_detached(place: Place) -> None:
    read, write = os.pipe()
    os.set_inheritable(write, True)
    try:
        place.start()
        os.close(write)
        # A pipe of the caller that the daemon held would never end.
        assert os.read(read, 1) == b""
    finally:
        os.close(read)
    endpoint = find(place.folder)
    assert endpoint is not None
    assert os.getsid(endpoint.pid) == endpoint.pid != os.getsid(0)
    assert os.readlink(f"/proc/{endpoint.pid}/fd/0") == os.devnull
    assert os.readlink(f"/proc/{endpoint.pid}/fd/2") == str(place.folder.log_file)


def test_many_clients_at_once_start_exactly_one(place: Place) -> None:
    program = (
        "import os, sys\n"
        "from protocol.autostart import find_or_start\n"
        "print(find_or_start(sys.argv[1:], timeout_s=30).instance)\n"
    )
    command = [sys.executable, "-c", program, *FAKE_DAEMON]
    children = [subprocess.Popen(command, env=place.environ, stdout=subprocess.PIPE, text=True) for _ in range(5)]
    instances = {child.communicate()[0] for child in children}
    assert [child.returncode for child in children] == [0] * 5
    assert len(instances) == 1
    assert len(place.starts()) == 1


def test_threads_of_one_process_may_start_too(place: Place) -> None:
    with ThreadPoolExecutor(4) as pool:
        starts = [pool.submit(find_or_start, FAKE_DAEMON, environ=place.environ, timeout_s=30) for _ in range(4)]
        assert len({start.result().instance for start in starts}) == 1
    assert len(place.starts()) == 1


def test_a_killed_daemon_stops_no_start(place: Place) -> None:
    place.start()
    place.end()
    assert place.folder.endpoint_file.exists()
    with place.connect() as client:
        client.ping()
    assert len(place.starts()) == 2
    sockets = [entry.name for entry in place.folder.path.iterdir() if entry.is_socket()]
    assert len(sockets) == 3, "the dead one's are gone"


def test_a_start_that_lost_against_a_leaving_daemon_is_tried_again(place: Place) -> None:
    late = place.base / "late"
    late.touch()
    place.start(FAKE_DAEMON_LATE=str(late))
    assert len(place.starts()) == 1 and not late.exists()


def test_a_daemon_that_fails_to_start_is_an_error_with_its_log(place: Place) -> None:
    with pytest.raises(StartFailed, match="no luck today") as caught:
        place.start(FAKE_DAEMON_FAIL="1")
    assert str(place.folder.log_file) in caught.value.next_step


def test_a_missing_program_is_an_error(place: Place) -> None:
    with pytest.raises(StartFailed, match="no-such-program"):
        spawn(["no-such-program"], place.folder, place.environ)


def test_an_idle_daemon_of_another_version_is_replaced(place: Place) -> None:
    place.start(FAKE_DAEMON_DIGEST="old")
    (old,) = place.starts()
    endpoint = find_or_start(
        FAKE_DAEMON, environ={**place.environ, "FAKE_DAEMON_DIGEST": "new"}, package_digest="new", timeout_s=20
    )
    assert endpoint.package_digest == "new" and endpoint.pid != old
    assert find_or_start(FAKE_DAEMON, environ=place.environ, package_digest="new") == endpoint


def test_a_busy_daemon_of_another_version_finishes_beside_the_new_one(place: Place) -> None:
    place.start(FAKE_DAEMON_DIGEST="old", FAKE_DAEMON_BESIDE="1")
    with Client.connect(environ=place.environ) as client:
        client.submit(hanging())
        until(lambda: client.status().requests == 1)
        said: list[str] = []
        new = find_or_start(
            FAKE_DAEMON,
            environ={**place.environ, "FAKE_DAEMON_DIGEST": "new"},
            package_digest="new",
            timeout_s=20,
            say=said.append,
        )
        assert new.package_digest == "new"
        (line,) = said
        assert "finishes its 1 running request, a new one starts beside it" in line
        client.ping()
        assert client.status().pid != new.pid, "the old one still serves who is with it"


def test_a_daemon_of_another_version_that_stays_is_one_clear_line(place: Place) -> None:
    place.start(FAKE_DAEMON_DIGEST="old", FAKE_DAEMON_STAYS="1")
    with pytest.raises(VersionMismatch) as caught:
        find_or_start(FAKE_DAEMON, environ=place.environ, package_digest="new", timeout_s=1)
    said = f"is of another version: the code in {ROOT} has changed since it started; it is busy"
    assert caught.value.message.endswith(said)
    # Two installations may have one number.
    living = find(place.folder)
    assert living is not None
    write_endpoint(place.folder, msgspec.structs.replace(living, code="/opt/other"))
    with pytest.raises(VersionMismatch, match=f"its code is in /opt/other, that of this command in {ROOT}; it is busy"):
        Client.connect(environ=place.environ, package_digest="new")


# ---------------------------------------------------------------- losing the daemon


def test_a_killed_daemon_is_noticed_at_once_with_the_last_sequence(place: Place) -> None:
    place.start()
    client = Client.connect(environ=place.environ)
    events = client.submit(a_request())
    hangs = client.submit(hanging("r2"))
    assert next(hangs).sequence == 1
    instance = client.instance
    place.end()
    # What had arrived before its death is still there: r1's events came ahead of r2's.
    assert [event.sequence for event in events] == [1, 2, 3, 4, 5]
    with pytest.raises(ConnectionLost) as caught:
        next(hangs)
    assert (caught.value.request_id, caught.value.last_sequence) == ("r2", 1)
    assert caught.value.instance == instance
    with pytest.raises(ConnectionLost):
        client.status()
    client.close()
    client.close()


@pytest.mark.timeout(30)
@pytest.mark.parametrize("older", [False, True])
def test_a_client_that_only_the_garbage_collector_finds_is_closed(place: Place, older: bool) -> None:
    place.start()
    events = submit_through(place.connect, hanging())
    if older:  # than the sockets: then these are found first
        gc.collect(0)
    assert isinstance(next(events).body, Planned)
    cycle: list[object] = [events]
    cycle.append(cycle)
    del events, cycle
    gc.collect()
    with place.connect() as other:
        until(lambda: other.status().clients == 0)


def test_a_build_goes_on_when_the_daemon_is_started_again(place: Place) -> None:
    asked: list[Client] = []

    def connect() -> Client:
        asked.append(place.connect())
        return asked[-1]

    events = submit_through(connect, hanging())
    # The first daemon never answers; it is killed while the request hangs, and the second gets it anew.
    killer = threading.Thread(target=lambda: (until(lambda: _busy(place)), place.end()))
    assert isinstance(next(events).body, Planned)
    killer.start()
    notice = next(events)
    killer.join(30)
    assert isinstance(notice.body, Notice) and "continues in a new one" in notice.body.text
    with place.connect() as other:
        until(lambda: other.status().requests == 1)
        other.cancel(RequestId("r1"))
    planned, last = list(events)
    assert (planned.sequence, last.sequence) == (1, 2)
    assert isinstance(last.body, Done) and last.body.outcome is Outcome.CANCELLED
    assert len(place.starts()) == 2 and len(asked) == 2


def _busy(place: Place) -> bool:
    try:
        with Client.connect(environ=place.environ) as client:
            return client.status().requests == 1
    except ProtocolError:
        return False


def test_a_daemon_that_is_about_to_end_is_waited_for(place: Place) -> None:
    place.start(FAKE_DAEMON_DRAIN_S="0.3")
    with place.connect() as client:
        client.drain()
        until(lambda: client.status().state == "draining")
    events = list(submit_through(place.connect, a_request()))
    assert [event.sequence for event in events][-5:] == [1, 2, 3, 4, 5]
    assert len(place.starts()) == 2


def test_a_daemon_that_drains_for_long_is_not_waited_for(place: Place) -> None:
    place.start(FAKE_DAEMON_DRAIN_S="60")
    with place.connect() as client:
        client.drain()
        until(lambda: client.status().state == "draining")
    with pytest.raises(RemoteError) as caught:
        list(submit_through(place.connect, a_request()))
    assert caught.value.code == "draining" and len(place.starts()) == 1


def test_giving_up_after_too_many_restarts(place: Place) -> None:
    def connect() -> Client:
        client = place.connect()
        client.instance  # noqa: B018 (shakes hands)
        place.end()
        return client

    with pytest.raises(ConnectionLost):
        list(submit_through(connect, a_request(), restarts=1))
    assert len(place.starts()) == 2


# ---------------------------------------------------------------- one connection


def test_two_requests_may_be_followed_in_any_order(served: Serving) -> None:
    with served.client() as client:
        one, two = client.submit(a_request("r1")), client.submit(a_request("r2"))
        assert {event.request_id for event in two} == {"r2"}
        assert {event.request_id for event in one} == {"r1"}


def test_following_twice_on_one_client_is_an_error(served: Serving) -> None:
    served.handler.manual = True
    with served.client() as client:
        events = client.submit(a_request())
        with pytest.raises(ProtocolError) as caught:
            client.submit(a_request())
        assert caught.value.code == "followed-twice"
        until(lambda: RequestId("r1") in served.handler.logs)
        served.handler.logs[RequestId("r1")].append(Done(outcome=Outcome.BUILT))
        assert len(list(events)) == 1


def test_an_abandoned_iterator_unfollows(served: Serving) -> None:
    served.handler.manual = True
    with served.client() as client:
        events = client.submit(a_request())
        until(lambda: RequestId("r1") in served.handler.logs)
        served.handler.logs[RequestId("r1")].append(line("x"))
        next(events)
        events.close()  # type: ignore[attr-defined]
        entry = served.server.requests.entry(RequestId("r1"))
        assert entry is not None
        until(lambda: served.on_loop(lambda: not entry.followers))


def test_a_failed_submit_leaves_the_client_usable(served: Serving) -> None:
    with served.client() as client:
        with pytest.raises(ProtocolError) as caught:
            client.submit(msgspec.structs.replace(a_request(), project="/caf\udce9"))
        assert caught.value.code == "not-utf8"
        assert len(list(client.submit(a_request()))) == 5


def test_a_daemon_that_does_not_answer_is_a_timeout(served: Serving) -> None:
    block = threading.Event()
    served.loop.call_soon_threadsafe(block.wait, 10.0)
    try:
        with served.client(timeout_s=0.2) as client, pytest.raises(TimedOut):
            client.submit(a_request())
    finally:
        block.set()


def test_an_answer_that_came_too_late_is_not_taken_for_the_next(served: Serving) -> None:
    block = threading.Event()
    plain = served.handler.status

    def slowly() -> object:
        block.wait(10.0)
        return plain()

    served.handler.status = slowly  # type: ignore[method-assign,assignment]
    with served.client(timeout_s=0.2) as client:
        with pytest.raises(TimedOut):
            client.status()
        block.set()
        client.ping()


def test_chunks_out_of_order_are_an_error() -> None:
    from protocol.messages import BlobChunk
    from protocol.session import Download

    inbox = Inbox()
    digest = Digest("a" * 64)
    inbox.downloads[digest] = Download(digest)
    with pytest.raises(ProtocolError) as caught:
        inbox.put(BlobChunk(digest=digest, offset=5, total_bytes=10, data=b"x"))
    assert caught.value.code == "bad-blob"


def test_the_client_imports_nothing_heavy() -> None:
    program = (
        "import sys, protocol.client, protocol.autostart\n"
        "print([m for m in ('asyncio', 'subprocess', 'tempfile', 'logging', 'ssl', 'zmq.asyncio') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# ---------------------------------------------------------------- the async client


def test_the_async_client_does_the_same(served: Serving) -> None:
    import asyncio

    digest = Digest("ab" * 32)
    served.handler.blobs[digest] = os.urandom(700_000)
    route = Route.local(served.server.endpoint())

    async def use() -> None:
        async with AsyncClient(route, name="async/1") as client:
            one, two = await client.submit(a_request("r1")), await client.submit(a_request("r2"))

            async def read(events: object) -> list[int]:
                return [event.sequence async for event in events]  # type: ignore[attr-defined]

            assert list(await asyncio.gather(read(one), read(two))) == [[1, 2, 3, 4, 5]] * 2
            assert await client.fetch(digest) == served.handler.blobs[digest]
            assert [event.sequence async for event in await client.follow(RequestId("r1"), 3)] == [4, 5]
            assert (await client.status()).clients == 1
            with pytest.raises(RemoteError):
                await client.cancel(RequestId("nobody"))
            with pytest.raises(RemoteError):
                async for _ in await client.follow(RequestId("nobody")):
                    pass

    asyncio.run(use())
    assert served.handler.clients[RequestId("r1")].name == "async/1"


def test_the_async_client_notices_a_killed_daemon(place: Place) -> None:
    import asyncio

    place.start()
    endpoint = find(place.folder)
    assert endpoint is not None

    async def use() -> None:
        async with AsyncClient(Route.local(endpoint)) as client:
            events = await client.submit(hanging())
            send_signal(endpoint, signal.SIGKILL)
            with pytest.raises(ConnectionLost):
                async for _ in events:
                    pass

    asyncio.run(use())
