"""A command below a status line, on a real pseudo-terminal: it notices nothing, and its output is its own."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import termios
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.screen import Screen
from tests.support.terminal import Terminal
from tests.support.waiting import until

WORDS = "7 done, 2 running"
ENVIRON = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"}


def relayed(*command: str, words: str = WORDS, columns: int = 80) -> Terminal:
    program = (sys.executable, "-m", "tests.support.relayed", words, *command)
    return Terminal(*program, environ=ENVIRON, columns=columns, cwd=str(ROOT))


def python(script: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-c", f"import os, sys, time, signal, termios, tty\n{script}", *arguments)


def test_without_words_the_terminal_gets_the_programs_bytes() -> None:
    data = random.Random(1).randbytes(200_000)
    script = python("sys.stdout.buffer.write(__import__('random').Random(1).randbytes(200_000))")
    with relayed(*script, words="") as terminal:
        assert terminal.ended() == 0
        assert terminal.output == data.replace(b"\n", b"\r\n")


def test_the_line_is_below_the_output_and_gone_at_the_end() -> None:
    with relayed("/bin/sh", "-c", "echo one; printf 'two '; read word; echo three") as terminal:
        terminal.has_shown(WORDS.encode())
        screen = Screen(80, 24)
        screen.write(terminal.output)
        assert screen.text == ["one", "two", WORDS]
        assert screen.cursor == (1, 4)
        terminal.type(b"\n")
        assert terminal.ended() == 0
        screen = Screen(80, 24)
        screen.write(terminal.output)
        assert screen.text == ["one", "two", "three"]


def test_the_command_has_the_terminal_as_without_us() -> None:
    script = (
        "facts = *map(os.isatty, (0, 1, 2)), os.get_terminal_size(1), os.tcgetpgrp(os.open('/dev/tty', 2)) > 0, \\\n"
        "  os.tcgetpgrp(0) == os.getpgrp(), os.getsid(0) == os.getppid()\n"
        # Written whole: the status line may come between two writes.
        "os.write(1, (' '.join(map(str, facts)) + '\\n').encode())"
    )
    with relayed(*python(script), columns=61) as terminal:
        assert terminal.ended() == 0
        said = b"True True True os.terminal_size(columns=61, lines=24) True True True"
        assert said in terminal.output.replace(b"\r\n", b" ")


def test_a_resize_reaches_the_command() -> None:
    script = (  # not by print: a second signal inside of it would end the program
        "signal.signal(signal.SIGWINCH, lambda *_: os.write(1, b'%d columns\\n' % os.get_terminal_size(1).columns))\n"
        "print('ready', flush=True)\nsys.stdin.read(1)"
    )
    with relayed(*python(script)) as terminal:
        terminal.has_shown(b"ready")
        terminal.resize(41, 10)
        terminal.has_shown(b"41 columns")
        terminal.type(b"\n")
        assert terminal.ended() == 0


def test_ctrl_c_is_the_commands() -> None:
    script = "signal.signal(signal.SIGINT, lambda *_: sys.exit(9))\nprint('ready', flush=True)\ntime.sleep(60)"
    with relayed(*python(script)) as terminal:
        terminal.has_shown(b"ready")
        terminal.type(b"\x03")
        # The relay itself is ended by it here: `buildd run` waits.
        assert terminal.ended() in (9, -signal.SIGINT)


SHELL = """
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
pid = os.fork()
if not pid:
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpid())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    os.execv(sys.argv[1], sys.argv[1:])
assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])
os.tcsetpgrp(0, os.getpgrp())
print("[stopped]", flush=True)
sys.stdin.readline()
os.tcsetpgrp(0, pid)
os.killpg(pid, signal.SIGCONT)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
"""A shell with job control, as far as one Ctrl-Z and one `fg` need it."""


