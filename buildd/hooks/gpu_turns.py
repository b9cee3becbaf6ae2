"""Lets Inductor's and Triton's tuners take turns with all other programs that measure on a GPU.

Runs in the user's own process; standard library only. Each timing holds the lock of its GPU, the same file as the
leases of buildd's daemons (`buildd.host.gpu_lock`); the kernel keeps the queue. The program's other work does not wait.
If the lock cannot be had, the timing goes on as without buildd. `ejkernel_turns` knows other tuners.
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


def torch_gpus(*_: "Any") -> "list[str]":
    """Name of the lock of torch's current CUDA device, if there is one."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or torch.version.hip:
        return []
    return [lock_name(str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid))]


def lock_name(uuid: str) -> str:
    """Name of a GPU's lock, from its UUID with or without what kind of device it is."""
    kind = "MIG" if os.environ.get("CUDA_VISIBLE_DEVICES", "").startswith("MIG-") else "GPU"
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"{kind}-{uuid}"


def in_turn(
    function: "Callable[..., Any]",
    folder: str = FOLDER,
    gpus: "Callable[..., list[str]]" = torch_gpus,
) -> "Callable[..., Any]":
    """The function, holding the locks of its GPUs while it runs. A call inside another one is part of its turn.

    Args:
        gpus: gets the function's arguments and returns the names of the locks.
    """

    @functools.wraps(function)
    def timed(*arguments: "Any", **named: "Any") -> "Any":
        with turn(folder, lambda: gpus(arguments, named)):
            return function(*arguments, **named)

    return timed


@contextlib.contextmanager
def turn(folder: str, gpus: "Callable[[], list[str]]") -> "Iterator[None]":
    """Hold the locks of GPUs, unless this thread holds some already.

    Args:
        gpus: returns the names of the locks.
    """
    if getattr(_mine, "inside", False):
        yield
        return
    _mine.inside = True
    try:
        with _turn(folder, gpus):
            yield
    finally:
        _mine.inside = False


@contextlib.contextmanager
def _turn(folder: str, gpus: "Callable[[], list[str]]" = torch_gpus) -> "Iterator[None]":
    held: list[int] = []
    try:
        # In one order for everybody: two programs that want both of two GPUs must not wait for each other.
        for name in sorted(gpus()):
            descriptor = _locked(folder, name)
            if descriptor >= 0:
                held.append(descriptor)
    except Exception as error:
        # The edge to the user's program: it is timed as without buildd.
        _log.info("no turn on a GPU: %r", error)
    try:
        yield
    finally:
        for descriptor in held:
            # Not by closing alone: a child that the program has forked meanwhile shares the lock.
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


def _locked(folder: str, name: str) -> int:
    """A descriptor that holds the lock until it is closed; -1 if its holder hangs."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder)
        os.chmod(folder, 0o1777)
    # O_NONBLOCK: in a folder that all users share, opening a FIFO with this name would never end.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
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
