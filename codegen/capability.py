"""Which GPUs run code of which architectures, by their compute capability; and what is to be measured there.

Knows numbers, no GPU and no kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from codegen.plan import Unmeasured

ANY = ""
"""Stands for the capability of a GPU of which nobody knows more than that it is there."""
NOT_MEASURED = "not-measured"
"""Code of the refusal that stands for "measure first"."""
_MOST_NAMES = 4


def runs_on(arch: str, capability: str) -> bool:
    """Whether code of an architecture runs on a GPU without being compiled once more by its driver.

    Args:
        capability: "9.0"; of AMD's the architecture itself.
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
    """The architecture that an entry point takes on such a GPU; empty where none runs there."""
    return max((arch for arch in archs if runs_on(arch, capability)), key=height, default="")


def height(arch: str) -> tuple[int, bool]:
    return int("".join(letter for letter in arch if letter.isdecimal())), arch.endswith("a")


def to_measure(unmeasured: Iterable[Unmeasured], capabilities: Iterable[str]) -> tuple[str, ...]:
    """The targets of which something can be measured on GPUs of these capabilities, before they are built.

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
    """One line for all that was guessed; none where nothing was."""
    names = [one.target for one in every if one.guessed]
    if not names:
        return ()
    archs = dict.fromkeys(arch for one in every for arch in one.guessed)
    some = ", ".join(names[:_MOST_NAMES]) + (f" and {len(names) - _MOST_NAMES} more" if names[_MOST_NAMES:] else "")
    return (f"{some}: nothing was measured for {', '.join(archs)}, so the likeliest kernels are taken",)
