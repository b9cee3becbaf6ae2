"""Stamps of many files: C and Python have to say the same, and whatever is wrong with the C side costs only time."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from buildd.files.sweep import FIELDS, WORTH_FILES, Sweep, packed, stamp
from buildd.native.programs import NATIVE

needs_compiler = pytest.mark.skipif(not (shutil.which("gcc") or shutil.which("cc")), reason="no host compiler")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a compiled library."""
    folder = tmp_path_factory.mktemp("library") / NATIVE
    Sweep(folder).make()
    return folder


@pytest.fixture
def native(library: Path, tmp_path: Path) -> Sweep:
    folder = tmp_path / NATIVE
    shutil.copytree(library, folder)
    folder.chmod(0o700)
    return Sweep(folder)


def plain(paths: list[bytes]) -> bytes:
    """What `os.stat` says."""
    return packed([number for path in paths for number in stamp(path)])


def many(folder: Path, count: int = WORTH_FILES) -> list[bytes]:
    made = []
    for number in range(count):
        place = folder / f"folder-{number % 20}"
        place.mkdir(exist_ok=True)
        (place / f"file-{number}").write_bytes(b"x" * (number % 7))
        made.append(os.fsencode(place / f"file-{number}"))
    return made


def odd(folder: Path) -> list[bytes]:
    """Names of every kind: some are regular files, some are not, some are nothing."""
    raw = os.fsencode(folder)
    (folder / "sub" / "below").mkdir(parents=True)
    names = [b"\xff\xfe not UTF-8", b"new\nline", b"sub/file", "\u00fcber".encode(), b"sub/below/" + b"n" * 255]
    for name in names:
        with open(raw + b"/" + name, "wb") as file:
            file.write(name)
    (folder / "link").symlink_to("sub/file")
    (folder / "linked").symlink_to("sub")
    (folder / "dangling").symlink_to("nowhere")
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "pipe")
    old = folder / "before-the-epoch"
    old.write_text("")
    os.utime(old, ns=(-1_500_000_001, -1_500_000_001))
    sealed = folder / "sealed"
    sealed.mkdir()
    (sealed / "file").write_text("")
    sealed.chmod(0)
    more = [b"link", b"linked/file", b"linked/../sub/file", b"dangling", b"loop", b"pipe", b"sub", b"sub/", b"sub/."]
    more += [b"sub/file/", b"sub/file/x", b"missing", b"missing/file", b"before-the-epoch", b"sealed/file"]
    more += [b"sub//file", b"./sub/./file", b"y" * 300, b"z/" * 3000 + b"file"]
    return [raw + b"/" + name for name in (*names, *more)] + [b"/", b"", b"/dev/null", b"buildd", b"/proc/self/status"]


def test_both_sides_agree_on_every_kind_of_name(tmp_path: Path, native: Sweep) -> None:
    paths = many(tmp_path) + odd(tmp_path) * 3
    try:
        found = native.stamps_of(paths)
        assert native.is_native or not shutil.which("gcc")
        assert found == plain(paths) == Sweep(tmp_path / "no").stamps_of(paths)
        assert native.all_equal(paths, found)
        assert Sweep(tmp_path / "no").all_equal(paths, found)
    finally:
        (tmp_path / "sealed").chmod(0o700)


