"""Assemblers' reports about kernels -> `Kernel`s. PURE: text in, structs out.

Understands `ptxas -v`; buildd shows the report as one table instead of its lines. Knows no binary formats and does not
demangle.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from protocol.messages import Kernel

_KERNEL = re.compile(r"ptxas info    : Compiling entry function '(?P<name>[^']+)' for '(?P<arch>\w+)'")
_PROPERTIES = re.compile(r"ptxas info    : Function properties for (?P<name>\S+)")
_STACK = re.compile(
    r"    (?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads"
)
_USED = re.compile(r"ptxas info    : Used (?P<registers>\d+) registers(?P<rest>.*)")
_MEMORY = re.compile(r"(?P<bytes>\d+) bytes (?P<what>smem|cmem\[\d+\])")
_OTHER = re.compile(
    r"ptxas info    : (?:\d+ bytes gmem.*|Compile time = .*|Compiling for .*|Function properties for .*)"
    r"|    \d+ bytes stack frame, .*"
)


def is_report(line: str) -> bool:
    """Whether a line of a tool's output appears only because of `-v`."""
    if not line.startswith(("ptxas info    : ", "    ")):
        return False
    return any(shape.fullmatch(line) for shape in (_KERNEL, _USED, _OTHER))


def without_report(text: bytes) -> bytes:
    """A tool's output without the lines of the report."""
    if b"ptxas info" not in text:
        return text
    lines = text.splitlines(keepends=True)
    return b"".join(line for line in lines if not is_report(line.decode(errors="replace").rstrip("\r\n")))


def kernels_in(text: str) -> tuple[Kernel, ...]:
    """The kernels of a report, in its order; device functions that are called and not launched are left out."""
    found: dict[tuple[str, str], Kernel] = {}
    current: tuple[str, str] = ("", "")
    described = ""
    for line in text.splitlines() if "ptxas info" in text else ():
        if match := _KERNEL.fullmatch(line):
            current = match["name"], match["arch"]
            described = ""
            found[current] = Kernel(name=match["name"], arch=match["arch"])
        elif match := _PROPERTIES.fullmatch(line):
            described = match["name"]
        elif current not in found:
            continue
        elif (match := _STACK.fullmatch(line)) and described == current[0]:
            found[current] = msgspec.structs.replace(
                found[current],
                stack_bytes=int(match["stack"]),
                spill_store_bytes=int(match["stores"]),
                spill_load_bytes=int(match["loads"]),
            )
        elif match := _USED.fullmatch(line):
            memory = [(use["what"], int(use["bytes"])) for use in _MEMORY.finditer(match["rest"])]
            found[current] = msgspec.structs.replace(
                found[current],
                registers=int(match["registers"]),
                shared_bytes=sum(size for what, size in memory if what == "smem"),
                constant_bytes=sum(size for what, size in memory if what != "smem"),
            )
            current = ("", "")
    return tuple(found.values())


def moved(before: Iterable[Kernel], now: Iterable[Kernel]) -> list[tuple[Kernel | None, Kernel | None]]:
    """The kernels whose needs have changed, before and now; None in place of a kernel that did not exist then."""
    old, new = _by_name(before), _by_name(now)
    pairs = [(old.get(key), new.get(key)) for key in {**old, **new}]
    return [(one, other) for one, other in pairs if _needs(one) != _needs(other)]


def recoded(before: Iterable[Kernel], now: Iterable[Kernel]) -> list[Kernel]:
    """The kernels that existed before and have other machine code now."""
    old = _by_name(before)
    found = ((old.get(key), kernel) for key, kernel in _by_name(now).items())
    return [kernel for one, kernel in found if one is not None and one.code and kernel.code not in ("", one.code)]


def standing(
    before: dict[str, tuple[Kernel, ...]], told: dict[str, tuple[Kernel, ...]], planned: int
) -> dict[str, tuple[Kernel, ...]]:
    """The kernels of each action after a build.

    Args:
        before: action -> its kernels before the build.
        told: action -> its kernels, for the actions that the build reported. Other actions keep their kernels: they
            were not requested, or are unchanged.
        planned: how many actions the plan has; 0 where there is no plan. If all of them were reported, the other
            actions no longer exist.
    """
    return told if planned and len(told) == planned else {**before, **told}


def completed(reported: Iterable[Kernel], read: Iterable[Kernel]) -> tuple[Kernel, ...]:
    """The assembler's report about kernels, completed from the file that it made.

    Args:
        reported: kernels from the report; they win where both know a value.
        read: kernels from the file.
    """
    found = _by_name(read)
    for key, kernel in _by_name(reported).items():
        said = {name: value for name, value in msgspec.structs.asdict(kernel).items() if value not in (-1, "")}
        found[key] = msgspec.structs.replace(found.get(key, kernel), **said)
    return tuple(found.values())


def _by_name(kernels: Iterable[Kernel]) -> dict[tuple[str, str], Kernel]:
    return {(kernel.name, kernel.arch): kernel for kernel in kernels}


def _needs(kernel: Kernel | None) -> Kernel | None:
    return None if kernel is None else msgspec.structs.replace(kernel, code="")
