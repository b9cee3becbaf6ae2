"""Runs of `buildd run` that called no compiler: the build log has no row of them, but they came after the last row.

One small file in the store has the last one of each folder. It may be lost: it only keeps `buildd explain --last` from
taking an older run for the last one.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from buildd.shims.run_log import OngoingRun
from buildd.store import answers

_FILE = "idle"
_MOST = 20
"""Folders that are remembered."""


def note(store: Path, run: OngoingRun) -> None:
    """Remember a run."""
    others = [one for one in noted(store) if one.project != run.project]
    lines = [msgspec.json.encode(one) for one in (*others[1 - _MOST :], run)]
    with contextlib.suppress(OSError):
        (store / answers.FOLDER / _FILE).write_bytes(b"\n".join(lines))


def noted(store: Path) -> list[OngoingRun]:
    """The runs that are remembered, in the order in which they ended."""
    found = []
    with contextlib.suppress(OSError):
        for line in (store / answers.FOLDER / _FILE).read_bytes().split(b"\n"):
            with contextlib.suppress(msgspec.MsgspecError, ValueError):  # half a line: the disk was full
                found.append(msgspec.json.decode(line, type=OngoingRun))
    return found
