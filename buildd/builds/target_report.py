"""The report of a target's build: followers learn of every action, and at the end the store gets the log.

Knows the protocol's events; does not know who follows.
"""

from __future__ import annotations

import logging
import time

import msgspec

from buildd.artifacts.diagnostics import diagnose
from buildd.artifacts.kernel_reports import without_report
from buildd.builds.active_build import ActiveBuild
from buildd.builds.products import HIT, Failure, Moment
from buildd.builds.report import Report
from buildd.errors import StoreError
from buildd.keys.miss_kinds import kind_of
from buildd.store.build_log import Build, BuildSummary
from buildd.store.store import Counter, Result
from buildd.store.tally import Reasoned
from protocol import messages as m

_log = logging.getLogger(__name__)
_LOOKED_UP, _STOOD = "by content", "up to date"
"""The kinds of the daemon's hits in statistics."""


class TargetReport(Report[ActiveBuild]):
    """For targets: all is said, and kept."""

    tells_kernels = True

    def tell_hit(self, index: int, result: Result) -> None:
        build = self.build
        action = build.plan.actions[index]
        build.counts.hits += 1
        saved_s = build.outputs.spared_s(action.outputs, result)
        build.counts.saved_s += saved_s
        stdout, stderr = (build.store.get(d) or b"" if d else b"" for d in (result.stdout, result.stderr))
        build.log.append(
            m.CacheHit(
                job_id=HIT,
                action=action.name,
                reason=build.why_hit(index),
                saved_s=saved_s,
                kernels=result.kernels,
            )
        )
        if action.reports:
            stderr = without_report(stderr)
        # Warnings are part of a result.
        build.note_said(index, bool(stdout or stderr))
        for stream, text in (("stdout", stdout), ("stderr", stderr)):
            for line in text.decode(errors="replace").splitlines():
                build.log.append(m.LogLine(job_id=HIT, stream=stream, text=line))

    def tell_failed(self, job: m.JobId, index: int, failure: Failure) -> None:
        tell_failed(self.build, job, index, failure)

    def tell_progress(self, now: Moment) -> None:
        counts = self.build.counts
        self.build.log.append(
            m.Progress(
                done=counts.done,
                total=len(self.build.plan.actions),
                hits=counts.hits,
                misses=counts.misses,
                running=now.running,
                eta_s=now.eta_s,
                to_run=now.to_run,
                waiting_for=now.waiting_for,
                memory_bytes=now.memory_bytes,
                budget_bytes=now.budget_bytes,
            )
        )

    def tell_done(self, outcome: m.Outcome, *, message: str = "") -> None:
        if self.build.request.mode in (m.Mode.BUILD, m.Mode.WARM):
            count(self.build)
        self.build.log.append(done_event(self.build, outcome, message=message))

    def keep_log(self) -> None:
        # Without its log the build is as good as with it.
        build = self.build
        if build.log.done is None or build.store.read_only:
            return
        try:
            self._save(build.log.done)
        except StoreError as error:
            _log.warning("the log of build %s was not kept: %s", build.request.build_id, error)

    def _save(self, done: m.Done) -> None:
        build = self.build
        events = msgspec.msgpack.encode(build.log.after(0, 1 << 30))
        build.store.save_build(
            Build(
                build_id=build.request.build_id,
                request_id=build.request.request_id,
                project=build.project,
                targets=build.plan.targets,
                started_ns=build.started_ns,
                finished_ns=time.time_ns(),
                outcome=done.outcome,
                summary=BuildSummary.of(done),
            ),
            events,
        )


def tell_failed(build: ActiveBuild, job: m.JobId, index: int, failure: Failure) -> None:
    """Count and say that an action failed."""
    build.counts.failures += 1
    action, exit = build.plan.actions[index], failure.exit
    build.log.append(
        m.Failed(
            job_id=job,
            action=action.name,
            kind=failure.kind,
            message=failure.message,
            exit_status=exit.status if exit else 0,
            signal=exit.signal if exit else 0,
            command=build.command(action),
            next_step=failure.next_step,
            diagnostics=diagnose((exit.stderr + exit.stdout).decode(errors="replace")) if exit else (),
            timing=exit.timing if exit else m.Timing(),
        )
    )


def count(build: ActiveBuild) -> None:
    """Add a build's counts to the store's counters, and its hits and misses by kind."""
    counts, tally = build.counts, build.store.tally
    build.store.count(Counter.HITS, counts.hits)
    build.store.count(Counter.MISSES, counts.misses)
    build.store.count(Counter.SAVED_MS, int(counts.saved_s * 1000))
    for kind, number in ((_STOOD, counts.stood), (_LOOKED_UP, counts.hits - counts.stood)):
        if number:
            tally.count_reasoned(Reasoned.HIT, kind, number)
    for index in build.started if counts.misses else ():
        tally.count_reasoned(Reasoned.MISSED, kind_of(build.misses[index].reasons).value)


def done_event(
    build: ActiveBuild, outcome: m.Outcome, *, message: str = "", code: str = "", exit_status: int = 0, signal: int = 0
) -> m.Done:
    """The last event of a build, with its counts."""
    counts = build.counts
    misses = counts.misses
    if outcome is m.Outcome.CANCELLED:
        misses = min(misses, counts.done - counts.hits + counts.failures)  # the others ran, and were ended
    return m.Done(
        outcome=outcome,
        message=message,
        code=code,
        hits=counts.hits,
        misses=misses,
        failures=counts.failures,
        wall_s=time.monotonic() - build.begun_s,
        saved_s=counts.saved_s,
        exit_status=exit_status,
        signal=signal,
    )
