"""Preprocessed texts as every checkout has them: the name of a moving root in place of its folder's path.

The front ends of nvcc read the folder in line markers alone, and then write it into others. So their results serve any
folder, unless something else in the text shows it.
"""

from __future__ import annotations

import os

from codegen.compilers.temporary_roots import Roots

_SHOWS = (b"__builtin_FILE", b"source_location")
"""What the compiler proper replaces with the path of a line marker."""


def named(text: bytes, roots: Roots) -> bytes:
    """The text with the roots' names in its line markers; the text itself if it may show a root's folder elsewhere too.

    Args:
        roots: nested folders first; `names_in_text` finds none of them in the text.
    """
    folders = {b'"%b/' % os.fsencode(folder): b'"{%b}/' % name.encode() for name, folder in roots}
    if not any(folder in text for folder in folders) or any(word in text for word in _SHOWS):
        return text
    # A marker is `# 1 "..."`. Of other directives, which `names_in_text` passes over, #ident shows what it says.
    directives = (line.partition(b"\n")[0] for line in text.split(b"\n#")[1:] if not line.startswith(b" "))
    if any(is_named(line, roots) for line in directives):
        return text
    for folder, name in folders.items():
        text = text.replace(folder, name)
    return text


def is_named(said: bytes, roots: Roots) -> bool:
    """Whether a tool's message names a root's folder."""
    return any(os.fsencode(folder) in said for _, folder in roots)
