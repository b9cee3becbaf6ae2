"""What `buildd watch` shows: one build after another, and how each kernel's needs moved.

A round in which nothing ran and no kernel became another one is not shown: most saves of most files touch nothing.
Knows no daemon and decides nothing.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

from buildd.kernels import moved, recoded, standing
from buildd.ui import text
from buildd.ui.text import Line, Style, clean
from buildd.ui.view import View, Writer
from protocol import messages as m

MOST_KERNELS = 24
"""Rows of a table; more scroll the errors away."""
_CLEAR = "\x1b[H\x1b[2J"
_DEMANGLERS = (("c++filt", "--no-recurse-limit"), ("c++filt",))
"""GNU's leaves a name of more than a thousand characters as it is without that option; llvm's has no such option."""
_DEMANGLE_S = 5.0
_COLUMNS: tuple[tuple[str, Callable[[m.Kernel], int]], ...] = (
    ("registers", lambda kernel: kernel.registers),
    ("scalar", lambda kernel: kernel.scalar_registers),
    ("shared", lambda kernel: kernel.shared_bytes),
    ("constant", lambda kernel: kernel.constant_bytes),
    ("stack", lambda kernel: kernel.stack_bytes),
    ("spill stores", lambda kernel: kernel.spill_store_bytes),
    ("loads", lambda kernel: kernel.spill_load_bytes),
    ("spilled", lambda kernel: kernel.spilled_registers),
)
"""Those of which nobody says anything are left out."""
_NAME_COLUMNS = 60
_NOISE = 0.01
"""A time that moved by less has not moved."""
_NOISY = 0.05
"""A spread beyond this is worth a word."""


class Rounds:
    """Shows the builds of one watch.

    Args:
        writer: for the words between the builds.
        view: makes the view of one build.
        clear: begin every round on an empty screen.
        partial: a build tells only of what it ran; without, of every action of its plan unless the tree was untouched.
        notify: is told, title and text, what somebody who does not look should know: it fails, it is mended.
        compared: is told of each good build how its kernels moved.
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
        """Of a failure that is not mended."""
        self._writer = writer
        self._make_view = view
        self._clear = clear
        self._build_id = m.BuildId("")
        """Of the round under way; empty between rounds."""
        self._view: View | None = None
        """Of a round that has something to show."""
        self._waiting: list[m.Event] = []
        """Events of one that has not yet."""
        self._number = 0
        self._why = ""
        self._failed = False
        """The last round that ended did not end well."""
        self._expected_s = 0.0
        self._kernels: dict[str, tuple[m.Kernel, ...]] = {}
        """Of each action, as the last good build had them."""
        self._new: dict[str, tuple[m.Kernel, ...]] = {}
        self._planned = 0
        """Actions of the round's plan, where it has one."""
        self._watching = ""
        self._problem = ""
        """The first of the round."""

    def begin(self, build_id: m.BuildId, changed: m.Changed | None) -> None:
        """A round begins; the one before it is over, whatever became of it."""
        self.drop()
        self._number += 1
        self._why = "" if changed is None else f"changed: {_named(changed)}"
        self._build_id = build_id
        self._waiting, self._expected_s, self._new, self._problem, self._planned = [], 0.0, {}, "", 0
        if self._number == 1 or self._failed:
            # What stands on the screen of a failure must go when it is mended, even where that took no work.
            self._show()

    def drop(self) -> None:
        """Show no more of the round: another one takes its place, or the watch ends."""
        self._build_id = m.BuildId("")
        view, self._view = self._view, None
        if view is not None:
            view.close()

    def event(self, event: m.Event) -> None:
        """Something happened in the round."""
        if not self._build_id:
            return
        body = event.body
        if isinstance(body, m.Planned):
            self._planned = body.actions
        elif isinstance(body, m.Queued):
            self._expected_s += body.expected_s
        elif isinstance(body, m.Finished | m.CacheHit):
            self._new[body.action] = body.kernels
        elif isinstance(body, m.Failed):
            self._problem = self._problem or _problem(body)
        if self._view is None and (_is_worth_showing(body) or (isinstance(body, m.Done) and self._has_moved())):
            self._show()
        if self._view is not None:
            self._view.event(event)
        else:
            self._waiting.append(event)
        if isinstance(body, m.Done):
            self._end(body)

    def watching(self, body: m.Watching) -> None:
        """What is watched. Said at once before the first round, with the others' last words from then on."""
        files, folders = text.count(body.files, "file"), text.count(body.folders, "folder")
        self._watching = f"watching {files} in {folders}"
        if body.polled:
            self._watching += f", {len(body.polled)} of them polled ({clean(body.polled[0])})"
        if not self._number:
            self._writer.lines([Line(f"{self._watching}, building", Style.FAINT)])

    def measured(self, body: m.Measured) -> None:
        """A kernel of the last build ran on a GPU."""
        self._writer.lines([measured_line(body)])

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
        """A kernel is another one though nothing ran: an edit was taken back."""
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
            self._notify("the build failed", self._problem or done.message)
        elif self._notified and not self._failed:
            self._notified = False
            self._notify("the build is mended", self._why)
        if done.outcome is m.Outcome.BUILT:
            self._kernels = now_of
            if now:
                self._compared(_comparison(now, changes, others, first))
            if shown:
                self._writer.lines(self._table(changes, len(others), first))
        if shown:
            learned = f"learned time {text.duration(self._expected_s)}; " if self._expected_s >= 0.005 else ""
            self._writer.lines([Line(f"{learned}{self._watching}", Style.FAINT)])

    def _table(self, changes: list[tuple[m.Kernel | None, m.Kernel | None]], recoded: int, first: bool) -> list[Line]:
        number = sum(len(kernels) for kernels in self._kernels.values())
        if not number:
            return []
        total = text.count(number, "kernel")
        if first:
            return [Line(total), *kernel_table(changes, whole=True)]
        known = any(kernel.code for kernels in self._kernels.values() for kernel in kernels)
        code = f"{recoded} of {total} changed in code" if known else ""
        if not changes:
            return [Line(f"{code or total}, none needs more or less than before")]
        there = sum(now is not None for _, now in changes)
        moves = f"{code}, {there} moved" if code else f"{there} of {total} moved"
        if there < len(changes):
            moves += f", {len(changes) - there} gone"
        return [Line(moves), *kernel_table(changes)]


