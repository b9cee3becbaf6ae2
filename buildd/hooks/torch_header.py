"""In a program that uses Inductor: makes the precompiled header of its C++ through the daemon.

Inductor keeps this header in the folder for temporary files, for years. buildd cannot inspect a precompiled header, so
it stores no compile that used one of unknown origin: with such a header, every program would compile its kernels each
time. This hook makes the header again, once, so that it is in the store. Knows no daemon. Standard library only.
"""

import functools
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_ENDING = ".gch"
_NOTE = ".buildd"
"""Ending of the note beside the header: the state of the file, and the store that made it."""
_OFF = ("", "0", "false", "no", "off")


def begin(codecache: "Any", store: str) -> None:
    """Renew headers from now on.

    Args:
        codecache: the module torch._inductor.codecache, just imported.
        store: the folder of the store.
    """
    compile = codecache._worker_compile_cpp

    @functools.wraps(compile)  # Inductor passes its name to other processes
    def _worker_compile_cpp(*arguments: "Any", **named: "Any") -> "Any":
        is_off = os.environ.get("BUILDD_DISABLE", "").lower() not in _OFF
        made = [path for path in _headers(arguments, named) if not is_off and _is_to_be_made(path, store)]
        found = compile(*arguments, **named)
        for path in made:
            _note(path, store)
        return found

    codecache._worker_compile_cpp = _worker_compile_cpp


def _headers(arguments: "Any", named: "Any") -> "list[str]":
    """The precompiled headers that a call is to make."""
    builders = [one for group in (*arguments, *named.values()) if isinstance(group, (tuple, list)) for one in group]
    paths = [one.get_target_file_path() for one in builders if hasattr(one, "get_target_file_path")]
    return [path for path in paths if isinstance(path, str) and path.endswith(_ENDING)]


def _is_to_be_made(path: str, store: str) -> bool:
    """Whether there is no header made through the daemon. Another one is removed: a compile that uses it right now has
    it open, or uses the header's sources."""
    try:
        with open(path + _NOTE, encoding="utf-8", errors="surrogateescape") as file:
            known = file.read()
    except OSError:
        known = ""
    try:
        if known == _state(path, store):
            return False
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError:
        return False  # another user's
    return True


def _note(path: str, store: str) -> None:
    aside = f"{path}{_NOTE}.{os.getpid()}"
    try:
        with open(aside, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(_state(path, store))
        os.replace(aside, path + _NOTE)
    except OSError:
        pass  # the next process makes it again


def _state(path: str, store: str) -> str:
    status = os.stat(path)
    return f"{status.st_ino} {status.st_size} {status.st_mtime_ns} {os.path.realpath(store)}"
