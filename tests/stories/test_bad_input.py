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

from tests.support.developer import PROJECT, Developer
from tests.support.toolkit import host_compiler
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(not host_compiler(), reason="needs gcc or cc")


MISTAKES = [
    ("unknown target", PROJECT, ["demmo"], 'no target "demmo"; did you mean "demo"?', "name one of the targets: demo"),
    ("target outside", PROJECT, ["../demo"], 'no target "../demo"', "next: name one of the targets: demo"),
    ("escape sequence", PROJECT.replace("demo", '"de\\u001b[31mmo"'), [], "de\\x1b[31mmo", "next: "),
    ("the whole disk", PROJECT.replace("src/*.cu", "/**/*.cu"), [], "every folder of this machine", "next: name the"),
    ("no UTF-8 name", PROJECT, [os.fsdecode(b"d\xff")], "no target", "next: name one of the targets: demo"),
    ("bad TOML", "[target.demo\n", [], "not valid TOML", "file: buildd.toml:1:13"),
    ("zero byte", '[target.demo]\nkind = "\0"\n', [], "not valid TOML", "file: buildd.toml:2"),
    ("missing source", PROJECT.replace("src/*.cu", "src/gone.cu"), [], "gone.cu", "file: buildd.toml:3"),
    ("a folder", PROJECT.replace("src/*.cu", "src"), [], 'source "src" is a folder', "next: correct `sources`"),
    ("a pipe", PROJECT.replace("src/*.cu", "pipe"), [], "not a regular file", "next: correct `sources`"),
    ("a device", PROJECT.replace("src/*.cu", "/dev/zero"), [], "not a regular file", "next: correct `sources`"),
    ("no sources", PROJECT.replace('"src/*.cu"', ""), [], "has no sources", "file: buildd.toml:3"),
    ("wrong arch", PROJECT, ["--arch", "sm_999"], 'cannot compile for "sm_999"', "next: choose one of sm_75"),
    (
        "no arch at all",
        PROJECT,
        ["--arch", "fast"],
        '"fast" is not a CUDA architecture',
        "next: write architectures as in arch",
    ),
    ("no compiler", '[toolchain]\ncuda = "gone"\n' + PROJECT, [], "gone", "next: "),
    ("no jobs", PROJECT, ["-j", "0"], "-j 0", "next: give a whole number"),
    ("all jobs", PROJECT, ["-j", "9" * 30], "is out of range", "next: give a whole number"),
    ("no folder", PROJECT, ["-C", "/nowhere"], "no folder /nowhere", "next: check the argument of -C"),
]


@pytest.mark.parametrize(
    ("way", "name", "toml", "arguments", "says", "leads"),
    [
        # One of them shows that a build without a daemon says the same.
        pytest.param(way, *mistake, id=f"{way}-{mistake[0]}", marks=marks)
        for way in ("daemon", "in process")
        for mistake in MISTAKES
        for marks in [() if way == "daemon" or mistake is MISTAKES[0] else pytest.mark.slow]
    ],
)
def test_a_mistake_is_wrong_usage_and_leads_on(
    kept_developer: Developer,
    tmp_path: Path,
    name: str,
    toml: str,
    arguments: list[str],
    says: str,
    leads: str,
    way: str,
) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.cu").write_text("a\n")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "buildd.toml").write_text(toml)
    said = kept_developer.build(*arguments, *(["--no-daemon"] if way == "in process" else []), project=tmp_path)
    assert said.status == 2, said.text
    assert says in said.text and leads in said.text, said.text
    assert "Traceback" not in said.text
    assert not (tmp_path / "build").exists()