@needs_compiler
@pytest.mark.parametrize("is_native", [True, False])
def test_any_difference_is_seen(is_native: bool, tmp_path: Path, native: Sweep) -> None:
    sweep = native if is_native else Sweep(tmp_path / "no")
    paths = many(tmp_path)
    stamps = sweep.stamps_of(paths)
    assert sweep.is_native == is_native
    for place in (0, len(paths) // 2, len(paths) - 1):
        for field in range(FIELDS):
            changed = bytearray(stamps)
            changed[8 * (FIELDS * place + field) + 7] ^= 0x80  # the highest bit: an inode may have it
            assert not sweep.all_equal(paths, bytes(changed))
        os.rename(paths[place], paths[place] + b".away")
        assert not sweep.all_equal(paths, stamps)
        os.rename(paths[place] + b".away", paths[place])
        stamps = sweep.stamps_of(paths)  # renaming changed its ctime
    assert sweep.all_equal(paths, stamps)
    assert not sweep.all_equal(paths, stamps[:-1])
    assert not sweep.all_equal(paths[:-1], stamps)


def test_a_zero_in_a_name_is_no_end_of_it(tmp_path: Path, native: Sweep) -> None:
    paths = [*many(tmp_path), os.fsencode(tmp_path) + b"/folder-1/file-1\0x"]
    assert native.stamps_of(paths) == plain(paths)
    assert native.stamps_of(paths)[-8 * FIELDS :] == bytes(8 * FIELDS)


def test_large_numbers_wrap_as_in_c() -> None:
    assert packed([2**64 - 1, -1, 2**63]) == b"\xff" * 16 + (2**63).to_bytes(8, "little")


@needs_compiler
def test_twenty_thousand_files(tmp_path: Path, native: Sweep) -> None:
    paths = many(tmp_path, 2000) * 10
    stamps = native.stamps_of(paths)
    assert native.is_native
    assert stamps == plain(paths)
    assert native.all_equal(paths, stamps)
    before = len(os.listdir("/proc/self/fd"))
    os.utime(paths[1234])
    assert not native.all_equal(paths, stamps)
    assert len(os.listdir("/proc/self/fd")) == before


@needs_compiler
def test_the_library_is_made_once_and_found_by_the_next_process(tmp_path: Path) -> None:
    first = Sweep(tmp_path / NATIVE)
    assert not first.load()
    first.expect(WORTH_FILES - 1)
    assert not (tmp_path / NATIVE).exists()
    (tmp_path / NATIVE).mkdir(mode=0o700)
    (tmp_path / NATIVE / "old.so").touch()
    first.expect(WORTH_FILES)
    assert first._maker is not None
    first._maker.join(60)
    assert first.is_native and not first.problem
    (file,) = (tmp_path / NATIVE).iterdir()
    assert file.stat().st_mode & 0o777 == 0o700
    assert Sweep(tmp_path / NATIVE).load()


@needs_compiler
def test_it_is_compiled_at_rest_when_somebody_had_use_for_it(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path / NATIVE)
    sweep.rest()
    assert not (tmp_path / NATIVE).exists()
    paths = many(tmp_path)
    assert sweep.all_equal(paths, plain(paths)) and not sweep.is_native
    sweep.rest()
    assert sweep.all_equal(paths, plain(paths)) and sweep.is_native


@needs_compiler
@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "link", "open", "folder"])
def test_a_library_that_is_not_as_it_was_made_is_not_loaded(damage: str, native: Sweep, tmp_path: Path) -> None:
    (file,) = (tmp_path / NATIVE).iterdir()
    content = file.read_bytes()
    match damage:
        case "flip":
            file.write_bytes(content[:5000] + bytes([content[5000] ^ 1]) + content[5001:])
        case "cut":
            file.write_bytes(content[:-1])
        case "empty":
            file.write_bytes(b"")
        case "link":
            file.rename(tmp_path / "elsewhere.so")
            file.symlink_to(tmp_path / "elsewhere.so")
        case "open":
            file.chmod(0o777)
        case "folder":
            file.parent.chmod(0o777)
    assert not native.load()
    paths = many(tmp_path)
    assert native.stamps_of(paths) == plain(paths)
    assert not native.is_native


@pytest.mark.parametrize("compiler", ["", "exit 1", "echo no library > $6"])
def test_without_a_compiler_python_does_it(compiler: str, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    if compiler:
        (programs / "gcc").write_text(f"#!/bin/sh\n{compiler}\n")
        (programs / "gcc").chmod(0o755)
    sweep = Sweep(tmp_path / NATIVE, path=str(programs))
    sweep.make()
    assert sweep.problem
    paths = many(tmp_path)
    assert sweep.stamps_of(paths) == plain(paths)
    assert not sweep.is_native


def test_closing_ends_a_compiler(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    os.mkfifo(tmp_path / "started")
    (programs / "gcc").write_text(f"#!/bin/sh\necho > {tmp_path}/started\nexec sleep 600\n")
    (programs / "gcc").chmod(0o755)
    sweep = Sweep(tmp_path / NATIVE, path=f"{programs}:{os.environ['PATH']}")
    sweep.expect(WORTH_FILES)
    (tmp_path / "started").read_text()  # opens when the compiler does
    sweep.close()
    assert not sweep.is_native
    assert list((tmp_path / NATIVE).iterdir()) == []
