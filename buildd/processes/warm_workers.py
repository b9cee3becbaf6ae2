"""Warm workers: processes that have a worker's packages imported and fork themselves for jobs. The spawner keeps them.

Standard library only, like the spawner that it runs in. Knows the messages of the other side (`worker_host`), no
package and no output. If no warm process is ready for a job, the spawner starts the job's own interpreter, and a warm
process for later jobs beside it: so no job waits longer for an import than without warm workers. A fork that has
finished its job well may offer to take another one; it is asked first then.
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
"""pid of a job, which has a session of its own and becomes the spawner's child before it begins."""
DONE = struct.Struct("=qdd")
"""A fork's message at the end of a job when it can take another one: peak (bytes), and user and system time (s) of all
its jobs so far."""
READY = b"ready"
GO, TAKEN = b"g", b"t"
PRIVATE = b"TMPDIR"
"""The one variable in which jobs of one process may differ."""
MOST = 2
"""How many hosts are kept: one with torch holds 400 MB."""
AGAIN_S = 60.0
"""After this long another host is started in place of one that could not be used, or does not answer."""
FORK_S = 2.0
"""How long a job waits for a fork; the spawner does nothing else meanwhile. A host that lives and has not answered may
be starved: the job's own interpreter is started, and the host is used again once it answers."""
IDLE_S = 300.0
"""A host that gets no job for this long ends by itself."""

Key = tuple[bytes, bytes, bytes, tuple[tuple[bytes, bytes], ...]]
"""Identity of the packages, interpreter, script, environment: jobs with another key get another host."""


def key_of(identity: bytes, argv: list[bytes], variables: Mapping[bytes, bytes]) -> Key:
    """The key of the host that can fork for a job."""
    return identity, argv[0], argv[1], tuple(sorted(item for item in variables.items() if item[0] != PRIVATE))


class _Host:
    __slots__ = ("asked_s", "channel", "pid", "ready", "used_s")

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self.pid = pid
        self.channel = channel
        self.ready = False
        self.asked_s = 0.0
        """When the spawner gave up waiting for an answer that is still due (monotonic, s); 0 where none is due."""
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
    """The warm hosts and their forks.

    Args:
        poll: their channels are registered with it; `owns` and `receive` handle its events.
        null: a descriptor of /dev/null.
    """

    def __init__(self, poll: select.poll, null: int) -> None:
        self.pids: set[int] = set()
        """Pids of all hosts that are not reaped yet, and of forks without a job."""
        self._poll = poll
        self._null = null
        self._hosts: dict[Key, _Host] = {}
        self._forks: dict[int, _Fork] = {}
        """Descriptor of its channel -> fork."""
        self._spent_s: dict[int, tuple[float, float]] = {}
        """Pid of a fork that is not reaped -> user and system time of its former jobs."""
        self._failed: dict[Key, float] = {}
        """Key -> when a host that could not be used ended (monotonic, s)."""

    def owns(self, descriptor: int) -> bool:
        """Whether a descriptor is the channel of a host or of a fork."""
        return descriptor in self._forks or any(host.channel.fileno() == descriptor for host in self._hosts.values())

    def receive(self, descriptor: int) -> tuple[int, int, float, float] | None:
        """Read a message of a host or a fork, or notice that it is gone.

        Returns:
            Pid, peak (bytes), user and system time (s) of the job that a fork has finished, if the fork can take
            another job; the caller then calls `rest` or `end`. None otherwise.
        """
        fork = self._forks.get(descriptor)
        if fork is not None:
            try:
                said = fork.channel.recv(DONE.size)
            except BlockingIOError:  # the event was about an earlier channel with this descriptor
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
            # A late answer: its job was started in another way, and the fork ends because it gets no GO.
            host.ready, host.asked_s = True, 0.0
        else:
            self._drop(key)
            if not host.asked_s:
                self._failed[key] = time.monotonic()
        return None

    def rest(self, pid: int) -> None:
        """Keep a fork that has finished its job, until there is another job for it."""
        for fork in self._of(pid):
            fork.idle, self._spent_s[pid] = True, fork.told_s
            self.pids.add(pid)

    def end(self, pid: int) -> None:
        """Let a fork end, which is also the end of its job."""
        for fork in self._of(pid):
            self._close(fork)

    def own(self, pid: int, user_s: float, system_s: float) -> tuple[float, float]:
        """User and system time (s) of a process's present job: its total less the time of earlier jobs."""
        former_s = self._spent_s.get(pid, (0.0, 0.0))
        return max(0.0, user_s - former_s[0]), max(0.0, system_s - former_s[1])

    def fork(self, key: Key, umask: int, descriptors: list[int], *, with_input: bool) -> int:
        """Fork a warm process for a job; its pid, or 0 where no host can be used now.

        Args:
            descriptors: specification, stdout, stderr and perhaps stdin, as the spawner received them.
        """
        host = self._hosts.get(key)
        if host is None or not host.ready:
            return 0
        job = JOB.pack(umask, with_input)
        for fork in [fork for fork in self._forks.values() if fork.idle and fork.key == key]:
            if self._takes(fork, job, descriptors):
                return fork.pid
        # The fork begins its job at GO; if the spawner is gone by then, the fork ends.
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
                # Its packages have changed, or it is broken: another host is started.
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
        """Offer a job to a fork that has none; whether the fork took it."""
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
        """Start a host for later jobs, if there is none."""
        now_s = time.monotonic()
        host = self._hosts.get(key)
        if host is not None and host.asked_s and now_s - host.asked_s > AGAIN_S:
            self._drop(key)
        if key in self._hosts or now_s - self._failed.get(key, -AGAIN_S) < AGAIN_S:
            return
        self._failed.pop(key, None)
        _, interpreter, script, variables = key
        # No job will come for a former state of the same packages.
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
        """Forget a host or fork that has ended; if its channel is still open, `receive` does the rest."""
        self.pids.discard(pid)
        self._spent_s.pop(pid, None)
        self.end(pid)

    def spare(self) -> None:
        """Free memory: let all hosts end, and start none for a while. Their jobs go on."""
        for key in list(self._hosts):
            self._drop(key)
            self._failed[key] = time.monotonic()

    def close(self) -> None:
        """Let all hosts end."""
        for key in list(self._hosts):
            self._drop(key)

    def _drop(self, key: Key) -> None:
        """Close a host's channel, which ends it, and those of its forks without a job."""
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
