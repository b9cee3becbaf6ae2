"""The tables behind the pages: histories, kernels over builds, programs, search results. Pages get them as JSON.

Knows past builds through the archive; nothing of HTTP and nothing of what runs now.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from buildd.artifacts.occupancy import occupancy
from buildd.store.build_log import Build
from buildd.ui.kernel_names import demangled
from buildd.web.archive import Archive
from buildd.web.facts import ActionFact
from protocol.messages import Kernel, ProgramStart

READ_FIRST = 100
"""Builds whose events are read for a page at once; those of older builds are gathered meanwhile."""
MOST_FOUND = 100


class BuildLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the list of builds."""

    id: str
    began_ns: int
    wall_s: float
    outcome: str
    project: str
    targets: tuple[str, ...] = ()
    command: str = ""
    hits: int = 0
    misses: int = 0
    failures: int = 0
    saved_s: float = 0.0
    message: str = ""


class KernelPoint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A kernel as one build made it; -1 is unknown."""

    build: str
    began_ns: int
    registers: int
    shared_bytes: int
    spill_bytes: int
    stack_bytes: int
    occupancy: float = -1.0
    code: str = ""


class KernelLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A kernel over the builds of a project, oldest first; a build that changed nothing is left out."""

    name: str
    arch: str
    project: str
    points: tuple[KernelPoint, ...]
    builds: int
    """Builds that had this kernel."""


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """A program's ledger, and the build in whose log it stands."""

    build: str
    began_ns: int
    project: str
    start: ProgramStart


class Match(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A search result. `kind`: "build", "target", "action" or "kernel"."""

    kind: str
    text: str
    build: str
    began_ns: int
    project: str
    note: str = ""


class TargetPoint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One build of a target."""

    line: BuildLine
    actions: tuple[ActionFact, ...] = ()
    """Its own actions that ran."""


def line_of(build: Build) -> BuildLine:
    figures = build.summary
    return BuildLine(
        id=build.request_id,
        began_ns=build.started_ns,
        wall_s=figures.wall_s,
        outcome=build.outcome.value,
        project=build.project,
        targets=build.targets,
        command=figures.command,
        hits=figures.hits,
        misses=figures.misses,
        failures=figures.failures,
        saved_s=figures.saved_s,
        message=figures.message,
    )


def listed(builds: Iterable[Build], asked: str) -> list[BuildLine]:
    """The builds that a text fits: each of its words is in the id, project, targets, command or outcome."""
    words = asked.lower().split()
    return [line_of(build) for build in builds if all(word in _searched(build) for word in words)]


def _searched(build: Build) -> str:
    texts = (build.build_id, build.request_id, build.project, *build.targets, build.summary.command)
    return " ".join((*texts, build.outcome.value, build.summary.message)).lower()


def kernels(archive: Archive, asked: str) -> list[KernelLine]:
    """Kernels over builds, those that changed last first.

    Args:
        asked: words; each has to be in a kernel's name, architecture or project.
    """
    found: dict[tuple[str, str, str], list[KernelPoint]] = {}
    seen: dict[tuple[str, str, str], int] = {}
    for build, facts in reversed(archive.known_facts(archive.builds(), READ_FIRST)):
        for kernel in facts.kernels:
            key = (build.project, kernel.name, kernel.arch)
            points = found.setdefault(key, [])
            seen[key] = seen.get(key, 0) + 1
            point = _point(build, kernel)
            if not points or _figures(points[-1]) != _figures(point):
                points.append(point)
    keys = sorted(found, key=lambda key: -found[key][-1].began_ns)
    names = dict(zip(keys, demangled([name for _, name, _ in keys]), strict=True))
    words = asked.lower().split()
    lines = (
        KernelLine(name=names[key], arch=key[2], project=key[0], points=tuple(found[key]), builds=seen[key])
        for key in keys
    )
    return [line for line in lines if all(w in f"{line.name} {line.arch} {line.project}".lower() for w in words)]


def _point(build: Build, kernel: Kernel) -> KernelPoint:
    spills = [each for each in (kernel.spill_store_bytes, kernel.spill_load_bytes) if each >= 0]
    return KernelPoint(
        build=build.request_id,
        began_ns=build.started_ns,
        registers=kernel.registers,
        shared_bytes=kernel.shared_bytes,
        spill_bytes=sum(spills) if spills else kernel.spilled_registers,
        stack_bytes=kernel.stack_bytes,
        occupancy=occupancy(kernel),
        code=kernel.code,
    )


def _figures(point: KernelPoint) -> tuple[object, ...]:
    return point.registers, point.shared_bytes, point.spill_bytes, point.stack_bytes, point.code


def programs(archive: Archive) -> list[Program]:
    """The ledgers of programs, the latest first."""
    return [
        Program(build=build.request_id, began_ns=build.started_ns, project=build.project, start=start)
        for build, facts in archive.known_facts(archive.builds(), READ_FIRST)
        for start in facts.programs
    ][:MOST_FOUND]


def target(archive: Archive, project: str, name: str) -> list[TargetPoint]:
    """The builds of a target, the latest first."""
    builds = [build for build in archive.builds() if build.project == project and name in build.targets]
    return [
        TargetPoint(
            line=line_of(build),
            actions=tuple(a for a in facts.actions if a.name == name or a.name.startswith(f"{name}/")),
        )
        for build, facts in archive.known_facts(builds, READ_FIRST)
    ]


def search(archive: Archive, asked: str) -> list[Match]:
    """Builds, targets, actions and kernels that hold each word of a text; each text once, with its latest build."""
    words = asked.lower().split()
    if not words:
        return []
    found: dict[tuple[str, str, str], Match] = {}
    for build, match in _candidates(archive):
        key = (match.kind, match.text, match.project)
        if key not in found and all(word in f"{match.text} {build.project}".lower() for word in words):
            found[key] = match
            if len(found) >= MOST_FOUND:
                break
    return list(found.values())


def _candidates(archive: Archive) -> Iterator[tuple[Build, Match]]:
    for build, facts in archive.known_facts(archive.builds(), READ_FIRST):
        common = {"build": build.request_id, "began_ns": build.started_ns, "project": build.project}
        title = build.summary.command or " ".join(build.targets)
        yield build, Match(kind="build", text=f"{build.build_id} {title}", note=build.outcome.value, **common)  # type: ignore[arg-type]
        for name in build.targets:
            yield build, Match(kind="target", text=name, **common)  # type: ignore[arg-type]
        for action in facts.actions:
            yield build, Match(kind="action", text=action.name, note=action.kind, **common)  # type: ignore[arg-type]
        for kernel in facts.kernels:
            yield build, Match(kind="kernel", text=kernel.name, note=kernel.arch, **common)  # type: ignore[arg-type]
