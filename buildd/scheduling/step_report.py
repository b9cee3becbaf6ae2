"""Puts the output, the inputs and the exits of one job's steps together, as the output, inputs and exit of one tool.

Knows no files; `step_outputs` passes the steps' files on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from buildd.artifacts.line_free_text import names_lines
from buildd.builds.active_build import ActiveBuild
from buildd.builds.event_log import RequestLog
from buildd.builds.products import Failure, Ran
from buildd.builds.report import Report
from buildd.processes.launch import Exit
from buildd.store.store import Result
from codegen.plan import Action, Discovery
from codegen.steps.step_kinds import OWN_KINDS, StepKind
from protocol import messages as m


class SilentLog(RequestLog):
    """A log without events: steps have no followers of their own."""

    def append(self, body: m.EventBody) -> None:
        return None


class StepReport(Report[ActiveBuild]):
    """Gathers what the steps say.

    Args:
        said: what the compiler says on standard error before its first step.
    """

    is_of_steps = True

    def __init__(self, said: str) -> None:
        self.said: dict[int, tuple[bytes, bytes]] = {-1: (b"", said.encode(errors="surrogateescape"))}
        """Standard output and error of the steps that ended or were found."""
        self.reads: dict[int, tuple[str, ...] | None] = {}
        """The files that each of them read; None where it did not say."""
        self.done: list[tuple[str, int, Exit | None, str]] = []
        """Name of each step that is done, when it began, how it ended where it ran, and the node that it ran on."""
        self.failures: dict[int, Failure] = {}
        self.told: Callable[[], object] = lambda: None
        """Called when a step has ended or was found."""
        self._exits: list[Exit] = []
        """Exits of the steps that ran."""

    def tell_hit(self, index: int, result: Result) -> None:
        store, action = self.build.store, self.build.plan.actions[index]
        stdout, stderr = (store.get(digest) or b"" if digest else b"" for digest in (result.stdout, result.stderr))
        self.said[index] = (stdout, stderr)
        self.done.append((action.name, time.time_ns(), None, ""))
        self.reads[index] = self.build.inputs.lookup.used_by(action)
        self.told()

    def handed_over(self, index: int, ran: Ran) -> None:
        self._ended(index, ran.exit)
        self.reads[index] = ran.read
        self.done.append((self.build.plan.actions[index].name, ran.began_ns, ran.exit, ran.node))
        self.told()

    def tell_failed(self, job: m.JobId, index: int, failure: Failure) -> None:
        self.failures[index] = failure
        if failure.exit is not None:
            self._ended(index, failure.exit)
        self.told()

    def _ended(self, index: int, exit: Exit) -> None:
        self.said[index] = (exit.stdout, exit.stderr)
        self._exits.append(exit)

    # ---------------------------------------------------------------- all steps as one tool

    @property
    def first_failure(self) -> Failure | None:
        """The failure of the step that the tool would have stopped at."""
        return self.failures[min(self.failures)] if self.failures else None

    def failed_actions(self) -> Iterator[Action]:
        return (self.build.plan.actions[index] for index in self.failures)

    def read(self, kind: StepKind | None = None) -> tuple[str, ...] | None:
        """The files that the steps with a depfile read together, or those of one kind; None where one did not say."""
        found: dict[str, None] = {}
        for index, action in enumerate(self.build.plan.actions):
            read = self.reads.get(index)
            if action.discovery.value != "none" and (kind is None or action.kind == kind.value):
                if read is None:
                    return None
                found.update(dict.fromkeys(read))
        return tuple(found)

    def read_by(self, discovery: Discovery) -> tuple[str, ...] | None:
        """The files that the one step with such a depfile read; None where there is none, or it did not say."""
        actions = enumerate(self.build.plan.actions)
        return next((self.reads.get(index) for index, action in actions if action.discovery is discovery), None)

    def shown(self) -> Iterator[tuple[str, bytes]]:
        """The texts up to the first failure, in the order of the steps: stream and text."""
        actions = self.build.plan.actions
        last = min(self.failures, default=len(actions))
        for index in sorted(self.said):
            own = index >= 0 and actions[index].kind in OWN_KINDS and index not in self.failures
            if index <= last and not own:
                yield from zip(("stdout", "stderr"), self.said[index], strict=True)

    def shows_lines(self) -> bool:
        """Whether a message may show a line of a source. ptxas reads PTX: its messages name lines of that."""
        actions = self.build.plan.actions
        return any(
            names_lines(text)
            for index, texts in self.said.items()
            if index < 0 or actions[index].kind != StepKind.PTXAS.value
            for text in texts
        )

    def exit(self, wall_s: float) -> Exit:
        """The exit of one process that runs the steps and stops at the first failure."""
        failed = self.first_failure.exit if self.first_failure is not None else None
        timings = [exit.timing for exit in self._exits]
        return Exit(
            status=failed.status if failed is not None else 0,
            signal=failed.signal if failed is not None else 0,
            # Only the compiler knows what it says of a step that a signal ended.
            lost=failed is not None and (failed.lost or failed.signal != 0),
            output_truncated=any(exit.output_truncated for exit in self._exits),
            timing=m.Timing(
                wall_s=wall_s,
                user_s=sum(timing.user_s for timing in timings),
                system_s=sum(timing.system_s for timing in timings),
                peak_rss_bytes=max((timing.peak_rss_bytes for timing in timings), default=0),
            ),
            stdout=b"".join(text for stream, text in self.shown() if stream == "stdout"),
            stderr=b"".join(text for stream, text in self.shown() if stream == "stderr"),
        )