@pytest.mark.parametrize(
    "name",
    ["sp ace", "q'uo\"te", "{cuda}", "$(touch pwned)", "ünï", "-dash", "%s", "back\\slash", "a,b:c"],
)
def test_a_project_of_any_name_is_built_and_hits(kept_developer: Developer, tmp_path: Path, name: str) -> None:
    project = tmp_path / name
    shutil.copytree(kept_developer.project, project, ignore=shutil.ignore_patterns("build"))
    (project / "src" / "b.cu").write_text(f"b of {name}\n")
    (project / "src" / f"{name}.cu").write_text("odd\n")
    first = kept_developer.build(project=project)
    assert first.status == 0 and first.compiled >= 2, first.text
    library = (project / "build/demo/libdemo.so").read_bytes()
    shutil.rmtree(project / "build")
    again = kept_developer.build(project=project)
    assert again.status == 0 and again.compiled == 0, again.text
    assert (project / "build/demo/libdemo.so").read_bytes() == library


def test_a_name_that_no_depfile_can_tell_is_built_each_time(kept_developer: Developer, tmp_path: Path) -> None:
    project = tmp_path / "new\nline"
    shutil.copytree(kept_developer.project, project, ignore=shutil.ignore_patterns("build"))
    for _ in range(2):
        said = kept_developer.build(project=project)
        assert said.status == 0 and (project / "build/demo/libdemo.so").exists(), said.text


def test_a_folder_that_is_not_utf8_is_built_without_the_daemon(kept_developer: Developer, tmp_path: Path) -> None:
    project = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    shutil.copytree(kept_developer.project, project, ignore=shutil.ignore_patterns("build"))
    said = kept_developer.build(project=project)
    assert said.status == 0 and "is not UTF-8, which the daemon's protocol cannot carry" in said.text
    assert (project / "build/demo/libdemo.so").exists()


def test_two_checkouts_with_the_same_content(another_developer: Developer) -> None:
    assert another_developer.build().compiled == 3
    twin = another_developer.folder / "twin"
    shutil.copytree(another_developer.project, twin, ignore=shutil.ignore_patterns("build"))
    link = another_developer.folder / "link"
    link.symlink_to(twin)
    said = another_developer.build(project=twin)
    assert (said.hits, said.compiled) == (3, 0)
    assert (twin / "build/demo/libdemo.so").read_bytes() == another_developer.library.read_bytes()
    assert another_developer.build(project=link).compiled == 0, "a checkout through a link is the same checkout"


def test_symlinked_and_read_only_sources(another_developer: Developer) -> None:
    real = another_developer.folder / "elsewhere.cu"
    real.write_text("first\n")
    (another_developer.project / "src" / "b.cu").unlink()
    (another_developer.project / "src" / "b.cu").symlink_to(real)
    for path in (another_developer.project / "src").iterdir():
        path.chmod(0o444)
    (another_developer.project / "src").chmod(0o555)
    try:
        assert another_developer.build().status == 0
        before = another_developer.library.read_bytes()
        real.chmod(0o644)
        real.write_text("second\n")
        said = another_developer.build()
        assert said.compiled == 2, said.text
        assert another_developer.library.read_bytes() == another_developer.clean() != before
    finally:
        (another_developer.project / "src").chmod(0o755)


def test_a_compile_error_is_told_and_what_went_well_is_kept(another_developer: Developer) -> None:
    another_developer.write("src/a.cu", "//! fail\n")
    said = another_developer.build("-k")
    assert said.status == 1, said.text
    assert "src/a.cu(1): error: asked for" in said.text or "src/a.cu:1: error: asked for" in said.text
    assert f"command: cd {another_developer.project} && " in said.text and "src/a.cu" in said.text
    assert not another_developer.library.exists()
    another_developer.write("src/a.cu", "a\n")
    again = another_developer.build()
    assert (again.status, again.hits, again.compiled) == (0, 1, 2), again.text


def test_ten_megabytes_that_are_not_utf8(another_developer: Developer) -> None:
    another_developer.write("src/a.cu", f"//! print {10 << 20}\n")
    for wanted in (3, 0):
        said = another_developer.build()
        assert said.status == 0 and said.compiled == wanted
        assert "caf" in said.text, "a hit says again what the compiler said"
        assert len(said.text) < 12 << 20
        shutil.rmtree(another_developer.project / "build")