def test_ctrl_z_stops_both_and_leaves_no_line() -> None:
    command = ("/bin/sh", "-c", "printf 'begun '; read word; echo over")
    relay = (sys.executable, "-m", "tests.support.relayed", WORDS, *command)
    with Terminal(*python(SHELL, *relay), environ=ENVIRON, cwd=str(ROOT)) as terminal:
        terminal.has_shown(WORDS.encode())
        terminal.type(b"\x1a")
        terminal.has_shown(b"[stopped]")
        screen = Screen(80, 24)
        screen.write(terminal.output)
        assert not any(WORDS in line for line in screen.text), screen.text
        shown = terminal.output.count(WORDS.encode())
        terminal.type(b"\n")
        until(lambda: terminal.output.count(WORDS.encode()) > shown, "the line is back")
        terminal.type(b"\n")
        assert terminal.ended() == 0 and b"over" in terminal.output


def test_what_a_program_sets_on_its_output_acts_on_the_keyboard() -> None:
    """curses does: it asks for single keys on its output, and reads them from its input."""
    script = (  # whole lines at once: the status line may come between two writes
        "before = termios.tcgetattr(1)\ntty.setcbreak(1)\nos.write(1, b'press\\n')\n"
        "os.write(1, b'got %r\\n' % os.read(0, 1))\ntermios.tcsetattr(1, termios.TCSADRAIN, before)\n"
        "os.write(1, b'line %r\\n' % sys.stdin.readline())"
    )
    with relayed(*python(script)) as terminal:
        terminal.has_shown(b"press")
        terminal.type(b"k")
        terminal.has_shown(b"got b'k'")
        terminal.type(b"word\n")
        terminal.has_shown(b"line 'word")
        assert terminal.ended() == 0


def test_a_program_that_ends_in_other_modes_leaves_the_terminal_in_its_own() -> None:
    script = "tty.setcbreak(1); print('left', flush=True); sys.stdin.read(1)"
    with relayed(*python(script)) as terminal:
        terminal.has_shown(b"left")
        assert not terminal.modes & termios.ICANON
        terminal.type(b"k")
        until(lambda: terminal.modes & termios.ICANON, "it has its own modes")
        assert terminal.ended() == 0


def test_while_keys_are_read_one_by_one_there_is_no_line() -> None:
    script = (
        "print('a line', flush=True); before = termios.tcgetattr(0); tty.setcbreak(0)\n"
        "print('press', flush=True); os.read(0, 1); print('more', flush=True); os.read(0, 1)\n"
        "termios.tcsetattr(0, termios.TCSADRAIN, before)"
    )
    with relayed(*python(script)) as terminal:
        terminal.has_shown(b"press")
        terminal.type(b"k")
        terminal.has_shown(b"more")
        after = terminal.output.partition(b"press")[2]
        assert WORDS.encode() not in after
        terminal.type(b"k")
        assert terminal.ended() == 0


def test_a_terminal_that_goes_away_ends_the_command_as_without_us(tmp_path: Path) -> None:
    mark = tmp_path / "ended"
    script = (
        f"signal.signal(signal.SIGHUP, signal.SIG_IGN)\nprint('ready', flush=True)\n"
        f"try:\n  while True: time.sleep(0.01); os.write(1, b'x')\nexcept OSError: open({str(mark)!r}, 'w').close()"
    )
    with relayed(*python(script)) as terminal:
        terminal.has_shown(b"ready")
        terminal.hang_up()
        terminal.ended()
        until(mark.exists, "the command learned that the terminal is gone")


@pytest.mark.parametrize("closed", ["exec >/dev/null 2>&1; sleep 0.3", "sleep 30 & exit 3"])
def test_it_ends_with_the_command_if_another_process_holds_the_output(closed: str) -> None:
    with relayed("/bin/sh", "-c", f"echo begun; {closed}") as terminal:
        assert terminal.ended() in (0, 3)
        assert b"begun" in terminal.output


