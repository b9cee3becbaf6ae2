"""The processes that a tool starts on a node: which there are, how much memory they take, and the end of all of them.

Ray sends this module to the nodes, which have no buildd: it imports nothing outside the standard library. Knows no job.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess

_PR_SET_CHILD_SUBREAPER = 36


def adopt() -> frozenset[int]:
    """Let what a tool leaves behind become a child of this process; returns the children that it has now."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    return frozenset(children(os.getpid()))


def end(tool: subprocess.Popen[bytes], before: frozenset[int]) -> None:
    """Kill a tool and all that it has started, and close its pipes.

    Args:
        before: children that this process had when the tool was started.
    """
    while left := [pid for pid in children(os.getpid()) if pid not in before and pid != tool.pid]:
        for pid in [*left, *(pid for each in left for pid in descendants(each))]:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        for pid in left:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
    if tool.returncode is None:
        for pid in (*descendants(tool.pid), tool.pid):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        tool.wait()
        end(tool, before)
    for stream in (tool.stdin, tool.stdout, tool.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


def children(pid: int) -> list[int]:
    """The processes that a process has started, and those that were left to it."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                found += [int(word) for word in file.read().split()]
    return found


def descendants(pid: int) -> list[int]:
    """All descendants of a process."""
    found: list[int] = []
    todo = [pid]
    while todo:
        several = children(todo[0])
        found += several
        todo = [*todo[1:], *several]
    return found


def memory_bytes(pid: int) -> int:
    """A process's resident memory."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0
