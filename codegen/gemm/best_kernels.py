"""Reads the files of the best known kernels: the profiler writes them, generators choose from them.

Knows neither how kernels are measured nor where all measurements are kept (`buildd.store.profiles`). A file that is
missing, damaged or of another version counts as empty: every kernel computes the same, so a plan without a measured
kernel is only slower at run time.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping

import msgspec

from codegen.plan import Frozen
from codegen.reach import read_regular

FILE = "best.json"
FORMAT = 1


class Setting(Frozen, frozen=True):
    """The setting of a measurement, in addition to problem and candidate. Each setting has its own row."""

    gpu: str
    """The driver's name of the GPU model: "NVIDIA H200"."""
    driver: str
    toolkit: str
    """nvcc's version."""
    library: str
    """CUTLASS's version."""
    flags: str
    """The compile's flags, as far as the target chooses them."""
    capability: str = ""
    """"9.0"."""


class Best(Frozen, frozen=True):
    """The fastest correct candidate that was measured for a problem in a setting."""

    setting: Setting
    problem: str
    candidate: str
    time_us: float = 0.0
    """0 for an imported row without a time."""
    measured_ns: int = 0


class Published(Frozen, frozen=True):
    """Content of the file."""

    format: int = FORMAT
    best: tuple[Best, ...] = ()


def cache_dir(environment: Mapping[str, str], project: str) -> str:
    """Return the absolute folder of CACHE_DIR; a relative one is below the project. Empty if it is not set."""
    chosen = environment.get("CACHE_DIR", "")
    if not chosen:
        return ""
    if chosen == "~" or chosen.startswith("~/"):
        chosen = environment.get("HOME", "") + chosen[1:]
    return os.path.normpath(os.path.join(project, chosen))


def folders(environment: Mapping[str, str], store: str, project: str) -> tuple[str, ...]:
    """Return the folders of a request's profiles. New measurements go into the first one, if it is writable.

    Args:
        environment: CACHE_DIR and HOME are used.
        store: folder of the request's store; if empty, only CACHE_DIR is used.
    """
    shared = cache_dir(environment, project)
    own = f"{store}/profiles" if store else ""
    if not shared:
        return (own,) if own else ()
    # Fallback if CACHE_DIR is not writable or is on a network file system.
    shim = f"{own}/{hashlib.sha256(os.fsencode(shared)).hexdigest()[:16]}"
    return (f"{shared}/buildd", shim) if own else (f"{shared}/buildd",)


def published(places: Iterable[str]) -> tuple[Best, ...]:
    """Return all rows of the files in these folders."""
    found: list[Best] = []
    for place in places:
        try:
            read = msgspec.json.decode(read_regular(os.path.join(place, FILE)), type=Published)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            continue
        found += read.best if read.format == FORMAT else ()
    return tuple(found)


def choose(
    known: Iterable[Best], problem: str, *, toolkit: str, library: str, flags: str, capability: str
) -> Best | None:
    """Return the best kernel for a problem; None if none was measured.

    Its library and flags must be the plan's. Order of preference: the same toolkit, a GPU with exactly this capability,
    measured before imported, then the latest.
    """
    fitting = [
        best
        for best in known
        if best.problem == problem
        # An imported row has neither.
        and (not best.setting.gpu or (best.setting.flags == flags and best.setting.library == library))
    ]

    def worth(best: Best) -> tuple[bool, bool, bool, int, str]:
        setting = best.setting
        return (
            best.time_us > 0,
            setting.toolkit == toolkit,
            setting.capability == capability,
            best.measured_ns,
            best.candidate,
        )

    return max(fitting, key=worth, default=None)
