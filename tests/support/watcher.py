"""`buildd watch --json` of a user, read event by event."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from tests.support.user import User
from tests.support.waiting import until

DEADLINE_S = 60.0
Line = dict


class Session:
    """One watch, running."""

    def __init__(self, user: User, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "buildd", "watch", "--json", *arguments],
            cwd=user.folder,
            env=user.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.words: list[str] = []
        self._lines: queue.Queue[Line | None] = queue.Queue()
        self._threads = [threading.Thread(target=self._read_events), threading.Thread(target=self._read_words)]
        for thread in self._threads:
            thread.start()

    @property
    def text(self) -> str:
        """What people were told so far."""
        return "".join(self.words)

    def _read_events(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(json.loads(line))
        self._lines.put(None)

    def _read_words(self) -> None:
        assert self.process.stderr is not None
        self.words.extend(self.process.stderr)

    def until(self, what: Callable[[Line], bool]) -> Line:
        """The next event's body that is so. It must come in time, however many others do."""
        seen = []
        deadline_s = time.monotonic() + DEADLINE_S
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline_s - time.monotonic()))
            except queue.Empty:
                line = None
            assert line is not None, (seen, self.text)
            seen.append(line["body"])
            if what(line["body"]):
                return line["body"]

    def until_done(self) -> tuple[Line, set[str]]:
        """The end of a build, and the actions that ran since the last event that was read."""
        ran = set()
        while (body := self.until(lambda body: body["type"] in ("finished", "failed", "done")))["type"] != "done":
            ran.add(body["action"])
        return body, ran

    def round(self) -> Line:
        """The end of the next round that was not replaced."""
        return self.until(lambda body: body["type"] == "done" and body["outcome"] in ("built", "failed", "refused"))

    def changed(self) -> list[str]:
        """The paths that the next change names."""
        return self.until(lambda body: body["type"] == "changed")["paths"]

    def until_told(self, words: str, times: int = 1) -> None:
        """Wait until people were told so, that many times: an event comes before its words."""
        until(lambda: self.text.count(words) >= times, f"it is not said {times} times: {words!r}")

    def end(self) -> int:
        self.process.send_signal(signal.SIGINT)
        status = self.process.wait(DEADLINE_S)
        for thread in self._threads:
            thread.join()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        return status
