"""Inductor's and Triton's tuners take turns with everybody else who measures on a GPU.

Runs in the user's own process; standard library only. Each timing holds the lock of its GPU, the same file as the
leases of buildd's daemons (`buildd.host.gpu_lock`); the kernel keeps the queue. What the program computes besides is
not held up. If the lock cannot be had, the timing goes on as without buildd.
"""

import contextlib
import fcntl
import functools
import logging
import os
import sys
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

FOLDER = "/dev/shm/buildd-gpus"
_MOST_WAIT_S = 120.0
"""A holder that has not let go for so long hangs: the tuner goes on without a turn."""
_log = logging.getLogger("buildd.gpu")
_mine = threading.local()


def begin_inductor(benchmarking: "Any") -> None:
    """Wrap the timing functions of torch._inductor.runtime.benchmarking, just imported."""
    for kind in list(vars(benchmarking).values()):
        if isinstance(kind, type) and "benchmark_gpu" in vars(kind):
            kind.benchmark_gpu = in_turn(kind.benchmark_gpu)  # type: ignore[attr-defined]


def begin_triton(autotuner: "Any") -> None:
    """Wrap the timing of one configuration in triton.runtime.autotuner, just imported."""
    autotuner.Autotuner._bench = in_turn(autotuner.Autotuner._bench)


def in_turn(function: "Callable[..., Any]", folder: str = FOLDER) -> "Callable[..., Any]":
    """The function, holding the current GPU's lock while it runs. A call inside another one is part of its turn."""

    @functools.wraps(function)
    def timed(*arguments: "Any", **named: "Any") -> "Any":
        if getattr(_mine, "inside", False):
            return function(*arguments, **named)
        _mine.inside = True
        try:
            with _turn(folder):
                return function(*arguments, **named)
        finally:
            _mine.inside = False

    return timed


@contextlib.contextmanager
def _turn(folder: str) -> "Iterator[None]":
    descriptor = -1
    try:
        descriptor = _locked(folder)
    except Exception as error:
        # The edge to the user's program: it is timed as without buildd.
        _log.info("no turn on a GPU: %r", error)
    try:
        yield
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _locked(folder: str) -> int:
    """A descriptor that holds the lock until it is closed; -1 if there is no GPU to lock."""
    name = _gpu()
    if not name:
        return -1
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder)
        os.chmod(folder, 0o1777)
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        descriptor = os.open(os.path.join(folder, name), flags)
    except FileNotFoundError:
        descriptor = os.open(os.path.join(folder, name), flags | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        # In a thread with a descriptor of its own: this one must stay interruptible, and may give up.
        waiting = threading.Thread(target=_wait, args=(os.dup(descriptor),), daemon=True, name="gpu turn")
        waiting.start()
        waiting.join(_MOST_WAIT_S)
        if waiting.is_alive():
            os.close(descriptor)
            _log.warning("buildd: another process holds %s for over %.0f s; timing beside it", name, _MOST_WAIT_S)
            return -1
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _wait(descriptor: int) -> None:
    """Wait for the lock; if nobody wants it any more, closing the descriptor releases it."""
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.close(descriptor)


def _gpu() -> str:
    """Name of the current CUDA device's lock; empty if there is none."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or torch.version.hip:
        return ""
    uuid = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
    kind = "MIG" if os.environ.get("CUDA_VISIBLE_DEVICES", "").startswith("MIG-") else "GPU"
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"{kind}-{uuid}"
