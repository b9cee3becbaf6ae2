"""This machine's processor: what -march=native means to a compiler here, and which one it is.

Knows /proc/cpuinfo and no cache. A compiler asks the processor itself, so its answer holds for this machine until it is
started anew; where the cores differ, it holds for none.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

from codegen.closure import Environment
from codegen.parsing import HandThrough, Reason
from codegen.plan import Knowledge, Probe

_CHANGING = frozenset(
    {"processor", "physical id", "siblings", "core id", "cpu cores", "apicid", "initial apicid", "cpu MHz", "bogomips"}
    | {"BogoMIPS", "power management", "hart", "clock"}
)
_FEATURES = frozenset({"flags", "Features", "isa", "vendor_id", "CPU implementer", "features"})


def meaning(knowledge: Knowledge, driver: str, environment: Environment, flags: tuple[str, ...]) -> str:
    """What flags that mean this processor come to: the options that the compiler proper gets for them.

    Raises:
        ProbesNeeded: run these, tell `knowledge` the answers, and call again.
        HandThrough: that cannot be told.
    """
    machine = processors()
    if len(machine) != 1:
        raise HandThrough(Reason.MACHINE, f"{flags[0]}: the processor's cores differ")
    # Nothing reads the text: it has the question asked again on another machine that has this store.
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
        raise HandThrough(Reason.MACHINE, flags[0])
    return lines[0].strip()


@functools.cache
def processors() -> tuple[str, ...]:
    """This machine's kinds of cores, each described; empty where that is not told."""
    kinds = dict.fromkeys(_described(core, lambda name: name not in _CHANGING) for core in _cores())
    return tuple(kind for kind in kinds if kind)


@functools.cache
def features() -> str:
    """The instruction sets that all of this machine's cores have, as the kernel tells them; empty where it does not."""
    return "\n".join(dict.fromkeys(_described(core, _FEATURES.__contains__) for core in _cores()))


def _cores() -> list[str]:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return []
    # Behind the cores some architectures describe the machine; before them, too.
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
