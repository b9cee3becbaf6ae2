"""One compile of a foreign build while it is carried out: how it differs from a target's build.

Its outputs go where the command says, with the caller's umask and a fresh time; the tool's output goes back byte for
byte; the depfile lists the files that the tool was seen to read. Knows no queue and no process (`scheduler`).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path

from blake3 import blake3

from buildd.artifacts import hip_symbol, offload_bundle
from buildd.builds.active_build import ActiveBuild
from buildd.builds.build_figures import Figures
from buildd.builds.colours import may_ask
from buildd.builds.command import output_path
from buildd.builds.outputs import Outputs
from buildd.builds.products import HIT, Failure, Moment, Product, Ran
from buildd.builds.report import Report, pieces
from buildd.builds.target_report import count, done_event, tell_failed
from buildd.files.atomic_write import copy_file, replace_file
from buildd.keys import precompiled
from buildd.keys.depfiles import Listing
from buildd.keys.miss_kinds import MissKind, kind_of
from buildd.processes.launch import Exit
from buildd.scheduling import bound_results, call_notes
from buildd.scheduling.delivery import Delivery
from buildd.shims import run_log
from buildd.store.packing import write_error
from buildd.store.store import Result
from codegen.compilers import checkout_roots, environment_roots, temporary_roots
from codegen.compilers.command_parser import Family, Makes, Reason
from codegen.flags import inspect
from codegen.foreign.compile_plan import DEPENDENCIES
from codegen.foreign.trial_compile import is_trial
from codegen.plan import Action
from codegen.steps.module_ids import UNIT_FLAG
from protocol import messages as m

PASSED_THROUGH = "passed-through"
"""Code of a `Done` that sends the caller to the tool itself."""
_MOST_EVENTS = 1 << 20


class CommandOutputs(Outputs[ActiveBuild]):
    """The files of one compile, in the places that its command names.

    Args:
        keep: called in a worker thread once the compile was built.
        shrink: called before that, if `keep` has to wait.
        shown: as `colours` of the request.
    """

    in_project = True

    def __init__(
        self,
        delivery: Delivery,
        keep: Callable[[CommandOutputs], None],
        shrink: Callable[[CommandOutputs], None],
        shown: str | None = None,
    ) -> None:
        self.delivery = delivery
        if delivery.compile.family is Family.GCC and may_ask(delivery.compile.flags):
            self.colours = shown
        self.roots = delivery.roots
        self.lists = delivery.compile.depfile is not None and delivery.compile.family is Family.NVCC
        self.only_names = delivery.compile.makes is Makes.RULES
        self.result: Result | None = None
        """The result that was found, or stored."""
        self.holds_path = False
        """The result holds the path of a folder that has another name in the next build."""
        self.rules = b""
        """Make rules of the job that ran."""
        self._hides_id = True
        """Whether the object of a HIP compile that ran whole contains an id that clang made of its source's path."""
        self._keep = keep
        self._shrink = shrink

    def more_words(self, action: Action) -> tuple[str, ...]:
        """The module's id, where hipcc runs whole although its steps are known."""
        ids = self.delivery.ids
        return (f"{UNIT_FLAG}{ids.unit}",) if self.build.runs_whole and ids.unit and ids.differ else ()

    def finish(
        self, action: Action, private: str, read: tuple[str, ...], listing: Listing | None = None
    ) -> Mapping[str, bytes]:
        """List what the tool read as one more output."""
        if self.more_words(action):
            made = Path(output_path(private, action, action.outputs[0].name))
            content = made.read_bytes()
            shown = hip_symbol.shown(content, self.delivery.ids)
            self._hides_id = shown is None or offload_bundle.is_packed(content)
            if shown is not None and shown != content:
                made.write_bytes(shown)
        place = Path(output_path(private, action, DEPENDENCIES))
        place.write_bytes(self._listed(read, listing))
        return {}

    def _listed(self, read: Iterable[str], listing: Listing | None) -> bytes:
        scratch = self.build.store.scratch_folders()
        mine = tuple(f"{folder}/" for place in scratch for folder in (place, os.path.realpath(place)))
        own = () if listing is None else (listing.files,) if listing.user is None else (listing.files, listing.user)
        lists = [[path for path in paths if not path.startswith(mine)] for paths in (read, *own)]
        return temporary_roots.listed(self.roots, *lists)

    def place_depfile(self, read: Iterable[str], listing: Listing | None) -> bytes:
        """Write the depfile alone: of a compile that failed. Returns its rules."""
        rules = self.delivery.rules(self._listed(read, listing))
        with contextlib.suppress(OSError):  # it is not what the caller is told of
            self.delivery.put_depfile(rules)
        return rules

    def named_by(self, action: Action, private: str, said: bytes) -> Collection[str]:
        if not self.roots:
            return ()
        compile, held = self.delivery.compile, checkout_roots.names_held(said, self.roots)
        if compile.makes is Makes.RULES:
            listed = Path(output_path(private, action, action.outputs[0].name)).read_bytes()
            return held | (checkout_roots.names_in(listed, self.roots) if compile.output else set())
        # A configure script removes what it compiles to try the compiler out. Nobody looks for its sources.
        tries = is_trial(self.build.request.command, self.build.project)
        roots = checkout_roots.others(self.roots) if tries else self.roots
        if not roots:
            return held
        bound = set[str]()
        if checkout_roots.always_bound(compile.flags, roots):
            bound = {name for name, _ in checkout_roots.without_environments(roots)}
            if len(bound) == len(self.roots):
                return bound
        named = any(checkout_roots.is_environment(name) for name, _ in roots)
        if named and inspect(compile.flags).path_sensitive:
            listed = Path(output_path(private, action, DEPENDENCIES)).read_bytes()
            bound |= environment_roots.read_in(roots, temporary_roots.read_lists(listed, self.roots)[0])
        made = Path(output_path(private, action, action.outputs[0].name)).read_bytes()
        in_steps = bool(action.steps) and not self.build.runs_whole
        if compile.family is Family.HIPCC and not in_steps and self._hides_id and checkout_roots.holds_id(made):
            self.holds_id = True
            return {name for name, _ in self.roots}
        return bound | held | checkout_roots.names_in(made, roots)

    def place(self, path: str, digest: m.Digest, *, executable: bool) -> bool:
        if path != self.delivery.compile.output:
            listed = self.build.store.get(digest)
            if listed is not None:
                self._delivered(listed)
            return listed is not None
        self._vouch_for(digest)
        if self.delivery.ids.differ:
            content = self.build.store.get(digest)
            return content is not None and self._put_named(content)
        return self.delivery.put_object(self.build.files, digest, partial(self.build.store.restore, digest))

    def place_made(self, path: str, made: Path, product: Product) -> None:
        def copy(place: Path) -> bool:
            copy_file(made, place, executable=False)
            return True

        if path != self.delivery.compile.output:
            self._delivered(made.read_bytes())
        elif self.delivery.ids.differ:
            self._put_named(made.read_bytes())
        else:
            self.delivery.put_object(self.build.files, product.digest, copy)

    def _put_named(self, content: bytes) -> bool:
        """Deliver an object with its module's own id."""
        named = self.delivery.ids.named(content)

        def write(place: Path) -> bool:
            try:
                replace_file(place, named)
            except OSError as error:
                raise write_error(error, place, store=self.build.store.folder) from error
            return True

        return self.delivery.put_object(self.build.files, m.Digest(blake3(named).hexdigest()), write)

    def _delivered(self, listed: bytes) -> None:
        self.rules = self.delivery.rules(listed)
        self.delivery.put_depfile(self.rules)
        call_notes.record(self.build.request, self.delivery.compile, self.roots, listed)

    def where(self, path: str) -> str:
        return f"{self.build.project}/{path}" if not path.startswith("/") else path

    def published(self, result: Result, held: temporary_roots.Roots) -> None:
        self.result = result
        bound = not {*held}.isdisjoint(checkout_roots.others(self.roots))
        self.holds_path = bound and not self.delivery.compile.objects  # a link's has the same name each time
        for output in result.outputs:
            if output.name != DEPENDENCIES:
                self._vouch_for(output.digest)

    def _vouch_for(self, digest: m.Digest) -> None:
        """Remember a precompiled header that could be stored: its sources mention nothing that would be hidden in it.
        That says nothing about a clock that was set to stand still while it was made."""
        stood_still = any(name == "SOURCE_DATE_EPOCH" for name, _ in self.build.plan.actions[0].environment)
        if self.delivery.compile.makes is Makes.HEADER and not stood_still:
            precompiled.remember(self.build.store, digest)

    def put_off(self) -> None:
        self._shrink(self)

    def remember(self) -> None:
        self._keep(self)


