"""Digests remembered by stamps, and when a stamp is not believed."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from buildd.files import kernel_clock, patient_lock
from buildd.files.digests import Fact, Files
from buildd.files.snapshot import Snapshot
from buildd.files.stamp import Stamp, stamp_of, trustworthy
from buildd.files.traits import Traits, traits_of
from protocol.messages import Digest

SECOND = 1_000_000_000


def old(path: Path, age_s: float = 10.0) -> None:
    """Give a file a past mtime; its ctime stays now, so tests that need trust move the clock."""
    then = time.time() - age_s
    os.utime(path, (then, then))


def later() -> int:
    return kernel_clock.now_ns() + 60 * SECOND


def test_a_file_is_read_once_while_its_stamp_stays(tmp_path: Path) -> None:
    source = tmp_path / "a.cu"
    source.write_text("one")
    files = Files(now_ns=later)
    assert files.fact(str(source)) == files.fact(str(source))
    assert files.read_count == 1
    source.write_text("other")
    assert files.fact(str(source)) != Files().fact(str(tmp_path / "nothing"))
    assert files.read_count == 2


def test_a_file_that_several_threads_want_at_once_is_read_once(tmp_path: Path) -> None:
    paths = [str(tmp_path / f"{number}.h") for number in range(200)]
    for path in paths:
        Path(path).write_text(f"#define PATH_{path}")
    files, together = Files(now_ns=later), threading.Barrier(4)

    def see() -> list[Fact | None]:
        together.wait(60)
        snapshot = Snapshot(files, str(tmp_path))
        snapshot.see(paths)
        return [snapshot.fact(path) for path in paths]

    with ThreadPoolExecutor(4) as threads:
        seen = [done.result(60) for done in [threads.submit(see) for _ in range(4)]]
    assert files.read_count == len(paths)
    assert seen == [[Files().fact(path) for path in paths]] * 4


def test_nobody_waits_for_long_for_who_reads_from_a_server_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patient_lock, "PATIENCE_S", 0.05)
    (tmp_path / "a.h").write_text("one")
    answers, reading = threading.Event(), threading.Event()

    class Slow(Files):
        def _read(self, path: str) -> Fact | None:
            if path.endswith("slow.h"):
                reading.set()
                answers.wait(60)
            return super()._read(path)

    files = Slow(now_ns=later)
    (tmp_path / "slow.h").write_text("two")
    stuck = threading.Thread(target=Snapshot(files, str(tmp_path)).see, args=(["slow.h"],))
    stuck.start()
    try:
        assert reading.wait(60)
        other = Snapshot(files, str(tmp_path))
        other.see(["a.h"])
        assert stuck.is_alive() and other.has_seen("a.h")
    finally:
        answers.set()
        stuck.join(60)


def test_what_a_request_has_made_is_not_looked_for_on_the_disk(tmp_path: Path) -> None:
    (tmp_path / "made.h").write_text("of another day")
    snapshot = Snapshot(Files(now_ns=later), str(tmp_path))
    snapshot.make("made.h", Digest("of today"))
    snapshot.see(["made.h"])
    assert snapshot.is_aside("made.h") and snapshot.digest("made.h") == "of today"


def test_a_young_stamp_is_not_remembered(tmp_path: Path) -> None:
    source = tmp_path / "a.cu"
    source.write_text("one")
    files = Files(now_ns=lambda: os.stat(source).st_ctime_ns)
    files.fact(str(source))
    files.fact(str(source))
    assert files.read_count == 2, "written in the same tick: read again"


def test_a_stamp_of_the_future_is_not_remembered() -> None:
    now = kernel_clock.now_ns()
    assert not trustworthy(Stamp(1, 1, 1, now + SECOND, now - SECOND), now)
    assert trustworthy(Stamp(1, 1, 1, now - SECOND, now - 30_000_001), now)


def test_coarse_stamps_need_two_seconds(tmp_path: Path) -> None:
    """A file system that stamps in seconds: a same-size write in the same second leaves the stamp as it is."""
    source = tmp_path / "a.cu"

    def coarse(path: str) -> Stamp | None:
        stamp = stamp_of(path)
        return stamp and stamp._replace(
            mtime_ns=stamp.mtime_ns // SECOND * SECOND, ctime_ns=stamp.ctime_ns // SECOND * SECOND
        )

    source.write_text("one")
    written = coarse(str(source))
    assert written is not None
    half_a_second_on = Files(stat=coarse, now_ns=lambda: written.ctime_ns + SECOND // 2)
    first = half_a_second_on.fact(str(source))
    source.write_text("two")
    os.utime(source, ns=(written.mtime_ns, written.mtime_ns))
    assert half_a_second_on.fact(str(source)) != first
    three_seconds_on = Files(stat=coarse, now_ns=lambda: written.ctime_ns + 3 * SECOND)
    three_seconds_on.fact(str(source))
    three_seconds_on.fact(str(source))
    assert three_seconds_on.read_count == 1


def test_what_was_learned_outlives_the_process(tmp_path: Path) -> None:
    class Memory:
        def __init__(self):
            self.rows = {}

        def digests_for(self, keys):
            return {k: self.rows[k] for k in keys if k in self.rows}

        def save_digests(self, rows):
            self.rows.update({(r[0], r[1]): r for r in rows})

    source = tmp_path / "a.cu"
    source.write_text("x = __FILE__;")
    memory = Memory()
    first = Files(memory, now_ns=later)
    seen = first.fact(str(source))
    first.save()
    second = Files(memory, now_ns=later)
    assert second.fact(str(source)) == seen
    assert second.read_count == 0
    assert seen is not None and seen.traits == Traits.PATHS


@pytest.mark.parametrize(
    ("text", "traits"),
    [
        (b"int x;", Traits.NONE),
        (b"puts(__FILE__);", Traits.PATHS),
        (b"std::source_location::current()", Traits.PATHS | Traits.PATHS_LATER),
        (b"assert(x);", Traits.ASSERT),
        (b"static_assert(x);", Traits.NONE),
        (b"// assert(x)\n/* __FILE__ */", Traits.NONE),
        (b"#  define assert(e) \\\n  f(__FILE__)\n", Traits.NONE),
        (b"#define CHECK(e) f(__FILE__)\n", Traits.PATHS),
        (b"__DATE__", Traits.TIME),
        (b"puts(__FI\\\nLE__);", Traits.PATHS),
        (b"#define F __FI ## LE__\n", Traits.PATHS | Traits.PATHS_LATER),
        (b"#define F(x) #x \\\n  __TIMES %:%:TAMP__\n", Traits.TIMESTAMP | Traits.PASTED),
        (b"#define CAT(a, b) a ## b\n", Traits.NONE),
        (b'here:.INCBIN "x"', Traits.EMBED),
        (b'here:.include "x"', Traits.EMBED),
        (b'asm(".data\\n.INCLUDE \\"x\\"");', Traits.EMBED),
        (b'asm(TEXT(.include "x"));', Traits.EMBED),
        (b'asm(".inc"\n    "lude \\"x\\"");', Traits.EMBED),
        (b'__asm__(".inc" "bin \\"x\\"");', Traits.EMBED),
        (b'__asm__(".inc" /* a */ "bin \\"x\\"");', Traits.EMBED),
        (b'#define B "bin"\nasm(".inc" B " \\"x\\"");', Traits.EMBED),
        (b'#define A ".INC"\nasm(A "bin \\"x\\"");', Traits.EMBED),
        (b'#define DOT "."\nasm(DOT "incbin \\"x\\"");', Traits.EMBED),
        (b'#include "a.inc"\nasm("nop");', Traits.NONE),
        (b"Filter filter = {.include = 1, .exclude = 0};", Traits.NONE),
        (b"Filter filter = { .depth = 1, .include = 1 };", Traits.NONE),
        (b"puts(__PRETTY_FUNCTION__);", Traits.TYPE_NAMES),
        (b"__FILE__ __TIME__", Traits.PATHS | Traits.TIME),
        (b"char *t = PASTE(__TI, ME__);", Traits.PASTED),
        (b"char *t = PASTE(_, \\\n _DATE__);", Traits.PASTED),
        (b"#define UND(x) __##x##__\nchar *t = UND(TIMESTAMP);", Traits.PASTED),
        (b"#define THREE(x, y, z) x##y##z\nchar *t = THREE(__, DATE, __);", Traits.PASTED),
        (b"#define PASTE(x, y) x##y\nchar *t = PASTE(__TIME_, _);", Traits.PASTED),
        (b"char *f = PASTE(__FI, LE__);", Traits.PATHS | Traits.PATHS_LATER),
        (b"// PASTE(__TI, ME__)\nint E, TIME; __SIZE_TYPE__ a;", Traits.NONE),
        (b"#define PASTE(x, y) x##y\nint close(FILE *); typedef int __TIME, __FILE;", Traits.NONE),
        (b'asm(".incbin \\"x\\"");', Traits.EMBED),
        (b'#embed "x"', Traits.EMBED),
        (b'# \\\n embed "x"', Traits.EMBED),
        (b"#embedded", Traits.NONE),
        (b'#pragma GCC \\\n dependency "x.y" again', Traits.AGE),
        (b'_Pragma("clang dependency \\"x.y\\"")', Traits.AGE),
        (b"// GCC dependency\nint dependency;", Traits.NONE),
        (b"// one day: use #embed here", Traits.NONE),
        (b"# pragma \\\n once\n", Traits.ONCE),
        (b'_Pragma(L"once")', Traits.ONCE),
        (b"#pragma unroll // once", Traits.NONE),
        (b"# /* as */ import <x.h>", Traits.IMPORT),
        (b"import once;", Traits.NONE),
        (b"bool known = a.set.include(b) && set.included_.size();", Traits.NONE),
        (b"#if __has_include(<x>)", Traits.HAS_INCLUDE),
        (b'#include "a/../x.h"', Traits.HAS_INCLUDE),
        (b'#include "x.h" // see ../y.h', Traits.NONE),
        (b"\x7fELF\0__FILE__", Traits.NONE),
        (b"BC\xc0\xde\0__FILE__", Traits.NONE),
    ],
)
def test_traits(text: bytes, traits: Traits) -> None:
    assert traits_of(text) == traits


def test_a_snapshot_knows_what_held_still(tmp_path: Path) -> None:
    source = tmp_path / "a.cu"
    source.write_text("one")
    snapshot = Snapshot(Files(), str(tmp_path))
    before = snapshot.digest("a.cu")
    later_ns = kernel_clock.now_ns() + 1
    assert snapshot.steady("a.cu", later_ns)
    source.write_text("two")
    assert snapshot.digest("a.cu") == before, "one view for the whole request"
    assert not snapshot.steady("a.cu", later_ns)
    source.write_text("one")
    assert not snapshot.steady("a.cu", later_ns), "changed and changed back: nobody knows what was read in between"
    source.unlink()
    assert not snapshot.steady("a.cu", later_ns)


def test_what_was_seen_only_after_the_run_began_must_be_older_than_it(tmp_path: Path) -> None:
    source = tmp_path / "a.cu"
    source.write_text("one")
    began_ns = kernel_clock.now_ns()
    snapshot = Snapshot(Files(), str(tmp_path))
    snapshot.fact("a.cu")
    assert not snapshot.steady("a.cu", began_ns)
    assert snapshot.steady("a.cu", began_ns + SECOND)


def test_a_write_in_the_same_tick_as_the_look_is_seen(tmp_path: Path) -> None:
    source = tmp_path / "a.cu"
    source.write_text("one")
    frozen = stamp_of(str(source))
    assert frozen is not None
    snapshot = Snapshot(Files(stat=lambda path: frozen, now_ns=lambda: frozen.ctime_ns + 1_000_000), str(tmp_path))
    snapshot.fact("a.cu")
    source.write_text("two")
    assert not snapshot.steady("a.cu", kernel_clock.now_ns())


def test_a_folder_that_just_changed_has_no_trusted_stamp(tmp_path: Path) -> None:
    (tmp_path / "new").touch()
    touched_ns = tmp_path.stat().st_mtime_ns
    assert Snapshot(Files(now_ns=lambda: touched_ns), str(tmp_path)).folder_stamp(".") == -1
    settled = Snapshot(Files(now_ns=later), str(tmp_path))
    assert settled.folder_stamp(".") > 0
    assert settled.folder_stamp("nothing") == 0


def test_whether_something_young_was_seen(tmp_path: Path) -> None:
    (tmp_path / "a.cu").write_text("x")
    (tmp_path / "b.cu").write_text("x")
    stamp = stamp_of(str(tmp_path / "a.cu"))
    assert stamp is not None
    now_ns = stamp.ctime_ns + SECOND
    snapshot = Snapshot(Files(now_ns=lambda: now_ns), str(tmp_path))
    assert not snapshot.has_seen_young(), "nothing was seen"
    snapshot.fact("a.cu")
    snapshot.fact("nothing")
    assert not snapshot.has_seen_young()
    now_ns = stamp.ctime_ns + SECOND // 1000
    assert snapshot.has_seen_young()


def test_names_that_are_no_utf8(tmp_path: Path) -> None:
    name = os.fsdecode(b"k\xe9rnel.cu")
    (tmp_path / name).write_text("x")
    assert Snapshot(Files(), str(tmp_path)).digest(name) is not None
