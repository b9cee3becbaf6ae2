"""Colours in what gcc and clang say: asked for where the caller's terminal shows them, taken out of what is kept.

A compiler below the daemon writes into a pipe, and would not colour its messages by itself. Knows no terminal.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import replace

from buildd.processes.launch import Exit, Launch
from buildd.processes.running_tool import OnLine

_ASK = "-fdiagnostics-color=always"
_MARKS = re.compile(rb"\x1b\[[0-9;]*m(?:\x1b\[K)?|\x1b\]8;[^\x07\x1b]*(?:\x07|\x1b\\)")
"""What turns colours on and off, and the ends of links to documentation."""
_RECORDING = ("-frecord-", "-grecord-", "-gcodeview")


def may_ask(arguments: Iterable[str]) -> bool:
    """Whether the option leaves the object as it is: some compilers write their command line into it."""
    return not any(argument.startswith(_RECORDING) for argument in arguments)


def asking(launch: Launch, colours: str | None) -> Launch:
    """The launch of a tool that colours its messages.

    Args:
        colours: as in a request; with None the launch stays as it is.
    """
    if colours is None:
        return launch
    # In the first place, so that an option of the command's own overrides it.
    argv = (launch.argv[0], _ASK, *launch.argv[1:])
    chosen = (("GCC_COLORS", colours),) if colours else ()
    return replace(launch, argv=argv, environment=(*launch.environment, *chosen), is_coloured=True)


def lines_to(launch: Launch, listener: OnLine) -> OnLine:
    """Where the tool's lines go while it runs: to `listener`, without colours."""
    if not launch.is_coloured:
        return listener
    return lambda stream, text: listener(stream, _MARKS.sub(b"", os.fsencode(text)).decode(errors="replace"))


def told_apart(launch: Launch, exit: Exit) -> Exit:
    """How a tool ended, with its messages as it would have written them without colours."""
    if not launch.is_coloured:
        return exit
    return replace(exit, stderr=_MARKS.sub(b"", exit.stderr), coloured=exit.stderr)
