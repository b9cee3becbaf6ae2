"""Tells which GPUs run the code of which architectures, by compute capability, and which targets can be measured there.

Knows numbers, no GPU and no kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from codegen.plan import Unmeasured

ANY = ""
"""Capability of a GPU that exists but is not known in detail."""
NOT_MEASURED = "not-measured"
"""Code of the refusal that means "measure first"."""
_MOST_NAMES = 4


def runs_on(arch: str, capability: str) -> bool:
    """Tell whether a GPU runs the code of an architecture without another compile by the driver.

    Args:
        capability: "9.0"; for AMD's GPUs the architecture itself.
    """
    if arch.startswith("gfx"):
        return arch.partition(":")[0] == capability
    major, _, minor = capability.partition(".")
    if not (major.isdecimal() and minor.isdecimal()):
        return False
    number = "".join(letter for letter in arch if letter.isdecimal())
    if arch.endswith("a"):
        return number == major + minor
    return number[:-1] == major and int(number[-1]) <= int(minor)


def best_arch(archs: Iterable[str], capability: str) -> str:
    """Return the architecture that an entry point selects on a GPU; empty if none runs there."""
    return max((arch for arch in archs if runs_on(arch, capability)), key=height, default="")


def height(arch: str) -> tuple[int, bool]:
    return int("".join(letter for letter in arch if letter.isdecimal())), arch.endswith("a")


def to_measure(unmeasured: Iterable[Unmeasured], capabilities: Iterable[str]) -> tuple[str, ...]:
    """Return the targets with kernels to measure on GPUs of these capabilities before the build.

    Args:
        capabilities: "9.0", or ANY.
    """
    known = tuple(capabilities)
    return tuple(
        one.target
        for one in unmeasured
        if one.wanted and any(each == ANY or best_arch(one.archs, each) in one.wanted for each in known)
    )


def guessing_notice(every: Sequence[Unmeasured]) -> tuple[str, ...]:
    """Return one line about all guessed kernels; nothing if there are none."""
    names = [one.target for one in every if one.guessed]
    if not names:
        return ()
    archs = dict.fromkeys(arch for one in every for arch in one.guessed)
    some = ", ".join(names[:_MOST_NAMES]) + (f" and {len(names) - _MOST_NAMES} more" if names[_MOST_NAMES:] else "")
    return (f"{some}: nothing was measured for {', '.join(archs)}, so buildd uses the likeliest kernels",)
