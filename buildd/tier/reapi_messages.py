"""The messages of REAPI v2 that a cache's client needs, as classes of protobuf's (extra `tier`).

Only the fields that buildd writes or reads are described here, by their published numbers; protobuf skips others. The
descriptions are in a pool of their own, so they meet no other package's description of the same messages. An
ActionResult is bytes where it passes through: `action_result` makes and reads it. Knows no channel.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

SHA256 = 1
"""A value of the enumeration DigestFunction."""
REAPI = "build.bazel.remote.execution.v2"
BYTESTREAM = "google.bytestream"

_Fields = dict[str, tuple[int, str]]
_MESSAGES: dict[str, dict[str, _Fields]] = {
    REAPI: {
        "Digest": {"hash": (1, "string"), "size_bytes": (2, "int64")},
        "Status": {"code": (1, "int32"), "message": (2, "string")},
        "GetCapabilitiesRequest": {"instance_name": (1, "string")},
        "ActionCacheUpdateCapabilities": {"update_enabled": (1, "bool")},
        "CacheCapabilities": {
            "digest_functions": (1, "*int32"),
            "action_cache_update_capabilities": (2, "ActionCacheUpdateCapabilities"),
            "max_batch_total_size_bytes": (4, "int64"),
        },
        "ServerCapabilities": {"cache_capabilities": (1, "CacheCapabilities")},
        "GetActionResultRequest": {"instance_name": (1, "string"), "action_digest": (2, "Digest")},
        "UpdateActionResultRequest": {
            "instance_name": (1, "string"),
            "action_digest": (2, "Digest"),
            "action_result": (3, "bytes"),
        },
        "OutputFile": {"path": (1, "string"), "digest": (2, "Digest")},
        "ActionResult": {"output_files": (2, "*OutputFile")},
        "FindMissingBlobsRequest": {"instance_name": (1, "string"), "blob_digests": (2, "*Digest")},
        "FindMissingBlobsResponse": {"missing_blob_digests": (2, "*Digest")},
        "BlobUpdate": {"digest": (1, "Digest"), "data": (2, "bytes")},
        "BatchUpdateBlobsRequest": {"instance_name": (1, "string"), "requests": (2, "*BlobUpdate")},
        "BlobStatus": {"digest": (1, "Digest"), "status": (2, "Status")},
        "BatchUpdateBlobsResponse": {"responses": (1, "*BlobStatus")},
        "BatchReadBlobsRequest": {"instance_name": (1, "string"), "digests": (2, "*Digest")},
        "BlobRead": {
            "digest": (1, "Digest"),
            "data": (2, "bytes"),
            "status": (3, "Status"),
            "compressor": (4, "int32"),
        },
        "BatchReadBlobsResponse": {"responses": (1, "*BlobRead")},
    },
    BYTESTREAM: {
        "ReadRequest": {"resource_name": (1, "string"), "read_offset": (2, "int64"), "read_limit": (3, "int64")},
        "ReadResponse": {"data": (10, "bytes")},
        "WriteRequest": {
            "resource_name": (1, "string"),
            "write_offset": (2, "int64"),
            "finish_write": (3, "bool"),
            "data": (10, "bytes"),
        },
        "WriteResponse": {"committed_size": (1, "int64")},
    },
}
"""By package and name: each field with its number and its type. "*" is a repeated field."""
_TYPES = {
    "string": descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
    "bytes": descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
    "bool": descriptor_pb2.FieldDescriptorProto.TYPE_BOOL,
    "int32": descriptor_pb2.FieldDescriptorProto.TYPE_INT32,
    "int64": descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
}


def described(package: str) -> dict[str, _Fields]:
    """The messages of a package, by name."""
    return _MESSAGES[package]


def _classes() -> dict[str, Any]:
    pool = descriptor_pool.DescriptorPool()
    for package, messages in _MESSAGES.items():
        file = descriptor_pb2.FileDescriptorProto(name=f"buildd/{package}.proto", package=package, syntax="proto3")
        for name, fields in messages.items():
            message = file.message_type.add(name=name)
            for field, (number, kind) in fields.items():
                added = message.field.add(name=field, number=number)
                is_repeated, kind = kind.startswith("*"), kind.lstrip("*")
                added.label = added.LABEL_REPEATED if is_repeated else added.LABEL_OPTIONAL
                if kind in _TYPES:
                    added.type = _TYPES[kind]
                else:
                    added.type, added.type_name = added.TYPE_MESSAGE, f".{package}.{kind}"
        pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for package, messages in _MESSAGES.items()
        for name in messages
    }


MESSAGES: dict[str, Any] = _classes()
"""The classes by name: they are made at run time, so their fields have no static types."""