def test_a_killed_compiler(another_developer: Developer) -> None:
    another_developer.write("src/a.cu", "//! sleep 60\n")
    build = another_developer.begin()
    another_developer.until_compiling("src/a.cu").kill(signal.SIGSEGV)
    said = another_developer.finish(build)
    assert said.status == 1
    assert "killed by signal 11" in said.text and "command: cd " in said.text and "next: " in said.text
    another_developer.write("src/a.cu", "a\n")
    again = another_developer.build()
    assert again.status == 0 and another_developer.library.read_bytes() == another_developer.clean()


@pytest.mark.parametrize("way", ["daemon", "in process"])
@pytest.mark.parametrize(
    ("number", "status"),
    [
        *((signal.SIGKILL, -9), (signal.SIGINT, 130), (signal.SIGTERM, 143)),
        # Handled as SIGTERM is.
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.slow),
    ],
)
def test_a_client_that_ends_in_the_middle(
    another_developer: Developer, way: str, number: signal.Signals, status: int
) -> None:
    another_developer.write("src/a.cu", "//! sleep 60\n")
    build = another_developer.begin(*(["--no-daemon"] if way == "in process" else []))
    compiler = another_developer.until_compiling("src/a.cu")
    build.send_signal(number)
    another_developer.finish(build)
    assert build.returncode == status
    until(lambda: not compiler.lives, "the compiler outlived its client")
    another_developer.write("src/a.cu", "a\n")
    assert another_developer.build().status == 0
    assert another_developer.library.read_bytes() == another_developer.clean()


def test_a_daemon_killed_in_the_middle(developer: Developer) -> None:
    developer.write("src/a.cu", "//! wait go\na\n")
    build = developer.begin()
    developer.until_compiling("src/a.cu")
    daemon = developer.daemon()
    assert daemon is not None
    daemon.kill()
    developer.write("go", "")
    said = developer.finish(build)
    assert said.status == 0, said.text
    assert developer.library.read_bytes() == developer.clean()
    assert developer.build().status == 0
    assert not list((developer.store / "tmp").glob(f"{daemon.pid}-*")), "its private folders are cleaned away"


def test_two_builds_in_one_folder_at_once(another_developer: Developer) -> None:
    another_developer.write("src/a.cu", "//! sleep 0.5\na\n")
    builds = [another_developer.begin(), another_developer.begin("--no-daemon"), another_developer.begin()]
    for build in builds:
        said = another_developer.finish(build)
        assert said.status == 0, said.text
    assert another_developer.library.read_bytes() == another_developer.clean()
    assert another_developer.build().compiled == 0


def test_a_source_edited_while_compiling(another_developer: Developer) -> None:
    source = another_developer.write("src/a.cu", '#include "x.h"\n//! wait go\nold\n')
    build = another_developer.begin()
    another_developer.until_compiling("src/a.cu")
    source.write_text('#include "x.h"\nnew\n')
    another_developer.write("go", "")
    said = another_developer.finish(build)
    assert said.status == 0, said.text
    assert another_developer.library.read_bytes() == another_developer.clean(), (
        "the build is of what was there at its end"
    )
    another_developer.write("src/a.cu", '#include "x.h"\n//! wait go\nold\n')
    assert another_developer.build().status == 0
    assert another_developer.library.read_bytes() == another_developer.clean(), (
        "and the old content was not filed under the new"
    )


def test_a_source_removed_while_compiling(another_developer: Developer) -> None:
    source = another_developer.write("src/a.cu", "//! wait go\na\n")
    build = another_developer.begin()
    another_developer.until_compiling("src/a.cu")
    source.unlink()
    another_developer.write("go", "")
    another_developer.finish(build)
    assert build.returncode in (0, 1)
    said = another_developer.build()
    assert said.status == 0 and another_developer.library.read_bytes() == another_developer.clean()


