"""The questions that answers are known by: everything in a request that can change its result.

Knows the form that question.c gives a question, and nothing of what a command means.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from functools import lru_cache

from buildd.identity import package_digest
from protocol.messages import Request

OWN = b"\1"
"""In place of the path of a checkout's folder."""
_LEFT_OUT = "CUDA_VISIBLE_DEVICES"
"""A variable that shims send and that reaches only compiles without an answer."""
_RUN_FOLDER = "BUILDD_RUN_FOLDER"
"""It changes which results are looked at, and no result."""
_OPTIONS = "-I|-L|-B|-o|-isystem|-iquote|-idirafter|-include|-imacros|-MF|-MT|-MQ"
"""Options that a path may follow in one word."""


def question_of(request: Request) -> bytes:
    """The question of a request.

    The folder is in it twice, as spelled and with links resolved, because links on its path may change. The digest of
    buildd's own code is in it too, because older code may have known less about what an answer depends on.
    """
    folders = [request.project.encode(), os.fsencode(os.path.realpath(request.project))]
    command = [argument.encode() for argument in request.command]
    return _joined([package_digest().encode()], command, folders, _variables(request, {_LEFT_OUT}))


def question_elsewhere(request: Request, folder: str) -> bytes:
    """The question that the same command has in any checkout; empty where the folder's path is a part of another one.

    Args:
        folder: of this checkout.
    """
    own = os.fsencode(folder)
    texts = [
        [argument.encode() for argument in request.command],
        [request.project.encode(), os.fsencode(os.path.realpath(request.project))],
        _variables(request, {_LEFT_OUT, _RUN_FOLDER}),
    ]
    if any(OWN in text for part in texts for text in part):
        return b""
    moved = [[_pattern(own).sub(rb"\1" + OWN, text) for text in part] for part in texts]
    if any(own in text for part in moved for text in part):
        return b""
    return _joined([package_digest().encode(), b"moved"], *moved)


def _variables(request: Request, left_out: set[str]) -> list[bytes]:
    return sorted(f"{name}={value}".encode() for name, value in request.environment.items() if name not in left_out)


@lru_cache(maxsize=16)
def _pattern(folder: bytes) -> re.Pattern[bytes]:
    """Where a folder's path stands for itself: not within a longer name."""
    begin = rb"(^(?:%s)?|[=:,;\"' ])" % _OPTIONS.encode()
    return re.compile(begin + re.escape(folder) + rb"(?=[/=:,;\"' ]|\Z)")


def _joined(*parts: Iterable[bytes]) -> bytes:
    lists = [list(part) for part in parts]
    return b"".join(
        len(strings).to_bytes(4, "little") + b"".join(string + b"\0" for string in strings) for strings in lists
    )