def measured_line(body: m.Measured) -> Line:
    """How a kernel did: its time, rate and error, and the last time on the same problem."""
    where = f"{clean(body.target)} {body.problem}"
    if not body.time_us:
        return Line(f"{where}: {clean(body.outcome)}: {clean(body.message)}, on {clean(body.gpu)}", Style.ERROR)
    text = f"{where}: {body.time_us:.1f} us, {body.tflops:.1f} TFLOP/s"
    style = Style.PLAIN
    if body.before_us:
        change = body.time_us / body.before_us - 1
        text += f" ({change:+.1%}, {body.before_us:.1f} us before)"
        if abs(change) > max(body.spread, _NOISE):
            style = Style.GOOD if change < 0 else Style.WARNING
    noisy = f", {body.spread:.0%} spread" if body.spread > _NOISY else ""
    return Line(f"{text}, error {body.error:.1e}{noisy}, on {clean(body.gpu)}", style)


def kernel_table(changes: list[tuple[m.Kernel | None, m.Kernel | None]], *, whole: bool = False) -> list[Line]:
    """Rows of kernels with their needs, before and after where those differ.

    Args:
        whole: there is no build before: what is there is not new.
    """
    shown = changes[:MOST_KERNELS]
    kernels = [now or before for before, now in shown]
    names = demangled([kernel.name for kernel in kernels if kernel is not None])
    columns = [
        column for column in _COLUMNS if any(column[1](kernel) >= 0 for pair in shown for kernel in pair if kernel)
    ]
    rows = [["kernel", "arch", *(title for title, _ in columns)]]
    styles = [Style.FAINT]
    for name, (before, now) in zip(names, shown, strict=True):
        kernel = now or before
        assert kernel is not None
        mark = "" if whole or (before and now) else "+ " if now else "- "
        rows.append([mark + text.shortened(clean(name), _NAME_COLUMNS), kernel.arch])
        for _, value in columns:
            old, new = (-1 if k is None else value(k) for k in (before, now))
            rows[-1].append(f"{old} -> {new}" if min(old, new) >= 0 and old != new else str(max(old, new, 0)))
        styles.append(_style_of(before, now))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        Line("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip(), style)
        for row, style in zip(rows, styles, strict=True)
    ]
    if len(changes) > len(shown):
        lines.append(Line(f"  and {len(changes) - len(shown)} more", Style.FAINT))
    return lines


def demangled(names: list[str]) -> list[str]:
    """C++ names as people write them; as they are where there is no c++filt."""
    for command in _DEMANGLERS:
        try:
            ran = subprocess.run(
                command, input="\n".join(names), capture_output=True, text=True, timeout=_DEMANGLE_S, check=True
            )
        except (OSError, subprocess.SubprocessError):
            continue
        found = ran.stdout.splitlines()
        if len(found) == len(names):
            return found
    return names


def _style_of(before: m.Kernel | None, now: m.Kernel | None) -> Style:
    if before is None or now is None:
        return Style.PLAIN
    spills = [k.spill_store_bytes + k.spill_load_bytes + k.spilled_registers for k in (before, now)]
    if spills[1] > spills[0]:
        return Style.WARNING
    return Style.GOOD if spills[1] < spills[0] else Style.PLAIN


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
    """A failure in one line: the compiler's first error, or what became of the action."""
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
