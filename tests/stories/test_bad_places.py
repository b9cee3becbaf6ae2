"""Builds in places that Linux makes difficult: small, read-only and remote disks, containers, sessions that end.

Through the real command line and a real daemon; skipped, with the reason, where this machine permits no namespaces.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from functools import cache

import pytest

from tests.support.developer import Developer, why_no_namespaces
from tests.support.own_programs import lend_programs
from tests.support.toolkit import host_compiler
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(not host_compiler(), reason="needs gcc or cc")


@cache
def _refusal() -> str:
    return why_no_namespaces()


@pytest.fixture
def boxed(developer: Developer) -> Developer:
    """A developer on a machine that permits namespaces."""
    if _refusal():
        pytest.skip(f"no mount and pid namespaces here: {_refusal()}")
    return developer


# ------------------------------------------------------------ disks


def test_an_export_to_a_full_or_read_only_disk_leaves_no_part_of_a_file(boxed: Developer) -> None:
    boxed.write("src/a.cu", f"//! bytes {1 << 20}\na\n")
    said = boxed.inside(
        "mkdir small && mount -t tmpfs -o size=64k none small\n"
        "$BUILDD build -C project && echo other > project/src/b.cu && $BUILDD build -C project\n"
        "$BUILDD cache export kernels.buildd -C project\n"
        "! $BUILDD cache export small/full -C project\n! $BUILDD cache export small/layout --oci -C project\n"
        "mount -o remount,ro small\n! $BUILDD cache export small/locked -C project\n"
        "echo parts: $(ls -A small)\n"
        "$BUILDD down\n"
    )
    assert "Traceback" not in said.text and "parts:\n" in said.text, said.text
    assert "left out, because these targets do not need it: 2 results; --all exports it too\n" in said.text
    for name in ("full", "layout"):
        assert f"  file: small/{name}\n  next: free some space there, or name a file on another disk\n" in said.text
    locked = (
        "cannot be written: Read-only file system\n  file: small/locked\n  next: name a file in a folder that you may"
    )
    assert locked in said.text


def test_the_disk_of_the_store_is_full(boxed: Developer) -> None:
    """The build goes on elsewhere; the store is sound, keeps what has room and serves it later."""
    boxed.write("src/a.cu", f"//! bytes {6 << 20}\na\n")
    boxed.environ["BUILDD_CACHE_SIZE"] = "1G"
    said = boxed.inside(
        "mkdir -p store && mount -t tmpfs -o size=4m none store\n"
        "$BUILDD build -C project\n"
        "$BUILDD cache verify\n"
        "mount -o remount,size=2g store && $BUILDD down\n"
        "rm -r project/build && $BUILDD build -C project\n"
        "rm -r project/build && $BUILDD build -C project\n"
        "$BUILDD down\n"
    )
    assert said.status == 0 and "Traceback" not in said.text, said.text
    assert "not stored: no space left on the disk of" in said.text and "everything is sound" in said.text
    assert f"{boxed.folder}/store (free some space there, " in said.text, "the store, not a file in it; the next step"
    assert "2 hits, 1 compiled" in said.text, "what had room is kept"
    assert "3 hits, 0 compiled" in said.text
    assert boxed.library.read_bytes() == boxed.clean()


FULL = {
    **{f"{size} KiB": f"size={size}k" for size in (64, 512, 2048, 8192)},
    **{f"{count} inodes": f"size=64m,nr_inodes={count}" for count in (2, 6, 10, 15, 25, 60)},
}


CORE = "64 KiB"
"""The state that the core tests try; the heavy tier tries all. The kernel says the same of each."""


@pytest.mark.parametrize(
    "options",
    [pytest.param(options, id=name, marks=() if name == CORE else pytest.mark.slow) for name, options in FULL.items()],
)
def test_a_store_with_hardly_any_room(boxed: Developer, options: str) -> None:
    """A build with a daemon, one without and a foreign one succeed, and a line says that results are not kept."""
    boxed.write("src/a.cu", f"//! bytes {6 << 20}\na\n")
    boxed.environ["BUILDD_CACHE_SIZE"] = "1G"
    (boxed.folder / "new.c").write_text("int new;\n")
    said = boxed.inside(
        f"rm -rf store && mkdir store && mount -t tmpfs -o {options} none store\n"
        "$BUILDD build -C project\n"
        "mv project/build first\n"
        "$BUILDD build -C project --no-daemon\n"
        "cmp first/demo/libdemo.so project/build/demo/libdemo.so\n"
        "$BUILDD run -- gcc -c new.c\n"
        "test -s new.o\n"
        "$BUILDD down\n"
    )
    assert said.status == 0 and "Traceback" not in said.text and "Errno" not in said.text, said.text
    first, _, again = said.text.partition("built 1 target: 0 hits, 3 compiled")
    is_said = "not stored: " in first or "results are not kept" in first or "new ones are not kept" in first
    assert is_said or "3 hits, 0 compiled" in again, said.text


@pytest.mark.slow
def test_a_foreign_build_says_at_its_end_that_the_full_disk_kept_nothing(boxed: Developer) -> None:
    """Also where there was room for the shims, and none for an index, so that nothing can be noted for the run."""
    (boxed.folder / "new.c").write_text("int new;\n")
    said = boxed.inside(
        "rm -rf store && mkdir store && mount -t tmpfs -o size=300k none store\n"
        "$BUILDD run -- gcc -c new.c\n"
        "! $BUILDD explain --last && ! $BUILDD log\n"
        "! $BUILDD warm --prove -- gcc -c new.c && ! $BUILDD run --quiet --fail-on-miss -- gcc -c new.c -DNEW\n"
        "$BUILDD down && mount -o remount,size=8m store && $BUILDD run -- gcc -c new.c\n"
        "cat /dev/zero > store/zeros || echo 'int newer;' > new.c\n"
        "$BUILDD run -- gcc -c new.c\n"
        "$BUILDD down\n"
    )
    assert said.status == 0 and "Traceback" not in said.text, said.text
    full = f"no space left on the disk of {boxed.store}"
    assert said.text.count("buildd: 0 hits, 1 miss (") == 3, said.text
    assert said.text.count(f"buildd: not cached: {full}/index.db (free some space there, ") == 1
    assert "buildd: not warm: 1 compile would run" in said.text and "--fail-on-miss: 1 compile ran" in said.text
    assert said.text.count(f"buildd: not cached: {full} (free some space there, ") == 1
    assert said.text.count(f"error: {full}/index.db\n") == 2 and "may not be written" not in said.text


def test_no_disk_has_room(boxed: Developer) -> None:
    """Each failure names the disk and the next step, also where the tool speaks of something else."""
    boxed.write("src/a.cu", f"//! bytes {6 << 20}\na\n")
    boxed.write("src/b.cu", "//! fail\nb\n")
    boxed.environ["TMPDIR"] = "/var/tmp"
    said = boxed.inside(
        "rm -rf store && mkdir store\n"
        "mount -t tmpfs -o size=64k none store && mount -t tmpfs -o size=64k none /var/tmp\n"
        "! $BUILDD build -C project --no-daemon\n"
        "umount store /var/tmp\n"
        "mount -t tmpfs -o size=4m none store && mount -t tmpfs -o size=3m none /var/tmp\n"
        "! $BUILDD build -C project -k -j 1\n"
        "! $BUILDD build -C project -k -j 1 --no-daemon\n"
        "mount -o remount,size=512m /var/tmp && sed -i s/fail// project/src/b.cu\n"
        "$BUILDD build -C project\n"
        "$BUILDD down\n"
    )
    assert said.status == 0 and "Traceback" not in said.text, said.text
    words = f"nvcc ended with status 1: the disk of {boxed.store}/tmp/"
    assert said.text.count(words) == 4 and said.text.count(" MiB left\n") == 4, said.text
    assert said.text.count("next: free some space there, or set TMPDIR to another disk") == 4
    assert f"error: no space left on the disk of {boxed.store}/index.db" in said.text, said.text


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        pytest.param("fifo", (), id="fifo, daemon"),
        pytest.param("folder", ("--no-daemon",), id="folder, alone"),
        pytest.param("fifo", ("--no-daemon",), id="fifo, alone", marks=pytest.mark.slow),
        pytest.param("folder", (), id="folder, daemon", marks=pytest.mark.slow),
    ],
)
def test_an_index_that_cannot_be_opened(developer: Developer, kind: str, way: tuple[str, ...]) -> None:
    """The build goes on without the store, as with a full disk, and says so; nothing waits for the FIFO."""
    index = developer.store / "index.db"
    developer.store.mkdir(exist_ok=True)
    if kind == "fifo":
        os.mkfifo(index)
    else:
        index.mkdir()
    for _ in range(2):
        shutil.rmtree(developer.project / "build", ignore_errors=True)
        said = developer.build(*way)
        assert said.status == 0, said.text
        assert f"results are not kept: {index}: the store's index is no regular file" in said.text
        assert developer.library.exists()


def test_commands_with_an_index_that_cannot_be_opened(developer: Developer) -> None:
    """Those that need the store name its index; a compile that does not goes on."""
    (developer.store / "index.db").mkdir(parents=True)
    for command in (("warm", "-C", str(developer.project)), ("cache", "stats"), ("log",), ("doctor",)):
        status, text = developer.buildd(*command)
        assert status == 3 and "no regular file" in text and "Traceback" not in text, (command, text)
    (developer.folder / "new.c").write_text("int new;\n")
    status, text = developer.buildd("run", "--", "gcc", "-c", "new.c")
    assert status == 0 and (developer.folder / "new.o").stat().st_size, text
    assert "Traceback" not in text


def test_the_store_has_no_room_for_a_result_that_fits_beside_it(boxed: Developer) -> None:
    """No other disk has more room; the artifact is delivered, and one line says that it is not kept."""
    boxed.write("src/a.cu", f"//! bytes {3 << 20}\na\n")
    boxed.environ |= {"BUILDD_CACHE_SIZE": "1G", "TMPDIR": "/var/tmp"}
    said = boxed.inside(
        "mkdir -p store && mount -t tmpfs -o size=5m none store && mount -t tmpfs -o size=1m none /var/tmp\n"
        "$BUILDD build -C project\n"
        "$BUILDD cache verify\n"
        "$BUILDD down\n"
    )
    assert said.status == 0 and "not stored: " in said.text, said.text
    assert "Traceback" not in said.text and "everything is sound" in said.text
    assert boxed.library.read_bytes() == boxed.clean()


def test_a_daemon_whose_store_cannot_be_made_ends_when_it_rests(developer: Developer) -> None:
    """It would keep nothing for anybody, and who corrects the variable gets another daemon's store from it."""
    nowhere = developer.folder / "file" / "store"
    nowhere.parent.write_text("no folder")
    developer.environ["BUILDD_DIR"] = str(nowhere)
    status, text = developer.buildd("build", "-C", "project")
    assert status == 0 and "building without the store" in text, text
    until(lambda: developer.buildd("status")[0] == 3, "the daemon ends")


