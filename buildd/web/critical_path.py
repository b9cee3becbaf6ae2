"""The critical path of a build: the chain of jobs that made it last as long as it did. PURE.

Knows starts, ends and what waited for what; nothing of tools. A job waits for the files of another one, or for a slot
that another one holds: both lengthen a build.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import msgspec

_AT_ONCE_S = 0.002
"""Two events of one moment: the later one may be written first."""
_WAIT_S = 0.1
"""A job that begins so long after it could have begun waited for a slot: for a processor, for memory."""


class Link(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job that has run. Times are seconds after the build's beginning."""

    id: int
    name: str
    after: str = ""
    """The action for which it waited last."""
    queued_s: float = 0.0
    start_s: float = 0.0
    end_s: float = 0.0
    waited_for: str = ""
    """In a critical path, how the job before it held it up: "files" or "slot"; empty for the first one."""


def critical_path(links: Sequence[Link], *, by_time: bool = False) -> list[Link]:
    """The chain that ends with the job that ended last, in the order of time.

    Args:
        by_time: nobody has told what waits for what, as in a build of make: a job counts as waiting for the one that
            ended last before it was queued.
    """
    if not links:
        return []
    by_end = sorted(links, key=lambda link: link.end_s)
    ends = [link.end_s for link in by_end]
    named = {link.name: link for link in by_end}
    chain: list[Link] = []
    current: Link | None = by_end[-1]
    while current is not None:
        is_slot = current.start_s - current.queued_s > _WAIT_S
        if is_slot or by_time:
            at_s = current.start_s if is_slot else current.queued_s
            place = bisect_right(ends, at_s + _AT_ONCE_S)
            before = by_end[place - 1] if place else None
        else:
            before = named.get(current.after)
        if before is None or before.end_s >= current.end_s:
            is_slot = False
            before = None
        how = "" if before is None else "slot" if is_slot else "files"
        chain.append(msgspec.structs.replace(current, waited_for=how))
        current = before
    return chain[::-1]
