"""One request while it is being built: its plan, its view of the files, its counts and its log.

Knows what is said to the followers, and how results reach the project's folder. Does not decide what runs when
(`state`) and starts no process (`execution`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from buildd.buildlog import Build, BuildSummary
from buildd.command import shown
from buildd.diagnostics import diagnose
from buildd.errors import BuilddError, StoreError, told
from buildd.eventlog import RequestLog
from buildd.files import Files, Snapshot
from buildd.kernels import without_report
from buildd.launch import Exit
from buildd.lookup import Found, Lookup, Missing
from buildd.notebook import Notebook
from buildd.outspoken import is_outspoken
from buildd.placing import copy_file, replace_file, usable
from buildd.products import Failure, Product, Ran
from buildd.shadow import Memory
from buildd.stamps import Mark
from buildd.steps import LookUp, NodeSpec
from buildd.store import Counter, Result, Store
from codegen.environment import Settings
from codegen.moved import Roots
from codegen.plan import Action, Output, Plan, Resources, Steps, Tool
from protocol import messages as m

_log = logging.getLogger(__name__)
OUR_FAULT = ("the daemon failed; its log has the story", "build again; buildd doctor --bundle makes a report of it")
HIT = m.JobId(0)
"""Job id in events about actions that did not run."""
DELIVER_MODES = frozenset({m.Mode.BUILD, m.Mode.COMPILE})


@dataclass(slots=True)
class Counts:
    """What the summary says. `saved_s` is the time that hits' jobs took when they ran."""

    done: int = 0
    hits: int = 0
    misses: int = 0
    failures: int = 0
    saved_s: float = 0.0


