"""The words of a build: each event becomes the lines that people read, on a terminal and in a pipe alike.

Knows no stream and no clock; `plain` and `live` decide when and where lines are written.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from buildd.ui import text
from buildd.ui.folding import Folding
from buildd.ui.model import BuildModel, RunningJob
from buildd.ui.text import Line, Style, clean, duration
from protocol import messages
from protocol.messages import Event, JobId, Mode, Outcome, Severity

FEW_ARTIFACTS = 8
_HELD_CHARACTERS = 256 << 10
_WAITING_EVERY_NS = 15_000_000_000
_KEPT_ERROR_LINES = 200

_SEVERITY_STYLE = {Severity.ERROR: Style.ERROR, Severity.WARNING: Style.WARNING, Severity.NOTE: Style.FAINT}


class Verbosity(IntEnum):
    """How much is said; the names are those of LOGLEVEL."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40

    @classmethod
    def parse(cls, value: str) -> Verbosity:
        """From LOGLEVEL: a level's name or number, as Python's logging takes it; anything else is INFO."""
        names = {"DEBUG": 10, "INFO": 20, "WARN": 30, "WARNING": 30, "ERROR": 40, "CRITICAL": 40, "FATAL": 40}
        level = int(value) if value.isdecimal() else names.get(value.strip().upper(), 20)
        return cls(min(40, max(10, level // 10 * 10)))


class Telling(msgspec.Struct, frozen=True):
    """How a build is told.

    Args:
        listing: one line for each action that ends (a pipe); else only what needs reading (a terminal shows the rest).
        reasons: say why each action missed.
        mode: what the request was for.
        only: restrict `Explained` to actions that name this file, as "src/a.cu"; empty for all.
        complete: also tell a refusal or a broken daemon; a live command prints those to stderr itself.
        output_lines: most lines of one job's output; the rest is in the log.
        build: what `buildd log` calls this build.
    """

    listing: bool = True
    reasons: bool = False
    mode: Mode = Mode.BUILD
    only: str = ""
    complete: bool = False
    output_lines: int = 0
    build: str = ""
    verbosity: Verbosity = Verbosity.INFO


class _Speech(msgspec.Struct):
    """What is remembered of a running job's output."""

    label: str
    held: list[str]
    folding: Folding
    held_characters: int = 0
    shown: int = 0
    dropped: int = 0
    error_lines: list[str] | None = None


class Narrator:
    """Turns the events of one request into lines, keeping the `BuildModel` that they are about."""

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

    def event(self, event: Event) -> list[Line]:
        """The lines that this event adds; often none."""
        body = event.body
        if isinstance(body, messages.LogLine):  # First: of 10 MB of output, every line comes by here.
            return self._output(body)
        level = self.telling.verbosity
        if isinstance(body, messages.CacheHit):  # Second: a no-op build is ten thousand of them.
            self.model.hit(event)
            return self._hit(body) if level <= Verbosity.INFO else []
        if event.sequence == 1:  # Also where another daemon begins the request anew: the numbers of jobs start again.
            self._speeches.clear()
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
                return [Line(f"({number} events were not shown; {self._log_command()} has them)", Style.WARNING)]
            case messages.Done():
                return self._done(body)
            case _:
                pass
        return []

    # ------------------------------------------------------------ output of tools

    def _output(self, body: messages.LogLine) -> list[Line]:
        job = self.model.running.get(body.job_id)
        if job is None:  # A hit repeats what its compiler had said, after the line that names it.
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
        if speech.held_characters > _HELD_CHARACTERS:  # Bounded memory beats one piece.
            return [*self._heading(job_id, speech.label), *self._released(speech)]
        return []

    def _heading(self, job_id: JobId, label: str) -> list[Line]:
        """A line that says whose output follows, where that changes."""
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
        """What a job that ended has still to say, and the error lines that it has said."""
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
        return [Line(f"{self._number()}hit {clean(body.action)}{saved}{why}")]

    def _finished(self, body: messages.Finished, job: RunningJob | None) -> list[Line]:
        output, _ = self._ended_speech(body.job_id)
        lines: list[Line] = []
        label = job.label if job is not None else clean(body.action)
        if self.telling.listing and self.telling.verbosity <= Verbosity.INFO:
            lines.append(Line(f"{self._number()}{label} {duration(body.timing.wall_s)}"))
        elif output and self.telling.listing:
            lines.append(Line(f"-- {label}", Style.HEADING))
        lines += output
        if body.note:
            lines.append(Line(f"note: {clean(body.action)}: {clean(body.note)}", Style.WARNING))
        return lines

    def _failed(self, body: messages.Failed, job: RunningJob | None) -> list[Line]:
        output, said = self._ended_speech(body.job_id)
        label = job.label if job is not None else clean(body.action)
        took = f" after {duration(body.timing.wall_s)}" if body.timing.wall_s >= 0.005 else ""
        lines = [Line(f"{self._number()}FAILED {label}{took}: {clean(body.message)}", Style.ERROR)]
        lines += output
        for diagnostic in body.diagnostics:
            headline = clean(diagnostic.message.partition("\n")[0])
            if diagnostic.severity is Severity.ERROR and not any(headline in line for line in said):
                lines.append(_diagnostic_line(diagnostic))
        command = body.command or (job.command if job is not None else "")
        if command:
            lines.append(Line(f"  command: {clean(command)}"))
        if body.next_step:
            lines.append(Line(f"  next: {clean(body.next_step)}"))
        return lines

    # ------------------------------------------------------------ the rest

    def _waiting(self, body: messages.Progress, time_ns: int) -> list[Line]:
        # That all processors are busy is how it should be.
        if not body.waiting_for or body.waiting_for.startswith("cpu:") or self.telling.verbosity > Verbosity.INFO:
            return []
        if self._said_waiting_ns and time_ns - self._said_waiting_ns < _WAITING_EVERY_NS:
            return []
        self._said_waiting_ns = time_ns
        return [Line(f"waiting for {clean(body.waiting_for)}")]

    def _explained(self, body: messages.Explained) -> list[Line]:
        if self.telling.only and not any(self.telling.only in part for part in (body.action, *body.reasons)):
            return []
        if body.would_run:
            self._told_runs += 1
            style = Style.ERROR if self.telling.mode is Mode.PROVE else Style.HEADING
            return reason_lines(f"would run {clean(body.action)}", body.reasons, style)
        self._told_hits += 1
        if self.telling.mode is Mode.PROVE:
            return []
        return reason_lines(f"hit {clean(body.action)}", tuple(reason.removeprefix("hit: ") for reason in body.reasons))

    def _notice(self, body: messages.Notice) -> list[Line]:
        levels = {Severity.NOTE: Verbosity.INFO, Severity.WARNING: Verbosity.WARNING, Severity.ERROR: Verbosity.ERROR}
        if levels[body.severity] < self.telling.verbosity:
            return []
        return [Line(f"{body.severity.value}: {clean(body.text)}", _SEVERITY_STYLE[body.severity])]

    def _done(self, body: messages.Done) -> list[Line]:
        return [*self._last_words(), *self._ending(body)]

    def _last_words(self) -> list[Line]:
        """What jobs that were cancelled under way had said: it may be why."""
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
                saved = f" (saved {duration(body.saved_s)})" if body.saved_s >= 0.005 else ""
                verb = "warmed" if self.telling.mode is Mode.WARM else "built"
                tally = f"{verb}{what}: {self._tally(body)}, {duration(body.wall_s)}{saved}"
                return [*self._artifact_lines(), Line(tally, Style.GOOD)]
            case Outcome.FAILED:
                failures = body.failures or self.model.failures
                failed = f"{text.count(failures, 'action')} failed, " if failures else ""
                lines = [Line(f"failed: {failed}{self._tally(body)}, {duration(body.wall_s)}", Style.ERROR)]
                if not self.model.failures:  # Nothing else has said why.
                    lines += error_lines(body)
                return lines
            case Outcome.CANCELLED:
                return [
                    Line(
                        f"cancelled after {duration(body.wall_s)}: {self._tally(body)} of {self.model.total}",
                        Style.WARNING,
                    )
                ]
            case _:
                return error_lines(body) if self.telling.complete else []

    def _verdict(self, body: messages.Done) -> list[Line]:
        """The last line of a request that ran nothing."""
        told = self._told_hits + self._told_runs
        if body.outcome is Outcome.FAILED and not self._told_runs:
            return error_lines(body)
        if self.telling.mode is Mode.PROVE and self._told_runs:
            return [Line(f"not warm: {self._told_runs} of {text.count(told, 'action')} would still run", Style.ERROR)]
        if self.telling.mode is Mode.PROVE:
            return [Line(f"warm: nothing would run, {text.count(max(self._told_hits, body.hits), 'hit')}", Style.GOOD)]
        if self.telling.only and not told:
            return [Line(f"no action names {clean(self.telling.only)}", Style.WARNING)]
        return [Line(f"{text.count(told, 'action')}: {self._told_hits} would hit, {self._told_runs} would run")]

    def _tally(self, body: messages.Done) -> str:
        hits, compiled = body.hits or self.model.hits, self.model.compiled
        # Events were dropped on the way, or each was not told (`buildd run`); the sum was.
        if not compiled and (body.outcome is Outcome.BUILT or not self.model.planned):
            compiled = max(0, body.misses - body.failures)
        return f"{text.count(hits, 'hit')}, {compiled} compiled"

    def _artifact_lines(self) -> list[Line]:
        if not 0 < len(self._artifacts) <= FEW_ARTIFACTS:
            return []
        rows = [(clean(found.target), clean(found.path), text.size(found.size_bytes)) for found in self._artifacts]
        widths = [max(len(row[column]) for row in rows) for column in range(2)]
        return [Line(f"  {row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]}") for row in rows]

    def _log_command(self) -> str:
        return f"buildd log {self.telling.build}".rstrip()


def error_lines(done: messages.Done) -> list[Line]:
    """A request that came to nothing: message, file, next step."""
    return problem_lines(done.message or done.outcome.value, file=done.file, next_step=done.next_step)


def problem_lines(message: str, *, file: str = "", command: str = "", next_step: str = "") -> list[Line]:
    """The one shape of an error: what is wrong, where, the command to repeat, what to do next."""
    lines = [Line(f"error: {clean(message)}", Style.ERROR)]
    for name, value in (("file", file), ("command", command), ("next", next_step)):
        if value:
            lines.append(Line(f"  {name}: {clean(value)}"))
    return lines


def reason_lines(title: str, reasons: tuple[str, ...], style: Style = Style.PLAIN) -> list[Line]:
    """Why something ran or would, below what it is."""
    if len(reasons) == 1:
        return [Line(f"{title}: {clean(reasons[0])}", style)]
    return [Line(title, style), *(Line(f"    {clean(reason)}") for reason in reasons)]


def _diagnostic_line(diagnostic: messages.Diagnostic) -> Line:
    place = clean(diagnostic.file)
    if diagnostic.line:
        place += f":{diagnostic.line}"
        if diagnostic.column:
            place += f":{diagnostic.column}"
    return Line(
        f"{place + ': ' if place else ''}{diagnostic.severity.value}: {clean(diagnostic.message)}",
        _SEVERITY_STYLE[diagnostic.severity],
    )
