"""The server over real sockets: each client gets its messages, none waits for another, no error ends the loop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from buildd.daemon.clients import Limits
from buildd.daemon.control import TcpOptions
from buildd.daemon.followers import Peer
from buildd.daemon.sockets import SEND_QUEUE_MESSAGES, Sent, bind_router, send_to_peer
from protocol import wire
from protocol.client import Client
from protocol.curve import AllowList, KeyPair, new_key_pair
from protocol.endpoint import start_ticks
from protocol.errors import RemoteError, TimedOut
from protocol.messages import (
    Digest,
    Done,
    Error,
    Event,
    Follow,
    Hello,
    JobId,
    Lagged,
    LogLine,
    Mode,
    OnDisconnect,
    Outcome,
    Ping,
    Pong,
    Refused,
    RequestId,
    Submit,
    Welcome,
)
from protocol.session import Route
from protocol.sockets import open_socket
from tests.support.raw_client import TIMEOUT_MS, Raw
from tests.support.serving import DEADLINE_S, FakeHandler, Serving, a_request, serving, short_folder
from tests.support.waiting import until


@pytest.fixture
def place() -> Iterator[Path]:
    with short_folder() as made:
        yield made


@pytest.fixture
def served(place: Path) -> Iterator[Serving]:
    with serving(place / "run") as made:
        yield made


def followers(served: Serving, name: str) -> set[Peer]:
    entry = served.server.requests.entry(RequestId(name))
    assert entry is not None
    return entry.followers


def line(text: str) -> LogLine:
    return LogLine(job_id=JobId(1), stream="stdout", text=text)


# ---------------------------------------------------------------- a request's way


def test_a_request_is_followed_to_its_done(served: Serving) -> None:
    with served.client() as client:
        events = list(client.submit(a_request()))
    assert [event.sequence for event in events] == [1, 2, 3, 4, 5]
    assert isinstance(events[-1].body, Done)
    assert served.handler.clients[RequestId("r1")].name == "test/1"
    assert served.handler.clients[RequestId("r1")].origin == "local"


def test_submitting_a_known_request_follows_it(served: Serving) -> None:
    served.handler.manual = True
    with served.client() as first, served.client() as second:
        one, two = first.submit(a_request()), second.submit(a_request())
        until(lambda: RequestId("r1") in served.handler.logs)
        log = served.handler.logs[RequestId("r1")]
        served.on_loop(lambda: log.append(line("x")))
        served.on_loop(lambda: log.append(Done(outcome=Outcome.BUILT)))
        assert list(one) == list(two)
    assert len(served.handler.requests) == 1
    assert sum("submit" in text for text in served.handler.audit_lines) == 1


def test_follow_resumes_after_a_number_and_also_after_the_end(served: Serving) -> None:
    with served.client() as client:
        everything = list(client.submit(a_request()))
        assert list(client.follow(RequestId("r1"), 3)) == everything[3:]
        # One who has seen the Done and lost the connection asks beyond it, and must not wait for ever.
        assert list(client.follow(RequestId("r1"), 4)) == everything[4:]
    with Raw(served) as raw:
        raw.shake()
        raw.say(Follow(request_id=RequestId("r1"), after_sequence=99))
        assert raw.hear() == everything[-1]


def test_an_unknown_request_is_an_error(served: Serving) -> None:
    with served.client() as client, pytest.raises(RemoteError) as caught:
        list(client.follow(RequestId("nobody")))
    assert caught.value.code == "unknown-request"
    assert caught.value.next_step


def test_appending_from_another_thread_reaches_the_follower(served: Serving) -> None:
    served.handler.manual = True
    with served.client() as client:
        events = client.submit(a_request())
        until(lambda: RequestId("r1") in served.handler.logs)
        log = served.handler.logs[RequestId("r1")]
        for number in range(100):
            log.append(line(str(number)))
        log.append(Done(outcome=Outcome.BUILT))
        assert len(list(events)) == 101


def test_a_thousand_clients_at_once_all_get_their_own(served: Serving) -> None:
    count = 1000
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, count + 10)
    sockets = []
    try:
        for number in range(count):
            socket = context.socket(zmq.DEALER)
            socket.linger = 0
            socket.connect(served.server.addresses.work)
            socket.send_multipart(wire.encode(Hello(version=1, client=f"c{number}")))
            socket.send_multipart(wire.encode(Submit(request=a_request(f"r{number}"))))
            sockets.append(socket)
        for number, socket in enumerate(sockets):
            assert socket.poll(TIMEOUT_MS)
            assert isinstance(wire.decode_from_daemon(socket.recv_multipart()), Welcome)
            for sequence in range(1, 6):
                assert socket.poll(TIMEOUT_MS)
                event = wire.decode_from_daemon(socket.recv_multipart())
                assert isinstance(event, Event)
                assert (event.request_id, event.sequence) == (f"r{number}", sequence)
        with served.client() as client:
            assert client.status().clients == count
    finally:
        context.destroy(linger=0)


def test_blobs_arrive_whole(served: Serving) -> None:
    digest, missing = Digest("ab" * 32), Digest("cd" * 32)
    served.handler.blobs[digest] = os.urandom(3 * wire.BLOB_CHUNK_BYTES + 17)
    served.handler.blobs[Digest("00" * 32)] = b""
    with served.client() as client:
        assert client.fetch(digest) == served.handler.blobs[digest]
        assert client.fetch(Digest("00" * 32)) == b""
        for bad, code in ((missing, "not-found"), (Digest("../../etc/passwd"), "bad-message")):
            with pytest.raises(RemoteError) as caught:
                client.fetch(bad)
            assert caught.value.code == code


def test_a_handler_that_raises_is_a_daemon_error_for_that_client_only(served: Serving) -> None:
    served.handler.fail_submit = True
    with served.client() as client:
        (event,) = list(client.submit(a_request()))
        assert isinstance(event.body, Done) and event.body.outcome is Outcome.DAEMON_ERROR
        served.handler.fail_submit = False
        assert len(list(client.submit(a_request("r2")))) == 5


def test_a_fault_before_the_request_begins_is_an_answer_too(served: Serving) -> None:
    served.handler.audit_lines = None  # type: ignore[assignment]
    with served.client() as client:
        with pytest.raises(RemoteError, match="log has the details"):
            list(client.submit(a_request()))
        served.handler.audit_lines = []
        assert len(list(client.submit(a_request("r2")))) == 5


def test_audit_lines_cannot_be_forged(served: Serving) -> None:
    with served.client() as client:
        list(client.submit(msgspec.structs.replace(a_request(), project='/a" user="root"\nsubmit user="root"')))
    (text,) = served.handler.audit_lines
    assert "\n" not in text and f"pid={os.getpid()}" in text and 'from="local"' in text
    assert text.count(' user="') == 1


def test_broadcast_carries_every_event_under_its_request(served: Serving) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    everything, one = context.socket(zmq.SUB), context.socket(zmq.SUB)
    try:
        for socket, topic in ((everything, b""), (one, b"r2")):
            socket.linger = 0
            socket.subscribe(topic)
            socket.connect(served.server.addresses.events)
        until(lambda: served.server._subscriptions == {b"", b"r2"})
        with served.client() as client:
            for name in ("r1", "r2"):
                list(client.submit(a_request(name)))
        for socket, names in ((everything, ["r1"] * 5 + ["r2"] * 5), (one, ["r2"] * 5)):
            for name in names:
                assert socket.poll(TIMEOUT_MS)
                topic, *frames = socket.recv_multipart()
                event = wire.decode_from_daemon(frames)
                assert isinstance(event, Event) and topic == name.encode() and event.request_id == name
    finally:
        context.destroy(linger=0)


# ---------------------------------------------------------------- handshake and bad input


def test_before_the_handshake_nothing_is_served(served: Serving) -> None:
    with Raw(served) as raw:
        raw.say(Submit(request=a_request()))
        reply = raw.hear()
        assert isinstance(reply, Error) and reply.code == "handshake"
        assert not served.handler.requests
        raw.shake()


@pytest.mark.parametrize(("asked", "answered"), [(1, 1), (2, 1), (99, 1)])
def test_a_newer_client_is_offered_our_version(served: Serving, asked: int, answered: int) -> None:
    with Raw(served) as raw:
        raw.say(Hello(version=asked, client="future"))
        reply = raw.hear()
        assert isinstance(reply, Welcome) and reply.version == answered and reply.instance == served.server.instance


def test_a_too_old_client_is_refused_with_the_versions(served: Serving) -> None:
    with Raw(served) as raw:
        raw.say(Hello(version=0, client="past"))
        reply = raw.hear()
        assert isinstance(reply, Refused) and reply.code == "version" and reply.versions == (1,)
        raw.say(Ping())
        reply = raw.hear()
        assert isinstance(reply, Error) and reply.code == "handshake"


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ([b"x"], "bad-frames"),
        ([b"buildd1", b"", b""], "bad-frames"),
        ([b"GET / HTTP/1.1", b""], "bad-frames"),
        ([b"buildd7", b"\x80"], "framing"),
        ([b"buildd1", b"\xff\x00"], "bad-message"),
        ([b"buildd1", msgspec.msgpack.encode({"type": "dance"})], "unknown-type"),
        ([b"buildd1", msgspec.msgpack.encode({"type": "submit", "request": 3})], "bad-message"),
        ([b"buildd1", b"\x91" * 100_000], "bad-message"),
    ],
)
def test_malformed_frames_get_an_error_and_are_counted(served: Serving, frames: list[bytes], code: str) -> None:
    with Raw(served) as raw:
        raw.shake()
        raw.socket.send_multipart(frames)
        reply = raw.hear()
        assert isinstance(reply, Error) and reply.code == code
        raw.say(Ping())
        assert isinstance(raw.hear(), Pong)
    assert served.server.counters["malformed_frames"] == 1


def test_random_bytes_never_end_the_server(place: Path) -> None:
    with serving(place / "run") as served, Raw(served) as raw, Raw(served) as control:
        control.socket.connect(served.server.addresses.control)
        control.socket.disconnect(served.server.addresses.work)
        raw.shake()

        @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
        @given(
            st.lists(st.one_of(st.binary(max_size=60), st.just(b"buildd1")), min_size=1, max_size=4),
            st.booleans(),
        )
        def throw(frames: list[bytes], at_control: bool) -> None:
            socket = control.socket if at_control else raw.socket
            socket.send_multipart(frames)
            assert socket.poll(TIMEOUT_MS)
            socket.recv_multipart()

        throw()
        raw.say(Ping())
        assert isinstance(raw.hear(), Pong)
        with served.client() as client:
            assert client.status().counters["malformed_frames"] > 0


def test_a_message_over_the_limit_ends_only_that_connection(served: Serving) -> None:
    with Raw(served) as raw, served.client() as other:
        raw.shake()
        control = raw.context.socket(zmq.DEALER)
        control.linger = 0
        control.connect(served.server.addresses.control)
        control.send_multipart([wire.MAGIC, b"\0" * (wire.MAX_CONTROL_BYTES + 1)])
        other.ping()
        assert not control.poll(50)
        assert len(list(other.submit(a_request()))) == 5


# ---------------------------------------------------------------- slow and dead clients


def test_a_client_that_never_reads_slows_nobody(served: Serving) -> None:
    served.handler.manual = True
    count = 4000
    with Raw(served, receive_queue=1) as slow, served.client() as quick:
        slow.shake()
        slow.say(Submit(request=a_request()))
        until(lambda: RequestId("r1") in served.handler.logs)
        events = quick.submit(a_request())
        log = served.handler.logs[RequestId("r1")]
        for number in range(count):
            log.append(line(f"{number} " + "x" * 500))
        log.append(Done(outcome=Outcome.BUILT))
        assert [event.sequence for event in events] == list(range(1, count + 2))
        until(lambda: served.server.counters["slow_clients"] > 0, "the slow one is counted")
        # It only stays behind: when it reads at last, it gets everything.
        heard = 0
        while heard <= count:
            event = slow.hear()
            if isinstance(event, Event):
                heard += 1
                assert event.sequence == heard


def test_there_is_room_again_as_soon_as_a_client_has_read() -> None:
    """libzmq looks for that at most once a millisecond. What is sent without a queue would be lost meanwhile."""
    with short_folder() as folder, zmq.Context() as context:
        router = bind_router(context, f"ipc://{folder}/socket", max_bytes=1 << 20)
        dealer = context.socket(zmq.DEALER)
        dealer.rcvhwm = 0
        dealer.connect(f"ipc://{folder}/socket")
        with closing(router), closing(dealer):
            dealer.send(b"here")
            identity, _ = router.recv_multipart()
            for _ in range(200):
                burst = [send_to_peer(router, [identity, b"x"]) for _ in range(SEND_QUEUE_MESSAGES // 2 - 8)]
                assert set(burst) == {Sent.SENT}
                for _ in burst:
                    assert dealer.poll(10_000)
                    dealer.recv()


def test_a_slow_client_is_told_what_it_missed(place: Path) -> None:
    with serving(place / "run", limits=Limits(log_bytes=200_000)) as served:
        served.handler.manual = True
        with Raw(served, receive_queue=1) as slow:
            slow.shake()
            slow.say(Submit(request=a_request()))
            until(lambda: RequestId("r1") in served.handler.logs)
            log = served.handler.logs[RequestId("r1")]
            for number in range(5000):
                log.append(line(f"{number} " + "x" * 500))
            log.append(Done(outcome=Outcome.BUILT))
            last, lagged = 0, 0
            while True:
                event = slow.hear()
                if not isinstance(event, Event):
                    continue
                if isinstance(event.body, Lagged):
                    assert (event.body.first, event.body.last) == (last + 1, event.sequence)
                    lagged += 1
                else:
                    assert event.sequence == last + 1
                last = event.sequence
                if isinstance(event.body, Done):
                    break
            assert lagged >= 1 and last == 5001


SUBMIT_AND_HANG = """
import sys, threading
from protocol.client import Client
from protocol.messages import *
client = Client.connect(environ={"BUILDD_RUNTIME_DIR": sys.argv[1]})
wish = OnDisconnect(sys.argv[2])
request = Request(request_id=RequestId("r1"), build_id=BuildId("b"), project="/p", on_disconnect=wish)
events = client.submit(request)
print("submitted", flush=True)
threading.Event().wait()
"""


@pytest.mark.parametrize("wish", [OnDisconnect.CANCEL, OnDisconnect.DETACH])
def test_a_killed_client_cancels_if_it_said_so(served: Serving, wish: OnDisconnect) -> None:
    served.handler.manual = True
    base = served.folder.path.parent
    command = [sys.executable, "-c", SUBMIT_AND_HANG, str(base), wish.value]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stdout.readline() == "submitted\n"
        until(lambda: RequestId("r1") in served.handler.logs)
        child.send_signal(signal.SIGKILL)
    until(lambda: served.server.counters["clients_died"] == 1, "its death is seen")
    expected = [RequestId("r1")] if wish is OnDisconnect.CANCEL else []
    assert served.on_loop(lambda: list(served.handler.cancelled)) == expected


def test_a_request_lives_while_anybody_follows(served: Serving) -> None:
    served.handler.manual = True
    request = a_request(on_disconnect=OnDisconnect.CANCEL)
    with served.client() as stays:
        with served.client() as leaves:
            leaves.submit(request)
            until(lambda: RequestId("r1") in served.handler.logs)
            stays.submit(request)
            stays.ping()
            until(lambda: served.on_loop(lambda: len(followers(served, "r1"))) == 2)
        until(lambda: served.on_loop(lambda: len(followers(served, "r1"))) == 1)
        assert served.handler.cancelled == []
    until(lambda: served.handler.cancelled == [RequestId("r1")])


def test_a_reused_pid_is_not_taken_for_the_client(place: Path) -> None:
    limits = Limits(beat_s=0.05, expiry_s=0.3)
    with serving(place / "run", limits=limits) as served, Raw(served) as wrong, Raw(served) as right:
        # A live pid with another process's start ticks: its life says nothing, so silence counts.
        wrong.shake(pid=os.getpid(), start_ticks=start_ticks(os.getpid()) + 1)
        right.shake(pid=os.getpid(), start_ticks=start_ticks(os.getpid()))
        until(lambda: served.server.counters["clients_expired"] == 1)
        with served.client() as client:
            until(lambda: client.status().clients == 1)
        wrong.say(Ping())
        while isinstance(reply := wrong.hear(), Pong):
            pass
        assert isinstance(reply, Error) and reply.code == "handshake"


def test_a_closed_socket_of_a_living_process_is_noticed(place: Path) -> None:
    with serving(place / "run", limits=Limits(beat_s=0.05)) as served:
        with Raw(served) as raw:
            raw.shake(pid=os.getpid(), start_ticks=start_ticks(os.getpid()))
        until(lambda: served.server.counters["clients_gone"] == 1)


def test_a_living_process_that_lost_its_connection_may_send_its_request_again(place: Path) -> None:
    request = a_request(on_disconnect=OnDisconnect.CANCEL)
    here = {"pid": os.getpid(), "start_ticks": start_ticks(os.getpid())}
    with serving(place / "run", limits=Limits(beat_s=0.05)) as served:
        served.handler.manual = True
        with Raw(served) as lost:
            lost.shake(**here)
            lost.say(Submit(request=request))
            until(lambda: RequestId("r1") in served.handler.logs)
        until(lambda: served.server.counters["clients_gone"] == 1)
        assert served.on_loop(lambda: list(served.handler.cancelled)) == []
        with Raw(served) as back:
            back.shake(**here)
            back.say(Submit(request=request))
            log = served.handler.logs[RequestId("r1")]
            served.on_loop(lambda: log.append(Done(outcome=Outcome.BUILT)))
            while isinstance(reply := back.hear(), Pong):
                pass
            assert isinstance(reply, Event) and isinstance(reply.body, Done) and reply.body.outcome is Outcome.BUILT


def test_a_lost_connection_that_does_not_come_back_cancels(place: Path) -> None:
    with serving(place / "run", limits=Limits(beat_s=0.05, return_s=0.2)) as served:
        served.handler.manual = True
        with Raw(served) as lost:
            lost.shake(pid=os.getpid(), start_ticks=start_ticks(os.getpid()))
            lost.say(Submit(request=a_request(on_disconnect=OnDisconnect.CANCEL)))
            until(lambda: RequestId("r1") in served.handler.logs)
        until(lambda: served.handler.cancelled == [RequestId("r1")])
        assert served.on_loop(lambda: len(followers(served, "r1"))) == 0


def test_a_process_that_ends_after_its_connection_was_lost_cancels_at_once(place: Path) -> None:
    with (
        serving(place / "run", limits=Limits(beat_s=0.05, return_s=600)) as served,
        subprocess.Popen(["cat"], stdin=-1) as cat,
    ):
        served.handler.manual = True
        with Raw(served) as lost:
            lost.shake(pid=cat.pid, start_ticks=start_ticks(cat.pid))
            lost.say(Submit(request=a_request(on_disconnect=OnDisconnect.CANCEL)))
            until(lambda: RequestId("r1") in served.handler.logs)
        until(lambda: served.server.counters["clients_gone"] == 1)
        assert served.on_loop(lambda: list(served.handler.cancelled)) == []
        cat.kill()
        until(lambda: served.handler.cancelled == [RequestId("r1")])


@pytest.mark.parametrize("mode", [Mode.EXPLAIN, Mode.PROVE])
def test_an_answer_that_nobody_waits_for_is_cancelled(served: Serving, mode: Mode) -> None:
    """Whatever `on_disconnect` says: an explanation leaves nothing behind."""
    served.handler.manual = True
    with served.client() as client:
        client.submit(msgspec.structs.replace(a_request(), mode=mode))
        until(lambda: RequestId("r1") in served.handler.logs)
    until(lambda: served.handler.cancelled == [RequestId("r1")])


def test_finished_requests_are_forgotten_oldest_first(place: Path) -> None:
    with serving(place / "run", limits=Limits(keep_finished=3)) as served, served.client() as client:
        for number in range(5):
            list(client.submit(a_request(f"r{number}")))
        assert len(list(client.follow(RequestId("r2")))) == 5
        with pytest.raises(RemoteError, match="r1"):
            list(client.follow(RequestId("r1")))
        assert client.status().requests == 0


# ---------------------------------------------------------------- control


def test_control_answers_while_the_loop_is_blocked(served: Serving) -> None:
    served.handler.manual = True
    block = threading.Event()
    try:
        with served.client() as client:
            client.submit(a_request())
            until(lambda: RequestId("r1") in served.handler.logs)
            # For longer than the client would wait.
            served.loop.call_soon_threadsafe(block.wait, 4 * DEADLINE_S)
            status = client.status()
            assert client.cancel(RequestId("r1")) == "cancelling r1"
            assert status.requests == 1 and status.counters["hits"] == 7 and status.state == "serving"
            assert served.handler.cancelled == []
            block.set()
            until(lambda: served.handler.cancelled == [RequestId("r1")])
    finally:
        block.set()


def test_cancelling_the_unknown_is_an_error(served: Serving) -> None:
    with served.client() as client, pytest.raises(RemoteError) as caught:
        client.cancel(RequestId("nobody"))
    assert caught.value.code == "unknown-request"


def test_draining_takes_nothing_new(served: Serving) -> None:
    with served.client() as client:
        client.drain(now=True)
        until(lambda: served.handler.drained == [True])
        assert client.status().state == "draining"
        with pytest.raises(RemoteError) as caught:
            list(client.submit(a_request()))
        assert caught.value.code == "draining"


def test_control_understands_another_framing(served: Serving) -> None:
    """A newer client must be able to ask an older daemon to go."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.DEALER)
    try:
        socket.linger = 0
        socket.connect(served.server.addresses.control)
        socket.send_multipart([b"buildd2", msgspec.msgpack.encode({"type": "ping", "new": True})])
        assert socket.poll(TIMEOUT_MS)
        assert isinstance(wire.decode_from_control(socket.recv_multipart()), Pong)
    finally:
        context.destroy(linger=0)


