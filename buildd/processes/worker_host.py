"""A warm host: imports a worker's packages once and forks itself for jobs. The client's own interpreter runs it, for
the spawner.

Knows nothing of buildd: standard library only, and the worker script that it is given, which has `warm_up` and `main`.
A job sees what a fresh process would see: the same environment, except for its TMPDIR, and packages that are unchanged
on disk since they were imported. If that is not certain, or if forking is not safe, this process ends.

A fork touches thousands of pages before it can work. So a fork whose job went well takes the next job, if the worker
says that its state is as before (`as_before`).

    python worker_host.py CHANNEL SCRIPT IDLE_S
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # The folder of this script comes first on the path and holds modules of buildd, which no package must import.
    del sys.path[0]

import array
import contextlib
import ctypes
import gc
import importlib.util
import io
import os
import resource
import signal
import socket
import struct
import time
import traceback
import types
from collections.abc import Callable, Iterable

JOB = struct.Struct("=IB")
FORKED = struct.Struct("=i")
DONE = struct.Struct("=qdd")
GO, TAKEN = b"g", b"t"
AGAIN_S = 5.0
"""How long a fork waits for another job: it holds memory. If memory is short, its channel is closed earlier."""
MOST_JOBS = 32
"""How many jobs one fork carries out at most, so that leaks are bounded."""
PR_SET_PDEATHSIG = 1
FINE_NS, COARSE_NS = 20_000_000, 2_000_000_000
"""A file that changed less than this before its import may have changed again without a new stamp, because the file
system's clock has steps."""


def load(script: str) -> types.ModuleType:
    """The worker as a module, with its packages imported."""
    # No user's module can have this name.
    found = importlib.util.spec_from_file_location("buildd worker", script)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[module.__name__] = module
    found.loader.exec_module(module)
    module.warm_up()
    return module


def stamps() -> dict[str, tuple[int, int, int, int] | None]:
    """The stamps of every file that a module was loaded from, and of the interpreter."""
    paths = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    found: dict[str, tuple[int, int, int, int] | None] = {}
    for path in (*paths, sys.executable):
        if path and os.path.isabs(path):
            try:
                status = os.stat(path)
                found[path] = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            except OSError:
                found[path] = None
    return found


def listings(folders: Iterable[str]) -> dict[str, frozenset[str]]:
    """The names that could be imported from the module search folders: a new name may be found before another."""
    found = {}
    for folder in folders:
        try:
            names = os.listdir(folder)
        except OSError:
            names = []
        found[folder] = frozenset(name for name in names if name[0] != "." and name != "__pycache__")
    return found


def is_young(stamp: tuple[int, int, int, int] | None, began_ns: int) -> bool:
    """Whether a stamp is too young to prove that the file is unchanged since its import."""
    if stamp is None:
        return True
    changed_ns = max(stamp[2:])
    return changed_ns > began_ns - (FINE_NS if changed_ns % 1_000_000_000 else COARSE_NS)


def may_fork() -> bool:
    """Whether forking is safe: threads would be lost with everything that they hold (a GPU's driver has some)."""
    return len(os.listdir("/proc/self/task")) == 1


def serve(channel: socket.socket, script: str, idle_s: float) -> None:
    """Fork for each job that the spawner requests, until the spawner is gone or has requested none for `idle_s`."""
    began_ns = time.time_ns()
    listed = listings(sys.path)
    worker = load(script)
    seen = stamps()
    if not may_fork() or any(is_young(stamp, began_ns) for stamp in seen.values()):
        return
    gc.collect()
    gc.freeze()

    def same() -> bool:
        return stamps() == seen and listings(listed) == listed

    channel.settimeout(idle_s)
    channel.send(b"ready")
    while True:
        data, descriptors = receive(channel)
        if not data:
            return
        if not (same() and may_fork()):
            return
        pid = fork(worker, data, descriptors, channel, same)
        for descriptor in descriptors:
            os.close(descriptor)
        channel.send(FORKED.pack(pid))


def receive(channel: socket.socket) -> tuple[bytes, list[int]]:
    """A job and its descriptors; empty if no request came in time, or the spawner is gone."""
    try:
        data, control, _, _ = channel.recvmsg(JOB.size, 256, socket.MSG_CMSG_CLOEXEC)
    except OSError:
        return b"", []
    descriptors = array.array("i")
    for _, _, raw in control:
        descriptors.frombytes(raw[: len(raw) - len(raw) % descriptors.itemsize])
    return data, list(descriptors)


