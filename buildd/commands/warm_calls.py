"""The compiler calls of a recording: compiles them into the store, or looks them up there.

Each call is an ordinary compile request, as a shim sends it, in a folder of its own below the temporary folder. Knows
the messages; `recorded_calls` knows what a call is in another folder. No word of a recording is run by itself: the
daemon refuses what is no compile, and then nothing runs.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from buildd.client.connect import connect
from buildd.client.in_process import build_here
from buildd.client.request import chosen_jobs, store_of, with_files
from buildd.exits import FAILED, OK
from buildd.hooks.proof import FOLDER as PROVE
from buildd.programs.recorded_calls import CallLine, Mirror, parts_of
from buildd.programs.recording_file import Recording
from buildd.scheduling.call_notes import WOULD_COMPILE, RecordedCall
from buildd.ui.problems import is_on, print_lines
from buildd.ui.text import Line, Style, clean, count, duration
from codegen.foreign.several_sources import new_folder
from protocol import messages as m
from protocol.errors import ProtocolError
from protocol.resubmission import submit_through

_ONLY_HERE = "the daemon did not take it"


class WarmedCall(msgspec.Struct, frozen=True, kw_only=True, tag="call"):
    """One line of `--json`."""

    call: str
    hit: bool
    needed: bool = False
    """With --prove: it would be compiled."""
    problem: str = ""
    wall_s: float = 0.0


@dataclass(slots=True)
class _Replay:
    """Everything that the calls of one recording share.

    Args:
        base: the folder that has the mirrors.
        newer: files of the present checkout that are not as recorded.
    """

    recording: Recording
    options: Namespace
    environ: Mapping[str, str]
    store: str
    base: str
    notes: str
    build: m.BuildId
    parts: dict[str, str]
    jobs: int
    newer: set[str] = field(default_factory=set)

    def request(self, call: RecordedCall, mirror: Mirror) -> m.Request:
        variables = mirror.variables(call, self.environ)
        if self.options.prove:
            variables[PROVE] = self.notes
        return m.Request(
            request_id=m.RequestId(os.urandom(16).hex()),
            build_id=self.build,
            project=mirror.path(call.folder),
            file="",
            environment=variables,
            store=self.store,
            mode=m.Mode.COMPILE,
            priority=m.Priority.WARM,
            on_disconnect=m.OnDisconnect.CANCEL,
            recache=is_on(self.environ, "BUILDD_RECACHE") and not self.options.prove,
            command=mirror.command(call),
        )

    def lay_out(self, call: RecordedCall, mirror: Mirror) -> str:
        """Put the files of a call into its mirror; what is missing, in words."""
        for folder in mirror.folders(call):
            os.makedirs(folder, exist_ok=True)
        for path, digest in call.files.items():
            content = self._content(path, digest, mirror)
            if content is None:
                return f"{path} is neither in the recording nor in this folder"
            place = Path(mirror.path(path))
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        return ""

    def _content(self, path: str, digest: str, mirror: Mirror) -> bytes | None:
        recorded = self.recording.files.get(digest)
        here = mirror.source(path)
        if here and os.path.isfile(here):
            content = Path(here).read_bytes()
            if content != recorded:
                self.newer.add(here)
            return content
        return recorded


def warm(options: Namespace, recording: Recording) -> int:
    """Compile the calls of a recording, or look them up (--prove); 1 if one fails, or would be compiled.

    Raises: RequestError, StoreError.
    """
    environ, started_s = dict(os.environ), time.monotonic()
    parts = {each: new_folder(os.urandom(8)) for each in parts_of(line.call for line in recording.calls)}
    told: list[WarmedCall] = []
    with tempfile.TemporaryDirectory(prefix="buildd-warm-") as base, tempfile.TemporaryDirectory() as notes:
        replay = _Replay(
            recording=recording,
            options=options,
            environ=environ,
            store=store_of(environ),
            base=os.path.realpath(base),
            notes=notes,
            build=m.BuildId(environ.get("BUILDD_BUILD_ID") or os.urandom(6).hex()),
            parts=parts,
            jobs=chosen_jobs(options.jobs, with_files(environ)) or len(os.sched_getaffinity(0)),
        )
        try:
            for one in _outcomes(replay, recording.calls):
                told.append(one)
                _tell(one, options)
        finally:
            for folder in parts.values():
                _remove(folder)
    print_lines(_summary(told, replay, time.monotonic() - started_s), to_stderr=options.json)
    return FAILED if any(one.problem or one.needed for one in told) else OK


def _outcomes(replay: _Replay, lines: list[CallLine]) -> Iterator[WarmedCall]:
    """Carry out calls; yield their outcomes in order."""
    here = os.path.realpath(replay.options.directory or ".")
    mirrors = [
        Mirror(os.path.join(replay.base, str(index)), here, line.root, replay.parts) for index, line in enumerate(lines)
    ]
    missing = [replay.lay_out(line.call, mirror) for line, mirror in zip(lines, mirrors, strict=True)]
    here_only = replay.options.no_daemon or is_on(replay.environ, "BUILDD_DISABLE")
    with ThreadPoolExecutor(1 if here_only else replay.jobs + 1) as pool:

        def through(index: int) -> WarmedCall:
            if missing[index]:
                return WarmedCall(call=_label(lines[index]), hit=False, problem=missing[index])
            request = replay.request(lines[index].call, mirrors[index])
            return _through_daemon(replay, request, _label(lines[index]))

        waiting = [None if here_only else pool.submit(through, index) for index in range(len(lines))]
        for index, line in enumerate(lines):
            future = waiting[index]
            found = future.result() if future is not None else None
            if found is None or found.problem.startswith(_ONLY_HERE):
                # In this process: asyncio's signal handlers need the main thread.
                found = (
                    WarmedCall(call=_label(line), hit=False, problem=missing[index])
                    if missing[index]
                    else _here(replay, replay.request(line.call, mirrors[index]), _label(line))
                )
            yield found


def _through_daemon(replay: _Replay, request: m.Request, label: str) -> WarmedCall:
    said: list[bytes] = []
    started_s = time.monotonic()
    try:
        for event in submit_through(lambda: connect(replay.environ, start=True), request):
            if isinstance(event.body, m.ToolOutput):
                said.append(event.body.data)
            if isinstance(event.body, m.Done):
                return _outcome(event.body, said, label, time.monotonic() - started_s)
    except ProtocolError as error:
        return WarmedCall(call=label, hit=False, problem=f"{_ONLY_HERE}: {error.message}")
    return WarmedCall(call=label, hit=False, problem=f"{_ONLY_HERE}: it ended")


def _here(replay: _Replay, request: m.Request, label: str) -> WarmedCall:
    said: list[bytes] = []
    started_s = time.monotonic()

    def hear(event: m.Event) -> None:
        if isinstance(event.body, m.ToolOutput):
            said.append(event.body.data)

    done = build_here(request, hear)
    found = _outcome(done, said, label, time.monotonic() - started_s)
    return msgspec.structs.replace(found, problem=found.problem.removeprefix(f"{_ONLY_HERE}: "))


def _outcome(done: m.Done, said: list[bytes], label: str, wall_s: float) -> WarmedCall:
    if done.outcome is m.Outcome.BUILT:
        return WarmedCall(call=label, hit=bool(done.hits), wall_s=wall_s)
    if done.code == WOULD_COMPILE:
        return WarmedCall(call=label, hit=False, needed=True, wall_s=wall_s)
    if done.outcome is m.Outcome.FAILED:
        text = b"".join(said).decode(errors="replace").strip().splitlines()
        why = next((line for line in text if "error" in line.lower()), text[0] if text else done.message)
        return WarmedCall(call=label, hit=False, problem=why or f"status {done.exit_status}", wall_s=wall_s)
    return WarmedCall(call=label, hit=False, problem=f"{_ONLY_HERE}: {done.message}", wall_s=wall_s)


def _label(line: CallLine) -> str:
    """What a call makes, relative to the folder of its run."""
    call = line.call
    name = os.path.basename(call.command[0])
    made = call.output or call.folder
    below = line.root != "/" and made.startswith(f"{line.root}/")
    return f"{name}: {os.path.relpath(made, line.root) if below else made}"


def _tell(one: WarmedCall, options: Namespace) -> None:
    if options.json:
        sys.stdout.write(msgspec.json.encode(one).decode() + "\n")
        sys.stdout.flush()
    elif one.problem:
        print_lines([Line(f"failed {clean(one.call)}: {clean(one.problem)}", Style.ERROR)], to_stderr=True)
    elif one.needed:
        print_lines([Line(f"not in the store: {clean(one.call)}")])
    elif options.prove or not one.hit:
        print_lines([Line(f"{'hit' if one.hit else 'compiled'} {clean(one.call)} ({duration(one.wall_s)})")])


def _summary(told: list[WarmedCall], replay: _Replay, wall_s: float) -> list[Line]:
    calls = count(len(told), "compiler call")
    hits, problems = sum(one.hit for one in told), sum(bool(one.problem) for one in told)
    lines = []
    if replay.newer:
        lines.append(
            Line(
                f"{count(len(replay.newer), 'file')} of this folder {'is' if len(replay.newer) == 1 else 'are'} not as "
                f"recorded ({min(replay.newer)}): what is there now is compiled",
                Style.WARNING,
            )
        )
    needed = sum(one.needed for one in told)
    if replay.options.prove:
        missing = f"not warm: {needed + problems} of {calls} would be compiled"
        text = missing if needed or problems else f"warm: nothing would be compiled, {count(hits, 'hit')}"
    else:
        text = f"{calls}: {count(hits, 'hit')}, {len(told) - hits - problems} compiled"
        text += f", {problems} failed" if problems else ""
        text += f", {duration(wall_s)}"
    return [*lines, Line(text)]


def _remove(folder: str) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)
