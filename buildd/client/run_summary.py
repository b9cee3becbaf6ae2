"""The summary of a `buildd run` for programs, and the check that nothing was compiled (`--fail-on-miss`).

Knows figures and the calls that came to the daemon; runs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from buildd.errors import BuilddError
from buildd.exits import FAILED
from buildd.store.found_notes import FoundKernels
from buildd.ui.text import clean, count, duration

if TYPE_CHECKING:
    from protocol.messages import BuildFigures, Explained, TierStatus

_MOST_NAMED = 20
_MOST_TOLD = 5
"""So many compiles are named with their reasons."""
_PASSED = "passed through"


class SummaryError(BuilddError):
    """The file of `--summary` cannot be written."""

    code = "summary"


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The file of `--summary`: one JSON object that always has all keys.

    Args:
        looked_up: false if buildd was off or out of reach: then nothing was counted.
        misses: compiles that ran, also those that failed.
        missed: misses by reason, without those that failed.
        passed_through: calls that ran as the plain tool, by reason.
        saved_s: the time that the hits would have taken.
        from_store: what the command's programs found: traces, graphs, kernels and programs.
        status: the command's exit status.
    """

    looked_up: bool
    hits: int
    misses: int
    failures: int
    cancelled: int
    missed: dict[str, int]
    passed_through: dict[str, int]
    saved_s: float
    from_store: dict[str, int]
    status: int


def write(file: Path, figures: BuildFigures, status: int, *, looked_up: bool, from_store: FoundKernels) -> None:
    """Write the summary. Raises SummaryError."""
    found = RunSummary(
        looked_up=looked_up,
        hits=figures.hits,
        misses=figures.misses,
        failures=figures.failures,
        cancelled=figures.cancelled,
        missed=figures.missed,
        passed_through=figures.passed_through,
        saved_s=figures.saved_s,
        from_store=from_store._asdict(),
        status=status,
    )
    try:
        file.write_bytes(msgspec.json.encode(found) + b"\n")
    except OSError as error:
        raise SummaryError(
            f"the summary cannot be written: {error.strerror}",
            file=str(file),
            next_step="name a file that you may write",
        ) from error


def checked(
    status: int, figures: BuildFigures, calls: Sequence[Explained], *, looked_up: bool
) -> tuple[int, list[str]]:
    """The exit status with `--fail-on-miss`, and lines: why it is not the command's, or that nothing was checked. There
    are none if compiles were checked and none ran. The last line names the compiles, those before it say why the first
    of them ran, as `buildd explain` does."""
    ran = figures.misses + figures.cancelled
    if status:
        return status, []
    if looked_up and not ran:
        called = "COMMAND compiled nothing" if figures.passed_through else "the build was up to date"
        way = "to check the cache, build in an empty folder"
        nothing = f"--fail-on-miss: {called}, so nothing was checked; {way}"
        return status, [] if figures.hits else [nothing]
    if not looked_up:
        return FAILED, ["--fail-on-miss: nothing was looked up, so compiles may have run"]
    missed = [call for call in calls if call.would_run and not any(why.startswith(_PASSED) for why in call.reasons)]
    named = ", ".join(clean(call.action) for call in missed[:_MOST_NAMED])
    more = f" and {len(missed) - _MOST_NAMED} more" if len(missed) > _MOST_NAMED else ""
    lines = [f"ran {clean(call.action)}: {clean('; '.join(call.reasons))}" for call in missed[:_MOST_TOLD]]
    if len(missed) > _MOST_TOLD:
        lines.append("`buildd explain --last` says why the others ran")
    return FAILED, [*lines, f"--fail-on-miss: {count(ran, 'compile')} ran: {named or 'cancelled in the daemon'}{more}"]


def tier_trouble(tier: TierStatus | None) -> Iterator[str]:
    """Why the shared cache that the user has named cannot help, in one line; nothing if it can."""
    if tier is None:
        return
    if not tier.url:
        yield f"the shared cache is not used: {clean(tier.problem)}"
    elif not tier.believed:
        yield f"the shared cache {clean(tier.url)} is not read, because no key is trusted: buildd cache trust KEY NAME"
    elif tier.unread_for_s:
        why = f": {clean(tier.problem)}" if tier.problem else ""
        for_s = duration(tier.unread_for_s)
        yield f"the shared cache {clean(tier.url)} failed and is not asked for the next {for_s}{why}"
    elif tier.counts.get("failures") and not tier.counts.get("hits") and not tier.counts.get("not there"):
        yield f"the shared cache {clean(tier.url)} did not answer: {clean(tier.problem)}"
