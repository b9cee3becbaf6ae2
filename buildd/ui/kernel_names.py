"""Names of kernels as people write them, and in short. Knows no table."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Sequence

_DEMANGLERS = (("c++filt", "--no-recurse-limit"), ("c++filt",))
"""Without the option GNU's c++filt leaves names of over a thousand characters alone; llvm's has no such option."""
_DEMANGLE_S = 5.0
_OPENING, _CLOSING = "(<[{", ")>]}"
_OPERATORS = ("operator<<", "operator<", "operator>", "operator->", "operator()")


def demangled(names: list[str]) -> list[str]:
    """C++ names as people write them; unchanged if there is no c++filt."""
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


def in_short(names: Sequence[str]) -> list[str]:
    """Demangled names without return types and parameters, which are the longest and say least.

    A name that several kernels would then have keeps its parameters.
    """
    short = [_without_signature(name) for name in names]
    whole_of: dict[str, set[str]] = {}
    for name, full in zip(short, names, strict=True):
        whole_of.setdefault(name, set()).add(full)
    common = Counter({name: len(wholes) for name, wholes in whole_of.items()})
    return [name if common[name] == 1 else full for name, full in zip(short, names, strict=True)]


def _without_signature(name: str) -> str:
    """`void ns::scan<float, 4>(float const*, int)` -> `ns::scan<float, 4>`; other names stay as they are."""
    if any(operator in name for operator in _OPERATORS):
        return name  # its brackets are no pairs
    depth, begin, end = 0, 0, len(name)
    for at, letter in enumerate(name):
        if letter in _OPENING:
            ends = depth == 0 and letter == "(" and name[begin:at] not in ("", "decltype")
            if ends and not name.startswith("(anonymous namespace)", at):
                end = at
                break
            depth += 1
        elif letter in _CLOSING:
            depth -= 1
        elif letter == " " and depth == 0:
            begin = at + 1
    return name[begin:end] if depth == 0 and end > begin else name