def test_a_process_that_is_left_behind_goes_on_writing(tmp_path: Path) -> None:
    mark = tmp_path / "go"
    left = f"until test -e {mark}; do sleep 0.05; done; echo later; echo $? >{mark}"
    command = (
        f"{sys.executable} -m tests.support.relayed '{WORDS}' sh -c '({left}) & echo begun'; echo ended; read word"
    )
    with Terminal("/bin/sh", "-c", command, environ=ENVIRON, cwd=str(ROOT)) as terminal:
        terminal.has_shown(b"ended")
        mark.touch()
        terminal.has_shown(b"later")
        until(lambda: mark.read_text() == "0\n", "the process has written")
        terminal.type(b"\n")
        assert terminal.ended() == 0
        screen = Screen(80, 24)
        screen.write(terminal.output)
        assert screen.text[:3] == ["begun", "ended", "later"]


PAGERS = {
    "less": ("less {file}", b"line 199"),
    "less of a pipe": ("cat {file} | less", b"line 199"),
    "more": ("more {file}", b"line 30"),
    "more of a pipe": ("cat {file} | more", b"line 30"),
}


@pytest.mark.parametrize("pager", PAGERS)
def test_a_pager_that_reads_keys_from_its_output_gets_them(pager: str, tmp_path: Path) -> None:
    command, further = PAGERS[pager]
    if not shutil.which(pager.split()[0]):
        pytest.skip(f"no {pager.split()[0]}")
    (tmp_path / "long").write_text("".join(f"line {number}\n" for number in range(1, 200)))
    command = command.format(file=tmp_path / "long")
    with relayed("/bin/sh", "-c", f"LESS= MORE= {command}; echo status $?; read word; echo $word") as terminal:
        terminal.has_shown(b"line 20")
        assert further not in terminal.output
        terminal.type(b"G" if pager.startswith("less") else b" ")
        terminal.has_shown(further)
        terminal.type(b"q")
        terminal.has_shown(b"status 0")
        terminal.type(b"typed\n")
        assert terminal.ended() == 0
        assert terminal.output.count(b"typed") == 2, "once as its echo, once as the command's"


WAITS = {
    "read": "pass",
    "poll": "waiting = select.poll(); waiting.register(2, select.POLLIN); waiting.poll()",
    "select": "select.select([2], [], [])",
    "epoll": "waiting = select.epoll(); waiting.register(2, select.EPOLLIN); waiting.poll()",
}


@pytest.mark.parametrize("is_main", [True, False], ids=["main", "thread"])
@pytest.mark.parametrize("way", WAITS)
def test_a_program_may_wait_for_its_keys_in_any_way(way: str, is_main: bool) -> None:
    script = f"""
import select, threading
def get():
    {WAITS[way]}
    os.write(1, b"got %r\\n" % os.read(2, 1))
before = termios.tcgetattr(2)
tty.setcbreak(2)
os.write(1, b"press\\n")
thread = threading.Thread(target=get)
get() if {is_main} else (thread.start(), thread.join())
termios.tcsetattr(2, termios.TCSADRAIN, before)
"""
    with relayed(*python(script)) as terminal:
        terminal.has_shown(b"press")
        terminal.type(b"k")
        terminal.has_shown(b"got b'k'")
        assert terminal.ended() == 0


def test_keys_that_no_program_waits_for_on_its_output_stay_in_the_terminal() -> None:
    """A curses program is busy: what is typed is for its next read, from its input."""
    script = (
        "before = termios.tcgetattr(1); tty.setcbreak(1); os.write(1, b'press\\n'); time.sleep(0.5)\n"
        "os.write(1, b'got %r\\n' % os.read(0, 9)); termios.tcsetattr(1, termios.TCSADRAIN, before)"
    )
    with relayed(*python(script)) as terminal:
        terminal.has_shown(b"press")
        terminal.type(b"abc")
        terminal.has_shown(b"got b'abc'")
        assert terminal.ended() == 0
