"""The layout of errors, findings and reasons, as lines. Knows no event of a build in progress (`narrator`)."""

from __future__ import annotations

import re

from buildd.ui.text import Line, Style, clean, spelled
from protocol import messages
from protocol.messages import Severity

SEVERITY_STYLE = {Severity.ERROR: Style.ERROR, Severity.WARNING: Style.WARNING, Severity.NOTE: Style.FAINT}
_AFTER_ERROR = re.compile(r"\berror(?: #[\w-]+)?\s*: ")


def error_lines(done: messages.Done) -> list[Line]:
    """A request that could not be carried out: message, file, next step."""
    return problem_lines(done.message or done.outcome.value, file=done.file, next_step=done.next_step)


def problem_lines(message: str, *, file: str = "", command: str = "", next_step: str = "") -> list[Line]:
    """The layout of every error: what is wrong, where, the command that repeats it, what to do next."""
    lines = [Line(f"error: {spelled(message)}", Style.ERROR)]
    for name, value in (("file", file), ("command", command), ("next", next_step)):
        if value:
            lines.append(Line(f"  {name}: {spelled(value)}"))
    return lines


def reason_lines(title: str, reasons: tuple[str, ...], style: Style = Style.PLAIN) -> list[Line]:
    """A title with its reasons: one on the same line, several below it."""
    if len(reasons) == 1:
        return [Line(f"{title}: {clean(reasons[0])}", style)]
    return [Line(title, style), *(Line(f"    {clean(reason)}") for reason in reasons)]


def is_among(diagnostic: messages.Diagnostic, said: list[str]) -> bool:
    """Whether a line that a tool printed has the finding, or its beginning: nvcc wraps long ones."""
    headline = clean(diagnostic.message.partition("\n")[0])
    return any(
        headline in line or ((start := _AFTER_ERROR.split(line, 1)[-1]) != line and headline.startswith(f"{start} "))
        for line in said
    )


def diagnostic_line(diagnostic: messages.Diagnostic) -> Line:
    place = clean(diagnostic.file)
    if diagnostic.line:
        place += f":{diagnostic.line}"
        if diagnostic.column:
            place += f":{diagnostic.column}"
    return Line(
        f"{place + ': ' if place else ''}{diagnostic.severity.value}: {clean(diagnostic.message)}",
        SEVERITY_STYLE[diagnostic.severity],
    )