# ---------------------------------------------------------------- TCP


class Tcp:
    """A server that also listens on TCP, with one key for each set of scopes."""

    def __init__(self, folder: Path, scopes: dict[str, str]) -> None:
        self.keys = {name: new_key_pair() for name in scopes}
        self.server = new_key_pair()
        self.list = folder / "clients"
        self.list.write_text("".join(f"{self.keys[name].public} {words} {name}\n" for name, words in scopes.items()))
        self.options = TcpOptions("tcp://127.0.0.1:0", "tcp://127.0.0.1:0", self.server, AllowList(self.list))

    def client(self, served: Serving, keys: KeyPair, timeout_s: float = 20.0, server_key: str = "") -> Client:
        endpoint = served.server.endpoint()
        return Client.connect_tcp(
            endpoint.tcp_work,
            endpoint.tcp_control,
            server_key=server_key or endpoint.tcp_server_key,
            keys=keys,
            timeout_s=timeout_s,
        )


def test_tcp_scopes_are_enforced(place: Path) -> None:
    tcp = Tcp(place, {"ci": "submit,follow,fetch", "viewer": "follow", "admin": "control"})
    digest = Digest("ab" * 32)
    with serving(place / "run", tcp=tcp.options) as served:
        served.handler.blobs[digest] = b"bytes"
        with (
            tcp.client(served, tcp.keys["ci"]) as ci,
            tcp.client(served, tcp.keys["viewer"]) as viewer,
            tcp.client(served, tcp.keys["admin"]) as admin,
        ):
            assert len(list(ci.submit(a_request()))) == 5
            assert ci.fetch(digest) == b"bytes"
            assert len(list(viewer.follow(RequestId("r1")))) == 5
            assert admin.status().clients == 2
            for forbidden in (
                lambda: list(viewer.submit(a_request("r2"))),
                lambda: viewer.fetch(digest),
                lambda: viewer.status(),
                lambda: ci.drain(),
                lambda: list(admin.follow(RequestId("r1"))),
            ):
                with pytest.raises(RemoteError) as caught:
                    forbidden()
                assert caught.value.code == "forbidden"
        assert served.handler.drained == [] and RequestId("r2") not in served.handler.requests
        assert any('from="tcp:ci"' in text and text.startswith("submit") for text in served.handler.audit_lines)
        assert any('from="tcp:viewer"' in text and text.startswith("forbidden") for text in served.handler.audit_lines)


