"""One job: an action run in a private folder, checked, stored and handed over.

Knows the runner, the store and what a run is filed under. Decides nothing about when it runs or what follows from its
ending (`state`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from blake3 import blake3

from buildd import depfiles, history, outspoken
from buildd.batch import Batch
from buildd.building import Building
from buildd.command import DEPFILE, launch_of, output_path
from buildd.devicecode import kernels_of_file
from buildd.errors import BuilddError, RunnerError, StoreError, told
from buildd.files import FINE_STEP_NS
from buildd.kernels import completed, is_report, kernels_in
from buildd.launch import Exit, KillReason, Launch
from buildd.preload import library
from buildd.products import Failure, Made, Product, Ran, recorded
from buildd.runner import Job, Runner
from buildd.served import of_a_job
from buildd.steps import Ending
from buildd.store import InputSet, Result, StoredOutput
from buildd.tally import Reasoned
from codegen.aitemplate_flags import time_line
from codegen.plan import Action, Kept, Output
from protocol import messages as m

_KERNEL_KINDS = ("nvcc", "hipcc")
_FILLING_KINDS = ("cudafe++",)
"""Those whose time goes into memory that they never look at."""
_File = tuple[Output, Path, bytes | None]
"""An output, where it is, and its content where it is no file."""


class Execution:
    """One job from its start to its ending. The followers are told through `tell`.

    Args:
        number: the job's id.
        building: the request whose action runs.
        index: which action of its plan.
        final: store nothing if inputs change meanwhile, but end in success.
        tell: says an event body to every follower.
        released: called once its processes have ended well, before the result is stored.
        in_pool: runs a function that touches files in a worker thread.
    """

    def __init__(
        self,
        number: m.JobId,
        building: Building,
        index: int,
        *,
        final: bool,
        tell: Callable[[m.EventBody], None],
        released: Callable[[], None],
        in_pool: Callable[..., Awaitable[Any]],
    ) -> None:
        self.number = number
        self.building = building
        self.index = index
        self.action: Action = building.plan.actions[index]
        self.started_s = time.monotonic()
        self.made: list[Made] = []
        self.exit: Exit | None = None
        self.failure: Failure | None = None
        self.note = ""
        self.kernels: tuple[m.Kernel, ...] = ()
        self.read: tuple[str, ...] | None = None
        """The files that its tool said it read, as it spelled them."""
        self.begun = asyncio.Event()
        """It has begun to run, or ended before."""
        self._final = final
        self._tell = tell
        self._released = released
        self._in_pool = in_pool
        self._job: Job | None = None
        self._kill: KillReason | None = None
        self._private = ""
        self._began_ns = 0

    @property
    def expected_s(self) -> float:
        return self.building.resources[self.index].wall_s

    @property
    def memory_bytes(self) -> int:
        """Resident memory of its processes now."""
        return self._job.memory_bytes if self._job is not None else 0

    @property
    def ran(self) -> Ran:
        """What it leaves behind, once it has ended well."""
        assert self.exit is not None
        return Ran(tuple(self.made), self.exit, self.read, self.note, self._began_ns)

    @property
    def steps(self) -> tuple[m.Step, ...]:
        """What it was carried out in."""
        return ()

    def finished(self, exit: Exit) -> m.Finished:
        """What is told of it once it has ended well."""
        made = tuple(m.Output(path=e.path, digest=e.product.digest, size_bytes=e.product.size_bytes) for e in self.made)
        return m.Finished(
            job_id=self.number,
            action=self.action.name,
            timing=exit.timing,
            outputs=made,
            note=self.note,
            steps=self.steps,
            kernels=self.kernels,
        )

    def time_line(self) -> str:
        """What AIT_TIME_COMPILATION asks for: the line of GNU time, from our own measurement."""
        return "" if self.exit is None or self._job is None else time_line_of(self._job.launch, self.exit)

    def kill(self, reason: KillReason) -> None:
        """End it; its ending comes as ever."""
        self._kill = self._kill or reason
        if self._job is not None:
            self._job.kill(reason)

    async def run(self, runner: Runner) -> Ending:
        """Run the action and say how it ended. Raises nothing that concerns the action."""
        try:
            launch: Launch = await self._in_pool(self.prepare)
            await self._settle()
        except (OSError, StoreError) as error:
            self.failure = storage_failure(error)
            return Ending.FAILED
        self._tell_started()
        ending = await self.perform(runner, launch)
        if ending is not None:
            return ending
        self._released()
        kept: Ending = await self._in_pool(self.keep)
        return kept

    async def perform(self, runner: Runner, launch: Launch) -> Ending | None:
        """Have it run; None where it ended well and is to be kept."""
        try:
            self._began_ns = time.time_ns()
            self._job = runner.begin(launch, self._line)
            if self._kill is not None:
                self._job.kill(self._kill)
            self.exit = await self._job.wait()
        except OSError as error:
            self.failure = storage_failure(error)
            return Ending.FAILED
        except RunnerError as error:
            self.failure = Failure(m.FailureKind.TOOL_MISSING, error.message, error.next_step)
            return Ending.FAILED
        if self.exit.cancelled or self._kill is KillReason.CANCELLED:
            return Ending.KILLED
        if not self.exit.ok:
            ended = history.Ended.OUT_OF_MEMORY if self.exit.out_of_memory else history.Ended.FAILED
            self._learn(self.exit, ended)
            return self._why_failed(self.exit)
        return None

    def keep(self) -> Ending:
        """Check the inputs again, store the outputs. In a worker thread."""
        assert self.exit is not None
        try:
            return self._keep(self.exit)
        except (OSError, StoreError) as error:
            self.failure = storage_failure(error)
            return Ending.FAILED

    async def _settle(self) -> None:
        # A header written just before the request would look as if it had changed while the tool read it.
        await asyncio.sleep(self.building.settled_s + FINE_STEP_NS / 1e9 - time.monotonic())

    def _tell_started(self) -> None:
        if not self.building.inner:  # nobody follows a step, and its line takes a while to write
            command = self.building.command(self.action)
            self._tell(
                m.Started(
                    job_id=self.number,
                    action=self.action.name,
                    kind=self.action.kind,
                    command=command,
                    expected_s=self.expected_s,
                )
            )
        if self.action.whole:
            self.building.store.tally.count_reasoned(Reasoned.WHOLE, self.action.whole)
        self.started_s = time.monotonic()
        self.begun.set()

    def close(self) -> None:
        """Remove the private folder, once every follower has what it wants from it."""
        if self._private:
            remove_folder(self._private)
            self._private = ""

    # ----------------------------------------------------------------

    def prepare(self) -> Launch:
        """Make its private folder. In a worker thread; raises OSError and StoreError."""
        if self.action.kept is not Kept.NOTHING:
            self.building.lookup.foresee(self.action, self.building.tool(self.action))
        self._private = tempfile.mkdtemp(prefix="job-", dir=self.building.store.scratch_folder())
        for output in self.action.outputs:
            folder = os.path.dirname(output_path(self._private, self.action, output.name))
            if folder != self._private:
                os.mkdir(folder)
        for path in self.action.inputs:
            if path in self.building.products:
                self.building.where(path)  # a tool may find it by a name that is not among its arguments
        tool = self.building.tool(self.action)
        launch = launch_of(
            self.action,
            tool,
            project=self.building.project,
            private=self._private,
            where=self.building.where,
            quiet=self.building.inner,
            preload=self._preload(),
        )
        if self.action.served:
            asked, store = self.building.request, str(self.building.store.folder)
            found = of_a_job(dict(launch.environment), asked.environment, store, asked.build_id)
            launch = replace(launch, environment=tuple(sorted(found.items())))
        if self.action.warm and self.building.is_on("BUILDD_WARM_WORKERS"):
            return replace(launch, warm=self.building.lookup.tool_digest(tool))
        return launch

    def _preload(self) -> str:
        wanted = self.action.kind in _FILLING_KINDS and self.building.is_on("BUILDD_PRELOAD")
        return library(self.building.store.folder) if wanted else ""

    def _line(self, stream: str, text: str) -> None:
        if not (self.action.reports and is_report(text)):
            self._tell(m.LogLine(job_id=self.number, stream=stream, text=text))

    def _why_failed(self, exit: Exit) -> Ending:
        if exit.timed_out:
            self.failure = Failure(
                m.FailureKind.TIMEOUT,
                f"ended after {self.action.timeout_s:g} s",
                "raise timeout_s of the target, or split the source",
            )
            return Ending.FAILED
        if exit.out_of_memory:
            self.failure = Failure(
                m.FailureKind.OUT_OF_MEMORY,
                f"ran out of memory at {exit.timing.peak_rss_bytes / 2**30:.1f} GiB, running alone",
                "give the machine or the cgroup more memory, or compile for fewer architectures at once",
            )
            return Ending.OUT_OF_MEMORY
        if exit.lost:
            self.failure = Failure(m.FailureKind.KILLED, "the process that ran it was killed", "build again")
            return Ending.FAILED
        if exit.signal:
            self.failure = Failure(
                m.FailureKind.KILLED, f"{self.action.kind} was killed by signal {exit.signal}", "build again"
            )
            return Ending.FAILED
        if not os.path.isdir(self._private):
            self.failure = Failure(
                m.FailureKind.STORE, f"the folder that {self.action.kind} wrote to was removed meanwhile", "build again"
            )
            return Ending.FAILED
        next_step = ""
        if b"No space left on device" in exit.stderr:
            # Tools write to the store's disk; what fits is moved to the project from there.
            next_step = f"free some space on the disk of {self._private} and build again"
        elif gone := next((path for path in self.action.inputs if not os.path.exists(self.building.where(path))), None):
            next_step = f"{gone} is gone: restore it, or build again where it is made"
        self.failure = Failure(
            m.FailureKind.COMPILE_ERROR, f"{self.action.kind} ended with status {exit.status}", next_step
        )
        return Ending.FAILED

    def _inputs(self) -> tuple[str, ...] | None:
        found: dict[str, None] = {}
        for discovery, suffix in depfiles.parts(self.action.discovery):
            depfile = _read(f"{self._private}/{DEPFILE}{suffix}")
            if depfile is None:
                return None
            found.update(dict.fromkeys(depfiles.parse(discovery, depfile)))
        return tuple(found)

    def _named(self) -> Collection[str]:
        """Roots whose folder stands in what was made."""
        return self.building.named_by(self.action, self._private)

    def _keep(self, exit: Exit) -> Ending:
        building, action = self.building, self.action
        tool, store = building.tool(action), building.store
        self.read = self._inputs()
        contents = building.finish_outputs(action, self._private, self.read or ())
        files = []
        for output in action.outputs:
            path = Path(output_path(self._private, action, output.name))
            if output.name not in contents and not path.is_file():
                self.failure = Failure(
                    m.FailureKind.OUTPUT_MISSING,
                    f"{action.kind} succeeded but did not write {output.path}",
                    "look at the options that name outputs",
                )
                return Ending.FAILED
            files.append((output, path, contents.get(output.name)))
        if action.kept is Kept.NOTHING:
            self._leave(files)
            self._learn(exit, history.Ended.BUILT)
            return Ending.SUCCESS
        if building.tells_kernels and action.kind in _KERNEL_KINDS and "-c" in action.argv:
            read = [kernel for _, path, _ in files for kernel in kernels_of_file(str(path))]
            self.kernels = completed(kernels_in(exit.stderr.decode(errors="replace")), read)
        action, missing = building.filed_as(self.index, exit)
        private = (str(store.scratch_folder()),)
        filing = building.lookup.file_run(action, tool, missing, self.read, private, self._began_ns, self._named())
        if filing.stale:
            self.note = f"not stored: {', '.join(filing.stale[:3])} changed while it was read"
            if not self._final:
                return Ending.STALE
        elif filing.unstored:
            self.note = f"not stored: {filing.unstored}"
        with Batch() as batch:
            stored = self._record(files, batch) if action.kept is Kept.DIGESTS else self._store(files, batch)
            if stored is not None and filing.input_set is not None:
                self._publish(missing.first, filing.input_set, stored, exit, batch)
        self._learn(exit, history.Ended.BUILT)
        if self.index in building.runs_whole:
            spoke = bool(exit.stdout or exit.stderr)
            outspoken.remember(building.notebook, building.lookup.name_key(self.action), spoke=spoke)
        return Ending.SUCCESS

    def _leave(self, files: list[_File]) -> None:
        """Hand files over that are not stored."""
        for output, path, content in files:
            self.made.append(Made(output.path, path, Product(*_digest(path, content), output.executable)))

    def _record(self, files: list[_File], batch: Batch) -> tuple[StoredOutput, ...] | None:
        """Hand files over and store what they are; None where that cannot be stored."""
        self._leave(files)
        record = recorded(made.product for made in self.made)
        try:
            return (StoredOutput(self.action.kept.value, self.building.store.put_bytes(record, batch), len(record)),)
        except StoreError as error:
            self.note = f"not stored: {error.message}"
            return None

    def _store(self, files: list[_File], batch: Batch) -> tuple[StoredOutput, ...] | None:
        """Store files and hand them over; None where one cannot be stored."""
        store = self.building.store
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
                self.note = f"not stored: {error.message}"
                whole = False
                digest, size = _digest(path, content)
            stored.append(StoredOutput(output.name, digest, size, output.executable))
            self.made.append(Made(output.path, path, Product(digest, size, output.executable)))
        return tuple(stored) if whole else None

    def _learn(self, exit: Exit, ended: history.Ended) -> None:
        identity = self.building.lookup.name_key(self.action)
        self.building.notebook.measured(history.Measured(identity, self.action.kind, exit.timing, ended))

    def _publish(
        self, first: m.Digest, input_set: InputSet, outputs: tuple[StoredOutput, ...], exit: Exit, batch: Batch
    ) -> None:
        building, store = self.building, self.building.store
        try:
            stdout = store.put_bytes(exit.stdout, batch) if exit.stdout else None
            stderr = store.put_bytes(exit.stderr, batch) if exit.stderr else None
            result = Result(
                key=input_set.key,
                action=self.action.name,
                outputs=outputs,
                stdout=stdout,
                stderr=stderr,
                timing=exit.timing,
                created_ns=time.time_ns(),
                kernels=self.kernels,
            )
            store.publish(first, input_set, result, batch)
            building.published(result, input_set.roots)
            components = building.misses[self.index].components
            if components:
                building.notebook.ran_with(building.lookup.name_key(self.action), components)
        except StoreError as error:
            self.note = f"not stored: {error.message}"


def _digest(path: Path, content: bytes | None) -> tuple[m.Digest, int]:
    """Digest and size of a file, or of what is no file."""
    hasher = blake3(content) if content is not None else blake3().update_mmap(path)
    return m.Digest(hasher.hexdigest()), len(content) if content is not None else path.stat().st_size


def remove_folder(folder: str) -> None:
    """Remove a private folder; most hold two or three files and no folder, which takes a third of rmtree's time."""
    try:
        for name in os.listdir(folder):
            os.unlink(f"{folder}/{name}")
        os.rmdir(folder)
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)


def _read(path: str) -> bytes | None:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return file.read()
    return None


def storage_failure(error: OSError | BuilddError) -> Failure:
    """Why a job failed that could not use the disk or the store."""
    return Failure(m.FailureKind.STORE, *told(error))


def time_line_of(launch: Launch, exit: Exit) -> str:
    """The line of GNU time for what ran."""
    timing = exit.timing
    return time_line(
        [os.fsdecode(argument) for argument in launch.argv],
        exit_status=exit.status,
        wall_s=timing.wall_s,
        user_s=timing.user_s,
        system_s=timing.system_s,
        peak_rss_bytes=timing.peak_rss_bytes,
    )
