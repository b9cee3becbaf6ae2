"""Plans, depfiles and stamps of foreign compiles."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from buildd.compiling import Delivery, make_rules, pieces
from buildd.stamps import Listing, Stamps, listed_names
from buildd.sweep import Sweep
from codegen.commandline import parse
from codegen.foreign import MARK, sent_variables, without_stand_ins
from codegen.parsing import Depfile, HandThrough, Reason

OLD = (1_700_000_000, 1_700_000_000)


def test_folders_of_stand_ins_are_no_part_of_a_tools_path(tmp_path: Path) -> None:
    (tmp_path / "ours" / MARK).mkdir(parents=True)
    (tmp_path / "theirs").mkdir()
    path = f"{tmp_path}/ours:{tmp_path}/theirs::/usr/bin"
    assert without_stand_ins(path) == f"{tmp_path}/theirs:/usr/bin"


def test_a_stand_in_sends_what_reaches_a_compiler_and_no_secret() -> None:
    names = sent_variables()
    assert {"PATH", "CPATH", "LC_*", "NVCC_APPEND_FLAGS", "SOURCE_DATE_EPOCH", "SUNPRO_DEPENDENCIES"} <= set(names)
    assert not {"HOME", "SSH_AUTH_SOCK", "BUILDD_TCP_KEY", "TMPDIR", "MAKEFLAGS"} & set(names)


def test_a_depfile_has_the_source_first_and_each_header_once() -> None:
    paths = ["a.h", "/usr/include/b c.h", "src/a.c", "d$.h"]
    depfile = Depfile(path="x.d", targets=("one", "two"), phony=True)
    wanted = "one two: src/a.c \\\n a.h \\\n /usr/include/b\\ c.h \\\n d$$.h\na.h:\n/usr/include/b\\ c.h:\nd$$.h:\n"
    assert make_rules(depfile, "src/a.c", paths, ()) == wanted.encode()
    user = Depfile(path="x.d", targets=("t",), system=False)
    assert make_rules(user, "src/a.c", paths, ("/usr/include/",)) == b"t: src/a.c \\\n a.h \\\n d$$.h\n"


def test_output_travels_in_pieces() -> None:
    data = os.urandom(600_000)
    assert b"".join(piece.data for piece in pieces("stderr", data)) == data
    assert len(pieces("stderr", data)) == 3 and pieces("stdout", b"") == []


@pytest.mark.parametrize("kind", ["folder", "link", "fifo", "missing folder"])
def test_an_output_that_is_no_plain_file_is_the_tools_own(tmp_path: Path, kind: str) -> None:
    output = tmp_path / "a.o"
    match kind:
        case "folder":
            output.mkdir()
        case "link":
            output.symlink_to("elsewhere")
        case "fifo":
            os.mkfifo(output)
        case _:
            output = tmp_path / "no" / "a.o"
    compile = parse(("/usr/bin/gcc", "-c", "a.c", "-o", str(output)), str(tmp_path))
    with pytest.raises(HandThrough) as why:
        Delivery(compile, str(tmp_path), 0o022, ()).check()
    assert why.value.reason is Reason.OUTPUT


def test_stamps_hold_until_something_that_matters_changes(tmp_path: Path) -> None:
    folder, file = tmp_path / "folder", tmp_path / "file"
    folder.mkdir()
    file.write_text("one")
    os.utime(file, OLD)
    sweep = Sweep(tmp_path / "native")
    names = frozenset({"a.h", "sub"})
    paths = [os.fsencode(file)]

    def stamps(listing: Listing | None) -> Stamps:
        return Stamps(paths, sweep.stamps_of(paths), ((str(folder), -1, listing),))

    assert not stamps(None).hold(sweep)
    held = stamps(Listing(names, listed_names(str(folder), names)))
    assert held.hold(sweep)
    (folder / "b.o").write_text("")
    assert held.hold(sweep)
    (folder / "a.h").write_text("")
    assert not held.hold(sweep)
    (folder / "a.h").unlink()
    assert held.hold(sweep)
    (folder / "sub").mkdir()
    assert not held.hold(sweep)
    (folder / "sub").rmdir()
    file.write_text("two")
    assert not held.hold(sweep)
