"""Passes a program's output on to the terminal, with a status line below it.

The program's standard output and error become a pseudo-terminal, and nothing else changes for it: it keeps its session,
its controlling terminal and its keyboard, so that Ctrl-C, Ctrl-Z and what the user types ahead work as without buildd.
The pseudo-terminal translates nothing: the terminal receives the program's own bytes. Where a program sets modes on its
output (curses), the terminal gets them. Where a program reads keys from its output (less, more), it gets those of the
terminal. Knows no build.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from buildd.ui import key_reader
from buildd.ui.status_line import StatusLine

_CHUNK_BYTES = 1 << 16
_TICK_S = 0.1
_SIZE = struct.Struct("HHHH")
_CROSSING_MS = 10
_OUTPUT, _LOCAL = 1, 3
"""Places in the list of `termios.tcgetattr`."""

Words = Callable[[int], str]
"""What the line says, in at most so many columns; empty while there is nothing to say."""


class Relay:
    """A pseudo-terminal for the program's output, and the terminal that shows it.

    Args:
        terminal: descriptor of the terminal.
        words: called about ten times a second, must return at once.
        style: of the line, as parameters of an SGR sequence.

    Raises: OSError if there is no pseudo-terminal to be had.
    """

    def __init__(self, terminal: int, words: Words, style: str = "") -> None:
        self._terminal = terminal
        self._words = words
        modes = termios.tcgetattr(terminal)
        self._ours, self.output = os.openpty()
        modes[_OUTPUT] &= ~termios.OPOST  # the terminal does that
        termios.tcsetattr(self.output, termios.TCSANOW, modes)
        self._first = self._modes = termios.tcgetattr(self.output)
        """Modes of the pseudo-terminal: at the beginning, and when they were last looked at."""
        self._own: list[Any] | None = None
        """The terminal's own modes, while it has those of a program."""
        self._name = os.ttyname(self.output)
        self._reader = 0
        """A process that reads its keys from the pseudo-terminal; 0 if none is known."""
        self._size = b""
        self._line = StatusLine(80, style)
        self._gone = self._resized = self._stopped = False
        os.set_blocking(self._ours, False)
        self._resize()

    # ---------------------------------------------------------------- life

    def follow(self, pid: int) -> None:
        """Pass the output of a program on until it ends; it was started with `output` as its standard output."""
        os.close(self.output)
        self.output = -1
        ended = os.pidfd_open(pid)
        waiting = select.poll()
        waiting.register(ended, select.POLLIN)
        waiting.register(self._ours, select.POLLIN)
        told_s = time.monotonic()
        reads = False
        try:
            with self._signals():
                while True:
                    ready = dict(waiting.poll(_TICK_S * 1000))
                    if ended in ready:
                        break
                    if self._ours in ready and not self._pass_on():
                        waiting.unregister(self._ours)  # every process has closed it, or the terminal is gone
                    if self._terminal in ready:
                        self._pass_keys()
                    if self._stopped:
                        self._stop()
                    if self._resized:
                        self._resize()
                        os.killpg(os.getpgrp(), signal.SIGWINCH)  # a program that asked before has the old size
                    if time.monotonic() - told_s >= _TICK_S:
                        told_s = time.monotonic()
                        self._tell()
                        self._seek_reader()
                    if bool(self._reader) != reads:
                        reads = not reads
                        if reads:
                            waiting.register(self._terminal, select.POLLIN)
                        else:
                            waiting.unregister(self._terminal)
                self._drain()
                self._write(self._line.remove())
                self._hand_over()
        finally:
            os.close(ended)
            self.close()

    def _hand_over(self) -> None:
        """Have the output of processes that the program has left behind reach the terminal."""
        waiting = select.poll()
        waiting.register(self._ours, 0)
        if self._gone or waiting.poll(0):  # no process has it any more
            return
        os.set_blocking(self._ours, True)
        import subprocess

        with contextlib.suppress(OSError):
            subprocess.Popen(["cat"], stdin=self._ours, stdout=self._terminal, stderr=subprocess.DEVNULL, cwd="/")

    def close(self) -> None:
        """Give the terminal its modes back, and end the pseudo-terminal."""
        if self._own is not None and self._is_in_front():
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self._terminal, termios.TCSADRAIN, self._own)
        self._own = None
        for descriptor in (self._ours, self.output):
            if descriptor >= 0:
                os.close(descriptor)
        self._ours = self.output = -1

    @contextmanager
    def _signals(self) -> Iterator[None]:
        def resized(number: int, frame: object) -> None:
            self._resized = self._size != self._terminal_size()

        def stopped(number: int, frame: object) -> None:
            self._stopped = True

        handlers = {signal.SIGWINCH: resized, signal.SIGTSTP: stopped}
        taken = {each: handlers[each] for each in handlers if signal.getsignal(each) != signal.SIG_IGN}
        before = {number: signal.signal(number, handler) for number, handler in taken.items()}
        try:
            yield
        finally:
            for number, former in before.items():
                signal.signal(number, former)

    def _stop(self) -> None:
        """Stop as Ctrl-Z asked, with no line on the terminal, until the job goes on."""
        self._stopped = False
        self._drain()
        self._write(self._line.remove())
        handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, handler)
        self._resized = self._size != self._terminal_size()

    # ---------------------------------------------------------------- output

    def _pass_on(self) -> bool:
        """Pass on what there is; False where no process can write any more."""
        try:
            data = os.read(self._ours, _CHUNK_BYTES)
        except BlockingIOError:
            return True
        except OSError:  # EIO: the last writer has closed it
            return False
        self._copy_modes()
        self._write(self._line.pass_on(data, quietly=not self._may_draw()))
        return bool(data) and not self._gone

    def _drain(self) -> None:
        """Pass on what the program wrote before it stopped or ended."""
        waiting = select.poll()
        waiting.register(self._ours, select.POLLIN)
        # What was written is there within a moment: the kernel brings it across in a thread of its own.
        while (ready := waiting.poll(_CROSSING_MS)) and ready[0][1] & select.POLLIN and self._pass_on():
            pass

    def _write(self, data: bytes) -> None:
        while data and not self._gone:
            try:
                data = data[os.write(self._terminal, data) :]
            except BlockingIOError:
                select.select([], [self._terminal], [])  # a program has made the terminal non-blocking
            except OSError:  # EIO: the terminal is gone, and what the program writes from now on with it
                self._gone = True

    def _seek_reader(self) -> None:
        """If a program has asked for single keys on its output, and keys wait, look who reads them there."""
        if self._modes[_LOCAL] & termios.ICANON:
            self._reader = 0
        elif not self._reader and self._is_in_front() and select.select([self._terminal], [], [], 0)[0]:
            self._reader = key_reader.find(self._name)

    def _pass_keys(self) -> None:
        try:
            if self._is_in_front() and key_reader.takes_keys(self._reader, self._name):
                os.write(self._ours, os.read(self._terminal, _CHUNK_BYTES))
            else:
                self._reader = 0  # what comes next may be for another program
        except OSError:  # the terminal can only be written to, or has gone
            self._reader = 0

    # ---------------------------------------------------------------- the line

    def _tell(self) -> None:
        if self._gone:
            return
        self._copy_modes()
        text = self._words(max(1, self._line.columns - 1)) if self._may_draw() else ""
        self._write(self._line.show(text))

    def _may_draw(self) -> bool:
        """Whether this job has the terminal, and no program reads keys one by one or hides what is typed."""
        if self._gone or not self._is_in_front():
            return False
        try:
            local = termios.tcgetattr(self._terminal)[_LOCAL]
        except termios.error:
            return False
        return bool(local & termios.ICANON and local & termios.ECHO)

    def _is_in_front(self) -> bool:
        try:
            return os.tcgetpgrp(self._terminal) == os.getpgrp()
        except OSError:
            return False

    # ---------------------------------------------------------------- size and modes

    def _terminal_size(self) -> bytes:
        try:
            return fcntl.ioctl(self._terminal, termios.TIOCGWINSZ, bytes(_SIZE.size))
        except OSError:
            return self._size

    def _resize(self) -> None:
        self._resized = False
        self._size = self._terminal_size()
        _, columns, *_ = _SIZE.unpack(self._size)
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, self._size)
        self._write(self._line.resize(columns or 80))

    def _copy_modes(self) -> None:
        """Give the terminal the modes that a program has set on its output."""
        try:
            modes = termios.tcgetattr(self._ours)
            if modes == self._modes or not self._is_in_front():
                return
            now = termios.tcgetattr(self._terminal)
            if self._own is None:
                self._own = now.copy()
            for place, (mode, before) in enumerate(zip(modes, self._modes, strict=True)):
                if mode != before and place != _OUTPUT:
                    now[place] = mode
            termios.tcsetattr(self._terminal, termios.TCSADRAIN, now)
        except termios.error:
            return  # the terminal is gone
        self._modes = modes
        if modes == self._first:
            self._own = None  # the program has put them back
