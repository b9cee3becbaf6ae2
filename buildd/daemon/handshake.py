"""The daemon's answer to a hello: the protocol version to speak, or a refusal. Pure."""

from __future__ import annotations

import os

from protocol import wire
from protocol.curve import Scope
from protocol.messages import PROTOCOL_VERSION, Hello, Refused, Welcome

OLDEST_VERSION = 1
CAPABILITIES = ("resume", "fetch", "broadcast", "lease", "profile")


def answer(hello: Hello, scopes: frozenset[Scope], *, daemon: str, instance: str) -> Welcome | Refused:
    """Choose the lower of both sides' highest versions; refuse if it is too old for this daemon."""
    version = min(hello.version, PROTOCOL_VERSION)
    if version < OLDEST_VERSION:
        return Refused(
            code="version",
            message=f"this daemon speaks versions {OLDEST_VERSION} to {PROTOCOL_VERSION}, not {hello.version}",
            next_step="use a client of this daemon's version",
            versions=tuple(range(OLDEST_VERSION, PROTOCOL_VERSION + 1)),
        )
    return Welcome(
        version=version,
        daemon=daemon,
        pid=os.getpid(),
        instance=instance,
        scopes=tuple(sorted(scope.value for scope in scopes)),
        max_message_bytes=wire.MAX_MESSAGE_BYTES,
        capabilities=CAPABILITIES,
    )
