"""The spawner: a small process that starts the daemon's tools, and ends all of them when the daemon is gone.

Runs as a script (`python -I -S spawner.py`), standard library only, and stays small: `ru_maxrss` of a child starts at
the peak of the process that forked it. It is the subreaper of all that it starts, so that descendants which left their
group or session come back to it when their parent ends. Knows no build, no timeout and no output: it gets ready-made
file descriptors, and reports which tool started, which one ended with which usage, and when the last process of a job
is gone.

The daemon's side is `spawner_client`; both speak `spawner_wire`.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    # Appended last, so that no module of buildd hides one of the standard library.
    sys.path.append(os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..")))

import ctypes
import errno
import select
import signal
import socket
import struct
import time

from buildd.host.proc import children_of, descendants_of, stat_of
from buildd.processes.spawner_wire import (
    EXITED,
    FAILED,
    GO_ON,
    GONE,
    HOLD,
    KILL,
    LAUNCH,
    REPLY,
    REQUEST,
    SPARE,
    STARTED,
    WARM,
    unpack_spec,
)
from buildd.processes.warm_workers import Hosts, key_of

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
HANDLED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE)
OOM_SCORE_ADJ = b"500"
"""The kernel takes a tool before the daemon when memory ends."""


def _kill(pid: int, signal_: int) -> None:
    try:
        os.kill(pid, signal_)
    except (ProcessLookupError, PermissionError):  # the spawner may not end a setuid tool
        pass


class _Job:
    """A tool from its fork until its last descendant is gone."""

    __slots__ = ("kill_at", "number", "pid", "reaped", "sessions", "started_ns", "terminated")

    def __init__(self, number: int, pid: int) -> None:
        self.number = number
        self.pid = pid
        self.started_ns = time.monotonic_ns()
        self.sessions = {pid}
        """Sessions of the job: its own, and those that its descendants were seen to open."""
        self.reaped = False
        self.terminated: set[int] = set()
        """Processes outside its group that were sent TERM already."""
        self.kill_at: float | None = None
        """When TERM becomes KILL (monotonic, s); None while the job is not being ended."""


class Spawner:
    """The loop. One thread; a child's pid cannot be reused before this loop has reaped it."""

    def __init__(self, channel: socket.socket, grace_s: float) -> None:
        channel.set_inheritable(False)  # a tool that holds it would hide the spawner's death from the daemon
        self.channel = channel
        self.grace_s = grace_s
        self.jobs: dict[int, _Job] = {}
        self.by_pid: dict[int, _Job] = {}
        """Invariant: exactly the jobs whose tool is not reaped yet."""
        self.strays: dict[int, set[int]] = {}
        """Orphans in an unknown session -> numbers of the jobs that may have started them."""
        self.pid = os.getpid()
        self.parent = os.getppid()
        self.null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.oom_file = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
            self.oom_score = os.read(self.oom_file, 16)
        except OSError:
            self.oom_file, self.oom_score = -1, b"0"
        libc = ctypes.CDLL(None)
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        # EOF is the usual sign of the daemon's death; this covers a socket end that leaked into a fork of it.
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        self.poll = select.poll()
        self.open = True
        wake, notify = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.wake = wake
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        for number in HANDLED:
            signal.signal(number, _wake if number in (signal.SIGCHLD, signal.SIGTERM) else signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        signal.set_wakeup_fd(notify, warn_on_full_buffer=False)
        self.poll.register(wake, select.POLLIN)
        self.poll.register(channel, select.POLLIN)
        self.hosts = Hosts(self.poll, self.null)

    def run(self) -> None:
        """Serve until the daemon is gone and every process with it."""
        while self.open or self.jobs or children_of(self.pid):
            for descriptor, _ in self.poll.poll(self._timeout_ms()):
                if descriptor == self.wake:
                    os.read(self.wake, 4096)
                    if os.getppid() != self.parent:
                        self._hang_up()
                elif self.hosts.owns(descriptor):
                    self._done(self.hosts.receive(descriptor))
                elif descriptor == self.channel.fileno():  # not one that was closed a moment ago
                    self._receive()
            self._reap()
            self._end_overdue()

    def _timeout_ms(self) -> int | None:
        due = [job.kill_at for job in self.jobs.values() if job.kill_at is not None]
        if not due:
            return None if self.open else 5
        left_s = min(due) - time.monotonic()
        # Past the deadline the spawner looks for the last processes often: children of a killed process arrive here. A
        # process that is there a second later hangs in the kernel (a dead NFS server) and is looked for less often.
        return int(left_s * 1000) + 1 if left_s > 0 else 5 if left_s > -1 else 250

    # ---------------------------------------------------------------- requests

    def _receive(self) -> None:
        try:
            data, control, flags, _ = self.channel.recvmsg(64, 256, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            data, control, flags = b"", [], 0
        if not data:
            self._hang_up()
            return
        descriptors = [
            number for _, _, raw in control for (number,) in struct.iter_unpack("=i", raw[: len(raw) // 4 * 4])
        ]
        kind, number, grace_s, umask, with_input = REQUEST.unpack(data)
        try:
            if flags & socket.MSG_CTRUNC:  # the limit of open files; descriptors that did arrive are closed below
                self._send(FAILED, number, 0, errno.EMFILE)
            elif kind in (LAUNCH, WARM):
                self._launch(number, umask, descriptors, bool(with_input), warm=kind == WARM)
            elif kind == SPARE:
                self.hosts.spare()
            elif kind == KILL and number in self.jobs:
                self._terminate(self.jobs[number], grace_s)
            elif kind in (HOLD, GO_ON) and number in self.jobs and self.jobs[number].kill_at is None:
                self._signal(self.jobs[number], signal.SIGSTOP if kind == HOLD else signal.SIGCONT)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _launch(self, number: int, umask: int, descriptors: list[int], with_input: bool, *, warm: bool) -> None:
        specification, output, errors = descriptors[:3]
        data = bytearray()
        while chunk := os.pread(specification, 1 << 20, len(data)):
            data += chunk
        cwd, argv, environment = unpack_spec(bytes(data))
        variables = dict(item.split(b"=", 1) for item in environment)
        host = key_of(argv.pop(0), argv, variables) if warm else None
        pid = 0
        stage = 1
        try:
            # posix_spawn has no action for these two; they are inherited. It is half a millisecond cheaper than fork
            # even from this small process, and reports why exec failed.
            os.umask(umask)
            os.chdir(cwd)
            stage = 2
            self._set_oom_score(OOM_SCORE_ADJ)  # inherited as well; set afterwards, a quick tool's children miss it
            if host is not None:
                pid = self.hosts.fork(host, umask, descriptors, with_input=with_input)
            pid = pid or os.posix_spawn(
                _find(argv[0], variables),
                argv,
                variables,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, descriptors[3] if with_input else self.null, 0),
                    (os.POSIX_SPAWN_DUP2, output, 1),
                    (os.POSIX_SPAWN_DUP2, errors, 2),
                ],
                setsid=True,
                setsigmask=(),
                setsigdef=HANDLED,
            )
        except OSError as error:
            self._send(FAILED, number, 0, (error.errno or errno.EIO) | stage << 16)
            return
        except ValueError:  # an empty name or one with "="
            self._send(FAILED, number, 0, errno.EINVAL)
            return
        else:
            if host is not None:
                os.chdir("/")
                self.hosts.want(host)
        finally:
            self._set_oom_score(self.oom_score)
            os.chdir("/")  # holds no file system busy
        self.jobs[number] = self.by_pid[pid] = _Job(number, pid)
        self._send(STARTED, number, pid)

    def _set_oom_score(self, score: bytes) -> None:
        try:
            os.pwrite(self.oom_file, score, 0)
        except OSError:  # not there, or not allowed
            pass

    def _send(
        self,
        kind: int,
        number: int,
        pid: int = 0,
        status: int = 0,
        usage: tuple[int, float, float, int] = (0, 0.0, 0.0, 0),
    ) -> None:
        if not self.open:
            return
        try:
            self.channel.sendall(REPLY.pack(kind, number, pid, status, *usage))
        except OSError:
            self._hang_up()

    def _hang_up(self) -> None:
        """End everything, because the daemon is gone; then `run` returns."""
        if self.open:
            self.open = False
            self.poll.unregister(self.channel)
            self.channel.close()
            self.hosts.close()
            for job in list(self.jobs.values()):
                self._terminate(job, self.grace_s)

    # ---------------------------------------------------------------- ends

    def _terminate(self, job: _Job, grace_s: float) -> None:
        deadline = time.monotonic() + grace_s
        job.kill_at = deadline if job.kill_at is None else min(job.kill_at, deadline)
        self._signal(job, signal.SIGTERM)
        self._signal(job, signal.SIGCONT)  # a process that is held would not see it

    def _signal(self, job: _Job, signal_: int) -> None:
        """Send a signal to all processes of a job: its group, descendants elsewhere, orphans of its sessions."""
        targets = [pid for pid, session in self._orphans().items() if session in job.sessions]
        targets += [below for pid in targets for below in descendants_of(pid)]
        if not job.reaped:
            try:
                os.killpg(job.pid, signal_)
            except (ProcessLookupError, PermissionError):  # all of the group is setuid
                pass
            targets += descendants_of(job.pid)
        for pid in targets:
            if (stat := stat_of(pid)) is None:
                continue
            job.sessions.add(stat[1])
            if signal_ != signal.SIGTERM or (pid not in job.terminated and not self._in_group(pid, job)):
                _kill(pid, signal_)
            if signal_ == signal.SIGTERM:
                job.terminated.add(pid)

    def _in_group(self, pid: int, job: _Job) -> bool:
        try:
            return not job.reaped and os.getpgid(pid) == job.pid
        except ProcessLookupError:
            return True

    def _orphans(self) -> dict[int, int]:
        """Processes that became the spawner's children when their parent ended -> their session."""
        found = {}
        for pid in children_of(self.pid):
            if pid not in self.by_pid and pid not in self.hosts.pids and (stat := stat_of(pid)) is not None:
                found[pid] = stat[1]
        return found

    def _done(self, told: tuple[int, int, float, float] | None) -> None:
        """Report a job that has ended in a process which goes on for another job."""
        if told is None:
            return
        pid, peak_bytes, user_s, system_s = told
        job = self.by_pid.get(pid)
        # A fork gets no other job if it is to be ended, or has left processes behind.
        if job is None or job.kill_at is not None or pid in self._orphans().values():
            self.hosts.end(pid)
            return
        del self.by_pid[pid], self.jobs[job.number]
        self.hosts.rest(pid)
        self._send(EXITED, job.number, pid, 0, (peak_bytes, user_s, system_s, time.monotonic_ns() - job.started_ns))
        self._send(GONE, job.number)

    def _reap(self) -> None:
        """Collect every dead child, report tools that ended, and look at the orphans."""
        reaped = False
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            reaped = True
            self.strays.pop(pid, None)
            user_s, system_s = self.hosts.own(pid, usage.ru_utime, usage.ru_stime)
            self.hosts.reaped(pid)
            job = self.by_pid.pop(pid, None)
            if job is None:
                continue
            wall_ns = time.monotonic_ns() - job.started_ns
            job.reaped = True
            figures = (usage.ru_maxrss * 1024, user_s, system_s, wall_ns)
            self._send(EXITED, job.number, pid, status, figures)
        if not reaped:
            return
        orphans = self._orphans()
        self._attribute(orphans)
        sessions = set(orphans.values())
        for job in [job for job in self.jobs.values() if job.reaped and not job.sessions & sessions]:
            del self.jobs[job.number]
            self._send(GONE, job.number)

    def _attribute(self, orphans: dict[int, int]) -> None:
        """Assign orphans in sessions of their own to the last job that may have started them.

        A reparented process does not show who started it. It may belong to any job that existed when it was first seen;
        as the tools of those jobs end one by one, the last job takes it.
        """
        known = set().union(*(job.sessions for job in self.jobs.values()))
        for pid, session in orphans.items():
            if session in known:
                continue
            owners = self.strays.setdefault(pid, set(self.jobs))
            owners &= self.jobs.keys()
            if any(not self.jobs[number].reaped for number in owners):
                continue
            del self.strays[pid]
            if owners:
                self.jobs[max(owners)].sessions.add(session)
            else:
                _kill(pid, signal.SIGKILL)

    def _end_overdue(self) -> None:
        now = time.monotonic()
        for job in self.jobs.values():
            if job.kill_at is not None and job.kill_at <= now:
                self._signal(job, signal.SIGKILL)
        if not self.open and not self.jobs:
            for pid in children_of(self.pid):
                _kill(pid, signal.SIGKILL)


def _wake(number: int, frame: object) -> None:
    """Do nothing: the wake-up descriptor ends the poll."""


def _find(program: bytes, variables: dict[bytes, bytes]) -> bytes:
    """The path of a program by the tool's own PATH, never by the daemon's."""
    if b"/" in program:
        return program
    for folder in variables.get(b"PATH", b"/usr/bin:/bin").split(b":"):
        path = os.path.join(folder or b".", program)
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            return path
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


if __name__ == "__main__":
    os.chdir("/")
    Spawner(socket.socket(fileno=int(sys.argv[1])), float(sys.argv[2])).run()
