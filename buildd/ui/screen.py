"""Which view a build gets: JSON lines, a live region, or plain lines.

Knows the conventions of terminals (TERM=dumb, NO_COLOR), and nothing of builds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TextIO

from msgspec.structs import replace

from buildd.ui.narrator import Narrator, Telling, Verbosity
from buildd.ui.plain import PlainView
from buildd.ui.view import JsonView, Several, View, Writer


def is_terminal(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether the cursor can be moved on `stream`."""
    return stream.isatty() and environ.get("TERM", "dumb") not in ("", "dumb", "unknown")


def has_colour(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """See https://no-color.org: any value but the empty one turns colour off."""
    return is_terminal(stream, environ) and not environ.get("NO_COLOR")


def telling_from(environ: Mapping[str, str], telling: Telling) -> Telling:
    """`telling` as the variables for output (LOGLEVEL) want it."""
    return replace(
        telling,
        verbosity=Verbosity.parse(environ.get("LOGLEVEL", "")),
    )


def view_for(stdout: TextIO, stderr: TextIO, *, json: bool, telling: Telling, environ: Mapping[str, str]) -> View:
    """The view of one build.

    Args:
        stdout: where people's text goes; with `json` the event lines.
        stderr: people's text with `json`.
        json: event lines wanted.
        telling: what is told; `listing` is set here.
        environ: the client's environment.
    """
    telling = telling_from(environ, telling)
    if json:
        words = Writer(stderr, colour=has_colour(stderr, environ))
        return Several((JsonView(Writer(stdout)), PlainView(words, Narrator(replace(telling, listing=True)))))
    writer = Writer(stdout, colour=has_colour(stdout, environ))
    if is_terminal(stdout, environ):
        from buildd.ui.live import OUTPUT_LINES, LiveView

        return LiveView(writer, Narrator(replace(telling, listing=False, output_lines=OUTPUT_LINES)))
    return PlainView(writer, Narrator(replace(telling, listing=True)))
