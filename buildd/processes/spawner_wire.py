"""The wire between the daemon and the process that starts its tools (`spawner`): fixed structs, one a packet.

A SEQPACKET socket pair carries the packets. Fields without a bound (argv, environment) are in a memfd that travels with
the packet. Standard library only: the spawner imports this too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

REQUEST = struct.Struct("=BIdIB")
"""kind, job, grace (s), umask, 1 if a stdin descriptor is among those passed."""
REPLY = struct.Struct("=BIiiqddq")
"""kind, job, pid, status or errno, ru_maxrss (bytes), user (s), system (s), wall (ns)."""

LAUNCH, KILL, WARM, SPARE, HOLD, GO_ON = 1, 2, 3, 4, 5, 6
"""Kinds of requests. WARM is a launch that may be forked from a process with imported packages (`warm_workers`): its
argv begins with the identity of these packages. SPARE lets such processes end. HOLD stops all processes of a job until
GO_ON."""
STARTED, FAILED, EXITED, GONE = 1, 2, 3, 4
STAGES = ("prepare", "chdir", "exec")
"""The stage of a launch that failed; its number is the upper half of FAILED's status."""


def pack_spec(cwd: bytes, argv: Iterable[bytes], environment: Iterable[bytes]) -> bytes:
    """The unbounded part of a launch. `environment` holds NAME=value strings.

    NUL separates the fields, because it can occur in none of them. An empty field is between the three parts, so the
    fields of argv and of the environment begin with a dot.
    """
    return b"\0".join((cwd, *(b"." + item for item in argv), b"", *(b"." + item for item in environment)))


def unpack_spec(data: bytes) -> tuple[bytes, list[bytes], list[bytes]]:
    cwd, *fields = data.split(b"\0")
    middle = fields.index(b"")
    return cwd, [item[1:] for item in fields[:middle]], [item[1:] for item in fields[middle + 1 :]]