def fork(
    worker: types.ModuleType,
    data: bytes,
    descriptors: list[int],
    channel: socket.socket,
    same: Callable[[], bool],
) -> int:
    """Fork a process for a job; its pid. It has its own session, and becomes the spawner's child as its parent ends."""
    told, tells = os.pipe2(os.O_CLOEXEC)
    between = os.fork()
    if between == 0:
        if os.fork() == 0:
            os.setsid()
            os.write(tells, FORKED.pack(os.getpid()))
            for descriptor in (told, tells, channel.detach()):
                os.close(descriptor)
            be_jobs(worker, data, descriptors, same)
        os._exit(0)
    os.close(tells)
    os.waitpid(between, 0)
    answer = os.read(told, FORKED.size)
    os.close(told)
    (pid,) = FORKED.unpack(answer)
    return int(pid)


def be_jobs(worker: types.ModuleType, data: bytes, descriptors: list[int], same: Callable[[], bool]) -> None:
    """Carry out a job in this process, and then further ones. Does not return."""
    status = 1
    try:
        # The first descriptor is the channel on which the spawner sends GO and gets DONE.
        with socket.socket(fileno=descriptors.pop(0)) as spawner:
            for left in reversed(range(MOST_JOBS)):
                spawner.settimeout(None)
                if spawner.recv(1) != GO:
                    break
                as_before = getattr(worker, "as_before", None) if left else None
                if as_before is None:
                    spawner.close()
                status = carry_out(worker, data, descriptors)
                if status != 0 or as_before is None or not is_clean(as_before):
                    break
                let_go(spawner)
                data, descriptors = receive(spawner)
                if not data or not same() or not may_fork():
                    break
                status = 1
                spawner.send(TAKEN)
    except OSError:  # the spawner is gone, or has given up
        pass
    finally:
        os._exit(status)


def is_clean(as_before: Callable[[], bool]) -> bool:
    """Whether nothing is left of the last job, so that the next one sees what it would see in a fork of its own."""
    try:
        os.waitpid(-1, os.WNOHANG)
        return False  # there is a child
    except ChildProcessError:
        return may_fork() and as_before()


def let_go(spawner: socket.socket) -> None:
    """Close the streams of a job, and report the usage of this process so far."""
    ctypes.CDLL(None).fflush(None)
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    os.close(null)
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    peak_bytes = max(own.ru_maxrss, children.ru_maxrss) * 1024
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "wb", buffering=0) as file:
        file.write(b"5")  # resets the peak, so that the next job has its own
    spawner.settimeout(AGAIN_S)
    spawner.send(DONE.pack(peak_bytes, own.ru_utime + children.ru_utime, own.ru_stime + children.ru_stime))


def carry_out(worker: types.ModuleType, data: bytes, descriptors: list[int]) -> int:
    """Carry out a job; its exit status."""
    status = 1
    try:
        umask, with_input = JOB.unpack(data)
        specification, output, errors, *given = descriptors
        os.umask(umask)
        text = bytearray()
        while chunk := os.pread(specification, 1 << 20, len(text)):
            text += chunk
        cwd, *fields = bytes(text).split(b"\0")
        middle = fields.index(b"")
        # The identity of the packages comes before the arguments.
        argv = [os.fsdecode(item[1:]) for item in fields[1:middle]]
        os.environ.pop("TMPDIR", None)
        for item in fields[middle + 1 :]:
            name, _, value = item[1:].partition(b"=")
            if name == b"TMPDIR":
                os.environb[name] = value
        os.chdir(cwd)
        given = given if with_input else [os.open(os.devnull, os.O_RDONLY)]
        for number, descriptor in enumerate((*given, output, errors)):
            os.dup2(descriptor, number)
        for descriptor in (specification, output, errors, *given):
            os.close(descriptor)
        # A new stream, because the old one may be at its end and hold buffered input.
        sys.stdin = io.TextIOWrapper(
            io.BufferedReader(io.FileIO(0, closefd=False)), sys.stdin.encoding, sys.stdin.errors
        )
        tempfile = sys.modules.get("tempfile")
        if tempfile is not None:
            tempfile.tempdir = None  # type: ignore[attr-defined]
        sys.argv = argv[1:]
        status = worker.main(argv[2:])
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # as the interpreter would, at its end
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:
                status = status or 120
    return status


def main() -> None:
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    serve(channel, sys.argv[2], float(sys.argv[3]))


if __name__ == "__main__":
    main()
