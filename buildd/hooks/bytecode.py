"""Keeps the bytecode of Python modules in the store, if Python cannot keep it beside them.

Runs in the user's own process, from this one file, in the middle of imports: apart from hashing it imports nothing that
Python's start has not imported anyway. A first `torch.compile` imports 1,500 modules; to compile them takes seconds in
every process, if their folders are read-only or another user's, or PYTHONDONTWRITEBYTECODE is set. The source's text
decides, no stamp. Only bytecode written with the user's key counts; if anything goes wrong, Python compiles.
"""

from __future__ import annotations

import marshal
import os
import sys
import time
from _blake2 import blake2b  # hashlib would have to be imported

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType
    from typing import Any

FOLDER = "bytecode"
MAGIC = b"buildd-bytecode 2\n"
_DIGEST_BYTES = 32
_MOST_BYTES = 64 << 20
_USED_AGAIN_S = 86400.0


class BytecodeStore:
    """The bytecode in one store.

    Args:
        store: the store's folder.
        secret: known only to the user, at most 64 bytes.
    """

    def __init__(self, store: str, secret: bytes) -> None:
        self.folder = os.path.join(store, FOLDER)
        self._secret = secret
        self._written = 0

    def open(self) -> bool:
        """Make the folder; returns whether it is the user's own. Raises OSError."""
        try:
            os.mkdir(self.folder, 0o700)
        except FileExistsError:
            pass
        status = os.lstat(self.folder)
        return status.st_mode & 0o170022 == 0o040000 and status.st_uid == os.geteuid()

    def name_of(self, source: bytes, path: str, optimize: int) -> str:
        """Name of the file for a source's code."""
        level = sys.flags.optimize if optimize == -1 else optimize
        # The same text at another place has another file name in its code.
        what = f"{sys.implementation.cache_tag} {sys.hexversion} {level} {path}\0".encode("utf-8", "surrogateescape")
        return str(blake2b(what + source, digest_size=16).hexdigest())

    def take(self, name: str) -> CodeType | None:
        """Undamaged code, or None. Raises OSError and ValueError."""
        try:
            descriptor = os.open(os.path.join(self.folder, name), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        with open(descriptor, "rb", buffering=0) as file:
            status = os.fstat(descriptor)
            if status.st_uid != os.geteuid() or status.st_size > _MOST_BYTES:
                raise ValueError("not written by this user")
            content = file.read()
            if time.time() - status.st_mtime > _USED_AGAIN_S:
                os.utime(descriptor)  # the least recently used file is removed first
        body = len(MAGIC) + _DIGEST_BYTES
        if not content.startswith(MAGIC) or content[len(MAGIC) : body] != self._check_of(name, content[body:]):
            raise ValueError("damaged")
        code: CodeType = marshal.loads(content[body:])
        return code

    def put(self, name: str, code: CodeType) -> None:
        """Store code, whole or not at all. Raises OSError."""
        body = marshal.dumps(code)
        self._written += 1
        aside = os.path.join(self.folder, f".{os.getpid()}-{self._written}")
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            content = MAGIC + self._check_of(name, body) + body
            with open(descriptor, "wb", buffering=0) as file:
                if file.write(content) != len(content):
                    raise OSError("written in part")
            os.replace(aside, os.path.join(self.folder, name))
        except OSError:
            os.unlink(aside)
            raise

    def _check_of(self, name: str, body: bytes) -> bytes:
        return bytes(blake2b(name.encode() + body, digest_size=_DIGEST_BYTES, key=self._secret).digest())


def is_unkept(path: str) -> bool:
    """Whether Python itself will not keep the bytecode of a source."""
    return sys.dont_write_bytecode or not (sys.pycache_prefix or os.access(os.path.dirname(path), os.W_OK))


def begin(loader: Any, store: str, secret: bytes) -> None:
    """Keep bytecode from now on.

    Args:
        loader: importlib's SourceFileLoader. It compiles only if it finds no valid bytecode.
        store: the folder of the store.
        secret: as for `BytecodeStore`.
    """
    compile_source: Callable[..., CodeType] = loader.source_to_code
    kept = BytecodeStore(store, secret)
    if not kept.open():
        return

    def source_to_code(self: Any, data: Any, path: Any, *, _optimize: int = -1) -> CodeType:
        name = ""
        try:
            if isinstance(data, bytes) and isinstance(path, str) and is_unkept(path):
                name = kept.name_of(data, path, _optimize)
                found = kept.take(name)
                if found is not None:
                    return found
        except (OSError, ValueError, EOFError, TypeError):
            # The edge to the user's program: Python compiles, and replaces the bytecode.
            pass
        code = compile_source(self, data, path, _optimize=_optimize)
        if name:
            try:
                kept.put(name, code)
            except (OSError, ValueError):
                # As above: a full disk, or a store that is gone.
                pass
        return code

    loader.source_to_code = source_to_code
