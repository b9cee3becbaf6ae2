"""Builds in places that Linux makes difficult: small, read-only and remote disks, containers, sessions that end.

Through the real command line and a real daemon; skipped, with the reason, where this machine permits no namespaces.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from functools import cache

import pytest

from tests.estate import Estate, until, why_no_namespaces
from tests.toolkit import host_compiler

pytestmark = pytest.mark.skipif(not host_compiler(), reason="needs gcc or cc")


@cache
def _refusal() -> str:
    return why_no_namespaces()


@pytest.fixture
def boxed(estate: Estate) -> Estate:
    """An estate on a machine that permits namespaces."""
    if _refusal():
        pytest.skip(f"no mount and pid namespaces here: {_refusal()}")
    return estate


# ------------------------------------------------------------ disks


def test_the_disk_of_the_store_is_full(boxed: Estate) -> None:
    """The compiler itself has no room; the store is sound, keeps what went well and serves it later."""
    boxed.write("src/a.cu", f"//! bytes {6 << 20}\na\n")
    said = boxed.inside(
        "mkdir -p store && mount -t tmpfs -o size=4m none store\n"
        "! $BUILDD build -C project -k -j 1\n"  # side by side, one takes the other's room
        "test ! -e project/build/demo/libdemo.so\n"
        "$BUILDD cache verify\n"
        "mount -o remount,size=2g store && $BUILDD down\n"  # the store's bound is a tenth of its disk
        "$BUILDD build -C project\n"
        "rm -r project/build && $BUILDD build -C project\n"
        "$BUILDD down\n"
    )
    assert said.status == 0 and "Traceback" not in said.text, said.text
    assert "No space left on device" in said.text and "next: free some space on the disk of " in said.text
    assert "everything is sound" in said.text
    assert "1 hit, 2 compiled" in said.text, "what went well is kept"
    assert "3 hits, 0 compiled" in said.text
    assert boxed.library.read_bytes() == boxed.clean()


def test_the_store_has_no_room_for_a_result_that_fits_beside_it(boxed: Estate) -> None:
    """The compile happens, its artifact is delivered, and one line says that it is not kept."""
    boxed.write("src/a.cu", f"//! bytes {3 << 20}\na\n")
    said = boxed.inside(
        "mkdir -p store && mount -t tmpfs -o size=5m none store\n"
        "$BUILDD build -C project\n"
        "$BUILDD cache verify\n"
        "$BUILDD down\n"
    )
    assert said.status == 0 and "not stored: " in said.text, said.text
    assert "Traceback" not in said.text and "everything is sound" in said.text
    assert boxed.library.read_bytes() == boxed.clean()


def test_the_disk_of_the_project_is_full(boxed: Estate) -> None:
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


@pytest.mark.parametrize("way", ["", "--no-daemon"])
def test_files_may_not_grow(estate: Estate, way: str) -> None:
    """RLIMIT_FSIZE: the other way to have no room."""
    estate.write("src/a.cu", f"//! bytes {6 << 20}\na\n")
    limited = ["sh", "-c", f'ulimit -f 2048; exec "$0" -P -m buildd build -C "$1" {way}', sys.executable]
    done = subprocess.run(
        [*limited, str(estate.project)],
        cwd=estate.folder,
        env=estate.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1, done.stdout
    assert "Traceback" not in done.stdout and "command: " in done.stdout
    estate.buildd("down")
    assert estate.build().status == 0
    assert estate.library.read_bytes() == estate.clean()


def test_a_read_only_store_serves_what_it_has(boxed: Estate) -> None:
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


NETWORK_HOME = """
import sys
from pathlib import Path
from buildd import cli, location
location.file_system_of.__kwdefaults__["mounts"] = Path(sys.argv[1])
location.locate.__kwdefaults__["local_base"] = Path(sys.argv[2])
sys.exit(cli.main(sys.argv[3:]))
"""


def test_a_home_on_a_network_file_system(estate: Estate) -> None:
    """The mount table is a file of ours; all else is real. The store moves to this machine's disk and says so once."""
    mounts = estate.folder / "mountinfo"
    local = estate.folder / "local"
    local.mkdir()
    mounts.write_text(f"1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 0:9 / {estate.folder}/home rw - nfs4 host:/home rw\n")
    del estate.environ["BUILDD_DIR"]
    said = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-P", "-c", NETWORK_HOME, mounts, local, "build", "-C", estate.project, "--no-daemon"],
            env=estate.environ,
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
    assert (folder / "index.db").exists() and not (estate.folder / "home/.cache").exists()


# ------------------------------------------------------------ runtime folders and sessions


def test_without_a_session_folder(boxed: Estate) -> None:
    del boxed.environ["BUILDD_RUNTIME_DIR"]
    said = boxed.inside(
        "place=$($PYTHON -c 'import os; from protocol.endpoint import *; print(runtime_folder(os.environ).path)')\n"
        'trap "rm -r $place" EXIT; echo "in $place"\n'
        "$BUILDD build -C project && $BUILDD status && stat -c 'mode %a' $place/.. $place && ls $place/endpoint.json\n"
        "$BUILDD down\n"
    )
    assert said.status == 0 and f"in /tmp/buildd-{os.getuid()}/" in said.text, said.text
    assert said.text.count("mode 700\n") == 2 and "without the daemon" not in said.text


def test_a_runtime_path_too_long_for_a_socket(estate: Estate) -> None:
    estate.environ["BUILDD_RUNTIME_DIR"] = f"{estate.folder}/{'x' * 107}"
    said = estate.build()
    estate.environ["BUILDD_RUNTIME_DIR"] = str(estate.run_folder)
    assert said.status == 0, said.text
    assert "is too long: a socket's path may have 107 bytes" in said.text and "building without the daemon" in said.text
    assert estate.library.read_bytes() == estate.clean()


def test_a_logout_while_building(estate: Estate) -> None:
    """systemd takes the session's folder away and the terminal hangs up; neither ends the daemon's work for others."""
    estate.write("src/a.cu", "//! sleep 1.5\na\n")
    build = estate.begin()
    estate.until_compiling("src/a.cu")
    daemon = estate.daemon()
    assert daemon is not None
    daemon.kill(signal.SIGHUP)
    shutil.rmtree(estate.run_folder)
    try:
        said = estate.finish(build)
        assert said.status == 0, said.text
        estate.run_folder.mkdir(mode=0o700)
        again = estate.build()
        assert again.status == 0 and again.compiled == 0, again.text
        assert estate.library.read_bytes() == estate.clean()
    finally:
        daemon.kill(signal.SIGTERM)
        until(lambda: not daemon.lives, "a daemon that nobody can reach does not end")


# ------------------------------------------------------------ containers


def test_a_container_that_shares_the_home(boxed: Estate) -> None:
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


def test_a_container_build_step_with_the_store_as_a_cache_mount(boxed: Estate) -> None:
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
