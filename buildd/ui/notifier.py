"""Desktop notifications, through the desktop's own notify-send. Knows no build, and never waits for the desktop."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Mapping

from buildd.ui.text import clean, shortened

_PROGRAM = "notify-send"
_TIMEOUT_S = 10.0
_MOST_CHARACTERS = 300


class Notifier:
    """Shows desktop notifications.

    Args:
        environ: names the desktop; its PATH is searched for notify-send.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = dict(environ)
        self._program = shutil.which(_PROGRAM, path=environ.get("PATH"))

    @property
    def problem(self) -> str:
        """Why there are no notifications; empty if there can be."""
        return (
            ""
            if self._program
            else f"no desktop notifications: {_PROGRAM} is missing (Debian: apt install libnotify-bin)"
        )

    def notify(self, title: str, text: str) -> None:
        """Show a notification, if the desktop accepts it."""
        if self._program is None:
            return
        words = [shortened(clean(each), _MOST_CHARACTERS) for each in (title, text)]
        command = [self._program, "--app-name=buildd", "--", *words]
        threading.Thread(target=self._run, args=(command,), daemon=True, name="notify").start()

    def _run(self, command: list[str]) -> None:
        try:
            subprocess.run(
                command,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            pass  # the terminal shows everything anyway