def test_the_disk_of_the_project_is_full(boxed: Developer) -> None:
    boxed.write("src/a.cu", f"//! bytes {6 << 20}\na\n")
    said = boxed.inside(
        "mkdir small && mount -t tmpfs -o size=2m none small && cp -r project/. small\n"
        "! $BUILDD build -C small\n"
        "test ! -e small/build/demo/libdemo.so\n"
        "mount -o remount,size=64m small\n"
        "$BUILDD build -C small\n"
        "test -e small/build/demo/libdemo.so\n"
        "$BUILDD down\n"
    )
    assert said.status == 0, said.text
    assert "space" in said.text and "next: free some space and build again" in said.text, said.text
    assert "Traceback" not in said.text


def test_the_disk_of_the_project_has_no_room_for_a_result_of_the_store(boxed: Developer) -> None:
    """The advice is about that disk: a smaller store makes no room there."""
    boxed.write("src/a.cu", f"//! bytes {1 << 20}\na\n")
    said = boxed.inside(
        "mkdir -p project/build && mount -t tmpfs -o size=64k none project/build\n"
        "! $BUILDD build -C project\n"
        "$BUILDD down\n"
    )
    assert said.status == 0 and "Traceback" not in said.text, said.text
    assert f"no space left on the disk of {boxed.project}/build/" in said.text, said.text
    assert "next: free some space and build again\n" in said.text and "BUILDD_DIR" not in said.text, said.text


