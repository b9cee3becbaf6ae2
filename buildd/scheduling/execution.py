"""One job: an action run in a private folder.

Knows the runner, and the events for the followers. `state` decides when a job runs and what follows from its end;
`result_keeper` stores the job's outputs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from typing import Any

from buildd.artifacts.kernel_reports import is_report
from buildd.artifacts.line_free_text import names_lines
from buildd.builds import colours, private_folder
from buildd.builds.active_build import ActiveBuild
from buildd.builds.command import DEPFILE, launch_of, output_path
from buildd.builds.products import Failure, Ran
from buildd.errors import RunnerError, StoreError
from buildd.files import kernel_clock
from buildd.keys import depfiles, questions
from buildd.keys.filing import foresee
from buildd.native.preload import library
from buildd.processes.executor import BegunTool, Executor
from buildd.processes.launch import EndReason, Exit, Launch
from buildd.scheduling.job_failures import storage_failure, tool_failure
from buildd.scheduling.result_keeper import GoodRun, ResultKeeper, learn
from buildd.shims.environment import of_a_job
from buildd.state.events import Ending
from buildd.store import job_history
from buildd.store.tally import Reasoned
from codegen.plan import LISTED, Action, Discovery, Kept, Ref
from codegen.variables.aitemplate_flags import step_line, time_line
from protocol import messages as m

_SHORTEST_WAIT_NS = 500_000
_LONGEST_WAIT_S = 0.05
"""A clock may be set back, or stand still."""
_FILLING_KINDS = ("cudafe++",)
"""Kinds of actions whose tools spend their time on filling memory that they never read."""


class Execution:
    """One job from its start to its ending. Its events go to the followers through `tell`.

    Args:
        number: the job's id.
        build: the request whose action runs.
        index: which action of its plan.
        final: store nothing if inputs change meanwhile, but end in success.
        tell: appends an event body to the log of every follower.
        released: called once its processes have ended well, before the result is stored.
        in_pool: runs a function that touches files in a worker thread.
    """

    is_spread = False
    """Whether its steps are jobs of their own."""

    def __init__(
        self,
        number: m.JobId,
        build: ActiveBuild,
        index: int,
        *,
        final: bool,
        tell: Callable[[m.EventBody], None],
        released: Callable[[], None],
        in_pool: Callable[..., Awaitable[Any]],
    ) -> None:
        self.number = number
        self.build = build
        self.index = index
        self.action: Action = build.plan.actions[index]
        self.started_s = time.monotonic()
        self.exit: Exit | None = None
        self.failure: Failure | None = None
        self.result = ResultKeeper(build, index, final=final)
        self.read: tuple[str, ...] | None = None
        """The files that its tool said it read, as it spelled them."""
        self.begun = asyncio.Event()
        """Set once the job has begun to run, or has ended before."""
        self._final = final
        self._tell = tell
        self._released = released
        self._in_pool = in_pool
        self.held = False
        """Its processes are stopped until there is more memory."""
        self.said_before: Counter[tuple[str, str]] = Counter()
        """Lines (stream, text) that a lost run of this job has told its followers already."""
        self.told: Counter[tuple[str, str]] = Counter()
        """Lines that this run has told, if it may be lost."""
        self._job: BegunTool | None = None
        self._kill: EndReason | None = None
        self._private = ""
        self._step_ns = kernel_clock.STEP_NS
        self._began_ns = 0

    @property
    def expected_s(self) -> float:
        return self.build.resources[self.index].wall_s

    @property
    def memory_bytes(self) -> int:
        """Resident memory of its processes now."""
        return self._job.memory_bytes if self._job is not None else 0

    @property
    def needs_bytes(self) -> int:
        """The memory that it was seen to need when there was too little; 0 if there was enough."""
        killed = self.exit is not None and self.exit.out_of_memory
        return job_history.needed_bytes(self.exit.timing.peak_rss_bytes) if self.exit is not None and killed else 0

    @property
    def ran(self) -> Ran:
        """What the job leaves to its followers, once it has ended well."""
        assert self.exit is not None
        return Ran(tuple(self.result.made), self.exit, self.read, self.result.note, self._began_ns, self.node)

    def time_lines(self) -> tuple[str, ...]:
        """The lines of AIT_TIME_COMPILATION for the job and its steps."""
        return (self.time_line(), *(step_line(step.name, step.wall_s, step.peak_rss_bytes) for step in self.steps))

    @property
    def node(self) -> str:
        """The name of the machine that it ran on, or runs; empty for this one."""
        return ""

    @property
    def why_lost(self) -> str:
        """Why its run on another machine was lost, if people should know."""
        return ""

    @property
    def steps(self) -> tuple[m.Step, ...]:
        """The steps that carried the job out; none where it ran as one process."""
        return ()

    def finished(self, exit: Exit) -> m.Finished:
        """The event for a job that has ended well."""
        made = ((each.path, each.product) for each in self.result.made)
        return m.Finished(
            job_id=self.number,
            action=self.action.name,
            timing=exit.timing,
            outputs=tuple(m.Output(path=path, digest=p.digest, size_bytes=p.size_bytes) for path, p in made),
            note=self.result.note,
            steps=self.steps,
            kernels=self.result.kernels,
            node=self.node,
        )

    def time_line(self) -> str:
        """The line of GNU time that AIT_TIME_COMPILATION asks for, from buildd's own measurement."""
        return "" if self.exit is None or self._job is None else time_line_of(self._job.launch, self.exit)

    def hold(self, held: bool) -> None:
        """Stop the job's processes, also those that are still to start, or let them go on."""
        self.held = held
        if self._job is not None:
            self._job.hold(held)

    def kill(self, reason: EndReason) -> None:
        """Kill the job's processes; `run` then returns as usual."""
        self._kill = self._kill or reason
        if self._job is not None:
            self._job.kill(reason)

    async def run(self, runner: Executor) -> Ending:
        """Run the action and return how it ended. Raises nothing that concerns the action."""
        try:
            launch: Launch = await self._in_pool(self.prepare)
            await self._settle()
        except (OSError, StoreError) as error:
            self.failure = storage_failure(error, self._private)
            return Ending.FAILED
        self._tell_started()
        ending = await self.perform(runner, launch)
        if ending is not None:
            return ending
        self._released()
        kept: Ending = await self._in_pool(self.keep)
        return kept

    async def perform(self, runner: Executor, launch: Launch) -> Ending | None:
        """Run the tool; None where it ended well and its outputs are to be stored."""
        try:
            self._began_ns = self.build.files.now_ns()
            self._job = runner.begin(launch, colours.lines_to(launch, self._line))
            if self.held:
                self._job.hold(True)
            if self._kill is not None:
                self._job.kill(self._kill)
            self.exit = self._as_called(launch, await self._job.wait())
        except OSError as error:
            self.failure = storage_failure(error, self._private)
            return Ending.FAILED
        except RunnerError as error:
            self.failure = Failure(m.FailureKind.TOOL_MISSING, error.message, error.next_step)
            return Ending.FAILED
        if self.exit.cancelled or self._kill is EndReason.CANCELLED:
            return Ending.KILLED
        if not self.exit.ok:
            ended = job_history.JobEnd.OUT_OF_MEMORY if self.exit.out_of_memory else job_history.JobEnd.FAILED
            learn(self.build, self.action, self.exit, ended)
            ending, failure = tool_failure(self.build, self.action, self.exit, self._private)
            if self._lists_files(self.exit):
                listing = self._listing()
                listed = None if listing is None else listing.files  # a link that fails lists no inputs
                failure = replace(failure, read=self._inputs() or listed, listing=listing)
            self.failure = failure
            return ending
        return None

    def _as_called(self, launch: Launch, exit: Exit) -> Exit:
        """How the tool ended, in the words that it would have used for the user."""
        outputs = {output_path(self._private, self.action, output.name): output.path for output in self.action.outputs}
        return colours.told_apart(launch, private_folder.unnamed(exit, outputs, self.build.store.scratch_folders()))

    def keep(self) -> Ending:
        """Check the inputs again, store the outputs. In a worker thread."""
        assert self.exit is not None
        try:
            return self._keep(self.exit)
        except (OSError, StoreError) as error:
            self.failure = storage_failure(error, self._private)
            return Ending.FAILED

    async def _settle(self) -> None:
        """Wait until no write before the request has a stamp that a write from now on could have too: a header written
        just before it would look as if it had changed while the tool read it."""
        build = self.build
        written_ns = build.started_ns - round((build.begun_s - build.settled_s) * 1e9)
        if build.files.now_ns() - written_ns > kernel_clock.STEP_NS:
            return
        latest_s = build.settled_s + _LONGEST_WAIT_S
        while (passed_ns := build.files.now_ns() - written_ns) <= self._step_ns and time.monotonic() < latest_s:
            await asyncio.sleep(max(self._step_ns - passed_ns, _SHORTEST_WAIT_NS) / 1e9)

    def _tell_started(self) -> None:
        if not self.build.is_steps:  # no client follows a step, and its line takes a while to write
            command = self.build.command(self.action)
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
            self.build.store.tally.count_reasoned(Reasoned.WHOLE, self.action.whole)
        self.started_s = time.monotonic()
        self.begun.set()

    def close(self) -> None:
        """Remove the private folder, once every follower has its files."""
        if self._private:
            private_folder.remove(self._private)
            self._private = ""

    # ----------------------------------------------------------------

    def prepare(self) -> Launch:
        """Make the private folder. In a worker thread; raises OSError and StoreError."""
        if self.action.kept is not Kept.NOTHING:
            foresee(self.build.inputs.lookup, self.action, self.build.tool(self.action))
        self._step_ns = kernel_clock.step_below(self.build.project)
        self._private = tempfile.mkdtemp(prefix="job-", dir=self.build.store.scratch_folder())
        for output in self.action.outputs:
            folder = os.path.dirname(output_path(self._private, self.action, output.name))
            if folder != self._private:
                os.mkdir(folder)
        for path in self.action.inputs:
            if path in self.build.products:
                self.build.outputs.where(path)  # a tool may find it by a name that is not among its arguments
        tool = self.build.tool(self.action)
        launch = self._launch_in(self._private)
        if self.action.served:
            asked, store = self.build.request, str(self.build.store.folder)
            found = of_a_job(dict(launch.environment), asked.environment, store, asked.build_id)
            launch = replace(launch, environment=tuple(sorted(found.items())))
        if self.action.warm and self.build.is_on("BUILDD_WARM_WORKERS"):
            return replace(launch, warm=self.build.inputs.lookup.tool_digest(tool))
        return launch

    def _launch_in(self, private: str) -> Launch:
        launch = launch_of(
            self.action,
            self.build.tool(self.action),
            project=self.build.project,
            private=private,
            where=self.build.outputs.where,
            quiet=self.build.is_steps,
            preload=self._preload(),
        )
        launch = replace(launch, argv=(*launch.argv, *self.build.outputs.more_words(self.action)))
        return colours.asking(launch, self.build.outputs.colours)

    def _preload(self) -> str:
        wanted = self.action.kind in _FILLING_KINDS and self.build.is_on("BUILDD_PRELOAD")
        return library(self.build.store.folder) if wanted else ""

    def _line(self, stream: str, text: str) -> None:
        if self.said_before[stream, text]:
            self.said_before[stream, text] -= 1
        elif not (self.action.reports and is_report(text)):
            self._tell(m.LogLine(job_id=self.number, stream=stream, text=text))

    def _lists_files(self, exit: Exit) -> bool:
        """Whether the tool, which failed, has left a depfile."""
        # buildd has clang list the files elsewhere; itself it would have written a depfile if no header is missing.
        discovery = self.action.discovery
        if any(isinstance(word, Ref) and word.suffix == f"/{LISTED}" for word in self.action.argv):
            return os.path.exists(f"{self._private}/{LISTED}")
        if discovery is Discovery.CLANG:
            return b"' file not found" not in exit.stderr
        return discovery in (Discovery.GCC, Discovery.GCC_LINKER, Discovery.CLANG_RULES)

    def _inputs(self) -> tuple[str, ...] | None:
        return depfiles.read_files(self.action.discovery, self._depfile)

    def _listing(self) -> depfiles.Listing | None:
        """The files that the tool's own depfile lists; None where that is all that it read."""
        listed = _read(f"{self._private}/{LISTED}")
        if listed is not None:
            return depfiles.Listing(depfiles.parse(Discovery.GCC, listed))
        return depfiles.own_listing(self.action.discovery, self._depfile)

    def _depfile(self, suffix: str) -> bytes | None:
        return _read(f"{self._private}/{DEPFILE}{suffix}")

    def _named(self) -> Collection[str]:
        """Roots whose folder's path stands in the outputs."""
        assert self.exit is not None
        return self.build.outputs.named_by(self.action, self._private, b"\n".join((self.exit.stdout, self.exit.stderr)))

    def _shows_lines(self, exit: Exit) -> bool:
        """Whether a message may show a line of a source."""
        return names_lines(exit.stdout) or names_lines(exit.stderr)

    def _silent_files(self) -> Collection[str]:
        """The files that show no line in the texts after preprocessing, as far as these texts are known."""
        return ()

    def _seen_there(self) -> frozenset[str] | None:
        """The files that the tool's search could find on the machine where it ran; None where that is this one."""
        return None

    def _expanded(self) -> bool:
        """Whether the roots were searched for in the text after preprocessing, or no macro can reach the outputs."""
        return self.build.outputs.only_names

    def _keep(self, exit: Exit) -> Ending:
        self.read = self._inputs()
        ending = self.result.keep(
            GoodRun(
                exit,
                self._private,
                self.read,
                self._named,
                self._began_ns,
                expanded=self._expanded(),
                shows_lines=self._shows_lines(exit),
                silent=self._silent_files(),
                seen_there=self._seen_there(),
                listing=self._listing(),
                asked=questions.asked_by(self.action.discovery, self._depfile),
            )
        )
        self.failure = self.result.failure
        return ending


def _read(path: str) -> bytes | None:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return file.read()
    return None


def time_line_of(launch: Launch, exit: Exit) -> str:
    """The line of GNU time for a run."""
    timing = exit.timing
    return time_line(
        [os.fsdecode(argument) for argument in launch.argv],
        exit_status=exit.status,
        wall_s=timing.wall_s,
        user_s=timing.user_s,
        system_s=timing.system_s,
        peak_rss_bytes=timing.peak_rss_bytes,
    )
