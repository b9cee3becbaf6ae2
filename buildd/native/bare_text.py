"""Bare forms of source texts, which are what is left of them without comments (bare_text.c); of preprocessed texts, the
lines that they may show (shown_lines.c), their parts without line numbers, and the files that they enter (line_free.c).

Knows how the library is made and called, and what a digest of a bare form is. Does not know which compiles may use one.
Without a host compiler no text has a bare form, and everything goes by content.
"""

from __future__ import annotations

import ctypes
import logging
import os
import subprocess
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path

from blake3 import blake3

from buildd.native.libraries import make_library
from buildd.native.programs import NoProgram

SOURCES = tuple(
    Path(__file__).with_name(name) for name in ("bare_text.c", "shown_lines.c", "line_free.c", "bare_text.h")
)
_MOST_BYTES = 8 << 20
"""Larger texts have no bare form: shims read no larger ones either."""
_ROOM = 4
"""As bare_text.h says."""
_MOST_GROWTH, _NO_MEMORY = 3, -2
"""As line_free.c says."""
VERSIONED = b"\4"
"""The end of a form whose text C and C++ before 2014 could read otherwise."""
_BINARY = 1 << 10
"""A NUL in so many bytes at the beginning: no source text."""
_log = logging.getLogger(__name__)


class BareText:
    """Makes digests of bare forms. Safe to use from several threads.

    Args:
        store: the library is kept there, and compiled when the first text comes.
    """

    def __init__(self, store: Path) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._library: ctypes.CDLL | None = None
        self._looked = False

    def form(self, content: bytes) -> bytes | None:
        """The bare form of a text; None where it has none."""
        if len(content) > _MOST_BYTES or b"\0" in content[:_BINARY]:
            return None
        library = self._native()
        return None if library is None else _called(library.bare_text, content)

    def without_lines(self, form: bytes) -> bytes:
        """A bare form without the lines that hold no token."""
        library = self._native()
        assert library is not None, "it has made the form"
        return _called(library.drop_lines, form) or b""

    def digests(self, content: bytes) -> bytes:
        """Digests of both forms of a text, 32 bytes each: with the line of every token, and without; empty where it has
        none. Behind them a byte where C and C++ before 2014 could read the text otherwise."""
        form = self.form(content)
        if form is None:
            return b""
        digests = blake3(form).digest() + blake3(self.without_lines(form)).digest()
        return digests + VERSIONED if form.endswith(VERSIONED) else digests

    def shown_lines(self, preprocessed: bytes) -> dict[bytes, bool] | None:
        """The files of a text that gcc has preprocessed, and whether a number in a file's part of the text could be the
        number of its line; None if that is not known. Names are spelled as in the text's markers.

        Args:
            preprocessed: a text without raw strings.
        """
        library = self._native()
        listed = None if library is None else _called(library.shown_lines, preprocessed)
        if listed is None:
            return None
        return {line[1:]: line[:1] == b"+" for line in listed.split(b"\n") if line}

    def line_free(self, part: bytes, otherwise: Callable[[bytes], bytes | None]) -> bytes | None:
        """A part of a preprocessed text without its line numbers; None where it can see its lines.

        Args:
            part: begins with the newline before a marker.
            otherwise: does the same without the library.
        """
        library = self._native()
        if library is None:
            return otherwise(part)
        made = ctypes.create_string_buffer(_MOST_GROWTH * len(part) + 1)
        length = library.line_free(part, len(part), made)
        if length == _NO_MEMORY:
            return otherwise(part)
        return None if length < 0 else ctypes.string_at(made, length)

    def entering(self, preprocessed: bytes) -> list[bytes] | None:
        """The lines of a text that may enter a file, each once, in this order; None without the library."""
        library = self._native()
        lines = None if library is None else _called(library.entering, preprocessed)
        return None if lines is None else list(dict.fromkeys(lines.split(b"\n")[:-1]))

    def _native(self) -> ctypes.CDLL | None:
        if not self._looked:
            with self._lock:
                if not self._looked:
                    self._library = self._load()
                    self._looked = True
        return self._library

    def _load(self) -> ctypes.CDLL | None:
        try:
            place = make_library(self._store, SOURCES, (), ".bare.so", os.environ.get("PATH", os.defpath))
            library = ctypes.CDLL(os.fspath(place))
            for name in ("bare_text", "drop_lines", "shown_lines", "line_free", "entering"):
                function = library[name]
                function.argtypes = (ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p)
                function.restype = ctypes.c_long
        except (OSError, NoProgram, AttributeError, subprocess.SubprocessError) as error:
            _log.info("texts are compared with their comments: %s", error)
            return None
        return library


def _called(function: Callable[[bytes, int, ctypes.Array[ctypes.c_char]], int], text: bytes) -> bytes | None:
    made = ctypes.create_string_buffer(len(text) + _ROOM)
    length = function(text, len(text), made)
    return None if length < 0 else ctypes.string_at(made, length)


@cache
def bare_text_of(store: Path) -> BareText:
    """The process's bare forms with their library in this store."""
    return BareText(store)
