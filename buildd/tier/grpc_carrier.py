"""REAPI v2 over gRPC as a carrier (extra `tier`): bazel-remote, BuildBuddy, NativeLink, EngFlow, Buildbarn.

Records are in the ActionCache, objects in the CAS: several small ones in one message, a large one by ByteStream. All
questions share one connection, so many that are asked at once take one round trip. An object of `cas/` is a zstd frame
already, so no compression on the way is asked for.

Every call has gRPC's own deadline. A connection on which several answers in a row did not come is left for a new one:
what stands between may have forgotten it. Knows no record but its size: one that is too large for a message is an
object, and the ActionCache says which.
"""

from __future__ import annotations

import hashlib
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc

from buildd.tier import action_result
from buildd.tier.carrier import (
    MAX_OBJECT_BYTES,
    Carrier,
    CarrierError,
    Content,
    LargeObject,
    ObjectKind,
    Patience,
    Trouble,
)
from buildd.tier.grpc_place import GrpcPlace
from buildd.tier.reapi_messages import BYTESTREAM, MESSAGES, REAPI, SHA256

USUAL_BATCH_BYTES = 4 << 20
"""What a gRPC server takes in one message unless it says otherwise."""
_SPARE_BYTES = 64 << 10
"""Room in a message for everything beside the objects."""
_MOST_IN_BATCH = 1000
_CHUNK_BYTES = 1 << 18
_BYTES_PER_S = 1e6
"""A large object may take its size divided by this."""
_LOST_AFTER = 3
"""Answers in a row that did not come until a connection is left."""
_ACTION_BYTES = 1
"""No action is behind a name, so its size is one that all servers accept."""
_BEHIND = b"the record is an object"
"""What an entry says whose record is too large for it."""
_OK, _NOT_FOUND, _RESOURCE_EXHAUSTED = 0, 5, 8
_Code = grpc.StatusCode
_TROUBLES = {
    _Code.UNAVAILABLE: Trouble.UNREACHABLE,
    _Code.CANCELLED: Trouble.UNREACHABLE,
    _Code.ABORTED: Trouble.UNREACHABLE,
    _Code.DEADLINE_EXCEEDED: Trouble.SLOW,
    _Code.PERMISSION_DENIED: Trouble.RIGHTS,
    _Code.UNAUTHENTICATED: Trouble.RIGHTS,
    _Code.RESOURCE_EXHAUSTED: Trouble.UNREACHABLE,
}


