"""A small REAPI cache of the tests' own, with faults on request: what real servers do not do when they are asked to.

It speaks gRPC on a real socket, and keeps its objects as `tiers.HttpCache` does, so that tests can plant them. It
shares buildd's descriptions of the messages: whether these are right, real servers show (`reapi_servers`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc

from buildd.tier.reapi_messages import BYTESTREAM, MESSAGES, REAPI, SHA256
from tests.support.tiers import Fault

_Code = grpc.StatusCode
_THREADS = 64
_DEADLINE_S = 20.0
_PIECE_BYTES = 1 << 16


class ReapiCache:
    """A server in this process.

    Args:
        credentials: for TLS.
        instance: the one that it has.
    """

    def __init__(self, credentials: Any = None, instance: str = "main/x") -> None:
        self.objects: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.fault = Fault.NONE
        self.thawed = threading.Event()
        self.takes_results = True
        self.digest_functions = [SHA256]
        self.batch_bytes = 0
        """The most bytes of a batch; 0: it says nothing about it."""
        self._instance = instance
        self._pool = ThreadPoolExecutor(_THREADS)
        self._server = grpc.server(self._pool, options=(("grpc.so_reuseport", 0),))
        self._server.add_generic_rpc_handlers([_handlers(self)])
        if credentials is None:
            port = self._server.add_insecure_port("127.0.0.1:0")
        else:
            port = self._server.add_secure_port("localhost:0", credentials)
        host = "grpc://127.0.0.1" if credentials is None else "grpcs://localhost"
        self.port = port
        self.url = f"{host}:{port}/{instance}"
        self._server.start()

    def close(self) -> None:
        self.thawed.set()
        self._server.stop(grace=None).wait(_DEADLINE_S)
        self._pool.shutdown()

    def records(self) -> dict[str, bytes]:
        return {path: data for path, data in self.objects.items() if "/ac/" in path}

    def blobs(self) -> dict[str, bytes]:
        return {path: data for path, data in self.objects.items() if "/cas/" in path}

    # ----------------------------------------------------------------

    def methods(self) -> list[str]:
        """What was called, without names of objects."""
        return [line.split()[0] for line in self.asked]

    def begin(self, method: str, context: Any, *names: str, writes: bool = False) -> None:
        """Note a call, and fail where a fault says so."""
        self.asked.append(" ".join((method, *names)))
        self.headers.append({key: str(value) for key, value in context.invocation_metadata()})
        match self.fault:
            case Fault.FROZEN:
                self.thawed.wait(_DEADLINE_S)
                context.abort(_Code.UNAVAILABLE, "thawed")
            case Fault.SLOW:
                self.thawed.wait(2.0)
            case Fault.DRIPPING if method != "Read":  # of one message the client sees nothing until it is whole
                self.thawed.wait(_DEADLINE_S)
            case Fault.CUT if method != "Read":
                context.abort(_Code.DATA_LOSS, "half of it is gone")
            case Fault.NO_HTTP:
                context.abort(_Code.INTERNAL, "no answer of gRPC's")
            case Fault.NO_RIGHTS:
                context.abort(_Code.PERMISSION_DENIED, "not you")
            case Fault.MOVED:
                context.abort(_Code.UNAUTHENTICATED, "sign in")
            case Fault.FULL if writes:
                context.abort(_Code.RESOURCE_EXHAUSTED, "no room")

    def found(self, path: str) -> bytes | None:
        """An object as the fault leaves it."""
        data = self.objects.get(f"/x/{path}")
        if data is not None and self.fault is Fault.OTHER_BYTES:
            return bytes(255 - byte for byte in data)
        if data is not None and self.fault is Fault.SHORT:
            return data[: len(data) // 2]
        return data

    def in_instance(self, name: str, context: Any) -> None:
        if name != self._instance:
            context.abort(_Code.INVALID_ARGUMENT, f"there is no instance {name!r}")

    # ----------------------------------------------------------------

    def capabilities(self, asked: Any, context: Any) -> Any:
        self.begin("GetCapabilities", context)
        return MESSAGES["ServerCapabilities"](
            cache_capabilities={
                "digest_functions": self.digest_functions,
                "action_cache_update_capabilities": {"update_enabled": self.takes_results},
                "max_batch_total_size_bytes": self.batch_bytes,
            }
        )

    def get_result(self, asked: Any, context: Any) -> bytes:
        self.in_instance(asked.instance_name, context)
        self.begin("GetActionResult", context, asked.action_digest.hash)
        found = self.found(f"ac/{asked.action_digest.hash}")
        if found is None:
            context.abort(_Code.NOT_FOUND, "no such action")
        return found or b""

    def update_result(self, asked: Any, context: Any) -> bytes:
        self.in_instance(asked.instance_name, context)
        self.begin("UpdateActionResult", context, asked.action_digest.hash, writes=True)
        self.objects[f"/x/ac/{asked.action_digest.hash}"] = asked.action_result
        return bytes(asked.action_result)

    def find_missing(self, asked: Any, context: Any) -> Any:
        self.begin("FindMissingBlobs", context, *(one.hash for one in asked.blob_digests))
        lacking = [one for one in asked.blob_digests if f"/x/cas/{one.hash}" not in self.objects]
        return MESSAGES["FindMissingBlobsResponse"](missing_blob_digests=lacking)

    def batch_read(self, asked: Any, context: Any) -> Any:
        self.begin("BatchReadBlobs", context, *(one.hash for one in asked.digests))
        answers = []
        for one in asked.digests:
            found = self.found(f"cas/{one.hash}")
            status = {"code": 0} if found is not None else {"code": 5, "message": "not found"}
            answers.append({"digest": one, "data": found or b"", "status": status})
        return MESSAGES["BatchReadBlobsResponse"](responses=answers)

    def batch_update(self, asked: Any, context: Any) -> Any:
        self.begin("BatchUpdateBlobs", context, *(one.digest.hash for one in asked.requests), writes=True)
        for one in asked.requests:
            self.objects[f"/x/cas/{one.digest.hash}"] = one.data
        return MESSAGES["BatchUpdateBlobsResponse"](
            responses=[{"digest": one.digest, "status": {"code": 0}} for one in asked.requests]
        )

    def read(self, asked: Any, context: Any) -> Iterator[Any]:
        self.begin("Read", context, asked.resource_name)
        found = self.found(f"cas/{asked.resource_name.split('/')[-2]}")
        if found is None:
            context.abort(_Code.NOT_FOUND, "no such blob")
            return
        end = len(found) // 2 if self.fault is Fault.CUT else len(found)
        for start in range(0, end, _PIECE_BYTES):
            if self.fault is Fault.DRIPPING and self.thawed.wait(0.1):
                return
            yield MESSAGES["ReadResponse"](data=found[start : min(end, start + _PIECE_BYTES)])

    def write(self, asked: Iterator[Any], context: Any) -> Any:
        pieces, name = [], ""
        for one in asked:
            name = name or one.resource_name
            pieces.append(one.data)
        self.begin("Write", context, name, writes=True)
        data = b"".join(pieces)
        self.objects[f"/x/cas/{name.split('/')[-2]}"] = data
        return MESSAGES["WriteResponse"](committed_size=len(data))


def _handlers(cache: ReapiCache) -> Any:
    """Its methods by their names on the wire."""

    def one(work: Callable[..., Any], asked: str) -> Any:
        return grpc.unary_unary_rpc_method_handler(work, MESSAGES[asked].FromString, _bytes_of)

    methods = {
        f"/{REAPI}.Capabilities/GetCapabilities": one(cache.capabilities, "GetCapabilitiesRequest"),
        f"/{REAPI}.ActionCache/GetActionResult": one(cache.get_result, "GetActionResultRequest"),
        f"/{REAPI}.ActionCache/UpdateActionResult": one(cache.update_result, "UpdateActionResultRequest"),
        f"/{REAPI}.ContentAddressableStorage/FindMissingBlobs": one(cache.find_missing, "FindMissingBlobsRequest"),
        f"/{REAPI}.ContentAddressableStorage/BatchReadBlobs": one(cache.batch_read, "BatchReadBlobsRequest"),
        f"/{REAPI}.ContentAddressableStorage/BatchUpdateBlobs": one(cache.batch_update, "BatchUpdateBlobsRequest"),
        f"/{BYTESTREAM}.ByteStream/Read": grpc.unary_stream_rpc_method_handler(
            cache.read, MESSAGES["ReadRequest"].FromString, _bytes_of
        ),
        f"/{BYTESTREAM}.ByteStream/Write": grpc.stream_unary_rpc_method_handler(
            cache.write, MESSAGES["WriteRequest"].FromString, _bytes_of
        ),
    }

    class Handlers(grpc.GenericRpcHandler):
        def service(self, details: Any) -> Any:
            return methods.get(details.method)

    return Handlers()


def _bytes_of(message: Any) -> bytes:
    return message if isinstance(message, bytes) else bytes(message.SerializeToString())


@contextmanager
def reapi_cache(credentials: Any = None) -> Iterator[ReapiCache]:
    cache = ReapiCache(credentials)
    try:
        yield cache
    finally:
        cache.close()