class CompileReport(Report[ActiveBuild]):
    """What the caller of one compile gets: the tool's own output and exit status, or word to run the tool itself.

    A build of ten thousand compiles would have ten thousand logs: only failures are noted, in `run_log`.
    """

    def __init__(self, figures: Figures, outputs: CommandOutputs) -> None:
        self._figures = figures
        self._outputs = outputs
        self._carried_out = False
        """Otherwise the caller has to run the tool itself."""
        self._left = ""
        """A file that the tool read and that only its caller can read."""
        self._exit_status = 0
        self._signal = 0
        self._said: list[m.ToolOutput] = []

    def _explained(self, counted: Figures) -> m.Explained | None:
        """Why the call ran, or that it was found; counts that. None if it was cancelled."""
        build, compile = self.build, self._outputs.delivery.compile
        named = compile.output if compile.objects else compile.source
        call = os.path.normpath(os.path.join(build.project, named))
        if compile.makes is Makes.RULES:
            call += " (its headers)"
        missing = build.misses.get(0)
        if build.counts.misses and missing is not None:
            why = kind_of(missing.reasons)
            kind = why.value
            run_folder = build.request.environment.get(checkout_roots.RUN_FOLDER, "")
            # A configure script compiles the same checks in several folders of one checkout.
            same_checkout = bool(run_folder) and temporary_roots.is_below(missing.elsewhere, (("", run_folder),))
            outputs = self._outputs
            unmapped = bound_results.unmapped(build, outputs.delivery, outputs.holds_path, outputs.holds_id)
            if not build.counts.failures:  # those are counted apart
                counted.count_missed(kind, "" if same_checkout or unmapped else missing.elsewhere)
            counted.unmappable = int(bool(unmapped))
            counted.holding_paths = int(self._outputs.holds_path and not unmapped)
            same = f"{missing.elsewhere} has a result made from the same inputs" if missing.elsewhere else ""
            here = bound_results.holds_here(build, self._outputs.delivery) if why is MissKind.NEW else ""
            log = f"buildd log {build.request.build_id}"
            failed = f"it failed: {log} shows what the compiler said" if build.counts.failures else ""
            ends = (event.body for event in build.log.after(0, _MOST_EVENTS))
            unstored = next((body.note for body in ends if isinstance(body, m.Finished)), "")
            way = "" if same_checkout or unmapped else bound_results.way_to_share(build)
            reasons = tuple(filter(None, (*missing.reasons, same, unmapped or here, failed, unstored, way)))
        elif build.counts.hits:
            reasons = (build.why_hit(0),)
        else:
            return None
        return m.Explained(action=call, would_run=not build.counts.hits, reasons=reasons)

    def tell_hit(self, index: int, result: Result) -> None:
        build, delivery = self.build, self._outputs.delivery
        said = delivery.said(build.store, result)
        build.counts.hits += 1
        build.counts.saved_s += result.timing.wall_s
        self._outputs.result = result
        if said is not None:
            self._carry_out(*said)
        build.log.append(m.CacheHit(job_id=HIT, action=build.plan.actions[index].name, reason=build.why_hit(index)))

    def handed_over(self, index: int, ran: Ran) -> None:
        if not ran.exit.output_truncated:  # else the middle of the output is lost
            outputs = self._outputs
            named = outputs.delivery.ids.named
            stderr = outputs.delivery.said_once(named(self._shown(ran.exit)))
            self._carry_out(outputs.rules if outputs.delivery.prints_rules else named(ran.exit.stdout), stderr)

    def tell_failed(self, job: m.JobId, index: int, failure: Failure) -> None:
        self._left = failure.left or _process_named(failure)
        if self._left:
            return  # nothing has failed: the caller runs the tool
        tell_failed(self.build, job, index, failure)
        kind, exit = failure.kind, failure.exit
        by_itself = kind is m.FailureKind.COMPILE_ERROR or (kind is m.FailureKind.KILLED and exit and exit.signal)
        if exit is None or exit.lost or exit.output_truncated or not by_itself:
            return  # perhaps buildd's fault: the caller runs the tool itself
        delivery = self._outputs.delivery
        rules = b"" if failure.read is None else self._outputs.place_depfile(failure.read, failure.listing)
        by_clang = self.build.plan.actions[0].discovery.is_clang
        delivery.remove_outputs(exit.stderr, by_clang=by_clang)
        self._exit_status, self._signal = 0 if exit.signal else exit.status, exit.signal
        stdout = rules if delivery.prints_rules else delivery.ids.named(exit.stdout)
        self._carry_out(stdout, delivery.said_once(delivery.ids.named(self._shown(exit))))

    def _shown(self, exit: Exit) -> bytes:
        """What the tool wrote to its standard error, as this caller's shows it."""
        return exit.stderr if self.build.request.colours is None else exit.coloured or exit.stderr

    def _carry_out(self, stdout: bytes, stderr: bytes) -> None:
        self._said = [*pieces("stdout", stdout), *pieces("stderr", stderr)]
        self._carried_out = True

    def tell_progress(self, now: Moment) -> None:
        build, time_ns = self.build, time.time_ns()
        if now.running and self._figures.is_due(time_ns):
            progress = m.Progress(
                done=self._figures.hits + self._figures.misses,
                total=0,
                waiting_for=now.waiting_for,
                memory_bytes=now.memory_bytes,
                budget_bytes=now.budget_bytes,
            )
            run_log.note_memory(build.store.folder, build.request.build_id, time_ns, progress)

    def tell_end(self, outcome: m.Outcome) -> None:
        build = self.build
        events = build.log.after(0, _MOST_EVENTS)
        if build.counts.failures:
            run_log.note(build.store.folder, build.request.build_id, events)
            events = [event for event in events if not isinstance(event.body, m.Started)]
        run_log.note_job(build.store.folder, build.request.build_id, events)
        if self._carried_out:
            for output in self._said:
                build.log.append(output)
        self.tell_done(outcome)

    def tell_done(self, outcome: m.Outcome, *, message: str = "") -> None:
        build, counted = self.build, Figures()
        if build.log.done is not None:
            return  # said at the end of the work, before it was written down
        if outcome is m.Outcome.CANCELLED and not self._carried_out:
            build.counts.misses = build.counts.failures = 0  # it began, and did not end
            counted.cancelled = 1
        counted.hits, counted.misses = build.counts.hits, build.counts.misses
        counted.failures, counted.saved_s = build.counts.failures, build.counts.saved_s
        if counted.failures and is_trial(build.request.command, build.project):
            # A configure step wants to know whether it compiles.
            counted.misses -= counted.failures
            counted.failures = 0
            counted.count_passed_through(Reason.TRIAL.value)
        if counted.misses:
            counted.unkept = build.counts.unkept
        explained = self._explained(counted)
        if not self._carried_out and outcome is not m.Outcome.CANCELLED:
            outcome = m.Outcome.REFUSED if self._left else m.Outcome.DAEMON_ERROR
            reason = (Reason.NO_FILE if self._left else Reason.NOT_CARRIED_OUT).value
            counted.count_passed_through(reason)
            build.store.tally.count_passed_through(reason)
        self._figures.add(counted)
        note = run_log.CallNote(explained=explained, counted=counted.frozen())
        run_log.note_call(build.store.folder, build.request.build_id, note)
        code = PASSED_THROUGH if self._left else ""
        message = f"{Reason.NO_FILE.value}: {self._left}" if self._left else message
        count(build)
        status = {"exit_status": self._exit_status, "signal": self._signal}
        build.log.append(done_event(build, outcome, message=message, code=code, **status))


def _process_named(failure: Failure) -> str:
    """The place of a file that a tool perhaps failed over, and that is another file for its caller."""
    if failure.exit is None or failure.kind is not m.FailureKind.COMPILE_ERROR:
        return ""
    return next((name.decode() for name in (b"/dev/", b"/proc/") if name in failure.exit.stderr), "")
