"""What `buildd run` leaves in the build log: one row, with its command, its figures, and what failed compiles had said.

While it goes on it has a file beside the store, to which whoever carries out a compile of it adds those that fail; at
the end it writes the row. So nothing is written for a compile that does not fail. A file of a run that was killed goes
with the next run. Knows no compiler.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType

import msgspec

from buildd import answers
from buildd.notes import held, left, name_of
from protocol.described import described
from protocol.events import EventBody
from protocol.messages import BuildId, Done, Event, Failed, LogLine, Notice, RequestId, Started

Failures = Sequence[Sequence[Event]]
"""The events of each compile that failed."""

FOLDER = "failed"
"""Beside the notes of stand-ins."""
MOST_FAILURES = 50
"""What configures a build has failing compiles on purpose, and comes first: the last ones are told."""
MOST_LINES = 200
MOST_BYTES = 16 << 20
_MOST_COMMAND_CHARACTERS = 2000


class FailedCompiles:
    """The compiles of one run that failed, for as long as the run goes on.

    Args:
        store: the store's folder.
        build: as in BUILDD_BUILD_ID.

    Raises: OSError.
    """

    def __init__(self, store: Path, build: str) -> None:
        folder = _folder(store)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in folder.iterdir():
            with contextlib.suppress(OSError), left(path):
                os.unlink(path)
        self._path = folder / name_of(build)
        self._descriptor = held(self._path)

    def told(self) -> Failures:
        """Those that ended last, oldest first."""
        found = []
        content = os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0)
        for line in content.split(b"\n")[-MOST_FAILURES - 1 :]:
            with contextlib.suppress(msgspec.MsgspecError, ValueError):  # the disk was full, or the machine went off
                found.append(msgspec.json.decode(line, type=described(list[Event])))
        return found

    def __enter__(self) -> FailedCompiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        os.close(self._descriptor)


def note(store: Path, build: str, events: Iterable[Event]) -> None:
    """Add the events of a compile that failed, where a run goes on that wants them."""
    if not build:
        return
    told = [event for event in events if isinstance(event.body, Started | LogLine | Failed)]
    flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    with contextlib.suppress(OSError):
        descriptor = os.open(_folder(store) / name_of(build), flags)
        try:
            if os.fstat(descriptor).st_size < MOST_BYTES:
                os.write(descriptor, msgspec.json.encode(_shortened(told)) + b"\n")
        finally:
            os.close(descriptor)


def keep(
    store: Path, build: BuildId, command: Sequence[str], started_ns: int, said: str, done: Done, failures: Failures
) -> None:
    """Write a run's row of the build log. Raises StoreError.

    Args:
        said: what became of its compiles, in words.
        failures: of compiles that may have run side by side.
    """
    from buildd.buildlog import Build, BuildLog, BuildSummary
    from buildd.database import Database

    name, finished_ns, line = RequestId(build), time.time_ns(), _shown(command)
    bodies: list[tuple[int, EventBody]] = [(started_ns, Notice(text=f"command: {line}"))]
    bodies += [(event.time_ns, event.body) for events in failures for event in events]
    bodies += [(finished_ns, Notice(text=f"compilers: {said}")), (finished_ns, done)]
    events = [Event(request_id=name, sequence=n, time_ns=at, body=body) for n, (at, body) in enumerate(bodies, 1)]
    row = Build(
        build_id=build,
        request_id=name,
        project=os.path.realpath(os.getcwd()),
        targets=(),
        started_ns=started_ns,
        finished_ns=finished_ns,
        outcome=done.outcome,
        summary=BuildSummary.of(done, command=line),
    )
    # The index alone is opened: the command has ended, and somebody waits.
    with contextlib.closing(Database(store, read_only=False, notice=lambda text: None)) as database:
        BuildLog(database).save(row, msgspec.msgpack.encode(events))


def _shown(command: Sequence[str]) -> str:
    words = shlex.join(word.encode(errors="replace").decode() for word in command)
    return words if len(words) <= _MOST_COMMAND_CHARACTERS else f"{words[:_MOST_COMMAND_CHARACTERS]} ..."


def _folder(store: Path) -> Path:
    return store / answers.FOLDER / FOLDER


def _shortened(events: list[Event]) -> list[Event]:
    lines = [event for event in events if isinstance(event.body, LogLine)]
    if len(lines) <= MOST_LINES:
        return events
    last = lines[MOST_LINES]
    words = f"({len(lines) - MOST_LINES} more lines)"
    rest = {event.sequence for event in lines[MOST_LINES + 1 :]}
    cut = msgspec.structs.replace(last, body=msgspec.structs.replace(last.body, text=words))
    return [cut if event is last else event for event in events if event.sequence not in rest]