@pytest.mark.parametrize("what", ["store", "build", "project", "scratch"])
def test_folders_removed_while_compiling(another_developer: Developer, what: str) -> None:
    another_developer.build()
    go = another_developer.folder / "go"
    another_developer.write("src/b.cu", f"//! wait {go}\nother\n")
    build = another_developer.begin()
    another_developer.until_compiling("src/b.cu")
    away = {
        "store": another_developer.store,
        "build": another_developer.project / "build",
        "project": another_developer.project,
        "scratch": another_developer.store / "tmp",
    }[what]
    copy = shutil.copytree(another_developer.project, another_developer.folder / "copy")
    shutil.rmtree(away, ignore_errors=True)
    go.touch()
    said = another_developer.finish(build)
    assert "Traceback" not in said.text and said.status in (0, 1), said.text
    if said.status == 1:
        assert "command: " in said.text and "next: " in said.text, said.text
    if what == "project":
        shutil.copytree(copy, another_developer.project, dirs_exist_ok=True)
    again = another_developer.build()
    assert again.status == 0, again.text
    assert another_developer.library.read_bytes() == another_developer.clean()


@pytest.mark.parametrize(
    "change",
    ["flip", "cut", pytest.param("empty", marks=pytest.mark.slow), pytest.param("grow", marks=pytest.mark.slow)],
)
def test_a_damaged_store_never_shows(developer: Developer, change: str) -> None:
    """Every file of the store, at several places each; test_store.py and the campaigns do this at random."""
    developer.write("src/b.cu", "//! bytes 200000\nb\n")
    assert developer.build().status == 0
    library = developer.library.read_bytes()
    developer.buildd("down")
    for path in sorted(path for path in developer.store.rglob("*") if path.is_file()):
        content = bytearray(path.read_bytes())
        for place in range(0, len(content), max(1, len(content) // 7)) if change == "flip" else ():
            content[place] ^= 0x55
        damaged = {"flip": content, "cut": content[: len(content) // 2], "empty": b"", "grow": content + b"x"}[change]
        path.chmod(0o600)
        path.write_bytes(damaged)
    shutil.rmtree(developer.project / "build")
    for _ in range(2):
        said = developer.build()
        assert said.status == 0 and "Traceback" not in said.text, said.text
        assert developer.library.read_bytes() == library
    assert said.compiled == 0


def test_a_clock_that_went_backwards(developer: Developer) -> None:
    """Files and store from the future, edits that leave size and mtime as they were."""
    future_ns = 4_000_000_000_000_000_000
    source = developer.project / "src" / "b.cu"
    assert developer.build().status == 0
    developer.buildd("down")
    for path in (*developer.store.rglob("*"), *developer.project.rglob("*")):
        os.utime(path, ns=(future_ns, future_ns))
    assert developer.build().compiled == 0
    source.write_text("B\n")
    os.utime(source, ns=(future_ns, future_ns))
    said = developer.build()
    assert said.status == 0 and said.compiled == 2, said.text
    assert developer.library.read_bytes() == developer.clean()
    os.utime(source, ns=(0, 0))
    assert developer.build().compiled == 0
    assert developer.buildd("cache", "verify")[0] == 0


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
def test_odd_variables_cost_no_build(
    kept_developer: Developer, tmp_path: Path, name: str, value: str, status: int
) -> None:
    project = shutil.copytree(kept_developer.project, tmp_path / "p", ignore=shutil.ignore_patterns("build"))
    (project / "buildd.toml").write_text(f'[toolchain]\ncuda = "{kept_developer.environ["CUDA_HOME"]}"\n' + PROJECT)
    before = dict(kept_developer.environ)
    kept_developer.environ[name] = value
    try:
        said = kept_developer.build(project=project)
    finally:
        kept_developer.environ = before
    assert said.status == status and "Traceback" not in said.text, said.text
    assert (project / "build/demo/libdemo.so").exists() == (status == 0)
    if status:
        assert name in said.text and "next: " in said.text
