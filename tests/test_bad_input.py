"""What goes wrong around a build, through the real command line and a real daemon: mistakes of the project, processes
that are killed, files that change or cannot be read. Each has a clear message or the right result, and loses nothing.

Disks, containers and sessions are in test_bad_places.py; what the compilers themselves do in test_bad_tools.py.
"""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.estate import PROJECT, Estate, until
from tests.toolkit import host_compiler

pytestmark = pytest.mark.skipif(not host_compiler(), reason="needs gcc or cc")


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
    host: Estate, tmp_path: Path, name: str, toml: str, arguments: list[str], says: str, leads: str, way: str
) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.cu").write_text("a\n")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "buildd.toml").write_text(toml)
    said = host.build(*arguments, *(["--no-daemon"] if way == "in process" else []), project=tmp_path)
    assert said.status == 2, said.text
    assert says in said.text and leads in said.text, said.text
    assert "Traceback" not in said.text
    assert not (tmp_path / "build").exists()


@pytest.mark.parametrize(
    "name",
    ["sp ace", "q'uo\"te", "{cuda}", "$(touch pwned)", "ünï", "-dash", "%s", "back\\slash", "a,b:c"],
)
def test_a_project_of_any_name_is_built_and_hits(host: Estate, tmp_path: Path, name: str) -> None:
    project = tmp_path / name
    shutil.copytree(host.project, project, ignore=shutil.ignore_patterns("build"))
    (project / "src" / "b.cu").write_text(f"b of {name}\n")
    (project / "src" / f"{name}.cu").write_text("odd\n")
    first = host.build(project=project)
    assert first.status == 0 and first.compiled >= 2, first.text
    library = (project / "build/demo/libdemo.so").read_bytes()
    shutil.rmtree(project / "build")
    again = host.build(project=project)
    assert again.status == 0 and again.compiled == 0, again.text
    assert (project / "build/demo/libdemo.so").read_bytes() == library


def test_a_name_that_no_depfile_can_tell_is_built_each_time(host: Estate, tmp_path: Path) -> None:
    project = tmp_path / "new\nline"
    shutil.copytree(host.project, project, ignore=shutil.ignore_patterns("build"))
    for _ in range(2):
        said = host.build(project=project)
        assert said.status == 0 and (project / "build/demo/libdemo.so").exists(), said.text


def test_a_folder_that_is_not_utf8_is_built_without_the_daemon(host: Estate, tmp_path: Path) -> None:
    project = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    shutil.copytree(host.project, project, ignore=shutil.ignore_patterns("build"))
    said = host.build(project=project)
    assert said.status == 0 and "is not UTF-8, which the daemon's protocol cannot carry" in said.text
    assert (project / "build/demo/libdemo.so").exists()


def test_two_checkouts_with_the_same_content(guest: Estate) -> None:
    assert guest.build().compiled == 3
    twin = guest.folder / "twin"
    shutil.copytree(guest.project, twin, ignore=shutil.ignore_patterns("build"))
    link = guest.folder / "link"
    link.symlink_to(twin)
    said = guest.build(project=twin)
    assert (said.hits, said.compiled) == (3, 0)
    assert (twin / "build/demo/libdemo.so").read_bytes() == guest.library.read_bytes()
    assert guest.build(project=link).compiled == 0, "a checkout through a link is the same checkout"


def test_symlinked_and_read_only_sources(guest: Estate) -> None:
    real = guest.folder / "elsewhere.cu"
    real.write_text("first\n")
    (guest.project / "src" / "b.cu").unlink()
    (guest.project / "src" / "b.cu").symlink_to(real)
    for path in (guest.project / "src").iterdir():
        path.chmod(0o444)
    (guest.project / "src").chmod(0o555)
    try:
        assert guest.build().status == 0
        before = guest.library.read_bytes()
        real.chmod(0o644)
        real.write_text("second\n")
        said = guest.build()
        assert said.compiled == 2, said.text
        assert guest.library.read_bytes() == guest.clean() != before
    finally:
        (guest.project / "src").chmod(0o755)


