"""The live region, drawn on a real pseudo-terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import shutil
import struct
import subprocess
import sys
import termios
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from buildd.ui.live import OUTPUT_LINES, LiveView, region
from buildd.ui.model import BuildModel
from buildd.ui.narrator import Narrator, Telling
from buildd.ui.screen import view_for
from buildd.ui.view import Writer
from protocol import messages
from protocol.messages import Event
from tests.support.recorded import START_NS, events, finished, good_build, line, replay, started
from tests.support.waiting import until


class Terminal:
    """The user's side of a pseudo-terminal: collects what is written."""

    def __init__(self, columns: int = 80, rows: int = 24) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.stream = os.fdopen(theirs, "w", encoding="utf-8")
        self._chunks: list[bytes] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                chunk = os.read(self._ours, 65536)
            except OSError:  # EIO: the other side is closed.
                return
            self._chunks.append(chunk)

    def so_far(self) -> str:
        """What was written so far."""
        return b"".join(self._chunks).decode(errors="replace").replace("\r\n", "\n")

    def text(self) -> str:
        """Everything that was written, after the end."""
        self.stream.close()
        self._reader.join()
        os.close(self._ours)
        return self.so_far()


def model_of(recorded: list[Event]) -> BuildModel:
    model = BuildModel()
    for event in recorded:
        model.apply(event)
    return model


def running_build() -> list[Event]:
    return good_build()[:7]


def test_the_region_shows_jobs_with_elapsed_and_expected_time() -> None:
    lines = region(model_of(running_build()), START_NS + 2_040_000_000, 80, 24)
    assert [text.text for text in lines] == [
        "  nvcc saxpy/src/a.cu.o  2.0 s / ~3.0 s",
        "  nvcc norm/src/d.cu.o  2.0 s",
        "################........  [0/2] 2 hits  2.0 s, ~1.0 s left",
    ]


def test_no_time_is_said_to_be_left_while_a_job_takes_much_longer_than_expected() -> None:
    model = model_of(running_build())
    late = Event(
        request_id=messages.RequestId("r1"),
        sequence=99,
        time_ns=START_NS + 17_000_000_000,
        body=messages.Progress(done=2, total=4, hits=2, misses=2, running=2, eta_s=3.0),
    )
    model.apply(late)
    *_, status = region(model, START_NS + 17_200_000_000, 80, 24)
    assert status.text.endswith("[0/2] 2 hits  17.2 s")


@pytest.mark.parametrize("columns", [1, 2, 5, 12, 20, 33, 40, 79, 200])
@pytest.mark.parametrize("rows", [1, 2, 4, 10])
def test_no_line_is_wider_and_no_region_higher_than_the_terminal(columns: int, rows: int) -> None:
    jobs = [(0.0, started(number, f"target/src/a_rather_long_name_{number}.cu.o")) for number in range(50)]
    lines = region(model_of(events(*jobs)), START_NS, columns, rows)
    assert 1 <= len(lines) <= rows
    assert all(len(text.text) <= columns for text in lines)


def test_jobs_that_do_not_fit_are_counted() -> None:
    jobs = [(0.0, started(number, f"a{number}.o")) for number in range(50)]
    lines = [text.text for text in region(model_of(events(*jobs)), START_NS, 80, 10)]
    assert len(lines) <= 10
    assert "  and 44 more jobs" in lines


def test_a_waiting_build_says_what_it_waits_for() -> None:
    waiting = messages.Progress(done=0, total=2, waiting_for="memory: needs 1.9 GiB, 0.8 GiB free")
    lines = [text.text for text in region(model_of(events((0, waiting))), START_NS, 80, 10)]
    assert lines[0] == "  waiting for memory: needs 1.9 GiB, 0.8 GiB free"


