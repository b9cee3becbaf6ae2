"""The display of `buildd watch`: one build after another, and how each kernel's resource use changed.

A round in which nothing ran and no kernel changed is not shown: most saves of most files change nothing.
Knows no daemon and decides nothing.
"""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections.abc import Callable, Sequence

from buildd.artifacts.kernel_reports import moved, recoded, standing
from buildd.ui import text
from buildd.ui.kernel_table import kernel_table
from buildd.ui.text import Line, Style, clean
from buildd.ui.view import View, Writer
from protocol import messages as m

_CLEAR = "\x1b[H\x1b[2J"
_NOISE = 0.01
"""A smaller relative change of a time counts as none."""
_NOISY = 0.05
"""A larger relative spread is mentioned."""


class Rounds:
    """Shows the builds of one watch.

    Args:
        writer: for the lines between the builds.
        view: makes the view of one build.
        clear: begin every round on an empty screen.
        partial: a build reports only the actions that it ran; otherwise all of its plan, unless the tree is untouched.
        notify: is called with title and text when a build fails, and when it works again.
        compared: is called after each good build with the change of its kernels.
    """

    def __init__(
        self,
        writer: Writer,
        view: Callable[[m.BuildId], View],
        *,
        clear: bool,
        partial: bool = False,
        notify: Callable[[str, str], None] | None = None,
        compared: Callable[[m.Compared], None] = lambda body: None,
    ) -> None:
        self._partial = partial
        self._compared = compared
        self._notify = notify or (lambda title, text: None)
        self._notified = False
        """A failure was notified, and the build has not worked since."""
        self._writer = writer
        self._make_view = view
        self._clear = clear
        self._build_id = m.BuildId("")
        """Id of the current round; empty between rounds."""
        self._view: View | None = None
        """View of the current round, once it has something to show."""
        self._waiting: list[m.Event] = []
        """Events of a round that has nothing to show yet."""
        self._number = 0
        self._why = ""
        self._failed = False
        """The last finished round was not built."""
        self._warned = False
        """A warning of the round is on the screen."""
        self._kernels: dict[str, tuple[m.Kernel, ...]] = {}
        """Action -> its kernels in the last good build."""
        self._new: dict[str, tuple[m.Kernel, ...]] = {}
        self._planned = 0
        """Number of actions in the round's plan; 0 if it has none."""
        self._watching = ""
        self._problem = ""
        """The round's first problem."""

    def begin(self, build_id: m.BuildId, changed: m.Changed | None) -> None:
        """Begin a round; the one before it is over, whether or not it ended."""
        unfinished = self._view is not None
        self.drop()
        self._number += 1
        self._why = "" if changed is None else f"changed: {_named(changed)}"
        self._build_id = build_id
        self._waiting, self._new, self._problem, self._planned = [], {}, "", 0
        if self._number == 1 or self._failed or self._warned or unfinished:
            # A failure, a warning or a build without an end must leave the screen, even if that takes no work.
            self._show()
        self._warned = False

    def drop(self) -> None:
        """Stop showing the round: another one replaces it, or the watch ends."""
        self._build_id = m.BuildId("")
        view, self._view = self._view, None
        if view is not None:
            view.close()

    def event(self, event: m.Event) -> None:
        """Handle an event of the round."""
        if not self._build_id:
            return
        body = event.body
        if isinstance(body, m.Planned):
            self._planned = body.actions
        elif isinstance(body, m.Finished | m.CacheHit):
            self._new[body.action] = body.kernels
        elif isinstance(body, m.Failed):
            self._problem = self._problem or _problem(body)
        self._warned = self._warned or (isinstance(body, m.Notice) and body.severity is not m.Severity.NOTE)
        if self._view is None and (_is_worth_showing(body) or (isinstance(body, m.Done) and self._has_moved())):
            self._show()
        if self._view is not None:
            self._view.event(event)
        else:
            self._waiting.append(event)
        if isinstance(body, m.Done):
            self._end(body)

    def watching(self, body: m.Watching) -> None:
        """Note what is watched. Printed at once before the first round, later at the end of each round."""
        # Without numbers: the files outside of the project and the folders of outputs count too, as builds name them.
        self._watching = "watching for changes"
        if body.polled:
            self._watching += f", {text.count(len(body.polled), 'folder')} polled ({clean(body.polled[0])})"
        if not self._number:
            self._writer.lines([Line(f"{self._watching}, building", Style.FAINT)])

    def measured(self, body: m.Measured) -> None:
        """Show how a kernel of the last build ran on a GPU."""
        self._writer.lines([measured_line(body)])

    def running(self, command: Sequence[str], *, again: bool = False) -> None:
        """Say that the command begins; its own output follows.

        Args:
            again: its last run goes on, and is ended first.
        """
        first = "ending the last run, then " if again else ""
        self._writer.lines([Line(f"{first}running {clean(shlex.join(command))}", Style.FAINT)])

    def ran(self, body: m.Ran) -> None:
        """Show how a run of the command has ended, unless the watch ended it: another run follows."""
        if not body.stopped:
            self._writer.lines([ran_line(body)])

    def note(self, words: str) -> None:
        self._writer.lines([Line(clean(words), Style.WARNING)])

    # ----------------------------------------------------------------

    def _show(self) -> None:
        view = self._view = self._make_view(self._build_id)
        if self._clear:
            self._writer.write(_CLEAR)
        if self._why:
            self._writer.lines([Line(f"{time.strftime('%H:%M:%S')} {self._why}", Style.HEADING)])
        for event in self._waiting:
            view.event(event)
        self._waiting = []

    def _now(self) -> dict[str, tuple[m.Kernel, ...]]:
        return standing(self._kernels, self._new, 0 if self._partial else self._planned)

    def _has_moved(self) -> bool:
        """Whether a kernel changed though nothing ran: an edit was undone."""
        before, now = _all(self._kernels), _all(self._now())
        return bool(moved(before, now) or recoded(before, now))

    def _end(self, done: m.Done) -> None:
        first = not self._kernels
        now_of = self._now()
        before, now = _all(self._kernels), _all(now_of)
        changes, others = moved(before, now), recoded(before, now)
        shown = self._view is not None
        self.drop()
        self._failed = done.outcome is not m.Outcome.BUILT
        if self._failed and done.outcome is not m.Outcome.CANCELLED:
            self._notified = True
            self._notify("build failed", self._problem or done.message)
        elif self._notified and not self._failed:
            self._notified = False
            self._notify("the build works again", self._why)
        if done.outcome is m.Outcome.BUILT:
            self._kernels = now_of
            if now:
                self._compared(_comparison(now, changes, others, first))
            if shown:
                self._writer.lines(self._table(changes, len(others), first))
        if shown:
            self._writer.lines([Line(self._watching, Style.FAINT)])

    def _columns(self) -> int:
        """Width of the terminal; 0 in a pipe."""
        try:
            return os.get_terminal_size(self._writer.stream.fileno()).columns
        except (OSError, ValueError):
            return 0

    def _table(self, changes: list[tuple[m.Kernel | None, m.Kernel | None]], recoded: int, first: bool) -> list[Line]:
        number = len(
            {(kernel.name, kernel.arch) for kernel in _all(self._kernels)}
        )  # an object's are its library's too
        if not number:
            return []
        total = text.count(number, "kernel")
        if first:
            return [Line(total), *kernel_table(changes, whole=True, columns=self._columns())]
        known = any(kernel.code for kernels in self._kernels.values() for kernel in kernels)
        code = f"{recoded} of {total} changed" if known else ""
        if not changes:
            return [Line(f"{code or total}; resource use is the same")]
        came, went = sum(before is None for before, _ in changes), sum(now is None for _, now in changes)
        there = len(changes) - came - went
        told = ((there, f"{'' if code else f'of {total} '}changed resource use"), (came, "added"), (went, "removed"))
        parts = [f"{count} {words}" for count, words in told if count]
        moves = "; ".join(filter(None, (code, ", ".join(parts))))
        return [Line(moves), *kernel_table(changes, columns=self._columns())]