def test_a_compile_error_is_told_and_what_went_well_is_kept(guest: Estate) -> None:
    guest.write("src/a.cu", "//! fail\n")
    said = guest.build("-k")
    assert said.status == 1, said.text
    assert "src/a.cu(1): error: asked for" in said.text or "src/a.cu:1: error: asked for" in said.text
    assert f"command: cd {guest.project} && " in said.text and "src/a.cu" in said.text
    assert not guest.library.exists()
    guest.write("src/a.cu", "a\n")
    again = guest.build()
    assert (again.status, again.hits, again.compiled) == (0, 1, 2), again.text


def test_ten_megabytes_that_are_not_utf8(guest: Estate) -> None:
    guest.write("src/a.cu", f"//! print {10 << 20}\n")
    for wanted in (3, 0):
        said = guest.build()
        assert said.status == 0 and said.compiled == wanted
        assert "caf" in said.text, "a hit says again what the compiler said"
        assert len(said.text) < 12 << 20
        shutil.rmtree(guest.project / "build")


def test_a_killed_compiler(guest: Estate) -> None:
    guest.write("src/a.cu", "//! sleep 60\n")
    build = guest.begin()
    guest.until_compiling("src/a.cu").kill(signal.SIGSEGV)
    said = guest.finish(build)
    assert said.status == 1
    assert "killed by signal 11" in said.text and "command: cd " in said.text and "next: " in said.text
    guest.write("src/a.cu", "a\n")
    again = guest.build()
    assert again.status == 0 and guest.library.read_bytes() == guest.clean()


