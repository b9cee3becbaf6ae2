"""The part of a job that runs on a node of the cluster: compares the files, runs the tool, brings its outputs back.

Ray sends this module to the nodes, which have no buildd: it imports the standard library and other such modules. Knows
no Ray.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import subprocess
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, Protocol

from buildd.cluster.node_files import digest_of, is_text, listed_paths, names_in, rivals
from buildd.cluster.node_processes import adopt, descendants, end, memory_bytes

BEAT_S = 1.0
"""Between two signs of life of a job that says nothing."""
LOOK_S = 0.03
"""Between two looks at the processes of a tool."""
LINGER_S = 2.0
"""How long processes that a tool left behind may hold its output open."""
OLD_S = 24 * 3600.0
MOST_OUTPUT_BYTES = 256 << 20
"""Larger outputs are made where they are needed."""
MOST_RIVALS = 4096
HIDDEN = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
"""Ray leaves these unset for a task that asked for no GPU; then the task would see all of them."""

_READ_BYTES = 64 << 10
_swept: set[str] = set()


class LaidFiles(Protocol):
    """Files that were laid out, and that the tool sees elsewhere."""

    def where(self, path: str) -> str:
        """Where this process finds what the tool finds at an absolute path."""

    def seen(self, path: str, digest: str) -> None:
        """Take note of what the tool has read at an absolute path."""

    def command(self, spec: Mapping[str, Any], environment: Mapping[bytes, bytes], told: int) -> list[str]:
        """The command that becomes the tool; faults before that go to the descriptor `told`."""


class ProcessWatch(Protocol):
    """Sees the processes that a tool starts: `node_steps.Steps`."""

    def look(self, memory: Mapping[int, int]) -> None:
        """Take note of the processes that live now, by process id, and of their resident bytes."""

    def found(self) -> tuple[Any, ...]:
        """What was seen of them."""


Lay = Callable[[Mapping[str, Any], Callable[[str], str]], "LaidFiles | tuple[Any, ...] | None"]
"""Lays out the files of a job; returns None where they are in their places, and a message where they cannot be."""


def run(spec: Mapping[str, Any], lay: Lay, watching: Callable[[], ProcessWatch]) -> Iterator[tuple[Any, ...]]:
    """Carry a job out: yields ("refused", why), or ("lacks", digests), or ("begun",), ("output", stream, bytes) and
    ("beat", memory) as they come, and at last ("ended", what was seen) or ("late",).

    Args:
        spec: a `buildd.cluster.wire.Errand`, as a mapping.
        lay: lays its files out, see `node_inputs.lay_out`.
        watching: begins to watch what the tool starts.
    """
    for path, wanted in spec["files"].items():
        digest = digest_of(path)
        if digest != wanted:
            yield ("refused", f"{path} is {'another file' if digest else 'not there'}")
            return
    folder = spec["folder"]
    _sweep(os.path.dirname(folder), os.path.basename(folder).rpartition("-")[0] + "-")
    try:
        os.mkdir(folder, 0o700)
    except OSError as error:
        yield ("refused", f"{folder} cannot be made: {error.strerror}")
        return
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
        laid = lay(spec, digest_of)
        if isinstance(laid, tuple):
            # The errand comes back at once with what is lacking, and another process may make the folder again.
            cleanup.close()
            yield laid
            return
        yield from _in_folder(spec, folder, laid, watching)


def _sweep(place: str, prefix: str) -> None:
    """Remove folders of jobs whose worker was killed a day ago. Once in a process."""
    if place in _swept:
        return
    _swept.add(place)
    for name in names_in(place):
        path = f"{place}/{name}"
        with contextlib.suppress(OSError):
            if name.startswith(prefix) and time.time() - os.lstat(path).st_mtime > OLD_S:
                shutil.rmtree(path, ignore_errors=True)


def _in_folder(
    spec: Mapping[str, Any], folder: str, laid: LaidFiles | None, watching: Callable[[], ProcessWatch]
) -> Iterator[tuple[Any, ...]]:
    for name in spec["outputs"]:
        os.makedirs(os.path.dirname(f"{folder}/{name}"), exist_ok=True)
    environment = {**dict(spec["environment"]), **{os.fsencode(name): b"" for name in HIDDEN}}
    began_s = time.monotonic()
    before = adopt()
    watch = watching()
    try:
        tool, problem = _started(spec, environment, laid)
    except OSError as error:
        yield ("refused", f"{os.fsdecode(spec['argv'][0])} cannot be started: {error.strerror}")
        return
    if problem:
        end(tool, before)
        yield ("refused", problem)
        return
    try:
        yield ("begun",)
        if (yield from _watched(tool, spec["payload"], began_s + spec["timeout_s"], watch)):
            yield ("late",)
            return
        _, status, usage = os.wait4(tool.pid, 0)
        tool.returncode = os.waitstatus_to_exitcode(status)
    finally:
        end(tool, before)
    figures = (time.monotonic() - began_s, usage.ru_utime, usage.ru_stime, usage.ru_maxrss * 1024)
    found = _found(spec, folder, tool.returncode, laid)
    yield ("ended", {"status": tool.returncode, "figures": figures, "steps": watch.found(), **found})


def _started(
    spec: Mapping[str, Any], environment: Mapping[bytes, bytes], laid: LaidFiles | None
) -> tuple[subprocess.Popen[bytes], str]:
    """The tool's process, and why it could not become the tool. Raises OSError."""
    hear, tell = os.pipe() if laid is not None else (-1, -1)
    try:
        # In the worker's own process group: there Ray ends what is left when it ends the worker.
        tool = subprocess.Popen(
            laid.command(spec, environment, tell) if laid is not None else spec["argv"],
            cwd=spec["cwd"] if laid is None else "/",
            env=environment if laid is None else {},
            stdin=subprocess.PIPE if spec["payload"] else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            umask=spec["umask"],
            pass_fds=() if laid is None else (tell,),
        )
        if laid is None:
            return tool, ""
        os.close(tell)
        tell = -1
        with open(hear, "rb", closefd=False) as problem:
            return tool, problem.read().decode(errors="replace")[:300]
    finally:
        for descriptor in (hear, tell):
            if descriptor >= 0:
                os.close(descriptor)


