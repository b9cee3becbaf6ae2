"""The text of a build: turns each event into the lines that people read, on a terminal and in a pipe alike.

Knows no stream and no clock; `plain` and `live` decide when and where lines are written.
"""

from __future__ import annotations

from collections import Counter
from enum import IntEnum

import msgspec

from buildd.ui import text
from buildd.ui.folding import Folding
from buildd.ui.layout import SEVERITY_STYLE, diagnostic_line, error_lines, is_among, reason_lines
from buildd.ui.model import BuildModel, RunningJob
from buildd.ui.text import Line, Style, clean, duration
from protocol import messages
from protocol.messages import Event, JobId, Mode, Outcome, Severity

FEW_ARTIFACTS = 8
NOTHING_TO_DO = "nothing to do"
"""Message of a build whose record still holds: no action was even looked up."""
_HELD_CHARACTERS = 256 << 10
_WAITING_EVERY_NS = 15_000_000_000
_KEPT_ERROR_LINES = 200


class Verbosity(IntEnum):
    """How much is printed; the names are those of LOGLEVEL."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40

    @classmethod
    def parse(cls, value: str) -> Verbosity:
        """The level in LOGLEVEL: a name or number, as in Python's logging; anything else is INFO."""
        names = {"DEBUG": 10, "INFO": 20, "WARN": 30, "WARNING": 30, "ERROR": 40, "CRITICAL": 40, "FATAL": 40}
        level = int(value) if value.isdecimal() else names.get(value.strip().upper(), 20)
        return cls(min(40, max(10, level // 10 * 10)))


class Telling(msgspec.Struct, frozen=True):
    """How a build is narrated.

    Args:
        listing: print one line for each action that ends (a pipe); else only what needs reading (a terminal shows the
            rest).
        steps: print one line for each action that ran, where nothing is listed.
        reasons: print why each action missed.
        mode: the request's mode.
        runs_alone: of `Explained`, leave out actions that would hit.
        only: the file or action that the answer is about, as "src/a.cu"; empty for all of the targets'.
        complete: print everything that a tool said, and refusals and daemon errors too.
        refusals: print refusals and daemon errors; a command that ends with the build prints those to stderr itself.
        output_lines: most lines of one job's output; the log has the rest. 0 means no limit.
        build: id of the build, for `buildd log`.
        commands: actions are commands of another build tool, of which nobody knows whether they compile.
    """

    listing: bool = True
    steps: bool = False
    reasons: bool = False
    mode: Mode = Mode.BUILD
    runs_alone: bool = False
    only: str = ""
    complete: bool = False
    refusals: bool = False
    output_lines: int = 0
    build: str = ""
    commands: bool = False
    verbosity: Verbosity = Verbosity.INFO


class _Speech(msgspec.Struct):
    """A running job's output so far."""

    label: str
    held: list[str]
    folding: Folding
    held_characters: int = 0
    shown: int = 0
    dropped: int = 0
    error_lines: list[str] | None = None


class Narrator:
    """Turns the events of one request into lines, and keeps the `BuildModel` that they describe."""

    def __init__(self, telling: Telling | None = None, model: BuildModel | None = None) -> None:
        self.model = model or BuildModel()
        self.telling = telling or Telling()
        self._speeches: dict[JobId, _Speech] = {}
        self._speaker: JobId | None = None
        self._label = ""
        self._artifacts: list[messages.Artifact] = []
        self._said_waiting_ns = 0
        self._told_hits = 0
        self._told_runs = 0
        self._notes: Counter[str] = Counter()
        self._failures: dict[tuple[str, ...], str] = {}
        """Message and output of failed jobs -> the label of the first."""

    def event(self, event: Event) -> list[Line]:
        """The lines that this event adds; often none."""
        body = event.body
        if isinstance(body, messages.LogLine):  # First: every line of 10 MB of output passes here.
            return self._output(body)
        level = self.telling.verbosity
        if isinstance(body, messages.CacheHit):  # Second: a no-op build has ten thousand of them.
            self.model.hit(event)
            return self._hit(body) if level <= Verbosity.INFO else []
        if event.sequence == 1:  # Also if another daemon starts the request over: job numbers start again.
            self._speeches.clear()
            self._failures.clear()
            self._artifacts.clear()
        ended = self.model.apply(event)
        match body:
            case messages.Started() if level <= Verbosity.DEBUG:
                return [Line(f"start {clean(body.action)}: {clean(body.command)}", Style.FAINT)]
            case messages.Queued() if self.telling.reasons:
                return reason_lines(f"miss {clean(body.action)}", body.reasons)
            case messages.Finished():
                return self._finished(body, ended)
            case messages.Failed():
                return self._failed(body, ended)
            case messages.Progress() if self.telling.listing:
                return self._waiting(body, event.time_ns)
            case messages.Explained():
                return self._explained(body)
            case messages.Artifact():
                self._artifacts.append(body)
            case messages.Notice():
                return self._notice(body)
            case messages.Lagged():
                number = body.last - body.first + 1
                lost = text.count(number, "event")
                return [Line(f"({lost} not shown; {self._log_command()} has everything)", Style.WARNING)]
            case messages.Done():
                return self._done(body)
            case _:
                pass
        return []

    # ------------------------------------------------------------ output of tools

    def _output(self, body: messages.LogLine) -> list[Line]:
        job = self.model.running.get(body.job_id)
        if job is None:  # A hit repeats its compiler's output, after the line that names it.
            return [*self._heading(body.job_id, ""), text.compiler_line(body.text)]
        speech = self._speeches.get(body.job_id)
        if speech is None:
            speech = self._speeches[body.job_id] = _Speech(job.label, held=[], folding=Folding(self._log_command()))
        if self.telling.complete:
            return self._said(body.job_id, speech, body.text)
        return [line for shown in speech.folding.feed(body.text) for line in self._said(body.job_id, speech, shown)]

    def _said(self, job_id: JobId, speech: _Speech, words: str) -> list[Line]:
        line = text.compiler_line(words)
        if line.style is Style.ERROR:
            speech.error_lines = speech.error_lines or []
            if len(speech.error_lines) < _KEPT_ERROR_LINES:
                speech.error_lines.append(line.text)
        if self.telling.verbosity >= Verbosity.ERROR and line.style is not Style.ERROR:
            return []
        if not self.telling.listing:
            if self.telling.output_lines and speech.shown >= self.telling.output_lines:
                speech.dropped += 1
                return []
            speech.shown += 1
            return [*self._heading(job_id, speech.label), line]
        speech.held.append(line.text)
        speech.held_characters += len(line.text)
        if speech.held_characters > _HELD_CHARACTERS:  # Bounding memory matters more than printing it in one piece.
            return [*self._heading(job_id, speech.label), *self._released(speech)]
        return []

    def _heading(self, job_id: JobId, label: str) -> list[Line]:
        """A line that names the job whose output follows, if it is another one."""
        if job_id == self._speaker:
            return []
        self._speaker = job_id
        return [Line(f"-- {label or f'job {job_id}'}", Style.HEADING)]

    @staticmethod
    def _released(speech: _Speech) -> list[Line]:
        lines = [text.compiler_line(held) for held in speech.held]
        speech.held, speech.held_characters = [], 0
        return lines

    def _ended_speech(self, job_id: JobId) -> tuple[list[Line], list[str]]:
        """The remaining output of a job that ended, and the error lines that it printed."""
        speech = self._speeches.pop(job_id, None)
        if speech is None:
            self._speaker = job_id
            return [], []
        lines = [line for shown in speech.folding.rest() for line in self._said(job_id, speech, shown)]
        self._speaker = job_id
        lines += self._released(speech)
        if speech.dropped:
            more = text.count(speech.dropped, "more line")
            lines.append(Line(f"({more} of output: {self._log_command()})", Style.FAINT))
        return lines, speech.error_lines or []

    # ------------------------------------------------------------ ends of actions

    def _number(self) -> str:
        return f"[{self.model.done}/{self.model.total}] " if self.telling.listing else ""

    def _hit(self, body: messages.CacheHit) -> list[Line]:
        self._speaker = body.job_id
        if not (self.telling.listing or self.telling.reasons):
            return []
        saved = f" (saved {duration(body.saved_s)})" if body.saved_s >= 0.005 else ""
        why = f": {clean(body.reason)}" if self.telling.reasons and body.reason else ""
        return [Line(f"hit {clean(body.action)}{saved}{why}")]

    def _finished(self, body: messages.Finished, job: RunningJob | None) -> list[Line]:
        output, _ = self._ended_speech(body.job_id)
        lines: list[Line] = []
        label = job.label if job is not None else clean(body.action)
        if self.telling.listing and self.telling.verbosity <= Verbosity.INFO:
            lines.append(Line(f"{self._number()}{label} {duration(body.timing.wall_s)}"))
        elif self.telling.steps and self.telling.verbosity <= Verbosity.INFO:
            lines.append(Line(f"  {label}  {duration(body.timing.wall_s)}", Style.FAINT))
        elif output and self.telling.listing:
            lines.append(Line(f"-- {label}", Style.HEADING))
        lines += output
        if body.note:
            self._notes[body.note] += 1
            if self._notes[body.note] == 1 or self.telling.complete:
                lines.append(Line(f"note: {clean(body.action)}: {clean(body.note)}", Style.WARNING))
        return lines

    def _failed(self, body: messages.Failed, job: RunningJob | None) -> list[Line]:
        output, said = self._ended_speech(body.job_id)
        label = job.label if job is not None else clean(body.action)
        took = f" after {duration(body.timing.wall_s)}" if body.timing.wall_s >= 0.005 else ""
        lines = [Line(f"{self._number()}FAILED {label}{took}: {clean(body.message)}", Style.ERROR)]
        said += (line.text for line in output)
        found = (each for each in body.diagnostics if each.severity is Severity.ERROR and not is_among(each, said))
        output += map(diagnostic_line, found)
        words = body.message, *(line.text for line in output)
        if output and self._failures.setdefault(words, label) != label and not self.telling.complete:
            return [*lines, Line(f"  the same messages as {self._failures[words]}")]
        lines += output
        command = body.command or (job.command if job is not None else "")
        if command:
            lines.append(Line(f"  command: {clean(command)}"))
        if body.next_step:
            lines.append(Line(f"  next: {clean(body.next_step)}"))
        return lines

    # ------------------------------------------------------------ the rest

    def _waiting(self, body: messages.Progress, time_ns: int) -> list[Line]:
        # Busy processors are normal.
        if not body.waiting_for or body.waiting_for.startswith("cpu:") or self.telling.verbosity > Verbosity.INFO:
            return []
        if self._said_waiting_ns and time_ns - self._said_waiting_ns < _WAITING_EVERY_NS:
            return []
        self._said_waiting_ns = time_ns
        return [Line(f"waiting for {clean(body.waiting_for)}")]

    def _explained(self, body: messages.Explained) -> list[Line]:
        if body.would_run:
            self._told_runs += 1
            style = Style.ERROR if self.telling.mode is Mode.PROVE else Style.HEADING
            return reason_lines(f"would run {clean(body.action)}", body.reasons, style)
        self._told_hits += 1
        if self.telling.mode is Mode.PROVE or self.telling.runs_alone:
            return []
        return reason_lines(f"hit {clean(body.action)}", tuple(reason.removeprefix("hit: ") for reason in body.reasons))

    def _notice(self, body: messages.Notice) -> list[Line]:
        levels = {Severity.NOTE: Verbosity.INFO, Severity.WARNING: Verbosity.WARNING, Severity.ERROR: Verbosity.ERROR}
        if levels[body.severity] < self.telling.verbosity:
            return []
        return [Line(f"{body.severity.value}: {clean(body.text)}", SEVERITY_STYLE[body.severity])]

    def _done(self, body: messages.Done) -> list[Line]:
        again = [(note, number) for note, number in self._notes.items() if number > 1 and not self.telling.complete]
        notes = [Line(f"note: {number} results: {clean(note)}", Style.WARNING) for note, number in again]
        self._notes.clear()
        return [*self._last_words(), *notes, *self._ending(body)]

    def _last_words(self) -> list[Line]:
        """The output of cancelled jobs: it may say why."""
        lines: list[Line] = []
        for job_id, speech in list(self._speeches.items()):
            output, _ = self._ended_speech(job_id)
            if output:
                lines += [Line(f"-- {speech.label} (not finished)", Style.HEADING), *output]
        return lines

    def _ending(self, body: messages.Done) -> list[Line]:
        match body.outcome:
            case Outcome.BUILT | Outcome.FAILED if self.telling.mode in (Mode.EXPLAIN, Mode.PROVE):
                return self._verdict(body)
            case Outcome.BUILT:
                if self.telling.verbosity > Verbosity.WARNING:
                    return []
                what = f" {text.count(len(self.model.targets), 'target')}" if self.model.targets else ""
                idle = body.message == NOTHING_TO_DO
                saved = f" (saved {duration(body.saved_s)})" if body.saved_s >= 0.005 and not idle else ""
                warm = self.telling.mode is Mode.WARM
                verb = "nothing to do for" if idle and what else "warmed" if warm else "built"
                tally = f"{verb}{what}: {self._tally(body)}, {duration(body.wall_s)}{saved}"
                return [*([] if warm else self._artifact_lines()), Line(tally, Style.GOOD)]
            case Outcome.FAILED:
                failures = body.failures or self.model.failures
                failed = f"{text.count(failures, 'action')} failed, " if failures else ""
                lines = [Line(f"failed: {failed}{self._tally(body)}, {duration(body.wall_s)}", Style.ERROR)]
                if not self.model.failures:  # No action has said why.
                    lines += error_lines(body)
                return lines
            case Outcome.CANCELLED:
                planned = f"{text.count(self.model.planned, 'action')} planned"
                after = f"cancelled after {duration(body.wall_s)}: {self._tally(body)}, {planned}"
                return [Line(after, Style.WARNING)]
            case _:
                return error_lines(body) if self.telling.complete or self.telling.refusals else []

    def _verdict(self, body: messages.Done) -> list[Line]:
        """The last line of a request that runs nothing."""
        told = self._told_hits + self._told_runs
        if body.outcome is Outcome.FAILED and not self._told_runs:
            return error_lines(body)
        if self.telling.mode is Mode.PROVE and self._told_runs:
            every = self._told_runs + max(self._told_hits, body.hits)  # a proof names the actions that would run alone
            return [Line(f"not warm: {self._told_runs} of {text.count(every, 'action')} would still run", Style.ERROR)]
        if self.telling.mode is Mode.PROVE:
            hits, traced = text.count(max(self._told_hits, body.hits), "hit"), self.model.compiled
            what = f"compiled, {hits}, {text.count(traced, 'model')} traced" if traced else f"run, {hits}"
            return [Line(f"warm: nothing would {'be ' * bool(traced)}{what}", Style.GOOD)]
        if self.telling.only and not told:
            return [Line(clean(body.message or f"no action uses {self.telling.only}"), Style.WARNING)]
        return [Line(f"{text.count(told, 'action')}: {self._told_hits} would hit, {self._told_runs} would run")]

    def _tally(self, body: messages.Done) -> str:
        hits, compiled = body.hits or self.model.hits, self.model.compiled
        # Single events were dropped, or never sent (`buildd run`); their sum was sent.
        if not compiled and (body.outcome is Outcome.BUILT or not self.model.planned):
            compiled = max(0, body.misses - body.failures)
        if self.telling.commands:
            return f"{text.count(compiled, 'command')} run"
        return f"{text.count(hits, 'hit')}, {compiled} compiled"

    def _artifact_lines(self) -> list[Line]:
        if not 0 < len(self._artifacts) <= FEW_ARTIFACTS:
            return []
        rows = [(clean(found.target), clean(found.path), text.size(found.size_bytes)) for found in self._artifacts]
        widths = [max(len(row[column]) for row in rows) for column in range(2)]
        return [Line(f"  {row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]}") for row in rows]

    def _log_command(self) -> str:
        return f"buildd log {self.telling.build}".rstrip()
