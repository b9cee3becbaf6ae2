"""Times of a vendor's library on the problems that were profiled: a file beside the profiles, for people who compare.

No plan reads them, so a wrong one changes no build. Knows no GPU and no library.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from buildd.files.atomic_write import replace_file
from protocol.described import described

FILE = "profiles/library.json"


class LibraryTime(msgspec.Struct, frozen=True, kw_only=True):
    """A library's time on a problem."""

    gpu: str
    """The model, as profiles name it."""
    problem: str
    library: str
    """"cuBLAS 13.1"."""
    time_us: float


def library_times(store: Path) -> list[LibraryTime]:
    """The times that were added; none where the file is missing or damaged."""
    try:
        return msgspec.json.decode((store / FILE).read_bytes(), type=described(list[LibraryTime]))
    except (OSError, msgspec.MsgspecError, ValueError):
        return []


def add_library_times(store: Path, times: Iterable[LibraryTime]) -> None:
    """Add times, each in place of an older one of the same GPU and problem. Raises OSError."""
    known = {(one.gpu, one.problem): one for one in (*library_times(store), *times)}
    (store / FILE).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_file(store / FILE, msgspec.json.encode(list(known.values())) + b"\n")