@pytest.mark.parametrize("way", ["", pytest.param("--no-daemon", marks=pytest.mark.slow)])
def test_files_may_not_grow(developer: Developer, way: str) -> None:
    """RLIMIT_FSIZE: the other way to have no room."""
    developer.write("src/a.cu", f"//! bytes {6 << 20}\na\n")
    limited = ["sh", "-c", f'ulimit -f 2048; exec "$0" -P -m buildd build -C "$1" {way}', sys.executable]
    done = subprocess.run(
        [*limited, str(developer.project)],
        cwd=developer.folder,
        env=developer.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1, done.stdout
    assert "Traceback" not in done.stdout and "command: " in done.stdout
    developer.buildd("down")
    assert developer.build().status == 0
    assert developer.library.read_bytes() == developer.clean()


def test_a_store_whose_name_tools_would_split(developer: Developer) -> None:
    """Jobs then have their folders elsewhere; what the sources include from there is read again."""
    developer.environ["BUILDD_DIR"] = str(developer.folder / "my store")
    lend_programs(developer.folder / "my store")
    developer.environ["TMPDIR"] = str(developer.folder)
    assert developer.build().compiled == 3
    developer.write("src/x.h", "other\n")
    shutil.rmtree(developer.project / "build")
    assert (changed := developer.build()).compiled == 2, changed.text
    assert developer.library.read_bytes() == developer.clean()
    developer.buildd("down")
    assert not list(developer.folder.glob("buildd-scratch-*"))


def test_a_read_only_store_serves_what_it_has(boxed: Developer) -> None:
    assert boxed.build().compiled == 3
    boxed.buildd("down")
    boxed.write("src/c.cu", "c\n")
    said = boxed.inside(
        "mount --bind store store && mount -o remount,ro,bind store\n"
        "rm -r project/build\n"
        "$BUILDD build -C project && $BUILDD build -C project --no-daemon && $BUILDD cache stats\n"
        "$BUILDD down\n"
    )
    assert said.status == 0 and "Traceback" not in said.text, said.text
    assert "2 hits, 2 compiled" in said.text, said.text
    assert boxed.library.read_bytes() == boxed.clean()
    assert boxed.build().status == 0


def test_a_read_only_store_under_a_foreign_build(boxed: Developer) -> None:
    """The daemon serves what the store has, and one line says that nothing new is kept."""
    for name in ("old", "new"):
        (boxed.folder / f"{name}.c").write_text(f"int {name}(void) {{ return 1; }}\n")
    assert boxed.buildd("run", "--", "gcc", "-c", "old.c", "-o", "right.o")[0] == 0  # another name: no direct hit
    boxed.buildd("down")
    said = boxed.inside(
        "mount --bind store store && mount -o remount,ro,bind store\n"
        "$BUILDD run -- gcc -c old.c -o old.o && $BUILDD run -- gcc -c new.c -o new.o\n"
        "cmp old.o right.o && test -s new.o\n"
        "$BUILDD cache verify\n"
        "! $BUILDD cache gc\n"
        "$BUILDD down\n"
    )
    assert said.status == 0 and "Errno" not in said.text and "without the daemon" not in said.text, said.text
    line = f"the store in {boxed.store} cannot be written (Read-only file system): its results are used, new ones are"
    assert said.text.count(line) == 2, "a line for each run"
    assert "buildd: 1 hit, 0 misses" in said.text and "buildd: 0 hits, 1 miss" in said.text
    assert "everything is sound" in said.text
    assert "error: the store may not be written" in said.text and "next: check the folder's disk" in said.text


NETWORK_HOME = """
import sys
from pathlib import Path
from buildd import cli
from buildd.store import location
location.file_system_of.__kwdefaults__["mounts"] = Path(sys.argv[1])
location.locate.__kwdefaults__["local_base"] = Path(sys.argv[2])
sys.exit(cli.main(sys.argv[3:]))
"""


def test_a_home_on_a_network_file_system(developer: Developer) -> None:
    """The mount table is a file of ours; all else is real. The store moves to this machine's disk and says so once."""
    mounts = developer.folder / "mountinfo"
    local = developer.folder / "local"
    local.mkdir()
    lend_programs(local / f"buildd-{os.getuid()}")
    mounts.write_text(f"1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 0:9 / {developer.folder}/home rw - nfs4 host:/home rw\n")
    del developer.environ["BUILDD_DIR"]
    said = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-P", "-c", NETWORK_HOME, mounts, local, "build", "-C", developer.project, "--no-daemon"],
            env=developer.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stdout
        said.append(done.stdout)
    folder = local / f"buildd-{os.getuid()}"
    assert f"the store is in {folder}: " in said[0] and "is on nfs4. Set BUILDD_DIR" in said[0]
    assert "the store is in" not in said[1] and "3 hits, 0 compiled" in said[1]
    assert (folder / "index.db").exists() and not (developer.folder / "home/.cache").exists()


# ------------------------------------------------------------ limits


def limited(developer: Developer, limit: str, *words: str) -> subprocess.CompletedProcess[str]:
    """`buildd WORD...` under a limit of the shell."""
    return subprocess.run(
        ["bash", "-c", f'exec 200</dev/null; {limit}; exec "$@"', "-", sys.executable, "-P", "-m", "buildd", *words],
        cwd=developer.folder,
        env=developer.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("limit", "has", "what"),
    [
        ("ulimit -n 20", "20 files open at once", "open files"),
        ("ulimit -v 600000", "585 MiB of address space", "address space"),
        ("ulimit -d 100000", "97 MiB of data", "data"),
    ],
)
def test_a_limit_that_is_too_low_for_any_build_is_named(developer: Developer, limit: str, has: str, what: str) -> None:
    done = limited(developer, limit, "build", "-C", str(developer.project))
    assert done.returncode == 3 and "Traceback" not in done.stdout, done.stdout
    assert f"error: this process may have {has}, buildd needs " in done.stdout
    assert f"  next: raise the limit of {what}: ulimit {limit.split()[1]} " in done.stdout
    assert developer.daemon() is None


def test_a_limit_that_is_too_low_for_a_daemon_costs_no_build(developer: Developer) -> None:
    """The daemon would serve others with it, who have no such limit."""
    done = limited(developer, "ulimit -n 128", "build", "-C", str(developer.project))
    assert done.returncode == 0 and "128 files open at once" in done.stdout, done.stdout
    assert "building without the daemon" in done.stdout and developer.daemon() is None
    assert developer.library.read_bytes() == developer.clean()


def test_a_small_limit_of_file_sizes_costs_no_build_now_or_later(developer: Developer) -> None:
    """A daemon that inherits it would tell everybody of a full disk."""
    done = limited(developer, "ulimit -f 100000", "build", "-C", str(developer.project))
    assert done.returncode == 0 and "may write files of 97 MiB, buildd needs 1024 MiB" in done.stdout, done.stdout
    assert "building without the daemon" in done.stdout and developer.daemon() is None
    done = limited(developer, "true", "build", "-C", str(developer.project))
    assert done.returncode == 0 and developer.daemon() is not None, done.stdout


def test_a_limit_that_may_be_raised_is_raised(developer: Developer) -> None:
    done = limited(developer, "ulimit -S -n 20", "build", "-C", str(developer.project))
    assert done.returncode == 0 and "without the daemon" not in done.stdout, done.stdout
    assert developer.daemon() is not None


@pytest.mark.parametrize("limit", ["ulimit -n 20", pytest.param("ulimit -d 100000", marks=pytest.mark.slow)])
def test_a_shim_under_a_low_limit_does_not_wait_for_a_daemon(developer: Developer, limit: str) -> None:
    (developer.folder / "a.c").write_text("int x;\n")
    began_s = time.monotonic()
    script = "gcc -c a.c -o a.o && gcc -c a.c -o b.o && gcc -c a.c -o c.o"
    done = limited(developer, limit, "run", "--", "sh", "-c", script)
    assert done.returncode == 0 and (developer.folder / "c.o").exists(), done.stdout
    assert time.monotonic() - began_s < 12, "three shims waited for a welcome"


# ------------------------------------------------------------ runtime folders and sessions


def test_without_a_session_folder(boxed: Developer) -> None:
    del boxed.environ["BUILDD_RUNTIME_DIR"]
    said = boxed.inside(
        "place=$($PYTHON -c 'import os; from protocol.endpoint import *; print(runtime_folder(os.environ).path)')\n"
        'trap "rm -r $place" EXIT; echo "in $place"\n'
        "$BUILDD build -C project && $BUILDD status && stat -c 'mode %a' $place/.. $place && ls $place/endpoint.json\n"
        "$BUILDD down\n"
    )
    assert said.status == 0 and f"in /tmp/buildd-{os.getuid()}/" in said.text, said.text
    assert said.text.count("mode 700\n") == 2 and "without the daemon" not in said.text


def test_a_runtime_path_too_long_for_a_socket(developer: Developer) -> None:
    developer.environ["BUILDD_RUNTIME_DIR"] = f"{developer.folder}/{'x' * 107}"
    said = developer.build()
    developer.environ["BUILDD_RUNTIME_DIR"] = str(developer.run_folder)
    assert said.status == 0, said.text
    assert "is too long: a socket's path may have 107 bytes" in said.text and "building without the daemon" in said.text
    assert developer.library.read_bytes() == developer.clean()


def test_a_logout_while_building(developer: Developer) -> None:
    """systemd takes the session's folder away and the terminal hangs up; neither ends the daemon's work for others."""
    developer.write("src/a.cu", "//! sleep 1.5\na\n")
    build = developer.begin()
    developer.until_compiling("src/a.cu")
    daemon = developer.daemon()
    assert daemon is not None
    daemon.kill(signal.SIGHUP)
    shutil.rmtree(developer.run_folder)
    try:
        said = developer.finish(build)
        assert said.status == 0, said.text
        developer.run_folder.mkdir(mode=0o700, exist_ok=True)  # the build may have looked for the daemon once more
        again = developer.build()
        assert again.status == 0 and again.compiled == 0, again.text
        assert developer.library.read_bytes() == developer.clean()
    finally:
        daemon.kill(signal.SIGTERM)
        until(lambda: not daemon.lives, "a daemon that nobody can reach does not end")


# ------------------------------------------------------------ containers


def test_a_container_that_shares_the_home(boxed: Developer) -> None:
    """It has a daemon of its own, shares the store, and leaves the host's daemon alone."""
    assert boxed.build().compiled == 3
    host = boxed.daemon()
    assert host is not None
    library = boxed.library.read_bytes()
    boxed.write("src/c.cu", "c\n")
    said = boxed.inside("$BUILDD build -C project; $BUILDD status; find run -name endpoint.json | wc -l")
    assert said.status == 0 and "2 hits, 2 compiled" in said.text, said.text
    assert "\n2\n" in said.text, "two endpoint files, one a place"
    assert host.lives and boxed.library.read_bytes() != library
    again = boxed.build()
    assert again.compiled == 0 and host.lives
    after = boxed.inside("$BUILDD build -C project")
    assert after.status == 0 and "0 compiled" in after.text, "what a dead container left stops nothing"


def test_a_container_build_step_with_the_store_as_a_cache_mount(boxed: Developer) -> None:
    """Each step is a new container: other pids, other paths, no daemon left from the last, which died with it."""
    script = (
        "mkdir -p {place} && mount --bind store /mnt\n"
        "mount -t tmpfs none {place} && cp -r project/. {place}\n"
        "export BUILDD_DIR=/mnt BUILDD_RUNTIME_DIR={place}/run\n"
        "$BUILDD build -C {place} && cat {place}/build/demo/libdemo.so >made"
    )
    boxed.store.mkdir(exist_ok=True)
    first = boxed.inside(script.format(place=boxed.folder / "first"))
    assert first.status == 0 and first.compiled == 3, first.text
    made = (boxed.folder / "made").read_bytes()
    second = boxed.inside(script.format(place=boxed.folder / "second"))
    assert second.status == 0 and (second.hits, second.compiled) == (3, 0), second.text
    assert (boxed.folder / "made").read_bytes() == made
