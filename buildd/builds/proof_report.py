"""The report of a proof whose plan has traces: they run, everything else is only looked up.

Knows the protocol's events; does not decide what runs (`look_ups`). Proofs without traces are answered by `prove`.
"""

from __future__ import annotations

from buildd.builds.active_build import ActiveBuild
from buildd.builds.products import Failure
from buildd.builds.prove import order, waits_for
from buildd.builds.target_report import TargetReport, done_event
from buildd.store.store import Result
from protocol import messages as m


def has_traces(build: ActiveBuild) -> bool:
    """Whether something of a build with a plan has to run before the rest can be looked up."""
    return any(action.traces for action in build.plan.actions)


class ProofReport(TargetReport):
    """For PROVE: followers learn what would run, and of traces that fail; nothing is kept."""

    def __init__(self) -> None:
        self.found: list[m.Digest] | None = None
        """If somebody wants them: gets the keys of the results that are there."""
        self._missed: dict[int, tuple[str, ...]] = {}
        """The actions that would run, with their reasons."""
        self._failed: set[int] = set()

    def tell_hit(self, index: int, result: Result) -> None:
        self.build.counts.hits += 1
        if self.found is not None:
            self.found.append(result.key)

    def tell_would_run(self, index: int) -> None:
        """An action's result was not found."""
        self._miss(index, self.build.misses[index].reasons)

    def tell_failed(self, job: m.JobId, index: int, failure: Failure) -> None:
        self._failed.add(index)
        super().tell_failed(job, index, failure)

    def tell_done(self, outcome: m.Outcome, *, message: str = "") -> None:
        build, actions = self.build, self.build.plan.actions
        if outcome is not m.Outcome.CANCELLED:
            self._tell_blocked()
        build.counts.misses = len(self._missed)
        if self._missed and outcome is m.Outcome.FAILED:
            message = f"{len(self._missed)} of {len(actions)} actions would run"
        build.log.append(done_event(build, outcome, message=message))

    def keep_log(self) -> None:
        return None  # the log is of builds

    def _miss(self, index: int, reasons: tuple[str, ...]) -> None:
        self._missed[index] = reasons
        self.build.log.append(m.Explained(action=self.build.plan.actions[index].name, would_run=True, reasons=reasons))

    def _tell_blocked(self) -> None:
        """Name the actions that could not be looked up, since an input of theirs is not known."""
        plan = self.build.plan
        maker = {output.path: index for index, action in enumerate(plan.actions) for output in action.outputs}
        for index in order(plan):
            if index in self._missed:
                continue
            for above in (maker[path] for path in plan.actions[index].inputs if path in maker):
                if above in self._missed or above in self._failed:
                    name = plan.actions[above].name
                    failed = f"an input is made by {name}, which failed"
                    self._miss(index, (failed if above in self._failed else waits_for(name),))
                    break
