"""Chooses the view of a build: JSON lines, a live region, or plain lines.

Knows the conventions of terminals (TERM=dumb, NO_COLOR), and nothing of builds.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TextIO

from msgspec.structs import replace

from buildd.ui.narrator import Narrator, Telling, Verbosity
from buildd.ui.plain import PlainView
from buildd.ui.view import JsonView, Several, View, Writer


def is_terminal(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether the cursor can be moved on `stream`."""
    return stream.isatty() and environ.get("TERM", "dumb") not in ("", "dumb", "unknown")


def screen_size(stream: TextIO) -> tuple[int, int]:
    """Columns and rows of the terminal that `stream` leads to; zeros for a pipe or a file."""
    try:
        size = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return 0, 0
    return size.columns, size.lines


def is_animated(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether to draw on `stream` what changes with time: not in the log of a CI, which keeps every frame."""
    off = environ.get("BUILDD_PROGRESS", "").strip().lower() in ("0", "false", "no", "off")
    in_ci = environ.get("CI", "").strip().lower() not in ("", "0", "false", "no")
    return is_terminal(stream, environ) and not off and not in_ci


def has_colour(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether text on `stream` has colours.

    The first of these decides: --color (BUILDD_COLOR); NO_COLOR, which any text but the empty one sets
    (https://no-color.org); CLICOLOR_FORCE or FORCE_COLOR, unless 0 (https://bixense.com/clicolors); CLICOLOR=0; the
    terminal.
    """
    asked = environ.get("BUILDD_COLOR", "")
    if asked in ("always", "never"):
        return asked == "always"
    if environ.get("NO_COLOR"):
        return False
    if any(environ.get(name, "0") not in ("", "0") for name in ("CLICOLOR_FORCE", "FORCE_COLOR")):
        return True
    return is_terminal(stream, environ) and environ.get("CLICOLOR") != "0"


def telling_from(environ: Mapping[str, str], telling: Telling) -> Telling:
    """`telling`, adjusted to the variables for output (LOGLEVEL)."""
    return replace(
        telling,
        verbosity=Verbosity.parse(environ.get("LOGLEVEL", "")),
    )


def view_for(stdout: TextIO, stderr: TextIO, *, json: bool, telling: Telling, environ: Mapping[str, str]) -> View:
    """The view of one build.

    Args:
        stdout: gets people's text; with `json`, the event lines.
        stderr: gets people's text with `json`.
        json: write event lines.
        telling: how the build is narrated; `listing` is set here.
        environ: the client's environment.
    """
    telling = telling_from(environ, telling)
    if json:
        words = Writer(stderr, colour=has_colour(stderr, environ))
        return Several((JsonView(Writer(stdout)), PlainView(words, Narrator(replace(telling, listing=True)))))
    writer = Writer(stdout, colour=has_colour(stdout, environ))
    if is_animated(stdout, environ) and telling.verbosity <= Verbosity.INFO:
        from buildd.ui.live import OUTPUT_LINES, LiveView

        return LiveView(writer, Narrator(replace(telling, listing=False, steps=True, output_lines=OUTPUT_LINES)))
    return PlainView(writer, Narrator(replace(telling, listing=True)))
