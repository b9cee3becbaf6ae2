"""Processes as /proc lists them: parents, children, start times.

Standard library only: the spawner imports it. Knows no job.
"""

from __future__ import annotations

import os


def children_of(pid: int) -> list[int]:
    """Direct children of all threads of a process; empty when it is gone.

    /proc/PID/task/TID/children needs CONFIG_PROC_CHILDREN; without it every stat below /proc is read.
    """
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            found.extend(map(int, _read(f"/proc/{pid}/task/{thread}/children").split()))
    except FileNotFoundError as error:
        if str(error.filename).endswith("/children") and os.path.exists(f"/proc/{pid}"):
            return [child for child in all_pids() if (stat := stat_of(child)) is not None and stat[0] == pid]
    except ProcessLookupError:
        pass
    return found


def all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def stat_of(pid: int) -> tuple[int, int, int] | None:
    """(parent, session, start in clock ticks since boot) of a process; None when it is gone or a zombie."""
    try:
        # The name in parentheses may hold spaces and parentheses itself.
        fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    if fields[0] in (b"Z", b"X"):
        return None
    return int(fields[1]), int(fields[3]), int(fields[19])


def is_group_alive(group: int) -> bool:
    """Whether a process group has a process that is not a zombie."""
    for pid in all_pids():
        try:
            fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[2]) == group and fields[0] not in (b"Z", b"X"):
            return True
    return False


def descendants_of(pid: int) -> list[int]:
    """All processes below one, parents before children."""
    found = children_of(pid)
    for child in found:  # grows while it is walked
        found.extend(children_of(child))
    return found


def neighbours() -> tuple[bool, bool]:
    """Whether other processes than this one and those below it are in its mount namespace, and whether some are in
    another one. Those of other users cannot be told, as a rule."""
    inside = elsewhere = False
    for pid in {*all_pids()} - {os.getpid(), *descendants_of(os.getpid())}:
        try:
            is_inside = os.path.samefile("/proc/self/ns/mnt", f"/proc/{pid}/ns/mnt")
        except OSError:
            continue
        inside, elsewhere = inside or is_inside, elsewhere or not is_inside
    return inside, elsewhere


def _read(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 65536)
    finally:
        os.close(descriptor)


def peer_uid(port: int, server_port: int) -> int | None:
    """The user of the process that has connected to a port of this machine (IPv4); None if the kernel
    does not list the connection.

    Args:
        port: of that process's end.
        server_port: of the other end.
    """
    try:
        with open("/proc/net/tcp", encoding="ascii") as file:
            lines = file.readlines()[1:]
    except OSError:
        return None
    for line in lines:
        # "  0: 0100007F:A1B2 0100007F:18F8 01 00000000:00000000 00:00000000 00000000  1000 ..."
        words = line.split()
        if int(words[1].partition(":")[2], 16) == port and int(words[2].partition(":")[2], 16) == server_port:
            return int(words[7])
    return None
