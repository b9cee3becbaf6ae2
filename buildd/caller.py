"""Carries out the command of `buildd run` in the process that the user called: with its terminal, its limits, its open
files and its signals.

`buildd run` itself may be at work in another process, which has everything imported (`cli_server`); `there` leads from
there to the process that the user called. Knows no build. Imports next to nothing: its time is a part of every run's.
"""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False  # `typing` costs milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import FrameType
    from typing import NoReturn, Protocol

    class Relay(Protocol):
        """Passes on what a program writes (`ui.relay`)."""

        output: int

        def follow(self, pid: int) -> None: ...


there: Callable[[Sequence[str], Mapping[str, str], str | None, str | None], int] | None = None
"""Has the process that the user called carry out a command; None in that process. Takes the words, the environment, the
program if the words do not name it, and the style of a status line. Raises NotStarted."""
pid = 0
"""The process that the user called; 0 in that process."""
_ended_by: list[int] = []
"""Signals that ended the commands which this process carried out."""
_PATH = os.fsencode(os.defpath)
_PASSED_ON = ("SIGINT", "SIGTERM", "SIGHUP")
_RESTORED = ("SIGPIPE", "SIGXFZ", "SIGXFSZ")
"""Python ignores these signals; a program that it starts must not."""


class NotStarted(Exception):
    """A program cannot be started.

    Args:
        number: an errno.
    """

    def __init__(self, number: int) -> None:
        super().__init__(os.strerror(number))
        self.number = number


class _Interrupts:
    """Passes SIGINT on to a command if a process sent it. The terminal sends it to the command as well.

    A handler of Python's is not told who sent a signal: a thread waits for it, and all threads have to block it. A
    process that sends it to the whole process group interrupts the command twice, as with `timeout`.

    Args:
        command: a process; 0: nothing is to be passed on.
    """

    def __init__(self, command: int) -> None:
        self._command = command
        self._thread = 0

    def __enter__(self) -> None:
        import _thread

        self._ended = _thread.allocate_lock()
        if not self._command:
            return
        try:
            self._thread = _thread.start_new_thread(self._listen, ())
            self._ended.acquire()
        except RuntimeError:
            pass  # no more threads

    def __exit__(self, *problem: object) -> None:
        import _signal  # type: ignore[import-not-found]

        if self._thread:
            _signal.pthread_kill(self._thread, _signal.SIGINT)
            self._ended.acquire()

    def _listen(self) -> None:
        import _signal

        ours, from_kernel = os.getpid(), 0x80
        while (came := _signal.sigwaitinfo((_signal.SIGINT,))).si_pid != ours:
            if came.si_code < from_kernel and came.si_pid != self._command:
                try:
                    os.kill(self._command, _signal.SIGINT)
                except OSError:
                    pass  # it runs as another user by now
        self._ended.release()


def take_no_signals() -> None:
    """Leave the signals that are passed on to the main thread. Other threads call this when they begin."""
    import _signal

    _signal.pthread_sigmask(_signal.SIG_BLOCK, [getattr(_signal, name) for name in _PASSED_ON])


def process() -> int:
    """The process that the user called."""
    return pid or os.getpid()


