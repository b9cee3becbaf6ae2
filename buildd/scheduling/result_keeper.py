"""Stores a job's outputs: checks the inputs again, puts the outputs into the store, files the result under its key.

Knows the store and the keys of a run; knows no process (`execution`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from buildd.artifacts.device_code import kernels_of_file
from buildd.artifacts.kernel_reports import completed, kernels_in
from buildd.artifacts.triton_kernels import triton_kernels
from buildd.builds import noisy_compiles, shared_results
from buildd.builds.active_build import ActiveBuild
from buildd.builds.command import output_path
from buildd.builds.products import Failure, Made, Product, recorded
from buildd.errors import StoreError, StoreFull
from buildd.keys import line_notes
from buildd.keys.depfiles import Listing
from buildd.keys.filing import Filing, file_run, read_apart
from buildd.keys.questions import NOTHING, Questions
from buildd.processes.launch import Exit
from buildd.state.events import Ending
from buildd.store import job_history
from buildd.store.batch import Batch
from buildd.store.database_errors import full
from buildd.store.store import InputSet, Result, StoredOutput
from codegen.plan import Action, Kept, Output, TextUse
from codegen.reach import Reach
from protocol import messages as m
from protocol.problem import in_one_line

_KERNEL_KINDS = ("nvcc", "hipcc")
_File = tuple[Output, Path, bytes | None]
"""An output, its place, and its content where it is no file."""


@dataclass(frozen=True, slots=True)
class GoodRun:
    """A run that ended well, as it is filed.

    Args:
        private: the job's folder.
        read: the files that the tool said it read, as it spelled them; None where it said nothing.
        listing: those that its own depfile lists; None where that is all of them.
        asked: what else it asked of the file system.
        named: finds the roots whose folder's path stands in the outputs.
        began_ns: when the tool was started, by the file system's clock.
        expanded: the roots were searched for in the text after preprocessing.
        shows_lines: what was printed may show lines of the sources.
        silent: the files that show no line in the texts after preprocessing, as the texts spell them.
        seen_there: files that the tool's search could find on the machine where it ran; None where that is this one.
    """

    exit: Exit
    private: str
    read: tuple[str, ...] | None
    named: Callable[[], Collection[str]]
    began_ns: int
    expanded: bool = False
    shows_lines: bool = True
    silent: Collection[str] = ()
    seen_there: frozenset[str] | None = None
    listing: Listing | None = None
    asked: Questions = NOTHING


class ResultKeeper:
    """Stores the outputs of one job. Used once, in a worker thread.

    Args:
        index: the action that ran.
        final: where inputs changed meanwhile, store nothing but end in success.
    """

    def __init__(self, build: ActiveBuild, index: int, *, final: bool) -> None:
        self.made: list[Made] = []
        self.failure: Failure | None = None
        self.note = ""
        """Why the result was not stored."""
        self.kernels: tuple[m.Kernel, ...] = ()
        self._build = build
        self._index = index
        self._action: Action = build.plan.actions[index]
        self._final = final

    def keep(self, run: GoodRun) -> Ending:
        """Check the inputs again, store the outputs. Raises OSError and StoreError."""
        build, action, exit = self._build, self._action, run.exit
        tool, store, lookup = build.tool(action), build.store, build.inputs.lookup
        looked: dict[str, os.stat_result] = {}
        apart = read_apart(lookup, run.read or (), looked)
        if apart is not None and apart.reach is Reach.CALLER and build.has_caller:
            why = f"{apart.path} is another file for each process"
            self.failure = Failure(m.FailureKind.STORE, why, "name a regular file", left=apart.path)
            return Ending.FAILED
        files = self._files(run)
        if files is None:
            return Ending.FAILED
        if action.kept is Kept.NOTHING:
            self._leave(files)
            self._learn(exit)
            return Ending.SUCCESS
        if build.report.tells_kernels and action.kind in _KERNEL_KINDS and "-c" in action.argv:
            read = [kernel for _, path, _ in files for kernel in kernels_of_file(str(path))]
            self.kernels = completed(kernels_in(exit.stderr.decode(errors="replace")), read)
        elif build.report.tells_kernels and action.kind == "triton" and action.outputs:
            self.kernels = self._triton_kernels(files, exit)
        action, missing = build.results.filed_as(self._index, exit)
        private = store.scratch_folders()
        if apart is not None:
            # The action is not run again either: what a FIFO held is gone.
            filing = Filing(None, f"{apart.path} is no regular file")
        else:
            filing = file_run(
                lookup,
                action,
                tool,
                missing,
                run.read,
                private,
                run.began_ns,
                named=run.named(),
                expanded=run.expanded,
                shows_lines=run.shows_lines,
                seen_there=run.seen_there,
                asked=run.asked,
                looked=looked,
            )
        if filing.stale:
            self.note = f"not stored: {', '.join(filing.stale[:3])} changed while it was read"
            if not self._final or run.seen_there is not None:
                return Ending.STALE
        elif filing.unstored:
            self.note = f"not stored: {filing.unstored}"
        with Batch() as batch:
            stored = self._record(files, batch) if action.kept is Kept.DIGESTS else self._store(files, batch)
            if stored is not None and filing.input_set is not None:
                self._publish(missing.first, filing.input_set, stored, exit, batch)
                if action.text is TextUse.TOKENS:
                    names, silent = lookup.files.names_of(tool), {*map(lookup.normal, run.silent)}
                    lookup.lines.filed(action, filing.input_set, silent)
                    line_notes.note(build.notebook, filing.input_set, {*map(names.name, silent)})
                else:
                    lookup.lines.filed(action, filing.input_set, ())
        self._learn(exit)
        if self._index in build.runs_whole:
            spoke = bool(exit.stdout or exit.stderr)
            noisy_compiles.ran_whole(build.store, build.notebook, lookup.name_key(self._action), spoke=spoke)
        return Ending.SUCCESS

    def _triton_kernels(self, files: Sequence[_File], exit: Exit) -> tuple[m.Kernel, ...]:
        paths = {output.name: path for output, path, _ in files}
        read = [kernel for name in ("cubin", "hsaco") if name in paths for kernel in kernels_of_file(str(paths[name]))]
        description = paths["metadata"].read_bytes() if "metadata" in paths else b"{}"
        return triton_kernels(self._action.payload, description, read, exit.stderr.decode(errors="replace"))

    def _files(self, run: GoodRun) -> list[_File] | None:
        """The outputs; None, with the failure, where the tool did not write one."""
        action = self._action
        contents = self._build.outputs.finish(action, run.private, run.read or (), run.listing)
        files = []
        for output in action.outputs:
            path = Path(output_path(run.private, action, output.name))
            if output.name not in contents and not path.is_file():
                self.failure = Failure(
                    m.FailureKind.OUTPUT_MISSING,
                    f"{action.kind} succeeded but did not write {output.path}",
                    "look at the options that name outputs",
                )
                return None
            files.append((output, path, contents.get(output.name)))
        return files

    def _leave(self, files: list[_File]) -> None:
        """Hand files over that are not stored."""
        for output, path, content in files:
            self.made.append(Made(output.path, path, Product(*_digest(path, content), output.executable)))

    def _record(self, files: list[_File], batch: Batch) -> tuple[StoredOutput, ...] | None:
        """Hand files over and store their digests; None where those cannot be stored."""
        self._leave(files)
        record = recorded(made.product for made in self.made)
        try:
            stored = self._build.store.put_bytes(record, batch)
        except StoreError as error:
            self.note = self._unstored(error)
            return None
        return (StoredOutput(self._action.kept.value, stored, len(record)),)

    def _store(self, files: list[_File], batch: Batch) -> tuple[StoredOutput, ...] | None:
        """Store files and hand them over; None where one cannot be stored."""
        store = self._build.store
        stored: list[StoredOutput] = []
        whole = True
        for output, path, content in files:
            try:
                if content is None:
                    digest, size = store.put_file(path, batch=batch)
                else:
                    digest, size = store.put_bytes(content, batch), len(content)
            except StoreError as error:
                # The compile went well; only the cache failed. The files are handed over from where they are.
                self.note = self._unstored(error)
                whole = False
                digest, size = _digest(path, content)
            stored.append(StoredOutput(output.name, digest, size, output.executable))
            self.made.append(Made(output.path, path, Product(digest, size, output.executable)))
        return tuple(stored) if whole else None

    def _unstored(self, error: StoreError) -> str:
        """The note of a result that the store has not taken. On a full disk it is the same for every result."""
        if isinstance(error, StoreFull):
            error = full(self._build.store.folder)
            self._build.counts.unkept = in_one_line(error)
        return f"not stored: {error.message}" + (f" ({error.next_step})" if isinstance(error, StoreFull) else "")

    def _learn(self, exit: Exit) -> None:
        learn(self._build, self._action, exit, job_history.JobEnd.BUILT)

    def _publish(
        self, first: m.Digest, input_set: InputSet, outputs: tuple[StoredOutput, ...], exit: Exit, batch: Batch
    ) -> None:
        build, store = self._build, self._build.store
        try:
            stdout = store.put_bytes(exit.stdout, batch) if exit.stdout else None
            stderr = store.put_bytes(exit.stderr, batch) if exit.stderr else None
            result = Result(
                key=input_set.key,
                action=self._action.name,
                outputs=outputs,
                stdout=stdout,
                stderr=stderr,
                timing=exit.timing,
                created_ns=time.time_ns(),
                kernels=self.kernels,
            )
            store.publish(first, input_set, result, batch)
            shared_results.offer(build, first, result)
            build.published(result, input_set.roots)
            components = build.misses[self._index].components
            if components:
                build.notebook.note_components(build.inputs.lookup.name_key(self._action), components)
        except StoreError as error:
            self.note = self._unstored(error)


def learn(build: ActiveBuild, action: Action, exit: Exit, ended: job_history.JobEnd) -> None:
    """Note how long an action's job took and how it ended, for the next estimate."""
    identity = build.inputs.lookup.name_key(action)
    build.notebook.add_job(job_history.FinishedJob(identity, action.kind, exit.timing, ended))


def _digest(path: Path, content: bytes | None) -> tuple[m.Digest, int]:
    """Digest and size of a file, or of the content of an output that is no file."""
    hasher = blake3(content) if content is not None else blake3().update_mmap(path)
    return m.Digest(hasher.hexdigest()), len(content) if content is not None else path.stat().st_size
