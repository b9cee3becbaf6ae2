"""The best kernels that are known, as files that plans read: written by whoever measures, chosen from by generators.

Knows neither how anything was measured nor where all measurements are kept (`buildd/profiles`). A file that is missing,
damaged or of another version holds no kernel: every kernel computes the same, so a plan without one is only slower.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping

import msgspec

from codegen.plan import Frozen

FILE = "best.json"
FORMAT = 1


class Setting(Frozen, frozen=True):
    """What a time stands for besides problem and candidate: one of these is another row."""

    gpu: str
    """Model, as the driver calls it: "NVIDIA H200"."""
    driver: str
    toolkit: str
    """nvcc's version."""
    library: str
    """CUTLASS's version."""
    flags: str
    """Of the compile, as far as the target chooses them."""
    capability: str = ""
    """"9.0"."""


class Best(Frozen, frozen=True):
    """The fastest candidate that was measured, and found right, for a problem in a setting."""

    setting: Setting
    problem: str
    candidate: str
    time_us: float = 0.0
    """0 where somebody else measured it and did not say."""
    measured_ns: int = 0


class Published(Frozen, frozen=True):
    """The file."""

    format: int = FORMAT
    best: tuple[Best, ...] = ()


def cache_dir(environment: Mapping[str, str], project: str) -> str:
    """The folder that CACHE_DIR names, absolute; a relative one is below the project. Empty where it is not set."""
    chosen = environment.get("CACHE_DIR", "")
    if not chosen:
        return ""
    if chosen == "~" or chosen.startswith("~/"):
        chosen = environment.get("HOME", "") + chosen[1:]
    return os.path.normpath(os.path.join(project, chosen))


def folders(environment: Mapping[str, str], store: str, project: str) -> tuple[str, ...]:
    """Where the profiles of a request are: the first holds what is measured, if it can be written.

    Args:
        environment: CACHE_DIR and HOME are read.
        store: folder of the request's store; empty where it names none, and then only CACHE_DIR counts.
    """
    shared = cache_dir(environment, project)
    own = f"{store}/profiles" if store else ""
    if not shared:
        return (own,) if own else ()
    # What CACHE_DIR cannot hold (it may not be written, it is on a network file system) stands in here.
    stand_in = f"{own}/{hashlib.sha256(os.fsencode(shared)).hexdigest()[:16]}"
    return (f"{shared}/buildd", stand_in) if own else (f"{shared}/buildd",)


def published(places: Iterable[str]) -> tuple[Best, ...]:
    """Everything that the files in these folders hold."""
    found: list[Best] = []
    for place in places:
        try:
            with open(os.path.join(place, FILE), "rb") as file:
                read = msgspec.json.decode(file.read(), type=Published)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            continue
        found += read.best if read.format == FORMAT else ()
    return tuple(found)


def choose(
    known: Iterable[Best], problem: str, *, toolkit: str, library: str, flags: str, capability: str
) -> Best | None:
    """The kernel to take for a problem; None where nobody has measured it.

    Its library and flags have to be the plan's. A time of the same toolkit counts more than one of another, one of a
    GPU with just this capability more than one of a later GPU, a measured one more than an imported one, and after that
    the latest.
    """
    fitting = [
        best
        for best in known
        if best.problem == problem
        # An imported one says neither.
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
