"""Names that mean another file to the daemon than to the caller: descriptors, FIFOs, devices."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from buildd.files.digests import Files
from buildd.files.stamp import stamp_of
from codegen.compilers.command_parser import PassThrough, Reason
from codegen.foreign.command_line import parse
from codegen.reach import Reach, reach_of, read_regular
from tests.support.foreign_project import ForeignProject
from tests.support.toolkit import host_compiler
from tests.support.user import User

real_compiler = pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")
MINE = "int from_mine;\n"


@pytest.fixture(scope="module")
def user(kept_user: User) -> User:
    return kept_user


@pytest.fixture
def foreign(user: User, request: pytest.FixtureRequest) -> ForeignProject:
    made = ForeignProject(user, user.folder / request.node.name.translate(str.maketrans("/<>() ", "______")))
    made.write("q.cpp", f"int from_source;\n// {request.node.name}\n")
    made.write("mine.h", MINE)
    return made


def has_both(file: Path) -> bool:
    content = file.read_bytes()
    return b"from_mine" in content and b"from_source" in content


@contextmanager
def fed(fifo: Path, text: str) -> Iterator[None]:
    """Somebody writes a text to a FIFO, once, as soon as it is read."""
    os.mkfifo(fifo)
    writer = threading.Thread(target=fifo.write_text, args=(text,), daemon=True)
    writer.start()
    yield
    writer.join(10)
    assert not writer.is_alive(), "nobody read it"


# ---------------------------------------------------------------- names


@pytest.mark.timeout(20)
def test_only_regular_files_are_read(tmp_path: Path) -> None:
    """A name can become another file's at any moment, so the open file decides; it is never waited for."""
    (tmp_path / "file").write_bytes(b"text")
    os.mkfifo(tmp_path / "fifo")
    assert read_regular(str(tmp_path / "file")) == read_regular(str(tmp_path / "file"), 4) == b"text"
    for name in ("fifo", "/dev/zero", "/dev/tty", ".", "no", "a\0b"):
        with pytest.raises(OSError):
            read_regular(str(tmp_path / name))
    with pytest.raises(OSError, match="more than 3 bytes"):
        read_regular(str(tmp_path / "file"), 3)
    with pytest.raises(OSError, match="more than 9 bytes"):
        read_regular("/proc/self/maps", 9)  # says that it has no bytes


def test_who_reads_the_same_under_a_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "fifo")
    targets = {
        "to_file": "file",
        "to_fifo": "fifo",
        "to_descriptor": "/dev/fd/3",
        "to_self": "/proc/self/fd/3",
        "twice": "to_self",
        "to_folder": "/dev/fd",
        "upwards": "../../../../../../../../proc/self/environ",
        "loop": "loop",
    }
    for name, target in targets.items():
        (tmp_path / name).symlink_to(target)
    everyone = ("file", "to_file", "nowhere", ".", "x" * 300, "file/x", "a\0b")
    caller = ("to_descriptor", "to_self", "twice", "to_folder/3", "to_folder/../environ", "upwards", "loop")
    wanted = {name: Reach.EVERYONE for name in everyone}
    wanted |= dict.fromkeys(("fifo", "to_fifo"), Reach.ONCE) | dict.fromkeys(caller, Reach.CALLER)
    known: dict[str, str] = {}
    assert {name: reach_of(f"{tmp_path}/{name}", known) for name in wanted} == wanted
    for path in (
        "/dev/null",
        "/dev/stdin",
        "/dev/fd/63",
        "/proc/version",
        "/proc",
        "//proc/self/fd/0",
        "/dev/../proc/1",
    ):
        assert reach_of(path, known) is Reach.CALLER, path
    for path in ("/", "/dev/shm", "/dev/shm/nowhere.h", "/usr/include", "/processes"):
        assert reach_of(path, known) is Reach.EVERYONE, path


def test_a_fifo_with_options_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "flags")
    with pytest.raises(PassThrough) as refused:
        parse(("/usr/bin/g++", "-c", "q.cpp", "@flags"), str(tmp_path))
    assert refused.value.reason is Reason.NO_FILE


def test_a_fifo_in_the_place_of_a_file_has_no_content(tmp_path: Path) -> None:
    """It came between the look at the name and the reading."""
    os.mkfifo(tmp_path / "a.h")
    (tmp_path / "b.h").touch()
    files = Files(stat=lambda path: stamp_of(str(tmp_path / "b.h")))
    assert files.fact(str(tmp_path / "a.h")) is None


# ---------------------------------------------------------------- real compilers