def _watched(
    tool: subprocess.Popen[bytes], payload: bytes, end_s: float, watch: ProcessWatch
) -> Generator[tuple[Any, ...], None, bool]:
    """The tool's output and signs of its life, until it has closed both streams. Returns whether its time is over."""
    assert tool.stdout is not None and tool.stderr is not None
    left = memoryview(payload)
    beat_s, gone_s, looked_s = time.monotonic(), 0.0, 0.0
    memory: dict[int, int] = {}
    with selectors.DefaultSelector() as selector:
        for name, stream in (("stdout", tool.stdout), ("stderr", tool.stderr)):
            selector.register(stream, selectors.EVENT_READ, name)
        if tool.stdin is not None:
            os.set_blocking(tool.stdin.fileno(), False)
            selector.register(tool.stdin, selectors.EVENT_WRITE, "stdin")
        # Ray interrupts a task between two steps of Python only: no call here may take long.
        while any(key.data != "stdin" for key in selector.get_map().values()):
            for key, _ in selector.select(LOOK_S):
                if key.data == "stdin":
                    left = _write(key.fd, left)
                    if not left:
                        selector.unregister(key.fileobj)
                        assert tool.stdin is not None
                        tool.stdin.close()
                elif data := os.read(key.fd, _READ_BYTES):
                    yield ("output", key.data, data)
                else:
                    selector.unregister(key.fileobj)
            now_s = time.monotonic()
            if now_s > end_s:
                return True
            if os.waitid(os.P_PID, tool.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                gone_s = gone_s or now_s
                if now_s - gone_s > LINGER_S:  # what it has started holds its output open
                    return False
            if now_s - looked_s >= LOOK_S:
                looked_s, memory = now_s, {pid: memory_bytes(pid) for pid in descendants(tool.pid)}
                watch.look(memory)
            if now_s - beat_s >= BEAT_S:
                beat_s = now_s
                yield ("beat", memory_bytes(tool.pid) + sum(memory.values()))
    return False


def _write(descriptor: int, left: memoryview) -> memoryview:
    try:
        return left[os.write(descriptor, left) :]
    except BlockingIOError:
        return left
    except OSError:  # the tool does not read it
        return left[:0]


def _found(spec: Mapping[str, Any], folder: str, status: int, laid: LaidFiles | None) -> dict[str, Any]:
    """What a tool has left: its outputs, its depfile, the digests of the files in it, and their rivals."""
    outputs: dict[str, bytes] = {}
    room = MOST_OUTPUT_BYTES
    for name in (*spec["outputs"], *spec["depfiles"]):
        with contextlib.suppress(OSError), open(f"{folder}/{name}", "rb") as file:
            outputs[name] = file.read(room + 1)
            room -= len(outputs[name])
        if room < 0:
            return {"outputs": {}, "read": {}, "rivals": (), "too_large": True}
    listed = [path for name in spec["depfiles"] for path in listed_paths(outputs.get(name, b""))]
    # What is no UTF-8 does not travel: without a digest, the daemon believes nothing of the run.
    read = [path for path in dict.fromkeys(listed) if not path.startswith(f"{folder}/") and is_text(path)]
    cwd = os.fsdecode(spec["cwd"])
    where = str if laid is None else laid.where
    places = {path: where(os.path.join(cwd, path)) for path in read}
    # What was laid out is in this folder for one job: no digest of it is remembered.
    digests = {path: digest_of(place) if laid is None else digest_of(place, {}) for path, place in places.items()}
    if laid is not None:
        for path, digest in digests.items():
            laid.seen(os.path.join(cwd, path), digest)
    beside = tuple(filter(is_text, rivals(read, spec["search"], cwd, where))) if status == 0 else ()
    return {"outputs": outputs, "read": digests, "rivals": beside, "too_large": len(beside) > MOST_RIVALS}
