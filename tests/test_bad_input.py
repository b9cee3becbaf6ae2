"""What goes wrong around a build, through the real command line and a real daemon: mistakes of the project, processes
that are killed, files that change or cannot be read. Each has a clear message or the right result, and loses nothing.

Disks, containers and sessions are in test_bad_places.py; what the compilers themselves do in test_bad_tools.py.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.estate import PROJECT, Estate, end_estate, end_guest, guest_of, make_estate, until
from tests.foreign import kept_up
from tests.toolkit import host_compiler

pytestmark = pytest.mark.skipif(not host_compiler(), reason="needs gcc or cc")


@pytest.fixture(scope="module")
def shared(toolkit: Path) -> Iterator[Estate]:
    """One estate for tests that only ask: their projects are folders of their own in it."""
    estate = make_estate(toolkit)
    with kept_up(estate):
        yield estate
    end_estate(estate)


@pytest.fixture
def estate(shared: Estate) -> Iterator[Estate]:
    """With a project and a store of its own, and the daemon of all."""
    guest = guest_of(shared)
    yield guest
    end_guest(guest)


@pytest.fixture
def alone(toolkit: Path) -> Iterator[Estate]:
    """With a daemon of its own, which the test may end."""
    estate = make_estate(toolkit)
    yield estate
    end_estate(estate)


MISTAKES = [
    ("unknown target", PROJECT, ["demmo"], 'no target "demmo"; did you mean "demo"?', "next: targets: demo"),
    ("target outside", PROJECT, ["../demo"], 'no target "../demo"', "next: targets: demo"),
    ("no UTF-8 name", PROJECT, [os.fsdecode(b"d\xff")], "no target", "next: targets: demo"),
    ("bad TOML", "[target.demo\n", [], "not valid TOML", "file: buildd.toml:1:13"),
    ("zero byte", '[target.demo]\nkind = "\0"\n', [], "not valid TOML", "file: buildd.toml:2"),
    ("missing source", PROJECT.replace("src/*.cu", "src/gone.cu"), [], "gone.cu", "file: buildd.toml:1"),
    ("a folder", PROJECT.replace("src/*.cu", "src"), [], 'source "src" is a folder', "next: correct `sources`"),
    ("a pipe", PROJECT.replace("src/*.cu", "pipe"), [], "no regular file", "next: correct `sources`"),
    ("a device", PROJECT.replace("src/*.cu", "/dev/zero"), [], "no regular file", "next: correct `sources`"),
    ("no sources", PROJECT.replace('"src/*.cu"', ""), [], "has no sources", "file: buildd.toml:3"),
    ("wrong arch", PROJECT, ["--arch", "sm_999"], 'does not compile for "sm_999"', "next: it knows sm_75"),
    ("no arch at all", PROJECT, ["--arch", "fast"], '"fast" is not a CUDA architecture', "next: write them as in arch"),
    ("no compiler", '[toolchain]\ncuda = "gone"\n' + PROJECT, [], "gone", "next: "),
    ("no jobs", PROJECT, ["-j", "0"], "-j 0", "next: give a whole number"),
    ("all jobs", PROJECT, ["-j", "9" * 30], "makes no sense", "next: give a whole number"),
    ("no folder", PROJECT, ["-C", "/nowhere"], "no folder /nowhere", "next: check the argument of -C"),
]


@pytest.mark.parametrize(
    ("name", "toml", "arguments", "says", "leads"), MISTAKES, ids=[mistake[0] for mistake in MISTAKES]
)
@pytest.mark.parametrize("way", ["daemon", "in process"])
def test_a_mistake_is_wrong_usage_and_leads_on(
    shared: Estate, tmp_path: Path, name: str, toml: str, arguments: list[str], says: str, leads: str, way: str
) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.cu").write_text("a\n")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "buildd.toml").write_text(toml)
    said = shared.build(*arguments, *(["--no-daemon"] if way == "in process" else []), project=tmp_path)
    assert said.status == 2, said.text
    assert says in said.text and leads in said.text, said.text
    assert "Traceback" not in said.text
    assert not (tmp_path / "build").exists()


@pytest.mark.parametrize(
    "name",
    ["sp ace", "q'uo\"te", "{cuda}", "$(touch pwned)", "ünï", "-dash", "%s", "back\\slash", "a,b:c"],
)
def test_a_project_of_any_name_is_built_and_hits(shared: Estate, tmp_path: Path, name: str) -> None:
    project = tmp_path / name
    shutil.copytree(shared.project, project, ignore=shutil.ignore_patterns("build"))
    (project / "src" / "b.cu").write_text(f"b of {name}\n")
    (project / "src" / f"{name}.cu").write_text("odd\n")
    first = shared.build(project=project)
    assert first.status == 0 and first.compiled >= 2, first.text
    library = (project / "build/demo/libdemo.so").read_bytes()
    shutil.rmtree(project / "build")
    again = shared.build(project=project)
    assert again.status == 0 and again.compiled == 0, again.text
    assert (project / "build/demo/libdemo.so").read_bytes() == library


def test_a_name_that_no_depfile_can_tell_is_built_each_time(shared: Estate, tmp_path: Path) -> None:
    project = tmp_path / "new\nline"
    shutil.copytree(shared.project, project, ignore=shutil.ignore_patterns("build"))
    for _ in range(2):
        said = shared.build(project=project)
        assert said.status == 0 and (project / "build/demo/libdemo.so").exists(), said.text


def test_a_folder_that_is_not_utf8_is_built_without_the_daemon(shared: Estate, tmp_path: Path) -> None:
    project = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    shutil.copytree(shared.project, project, ignore=shutil.ignore_patterns("build"))
    said = shared.build(project=project)
    assert said.status == 0 and "is not UTF-8, which the daemon's protocol cannot carry" in said.text
    assert (project / "build/demo/libdemo.so").exists()


def test_two_checkouts_with_the_same_content(estate: Estate) -> None:
    assert estate.build().compiled == 3
    twin = estate.folder / "twin"
    shutil.copytree(estate.project, twin, ignore=shutil.ignore_patterns("build"))
    link = estate.folder / "link"
    link.symlink_to(twin)
    said = estate.build(project=twin)
    assert (said.hits, said.compiled) == (3, 0)
    assert (twin / "build/demo/libdemo.so").read_bytes() == estate.library.read_bytes()
    assert estate.build(project=link).compiled == 0, "a checkout through a link is the same checkout"


def test_symlinked_and_read_only_sources(estate: Estate) -> None:
    real = estate.folder / "elsewhere.cu"
    real.write_text("first\n")
    (estate.project / "src" / "b.cu").unlink()
    (estate.project / "src" / "b.cu").symlink_to(real)
    for path in (estate.project / "src").iterdir():
        path.chmod(0o444)
    (estate.project / "src").chmod(0o555)
    try:
        assert estate.build().status == 0
        before = estate.library.read_bytes()
        real.chmod(0o644)
        real.write_text("second\n")
        said = estate.build()
        assert said.compiled == 2, said.text
        assert estate.library.read_bytes() == estate.clean() != before
    finally:
        (estate.project / "src").chmod(0o755)


def test_a_compile_error_is_told_and_what_went_well_is_kept(estate: Estate) -> None:
    estate.write("src/a.cu", "//! fail\n")
    said = estate.build("-k")
    assert said.status == 1, said.text
    assert "src/a.cu(1): error: asked for" in said.text or "src/a.cu:1: error: asked for" in said.text
    assert f"command: cd {estate.project} && " in said.text and "src/a.cu" in said.text
    assert not estate.library.exists()
    estate.write("src/a.cu", "a\n")
    again = estate.build()
    assert (again.status, again.hits, again.compiled) == (0, 1, 2), again.text


def test_ten_megabytes_that_are_not_utf8(estate: Estate) -> None:
    estate.write("src/a.cu", f"//! print {10 << 20}\n")
    for wanted in (3, 0):
        said = estate.build()
        assert said.status == 0 and said.compiled == wanted
        assert "caf" in said.text, "a hit says again what the compiler said"
        assert len(said.text) < 12 << 20
        shutil.rmtree(estate.project / "build")


def test_a_killed_compiler(estate: Estate) -> None:
    estate.write("src/a.cu", "//! sleep 60\n")
    build = estate.begin()
    estate.until_compiling("src/a.cu").kill(signal.SIGSEGV)
    said = estate.finish(build)
    assert said.status == 1
    assert "killed by signal 11" in said.text and "command: cd " in said.text and "next: " in said.text
    estate.write("src/a.cu", "a\n")
    again = estate.build()
    assert again.status == 0 and estate.library.read_bytes() == estate.clean()


@pytest.mark.parametrize("way", ["daemon", "in process"])
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGKILL, -9), (signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_client_that_ends_in_the_middle(estate: Estate, way: str, number: signal.Signals, status: int) -> None:
    estate.write("src/a.cu", "//! sleep 60\n")
    build = estate.begin(*(["--no-daemon"] if way == "in process" else []))
    compiler = estate.until_compiling("src/a.cu")
    build.send_signal(number)
    estate.finish(build)
    assert build.returncode == status
    until(lambda: not compiler.lives, "the compiler outlived its client")
    estate.write("src/a.cu", "a\n")
    assert estate.build().status == 0
    assert estate.library.read_bytes() == estate.clean()


def test_a_daemon_killed_in_the_middle(alone: Estate) -> None:
    alone.write("src/a.cu", "//! wait go\na\n")
    build = alone.begin()
    alone.until_compiling("src/a.cu")
    daemon = alone.daemon()
    assert daemon is not None
    daemon.kill()
    alone.write("go", "")
    said = alone.finish(build)
    assert said.status == 0, said.text
    assert alone.library.read_bytes() == alone.clean()
    assert alone.build().status == 0
    assert not list((alone.store / "tmp").glob(f"{daemon.pid}-*")), "its private folders are cleaned away"


def test_two_builds_in_one_folder_at_once(estate: Estate) -> None:
    estate.write("src/a.cu", "//! sleep 0.5\na\n")
    builds = [estate.begin(), estate.begin("--no-daemon"), estate.begin()]
    for build in builds:
        said = estate.finish(build)
        assert said.status == 0, said.text
    assert estate.library.read_bytes() == estate.clean()
    assert estate.build().compiled == 0


def test_a_source_edited_while_compiling(estate: Estate) -> None:
    source = estate.write("src/a.cu", '#include "x.h"\n//! wait go\nold\n')
    build = estate.begin()
    estate.until_compiling("src/a.cu")
    source.write_text('#include "x.h"\nnew\n')
    estate.write("go", "")
    said = estate.finish(build)
    assert said.status == 0, said.text
    assert estate.library.read_bytes() == estate.clean(), "the build is of what was there at its end"
    estate.write("src/a.cu", '#include "x.h"\n//! wait go\nold\n')
    assert estate.build().status == 0
    assert estate.library.read_bytes() == estate.clean(), "and the old content was not filed under the new"


def test_a_source_removed_while_compiling(estate: Estate) -> None:
    source = estate.write("src/a.cu", "//! wait go\na\n")
    build = estate.begin()
    estate.until_compiling("src/a.cu")
    source.unlink()
    estate.write("go", "")
    estate.finish(build)
    assert build.returncode in (0, 1)
    said = estate.build()
    assert said.status == 0 and estate.library.read_bytes() == estate.clean()


@pytest.mark.parametrize("what", ["store", "build", "project", "scratch"])
def test_folders_removed_while_compiling(estate: Estate, what: str) -> None:
    estate.build()
    go = estate.folder / "go"
    estate.write("src/b.cu", f"//! wait {go}\nother\n")
    build = estate.begin()
    estate.until_compiling("src/b.cu")
    away = {
        "store": estate.store,
        "build": estate.project / "build",
        "project": estate.project,
        "scratch": estate.store / "tmp",
    }[what]
    copy = shutil.copytree(estate.project, estate.folder / "copy")
    shutil.rmtree(away, ignore_errors=True)
    go.touch()
    said = estate.finish(build)
    assert "Traceback" not in said.text and said.status in (0, 1), said.text
    if said.status == 1:
        assert "command: " in said.text and "next: " in said.text, said.text
    if what == "project":
        shutil.copytree(copy, estate.project, dirs_exist_ok=True)
    again = estate.build()
    assert again.status == 0, again.text
    assert estate.library.read_bytes() == estate.clean()


@pytest.mark.parametrize("change", ["flip", "cut", "empty", "grow"])
def test_a_damaged_store_never_shows(alone: Estate, change: str) -> None:
    """Every file of the store, at several places each; test_store.py and the campaigns do this at random."""
    alone.write("src/b.cu", "//! bytes 200000\nb\n")
    assert alone.build().status == 0
    library = alone.library.read_bytes()
    alone.buildd("down")
    for path in sorted(path for path in alone.store.rglob("*") if path.is_file()):
        content = bytearray(path.read_bytes())
        for place in range(0, len(content), max(1, len(content) // 7)) if change == "flip" else ():
            content[place] ^= 0x55
        damaged = {"flip": content, "cut": content[: len(content) // 2], "empty": b"", "grow": content + b"x"}[change]
        path.chmod(0o600)
        path.write_bytes(damaged)
    shutil.rmtree(alone.project / "build")
    for _ in range(2):
        said = alone.build()
        assert said.status == 0 and "Traceback" not in said.text, said.text
        assert alone.library.read_bytes() == library
    assert said.compiled == 0


def test_a_clock_that_went_backwards(alone: Estate) -> None:
    """Files and store from the future, edits that leave size and mtime as they were."""
    future_ns = 4_000_000_000_000_000_000
    source = alone.project / "src" / "b.cu"
    assert alone.build().status == 0
    alone.buildd("down")
    for path in (*alone.store.rglob("*"), *alone.project.rglob("*")):
        os.utime(path, ns=(future_ns, future_ns))
    assert alone.build().compiled == 0
    source.write_text("B\n")
    os.utime(source, ns=(future_ns, future_ns))
    said = alone.build()
    assert said.status == 0 and said.compiled == 2, said.text
    assert alone.library.read_bytes() == alone.clean()
    os.utime(source, ns=(0, 0))
    assert alone.build().compiled == 0
    assert alone.buildd("cache", "verify")[0] == 0


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        ("HOME", "", 0),
        ("HOME", "relative", 0),
        ("PATH", "", 0),
        ("LC_ALL", "tlh_KX.KOI8-R", 0),
        ("TMPDIR", "/nowhere", 0),
        ("BUILDD_DIR", "relative-store", 0),
        ("COLUMNS", "-5", 0),
        ("TERM", "\x1b[31m", 0),
        ("BUILDD_JOBS", "999999999999999999999", 2),
        ("AIT_NDEBUG", "\udcff", 0),
        ("CUDA_HOME", "/nowhere\nelse", 0),
    ],
)
def test_odd_variables_cost_no_build(shared: Estate, tmp_path: Path, name: str, value: str, status: int) -> None:
    project = shutil.copytree(shared.project, tmp_path / "p", ignore=shutil.ignore_patterns("build"))
    (project / "buildd.toml").write_text(f'[toolchain]\ncuda = "{shared.environ["CUDA_HOME"]}"\n' + PROJECT)
    before = dict(shared.environ)
    shared.environ[name] = value
    try:
        said = shared.build(project=project)
    finally:
        shared.environ = before
    assert said.status == status and "Traceback" not in said.text, said.text
    assert (project / "build/demo/libdemo.so").exists() == (status == 0)
    if status:
        assert name in said.text and "next: " in said.text