def test_an_unknown_key_and_a_wrong_server_key_get_nothing(place: Path) -> None:
    tcp = Tcp(place, {"ci": "submit"})
    with serving(place / "run", tcp=tcp.options) as served:
        with tcp.client(served, new_key_pair(), timeout_s=0.4) as stranger:
            with pytest.raises(TimedOut):
                stranger.submit(a_request())
            with pytest.raises(TimedOut):
                stranger.status()
        misled = tcp.client(served, tcp.keys["ci"], timeout_s=0.4, server_key=new_key_pair().public)
        with misled, pytest.raises(TimedOut):
            misled.submit(a_request())
        until(lambda: served.server.status().counters["tcp_refused"] > 0)
        assert not served.handler.requests
        assert any(text.startswith("refused") for text in served.handler.audit_lines)


def test_a_plain_client_gets_nothing_over_tcp(place: Path) -> None:
    tcp = Tcp(place, {"ci": "submit"})
    with serving(place / "run", tcp=tcp.options) as served:
        endpoint = served.server.endpoint()
        plain = Client(Route(work=endpoint.tcp_work, control=endpoint.tcp_control), timeout_s=0.4)
        with plain, pytest.raises(TimedOut):
            plain.submit(a_request())


def test_a_key_that_is_taken_off_the_list_is_out_at_once(place: Path) -> None:
    tcp = Tcp(place, {"ci": "submit"})
    with serving(place / "run", tcp=tcp.options) as served, tcp.client(served, tcp.keys["ci"]) as client:
        list(client.submit(a_request()))
        tcp.list.write_text("# nobody\n")
        with pytest.raises(RemoteError) as caught:
            list(client.submit(a_request("r2")))
        assert caught.value.code == "forbidden"


