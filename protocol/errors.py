"""Errors between a client and a daemon, each with a stable code and the next step.

Does not know where errors are shown. SPEC.md lists the codes.
"""

from __future__ import annotations

from protocol.messages import Error, RequestId
from protocol.problem import Problem

_NO_REQUEST = RequestId("")


class ProtocolError(Problem):
    """Base of the errors between a client and a daemon."""

    code = "protocol"


class WireError(ProtocolError):
    """Frames that are no message, or a message that cannot be frames.

    Args:
        request_id: of the request that the message is about, if that can be read.
    """

    code = "bad-message"

    def __init__(
        self, message: str, *, code: str = "", next_step: str = "", request_id: RequestId = _NO_REQUEST
    ) -> None:
        super().__init__(message, code=code, next_step=next_step)
        self.request_id = request_id


class EndpointError(ProtocolError):
    """The runtime folder cannot be used: another user's, open to others, or its path is too long."""

    code = "runtime-folder"


class NoDaemon(ProtocolError):
    """No daemon runs, and the caller wanted none to be started."""

    code = "no-daemon"


class StartFailed(ProtocolError):
    """A daemon was started and did not answer in time, or ended at once."""

    code = "start-failed"


class TimedOut(ProtocolError):
    """The daemon runs but did not answer in time."""

    code = "timeout"


class VersionMismatch(ProtocolError):
    """The running daemon is of another version and busy. The caller works without it."""

    code = "version"


class ConnectionLost(ProtocolError):
    """The daemon went away. Follow `request_id` from `last_sequence` if it is the same `instance` that comes back."""

    code = "connection-lost"

    def __init__(
        self, message: str, *, request_id: RequestId = _NO_REQUEST, last_sequence: int = 0, instance: str = ""
    ) -> None:
        super().__init__(message, next_step="run the command again; finished results come from the store")
        self.request_id = request_id
        self.last_sequence = last_sequence
        self.instance = instance


class RemoteError(ProtocolError):
    """The daemon answered with an `Error`."""

    code = "remote"

    def __init__(self, error: Error) -> None:
        super().__init__(
            error.message, code=error.code, file=error.file, command=error.command, next_step=error.next_step
        )
        self.request_id = error.request_id