def measured_line(body: m.Measured) -> Line:
    """A kernel's measurement: time, rate and error, and the previous time on the same problem."""
    where = f"{clean(body.target)} {body.problem}"
    if not body.time_us:
        return Line(f"{where}: {clean(body.outcome)}: {clean(body.message)}, on {clean(body.gpu)}", Style.ERROR)
    rate = f", {body.tflops:.1f} TFLOP/s" if body.tflops else ""
    text = f"{where}: {body.time_us:.1f} us{rate}"
    style = Style.PLAIN
    if body.before_us:
        change = body.time_us / body.before_us - 1
        text += f" ({change:+.1%}, {body.before_us:.1f} us before)"
        if abs(change) > max(body.spread, _NOISE):
            style = Style.GOOD if change < 0 else Style.WARNING
    noisy = f", {body.spread:.0%} spread" if body.spread > _NOISY else ""
    return Line(f"{text}, error {body.error:.1e}{noisy}, on {clean(body.gpu)}", style)


def ran_line(body: m.Ran) -> Line:
    """How a run of the command has ended."""
    name = clean(body.command[0])
    if body.message:
        return Line(f"cannot run {name}: {clean(body.message)}; the next good build tries again", Style.ERROR)
    took = f"after {body.wall_s:.1f} s"
    if body.signal:
        said = signal.strsignal(body.signal) or "unknown"
        return Line(f"signal {body.signal} ({said}) ended {name} {took}", Style.ERROR)
    return Line(f"{name} ended with status {body.exit_status} {took}", Style.ERROR if body.exit_status else Style.GOOD)


def _all(kernels: dict[str, tuple[m.Kernel, ...]]) -> list[m.Kernel]:
    return [kernel for several in kernels.values() for kernel in several]


def _comparison(
    now: list[m.Kernel],
    changes: list[tuple[m.Kernel | None, m.Kernel | None]],
    recoded: list[m.Kernel],
    first: bool,
) -> m.Compared:
    if first:
        return m.Compared(kernels=len(now))
    came = sum(before is None for before, _ in changes)
    went = sum(after is None for _, after in changes)
    return m.Compared(kernels=len(now), recoded=len(recoded), moved=len(changes) - came - went, came=came, went=went)


def _problem(failed: m.Failed) -> str:
    """A failure in one line: the compiler's first error, or else the action's message."""
    errors = (finding for finding in failed.diagnostics if finding.severity is m.Severity.ERROR)
    first = next(errors, None)
    return f"{failed.action}: {failed.message}" if first is None else f"{first.file}({first.line}): {first.message}"


def _is_worth_showing(body: m.EventBody) -> bool:
    match body:
        case m.Queued() | m.Started() | m.Failed() | m.LogLine():
            return True
        case m.Notice(severity=severity):
            return severity is not m.Severity.NOTE
        case m.Done(outcome=outcome, misses=misses):
            return outcome is not m.Outcome.BUILT or misses > 0
        case _:
            return False


def _named(changed: m.Changed) -> str:
    names = [clean(path) for path in changed.paths[:3]]
    more = len(changed.paths) + changed.more - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")