@pytest.mark.parametrize("way", ["daemon", "in process"])
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGKILL, -9), (signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_client_that_ends_in_the_middle(guest: Estate, way: str, number: signal.Signals, status: int) -> None:
    guest.write("src/a.cu", "//! sleep 60\n")
    build = guest.begin(*(["--no-daemon"] if way == "in process" else []))
    compiler = guest.until_compiling("src/a.cu")
    build.send_signal(number)
    guest.finish(build)
    assert build.returncode == status
    until(lambda: not compiler.lives, "the compiler outlived its client")
    guest.write("src/a.cu", "a\n")
    assert guest.build().status == 0
    assert guest.library.read_bytes() == guest.clean()


def test_a_daemon_killed_in_the_middle(estate: Estate) -> None:
    estate.write("src/a.cu", "//! wait go\na\n")
    build = estate.begin()
    estate.until_compiling("src/a.cu")
    daemon = estate.daemon()
    assert daemon is not None
    daemon.kill()
    estate.write("go", "")
    said = estate.finish(build)
    assert said.status == 0, said.text
    assert estate.library.read_bytes() == estate.clean()
    assert estate.build().status == 0
    assert not list((estate.store / "tmp").glob(f"{daemon.pid}-*")), "its private folders are cleaned away"


def test_two_builds_in_one_folder_at_once(guest: Estate) -> None:
    guest.write("src/a.cu", "//! sleep 0.5\na\n")
    builds = [guest.begin(), guest.begin("--no-daemon"), guest.begin()]
    for build in builds:
        said = guest.finish(build)
        assert said.status == 0, said.text
    assert guest.library.read_bytes() == guest.clean()
    assert guest.build().compiled == 0


def test_a_source_edited_while_compiling(guest: Estate) -> None:
    source = guest.write("src/a.cu", '#include "x.h"\n//! wait go\nold\n')
    build = guest.begin()
    guest.until_compiling("src/a.cu")
    source.write_text('#include "x.h"\nnew\n')
    guest.write("go", "")
    said = guest.finish(build)
    assert said.status == 0, said.text
    assert guest.library.read_bytes() == guest.clean(), "the build is of what was there at its end"
    guest.write("src/a.cu", '#include "x.h"\n//! wait go\nold\n')
    assert guest.build().status == 0
    assert guest.library.read_bytes() == guest.clean(), "and the old content was not filed under the new"


def test_a_source_removed_while_compiling(guest: Estate) -> None:
    source = guest.write("src/a.cu", "//! wait go\na\n")
    build = guest.begin()
    guest.until_compiling("src/a.cu")
    source.unlink()
    guest.write("go", "")
    guest.finish(build)
    assert build.returncode in (0, 1)
    said = guest.build()
    assert said.status == 0 and guest.library.read_bytes() == guest.clean()


@pytest.mark.parametrize("what", ["store", "build", "project", "scratch"])
def test_folders_removed_while_compiling(guest: Estate, what: str) -> None:
    guest.build()
    go = guest.folder / "go"
    guest.write("src/b.cu", f"//! wait {go}\nother\n")
    build = guest.begin()
    guest.until_compiling("src/b.cu")
    away = {
        "store": guest.store,
        "build": guest.project / "build",
        "project": guest.project,
        "scratch": guest.store / "tmp",
    }[what]
    copy = shutil.copytree(guest.project, guest.folder / "copy")
    shutil.rmtree(away, ignore_errors=True)
    go.touch()
    said = guest.finish(build)
    assert "Traceback" not in said.text and said.status in (0, 1), said.text
    if said.status == 1:
        assert "command: " in said.text and "next: " in said.text, said.text
    if what == "project":
        shutil.copytree(copy, guest.project, dirs_exist_ok=True)
    again = guest.build()
    assert again.status == 0, again.text
    assert guest.library.read_bytes() == guest.clean()


@pytest.mark.parametrize("change", ["flip", "cut", "empty", "grow"])
def test_a_damaged_store_never_shows(estate: Estate, change: str) -> None:
    """Every file of the store, at several places each; test_store.py and the campaigns do this at random."""
    estate.write("src/b.cu", "//! bytes 200000\nb\n")
    assert estate.build().status == 0
    library = estate.library.read_bytes()
    estate.buildd("down")
    for path in sorted(path for path in estate.store.rglob("*") if path.is_file()):
        content = bytearray(path.read_bytes())
        for place in range(0, len(content), max(1, len(content) // 7)) if change == "flip" else ():
            content[place] ^= 0x55
        damaged = {"flip": content, "cut": content[: len(content) // 2], "empty": b"", "grow": content + b"x"}[change]
        path.chmod(0o600)
        path.write_bytes(damaged)
    shutil.rmtree(estate.project / "build")
    for _ in range(2):
        said = estate.build()
        assert said.status == 0 and "Traceback" not in said.text, said.text
        assert estate.library.read_bytes() == library
    assert said.compiled == 0


def test_a_clock_that_went_backwards(estate: Estate) -> None:
    """Files and store from the future, edits that leave size and mtime as they were."""
    future_ns = 4_000_000_000_000_000_000
    source = estate.project / "src" / "b.cu"
    assert estate.build().status == 0
    estate.buildd("down")
    for path in (*estate.store.rglob("*"), *estate.project.rglob("*")):
        os.utime(path, ns=(future_ns, future_ns))
    assert estate.build().compiled == 0
    source.write_text("B\n")
    os.utime(source, ns=(future_ns, future_ns))
    said = estate.build()
    assert said.status == 0 and said.compiled == 2, said.text
    assert estate.library.read_bytes() == estate.clean()
    os.utime(source, ns=(0, 0))
    assert estate.build().compiled == 0
    assert estate.buildd("cache", "verify")[0] == 0


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
def test_odd_variables_cost_no_build(host: Estate, tmp_path: Path, name: str, value: str, status: int) -> None:
    project = shutil.copytree(host.project, tmp_path / "p", ignore=shutil.ignore_patterns("build"))
    (project / "buildd.toml").write_text(f'[toolchain]\ncuda = "{host.environ["CUDA_HOME"]}"\n' + PROJECT)
    before = dict(host.environ)
    host.environ[name] = value
    try:
        said = host.build(project=project)
    finally:
        host.environ = before
    assert said.status == status and "Traceback" not in said.text, said.text
    assert (project / "build/demo/libdemo.so").exists() == (status == 0)
    if status:
        assert name in said.text and "next: " in said.text
