"""Why a job failed, in words: what happened, and what to do next.

Knows how processes end; does not know what follows from a failure (`state`).
"""

from __future__ import annotations

import os

from buildd.builds.active_build import ActiveBuild
from buildd.builds.products import Failure
from buildd.errors import BuilddError
from buildd.processes.launch import Exit
from buildd.state.events import Ending
from codegen.plan import Action
from protocol import messages as m
from protocol.problem import message_and_step

_NO_SPACE = b"No space left on device"


LITTLE_BYTES = 16 << 20
LITTLE_FILES = 16
"""A disk with less room is taken for the reason of a failure: most tools do not say that it was full, and some have
removed the file that filled it."""


def storage_failure(error: OSError | BuilddError, private: str = "") -> Failure:
    """The failure of a job that could not use the disk or the store.

    Args:
        private: the job's folder; the place of an error that names none.
    """
    if isinstance(error, OSError) and error.filename is None and private:
        error.filename = private
    return Failure(m.FailureKind.STORE, *message_and_step(error))


def tool_failure(build: ActiveBuild, action: Action, exit: Exit, private: str) -> tuple[Ending, Failure]:
    """How a job ended whose tool did not end well, and why.

    Args:
        private: the job's folder.
    """
    if exit.timed_out:
        return Ending.FAILED, Failure(
            m.FailureKind.TIMEOUT,
            f"ended after {action.timeout_s:g} s",
            "raise timeout_s of the target, or split the source",
        )
    if exit.out_of_memory:
        used = f"at {exit.timing.peak_rss_bytes / 2**30:.1f} GiB, running alone"
        words, next_step = f"ran out of memory {used}", "give the machine or the cgroup more memory, or "
        if exit.was_killed:
            # Any other process of the user's may have sent the signal.
            words = f"{action.kind} was killed by signal 9 twice, {used}: the kernel does so where memory is short"
            next_step = "build again if another program killed it; else " + next_step
        return Ending.OUT_OF_MEMORY, Failure(
            m.FailureKind.OUT_OF_MEMORY, words, next_step + "compile for fewer architectures at once"
        )
    if exit.lost:
        return Ending.FAILED, Failure(m.FailureKind.KILLED, "the process that ran it was killed", "build again")
    if exit.signal:
        words = f"{action.kind} was killed by signal {exit.signal}"
        return Ending.FAILED, Failure(m.FailureKind.KILLED, words, "build again")
    if not os.path.isdir(private):
        words = f"the folder that {action.kind} wrote to was removed meanwhile"
        return Ending.FAILED, Failure(m.FailureKind.STORE, words, "build again")
    words, next_step = f"{action.kind} ended with status {exit.status}", ""
    room = little_room(private)
    if room or _NO_SPACE in exit.stderr:
        # Tools write their outputs and temporary files there; what is good goes to the project from there.
        words += f": the disk of {private} {room or 'was full'}"
        return Ending.FAILED, Failure(
            m.FailureKind.STORE, words, "free some space there, or set TMPDIR to another disk"
        )
    if gone := next((path for path in action.inputs if not os.path.exists(build.outputs.where(path))), None):
        next_step = f"{gone} is gone: restore it, or build again where it is made"
    return Ending.FAILED, Failure(m.FailureKind.COMPILE_ERROR, words, next_step)


def little_room(folder: str) -> str:
    """How little room a folder's disk has left, in words; empty if there is enough, or it cannot be known."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return ""
    free_bytes = disk.f_bavail * disk.f_frsize
    if free_bytes < LITTLE_BYTES:
        return f"has only {free_bytes / 2**20:.1f} MiB left"
    if disk.f_files and disk.f_favail < LITTLE_FILES:
        return f"has room for only {disk.f_favail} more files"
    return ""