def test_progress_never_goes_past_the_end_and_time_never_below_zero() -> None:
    model = model_of(running_build())
    before = 0.0
    for seconds in (-100, 0, 1, 2, 100, 10_000):
        now_ns = START_NS + seconds * 1_000_000_000
        assert before <= model.fraction(now_ns) < 1, "a bar never goes back"
        before = model.fraction(now_ns)
        assert model.remaining_s(now_ns) >= 0
        assert model.elapsed_s(now_ns) >= 0


def live(terminal: Terminal, *, quiet_s: float = 0.0, colour: bool = True, steps: bool = False) -> LiveView:
    narrator = Narrator(Telling(listing=False, steps=steps, output_lines=OUTPUT_LINES, build="b1"))
    return LiveView(Writer(terminal.stream, colour=colour), narrator, quiet_s=quiet_s, now_ns=lambda: START_NS)


def test_a_long_build_is_drawn_and_taken_away_again() -> None:
    terminal = Terminal()
    view = live(terminal)
    recorded = good_build()
    for event in recorded[:8]:
        view.event(event)
    until(lambda: "nvcc saxpy/src/a.cu.o" in terminal.so_far(), "the running job is not drawn")
    for event in recorded[8:]:
        view.event(event)
    view.close()
    text = terminal.text()
    assert "nvcc saxpy/src/a.cu.o" in text
    assert "\x1b[33msrc/d.cu(3): warning #177-D" in text
    assert text.count("variable was declared but never referenced") == 1
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1, "the cursor is given back"
    assert text.endswith("\x1b[32mbuilt 2 targets: 2 hits, 2 compiled, 3.3 s (saved 92 s)\x1b[0m\n")


def test_a_short_build_shows_its_summary_only_and_draws_nothing() -> None:
    terminal = Terminal()
    view = live(terminal, quiet_s=60, colour=False)
    replay(view, good_build())
    assert not view.drawn.is_set()
    assert terminal.text() == (
        "-- nvcc norm/src/d.cu.o\n"
        "src/d.cu(3): warning #177-D: variable was declared but never referenced\n"
        "  saxpy  build/saxpy.so  1.2 MiB\n"
        "built 2 targets: 2 hits, 2 compiled, 3.3 s (saved 92 s)\n"
    )


def test_ten_megabytes_of_output_are_cut_on_a_terminal_and_the_rest_is_named() -> None:
    terminal = Terminal()
    view = live(terminal, colour=False)
    first, noise, last = events((0, started(1, "a.o")), (1, line(1, "y" * 99)), (2, finished(1, "a.o", 1.0)))
    view.event(first)
    assert view.drawn.wait(20)
    for _ in range(100_000):
        view.event(noise)
    replay(view, [last])
    text = terminal.text()
    assert text.count("y" * 99) == OUTPUT_LINES
    assert f"({100_000 - OUTPUT_LINES} more lines of output: buildd log b1)" in text


def test_a_job_that_ended_is_not_drawn_below_the_line_that_says_so() -> None:
    terminal = Terminal()
    view = live(terminal, colour=False, steps=True)
    first, second, end = events((0, started(1, "a.o")), (0, started(2, "b.o")), (1, finished(1, "a.o", 1.0)))
    view.event(first)
    view.event(second)
    assert view.drawn.wait(20)
    view.event(end)
    try:
        until(lambda: "a.o  1.0 s" in terminal.so_far(), "the end is not told")
    finally:
        view.close()
        text = terminal.text()
    _, _, below = text.partition("a.o  1.0 s")
    assert "b.o" in below and "a.o" not in below


@pytest.mark.parametrize("columns", [4, 20])
def test_a_narrow_terminal_is_not_overrun(columns: int) -> None:
    terminal = Terminal(columns=columns, rows=5)
    view = live(terminal, colour=False)
    for event in running_build():
        view.event(event)
    assert view.drawn.wait(20)
    view.close()
    drawn = terminal.text()
    for text in drawn.replace("\x1b[1A", "\n").replace("\x1b[2K", "\n").splitlines():
        visible = text.replace("\x1b[?25l", "").replace("\x1b[?25h", "").replace("\r", "")
        assert len(visible) < columns


