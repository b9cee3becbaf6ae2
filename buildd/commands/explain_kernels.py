"""`buildd explain --kernels [NAME]`: says why Triton and Inductor compiled kernels and graphs, newest first.

Only prints: the programs themselves compare keys and note the reasons (`hooks/triton_why`, `hooks/inductor_why`).
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from buildd.client.request import store_of
from buildd.exits import OK
from buildd.hooks.triton_why import FOLDER, LOG
from buildd.ui.layout import reason_lines
from buildd.ui.problems import print_lines
from buildd.ui.text import Line, clean

_NAMED = 8
"""Names that are listed if none is like the one that was asked for."""
_SHOWN = 20


class Compiled(msgspec.Struct, frozen=True, kw_only=True):
    """One note that a program left."""

    time_s: float
    kernel: str
    target: str
    reasons: list[str]


def explain(only: str, *, json: bool) -> int:
    """Carry out the command.

    Args:
        only: a part of a kernel's name or file; empty for all.

    Raises: StoreError if no store can be opened.
    """
    known = noted(Path(store_of(os.environ)))
    found = [one for one in known if only in one.kernel]
    if json:
        print("".join(msgspec.json.encode(one).decode() + "\n" for one in found), end="")
        return OK
    lines = []
    for one in reversed(found[-_SHOWN:]):
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one.time_s))
        lines += reason_lines(f"compiled {clean(one.kernel)} for {clean(one.target)}, {when}", tuple(one.reasons))
    if not found:
        which = f"no kernel whose name contains {clean(only)}" if only else "no kernel and no graph"
        lines.append(Line(f"{which} was compiled under `buildd run` since the store was flushed"))
        names = list(dict.fromkeys(clean(one.kernel) for one in reversed(known)))[:_NAMED]
        lines += [Line(f"  compiled: {name}") for name in names]
    print_lines(lines)
    return OK


def noted(store: Path) -> list[Compiled]:
    """The notes, oldest first; damaged ones are left out."""
    try:
        content = (store / FOLDER / LOG).read_bytes()
    except OSError:
        return []
    found = []
    for text in content.splitlines():
        try:
            found.append(msgspec.json.decode(text, type=Compiled))
        except msgspec.MsgspecError:
            continue
    return found