@dataclass(slots=True)
class Building:
    """State of one request. Methods that touch files are called from worker threads, one action at a time each."""

    request: m.Request
    log: RequestLog
    store: Store
    files: Files
    notebook: Notebook
    surveys: Memory = field(default_factory=Memory)
    started_ns: int = field(default_factory=time.time_ns)
    begun_s: float = field(default_factory=time.monotonic)
    settled_s: float = 0.0
    """Since when nothing is known to have been written that it reads; no later than `begun_s`."""
    counts: Counts = field(default_factory=Counts)
    plan: Plan = field(default_factory=lambda: Plan(targets=(), actions=()))
    tools: dict[str, Tool] = field(default_factory=dict)
    steps: dict[str, Steps] = field(default_factory=dict)
    resources: list[Resources] = field(default_factory=list)
    """Learned or guessed, one an action of the plan."""
    urgent: frozenset[int] = frozenset()
    """Actions that are looked up before the others: of what somebody has just saved."""
    products: dict[str, Product] = field(default_factory=dict)
    misses: dict[int, Missing] = field(default_factory=dict)
    runs_whole: set[int] = field(default_factory=set)
    """Actions with steps that run as one process: their steps would say other things than the compiler."""
    snapshot: Snapshot = field(init=False)
    lookup: Lookup = field(init=False)
    said_something: bool = False
    """A tool wrote something that a hit has to say again, or a result could not be stored."""
    outspoken: set[int] = field(default_factory=set)
    """The actions of which that is so."""
    carried: frozenset[int] = frozenset()
    """Actions that stand as whoever asked has seen them last: they are hits, and nothing is told of them."""
    was_read: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """What actions read, by name, where the look-ups do not know it: nothing was stored, another request's job was
    joined, or the files were looked at afresh since."""
    searched: set[str] = field(default_factory=set)
    """Folders that look-ups stood on before the files were looked at afresh."""
    mark: Mark | None = None
    """From before anything was looked at; only where somebody watches."""
    costs_s: dict[int, float] = field(default_factory=dict)
    """What each action's job took when it ran, as far as it is known here."""
    started: set[int] = field(default_factory=set)
    """Actions that ran for this request; some run more than once (their inputs changed, memory ran out)."""
    keys: dict[str, m.Digest] = field(default_factory=dict)
    """Of the results that actions were found to have, or got, by the actions' names."""
    scratch: str = ""
    """Private folder of made files that are not put into the project; made when first needed."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.settled_s = self.settled_s or self.begun_s
        self.renew()

    def renew(self) -> None:
        """Look at the file system afresh."""
        self.snapshot = Snapshot(self.files, os.path.realpath(self.request.project))
        self.lookup = Lookup(self.store, self.snapshot, recache=self.request.recache, surveys=self.surveys)

    @property
    def project(self) -> str:
        return self.snapshot.project

    def is_on(self, switch: str) -> bool:
        """What the request's environment says of a variable."""
        return Settings(request_env=self.request.environment, strict=False).is_on(switch)

    @property
    def inner(self) -> bool:
        """It carries out one job of other requests; see `inner`."""
        return False

    @property
    def tells_kernels(self) -> bool:
        """Somebody may want to know what the kernels need."""
        return True

    @property
    def writes_outputs(self) -> bool:
        return self.request.mode in DELIVER_MODES

    def run_again(self) -> None:
        """Have every action run, and its entry overwritten."""
        self.request = msgspec.structs.replace(self.request, recache=True)
        self.renew()

    def adopt(self, plan: Plan, resources: list[Resources]) -> None:
        """Take the plan on."""
        self.plan = plan
        self.tools = {tool.name: tool for tool in plan.tools}
        self.steps = {steps.name: steps for steps in plan.steps}
        self.resources = resources

    def nodes_of(self, paths: set[str]) -> frozenset[int]:
        """The actions of which one of these (absolute) is a declared input."""
        spelled = {name for path in paths for name in (path, path.removeprefix(f"{self.project}/"))}
        return frozenset(i for i, a in enumerate(self.plan.actions) if paths and not spelled.isdisjoint(a.inputs))

    def graph(self) -> tuple[NodeSpec, ...]:
        """The plan as the state machine takes it: an action stands on those that make its inputs."""
        makers = self.plan.makers()
        return tuple(NodeSpec(depends, self.resources[i].wall_s) for i, depends in enumerate(makers))

    def tool(self, action: Action) -> Tool:
        return self.tools[action.tool]

    def command(self, action: Action) -> str:
        """One line that repeats an action by hand."""
        return shown(action, self.tool(action), project=self.project)

    # ---------------------------------------------------------------- files (worker threads)

    def write_generated(self) -> None:
        """Write the plan's generated files, where they differ. Raises OSError."""
        for generated in self.plan.files:
            path = Path(self.project, generated.path)
            try:
                if path.read_bytes() == generated.content:
                    continue
            except OSError:
                pass
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, generated.content)
        if self.writes_outputs:
            # Before anything runs: a folder that changes while a tool searches it is one that cannot be trusted.
            outputs = [output.path for action in self.plan.actions for output in action.outputs]
            for folder in dict.fromkeys(os.path.dirname(path) for path in outputs):
                with contextlib.suppress(OSError):
                    os.makedirs(f"{self.project}/{folder}", exist_ok=True)
        for generated in self.plan.files:
            # Seen now, so that a run that reads it at once does not take its young stamp for a change.
            self.snapshot.fact(generated.path)

    def preload(self, indices: Iterable[int]) -> None:
        """Fetch what the store remembers of the actions' inputs in one query instead of one a file."""
        inputs = {path for index in indices for path in self.plan.actions[index].inputs if path not in self.products}
        stamps = (self.files.stamp(self.snapshot.absolute(path)) for path in inputs)
        self.files.preload(stamp for stamp in stamps if stamp is not None)

    def look(self, index: int, *, fresh: bool) -> Found | Missing:
        """Look an action up and, if it is there, put its outputs in place.

        Raises:
            StoreFull: an output's disk is full.
            OSError: an output's folder cannot be written.
        """
        action = self.plan.actions[index]
        if fresh:
            self.forget_inputs(action)
        answer = self.lookup.look(action, self.tool(action), explain=not self.inner)
        if isinstance(answer, Found) and not self.take(action, answer.result):
            # A blob of it is gone or damaged: it was dropped from the store, so this is a miss like any other.
            answer = self.lookup.missing(action, self.tool(action), "a stored output was missing or damaged")
        if isinstance(answer, Missing):
            self.misses[index] = answer
            steps = self.steps.get(action.steps)
            if steps and steps.silent and is_outspoken(self.store, self.notebook, self.lookup.name_key(action)):
                self.runs_whole.add(index)
        return answer

    def look_all(self, batch: Iterable[LookUp]) -> list[tuple[int, Found | None, tuple[str, str] | None]]:
        """Look several up: which, what was found, and the problem (what, next step) where one could not be."""
        answers: list[tuple[int, Found | None, tuple[str, str] | None]] = []
        self.preload(instruction.node for instruction in batch)
        for instruction in batch:
            try:
                answer = self.look(instruction.node, fresh=instruction.fresh)
            except (OSError, BuilddError) as error:
                answers.append((instruction.node, None, told(error)))
            except Exception:  # the edge: a fault of ours must not leave the client waiting
                _log.exception("a look-up of %s failed inside", self.request.request_id)
                answers.append((instruction.node, None, OUR_FAULT))
            else:
                answers.append((instruction.node, answer if isinstance(answer, Found) else None, None))
        return answers

    def forget_inputs(self, action: Action) -> None:
        """Everything that the snapshot knows may be old: a file changed while an action ran."""
        made = dict(self.products)
        self.was_read |= self.lookup.discovered
        self.searched.update(self.lookup.folders)
        self.renew()
        for path, product in made.items():
            self.snapshot.produced(path, product.digest)

    def take(self, action: Action, result: Result) -> bool:
        """Use a stored result: its outputs become products, and files where outputs are wanted."""
        self.keys[action.name] = result.key
        return self.put(action.outputs, result)

    def put(self, outputs: Sequence[Output], result: Result) -> bool:
        """As `take`, of outputs of any action; False where one of them is not in the store."""
        self.store.touch((result.key,))
        stored = {output.name: output for output in result.outputs}
        if any(output.name not in stored for output in outputs):
            return False
        for output in outputs:
            entry = stored[output.name]
            if not self._place(output.path, entry.digest, executable=output.executable):
                return False
            self.products[output.path] = Product(entry.digest, entry.size_bytes, output.executable)
            self.snapshot.produced(output.path, entry.digest)
        return True

    def _place(self, path: str, digest: m.Digest, *, executable: bool) -> bool:
        if not self.writes_outputs:
            return True  # a result is only found while its blobs are in the index
        destination = Path(self.project, path)
        fact = self.files.fact(str(destination))
        if fact is not None and fact.digest == digest and usable(destination, executable):
            return True
        return self.store.restore(digest, destination, executable=executable)

    def place_made(self, path: str, made: Path, product: Product) -> None:
        """Put a file that was just made where it belongs."""
        if self.writes_outputs:
            destination = Path(self.project, path)
            fact = self.files.fact(str(destination))
            if fact is None or fact.digest != product.digest or not usable(destination, product.executable):
                destination.parent.mkdir(parents=True, exist_ok=True)
                copy_file(made, destination, executable=product.executable)
        else:
            copy_file(made, Path(self.where(path)), executable=product.executable)
        self.products[path] = product
        self.snapshot.produced(path, product.digest)

    def where(self, path: str) -> str:
        """Where a made file can be read by a tool: its place in the project, or a scratch copy when none is written."""
        if self.writes_outputs:
            return f"{self.project}/{path}" if not path.startswith("/") else path
        with self._lock:
            if not self.scratch:
                self.scratch = tempfile.mkdtemp(prefix="warm-", dir=self.store.scratch_folder())
        place = Path(self.scratch, path)
        product = self.products.get(path)
        if product is not None and not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            self.store.restore(product.digest, place, executable=product.executable)
        place.parent.mkdir(parents=True, exist_ok=True)
        return str(place)

    def finish_outputs(self, action: Action, private: str, read: tuple[str, ...]) -> Mapping[str, bytes]:
        """Make outputs that no tool makes, once a job has ended well and said what it read: in its folder, or returned
        by name where no other job reads them as files."""
        return {}

    @property
    def roots(self) -> Roots:
        """Folders that have another name each time."""
        return ()

    def named_by(self, action: Action, private: str) -> Collection[str]:
        """Roots of which files in a job's folder are found to hold the path."""
        return ()

    def filed_as(self, index: int, exit: Exit) -> tuple[Action, Missing]:
        """What a run is filed as: an action, and the look-up that missed it."""
        return self.plan.actions[index], self.misses[index]

    def hand_over(self, index: int, ran: Ran) -> None:
        """Take what a job has made, under this request's own names: two targets may ask for the same bytes."""
        action, exit = self.plan.actions[index], ran.exit
        said = exit.stdout or (without_report(exit.stderr) if action.reports else exit.stderr)
        self.costs_s[index] = exit.timing.wall_s
        if ran.read is not None:
            self.was_read[action.name] = ran.read
        self._note_said(index, bool(ran.note or said))
        for output, made in zip(action.outputs, ran.made, strict=True):
            self.place_made(output.path, made.file, made.product)

    def _note_said(self, index: int, said: bool) -> None:
        if said:
            self.said_something = True
            self.outspoken.add(index)

    def is_settled(self) -> bool:
        """Whether jobs that begin with a short step need not wait until all files are old enough to tell a change."""
        return False

    def published(self, result: Result, held: Roots) -> None:
        """A job of this request is stored.

        Args:
            held: roots whose folder's path can stand in the result.
        """
        self.keys[result.action] = result.key

    def close(self) -> None:
        """Remove what was only needed while it was built."""
        if self.scratch:
            shutil.rmtree(self.scratch, ignore_errors=True)

    def keep_log(self) -> None:
        """Keep the events of a finished request for `buildd log`; without them the build is as good as with them."""
        if self.log.done is None or self.store.read_only:
            return
        try:
            self._save_log(self.log.done)
        except StoreError as error:
            _log.warning("the log of build %s was not kept: %s", self.request.build_id, error)

    def _save_log(self, done: m.Done) -> None:
        request = self.request
        events = msgspec.msgpack.encode(self.log.after(0, 1 << 30))
        self.store.save_build(
            Build(
                build_id=request.build_id,
                request_id=request.request_id,
                project=self.project,
                targets=self.plan.targets,
                started_ns=self.started_ns,
                finished_ns=time.time_ns(),
                outcome=done.outcome,
                summary=BuildSummary.of(done),
            ),
            events,
        )

    # ---------------------------------------------------------------- what followers see

    def tell_hit(self, index: int, result: Result) -> None:
        action = self.plan.actions[index]
        self.counts.hits += 1
        self.counts.saved_s += result.timing.wall_s
        self.costs_s[index] = result.timing.wall_s
        stdout, stderr = (self.store.get(d) or b"" if d else b"" for d in (result.stdout, result.stderr))
        self.log.append(
            m.CacheHit(
                job_id=HIT,
                action=action.name,
                reason="same inputs",
                saved_s=result.timing.wall_s,
                kernels=result.kernels,
            )
        )
        if action.reports:
            stderr = without_report(stderr)
        # Warnings are part of a result.
        self._note_said(index, bool(stdout or stderr))
        for stream, text in (("stdout", stdout), ("stderr", stderr)):
            for line in text.decode(errors="replace").splitlines():
                self.log.append(m.LogLine(job_id=HIT, stream=stream, text=line))

    def tell_failed(self, job: m.JobId, index: int, failure: Failure) -> None:
        """An action failed, or its result could not be put in place."""
        self.counts.failures += 1
        action, exit = self.plan.actions[index], failure.exit
        self.log.append(
            m.Failed(
                job_id=job,
                action=action.name,
                kind=failure.kind,
                message=failure.message,
                exit_status=exit.status if exit else 0,
                signal=exit.signal if exit else 0,
                command=self.command(action),
                next_step=failure.next_step,
                diagnostics=diagnose((exit.stderr + exit.stdout).decode(errors="replace")) if exit else (),
                timing=exit.timing if exit else m.Timing(),
            )
        )

    def tell_end(self, outcome: m.Outcome) -> None:
        """All actions have ended: say what a follower waits for before anything is written down."""

    def tell_progress(self, running: int, waiting_for: str, eta_s: float) -> None:
        counts = self.counts
        self.log.append(
            m.Progress(
                done=counts.done,
                total=len(self.plan.actions),
                hits=counts.hits,
                misses=counts.misses,
                running=running,
                eta_s=eta_s,
                waiting_for=waiting_for,
            )
        )

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

    def tell_done(self, outcome: m.Outcome, **fields: Any) -> None:
        counts = self.counts
        if self.request.mode in (m.Mode.BUILD, m.Mode.WARM, m.Mode.COMPILE):
            self.store.count(Counter.HITS, counts.hits)
            self.store.count(Counter.MISSES, counts.misses)
            self.store.count(Counter.SAVED_MS, int(counts.saved_s * 1000))
        self.log.append(
            m.Done(
                outcome=outcome,
                hits=counts.hits,
                misses=counts.misses,
                failures=counts.failures,
                wall_s=time.monotonic() - self.begun_s,
                saved_s=counts.saved_s,
                **fields,
            )
        )
