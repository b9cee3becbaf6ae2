"""One request while it is being built: its plan, its products, its counts, and the actions that run or hit.

The constructor takes three strategies: how stored results are found (`StoredResults`), where files go (`Outputs`), and
what followers are told (`Report`). Does not decide what runs when (`state`) and starts no process (`execution`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from functools import cached_property

import msgspec

from buildd.artifacts import indentation
from buildd.artifacts.kernel_reports import without_report
from buildd.builds.command import shown
from buildd.builds.event_log import RequestLog
from buildd.builds.inputs import Inputs
from buildd.builds.noisy_compiles import is_noisy
from buildd.builds.outputs import Outputs
from buildd.builds.products import INTERNAL_FAULT, Counts, Product, Ran
from buildd.builds.report import Report
from buildd.errors import BuilddError
from buildd.files.stamp_set import Mark
from buildd.keys.lookup import Found, Missing
from buildd.processes.launch import Exit
from buildd.processes.tool_host import ToolHost
from buildd.state.events import LookUp, NodeSpec
from buildd.store import job_history
from buildd.store.notebook import Notebook
from buildd.store.store import Result
from buildd.tier.store_tier import StoreTier
from codegen.compilers.temporary_roots import Roots
from codegen.plan import Action, Output, Plan, Resources, Steps, Tool
from codegen.reach import read_regular
from codegen.variables.settings import Settings, settings_of
from protocol import messages as m
from protocol.problem import message_and_step

_log = logging.getLogger(__name__)

_BUILDING = (m.Mode.BUILD, m.Mode.WARM, m.Mode.COMPILE)
Looked = tuple[int, Found | None, tuple[str, str] | None]
"""An action's index, its result if it was found, and the problem (message, next step) if the look-up failed."""


