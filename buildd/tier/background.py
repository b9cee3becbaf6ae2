"""A thread that uploads in the background, and the patience of a command that waits for uploads.

Knows neither what is uploaded nor the tier's records.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from buildd.tier.tier import Tier

PAUSES_S = (0.2, 0.5, 1.0, 2.0)
"""Between the rounds of `persist` that met a failure."""
_POLL_S = 5.0
_log = logging.getLogger(__name__)


class Background:
    """A thread that begins with the first news, and sleeps while nothing waits.

    Args:
        waiting: how much waits.
        work: does one round of it.
    """

    def __init__(self, name: str, tier: Tier, waiting: Callable[[], int], work: Callable[[], object]) -> None:
        self._name, self._tier, self._waiting, self._work = name, tier, waiting, work
        self._news = threading.Event()
        self.is_ended = False
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Note that there is something to do."""
        self._news.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Begin no further round."""
        self.is_ended = True
        self._news.set()

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join(timeout=2.0)

    def _run(self) -> None:
        while not self.is_ended:
            self._news.clear()
            try:
                if self._waiting() and self._tier.may_be_written():
                    self._work()
            except Exception:  # the edge: no fault of an upload may reach a build
                _log.exception("an upload failed inside")
            if self.is_ended:
                return
            # Without anything to write it sleeps until there is.
            self._news.wait(timeout=max(_POLL_S, self._tier.paused_s()[1]) if self._waiting() else None)


def persist(tier: Tier, is_left: Callable[[], bool], work: Callable[[], bool]) -> None:
    """Do rounds until nothing is left, or the tier has failed several times in a row.

    A busy server can refuse one put of many, so a round that failed is made again after a short pause.

    Args:
        work: does a round; False where the tier failed.
    """
    pauses_s = iter(PAUSES_S)
    while is_left() and tier.may_be_written():
        if work():
            continue
        pause_s = next(pauses_s, None)
        if pause_s is None or tier.paused_s()[1] > 0:
            break
        time.sleep(pause_s)
