"""Impossible requests are answered at once, in words, over the real socket."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import zmq

from protocol import wire
from protocol.messages import Error, Event, FromDaemon, Welcome
from tests.support.serving import Serving, serving, short_folder

TIMEOUT_MS = 20_000


@pytest.fixture
def served() -> Iterator[Serving]:
    with short_folder() as base, serving(base / "run") as made:
        yield made


class Bare:
    """A client that sends any table."""

    def __init__(self, served: Serving) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.connect(served.server.addresses.work)

    def ask(self, **table: Any) -> FromDaemon:
        self.socket.send_multipart([wire.MAGIC, msgspec.msgpack.encode(table)])
        assert self.socket.poll(TIMEOUT_MS), "no answer"
        return wire.decode_from_daemon(self.socket.recv_multipart())

    def submit(self, **fields: Any) -> FromDaemon:
        return self.ask(type="submit", request={"request_id": "r", "build_id": "b", "project": "/p", **fields})

    def __enter__(self) -> Bare:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.destroy(linger=0)


@pytest.mark.parametrize("pid", [-1, 1 << 31, 1 << 32, (1 << 63) - 1, (1 << 64) - 1, -(1 << 63)])
def test_a_pid_that_no_process_has_is_answered(served: Serving, pid: int) -> None:
    with Bare(served) as client:
        answer = client.ask(type="hello", version=1, client="c", pid=pid, start_ticks=1)
        assert isinstance(answer, Error) and answer.code == "bad-message" and "$.pid" in answer.message
        assert isinstance(client.ask(type="hello", version=1, client="c", pid=0), Welcome)
    assert not served.server.counters["handler_errors"]


@pytest.mark.parametrize("version", ["1", None, []])
def test_an_ill_formed_hello_is_an_error(served: Serving, version: object) -> None:
    with Bare(served) as client:
        answer = client.ask(type="hello", version=version, client="c")
    assert isinstance(answer, Error) and answer.code == "bad-message"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"project": "/a\0b"}, "`project` holds a zero byte"),
        ({"store": "/a\0b"}, "`store` holds a zero byte"),
        ({"file": "a\0b"}, "`file` holds a zero byte"),
        ({"interpreter": "a\0b"}, "`interpreter` holds a zero byte"),
        ({"mode": "watch", "inputs": ["a", "a\0b"]}, "`inputs` holds a zero byte"),
        ({"mode": "compile", "command": ["/bin/cc", "\0"]}, "`command` holds a zero byte"),
        ({"environment": {"A\0": ""}}, "`environment` holds a zero byte"),
        ({"environment": {"A": "\0"}}, "`environment` holds a zero byte"),
        ({"specs": {"a\0": {}}}, "`specs` holds a zero byte"),
        ({"project": "x"}, "`project` must be an absolute path"),
        ({"project": ""}, "`project` must be an absolute path"),
        ({"store": "x"}, "`store` must be an absolute path"),
        ({"mode": "compile"}, "`command` must begin with the absolute path of the tool"),
        ({"mode": "compile", "command": ["cc"]}, "`command` must begin with the absolute path of the tool"),
        ({"umask": -1}, "$.request.umask"),
        ({"umask": 0o1000}, "$.request.umask"),
        ({"umask": 1 << 40}, "$.request.umask"),
        ({"jobs": -5}, "$.request.jobs"),
        ({"jobs": 1 << 62}, "$.request.jobs"),
        ({"build_id": None}, "$.request.build_id"),
        ({"mode": "no-such"}, "$.request.mode"),
    ],
)
def test_an_impossible_request_is_refused_at_once_under_its_id(
    served: Serving, fields: dict[str, Any], says: str
) -> None:
    with Bare(served) as client:
        client.ask(type="hello", version=1, client="c")
        answer = client.submit(**fields)
        assert isinstance(answer, Error)
        assert (answer.code, answer.request_id) == ("bad-message", "r") and says in answer.message
        answer = client.submit()
        assert isinstance(answer, Event) and answer.sequence == 1, "the id is free"
    assert [request.project for request in served.handler.requests.values()] == ["/p"]


def test_a_bad_follow_names_its_request_unless_events_of_it_still_come(served: Serving) -> None:
    served.handler.manual = True
    with Bare(served) as client:
        client.ask(type="hello", version=1, client="c")
        answer = client.ask(type="follow", request_id="r", after_sequence=-1)
        assert isinstance(answer, Error) and (answer.code, answer.request_id) == ("bad-message", "r")
        client.socket.send_multipart(
            [
                wire.MAGIC,
                msgspec.msgpack.encode(
                    {"type": "submit", "request": {"request_id": "r", "build_id": "b", "project": "/p"}}
                ),
            ]
        )
        answer = client.ask(type="follow", request_id="r", after_sequence=-1)
        assert isinstance(answer, Error) and (answer.code, answer.request_id) == ("bad-message", "")


def test_a_line_of_the_audit_log_is_bounded(served: Serving) -> None:
    with Bare(served) as client:
        client.ask(type="hello", version=1, client="\x01" * 100_000, user="u" * 100_000)
        answer = client.submit(
            project="/" + "p" * 100_000, build_id="b" * 100_000, targets=[f"target-{n}" for n in range(100_000)]
        )
        assert isinstance(answer, Event)
    (line,) = served.handler.audit_lines
    assert len(line) < 10_000
    assert '"target-0", "target-1"' in line and "99980 more" in line and "characters cut" in line


def test_a_long_name_of_a_request_is_cut_in_the_log_of_the_control_socket(served: Serving) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.linger = 0
    socket.connect(served.server.addresses.control)
    try:
        socket.send_multipart([wire.MAGIC, msgspec.msgpack.encode({"type": "cancel", "request_id": "r" * 500_000})])
        assert socket.poll(TIMEOUT_MS)
        answer = wire.decode_from_control(socket.recv_multipart())
        assert isinstance(answer, Error) and answer.code == "unknown-request"
    finally:
        context.destroy(linger=0)
    (line,) = served.handler.audit_lines
    assert len(line) < 10_000
