"""Desktop notifications, through the desktop's own notify-send. Knows no build; nobody waits for a desktop."""

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
    """Notifies.

    Args:
        environ: PATH is searched, and says where the desktop is.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = dict(environ)
        self._program = shutil.which(_PROGRAM, path=environ.get("PATH"))

    @property
    def problem(self) -> str:
        """Why it does not; empty where it may."""
        return "" if self._program else f"there is no {_PROGRAM} (Debian: apt install libnotify-bin): no notifications"

    def notify(self, title: str, text: str) -> None:
        """Say it, if the desktop takes it."""
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
            pass  # the terminal has it all