class ActiveBuild:
    """State of one request. Methods that touch files are called from worker threads, one action at a time each.

    Args:
        results: how stored results are found and taken.
        outputs: where files go.
        report: what is said.
        has_caller: the tool runs in place of another process, which may have other files under the same names.
        tier: where results of other machines are, if the user has named one.
    """

    def __init__(
        self,
        request: m.Request,
        log: RequestLog,
        notebook: Notebook,
        inputs: Inputs,
        *,
        results: StoredResults,
        outputs: Outputs[ActiveBuild],
        report: Report[ActiveBuild],
        has_caller: bool = False,
        tier: StoreTier | None = None,
    ) -> None:
        self.request = request
        self.tier = tier
        self.shared: dict[int, str] = {}
        """Actions whose results came from the tier -> from where, in words."""
        self.log = log
        self.notebook = notebook
        self.inputs = inputs
        self.store = inputs.store
        self.files = inputs.files
        self.results = results
        self.outputs = outputs
        self.report = report
        self.has_caller = has_caller
        self.started_ns = inputs.files.now_ns()
        self.begun_s = time.monotonic()
        self.settled_s = self.begun_s
        """Since when no file that the build reads is known to have been written; no later than `begun_s`."""
        self.counts = Counts()
        self.plan = Plan(targets=(), actions=())
        self.tools: dict[str, Tool] = {}
        self.steps: dict[str, Steps] = {}
        self.resources: list[Resources] = []
        """Learned or guessed, one an action of the plan."""
        self.urgent: frozenset[int] = frozenset()
        """Actions that are looked up before the others: they read what was just saved."""
        self.products: dict[str, Product] = {}
        self.misses: dict[int, Missing] = {}
        self.runs_whole: set[int] = set()
        """Actions that run as one process though they have steps: their steps would print other messages than the
        compiler."""
        self.host: ToolHost | None = None
        """The client, if its tools have to run below it."""
        self.said_something = False
        """A tool wrote something that a hit has to say again, or a result could not be stored."""
        self.noisy: set[int] = set()
        """The actions whose tools did."""
        self.carried: frozenset[int] = frozenset()
        """Actions that have not changed since the client last saw them: they are hits without events."""
        self.mark: Mark | None = None
        """A moment before any file was looked at; only for targets under a watch."""
        self.started: set[int] = set()
        """Actions that ran for this request; some run more than once (their inputs changed, memory ran out)."""
        self.delivered: dict[int, int] = {}
        """Action that ran -> how many files were in their places before its own."""
        self.keys: dict[str, m.Digest] = {}
        """Keys of the results that actions were found to have, or got, by the actions' names."""
        self._ahead: list[Looked] = []
        results.build = outputs.build = report.build = self

    @property
    def project(self) -> str:
        return self.inputs.snapshot.project

    @property
    def is_steps(self) -> bool:
        """Whether its actions are the steps of one job of other requests; see `step_request`."""
        return self.report.is_of_steps

    @property
    def is_proof(self) -> bool:
        """Whether only traces may run (`Action.traces`)."""
        return self.request.mode is m.Mode.PROVE

    @cached_property
    def settings(self) -> Settings:
        """The request's variables."""
        return settings_of(self.request)

    def is_on(self, switch: str) -> bool:
        """Whether the request's variables turn a switch on."""
        return self.settings.is_on(switch)

    def run_again(self) -> None:
        """Run every action, and overwrite its entry."""
        self.request = msgspec.structs.replace(self.request, recache=True)
        self.inputs.recache = True
        self.inputs.renew()

    def adopt(self, plan: Plan, resources: list[Resources]) -> None:
        """Take the plan on."""
        self.plan = plan
        self.tools = {tool.name: tool for tool in plan.tools}
        self.steps = {steps.name: steps for steps in plan.steps}
        self.resources = resources

    def expected(self, actions: Iterable[Action]) -> list[Resources]:
        """The resources that actions are expected to need, learned or guessed. In a worker thread."""
        lookup = self.inputs.lookup
        identities = [(lookup.name_key(action), action.kind, action.resources) for action in actions]
        return [estimate.resources for estimate in job_history.estimates(self.store, identities)]

    def nodes_of(self, paths: set[str]) -> frozenset[int]:
        """The actions that have one of these files (absolute) as a declared input."""
        spelled = {name for path in paths for name in (path, path.removeprefix(f"{self.project}/"))}
        return frozenset(i for i, a in enumerate(self.plan.actions) if paths and not spelled.isdisjoint(a.inputs))

    def graph(self) -> tuple[NodeSpec, ...]:
        """The plan as the state machine takes it: an action depends on those that make its inputs."""
        makers = self.plan.makers()
        return tuple(NodeSpec(depends, self.resources[i].wall_s) for i, depends in enumerate(makers))

    def tool(self, action: Action) -> Tool:
        return self.tools[action.tool]

    def command(self, action: Action) -> str:
        """One line that repeats an action by hand."""
        return shown(action, self.tool(action), project=self.project)

    # ---------------------------------------------------------------- files (worker threads)

    def look(self, index: int, *, fresh: bool) -> Found | Missing:
        """Look an action up and, if its result is there, put its outputs in place.

        Raises:
            StoreFull: an output's disk is full.
            OSError: an output's folder cannot be written.
        """
        if fresh:
            self.inputs.renew_after(self.products)
        return self.results.look(index)

    def look_ahead(self) -> None:
        """Look the only action up before the state machine asks for it, in the thread that has made the plan."""
        self._ahead = self.look_all((LookUp(self.request.request_id, 0, fresh=False),))

    @property
    def found_ahead(self) -> Found | None:
        """The result of the only action, if `look_ahead` found it."""
        return self._ahead[0][1] if self._ahead and len(self.plan.actions) == 1 else None

    def looked_ahead(self, batch: Sequence[LookUp]) -> list[Looked]:
        """Return what `look_ahead` found, once; empty if nothing was looked up, or the inputs have changed since."""
        found, self._ahead = self._ahead, []
        return [] if any(look.fresh for look in batch) else found

    def look_all(self, batch: Iterable[LookUp]) -> list[Looked]:
        """Look several actions up."""
        answers: list[Looked] = []
        indices = (instruction.node for instruction in batch)
        self.inputs.preload({p for i in indices for p in self.plan.actions[i].inputs if p not in self.products})
        for instruction in batch:
            try:
                answer = self.look(instruction.node, fresh=instruction.fresh)
            except (OSError, BuilddError) as error:
                answers.append((instruction.node, None, message_and_step(error)))
            except Exception:  # the edge: a fault of buildd's must not leave the client waiting
                _log.exception("a look-up of %s failed inside", self.request.request_id)
                answers.append((instruction.node, None, INTERNAL_FAULT))
            else:
                answers.append((instruction.node, answer if isinstance(answer, Found) else None, None))
        return answers

    def made(self, path: str, product: Product) -> None:
        """Note a file that an action has made, or that was found."""
        self.products[path] = product
        self.inputs.snapshot.produced(path, product.digest)

    def hand_over(self, index: int, ran: Ran) -> None:
        """Take what a job has made, under this request's own names: two targets may ask for the same bytes."""
        action, exit = self.plan.actions[index], ran.exit
        said = exit.stdout or (without_report(exit.stderr) if action.reports else exit.stderr)
        if ran.read is not None:
            self.inputs.was_read[action.name] = ran.read
        self.note_said(index, bool(ran.note or said))
        for output, made in zip(action.outputs, ran.made, strict=True):
            self.outputs.place_made(output.path, made.file, made.product)
            self.made(output.path, made.product)
        self.outputs.placed(action, ran)
        self.report.handed_over(index, ran)

    def why_hit(self, index: int) -> str:
        """Why an action's result was found, in words."""
        return f"same inputs, from {self.shared[index]}" if index in self.shared else "same inputs"

    def note_said(self, index: int, said: bool) -> None:
        if said:
            self.said_something = True
            self.noisy.add(index)

    def published(self, result: Result, held: Roots) -> None:
        """Note that a job of this request is stored.

        Args:
            held: roots whose folder's path can stand in the result.
        """
        self.keys[result.action] = result.key
        self.outputs.published(result, held)

    def artifacts(self) -> list[m.Artifact]:
        """The named outputs that were made."""
        return [
            m.Artifact(
                target=artifact.target,
                name=artifact.name,
                path=artifact.path,
                digest=product.digest,
                size_bytes=product.size_bytes,
            )
            for artifact in self.plan.artifacts
            if (product := self.products.get(artifact.path)) is not None
        ]


