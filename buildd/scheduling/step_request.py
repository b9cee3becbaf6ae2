"""The steps of one job while they are built: a request in the scheduler, with their files, stored results and report.

`codegen.steps.nvcc_steps` and `hipcc_steps` make the list of steps; `step_jobs` carries the request out.
"""

from __future__ import annotations

import msgspec

from buildd.builds.active_build import ActiveBuild
from buildd.scheduling.step_outputs import StepOutputs
from buildd.scheduling.step_report import SilentLog, StepReport
from buildd.scheduling.step_results import StepResults
from codegen.plan import Plan, Steps
from protocol import messages as m


class StepRequest:
    """The steps of one job while they are built. They see the files as the job's request does; what they make stays in
    one folder.

    Args:
        outer: the build whose action they carry out.
        name: of the request.
        steps: their template.
        folder: the job's private folder.
        remade: files of which only the digests are kept are made again.
        exact: no text is taken for another one with other line numbers.
    """

    def __init__(
        self, outer: ActiveBuild, name: m.RequestId, steps: Steps, folder: str, *, remade: bool, exact: bool
    ) -> None:
        self.silent = steps.silent
        self.report = StepReport(steps.said)
        self.outputs = StepOutputs(outer, folder, silent=steps.silent)
        self.results = StepResults(self.outputs, self.report, exact=exact, remade=remade)
        self.build = ActiveBuild(
            msgspec.structs.replace(outer.request, request_id=name),
            SilentLog(outer.request.request_id),
            outer.notebook,
            outer.inputs.fork(),
            results=self.results,
            outputs=self.outputs,
            report=self.report,
            has_caller=outer.has_caller,
            tier=outer.tier,
        )
        self.build.tools = outer.tools
        self.build.host = outer.host
        self.build.started_ns = outer.started_ns
        self.build.begun_s, self.build.settled_s = outer.begun_s, outer.settled_s

    def adopt(self, plan: Plan) -> None:
        """Take the steps on. In a worker thread; raises OSError."""
        build = self.build
        build.plan = plan
        build.resources = build.expected(plan.actions)
        self.outputs.prepare()

    @property
    def is_in_vain(self) -> bool:
        """Whether a step said, or made, something that the compiler itself says in other words. From any thread."""
        if not self.silent:
            return False
        return self.outputs.differs or any(any(said) for said in list(self.report.said.values()))

    @property
    def broke_silence(self) -> bool:
        """Whether the compiler has to run whole, now that the steps have ended."""
        return self.is_in_vain or (self.silent and bool(self.report.failures))