def carry_out(
    words: Sequence[str | bytes],
    environ: Mapping[str, str] | Mapping[bytes, bytes],
    program: str | bytes | None = None,
    relay: Relay | None = None,
    early: Sequence[int] = (),
) -> int:
    """Run a command with this process's terminal and signals; its exit status as a shell reports it.

    Signals that processes send to this one reach the command; Ctrl-C reaches it by itself. Signals that the command is
    to ignore (nohup) stay ignored; it does not inherit this process's handlers.

    Args:
        program: the file to run, if it is not the one that the first word names.
        relay: passes on what the command writes to this process's standard output, and to the same terminal.
        early: signals that came already.

    Raises: NotStarted.
    """
    import _signal  # the C part of `signal`, without its enums

    came = list(early)
    running: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        if number == _signal.SIGINT:
            return  # who sent it is not known here
        came.append(number)
        if running:
            os.kill(running[0], came.pop())

    # Before the command starts, so that a signal in between is passed on too.
    numbers = [getattr(_signal, name) for name in _PASSED_ON]
    taken = [number for number in numbers if _signal.getsignal(number) != _signal.SIG_IGN]
    before = [(number, _signal.signal(number, pass_on)) for number in taken]
    mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, [number for number in taken if number == _signal.SIGINT])
    try:
        actions = []
        if relay is not None:
            actions = [(os.POSIX_SPAWN_DUP2, relay.output, 1)]
            actions += [(os.POSIX_SPAWN_DUP2, relay.output, 2)] if _is_same(1, 2) else []
        restored = [getattr(_signal, name) for name in _RESTORED if hasattr(_signal, name)]
        child = _started(words, environ, words[0] if program is None else program, actions, restored, mask)
        running.append(child)
        while came:
            os.kill(child, came.pop())
        with _Interrupts(child if _signal.SIGINT in taken else 0):
            if relay is not None:
                relay.follow(child)
            try:
                _wait(child)
            except OSError:
                pass  # no descriptor is left, or the kernel has none for processes
            os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        running.clear()  # its number stays taken until the next line
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    finally:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)
        for number, handler in before:
            _signal.signal(number, handler)
    if status < 0:
        _ended_by.append(-status)
    return 128 - status if status < 0 else status


def end(status: int) -> NoReturn:
    """End this process: by the signal that ended the command, if a user sends that to stop it. A shell that sees a
    program end with a status instead goes on with its loop."""
    import _signal

    number = _ended_by[-1] if _ended_by else 0
    if status == 128 + number and number in [getattr(_signal, name) for name in _PASSED_ON]:
        _signal.signal(number, _signal.SIG_DFL)
        _signal.pthread_sigmask(_signal.SIG_UNBLOCK, [number])
        os.kill(os.getpid(), number)
    os._exit(status)


def _wait(child: int) -> None:
    """Wait for a process's end, and let signal handlers run. A plain wait would hold back a signal that comes just
    before it: Python's handlers run between two calls of the system."""
    import _signal
    import select

    waiting = select.poll()
    opened = [os.pidfd_open(child)]
    try:
        opened += os.pipe()
        ended, reader, writer = opened
        os.set_blocking(writer, False)
        former = _signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        try:
            for descriptor in (ended, reader):
                waiting.register(descriptor, select.POLLIN)
            while all(descriptor != ended for descriptor, _ in waiting.poll()):
                os.read(reader, 64)
        finally:
            _signal.set_wakeup_fd(former)
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _started(
    words: Sequence[str | bytes],
    environ: Mapping[str, str] | Mapping[bytes, bytes],
    program: str | bytes,
    actions: Sequence[tuple[int, int, int]],
    restored: Sequence[int],
    mask: Iterable[int],
) -> int:
    """The process of a program, found as execvp finds it with this environment's PATH."""
    name = os.fsencode(program)
    places = [name]
    if b"/" not in name:
        (path,) = [os.fsencode(value) for key, value in environ.items() if key in ("PATH", b"PATH")] or [_PATH]
        places = [os.path.join(folder, name) for folder in path.split(b":")]
    wrong = 0
    for place in places:
        try:
            return os.posix_spawn(
                place, list(words), environ, file_actions=actions, setsigdef=restored, setsigmask=mask
            )
        except (OSError, ValueError) as error:
            number = getattr(error, "errno", None) or errno.EINVAL
            if number not in (errno.ENOENT, errno.ENOTDIR):
                wrong = wrong or number
    raise NotStarted(wrong or errno.ENOENT)


def _is_same(one: int, other: int) -> bool:
    """Whether both are the same terminal."""
    try:
        return os.isatty(other) and os.fstat(one).st_rdev == os.fstat(other).st_rdev
    except OSError:
        return False
