"""buildd's own small C programs, compiled with the host compiler when first needed and kept in the store.

Knows the needs that sweep.py and the shims share: a compiler, a file name, and checks that no other user has written
the file and that it is undamaged. A digest follows the program's end, where neither the kernel nor a loader looks, so
every link and copy can be checked by itself. Does not know what the programs do.
"""

from __future__ import annotations

import os
import platform
import shutil
import stat
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from blake3 import blake3

NATIVE = "native"
"""Folder of compiled programs in a store."""
_COMPILE_S = 60.0
_DIGEST_BYTES = 32
_MOST_BYTES = 16 << 20
_ELF_MAGIC = b"\x7fELF\x02"
_ELF = struct.Struct("=40xQ10xHH2x")
"""In the header of a 64-bit ELF file (elf(5)): where its section headers are, the size of one and their number. Linkers
write them at the end."""
_COMPILERS = ("gcc", "cc", "clang")
_WRITING = ("DEPENDENCIES_OUTPUT", "SUNPRO_DEPENDENCIES", "LD_PRELOAD")
"""Variables by which gcc writes into the user's files, and one that buildd's own library is in."""
_FINDING = ("LD_LIBRARY_PATH", "GCC_EXEC_PREFIX", "COMPILER_PATH", "LIBRARY_PATH", "CPATH", "C_INCLUDE_PATH")
"""Variables by which a compiler, or what it needs, is found."""


class NoProgram(Exception):
    """There is no usable program, and none can be made."""


def find_compiler(path: str) -> str:
    """Absolute path of the host compiler: the first of `find_compilers`. Raises NoProgram."""
    return next(find_compilers(path))


def find_compilers(path: str) -> Iterator[str]:
    """Absolute paths of the host compilers, the first of which is the user's. It may be a wrapper that works in some
    builds only (Spack's, a site's).

    Args:
        path: as $PATH; folders of shims are passed over.

    Raises: NoProgram, if there is none.
    """
    from codegen.foreign.called_tool import without_shims

    found = set()
    path = without_shims(path)
    for name in _COMPILERS:
        for folders in (path, *path.split(os.pathsep)):  # all at once is fastest, and the first is usually the last
            each = shutil.which(name, path=folders)
            if each and (real := os.path.realpath(each)) not in found:
                found.add(real)
                yield os.path.abspath(each)
    if not found:
        raise NoProgram("no host compiler")


def place_of(folder: Path, sources: Iterable[Path], flags: Iterable[str], compiler: str, suffix: str) -> Path:
    """The program's file; its name depends on sources, compiler and machine. Raises OSError."""
    status = os.stat(compiler)
    stamp = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    parts = (*(source.read_bytes() for source in sources), *flags, compiler, str(stamp))
    return folder / f"{blake3(repr((parts, machine())).encode()).hexdigest()[:32]}{suffix}"


@cache
def machine() -> tuple[str, ...]:
    """What a program is made for. libc's version is read from the interpreter's file."""
    return platform.machine(), sys.byteorder, *platform.libc_ver()


def compile_program(compiler: str, flags: Iterable[str], sources: Iterable[Path], place: Path) -> str:
    """Compile it to its place, several sources side by side; returns the error, empty if it worked.

    Raises: OSError, SubprocessError.
    """
    aside = place.with_name(f".{place.name}.{os.getpid()}.{threading.get_ident()}")
    objects = {source: aside.with_name(f"{aside.name}.{number}.o") for number, source in enumerate(sources)}
    flags = tuple(flags)

    def compiled(source: Path) -> str:
        return _said(compiler, *flags, "-c", "-o", str(objects[source]), str(source))

    try:
        if len(objects) == 1:
            why = _said(compiler, *flags, "-o", str(aside), *map(str, objects))
        else:
            why = next(filter(None, _side_by_side(compiled, objects)), "")
            why = why or _said(compiler, *flags, "-o", str(aside), *map(str, objects.values()))
        if not why:
            seal(aside, place)
    finally:
        for made in (aside, *objects.values()):
            made.unlink(missing_ok=True)
    return why


def _side_by_side(compiled: Callable[[Path], str], sources: Iterable[Path]) -> Iterator[str]:
    """What was said of each source. Under a limit of address space no thread may start: one after the other then."""
    try:
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            yield from pool.map(compiled, sources)
    except RuntimeError:
        yield from map(compiled, sources)


def _said(*command: str) -> str:
    """What a compiler said about its failure; empty if it worked.

    The user's variables are not given to it, unless it needs them: the compiler of a module may find its libraries by
    LD_LIBRARY_PATH alone.
    """
    from codegen.compilers.closure import is_script
    from codegen.foreign.called_tool import without_shims

    bare = {"PATH": without_shims(os.environ.get("PATH", os.defpath)), "LC_ALL": "C"}
    users = {name: value for name, value in os.environ.items() if name not in _WRITING}
    needs = is_script(command[0]) or any(users.get(name) for name in _FINDING)
    for environment in (bare, {**users, **bare}) if needs else (bare,):
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environment,
            timeout=_COMPILE_S,
            check=False,
        )
        if done.returncode == 0:
            return ""
    return done.stderr.decode(errors="replace").strip()[-300:] or f"{command[0]} ended with status {done.returncode}"


def seal(made: Path, place: Path) -> None:
    """Put a new program into its place, with its digest at the end. Raises OSError.

    An older program there is replaced, not written to: it may be running.
    """
    with open(made, "r+b") as file:
        file.write(blake3(file.read()).digest())
    os.chmod(made, 0o700)
    put(made, place)


def put(aside: Path, place: Path) -> None:
    """Give a whole file its name. Raises OSError.

    Syncs the content first: after a power failure the name might otherwise belong to an empty file, which a shell takes
    for a script that does nothing.
    """
    for path, replace in ((aside, True), (place.parent, False)):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if replace:
            os.replace(aside, place)


def is_whole(content: bytes) -> bool:
    """Whether a program's bytes are undamaged."""
    return blake3(content[:-_DIGEST_BYTES]).digest() == content[-_DIGEST_BYTES:]


def is_sound(place: Path) -> bool:
    """Whether a program exists and is undamaged."""
    return is_whole(_content(place))


def has_no_digest(place: Path) -> bool:
    """Whether a program ends where its ELF file ends: an older buildd made it, and put no digest behind it."""
    content = _content(place)
    if len(content) < _ELF.size or not content.startswith(_ELF_MAGIC):
        return False
    start, entry_bytes, entries = _ELF.unpack_from(content)
    return bool(start + entry_bytes * entries == len(content))


def _content(place: Path) -> bytes:
    """A program's bytes; none where it is no regular file."""
    try:
        with open(os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            # Not more: a process with little memory could not even ask for it.
            return file.read(min(status.st_size, _MOST_BYTES)) if stat.S_ISREG(status.st_mode) else b""
    except OSError:
        return b""


def check_owner(status: os.stat_result) -> None:
    """Raises NoProgram if other users may have written this file or folder."""
    if status.st_uid != os.geteuid() or (status.st_mode & 0o022 and not stat.S_ISLNK(status.st_mode)):
        raise NoProgram("it belongs to other users, or they may write to it")