def test_a_tcp_client_is_never_watched_by_a_pid_of_this_host(place: Path) -> None:
    tcp = Tcp(place, {"ci": "submit"})
    with serving(place / "run", tcp=tcp.options, limits=Limits(beat_s=0.05, expiry_s=0.3)) as served:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            endpoint = served.server.endpoint()
            route = Route("", "", server_key=endpoint.tcp_server_key, keys=tcp.keys["ci"])
            socket = open_socket(context, zmq.DEALER, route, endpoint.tcp_work)
            liar = Hello(version=1, client="liar", pid=os.getpid(), start_ticks=start_ticks(os.getpid()))
            socket.send_multipart(wire.encode(liar))
            until(lambda: served.server.counters["clients_expired"] == 1)
        finally:
            context.destroy(linger=0)


# ---------------------------------------------------------------- life


def test_close_lets_followers_read_the_end(place: Path) -> None:
    handler = FakeHandler()
    handler.lines = 2000
    with serving(place / "run", handler=handler, linger_s=DEADLINE_S) as served:
        client = served.client()
        events = client.submit(a_request())
        until(lambda: RequestId("r1") in handler.logs)
        asked = threading.Thread(target=lambda: setattr(served, "events", list(events)))
        asked.start()
        until(lambda: served.on_loop(lambda: not followers(served, "r1")))
    asked.join(20)
    client.close()
    assert len(served.events) == 2002  # type: ignore[attr-defined]


def test_an_idle_server_has_no_timer(place: Path) -> None:
    with serving(place / "run", limits=Limits(beat_s=0.02, keep_finished=0)) as served:
        with served.client() as client:
            list(client.submit(a_request()))
            assert served.on_loop(lambda: served.server._timers.armed) == {"beat"}
        until(lambda: served.on_loop(lambda: not served.server._timers.armed))
