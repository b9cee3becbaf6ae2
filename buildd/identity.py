"""The identity of this buildd: a digest of the code of its three packages.

Two installations of the same code are the same buildd and may share a daemon; an edited working tree is another one,
although it has the same version. Knows no daemon.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import cache

PACKAGES = ("buildd", "codegen", "protocol")
YOUNG_NS = 2_000_000_000
"""The coarsest step of a file system's clock."""


@cache
def package_digest() -> str:
    """BLAKE3 over the names and bytes of buildd's source files, 64 hexadecimal characters; takes about 3 ms."""
    from blake3 import blake3

    hasher = blake3()
    for name, path in _sources():
        with open(path, "rb") as file:
            content = file.read()
        hasher.update(f"{name}\0{len(content)}\0".encode())
        hasher.update(content)
    return hasher.hexdigest()


@cache
def package_stamp() -> str:
    """A digest of the stamps of those files: while it stays the same, `package_digest` does. Takes a third of the time.
    Empty if a file is too young for its stamp to mean anything."""
    from protocol.places import sha256

    facts: list[object] = []
    newest_ns = 0
    for name, path in _sources():
        status = os.stat(path)
        newest_ns = max(newest_ns, status.st_mtime_ns, status.st_ctime_ns)
        facts.append((name, path, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    return sha256(repr(facts).encode(errors="surrogateescape")) if newest_ns < time.time_ns() - YOUNG_NS else ""


def code_marks() -> tuple[tuple[str, int, int], ...]:
    """buildd's source files and their folders, each with its inode and the time of its last change."""
    files = [path for _, path in _sources()]
    folders = dict.fromkeys(os.path.dirname(path) for path in files)
    marked = ((path, os.stat(path)) for path in (*files, *folders))
    return tuple((path, status.st_ino, status.st_ctime_ns) for path, status in marked)


def as_marked(marks: tuple[tuple[str, int, int], ...]) -> bool:
    """Whether `code_marks` would return the same now."""
    look = os.stat
    try:
        for path, inode, changed_ns in marks:
            status = look(path)
            if status.st_ctime_ns != changed_ns or status.st_ino != inode:
                return False
    except OSError:
        return False
    return True


def _sources() -> Iterator[tuple[str, str]]:
    import codegen
    import protocol

    homes = {"buildd": __file__, "codegen": codegen.__file__, "protocol": protocol.__file__}
    for package in PACKAGES:
        home = os.path.dirname(os.path.abspath(homes[package] or ""))
        for path in sorted(_files(home)):
            yield f"{package}/{path[len(home) + 1 :]}", path


def _files(folder: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                if entry.name != "__pycache__" and not entry.is_symlink():
                    yield from _files(entry.path)
            elif not entry.name.endswith(".pyc"):
                yield entry.path
