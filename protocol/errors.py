"""What can go wrong between a client and a daemon, each with a stable code and the next step.

Knows nothing of where errors are shown. SPEC.md lists the codes.
"""

from __future__ import annotations

from protocol.messages import Error, RequestId

_NO_REQUEST = RequestId("")


class ProtocolError(Exception):
    """Base. `code` is stable; `message` and `next_step` are for people."""

    code = "protocol"

    def __init__(self, message: str, *, code: str = "", next_step: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step
        if code:
            self.code = code


class WireError(ProtocolError):
    """Frames that are no message, or a message that cannot be frames."""

    code = "bad-message"


class EndpointError(ProtocolError):
    """The runtime folder cannot be used: not ours, open to others, too long a path."""

    code = "runtime-folder"


class NoDaemon(ProtocolError):
    """No daemon lives and none was to be started."""

    code = "no-daemon"


class StartFailed(ProtocolError):
    """A daemon was started and did not answer in time, or ended at once."""

    code = "start-failed"


class TimedOut(ProtocolError):
    """The daemon lives but did not answer in time."""

    code = "timeout"


class VersionMismatch(ProtocolError):
    """The daemon that lives is of another version and busy. The caller works without it."""

    code = "version"


class ConnectionLost(ProtocolError):
    """The daemon went away. Follow `request_id` from `last_sequence` if it is the same `instance` that comes back."""

    code = "connection-lost"

    def __init__(
        self, message: str, *, request_id: RequestId = _NO_REQUEST, last_sequence: int = 0, instance: str = ""
    ) -> None:
        super().__init__(message, next_step="run the command again; what was already built is served from the store")
        self.request_id = request_id
        self.last_sequence = last_sequence
        self.instance = instance


class RemoteError(ProtocolError):
    """The daemon answered with an `Error`."""

    code = "remote"

    def __init__(self, error: Error) -> None:
        super().__init__(error.message, code=error.code, next_step=error.next_step)
        self.file = error.file
        self.command = error.command
        self.request_id = error.request_id