def test_no_color_draws_without_colours() -> None:
    terminal = Terminal()
    view = view_for(
        terminal.stream, sys.stderr, json=False, telling=Telling(), environ={"TERM": "xterm", "NO_COLOR": "1"}
    )
    assert isinstance(view, LiveView)
    for event in running_build():
        view.event(event)
    assert view.drawn.wait(20)
    view.close()
    text = terminal.text()
    assert "nvcc saxpy/src/a.cu.o" in text
    assert "\x1b[3" not in text


def test_a_dumb_terminal_gets_plain_lines() -> None:
    terminal = Terminal()
    replay(view_for(terminal.stream, sys.stderr, json=False, telling=Telling(), environ={"TERM": "dumb"}), good_build())
    text = terminal.text()
    assert "\x1b" not in text
    assert text.startswith("hit saxpy/src/b.cu.o (saved 2.1 s)\n")


def test_a_terminal_that_hangs_up_does_not_end_the_build() -> None:
    ours, theirs = pty.openpty()
    stream = os.fdopen(theirs, "w")
    view = LiveView(Writer(stream), Narrator(Telling(listing=False)), quiet_s=0.0)
    os.close(ours)
    replay(view, good_build())
    with suppress(OSError):
        stream.close()


def test_rich_is_imported_only_once_something_is_drawn() -> None:
    code = (
        "import sys, buildd.commands.build\n"
        "from buildd.ui.live import LiveView\n"
        "from buildd.ui.view import Writer\n"
        "from buildd.ui.narrator import Narrator\n"
        "view = LiveView(Writer(sys.stdout), Narrator(), quiet_s=60)\n"
        "view.close()\n"
        "print(any(name.partition('.')[0] == 'rich' for name in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "False\n"


def test_a_narrower_terminal_keeps_no_row_of_the_region(tmp_path: Path) -> None:
    """tmux wraps lines anew, as most terminals do; it scrolls what is above the region away."""
    if not shutil.which("tmux"):
        pytest.skip("no tmux (Debian: apt install tmux)")
    go = tmp_path / "go"
    program = tmp_path / "program.py"
    program.write_text(
        "import os, sys, time\n"
        "from buildd.ui.richlive import live_on\nfrom buildd.ui.text import Line\n"
        "print('above one\\nabove two')\n"
        "lines = lambda columns, rows: [Line((f'job {n} ' + 'x' * 90)[:columns]) for n in range(3)]\n"
        "with live_on(sys.stdout, False, lines) as live:\n"
        "    size = None\n"
        f"    while not os.path.exists({str(go)!r}):\n"
        "        if size != os.get_terminal_size():\n"
        "            live.settle(); live.refresh(); size = os.get_terminal_size()\n"
        "        time.sleep(0.02)\n"
        "    live.settle(); live.refresh()\n"
        "print('below'); sys.stdout.flush(); time.sleep(60)\n"
    )
    tmux = ("tmux", "-S", str(tmp_path / "socket"))
    environ = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join(sys.path),
        "LC_ALL": "C.UTF-8",
        "TERM": "xterm",
    }

    def call(*words: str) -> str:
        return subprocess.run((*tmux, *words), env=environ, capture_output=True, text=True, check=True).stdout

    call("-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "24", f"{sys.executable} -P {program}")
    try:
        until(lambda: "job 2" in call("capture-pane", "-p"), "the region is not drawn")
        for columns in (40, 90, 55):
            call("resize-window", "-x", str(columns), "-y", "24")

            def shown() -> list[str]:
                return [line for line in call("capture-pane", "-p").splitlines() if line and "above" not in line]

            wanted = [f"job {number} {'x' * (columns - 7)}" for number in range(3)]
            until(lambda shown=shown, wanted=wanted: shown() == wanted, f"rows of before stay at {columns} columns")
        go.write_text("")
        until(lambda: shown() == ["below"], "the region is not removed")
    finally:
        call("kill-server")
