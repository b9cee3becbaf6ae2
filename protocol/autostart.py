"""Starts a daemon if none runs; any number of clients at once end up with exactly one.

Does not know what a daemon is: the caller gives the command. The daemons' own lock decides which one wins; a client
only waits until the endpoint file names a process that lives and answers.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from protocol.client import Client, difference, differs, find, mismatch
from protocol.endpoint import DaemonLock, Endpoint, Folder, runtime_folder
from protocol.errors import ConnectionLost, StartFailed, TimedOut
from protocol.problem import in_one_line
from protocol.session import Route

_POLL_S = 0.01
_LOG_TAIL_BYTES = 2000
_LOG_BYTES = 8 << 20
_ATTEMPTS = 3


def find_or_start(
    argv: Sequence[str],
    *,
    folder: Folder | None = None,
    environ: Mapping[str, str] = os.environ,
    timeout_s: float = 10.0,
    package_digest: str = "",
    say: Callable[[str], None] = lambda line: None,
) -> Endpoint:
    """The endpoint of a daemon that answers.

    Args:
        argv: command that becomes a daemon in `folder`: takes the lock, or exits with status 0 if another has it,
            then writes the endpoint file. argv[0] is a path or a name on PATH.
        environ: the environment of the daemon; also determines the runtime folder.
        timeout_s: for everything together, in seconds.
        package_digest: digest of the daemon's code as the caller has it; a daemon with another one is replaced. If it
            is busy, it finishes its requests, and the new one starts beside it.
        say: is called with one line for people when that happens.

    Raises:
        VersionMismatch: a daemon of another version runs and does not give way.
        StartFailed: with the end of the daemon's log.
        EndpointError: the runtime folder cannot be used.
    """
    folder = folder or runtime_folder(environ)
    deadline = time.monotonic() + timeout_s
    living = find(folder)
    if living is not None and differs(living, package_digest):
        _replace(living, folder, deadline, say)
        living = None
    if living is not None and _answers(living, deadline):
        return living
    for _ in range(_ATTEMPTS):
        pid = spawn(argv, folder, environ)
        endpoint = _await_answer(folder, pid, deadline)
        if endpoint is not None:
            if differs(endpoint, package_digest):
                raise mismatch(endpoint)
            return endpoint
        if time.monotonic() >= deadline:
            break
        # The new daemon lost the lock to one that was about to end: now none is left, so try again.
    raise StartFailed(f"no daemon answered within {timeout_s:.0f} s{_tail(folder)}", next_step=f"see {folder.log_file}")


def spawn(argv: Sequence[str], folder: Folder, environ: Mapping[str, str]) -> int:
    """Start `argv` detached from this terminal and this process's files, output to the folder's log; its pid.

    Raises StartFailed if there is no such program.
    """
    program = shutil.which(argv[0], path=environ.get("PATH"))
    if program is None:
        raise StartFailed(f"no program {argv[0]!r}", next_step="install buildd on this machine")
    _bound_log(folder)
    log = os.open(folder.log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        actions: list[tuple[int, int, str, int, int] | tuple[int, int, int]] = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, log, 1),
            (os.POSIX_SPAWN_DUP2, log, 2),
        ]
        with _kept_back():
            # Not subprocess: its Popen wants to outlive the child, and this child is to outlive this process.
            return os.posix_spawn(program, list(argv), dict(environ), file_actions=actions, setsid=True)
    except OSError as error:
        raise StartFailed(f"the daemon could not be started: {in_one_line(error)}") from error
    finally:
        os.close(log)


@contextmanager
def _kept_back() -> Iterator[None]:
    """Keep this process's open files from a child: a pipe of the caller (make's jobserver, a shell's `$(...)`) that the
    daemon held would never be closed.

    Not by POSIX_SPAWN_CLOSE, which refuses descriptors above the limit of open files; a shell leaves 255 open.
    """
    descriptors = _inheritable()
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    try:
        yield
    finally:
        for descriptor in descriptors:
            os.set_inheritable(descriptor, True)


def _inheritable() -> list[int]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        try:
            if descriptor > 2 and os.get_inheritable(descriptor):
                found.append(descriptor)
        except OSError:
            pass  # the listing's own
    return found


def _bound_log(folder: Folder) -> None:
    """Rotate a large log: one old log is kept beside the current one."""
    try:
        if folder.log_file.stat().st_size > _LOG_BYTES:
            os.replace(folder.log_file, folder.log_file.with_suffix(".log.1"))
    except FileNotFoundError:
        pass


def _await_answer(folder: Folder, pid: int, deadline: float) -> Endpoint | None:
    """The endpoint that answers, of the new daemon or a faster one; None if the new one ended and there is no other."""
    running = True
    ended_at = 0.0
    while time.monotonic() < deadline:
        endpoint = find(folder)
        if endpoint is not None and _answers(endpoint, deadline):
            return endpoint
        if running:
            status = _ended(pid)
            if status is not None:
                running, ended_at = False, time.monotonic()
                if status != 0:
                    raise StartFailed(
                        f"the daemon ended with status {status} at its start{_tail(folder)}",
                        next_step=f"see {folder.log_file}",
                    )
        elif time.monotonic() - ended_at > 1.0 and not DaemonLock.is_held(folder):
            return None
        time.sleep(_POLL_S)
    return None


def _ended(pid: int) -> int | None:
    """Exit status of this process's child; None while it runs."""
    try:
        done, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return 0  # reaped elsewhere in this process
    return os.waitstatus_to_exitcode(status) if done else None


def _answers(endpoint: Endpoint, deadline: float) -> bool:
    with Client(Route.local(endpoint), timeout_s=max(0.1, deadline - time.monotonic())) as client:
        try:
            client.ping()
        except (ConnectionLost, TimedOut):
            return False
    return True


def _replace(living: Endpoint, folder: Folder, deadline: float, say: Callable[[str], None]) -> None:
    """Ask a daemon of another version to finish its requests and take nothing new; wait until its place is free.

    Raises VersionMismatch if it stays.
    """
    try:
        with Client(Route.local(living), timeout_s=max(0.1, deadline - time.monotonic())) as client:
            requests = client.status().requests
            if requests:
                say(
                    f"{difference(living)}; it finishes its "
                    f"{requests} running request{'s' if requests > 1 else ''}, a new one starts beside it"
                )
            client.drain()
    except ConnectionLost:
        return
    except TimedOut as error:
        raise mismatch(living) from error
    # A draining daemon gives up its lock and its endpoint file at once; a very old one only when it ends.
    while (now := find(folder)) is not None and now.instance == living.instance:
        if time.monotonic() >= deadline:
            raise mismatch(living)
        time.sleep(_POLL_S)


def _tail(folder: Folder) -> str:
    try:
        text = folder.log_file.read_bytes()[-_LOG_TAIL_BYTES:].decode("utf-8", "replace").strip()
    except OSError:
        return ""
    return f"; its log ends:\n{text}" if text else ""
