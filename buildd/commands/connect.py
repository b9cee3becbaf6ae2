"""Connects a command to this user's daemon, starting one where that is wanted.

Knows how a daemon is started, nothing of what is asked of it. `status` comes by here: nothing heavy is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from buildd import __version__
from protocol.client import Client

SERVE_ARGUMENTS = ("-P", "-m", "buildd", "serve")
"""After the interpreter. -P: a folder `codegen` in the user's current one must not be taken for ours."""


def connect(environ: Mapping[str, str], *, start: bool, timeout_s: float = 10.0) -> Client:
    """A client of the daemon.

    Args:
        environ: says where the daemon lives; a new one starts with it.
        start: start a daemon where none lives, and replace an idle one of another version.
        timeout_s: for the start and for each answer, in seconds.

    Raises: ProtocolError: EndpointError, NoDaemon, StartFailed, VersionMismatch, TimedOut, ConnectionLost.
    """
    name = f"buildd-cli/{__version__}"
    if not start:
        return Client.connect(environ=environ, timeout_s=timeout_s, name=name)
    from buildd.identity import package_digest

    digest = package_digest()

    def begin() -> None:
        from protocol.autostart import find_or_start

        find_or_start(
            (sys.executable, *SERVE_ARGUMENTS),
            environ=environ,
            timeout_s=timeout_s,
            package_digest=digest,
            say=lambda line: print(f"buildd: {line}", file=sys.stderr),
        )

    return Client.connect(start=begin, environ=environ, timeout_s=timeout_s, name=name, package_digest=digest)
