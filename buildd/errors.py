"""The errors of the daemon side. A wrong request is `codegen.errors.RequestError`."""

from __future__ import annotations

from protocol.problem import Problem


class BuilddError(Problem):
    """Base of errors in the daemon, the store or a tool's process."""


class StoreError(BuilddError):
    """The store failed: it is unreadable, read-only or full."""

    code = "store"


class NoSuchFile(StoreError):
    """The user named a file that cannot be read."""

    code = "no-such-file"
    is_usage = True


class StoreTooNew(StoreError):
    """A newer version of buildd wrote the store."""

    code = "store-too-new"


class StoreFull(StoreError):
    """No space left on the store's or the output's disk."""

    code = "disk-full"


class RunnerError(BuilddError):
    """A tool could not be started at all."""

    code = "runner"


class DaemonError(BuilddError):
    """The daemon could not be reached, started or understood."""

    code = "daemon"
