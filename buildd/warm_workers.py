"""Processes that have a worker's packages imported, and fork themselves for jobs: kept by the spawner.

Standard library only, like the spawner that it runs in. Knows the words of the other side (`worker_host`), no package
and no output. A job that finds no such process ready is started as ever, and one is started for those that follow: so
nobody ever waits for an import that would not have been waited for anyway. A fork that has done its job well may say
that it can take another one; it is the first to be asked then.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Mapping

HOST = os.path.join(os.path.dirname(os.path.abspath(__file__)), "worker_host.py")
JOB = struct.Struct("=IB")
"""umask, 1 if a stdin descriptor is among those passed."""
FORKED = struct.Struct("=i")
"""pid of a job, which has a session of its own and comes to the spawner when it is let go on."""
DONE = struct.Struct("=qdd")
"""What a fork says at the end of a job when it can take another one: peak (bytes), and user and system time (s) of all
its jobs so far."""
READY = b"ready"
GO, TAKEN = b"g", b"t"
PRIVATE = b"TMPDIR"
"""The one variable in which jobs of one process may differ."""
MOST = 2
"""How many are kept: one with torch holds 400 MB."""
AGAIN_S = 60.0
"""After this long another one is tried in place of one that could not be used, or does not answer."""
FORK_S = 2.0
"""A job waits so long for its process; the spawner does nothing else meanwhile. One that lives and has not answered may
be starved: the job is started as ever, and the process is taken back when it does answer."""
IDLE_S = 300.0
"""One that nobody asks for so long ends by itself."""

Key = tuple[bytes, bytes, bytes, tuple[tuple[bytes, bytes], ...]]
"""What it was made of, interpreter, script, environment: jobs with another one get another process."""


def key_of(identity: bytes, argv: list[bytes], variables: Mapping[bytes, bytes]) -> Key:
    """The process that a job can come from."""
    return identity, argv[0], argv[1], tuple(sorted(item for item in variables.items() if item[0] != PRIVATE))


class _Host:
    __slots__ = ("asked_s", "channel", "pid", "ready", "used_s")

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self.pid = pid
        self.channel = channel
        self.ready = False
        self.asked_s = 0.0
        """Since when an answer is due that nobody waits for any more; 0 where none is."""
        self.used_s = time.monotonic()


class _Fork:
    """A process that was forked for a job, and may take others, until its channel ends."""

    __slots__ = ("channel", "idle", "key", "pid", "told_s")

    def __init__(self, pid: int, key: Key, channel: socket.socket) -> None:
        self.pid = pid
        self.key = key
        self.channel = channel
        self.idle = False
        self.told_s = (0.0, 0.0)
        """User and system time of its jobs that have ended."""


class Hosts:
    """Those that there are.

    Args:
        poll: their channels are registered with it; `owns` and `receive` take what it tells.
        null: a descriptor of /dev/null.
    """

    def __init__(self, poll: select.poll, null: int) -> None:
        self.pids: set[int] = set()
        """Of all that are not reaped yet, and of forks without a job."""
        self._poll = poll
        self._null = null
        self._hosts: dict[Key, _Host] = {}
        self._forks: dict[int, _Fork] = {}
        """By the descriptor of its channel."""
        self._spent_s: dict[int, tuple[float, float]] = {}
        """Pid of a fork that is not reaped -> user and system time of its former jobs."""
        self._failed: dict[Key, float] = {}
        """When one that could not be used ended (monotonic, s)."""

    def owns(self, descriptor: int) -> bool:
        """Whether a descriptor is the channel of one of them, or of a fork."""
        return descriptor in self._forks or any(host.channel.fileno() == descriptor for host in self._hosts.values())

    def receive(self, descriptor: int) -> tuple[int, int, float, float] | None:
        """One has said something, or is gone.

        Returns:
            Of a fork that has done its job and can take another one: pid, peak (bytes), user and system time (s) of
            that job. `rest` or `end` says what becomes of it.
        """
        fork = self._forks.get(descriptor)
        if fork is not None:
            try:
                said = fork.channel.recv(DONE.size)
            except BlockingIOError:  # it was said of a channel that had this descriptor before
                return None
            except OSError:
                said = b""
            if len(said) != DONE.size or fork.idle:
                self._close(fork)
                return None
            peak_bytes, *told_s = DONE.unpack(said)
            fork.told_s = (told_s[0], told_s[1])
            return fork.pid, peak_bytes, *self.own(fork.pid, *fork.told_s)
        key, host = next(item for item in self._hosts.items() if item[1].channel.fileno() == descriptor)
        said = self._heard(host, 64)
        if said == READY or (host.asked_s and len(said) == FORKED.size):
            # The job of a late answer was started otherwise: nobody lets it go on, so it ends.
            host.ready, host.asked_s = True, 0.0
        else:
            self._drop(key)
            if not host.asked_s:
                self._failed[key] = time.monotonic()
        return None

    def rest(self, pid: int) -> None:
        """A fork has no job any more, and waits for one."""
        for fork in self._of(pid):
            fork.idle, self._spent_s[pid] = True, fork.told_s
            self.pids.add(pid)

    def end(self, pid: int) -> None:
        """A fork gets no other job: it ends, and that is the end of its job."""
        for fork in self._of(pid):
            self._close(fork)

    def own(self, pid: int, user_s: float, system_s: float) -> tuple[float, float]:
        """What a process has used without what it used for former jobs (s)."""
        former_s = self._spent_s.get(pid, (0.0, 0.0))
        return max(0.0, user_s - former_s[0]), max(0.0, system_s - former_s[1])

    def fork(self, key: Key, umask: int, descriptors: list[int], *, with_input: bool) -> int:
        """A new job's pid; 0 where there is no process for it that can be used now.

        Args:
            descriptors: specification, stdout, stderr and perhaps stdin, as the spawner got them.
        """
        host = self._hosts.get(key)
        if host is None or not host.ready:
            return 0
        job = JOB.pack(umask, with_input)
        for fork in [fork for fork in self._forks.values() if fork.idle and fork.key == key]:
            if self._takes(fork, job, descriptors):
                return fork.pid
        # It begins once we know of it; where we are gone by then, it ends.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            socket.send_fds(host.channel, [job], [theirs.fileno(), *descriptors])
            watch = select.poll()
            watch.register(host.channel, select.POLLIN)
            if not watch.poll(FORK_S * 1000):
                host.ready, host.asked_s = False, time.monotonic()
                return 0
            answer = self._heard(host, FORKED.size)
            if len(answer) != FORKED.size:
                # Its packages have changed, or something is wrong with it: another one is made.
                self._drop(key)
                return 0
            (pid,) = FORKED.unpack(answer)
            ours.send(GO)
            ours.setblocking(False)
            self._forks[ours.fileno()] = _Fork(int(pid), key, ours)
            self._poll.register(ours, select.POLLIN)
        except OSError:
            self._drop(key)
            return 0
        finally:
            theirs.close()
            if ours.fileno() not in self._forks:
                ours.close()
        host.used_s = time.monotonic()
        return int(pid)

    def _takes(self, fork: _Fork, job: bytes, descriptors: list[int]) -> bool:
        """Whether a fork without a job goes on with this one."""
        watch = select.poll()
        watch.register(fork.channel, select.POLLIN)
        try:
            socket.send_fds(fork.channel, [job], descriptors)
            if watch.poll(FORK_S * 1000) and self._heard(fork, len(TAKEN)) == TAKEN:
                fork.channel.send(GO)
                fork.idle = False
                self.pids.discard(fork.pid)
                return True
        except OSError:
            pass
        self._close(fork)
        return False

    def want(self, key: Key) -> None:
        """Have one for jobs to come."""
        now_s = time.monotonic()
        host = self._hosts.get(key)
        if host is not None and host.asked_s and now_s - host.asked_s > AGAIN_S:
            self._drop(key)
        if key in self._hosts or now_s - self._failed.get(key, -AGAIN_S) < AGAIN_S:
            return
        self._failed.pop(key, None)
        _, interpreter, script, variables = key
        # Of a former state of its packages there will be no job any more.
        for other in [other for other in self._hosts if other[1:] == key[1:]]:
            self._drop(other)
        while len(self._hosts) >= MOST:
            self._drop(min(self._hosts, key=lambda other: self._hosts[other].used_s))
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        theirs.set_inheritable(True)
        try:
            pid = os.posix_spawn(
                interpreter,
                [interpreter, os.fsencode(HOST), b"%d" % theirs.fileno(), script, b"%f" % IDLE_S],
                dict(variables),
                file_actions=[(os.POSIX_SPAWN_DUP2, self._null, number) for number in range(3)],
                setsid=True,
                setsigmask=(),
            )
        except OSError:
            ours.close()
            self._failed[key] = now_s
            return
        finally:
            theirs.close()
        self.pids.add(pid)
        self._hosts[key] = _Host(pid, ours)
        self._poll.register(ours, select.POLLIN)

    def reaped(self, pid: int) -> None:
        """One has ended, or a fork; a channel that is still open tells the rest."""
        self.pids.discard(pid)
        self._spent_s.pop(pid, None)
        self.end(pid)

    def spare(self) -> None:
        """Memory is short: let all end, and make none for a while. Their jobs go on."""
        for key in list(self._hosts):
            self._drop(key)
            self._failed[key] = time.monotonic()

    def close(self) -> None:
        """Let all end."""
        for key in list(self._hosts):
            self._drop(key)

    def _drop(self, key: Key) -> None:
        """It ends when its channel does; so do its forks that have no job."""
        host = self._hosts.pop(key)
        self._poll.unregister(host.channel)
        host.channel.close()
        for fork in [fork for fork in self._forks.values() if fork.idle and fork.key == key]:
            self._close(fork)

    def _of(self, pid: int) -> list[_Fork]:
        return [fork for fork in self._forks.values() if fork.pid == pid]

    def _close(self, fork: _Fork) -> None:
        del self._forks[fork.channel.fileno()]
        self._poll.unregister(fork.channel)
        fork.channel.close()

    @staticmethod
    def _heard(one: _Host | _Fork, size: int) -> bytes:
        try:
            return one.channel.recv(size)
        except OSError:
            return b""
