"""The build log's row of a `buildd run`: its command, its figures, and the output of failed compiles.

A running command has a file beside the store, to which the daemon adds its failed compiles; at the end `buildd run`
writes the row. Nothing is written for a compile that succeeds. The next run removes the file of a killed one. Knows no
compiler.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import msgspec

from buildd.builds.build_figures import Figures
from buildd.hooks.compiler_calls import JOBS
from buildd.hooks.ledger import SUFFIX
from buildd.store import answers
from buildd.store.hit_notes import held, left, name_of
from protocol.described import described
from protocol.events import CacheHit, EventBody, Explained, Finished, ProgramStart, Progress, Queued
from protocol.messages import BuildFigures, BuildId, Done, Event, Failed, LogLine, Notice, RequestId, Started

if TYPE_CHECKING:
    from buildd.store.database import Database

Failures = Sequence[Sequence[Event]]
"""The events of each compile that failed."""

FOLDER = "failed"
"""Folder of those files, beside the notes of shims."""
MOST_FAILURES = 50
"""Only the last failures are kept: configure steps come first, and fail compiles on purpose."""
MOST_LINES = 200
MOST_CALLS = 5000
"""Only the last calls are kept of each kind."""
_COMMAND = "command: "
_CALLS = ".calls"
_TIMES = ".times"
_MOST_COMMAND = 400
_MOST_PROGRAMS = 50
_DIRECT = "direct hit"
_MOST_PARAMETERS = 500
MOST_BYTES = 16 << 20
_MOST_COMMAND_CHARACTERS = 2000


class CallNote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call that came to the daemon."""

    explained: Explained | None = None
    """Whether and why it ran; None if it was cancelled."""
    counted: BuildFigures = BuildFigures()
    """What it adds to the figures of the run."""


class OngoingRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that goes on. The first line of its file. Also one that has called no compiler, and has no row."""

    build_id: BuildId
    command: str
    project: str
    """The folder in which it was called."""
    started_ns: int


class RunNotes:
    """What the daemon and programs note of one run, while the run goes on: its calls, their figures and jobs, and the
    output of failed compiles.

    Args:
        store: the store's folder.
        build: the build's id, as in BUILDD_BUILD_ID.
        command: what the run carries out.
        is_timed: keep the times of its jobs (AIT_TIME_COMPILATION).
        project: the folder of the run; empty for the working folder.

    Raises: OSError.
    """

    def __init__(
        self, store: Path, build: BuildId, command: Sequence[str] = (), *, is_timed: bool = False, project: str = ""
    ) -> None:
        folder = _folder(store)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in folder.iterdir():
            with contextlib.suppress(OSError), left(path):
                os.unlink(path)
        suffixes = ("", _CALLS, JOBS, SUFFIX, *((_TIMES,) if is_timed else ()))
        self._paths = [folder / (name_of(build) + suffix) for suffix in suffixes]
        self._descriptors = [held(path) for path in self._paths]
        self._descriptor, self._calls, self._jobs, self._programs = self._descriptors[:4]
        self.project = os.path.realpath(project or os.getcwd())
        here = OngoingRun(build_id=build, command=shown(command), project=self.project, started_ns=time.time_ns())
        os.write(self._descriptor, msgspec.json.encode(here) + b"\n")

    def told(self) -> Failures:
        """The last failures, oldest first."""
        return _failures(os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0))

    def calls(self) -> list[Explained]:
        """Whether and why each call that came to the daemon ran, in the order of their ends."""
        return [note.explained for note in self._notes() if note.explained is not None]

    def figures(self) -> BuildFigures | None:
        """The figures of all calls, also of those that came to a daemon which has ended. None if the calls are too many
        for their file."""
        if os.fstat(self._calls).st_size >= MOST_BYTES:
            return None
        found = Figures()
        for note in self._notes():
            found.add(note.counted)
        return found.frozen()

    def _notes(self) -> Iterator[CallNote]:
        for line in os.pread(self._calls, os.fstat(self._calls).st_size, 0).split(b"\n"):
            with contextlib.suppress(msgspec.MsgspecError, ValueError):
                yield msgspec.json.decode(line, type=CallNote)

    def times(self) -> list[str]:
        """The lines of `note_times` so far."""
        found = []
        for descriptor in self._descriptors[4:]:
            for line in os.pread(descriptor, os.fstat(descriptor).st_size, 0).split(b"\n"):
                with contextlib.suppress(msgspec.MsgspecError, ValueError):
                    found += msgspec.json.decode(line, type=list[str])
        return found

    def jobs(self) -> list[Event]:
        """What ran for its compiles, and how much memory all jobs used meanwhile."""
        return _jobs(os.pread(self._jobs, os.fstat(self._jobs).st_size, 0))

    def programs(self) -> list[ProgramStart]:
        """The ledgers of its programs, as `hooks.ledger` wrote them; the last one of each process."""
        found: dict[int, ProgramStart] = {}
        for line in os.pread(self._programs, os.fstat(self._programs).st_size, 0).split(b"\n"):
            with contextlib.suppress(msgspec.MsgspecError, ValueError):
                start = msgspec.json.decode(line, type=ProgramStart)
                found[start.pid] = start
        return list(found.values())[-_MOST_PROGRAMS:]

    def __enter__(self) -> RunNotes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for path, descriptor in zip(self._paths, self._descriptors, strict=True):
            with contextlib.suppress(OSError):
                os.unlink(path)
            os.close(descriptor)


def _failures(content: bytes) -> Failures:
    found = []
    for line in content.split(b"\n")[-MOST_FAILURES - 1 :]:
        # Half a record (the disk was full, or power failed), or what the run is.
        with contextlib.suppress(msgspec.MsgspecError, ValueError):
            found.append(msgspec.json.decode(line, type=described(list[Event])))
    return found


def _jobs(content: bytes) -> list[Event]:
    found: list[Event] = []
    for line in content.split(b"\n"):
        with contextlib.suppress(msgspec.MsgspecError, ValueError):
            found += msgspec.json.decode(line, type=described(list[Event]))
    return found


def jobs_so_far(store: Path, run: OngoingRun, after_bytes: int) -> tuple[list[Event], int] | None:
    """What ran for a run that goes on, from a place of its file; with the place for the next call. None once the run
    has ended."""
    path = _folder(store) / name_of(run.build_id)
    if _running(path) is None:
        return None
    try:
        with open(f"{path}{JOBS}", "rb") as file:
            file.seek(after_bytes)
            content = file.read()
    except OSError:
        return [], after_bytes
    whole = content.rfind(b"\n") + 1
    return _jobs(content[:whole]), after_bytes + whole


def running(store: Path) -> list[OngoingRun]:
    """The runs that go on, in the order in which they began."""
    found = []
    with contextlib.suppress(OSError):
        for path in _folder(store).iterdir():
            if (one := _running(path)) is not None:
                found.append(one)
    return sorted(found, key=lambda run: run.started_ns)


def failures_so_far(store: Path, run: OngoingRun) -> Failures | None:
    """The last failures of a run that goes on, oldest first; None once it has ended."""
    path = _folder(store) / name_of(run.build_id)
    if _running(path) is None:
        return None
    try:
        return _failures(path.read_bytes())
    except OSError:
        return None


def _running(path: Path) -> OngoingRun | None:
    try:
        with left(path):
            return None
    except BlockingIOError:
        pass  # its run holds it
    except OSError:
        return None
    try:
        with open(path, "rb") as file:
            return msgspec.json.decode(file.readline(), type=OngoingRun)
    except (OSError, msgspec.MsgspecError, ValueError):
        return None  # it is just beginning, or of an older version


def note(store: Path, build: str, events: Iterable[Event]) -> None:
    """Add the events of a failed compile, if its run still goes on."""
    if not build:
        return
    told = [event for event in events if isinstance(event.body, Started | LogLine | Failed)]
    _add(_folder(store) / name_of(build), msgspec.json.encode(_shortened(told)))


def note_call(store: Path, build: str, note: CallNote) -> None:
    """Add a call, if its run still goes on."""
    if build:
        _add(_folder(store) / (name_of(build) + _CALLS), msgspec.json.encode(note))


def note_times(store: Path, build: str, lines: Sequence[str]) -> None:
    """Add the times of a job and its steps, if its run still goes on and wants them."""
    if build:
        _add(_folder(store) / (name_of(build) + _TIMES), msgspec.json.encode(lines))


def note_job(store: Path, build: str, events: Iterable[Event]) -> None:
    """Add what ran for a compile, or was found, if its run still goes on."""
    if not build:
        return
    told = [_trimmed(event) for event in events if isinstance(event.body, Queued | Started | Finished | CacheHit)]
    if told:
        _add(_folder(store) / (name_of(build) + JOBS), msgspec.json.encode(told))


def note_memory(store: Path, build: str, time_ns: int, progress: Progress) -> None:
    """Add how much memory all jobs use at a moment."""
    if build:
        event = Event(request_id=RequestId(build), sequence=1, time_ns=time_ns, body=progress)
        _add(_folder(store) / (name_of(build) + JOBS), msgspec.json.encode([event]))


def _trimmed(event: Event) -> Event:
    """Without what only the compile's own caller wants."""
    match event.body:
        case Started(command=command) as body:
            kept: EventBody = msgspec.structs.replace(body, command=command[:_MOST_COMMAND])
        case Finished() as body:
            kept = msgspec.structs.replace(body, outputs=())
        case body:
            kept = body
    return msgspec.structs.replace(event, body=kept)


