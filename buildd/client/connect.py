"""Connects a command to this user's daemon, and starts one if wanted.

Knows how a daemon is started, not what it is asked. `status` uses this module: it imports nothing heavy.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from buildd import __version__
from buildd.lazy import put_off

with put_off("json", "random"):
    import zmq  # noqa: F401  # imports both for functions that buildd never calls
from protocol.client import Client, differs, find
from protocol.endpoint import Folder, read_endpoint, runtime_folder
from protocol.errors import VersionMismatch

SERVE_ARGUMENTS = ("-P", "-m", "buildd", "serve")
"""Arguments of the interpreter. -P: a folder `codegen` in the current folder must not be taken for buildd's."""


START_S = 60.0
"""How long a command waits for a daemon that it cannot do without. One whose Python lies on a network file system may
take half a minute."""

GOES_ON_WITHOUT_S = 10.0
"""The same for one that does its work without a daemon, too."""


def connect(
    environ: Mapping[str, str], *, start: bool, timeout_s: float = 10.0, start_s: float = START_S, replace: bool = True
) -> Client:
    """Connect to the daemon; returns a client.

    Args:
        environ: says where the daemon is; a new daemon starts with it.
        start: start a daemon if none runs, and replace one with other code.
        timeout_s: for each answer, in seconds.
        start_s: for the start of a daemon, in seconds. It goes on starting for others when this command does not wait.
        replace: False accepts a daemon with other code if it speaks this version of the protocol: for clients that
            outlive an installation. Two such clients would replace each other's daemon for ever.

    Raises: ProtocolError: EndpointError, NoDaemon, StartFailed, VersionMismatch, TimedOut, ConnectionLost.
    """
    name = f"buildd-cli/{__version__}"
    folder = runtime_folder(environ)
    if not start:
        return Client.connect(environ=environ, timeout_s=timeout_s, name=name, folder=folder)
    digest = _own_digest(folder) if replace else ""

    def begin() -> None:
        from buildd.ui.problems import told_if_slow
        from protocol.autostart import find_or_start

        if not replace and (living := find(folder)) is not None and differs(living, digest):
            raise VersionMismatch(
                f"the daemon (pid {living.pid}, {living.daemon}) speaks another version of the protocol",
                next_step="buildd down, or start this command again",
            )
        with told_if_slow("buildd is starting its daemon"):
            find_or_start(
                (sys.executable, *SERVE_ARGUMENTS),
                folder=folder,
                environ=_without_library(environ),
                timeout_s=start_s,
                package_digest=digest,
                say=lambda line: print(f"buildd: {line}", file=sys.stderr),
            )

    return Client.connect(
        start=begin, environ=environ, timeout_s=timeout_s, name=name, package_digest=digest, folder=folder
    )


def _without_library(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without the library of a `buildd run` around this one: the daemon's compilers are no shims."""
    from buildd.shims.interposition import without_library

    kept = {name: value for name, value in environ.items() if name != "LD_PRELOAD"}
    preload = without_library(environ)
    return kept | ({"LD_PRELOAD": preload} if preload else {})


def _own_digest(folder: Folder) -> str:
    """Digest of this code: taken from the daemon, if it started from these very files and they are untouched."""
    from buildd.identity import package_digest, package_stamp

    living = read_endpoint(folder)
    if living is not None and living.package_stamp and living.package_stamp == package_stamp():
        return living.package_digest
    return package_digest()
