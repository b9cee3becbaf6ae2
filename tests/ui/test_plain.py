"""Plain lines and JSON lines from recorded builds."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import msgspec
import pytest

from buildd.artifacts.diagnostics import diagnose
from buildd.ui.narrator import Narrator, Telling, Verbosity
from buildd.ui.plain import PlainView
from buildd.ui.screen import has_colour, is_terminal, telling_from, view_for
from buildd.ui.text import Line, Style, broken, clean, compiler_line, duration, shortened, size, tool_of
from buildd.ui.view import Writer
from protocol import messages
from protocol.messages import Event, JobId, Mode, Outcome, Progress, RequestId
from tests.support.recorded import events, failed_build, finished, good_build, hit, line, replay, started


def told(recorded: list[Event], telling: Telling | None = None, *, colour: bool = False) -> str:
    stream = io.StringIO()
    replay(PlainView(Writer(stream, colour=colour), Narrator(telling or Telling(build="b1"))), recorded)
    return stream.getvalue()


def test_a_good_build() -> None:
    assert told(good_build()) == (
        "hit saxpy/src/b.cu.o (saved 2.1 s)\n"
        "hit norm/src/c.cu.o (saved 90 s)\n"
        "[1/2] nvcc norm/src/d.cu.o 2.1 s\n"
        "src/d.cu(3): warning #177-D: variable was declared but never referenced\n"
        "[2/2] nvcc saxpy/src/a.cu.o 3.2 s\n"
        "  saxpy  build/saxpy.so  1.2 MiB\n"
        "built 2 targets: 2 hits, 2 compiled, 3.3 s (saved 92 s)\n"
    )


def test_a_failure_names_everything_once() -> None:
    text = told(failed_build())
    assert text == (
        "[1/1] FAILED nvcc saxpy/src/a.cu.o after 0.5 s: nvcc ended with status 2\n"
        'src/a.cu(7): error: identifier "blockIdy" is undefined\n'
        "          ^\n"
        "src/x.h: error: expected a )\n"
        "  command: nvcc -c 'src/a b.cu'\n"
        "  next: fix src/a.cu, line 7\n"
        "failed: 1 action failed, 0 hits, 0 compiled, 0.7 s\n"
    )


def test_a_result_that_could_not_be_put_in_place_is_one_action_that_failed() -> None:
    """Its tool has ended well before, and was counted then."""
    names = ("k1.o", "k2.o", "libk.so")
    ran = [(0.1 * n, body) for n, name in enumerate(names) for body in (started(n + 1, name), finished(n + 1, name, 1))]
    full = messages.Failed(
        job_id=JobId(3), action="libk.so", kind=messages.FailureKind.STORE, message="no space left on the disk"
    )
    done = messages.Done(outcome=Outcome.FAILED, misses=3, failures=1, wall_s=0.7)
    lines = told(events((0, messages.Planned(targets=("k",), actions=3)), *ran, (0.6, full), (0.7, done))).splitlines()
    assert lines[2:] == [
        "[3/3] nvcc libk.so 1.0 s",
        "[3/3] FAILED libk.so: no space left on the disk",
        "failed: 1 action failed, 0 hits, 2 compiled, 0.7 s",
    ]


def test_colour_only_where_asked() -> None:
    assert "\x1b" not in told(failed_build())
    coloured = told(failed_build(), colour=True)
    assert '\x1b[1;31msrc/a.cu(7): error: identifier "blockIdy" is undefined\x1b[0m\n' in coloured


def test_reasons_of_misses_when_asked() -> None:
    text = told(good_build(), Telling(reasons=True))
    assert "miss saxpy/src/a.cu.o: input src/a.cu changed\n" in text
    assert "hit saxpy/src/b.cu.o (saved 2.1 s): all inputs are as before\n" in text


def test_a_cancelled_build_keeps_what_its_jobs_had_said() -> None:
    text = told(
        events(
            (0, messages.Planned(targets=("t",), actions=3)),
            (0, started(1, "t/a.o")),
            (1, line(1, "thinking about a template")),
            (2, messages.Done(outcome=Outcome.CANCELLED, wall_s=2.0)),
        )
    )
    assert text == (
        "-- nvcc t/a.o (not finished)\nthinking about a template\n"
        "cancelled after 2.0 s: 0 hits, 0 compiled, 3 actions planned\n"
    )


def test_output_of_parallel_jobs_is_not_mixed() -> None:
    text = told(
        events(
            (0, started(1, "a.o")),
            (0, started(2, "b.o")),
            (1, line(1, "a says")),
            (1, line(2, "b says")),
            (1, line(1, "a says more")),
            (2, finished(2, "b.o", 1.0)),
            (3, finished(1, "a.o", 2.0)),
        )
    )
    assert text == "[1/2] nvcc b.o 1.0 s\nb says\n[2/2] nvcc a.o 2.0 s\na says\na says more\n"


def test_ten_megabytes_of_output_pass_through() -> None:
    text = "x" * 99
    lines = [(1.0, line(1, text))] * 100_000
    output = told(events((0, started(1, "a.o")), *lines, (2, finished(1, "a.o", 1.0))))
    assert output.count(text) == 100_000


def test_a_replayed_warning_of_a_hit_follows_its_line() -> None:
    text = told(events((0, hit(1, "a.o", 0.0)), (0, line(1, "a.cu: warning: old")), (0, hit(2, "b.o", 0.0))))
    assert text == "hit a.o\na.cu: warning: old\nhit b.o\n"


def test_the_build_begins_anew_where_another_daemon_takes_it_over() -> None:
    first = good_build()[:8]
    text = told([*first, *good_build()])
    assert text.count("variable was declared but never referenced") == 1
    assert text.endswith("built 2 targets: 2 hits, 2 compiled, 3.3 s (saved 92 s)\n")
    assert "[2/2] nvcc saxpy/src/a.cu.o 3.2 s\n" in text
    assert "[5/" not in text


def test_waiting_is_said_but_not_on_every_progress() -> None:
    def waits(free: str) -> messages.Progress:
        return messages.Progress(done=0, total=2, waiting_for=f"memory: needs 1.9 GiB, {free} GiB free")

    text = told(events((0, waits("0.8")), (1, waits("0.7")), (20, waits("0.6"))))
    assert text == (
        "waiting for memory: needs 1.9 GiB, 0.8 GiB free\nwaiting for memory: needs 1.9 GiB, 0.6 GiB free\n"
    )


_WHY = "    flag -O3 added\n    input a.cu changed\n"


@pytest.mark.parametrize(
    ("mode", "would_run", "expected"),
    [
        (Mode.EXPLAIN, True, f"would run a.o\n{_WHY}1 action: 0 would hit, 1 would run\n"),
        (Mode.EXPLAIN, False, f"hit a.o\n{_WHY}1 action: 1 would hit, 0 would run\n"),
        (Mode.PROVE, True, f"would run a.o\n{_WHY}not warm: 1 of 1 action would still run\n"),
        (Mode.PROVE, False, "warm: nothing would run, 1 hit\n"),
    ],
)
def test_explain_and_prove(mode: Mode, would_run: bool, expected: str) -> None:
    reasons = ("flag -O3 added", "input a.cu changed")
    recorded = events(
        (0, messages.Explained(action="a.o", would_run=would_run, reasons=reasons)),
        (0, messages.Done(outcome=Outcome.BUILT)),
    )
    assert told(recorded, Telling(mode=mode)) == expected


def test_a_proof_says_how_many_models_it_traced() -> None:
    job = messages.JobId(1)
    recorded = events(
        (0, messages.Started(job_id=job, action="net.exported.pt2", command="python")),
        (1, messages.Finished(job_id=job, action="net.exported.pt2", timing=messages.Timing())),
        (2, messages.Done(outcome=Outcome.BUILT, hits=2)),
    )
    text = told(recorded, Telling(mode=Mode.PROVE))
    assert text.endswith("warm: nothing would be compiled, 2 hits, 1 model traced\n"), text


_SAID_ONCE = {
    "a warning of nvcc's that is an error": (
        'bad.cu(1): error #117-D: non-void function "f" should return a value\n  int f() {}\n           ^\n'
    ),
    "a long error of nvcc's": (
        'a.cu(3): error: no instance of function template "f" matches the argument list\n'
        "            argument types are: (int)\n  void g() { f(1); }\n             ^\n"
    ),
    "a warning of gcc's that is an error": "a.cpp:1:5: error: unused variable ‘x’ [-Werror=unused-variable]\n",
    "no definition": "/usr/bin/ld: a.o: in function `main':\na.cu:(.text+0x5): undefined reference to `f()'\n",
    "two definitions": "/usr/bin/ld: b.o: in function `f()':\nb.cu:(.text+0x0): multiple definition of `f()'; a.o\n",
    "no library": "/usr/bin/ld: cannot find -lnosuch: No such file or directory\n",
    "no object": "/usr/bin/ld: a.o: file format not recognized; treating as linker script\n",
}


@pytest.mark.parametrize("listing", [True, False])
@pytest.mark.parametrize("said", _SAID_ONCE.values(), ids=_SAID_ONCE)
def test_an_error_that_a_tool_has_printed_is_not_told_again(said: str, listing: bool) -> None:
    job, found = messages.JobId(1), diagnose(said)
    failed = messages.Failed(
        job_id=job, action="t", kind=messages.FailureKind.COMPILE_ERROR, message="it failed", diagnostics=found
    )
    recorded = events(
        (0, messages.Started(job_id=job, action="t", command="nvcc")),
        *((0, messages.LogLine(job_id=job, stream="stderr", text=line)) for line in said.splitlines()),
        (1, failed),
    )
    assert found
    lines = told(recorded, Telling(listing=listing)).splitlines()
    assert sum(line in said.splitlines() for line in lines) == len(lines) - (2 if listing else 3), lines


def test_equal_messages_of_failures_are_told_once() -> None:
    def failure(number: int, text: str) -> list[messages.EventBody]:
        job, action = JobId(number), f"t/{number}.o"
        started = messages.Started(job_id=job, action=action, command=f"nvcc {number}.cu", kind="nvcc")
        log = messages.LogLine(job_id=job, stream="stderr", text=text)
        kind = messages.FailureKind.COMPILE_ERROR
        return [started, log, messages.Failed(job_id=job, action=action, kind=kind, message="it failed")]

    bodies = [*failure(1, "nvcc fatal: no"), *failure(2, "nvcc fatal: no"), *failure(3, "nvcc fatal: other")]
    lines = told(events(*((0, body) for body in bodies)), Telling())
    assert lines.count("nvcc fatal: no\n") == 1 and lines.count("nvcc fatal: other\n") == 1, lines
    assert "FAILED nvcc t/2.o: it failed\n  the same messages as nvcc t/1.o\n" in lines
    whole = told(events(*((0, body) for body in bodies)), Telling(complete=True))
    assert whole.count("nvcc fatal: no\n") == 2, "a log leaves nothing out"


def test_a_file_that_no_action_uses_is_named() -> None:
    nothing = told(events((0, messages.Done(outcome=Outcome.BUILT))), Telling(mode=Mode.EXPLAIN, only="src/z.cu"))
    assert nothing == "no action uses src/z.cu\n"
    done = messages.Done(outcome=Outcome.BUILT, message="no build has read src/z.h yet")
    assert told(events((0, done)), Telling(mode=Mode.EXPLAIN, only="src/z.h")) == "no build has read src/z.h yet\n"


def test_verbosity_follows_loglevel() -> None:
    quiet = told(good_build(), telling_from({"LOGLEVEL": "WARNING"}, Telling()))
    assert "[1/4]" not in quiet
    assert "warning #177-D" in quiet
    assert quiet.endswith("built 2 targets: 2 hits, 2 compiled, 3.3 s (saved 92 s)\n")
    assert told(good_build(), telling_from({"LOGLEVEL": "ERROR"}, Telling())) == ""
    assert "start norm/src/d.cu.o: cd /p && " in told(good_build(), telling_from({"LOGLEVEL": "10"}, Telling()))
    assert Verbosity.parse("nonsense") is Verbosity.INFO


def test_that_all_processors_are_busy_is_not_worth_a_line() -> None:
    def waiting(reason: str) -> str:
        progress = Progress(done=0, total=2, running=2, waiting_for=reason)
        return told([Event(request_id=RequestId("r"), sequence=1, time_ns=1, body=progress)], Telling())

    assert waiting("cpu: all 2 are taken") == ""
    assert waiting("memory: needs 1.9 GiB, 0.8 GiB free") == "waiting for memory: needs 1.9 GiB, 0.8 GiB free\n"


def test_json_lines_are_the_events(tmp_path: Path) -> None:
    out, err = tmp_path / "out", tmp_path / "err"
    with out.open("w") as stdout, err.open("w") as stderr:
        replay(view_for(stdout, stderr, json=True, telling=Telling(), environ={}), good_build())
    decoded = [msgspec.json.decode(text, type=Event) for text in out.read_text().splitlines()]
    assert decoded == good_build()
    assert json.loads(out.read_text().splitlines()[1])["body"]["type"] == "cache_hit"
    assert err.read_text().endswith("built 2 targets: 2 hits, 2 compiled, 3.3 s (saved 92 s)\n")


def test_a_reader_that_goes_away_does_not_end_the_build() -> None:
    reading, writing = os.pipe()
    stream = os.fdopen(writing, "w")
    os.close(reading)
    replay(PlainView(Writer(stream), Narrator()), good_build())
    stream.close()


def test_names_and_output_of_any_bytes_reach_a_latin1_stream() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="latin-1")
    name = b"src/caf\xe9.cu".decode("utf-8", "surrogateescape")
    replay(PlainView(Writer(stream), Narrator()), events((0, hit(1, name, 0)), (0, hit(2, "src/\u6838.cu", 0))))
    assert raw.getvalue() == b"hit src/caf\\xe9.cu\nhit src/\\u6838.cu\n"


def test_control_characters_never_get_out() -> None:
    nasty = "a\x1b[31mred\x1b[0m\x1b]0;title\x07 \rb\x08c\u202ed\te\x9b"
    text = told(events((0, started(1, "a.o")), (0, line(1, nasty)), (1, finished(1, "a.o", 1.0))))
    assert text == "[1/1] nvcc a.o 1.0 s\nared \\x0db\\x08c\\u202ed\te\\x9b\n"


def test_terminals() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    assert is_terminal(Terminal(), {"TERM": "xterm"})
    assert not is_terminal(Terminal(), {"TERM": "dumb"})
    assert not is_terminal(Terminal(), {})
    assert not is_terminal(io.StringIO(), {"TERM": "xterm"})
    assert has_colour(Terminal(), {"TERM": "xterm", "NO_COLOR": ""})
    assert not has_colour(Terminal(), {"TERM": "xterm", "NO_COLOR": "1"})
    assert not has_colour(Terminal(), {"TERM": "xterm", "CLICOLOR": "0"})
    pipe = io.StringIO()
    assert not has_colour(pipe, {"TERM": "xterm", "CLICOLOR_FORCE": "0", "FORCE_COLOR": ""})
    assert has_colour(pipe, {"CLICOLOR_FORCE": "1"}) and has_colour(pipe, {"FORCE_COLOR": "3"})
    assert not has_colour(pipe, {"CLICOLOR_FORCE": "1", "NO_COLOR": "1"})
    assert has_colour(pipe, {"BUILDD_COLOR": "always", "NO_COLOR": "1"})
    assert not has_colour(Terminal(), {"TERM": "xterm", "BUILDD_COLOR": "never", "CLICOLOR_FORCE": "1"})
    assert has_colour(Terminal(), {"TERM": "xterm", "BUILDD_COLOR": "auto"})


def test_words() -> None:
    assert [duration(value) for value in (-1, 0.04, 0.0951, 3.24, 19.96, 119.6, 150, 7500)] == [
        "0.00 s", "0.04 s", "0.1 s", "3.2 s", "20 s", "2 min 00 s", "2 min 30 s", "2 h 05 min",
    ]  # fmt: skip
    assert [size(value) for value in (0, 1023, 1024, 1 << 20, 5 << 40)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.0 MiB",
        "5.0 TiB",
    ]
    assert tool_of("cd '/p q' && A=1 B='x y' '/opt/cuda 13/bin/nvcc' -c") == "nvcc"
    assert tool_of("/usr/bin/nvcc -c a.cu") == "nvcc"
    assert tool_of("") == ""
    assert tool_of(": && /usr/bin/c++ -fPIC -shared -o libops.so a.o && :") == "c++"
    assert tool_of(": && /usr/bin/cmake -E rm -f liba.a && /usr/bin/ar qc liba.a a.o && :") == "ar"
    assert tool_of("/opt/share/buildd-cc /usr/bin/c++ -c a.cc") == "c++"
    assert tool_of("cd /p/build && /usr/bin/cmake -E touch stamp") == "cmake"
    assert shortened("abcdefghij", 6) == "ab\u2026hij"
    assert [len(shortened("abcdefghij", width)) for width in range(11)] == list(range(11))
    assert clean("plain") == "plain"
    assert compiler_line("x.cu(1): error: no") == Line("x.cu(1): error: no", Style.ERROR)
    assert compiler_line("ptxas error   : Entry") == Line("ptxas error   : Entry", Style.ERROR)
    assert compiler_line("terror_errors.cu compiled").style is Style.PLAIN
    assert compiler_line("0 errors detected").style is Style.PLAIN
    assert compiler_line("a.cpp:1:2: warning: unused").style is Style.WARNING


def test_what_keeps_every_result_from_the_store_is_said_once_and_counted_at_the_end() -> None:
    note = "not stored: no space left on the disk of /store (free some space there)"
    text = told(
        events(
            (0, finished(1, "a.o", 0.1, note=note)),
            (0, finished(2, "b.o", 0.2, note=note)),
            (0, finished(3, "c.o", 0.3, note=note)),
            (0, messages.Done(outcome=messages.Outcome.BUILT, misses=3, wall_s=0.5)),
        )
    )
    assert text == (
        f"[1/1] a.o 0.1 s\nnote: a.o: {note}\n[2/2] b.o 0.2 s\n[3/3] c.o 0.3 s\n"
        f"note: 3 results: {note}\nbuilt: 0 hits, 3 compiled, 0.5 s\n"
    )


def test_lagged_and_notices() -> None:
    text = told(
        events(
            (0, messages.Lagged(first=3, last=9)),
            (0, messages.Notice(text="AIT_USE_FAST_MATH=1 acts", severity=messages.Severity.WARNING)),
            (0, finished(7, "a.o", 0.3, note="not stored: src/a.cu changed while it was compiled")),
        )
    )
    assert text == (
        "(7 events not shown; buildd log b1 has everything)\n"
        "warning: AIT_USE_FAST_MATH=1 acts\n"
        "[1/1] a.o 0.3 s\n"
        "note: a.o: not stored: src/a.cu changed while it was compiled\n"
    )
    assert JobId(7) == 7


def test_a_long_line_is_broken_between_words() -> None:
    said = "buildd: 0 hits, 12 misses (new 12), 3 passed through (link 3)"
    lines = broken(said, 30)
    assert lines == ["buildd: 0 hits, 12 misses (new", "  12), 3 passed through (link", "  3)"]
    assert broken(said, 0) == broken(said, 80) == [said]
    assert broken(f"see {'x' * 40} there", 20) == ["see", f"  {'x' * 40}", "  there"]