@real_compiler
@pytest.mark.parametrize(
    "command",
    [
        "exec 3<mine.h; g++ -c q.cpp -include /dev/fd/3 -o q.o",
        "exec 3<mine.h; g++ -c q.cpp -include /proc/self/fd/3 -o q.o",
        "exec 3<mine.h; g++ -c q.cpp -imacros mine.h -include/dev/fd/3 -o q.o",
        "exec 3<mine.h; ln -s /dev/fd/3 link.h; g++ -c q.cpp -include link.h -o q.o",
        "exec 3<mine.h; echo -include /dev/fd/3 >flags; g++ -c q.cpp @flags -o q.o",
        "exec 3<flags; g++ -c q.cpp @/dev/fd/3 -o q.o",
        "exec 3<.; g++ -c q.cpp -I/dev/fd/3 -include ./mine.h -o q.o",
        "exec 3<q.cpp; g++ -x c++ -include mine.h -c /dev/fd/3 -o q.o",
        "g++ -x c++ -include mine.h -c /dev/stdin -o q.o <q.cpp",
        "cd /proc/self/cwd; g++ -c q.cpp -include mine.h -o q.o",
        "g++ -c q.cpp -include <(cat mine.h) -o q.o",
        "g++ -x c++ -include mine.h -c <(cat q.cpp) -o q.o",
        "g++ -c q.cpp -include mine.h -o /dev/fd/3 3>q.o || cp /dev/null q.o",
    ],
)
def test_descriptors_in_a_command_are_the_callers(foreign: ForeignProject, command: str) -> None:
    foreign.write("flags", "-include mine.h")
    plain = foreign.plainly("bash", "-c", command)
    made = (foreign.folder / "q.o").read_bytes()
    for _ in range(2):
        for name in ("q.o", "link.h"):
            (foreign.folder / name).unlink(missing_ok=True)
        done = foreign.call("bash", "-c", command)
        assert (done.returncode, done.stderr) == (plain.returncode, plain.stderr)
        assert (foreign.folder / "q.o").read_bytes() == made
    assert has_both(foreign.folder / "q.o") or "-o /dev/fd/3" in command
    assert foreign.counts() == (0, 0)
    assert sum(foreign.figures().passed_through.values()) == 2


@real_compiler
@pytest.mark.parametrize(
    "text",
    [
        '#include "/dev/fd/3"\n',
        "# include </proc/self/fd/3>\n",
        '#define H "/dev/fd/3"\n#include H\n',
        '#include "link.h"\n',
        '#include "inner.h"\n',
        '#include "embedding.h"\n',
    ],
)
def test_descriptors_in_a_source_are_the_callers(foreign: ForeignProject, text: str) -> None:
    foreign.write("q.cpp", f"{text}#ifndef AGAIN\n#define AGAIN\nint from_source;\n#endif\n")
    foreign.write("inner.h", '#include "/dev/fd/3"\n')
    foreign.write("embedding.h", 'asm(".incbin \\"/dev/fd/3\\"\\nfrom_mine:");\n')
    (foreign.folder / "link.h").symlink_to("/dev/fd/3")
    command = ("bash", "-c", "exec 3<mine.h; g++ -c q.cpp -o q.o")
    plain = foreign.plainly(*command)
    assert plain.returncode == 0, plain.stderr
    made = (foreign.folder / "q.o").read_bytes()
    for _ in range(2):
        (foreign.folder / "q.o").unlink()
        done = foreign.good(*command)
        assert (done.stdout, done.stderr) == (plain.stdout, plain.stderr)
        assert (foreign.folder / "q.o").read_bytes() == made
    figures = foreign.figures()
    assert (figures.hits, figures.failures, figures.passed_through) == (0, 0, {"no-regular-file": 2})


@real_compiler
def test_a_missing_descriptor_is_no_failure_of_the_callers(foreign: ForeignProject) -> None:
    foreign.write("q.cpp", '#define H "/dev/fd/63"\n#include H\nint from_source;\n')
    foreign.good("bash", "-c", "exec 63<mine.h; g++ -c q.cpp -o q.o")
    assert has_both(foreign.folder / "q.o")


@real_compiler
@pytest.mark.parametrize(
    "command",
    [
        ("-include", "pipe.h", "-c", "q.cpp"),
        ("-Ifolder", "-c", "including.cpp"),
        ("-include", "mine.h", "-x", "c++", "-c", "pipe.cpp"),
    ],
    ids=" ".join,
)
def test_a_fifo_is_read_once(foreign: ForeignProject, command: tuple[str, ...]) -> None:
    foreign.write("including.cpp", "#include <pipe.h>\nint from_source;\n")
    (foreign.folder / "folder").mkdir()
    texts = {"pipe.cpp": "int from_source;\n", "-Ifolder": MINE, "pipe.h": MINE}
    word = next(word for word in command if word in texts)
    pipe = "folder/pipe.h" if word == "-Ifolder" else word
    for _ in range(2):
        with fed(foreign.folder / pipe, texts[word]):
            foreign.good("g++", *command, "-o", "q.o")
        (foreign.folder / pipe).unlink()
        assert has_both(foreign.folder / "q.o")
    assert foreign.figures().hits == 0


@real_compiler
def test_what_lies_in_memory_is_a_file_like_others(foreign: ForeignProject, request: pytest.FixtureRequest) -> None:
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("no /dev/shm here")
    header = Path(f"/dev/shm/buildd-test-{os.getpid()}.h")
    request.addfinalizer(lambda: header.unlink(missing_ok=True))
    header.write_text(MINE)
    os.utime(header, (1_700_000_000, 1_700_000_000))
    for _ in range(2):
        foreign.good("g++", "-include", str(header), "-c", "q.cpp", "-o", "q.o")
        assert has_both(foreign.folder / "q.o")
    assert foreign.counts() == (1, 1)
