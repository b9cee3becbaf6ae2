"""This machine's processor: its identity, and the meaning of -march=native for a compiler here.

Knows /proc/cpuinfo and no cache. A compiler asks the processor itself, so its answer is valid for this machine until
the next boot. If the cores differ, no answer is valid.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

from codegen.compilers.closure import Environment
from codegen.compilers.command_parser import PassThrough, Reason
from codegen.plan import Knowledge, Probe

_CHANGING = frozenset(
    {"processor", "physical id", "siblings", "core id", "cpu cores", "apicid", "initial apicid", "cpu MHz", "bogomips"}
    | {"BogoMIPS", "power management", "hart", "clock"}
)
_FEATURES = frozenset({"flags", "Features", "isa", "vendor_id", "CPU implementer", "features"})


def meaning(knowledge: Knowledge, driver: str, environment: Environment, flags: tuple[str, ...]) -> str:
    """Return the options that the compiler proper gets for flags such as -march=native.

    Raises:
        ProbesNeeded: run these probes, add their answers to `knowledge`, and call again.
        PassThrough: the options cannot be determined.
    """
    machine = processors()
    if len(machine) != 1:
        raise PassThrough(Reason.MACHINE, f"{flags[0]}: the processor's cores differ")
    # Nothing reads this text: it makes another machine that uses the same store run the probe again.
    text = f"{_boot()}\n{machine[0]}".encode()
    probe = Probe(
        argv=(driver, *flags, "-###", "-E", "-x", "c++", "-", "-o", "/dev/null"),
        environment=environment,
        files=(driver,),
        payload=text,
    )
    (answer,) = knowledge.ask(probe)
    lines = [line for line in (answer.stderr + answer.stdout).splitlines() if "cc1" in line]
    if answer.status != 0 or len(lines) != 1 or "=native" in lines[0]:
        raise PassThrough(Reason.MACHINE, flags[0])
    return lines[0].strip()


@functools.cache
def processors() -> tuple[str, ...]:
    """Return a description of each kind of core of this machine; empty if the kernel gives none."""
    kinds = dict.fromkeys(_described(core, lambda name: name not in _CHANGING) for core in _cores())
    return tuple(kind for kind in kinds if kind)


@functools.cache
def features() -> str:
    """Return the instruction sets that all cores of this machine have, in the kernel's words; empty if it lists
    none."""
    return "\n".join(dict.fromkeys(_described(core, _FEATURES.__contains__) for core in _cores()))


def _cores() -> list[str]:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return []
    # Some architectures describe the machine before or after the list of cores.
    return [core for core in re.split(r"\n\s*\n", text) if re.search(r"^(processor|hart)\s*:", core, re.MULTILINE)]


def _described(core: str, counts: Callable[[str], bool]) -> str:
    lines = (line.partition(":") for line in core.splitlines())
    return "\n".join(f"{name.strip()}:{value.strip()}" for name, _, value in lines if counts(name.strip()))


def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
