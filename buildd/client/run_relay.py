"""A status line below the command of a `buildd run`, for as long as the command runs.

Knows terminal and progress; decides nothing about whether somebody wants the line. Imported in the process that the
user called, where each import takes time from the command.
"""

from __future__ import annotations

import os
import termios
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from buildd.ui.relay import Relay

_TERMINAL = 1
"""The descriptor of the standard output."""


@contextmanager
def shown(environ: Mapping[str, str], style: str | None) -> Iterator[Relay | None]:
    """A relay with a status line for the command's output; None where nobody wants or could see the line.

    Args:
        environ: the command's.
        style: of the line, as parameters of an SGR sequence; None: nobody wants it.
    """
    if style is None or not _is_in_front(_TERMINAL):
        yield None
        return
    from buildd.client.run_progress import RunProgress
    from buildd.ui.relay import Relay
    from buildd.ui.run_status import words

    with RunProgress(environ, environ["BUILDD_BUILD_ID"]) as progress:
        try:
            relay = Relay(_TERMINAL, lambda columns: words(progress.status, columns), style)
        except (OSError, termios.error):  # no pseudo-terminals here
            yield None
            return
        with closing(relay):
            yield relay


def _is_in_front(terminal: int) -> bool:
    """Whether this process is in the terminal's foreground; False also for a terminal of another session."""
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