class GrpcCarrier(Carrier):
    """A server.

    Args:
        place: where it is, and who asks.
    """

    words = "REAPI over gRPC"
    has_batches = True

    def __init__(self, place: GrpcPlace) -> None:
        self._place = place
        self._lock = threading.Lock()
        self._channel = place.channel()
        self._unanswered = 0
        self._closed = False
        self._capabilities: Any = None

    def get(
        self,
        kind: ObjectKind,
        name: str,
        patience: Patience,
        most_bytes: int = MAX_OBJECT_BYTES,
        size_bytes: int | None = None,
    ) -> bytes | None:
        if kind is ObjectKind.CONTENT:
            if size_bytes is None:
                return None
            if size_bytes > most_bytes:
                raise LargeObject
            return self.get_contents([Content(name, size_bytes)], patience)[0]
        asked = MESSAGES["GetActionResultRequest"](
            instance_name=self._place.instance, action_digest=_digest(name, _ACTION_BYTES)
        )
        entry: bytes | None = self._ask("ActionCache/GetActionResult", asked, None, patience)
        if entry is not None and action_result.auxiliary_of(entry) == _BEHIND:
            entry = self._behind(entry, patience, most_bytes)
        if entry is not None and len(entry) > most_bytes:
            raise LargeObject
        return entry

    def put(self, kind: ObjectKind, name: str, data: bytes, patience: Patience) -> None:
        if kind is ObjectKind.CONTENT:
            return self.put_contents([(name, data)], patience)
        if len(data) > self._message_bytes(patience):
            sha256 = hashlib.sha256(data).digest()
            self.put_contents([(sha256.hex(), data)], patience)
            data = action_result.encode([action_result.NamedFile("record", sha256, len(data))], "buildd", _BEHIND)
        if self._served(patience).action_cache_update_capabilities.update_enabled is False:
            raise CarrierError(Trouble.RIGHTS, "the server takes no results")
        asked = MESSAGES["UpdateActionResultRequest"](
            instance_name=self._place.instance, action_digest=_digest(name, _ACTION_BYTES), action_result=data
        )
        if self._ask("ActionCache/UpdateActionResult", asked, None, patience, puts=True) is None:
            raise CarrierError(Trouble.ODD, "there is no such instance, or the server has not what the record names")

    def get_contents(self, wanted: Sequence[Content], patience: Patience) -> list[bytes | None]:
        room = self._message_bytes(patience)
        found: dict[str, bytes | None] = {}
        small = {one.name: one.size_bytes for one in wanted if one.size_bytes <= room}
        for part in _parts(list(small.items()), lambda one: one[1], room):
            found |= self._read_batch(dict(part), patience)
        for one in wanted:
            if one.name not in small and one.name not in found:
                found[one.name] = self._read_stream(one, patience)
        return [found[one.name] for one in wanted]

    def put_contents(self, objects: Sequence[tuple[str, bytes]], patience: Patience) -> None:
        room = self._message_bytes(patience)
        lacking = self._lacking({name: len(data) for name, data in objects}, patience)
        left = [(name, data) for name, data in dict(objects).items() if name in lacking]
        for part in _parts([one for one in left if len(one[1]) <= room], lambda one: len(one[1]), room):
            self._write_batch(part, patience)
        for name, data in left:
            if len(data) > room:
                self._write_stream(name, data, patience)

    def describe(self, patience: Patience) -> str:
        served = self._served(patience)
        takes = served.action_cache_update_capabilities.update_enabled
        room = (served.max_batch_total_size_bytes or USUAL_BATCH_BYTES) / (1 << 20)
        return f"{'takes' if takes else 'does not take'} results, {room:.3g} MiB in one message"

    def close(self) -> None:
        with self._lock:
            self._closed = True
            channel = self._channel
        channel.close()  # wakes the threads that wait for it

    # ---------------------------------------------------------------- records and capabilities

    def _behind(self, entry: bytes, patience: Patience, most_bytes: int) -> bytes | None:
        """The record that an entry without one leads to; None where it leads nowhere."""
        files = MESSAGES["ActionResult"].FromString(entry).output_files
        if len(files) != 1:
            return None
        one = Content(files[0].digest.hash, files[0].digest.size_bytes)
        if not 0 <= one.size_bytes <= min(most_bytes, MAX_OBJECT_BYTES):
            raise LargeObject
        return self.get_contents([one], patience)[0]

    def _served(self, patience: Patience) -> Any:
        """What the server can do, asked for once."""
        if self._capabilities is None:
            asked = MESSAGES["GetCapabilitiesRequest"](instance_name=self._place.instance)
            answer = self._ask("Capabilities/GetCapabilities", asked, MESSAGES["ServerCapabilities"], patience)
            if answer is None:
                raise CarrierError(Trouble.ODD, "there is no such instance")
            served = answer.cache_capabilities
            if served.digest_functions and SHA256 not in served.digest_functions:
                raise CarrierError(Trouble.ODD, "the server has no SHA-256")
            self._capabilities = served
        return self._capabilities

    def _message_bytes(self, patience: Patience) -> int:
        most = self._served(patience).max_batch_total_size_bytes or USUAL_BATCH_BYTES
        return max(0, min(most, USUAL_BATCH_BYTES) - _SPARE_BYTES)

    # ---------------------------------------------------------------- objects

    def _lacking(self, sizes: dict[str, int], patience: Patience) -> set[str]:
        asked = MESSAGES["FindMissingBlobsRequest"](
            instance_name=self._place.instance, blob_digests=[_digest(*one) for one in sizes.items()]
        )
        answer = self._ask(
            "ContentAddressableStorage/FindMissingBlobs", asked, MESSAGES["FindMissingBlobsResponse"], patience
        )
        if answer is None:
            raise CarrierError(Trouble.ODD, "there is no such instance")
        return {one.hash for one in answer.missing_blob_digests}

    def _read_batch(self, sizes: dict[str, int], patience: Patience) -> dict[str, bytes | None]:
        asked = MESSAGES["BatchReadBlobsRequest"](
            instance_name=self._place.instance, digests=[_digest(*one) for one in sizes.items()]
        )
        answer = self._ask(
            "ContentAddressableStorage/BatchReadBlobs", asked, MESSAGES["BatchReadBlobsResponse"], patience
        )
        found: dict[str, bytes | None] = dict.fromkeys(sizes)
        for one in answer.responses if answer is not None else ():
            if one.compressor:
                raise CarrierError(Trouble.ODD, "an object is compressed, which nobody asked for")
            if one.digest.hash in found and one.status.code == _OK:
                found[one.digest.hash] = one.data
            elif one.status.code not in (_OK, _NOT_FOUND):
                raise CarrierError(Trouble.UNREACHABLE, f"code {one.status.code} {one.status.message}"[:200])
        return found

    def _write_batch(self, objects: Sequence[tuple[str, bytes]], patience: Patience) -> None:
        asked = MESSAGES["BatchUpdateBlobsRequest"](
            instance_name=self._place.instance,
            requests=[{"digest": _digest(name, len(data)), "data": data} for name, data in objects],
        )
        answer = self._ask(
            "ContentAddressableStorage/BatchUpdateBlobs",
            asked,
            MESSAGES["BatchUpdateBlobsResponse"],
            patience,
            puts=True,
        )
        written = {one.digest.hash: one.status for one in answer.responses} if answer is not None else {}
        for name, _ in objects:
            status = written.get(name)
            if status is None or status.code != _OK:
                full = status is not None and status.code == _RESOURCE_EXHAUSTED
                detail = (
                    f"code {status.code} {status.message}"[:200] if status is not None else "an object is not there"
                )
                raise CarrierError(Trouble.FULL if full else Trouble.UNREACHABLE, detail)

    def _read_stream(self, one: Content, patience: Patience) -> bytes | None:
        asked = MESSAGES["ReadRequest"](resource_name=f"{self._place.prefix}blobs/{one.name}/{one.size_bytes}")

        def read(channel: Any, limit_s: float) -> bytes:
            method = channel.unary_stream(
                f"/{BYTESTREAM}.ByteStream/Read",
                request_serializer=_bytes_of,
                response_deserializer=MESSAGES["ReadResponse"].FromString,
            )
            answers = method(asked, timeout=limit_s, metadata=self._place.headers)
            pieces, left = [], one.size_bytes
            for answer in answers:
                pieces.append(answer.data)
                left -= len(answer.data)
                if left < 0:
                    answers.cancel()
                    raise LargeObject
            if left:
                raise CarrierError(Trouble.ODD, "the content was cut short")
            return b"".join(pieces)

        found: bytes | None = self._attempt(read, patience, one.size_bytes)
        return found

    def _write_stream(self, name: str, data: bytes, patience: Patience) -> None:
        place = f"{self._place.prefix}uploads/{uuid.uuid4()}/blobs/{name}/{len(data)}"

        def pieces() -> Iterator[Any]:
            for start in range(0, len(data), _CHUNK_BYTES):
                piece = data[start : start + _CHUNK_BYTES]
                is_last = start + len(piece) == len(data)
                yield MESSAGES["WriteRequest"](
                    resource_name=place, write_offset=start, finish_write=is_last, data=piece
                )

        def write(channel: Any, limit_s: float) -> Any:
            method = channel.stream_unary(
                f"/{BYTESTREAM}.ByteStream/Write",
                request_serializer=_bytes_of,
                response_deserializer=MESSAGES["WriteResponse"].FromString,
            )
            return method(pieces(), timeout=limit_s, metadata=self._place.headers)

        answer = self._attempt(write, patience, len(data), puts=True)
        if answer is None or answer.committed_size not in (len(data), -1):
            raise CarrierError(Trouble.ODD, "an object was not taken whole")

    # ---------------------------------------------------------------- calls

    def _ask(self, method: str, asked: Any, answer: Any, patience: Patience, *, puts: bool = False) -> Any:
        """A call with one question and one answer, which stays bytes without a class; None where nothing is there."""
        size_bytes = asked.ByteSize() if puts else 0

        def call(channel: Any, limit_s: float) -> Any:
            return channel.unary_unary(
                f"/{REAPI}.{method}",
                request_serializer=_bytes_of,
                response_deserializer=answer.FromString if answer is not None else None,
            )(asked, timeout=limit_s, metadata=self._place.headers)

        return self._attempt(call, patience, size_bytes, puts=puts)

    def _attempt(
        self, call: Callable[[Any, float], Any], patience: Patience, size_bytes: int = 0, *, puts: bool = False
    ) -> Any:
        """What a call gives; None where the server says that nothing is there. Raises `CarrierError`."""
        with self._lock:
            channel = self._channel
            if self._closed:
                raise CarrierError(Trouble.UNREACHABLE, "the tier is closed")
        # gRPC does not tell how far a call is: a large object has the time that its size may take.
        limit_s = min(patience.left_s() + size_bytes / _BYTES_PER_S, patience.until_s - time.monotonic())
        try:
            found = call(channel, limit_s)
        except grpc.RpcError as error:
            code, detail = error.code(), error.details() or ""
            self._heard(channel, code is not _Code.DEADLINE_EXCEEDED)
            if code is _Code.NOT_FOUND:
                return None
            trouble = _TROUBLES.get(code, Trouble.ODD)
            if puts and code is _Code.RESOURCE_EXHAUSTED:
                trouble = Trouble.FULL
            elif puts and code is _Code.UNIMPLEMENTED:
                trouble = Trouble.RIGHTS
            raise CarrierError(
                trouble, f"{code.name}: {detail.splitlines()[0][:200]}" if detail else code.name
            ) from error
        except ValueError as error:  # the channel was closed meanwhile
            raise CarrierError(Trouble.UNREACHABLE, "the tier is closed") from error
        self._heard(channel, True)
        return found

    def _heard(self, channel: Any, is_answered: bool) -> None:
        """Note whether an answer came, and leave a connection on which none comes."""
        with self._lock:
            if channel is not self._channel or self._closed:
                return
            self._unanswered = 0 if is_answered else self._unanswered + 1
            if self._unanswered < _LOST_AFTER:
                return
            self._unanswered = 0
            self._channel = self._place.channel()
        channel.close()


def _digest(name: str, size_bytes: int) -> Any:
    return MESSAGES["Digest"](hash=name, size_bytes=size_bytes)


def _bytes_of(message: Any) -> bytes:
    return bytes(message.SerializeToString())


def _parts(several: Sequence[Any], size_of: Callable[[Any], int], room: int) -> Iterator[list[Any]]:
    """The objects, divided so that each part fits into one message."""
    part: list[Any] = []
    left = room
    for one in several:
        if part and (size_of(one) > left or len(part) == _MOST_IN_BATCH):
            yield part
            part, left = [], room
        part.append(one)
        left -= size_of(one)
    if part:
        yield part