def is_run(body: EventBody) -> bool:
    """Whether this is the first event of a run's row."""
    return isinstance(body, Notice) and body.text.startswith(_COMMAND)


def _add(path: Path, record: bytes) -> None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    with contextlib.suppress(OSError):
        descriptor = os.open(path, flags)
        try:
            if os.fstat(descriptor).st_size < MOST_BYTES:
                os.write(descriptor, record + b"\n")
        finally:
            os.close(descriptor)


def keep(
    store: Path,
    build: BuildId,
    command: Sequence[str],
    started_ns: int,
    said: str,
    done: Done,
    run: RunNotes,
    direct: Sequence[bytes] = (),
    notes: Sequence[str] = (),
) -> None:
    """Write a run's row of the build log. Raises StoreError.

    Args:
        said: the summary of its compiles.
        run: its failed compiles, which may have run side by side, and its calls.
        direct: keys of the results that shims delivered.
        notes: more lines of the log.
    """
    from buildd.store.build_log import Build, BuildLog, BuildSummary
    from buildd.store.database import Database

    name, finished_ns, line = RequestId(build), time.time_ns(), shown(command)
    bodies: list[tuple[int, EventBody]] = [(started_ns, Notice(text=f"{_COMMAND}{line}"))]
    bodies += [(event.time_ns, event.body) for events in run.told() for event in events]
    bodies += [(event.time_ns, event.body) for event in run.jobs()]
    bodies += [(finished_ns, start) for start in run.programs()]
    bodies += [(finished_ns, call) for call in run.calls()[-MOST_CALLS:]]
    bodies += [(finished_ns, Notice(text=text)) for text in (*run.times()[-MOST_CALLS:], *notes)]
    bodies += [(finished_ns, Notice(text=f"compilers: {said}")), (finished_ns, done)]
    row = Build(
        build_id=build,
        request_id=name,
        project=run.project,
        targets=(),
        started_ns=started_ns,
        finished_ns=finished_ns,
        outcome=done.outcome,
        summary=BuildSummary.of(done, command=line),
    )
    # Opens the index alone: the command has ended, and the user waits.
    with contextlib.closing(Database(store, read_only=False, notice=lambda text: None)) as database:
        hits = [Explained(action=each, would_run=False, reasons=(_DIRECT,)) for each in _actions(database, direct)]
        bodies[-2:-2] = [(finished_ns, hit) for hit in hits]
        events = [Event(request_id=name, sequence=n, time_ns=at, body=body) for n, (at, body) in enumerate(bodies, 1)]
        BuildLog(database).save(row, msgspec.msgpack.encode(events))


def _actions(database: Database, keys: Sequence[bytes]) -> list[str]:
    """The names of the actions whose results these are."""
    found: dict[bytes, str] = {}
    wanted = list(dict.fromkeys(keys[-MOST_CALLS:]))
    for start in range(0, len(wanted), _MOST_PARAMETERS):
        some = wanted[start : start + _MOST_PARAMETERS]
        places = ",".join("?" * len(some))
        for key, action in database.rows(f"SELECT key, action FROM results WHERE key IN ({places})", tuple(some)):
            found[key] = action.decode(errors="replace") if isinstance(action, bytes) else str(action)
    return [found[key] for key in keys[-MOST_CALLS:] if key in found]


def shown(command: Sequence[str]) -> str:
    """A command as the log has it."""
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
