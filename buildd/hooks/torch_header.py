"""In a program that uses Inductor: the precompiled header that its C++ is compiled with was made through us.

Inductor keeps one in the folder for temporary files, for years. Nobody can look into it, so no compile is stored that
took one which somebody else has made, and where that is there every program would compile its kernels for ever. Here
it is made again, once: the store has it, or comes to have it. Knows no daemon. Standard library only.
"""

import functools
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_ENDING = ".gch"
_NOTE = ".buildd"
"""How the name of the note beside it ends: in what state of the file, and by which store, it was made."""
_OFF = ("", "0", "false", "no", "off")


def begin(codecache: "Any", store: str) -> None:
    """See to it from now on.

    Args:
        codecache: the module torch._inductor.codecache, just imported.
        store: the folder of the store.
    """
    compile = codecache._worker_compile_cpp

    @functools.wraps(compile)  # processes of Inductor's are told its name
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
    """Whether there is none of ours. Another one is removed: whoever compiles with it at this moment has it open, or
    does without, since what it is made of is there."""
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
        pass  # it is made again by the next one


def _state(path: str, store: str) -> str:
    status = os.stat(path)
    return f"{status.st_ino} {status.st_size} {status.st_mtime_ns} {os.path.realpath(store)}"
