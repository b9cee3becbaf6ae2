"""A watch of another tool's build tree: each change starts a run of the tool.

Like `watch_session`, but a child process builds: ninja or make, with compilers that go through the daemon as under
`buildd run`. The daemon watches the files that the tree names. Knows no tool (`tree`) and shows nothing.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec

from buildd.client.foreign_build import figures_of, summary
from buildd.client.run_logs import RunLogs
from buildd.client.watch_session import Listener, News, Saves, new_name
from buildd.errors import BuilddError
from buildd.shims import run_log
from buildd.shims.interposition import below
from buildd.shims.run_log import RunNotes
from buildd.store.hit_notes import Notes
from buildd.trees.ninja_tree import STATUS
from buildd.trees.tree import Reader, Tree, is_by_product
from buildd.ui.text import count
from protocol import messages as m
from protocol import wire

PAUSE_S = 0.05
"""After so long without a further line, the last command counts as ended."""
GRACE_S = 10.0
"""How long an interrupted tool may take to end before it is killed."""
LOOK_S = 0.4
"""So long after a run its inputs are looked at once more: longer than the daemon gathers saves into one change."""


class Rebuilds(Saves):
    """Runs the tool now, and again on every change.

    Args:
        tree: already described.
        request: names the store; its other fields are replaced.
        environ: of the tool's processes; also names the daemon.
        listener: gets the events to show.
        every: gets all events of the watch, and those of each run until the next one replaces it.
        jobs: the most at once; None leaves it to the tool.
    """

    def __init__(
        self,
        tree: Tree,
        request: m.Request,
        environ: Mapping[str, str],
        listener: Listener,
        every: Callable[[m.Event], None] = lambda event: None,
        *,
        jobs: int | None = None,
    ) -> None:
        super().__init__(request, environ, listener, every)
        self._tree = tree
        self._jobs = jobs
        self._inputs: tuple[str, ...] = ()
        self._unnamed = 0
        """How many of the inputs the protocol cannot name."""
        self._run: Run | None = None
        self._again = False
        """A change came that may matter, but is no reason to stop the current run."""
        self._written: dict[str, int] = {}
        """The inputs that the tool does not write, and when each was written last, before the current run began."""
        self._looks = True
        """The inputs are looked at after the current run: not after a run that such a look began."""

    def run(self) -> None:
        try:
            super().run()
        finally:
            if self._run is not None:
                self._run.stop()
                self._run.join()

    def _watch_request(self) -> m.Request:
        self._inputs = self._tree.inputs
        inputs = tuple(path for path in self._inputs if wire.is_text(path))
        if (unnamed := len(self._inputs) - len(inputs)) != self._unnamed:
            self._unnamed = unnamed
            self._listener.note(f"not watched, because the names are not UTF-8: {count(unnamed, 'file')}")
        return msgspec.structs.replace(self._build, project=self._tree.project, file="", targets=(), inputs=inputs)

    def _take(self, news: News) -> None:
        super()._take(news)
        ends = news.event is not None and isinstance(news.event.body, m.Done)
        if ends and news.request_id == self._current:
            self._settle()

    def _settle(self) -> None:
        """Read the tree after a run: there may be new files to watch."""
        again, self._again = self._again, False
        try:
            self._tree.describe()
        except BuilddError as error:
            self._listener.note(f"{error.message}; the files from before are still watched")
        if self._tree.inputs != self._inputs:
            # When the new watch is set up another run begins, which takes in files that were saved in between.
            before = self._watch
            self._begin_watch()
            self._cancel_aside(before)
        elif again:
            self._begin_round(None)
        elif self._looks:
            look = threading.Timer(LOOK_S, self.call, [partial(self._look, self._current)])
            look.daemon = True
            look.start()

    def _look(self, name: m.RequestId) -> None:
        """Run again if an input was written since a run began, and no change was told: the file may have been another
        one just when the tool read it."""
        if name != self._current:
            return
        now = self._writings()
        paths = sorted(path for path, written_ns in self._written.items() if now.get(path) != written_ns)
        if paths:
            self._begin_round(m.Changed(paths=tuple(map(self._spelled, paths))))
            self._looks = False

    def _writings(self) -> dict[str, int]:
        """The watched files that the tool does not write, and when each was written last."""
        found = {}
        for path in filter(self._is_source, self._inputs):
            with suppress(OSError):
                found[path] = os.stat(path).st_mtime_ns
        return found

    def _begin_round(self, changed: m.Changed | None) -> None:
        runs = self._run is not None and self._run.is_alive
        if changed is not None and not changed.more and self._are_made(changed.paths):
            return
        if runs and changed is not None and not self._matters(changed):
            self._again = True
            return
        self._written, self._looks = self._writings(), True
        name = self._current = new_name()
        self._listener.begin(m.BuildId(name), changed)
        first, self._run = self._run is None, Run(self._tree, name, self._news.put, self._run)
        command = self._tree.command(self._jobs)
        environ = {**self._environ, "BUILDD_BUILD_ID": name, "NINJA_STATUS": STATUS}
        self._run.begin(command, environ, everything=first)

    def _absolute(self, path: str) -> str:
        return os.path.normpath(os.path.join(self._tree.project, path))

    def _spelled(self, path: str) -> str:
        return os.path.relpath(path, self._tree.project) if path.startswith(f"{self._tree.project}/") else path

    def _is_source(self, path: str) -> bool:
        """Whether a watched file is none that a run writes, as far as its folder tells."""
        inside = f"{self._tree.folder}/" if self._tree.folder != self._tree.project else "\0"
        return not path.startswith(inside)

    def _matters(self, changed: m.Changed) -> bool:
        """Whether a change is a reason to stop the current run; files that the run writes, and new files, are not."""
        watched = set(self._inputs)
        return bool(changed.more) or any(
            path in watched and self._is_source(path) for path in map(self._absolute, changed.paths)
        )

    def _are_made(self, paths: Iterable[str]) -> bool:
        watched, outputs = set(self._inputs), self._tree.outputs
        return all(
            path in outputs or (path not in watched and is_by_product(path, outputs))
            for path in map(self._absolute, paths)
        )


class Run:
    """One run of a tree's tool; it begins when the run before has ended.

    Args:
        put: gets its events.
        before: the run to stop first.
    """

    def __init__(self, tree: Tree, name: m.RequestId, put: Callable[[News], None], before: Run | None) -> None:
        self._tree = tree
        self._name = name
        self._put = put
        self._before = before
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = False
        self._lock = threading.Lock()
        self._sequence = 0
        self._thread: threading.Thread | None = None
        self._over = threading.Event()
        self._failures = self._ran = self._hits = 0

    @property
    def is_alive(self) -> bool:
        return not self._over.is_set()

    def begin(self, command: list[str], environ: Mapping[str, str], *, everything: bool) -> None:
        """Start the run. Its last event is `Done`."""
        self._thread = threading.Thread(
            target=self._work, args=(command, environ, everything), daemon=True, name=f"run {self._name}"
        )
        self._thread.start()

    def stop(self) -> None:
        """Ask the run to end early; does not wait."""
        with self._lock:
            self._stopping = True
            self._signal(signal.SIGINT)

    def join(self) -> None:
        """Wait until the run has ended, if it has begun. A stopped run that goes on for `GRACE_S` is killed."""
        if self._thread is None:
            return
        if not self._over.wait(GRACE_S if self._stopping else None):
            with self._lock:
                self._signal(signal.SIGKILL)
            self._over.wait()

    # ---------------------------------------------------------------- the run's thread

    def _signal(self, number: signal.Signals) -> None:
        # The whole group: make relies on the terminal to interrupt its compilers.
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, number)

    def _work(self, command: list[str], environ: Mapping[str, str], everything: bool) -> None:
        began_s = time.monotonic()
        try:
            if self._before is not None:
                self._before.stop()
                self._before.join()
                self._before = None
            done = self._carry_out(command, environ, everything)
        except (OSError, BuilddError) as error:
            words = (
                error.message
                if isinstance(error, BuilddError)
                else ": ".join(filter(None, (error.filename, error.strerror)))
            )
            done = m.Done(outcome=m.Outcome.FAILED, message=words, next_step="the next change tries again")
        self._over.set()
        wall_s = time.monotonic() - began_s
        self._tell([msgspec.structs.replace(done, wall_s=wall_s, failures=self._failures, misses=self._ran)])

    def _carry_out(self, command: list[str], environ: Mapping[str, str], everything: bool) -> m.Done:
        reader = self._tree.reader(everything=everything)
        with self._lock:
            if self._stopping:
                return m.Done(outcome=m.Outcome.CANCELLED)
            words, program = below(command, environ)
            self._process = subprocess.Popen(
                words,
                executable=program,
                cwd=self._tree.folder,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        build, store, started_ns = m.BuildId(self._name), Path(environ["BUILDD_DIR"]), time.time_ns()
        with self._process, RunLogs(store, build, command, project=self._tree.project) as logs:
            self._tell(reader.foresee())
            self._read(self._process, reader)
            status = self._process.wait()
            if self._stopping:
                return m.Done(outcome=m.Outcome.CANCELLED)
            self._tell(reader.end(status))
            figures = figures_of(environ, build, logs.notes, logs.run) if self._ran and logs.notes else m.BuildFigures()
            done = m.Done(outcome=m.Outcome.BUILT, hits=self._hits, saved_s=figures.saved_s)
            if status != 0:
                message = reader.problem or f"{command[0]} ended with status {status}"
                done = m.Done(outcome=m.Outcome.FAILED, message=message, file=self._tree.folder)
            if figures != m.BuildFigures():
                self._tell([m.Notice(text=f"compilers: {summary(figures)}")])
                if logs.run is not None and logs.notes is not None:
                    _keep(store, build, command, started_ns, figures, done, logs.run, logs.notes)
        return done

    def _read(self, process: subprocess.Popen[bytes], reader: Reader) -> None:
        assert process.stdout is not None
        left = b""
        while True:
            ready, _, _ = select.select([process.stdout], [], [], PAUSE_S)
            if not ready:
                self._tell(reader.pause())
                if process.poll() is not None:
                    return  # a process that the tool started still has its output open
                continue
            data = os.read(process.stdout.fileno(), 1 << 16)
            *lines, left = (left + data).split(b"\n")
            for line in (*lines, *((left,) if left and not data else ())):
                self._tell(reader.line(line.decode(errors="replace")))
            if not data:
                return

    def _tell(self, bodies: Iterable[m.EventBody]) -> None:
        for body in bodies:
            self._sequence += 1
            self._ran += isinstance(body, m.Finished | m.Failed)
            self._failures += isinstance(body, m.Failed)
            self._hits += isinstance(body, m.CacheHit)
            event = m.Event(request_id=self._name, sequence=self._sequence, time_ns=time.time_ns(), body=body)
            self._put(News(self._name, event))


def _keep(
    store: Path,
    build: m.BuildId,
    command: list[str],
    started_ns: int,
    figures: m.BuildFigures,
    done: m.Done,
    run: RunNotes,
    notes: Notes,
) -> None:
    """Add a run that called compilers to the build log, for `buildd log` and `buildd explain --last`."""
    counted = msgspec.structs.replace(
        done,
        hits=figures.hits,
        misses=figures.misses,
        failures=figures.failures,
        wall_s=max(0, time.time_ns() - started_ns) / 1e9,
    )
    with suppress(BuilddError, OSError):  # a full disk is no reason to stop watching
        run_log.keep(store, build, command, started_ns, summary(figures), counted, run, notes.keys())
