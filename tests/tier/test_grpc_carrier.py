"""REAPI over gRPC as a carrier: servers that fail, lost connections, headers, certificates, and large records."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from buildd.tier import action_result
from buildd.tier.carrier import Carrier, CarrierError, Content, LargeObject, ObjectKind, Trouble, for_up_to
from buildd.tier.carriers import TierError, carrier_of
from tests.support.tiers import Fault
from tests.support.waiting import until

grpc = pytest.importorskip("grpc", reason="no grpcio (extra `tier`)")

from buildd.tier.reapi_messages import BYTESTREAM, REAPI, described  # noqa: E402
from tests.support.reapi_cache import ReapiCache, reapi_cache  # noqa: E402

NAME = hashlib.sha256(b"x").hexdigest()
SMALL, LARGE = b"content" * 100, os.urandom(5 << 20)
HANGS_S = 10.0
Opens = Callable[..., Carrier]


@pytest.fixture
def server() -> Iterator[ReapiCache]:
    with reapi_cache() as made:
        yield made


@pytest.fixture
def opens() -> Iterator[Opens]:
    """Opens carriers, and closes them at the end."""
    with ExitStack() as stack:

        def work(url: str, *headers: tuple[str, str]) -> Carrier:
            carrier = carrier_of(url, headers)
            stack.callback(carrier.close)
            return carrier

        yield work


def put(carrier: Carrier, *contents: bytes) -> list[Content]:
    """Put objects; how they are asked for."""
    named = [(hashlib.sha256(data).hexdigest(), data) for data in contents]
    carrier.put_contents(named, for_up_to(20, 10))
    return [Content(name, len(data)) for name, data in named]


def record(data: bytes) -> bytes:
    return action_result.encode([], "a writer", data)


def test_64_objects_take_one_round_trip(server: ReapiCache, opens: Opens) -> None:
    carrier, contents = opens(server.url), [b"%d" % number for number in range(64)]
    wanted = put(carrier, *contents)
    assert server.methods() == ["GetCapabilities", "FindMissingBlobs", "BatchUpdateBlobs"]
    server.asked.clear()
    assert carrier.get_contents(wanted, for_up_to(20, 10)) == contents
    assert server.methods() == ["BatchReadBlobs"]
    server.asked.clear()
    put(carrier, *contents)
    assert server.methods() == ["FindMissingBlobs"], "what is there is not sent again"


def test_batches_are_as_large_as_the_server_takes_them(server: ReapiCache, opens: Opens) -> None:
    server.batch_bytes = 200_000
    carrier, contents = opens(server.url), [os.urandom(60_000) for _ in range(5)] + [os.urandom(300_000)]
    wanted = put(carrier, *contents)
    assert server.methods().count("BatchUpdateBlobs") == 3 and server.methods().count("Write") == 1
    assert carrier.get_contents(wanted, for_up_to(20, 10)) == contents
    assert server.methods().count("BatchReadBlobs") == 3 and server.methods().count("Read") == 1


def test_a_record_that_is_too_large_for_a_message_is_an_object(server: ReapiCache, opens: Opens) -> None:
    carrier, patience = opens(server.url), for_up_to(20, 10)
    carrier.put(ObjectKind.RECORDS, NAME, record(LARGE), patience)
    assert len(server.objects[f"/x/ac/{NAME}"]) < 1000
    assert carrier.get(ObjectKind.RECORDS, NAME, patience) == record(LARGE)
    with pytest.raises(LargeObject):
        carrier.get(ObjectKind.RECORDS, NAME, patience, most_bytes=1 << 20)
    for path in server.blobs():
        del server.objects[path]
    assert carrier.get(ObjectKind.RECORDS, NAME, patience) is None, "a record without its object is none"


@pytest.mark.parametrize(
    ("fault", "trouble"),
    [
        (Fault.FROZEN, Trouble.SLOW),
        pytest.param(Fault.SLOW, Trouble.SLOW, marks=pytest.mark.slow),
        (Fault.DRIPPING, Trouble.SLOW),
        (Fault.CUT, Trouble.ODD),
        (Fault.NO_RIGHTS, Trouble.RIGHTS),
        pytest.param(Fault.MOVED, Trouble.RIGHTS, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["batch", "stream"])
def test_a_server_that_fails_is_told_within_its_time(
    server: ReapiCache, opens: Opens, fault: Fault, trouble: Trouble, data: bytes
) -> None:
    carrier = opens(server.url)
    wanted = put(carrier, data)
    server.fault = fault
    began_s = time.monotonic()
    with pytest.raises(CarrierError) as told:
        carrier.get_contents(wanted, for_up_to(0.5, 0.3))
    assert told.value.trouble is trouble
    assert time.monotonic() - began_s < HANGS_S
    server.thawed.set()


def test_other_bytes_come_as_they_are_and_their_reader_judges_them(server: ReapiCache, opens: Opens) -> None:
    carrier, patience = opens(server.url), for_up_to(20, 10)
    wanted = put(carrier, SMALL, LARGE)
    server.fault = Fault.OTHER_BYTES
    assert all(found not in (None, SMALL, LARGE) for found in carrier.get_contents(wanted, patience))
    server.objects[f"/x/cas/{wanted[1].name}"] = LARGE + b"more"
    with pytest.raises(LargeObject):
        carrier.get_contents(wanted[1:], patience)


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["batch", "stream"])
@pytest.mark.parametrize(
    ("fault", "trouble"), [(Fault.FULL, Trouble.FULL), (Fault.NO_RIGHTS, Trouble.RIGHTS), (Fault.FROZEN, Trouble.SLOW)]
)
def test_what_cannot_be_written_is_told(
    server: ReapiCache, opens: Opens, fault: Fault, trouble: Trouble, data: bytes
) -> None:
    carrier = opens(server.url)
    carrier.describe(for_up_to(20, 10))
    server.fault = fault
    for kind, name in ((ObjectKind.CONTENT, hashlib.sha256(data).hexdigest()), (ObjectKind.RECORDS, NAME)):
        with pytest.raises(CarrierError) as told:
            carrier.put(kind, name, record(data) if kind is ObjectKind.RECORDS else data, for_up_to(0.5, 0.3))
        assert told.value.trouble is trouble
    server.thawed.set()


def test_a_server_that_takes_no_results_or_knows_no_sha256_is_told(server: ReapiCache, opens: Opens) -> None:
    server.takes_results = False
    with pytest.raises(CarrierError, match="takes no results") as told:
        opens(server.url).put(ObjectKind.RECORDS, NAME, record(b"x"), for_up_to(20, 10))
    assert told.value.trouble is Trouble.RIGHTS
    server.digest_functions = [2]
    with pytest.raises(CarrierError, match="SHA-256"):
        opens(server.url).put_contents([(NAME, b"x")], for_up_to(20, 10))
    with pytest.raises(CarrierError, match="no instance"):
        opens(f"{server.url}/other").get(ObjectKind.RECORDS, NAME, for_up_to(20, 10))


def test_a_dead_server_is_told_at_once_and_found_when_it_is_back(opens: Opens) -> None:
    first = ReapiCache()
    carrier, patience = opens(first.url), lambda: for_up_to(5, 5)
    first.objects[f"/x/ac/{NAME}"] = record(b"1")
    assert carrier.get(ObjectKind.RECORDS, NAME, patience()) == record(b"1")
    first.close()
    began_s = time.monotonic()
    with pytest.raises(CarrierError) as told:
        carrier.get(ObjectKind.RECORDS, NAME, patience())
    assert told.value.trouble is Trouble.UNREACHABLE and time.monotonic() - began_s < HANGS_S

    relay = Relay(first.port)
    with reapi_cache() as second:
        second.objects.update(first.objects)
        relay.serve(second.port)

        def is_back() -> bool:
            with suppress(CarrierError):
                return carrier.get(ObjectKind.RECORDS, NAME, patience()) == record(b"1")
            return False

        until(is_back)
        relay.close()


def test_a_connection_that_was_forgotten_between_is_left_for_a_new_one(server: ReapiCache, opens: Opens) -> None:
    """Something on the way drops all packets of a connection, and new ones get through: without an end, it would last
    for as long as TCP tries."""
    relay = Relay()
    relay.serve(server.port)
    carrier = opens(server.url.replace(str(server.port), str(relay.port)))
    server.objects[f"/x/ac/{NAME}"] = record(b"1")
    assert carrier.get(ObjectKind.RECORDS, NAME, for_up_to(20, 10)) == record(b"1")
    relay.forget()
    for _ in range(3):
        with pytest.raises(CarrierError) as told:
            carrier.get(ObjectKind.RECORDS, NAME, for_up_to(0.3, 0.3))
        assert told.value.trouble is Trouble.SLOW
    assert carrier.get(ObjectKind.RECORDS, NAME, for_up_to(20, 10)) == record(b"1")
    relay.close()


def test_a_server_that_speaks_something_else_is_told(opens: Opens) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    client, _ = listening.accept()
                    client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi" * 100)
                    client.close()

        threading.Thread(target=serve, daemon=True).start()
        began_s = time.monotonic()
        with pytest.raises(CarrierError):
            opens(f"grpc://127.0.0.1:{listening.getsockname()[1]}").get(ObjectKind.RECORDS, NAME, for_up_to(5, 2))
        assert time.monotonic() - began_s < HANGS_S
        listening.shutdown(socket.SHUT_RDWR)


def test_a_carrier_that_is_closed_lets_its_callers_go(server: ReapiCache, opens: Opens) -> None:
    carrier = opens(server.url)
    server.fault = Fault.FROZEN
    told: list[CarrierError] = []

    def ask() -> None:
        try:
            carrier.get(ObjectKind.RECORDS, NAME, for_up_to(60, 60))
        except CarrierError as error:
            told.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    until(lambda: "GetActionResult" in server.methods())
    carrier.close()
    asking.join(HANGS_S)
    assert [error.trouble for error in told] == [Trouble.UNREACHABLE]
    server.thawed.set()
    with pytest.raises(CarrierError):
        carrier.get(ObjectKind.RECORDS, NAME, for_up_to(5, 5))


def test_headers_of_the_users_go_with_each_call(server: ReapiCache, opens: Opens) -> None:
    carrier = opens(server.url, ("Authorization", "Bearer t0ken"), ("x-buildbuddy-api-key", "k"))
    put(carrier, SMALL, LARGE)
    carrier.get(ObjectKind.RECORDS, NAME, for_up_to(20, 10))
    assert len(server.headers) == 5
    for headers in server.headers:
        assert (headers["authorization"], headers["x-buildbuddy-api-key"]) == ("Bearer t0ken", "k")


def certificates(folder: Path) -> None:
    """A server's certificate and a client's, each its own authority."""
    for name, subject in (("server", "localhost"), ("client", "machine")):
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
                *("-days", "2", "-subj", f"/CN={subject}", "-addext", f"subjectAltName=DNS:{subject}"),
                *("-keyout", f"{name}.key", "-out", f"{name}.pem"),
            ],
            cwd=folder,
            check=True,
            capture_output=True,
        )


def test_both_sides_show_their_certificates(tmp_path: Path, opens: Opens) -> None:
    certificates(tmp_path)
    key, own, clients = (tmp_path.joinpath(name).read_bytes() for name in ("server.key", "server.pem", "client.pem"))
    asks_for_one: Any = grpc.ssl_server_credentials([(key, own)], clients, True)
    with reapi_cache(asks_for_one) as server:
        query = f"ca={tmp_path}/server.pem&cert={tmp_path}/client.pem&key={tmp_path}/client.key"
        carrier = opens(f"{server.url}?{query}")
        wanted = put(carrier, SMALL)
        assert carrier.get_contents(wanted, for_up_to(20, 10)) == [SMALL]
        for refused in ("", f"?ca={tmp_path}/server.pem", f"?{query.replace('server.pem', 'client.pem')}"):
            with pytest.raises(CarrierError) as told:
                opens(server.url + refused).get(ObjectKind.RECORDS, NAME, for_up_to(5, 2))
            assert told.value.trouble in (Trouble.UNREACHABLE, Trouble.SLOW)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("grpc://", "cannot be read"),
        ("grpc://host:port/", "cannot be read"),
        ("grpc://host?ca=/x", "grpcs: only"),
        ("grpcs://host?token=x", "no option"),
        ("grpcs://host?cert=/x", "belong together"),
        ("grpcs://host?ca=/no/such/file", "No such file"),
    ],
)
def test_other_urls_are_refused(url: str, words: str) -> None:
    with pytest.raises(TierError, match=words) as told:
        carrier_of(url)
    assert "grpc://" in told.value.next_step


THEIR_NAMES = {
    "BlobUpdate": "BatchUpdateBlobsRequest.Request",
    "BlobStatus": "BatchUpdateBlobsResponse.Response",
    "BlobRead": "BatchReadBlobsResponse.Response",
}


def test_the_messages_are_those_of_another_project() -> None:
    """buildstream has the classes that protoc made from the published descriptions."""
    pytest.importorskip("buildstream", reason="no buildstream (extra `test`)")
    from buildstream._protos.build.bazel.remote.execution.v2 import remote_execution_pb2  # type: ignore
    from buildstream._protos.google.bytestream import bytestream_pb2  # type: ignore
    from buildstream._protos.google.rpc import status_pb2  # type: ignore

    for package, module in ((REAPI, remote_execution_pb2), (BYTESTREAM, bytestream_pb2)):
        for name, fields in described(package).items():
            theirs: Any = status_pb2 if name == "Status" else module
            for part in THEIR_NAMES.get(name, name).split("."):
                theirs = getattr(theirs, part)
            for field, (number, kind) in fields.items():
                their = theirs.DESCRIPTOR.fields_by_name[field]
                assert their.number == number, (name, field)
                assert kind.startswith("*") == their.is_repeated, (name, field)
                scalar = {"string": 9, "bytes": 12, "bool": 8, "int32": 5, "int64": 3}.get(kind.lstrip("*"), 11)
                # Enumerations are whole numbers on the wire, and a result that passes through is bytes.
                assert their.type == scalar or (their.type, scalar) in ((14, 5), (11, 12)), (name, field)


class Relay:
    """A way to a server that can be lost: connections stay open, and nothing comes through any more.

    Args:
        port: to listen on; 0: any.
    """

    def __init__(self, port: int = 0) -> None:
        self._listening = socket.create_server(("127.0.0.1", port))
        self.port = self._listening.getsockname()[1]
        self._open: list[tuple[socket.socket, threading.Event]] = []

    def serve(self, target: int) -> None:
        def accept() -> None:
            with suppress(OSError):
                while True:
                    client, _ = self._listening.accept()
                    there = socket.create_connection(("127.0.0.1", target))
                    forgotten = threading.Event()
                    self._open += [(client, forgotten), (there, forgotten)]
                    for one, other in ((client, there), (there, client)):
                        threading.Thread(target=carry, args=(one, other, forgotten), daemon=True).start()

        def carry(one: socket.socket, other: socket.socket, forgotten: threading.Event) -> None:
            with suppress(OSError):
                while data := one.recv(1 << 16):
                    if not forgotten.is_set():
                        other.sendall(data)

        threading.Thread(target=accept, daemon=True).start()

    def forget(self) -> None:
        """Let nothing through on the connections that there are."""
        for _, forgotten in self._open:
            forgotten.set()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for one, _ in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
