"""Programs of ours that are damaged: noticed wherever they are run or loaded from, and made again."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from buildd.client import machine_checks
from buildd.native import preload, programs
from buildd.native.programs import NATIVE, is_sound
from buildd.shims import interposition, shim_folders
from tests.support.own_programs import PROGRAM_CACHE
from tests.support.serving import short_folder
from tests.support.toolkit import host_compiler
from tests.support.user import User

pytestmark = pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")


def empty(content: bytes) -> bytes:
    return b""


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def flipped(content: bytes) -> bytes:
    return content[:5000] + bytes(byte ^ 0x55 for byte in content[5000:5100]) + content[5100:]


DAMAGES = (empty, cut, flipped)
Damage = Callable[[bytes], bytes]


def spoil(place: Path, damage: Damage) -> None:
    """As a disk would: what has the place stays the same file, and so do its other names."""
    place.write_bytes(damage(place.read_bytes()))


@pytest.fixture(scope="module", autouse=True)
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a gcc, first on PATH, that does not optimize: most tests compile a program again."""
    folder = tmp_path_factory.mktemp("quick")
    (folder / "gcc").write_text(f'#!/bin/sh\nexec {host_compiler()} "$@" -O0\n')
    (folder / "gcc").chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        yield folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, quick: Path) -> Path:
    store = tmp_path_factory.mktemp("made")
    shim_folders.program(store, os.environ["PATH"])
    return store


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made / NATIVE, tmp_path / "store" / NATIVE)
    (tmp_path / "store" / NATIVE).chmod(0o700)
    return tmp_path / "store"


# ---------------------------------------------------------------- shims


@pytest.mark.parametrize("damage", DAMAGES)
def test_every_damage_is_seen(store: Path, damage: Damage) -> None:
    binary = shim_folders.program(store, os.environ["PATH"])
    assert is_sound(binary)
    spoil(binary, damage)
    assert not is_sound(binary)


def test_a_damaged_shim_is_made_again_in_all_its_places(store: Path) -> None:
    environ = {"PATH": os.environ["PATH"]}
    place = shim_folders.toolkit(store, environ)
    binary = shim_folders.program(store, environ["PATH"])
    running = os.stat(binary).st_ino
    assert shim_folders.verify(store, environ)[1] == 0
    spoil(binary, flipped)
    assert not is_sound(place.programs / "gcc")
    assert shim_folders.toolkit(store, environ) == place
    for found in (binary, place.programs / "gcc", place.programs / shim_folders.LAUNCHER):
        assert is_sound(found) and os.access(found, os.X_OK)
        assert os.stat(found).st_ino != running, "one that runs is replaced, not written to"
    alone = {**environ, "BUILDD_DISABLE": "1"}  # the shim would start a daemon of the user who runs the tests
    done = subprocess.run([place.programs / "gcc", "--version"], env=alone, capture_output=True, check=True)
    assert b"Free Software" in done.stdout