class StoredResults:
    """How a build finds stored results of its actions, and takes them."""

    build: ActiveBuild
    """Set by the build that these are given to."""

    def look(self, index: int) -> Found | Missing:
        """As `ActiveBuild.look`, with the facts about files that this request has seen so far."""
        build = self.build
        lookup, action = build.inputs.lookup, build.plan.actions[index]
        answer = lookup.look(action, build.tool(action), explain=not build.is_steps)
        if isinstance(answer, Found) and not self.take(action, answer.result):
            # A blob of it is gone or damaged: it was dropped from the store, so this is a miss like any other.
            answer = lookup.missing(action, build.tool(action), "a stored output was missing or damaged")
        if isinstance(answer, Missing):
            build.misses[index] = answer
            steps = build.steps.get(action.steps)
            if steps and steps.silent and self._speaks(action):
                build.runs_whole.add(index)
        elif not build.is_steps and build.request.mode in _BUILDING:
            lookup.note_hit(action, build.tool(action), answer.first, build.notebook)
        return answer

    def _speaks(self, action: Action) -> bool:
        """Whether the tool may print something of the source that its steps would not print."""
        build, lookup = self.build, self.build.inputs.lookup
        if is_noisy(build.store, build.notebook, lookup.name_key(action)):
            return True
        try:
            source = lookup.snapshot.absolute(action.inputs[0])
            return indentation.asks(action.argv) and indentation.is_mixed(read_regular(source))
        except OSError:
            return False

    def take(self, action: Action, result: Result) -> bool:
        """Use a stored result: its outputs become products, and files where outputs are wanted."""
        self.build.keys[action.name] = result.key
        return self.put(action.outputs, result)

    def put(self, outputs: Sequence[Output], result: Result) -> bool:
        """As `take`, for outputs of any action; False where one of them is not in the store."""
        build = self.build
        build.store.touch((result.key,))
        stored = {output.name: output for output in result.outputs}
        if any(output.name not in stored for output in outputs):
            return False
        for output in outputs:
            entry = stored[output.name]
            if not build.outputs.place(output.path, entry.digest, executable=output.executable):
                return False
            build.made(output.path, Product(entry.digest, entry.size_bytes, output.executable))
        return True

    def asked_as(self, index: int) -> tuple[Action, Missing]:
        """The action as most of its runs are filed, and the look-up that missed it. The shared tier is asked for this
        one."""
        return self.build.plan.actions[index], self.build.misses[index]

    def filed_as(self, index: int, exit: Exit) -> tuple[Action, Missing]:
        """The action that a run is filed as, and the look-up that missed it."""
        return self.build.plan.actions[index], self.build.misses[index]
