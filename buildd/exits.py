"""The exit statuses of commands, and the exception that ends a command on a signal. Imports nothing."""

from __future__ import annotations

OK, FAILED, USAGE, DAEMON, INTERRUPTED = 0, 1, 2, 3, 130
"""Built; a build failed; wrong usage; the daemon or the store failed; interrupted by Ctrl-C."""
NOT_WARM = 86
"""A proof of a command found a compile that would run. Few programs end with this status by themselves."""


class Interrupted(KeyboardInterrupt):
    """A signal that asks a command to stop. The command treats it as Ctrl-C.

    Args:
        status: the exit status that a shell expects after this signal.
    """

    def __init__(self, status: int) -> None:
        super().__init__()
        self.status = status