def test_verifying_replaces_what_is_damaged(store: Path, tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"]}
    binary = shim_folders.program(store, environ["PATH"])
    gcc = {"gcc": str(host_compiler())}
    one, other = (shim_folders.stand_for(store, {**gcc, "cc": path}, environ) for path in ("/one/cc", "/other/cc"))
    (tmp_path / "mine").mkdir()
    shim_folders.install(tmp_path / "mine", store, environ)
    environ["PATH"] = f"{tmp_path / 'mine'}:{environ['PATH']}"
    copy = other.programs / "cc"
    shutil.copy2(binary, tmp_path / "copy")  # as on another file system
    os.replace(tmp_path / "copy", copy)
    spoil(copy, cut)
    spoil(tmp_path / "mine" / "gcc", flipped)  # and with it all its other names
    spoil(tmp_path / "mine" / interposition.LIBRARY, empty)
    (store / NATIVE / "old.so").write_bytes(b"")
    places = list(shim_folders.programs(store, environ))
    assert {one.programs / "gcc", copy, tmp_path / "mine" / "gcc", store / NATIVE / "old.so"} < {*places}
    assert shim_folders.verify(store, environ) == (len(places), len(places))
    assert not (store / NATIVE / "old.so").exists()
    left = list(shim_folders.programs(store, environ))
    assert len(left) == len(places) - 3 and all(map(is_sound, left)), "libraries are made again when they are needed"
    assert shim_folders.verify(store, environ) == (len(left), 0)


def test_a_shim_that_an_older_buildd_made_is_not_called_damaged(store: Path) -> None:
    """It has no digest behind it; `buildd run` and `buildd cache verify` make it again."""
    environ = {"PATH": os.environ["PATH"], "BUILDD_DIR": str(store)}
    place = shim_folders.stand_for(store, {"gcc": str(host_compiler())}, environ)
    spoil(place.programs / "gcc", lambda content: content[:-32])
    (found,) = machine_checks.shims(environ)
    assert found.level is machine_checks.Level.WARN and "2 of 2 are an older buildd's" in found.text
    assert str(store) in found.text and "cache verify" in found.next_step and "buildd run" in found.next_step
    spoil(place.programs / "gcc", cut)
    assert [found.level for found in machine_checks.shims(environ)] == [machine_checks.Level.FAIL]
    assert shim_folders.verify(store, environ) == (2, 2)
    assert [found.text for found in machine_checks.shims(environ)] == [
        "2 programs that stand in for compilers, all intact"
    ]


def test_without_a_compiler_no_damaged_shim_stays(store: Path, tmp_path: Path) -> None:
    place = shim_folders.stand_for(store, {"gcc": str(host_compiler())}, {"PATH": os.environ["PATH"]})
    spoil(place.programs / "gcc", empty)
    (tmp_path / "no").mkdir()
    assert shim_folders.verify(store, {"PATH": str(tmp_path / "no")}) == (2, 2)
    assert not (place.programs / "gcc").exists()


def test_no_name_comes_before_its_content(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power failure a name that was given too early would have nothing behind it."""
    said: list[str] = []
    real = {name: getattr(os, name) for name in ("fsync", "replace")}

    def noted(name: str) -> Callable[..., None]:
        def call(*arguments: object) -> None:
            path = os.readlink(f"/proc/self/fd/{arguments[0]}") if name == "fsync" else str(arguments[1])
            said.append(f"{name} {'folder' if os.path.isdir(path) else 'file'}")
            real[name](*arguments)

        return call

    for name in real:
        monkeypatch.setattr(os, name, noted(name))
    spoil(shim_folders.program(store, os.environ["PATH"]), empty)
    said.clear()
    shim_folders.program(store, os.environ["PATH"])
    assert said == ["fsync file", "replace file", "fsync folder"]


def test_a_process_that_may_start_no_thread_compiles_one_source_after_the_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As under `ulimit -v`: the user's own compiles work there."""

    def fail(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    texts = {"main.c": "int f(void); int main(void) { return f(); }", "other.c": "int f(void) { return 7; }"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    sources = [tmp_path / name for name in texts]
    assert programs.compile_program(str(host_compiler()), (), sources, tmp_path / "made") == ""
    assert subprocess.run([tmp_path / "made"], check=False).returncode == 7


# ---------------------------------------------------------------- what is loaded


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_library_is_not_preloaded(tmp_path: Path, damage: Damage) -> None:
    library = Path(preload.library(tmp_path / "store"))
    spoil(library, damage)
    preload._made.cache_clear()  # another process
    assert preload.library(tmp_path / "store") == str(library)
    assert is_sound(library)


# ---------------------------------------------------------------- commands


def test_a_build_is_right_after_damage(monkeypatch: pytest.MonkeyPatch, quick: Path) -> None:
    monkeypatch.delenv(PROGRAM_CACHE)  # not what other tests use
    with short_folder() as folder:
        user = User(folder)
        user.environ["PATH"] = f"{quick}:{user.environ['PATH']}"
        try:
            (folder / "a.cpp").write_text("int a;\n")
            command = ("run", "--quiet", "--", "g++", "-c", "a.cpp", "-o", "a.o")
            assert user.buildd(*command)[0] == 0
            content = (folder / "a.o").read_bytes()
            (binary,) = (user.store / NATIVE).glob("*.launcher")
            mendings = (command, ("cache", "verify"), ("install-launchers", str(folder / "mine")))
            # Each mending compiles the shims again, and looks for every damage in the same way (`is_sound`, above).
            for damage, mending in zip(DAMAGES, mendings, strict=True):
                spoil(binary, damage)
                (wrong,) = machine_checks.shims(user.environ)
                assert wrong.level is machine_checks.Level.FAIL and "cache verify" in wrong.next_step
                (folder / "a.o").unlink()
                status, said = user.buildd(*mending)
                assert status == 0, said
                if mending != command:
                    assert "damaged, made again: " in said or mending[0] != "cache"
                    assert user.buildd(*command)[0] == 0
                assert (folder / "a.o").read_bytes() == content
                (right,) = machine_checks.shims(user.environ)
                assert right.level is machine_checks.Level.OK, right
            spoil(binary, cut)
            status, said = user.buildd("doctor")
            assert "fail  shims: " in said and "next: buildd cache verify" in said and status == 3
        finally:
            assert user.end() == []
