"""Imports a worker's packages once and forks itself for each job. Run by the client's own interpreter, for the spawner.

Knows nothing of buildd: standard library only, and the worker script that it is given, which has `warm_up` and `main`.
What a job finds is what a fresh process would: the same environment, but for its TMPDIR, and packages that are on disk
as they were when they were imported. Where that cannot be told, or where forking is not safe, this process ends.

    python worker_host.py CHANNEL SCRIPT IDLE_S
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # The folder of this script comes first on the path and holds modules of buildd, which no package must import.
    del sys.path[0]

import array
import ctypes
import gc
import importlib.util
import os
import signal
import socket
import struct
import time
import traceback
import types
from collections.abc import Iterable

JOB = struct.Struct("=IB")
FORKED = struct.Struct("=i")
PR_SET_PDEATHSIG = 1
FINE_NS, COARSE_NS = 20_000_000, 2_000_000_000
"""A file that was changed so shortly before its import may have changed again without a trace: the clock of its file
system has steps."""


def load(script: str) -> types.ModuleType:
    """The worker as a module, with its packages imported."""
    # No module of a user's has such a name.
    found = importlib.util.spec_from_file_location("buildd worker", script)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[module.__name__] = module
    found.loader.exec_module(module)
    module.warm_up()
    return module


def stamps() -> dict[str, tuple[int, int, int, int] | None]:
    """Of every file that a module was loaded from, and of the interpreter."""
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
    """What could be imported from folders that are searched for modules: a new name may be found before another."""
    found = {}
    for folder in folders:
        try:
            names = os.listdir(folder)
        except OSError:
            names = []
        found[folder] = frozenset(name for name in names if name[0] != "." and name != "__pycache__")
    return found


def is_young(stamp: tuple[int, int, int, int] | None, began_ns: int) -> bool:
    """Whether a stamp does not tell that its file is what was imported."""
    if stamp is None:
        return True
    changed_ns = max(stamp[2:])
    return changed_ns > began_ns - (FINE_NS if changed_ns % 1_000_000_000 else COARSE_NS)


def may_fork() -> bool:
    """Whether nothing is lost by forking: threads would be, with whatever they hold (a GPU's driver has some)."""
    return len(os.listdir("/proc/self/task")) == 1


def serve(channel: socket.socket, script: str, idle_s: float) -> None:
    """Fork for each job that is asked for, until nobody is there to ask, or nobody has asked for `idle_s`."""
    began_ns = time.time_ns()
    listed = listings(sys.path)
    worker = load(script)
    seen = stamps()
    if not may_fork() or any(is_young(stamp, began_ns) for stamp in seen.values()):
        return
    gc.collect()
    gc.freeze()
    channel.settimeout(idle_s)
    channel.send(b"ready")
    while True:
        try:
            data, control, _, _ = channel.recvmsg(JOB.size, 256, socket.MSG_CMSG_CLOEXEC)
        except OSError:  # idle for long, or the spawner is gone
            return
        if not data:
            return
        descriptors = array.array("i")
        for _, _, raw in control:
            descriptors.frombytes(raw[: len(raw) - len(raw) % descriptors.itemsize])
        if stamps() != seen or listings(listed) != listed or not may_fork():
            return
        pid = fork(worker, data, list(descriptors), channel)
        for descriptor in descriptors:
            os.close(descriptor)
        channel.send(FORKED.pack(pid))


def fork(worker: types.ModuleType, data: bytes, descriptors: list[int], channel: socket.socket) -> int:
    """A job's pid: a process of its own session that is the spawner's child, since its parent has ended."""
    told, tells = os.pipe2(os.O_CLOEXEC)
    between = os.fork()
    if between == 0:
        if os.fork() == 0:
            os.setsid()
            os.write(tells, FORKED.pack(os.getpid()))
            for descriptor in (told, tells, channel.detach()):
                os.close(descriptor)
            carry_out(worker, data, descriptors)
        os._exit(0)
    os.close(tells)
    os.waitpid(between, 0)
    answer = os.read(told, FORKED.size)
    os.close(told)
    (pid,) = FORKED.unpack(answer)
    return int(pid)


def carry_out(worker: types.ModuleType, data: bytes, descriptors: list[int]) -> None:
    """Be the job. Does not return."""
    status = 1
    try:
        umask, with_input = JOB.unpack(data)
        waits, specification, output, errors, *given = descriptors
        if os.read(waits, 1) != b"g":
            os._exit(1)
        os.umask(umask)
        text = bytearray()
        while chunk := os.pread(specification, 1 << 20, len(text)):
            text += chunk
        cwd, *fields = bytes(text).split(b"\0")
        middle = fields.index(b"")
        # Before the arguments stands what the packages are known by.
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
        for descriptor in (waits, specification, output, errors, *given):
            os.close(descriptor)
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
        os._exit(status)


def main() -> None:
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    serve(channel, sys.argv[2], float(sys.argv[3]))


if __name__ == "__main__":
    main()
