"""The findings of a project's builds, for an editor: diagnostics by file, and the resources of kernels.

Knows the events of builds and the names of kernels; no editor, and no compiler.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from functools import cache

from buildd.artifacts.diagnostics import diagnose
from buildd.artifacts.disassembly import Form
from buildd.artifacts.kernel_reports import moved, standing
from buildd.artifacts.occupancy import occupancy
from buildd.ui.kernel_names import demangled
from protocol import messages as m

_KERNEL = re.compile(r"__global__\b")
_ATTRIBUTE = re.compile(r"__launch_bounds__\s*\([^)]*\)|__cluster_dims__\s*\([^)]*\)|__\w+__")
_NAME = re.compile(r"(\w+)\s*\(")


@dataclass(slots=True)
class Findings:
    """The builds' findings so far. One thread writes, another reads: so whole dicts are replaced."""

    project: str
    diagnostics: dict[str, tuple[m.Diagnostic, ...]] = field(default_factory=dict)
    """Action -> its findings when it last ended."""
    kernels: dict[str, tuple[m.Kernel, ...]] = field(default_factory=dict)
    """Action -> its kernels in the last good build."""
    before: dict[tuple[str, str], m.Kernel] = field(default_factory=dict)
    """Kernels whose resources were different in the build before, by mangled name and architecture."""
    names: dict[str, str] = field(default_factory=dict)
    """Mangled -> demangled name."""
    files: dict[str, str] = field(default_factory=dict)
    """Target -> its first artifact, absolute."""
    _lines: dict[str, list[str]] = field(default_factory=dict)
    """Action -> output of its tools in the current build."""
    _jobs: dict[m.JobId, str] = field(default_factory=dict)
    _new: dict[str, tuple[m.Kernel, ...]] = field(default_factory=dict)
    _hit: str = ""
    _told: dict[str, str] = field(default_factory=dict)
    """`files` of the current build."""
    _planned: int = 0
    """Number of planned actions of the current build; 0 without a plan."""
    _has_all: bool = True
    """No event of the current build was lost."""

    def begin(self) -> None:
        self._lines, self._jobs, self._new, self._hit, self._told, self._planned = {}, {}, {}, "", {}, 0
        self._has_all = True

    def take(self, body: m.EventBody) -> bool:
        """Take in an event; True if it ends the build."""
        match body:
            case m.Planned(actions=actions):
                self._planned = actions
            case m.Lagged():
                self._has_all = False
            case m.Started(job_id=job, action=action):
                self._jobs[job] = action
                self._lines.pop(action, None)  # it runs again: an input changed meanwhile
            case m.CacheHit(action=action, kernels=kernels):
                self._hit = action
                self._new[action] = kernels
                self.diagnostics = {**self.diagnostics, action: ()}
            case m.LogLine(job_id=job, text=text):
                action = self._jobs.get(job, self._hit)
                self._lines.setdefault(action, []).append(text)
                if job not in self._jobs:
                    self.diagnostics = {**self.diagnostics, action: diagnose("\n".join(self._lines[action]))}
            case m.Finished(action=action, kernels=kernels):
                self._new[action] = kernels
                found = diagnose("\n".join(self._lines.get(action, [])))
                self.diagnostics = {**self.diagnostics, action: found}
            case m.Failed(action=action, diagnostics=found):
                self.diagnostics = {**self.diagnostics, action: found}
            case m.Artifact(target=target, path=path):
                # Later artifacts of a target are by-products, such as a test.
                self._told.setdefault(target, os.path.join(self.project, path))
            case m.Done(outcome=outcome):
                if outcome is m.Outcome.BUILT:
                    self._learn()
                return True
            case _:
                pass
        return False

    def _learn(self) -> None:
        old = {(k.name, k.arch): k for kernels in self.kernels.values() for k in kernels}
        self.kernels = standing(self.kernels, self._new, self._planned)
        self.files = self._told
        # An action without an event is unchanged and has no findings, or does not exist any more.
        self.diagnostics = {
            action: found
            for action, found in self.diagnostics.items()
            if action in self._new or not (self._has_all or any(each.severity is m.Severity.ERROR for each in found))
        }
        now = {(k.name, k.arch): k for kernels in self.kernels.values() for k in kernels}
        moves = {(one.name, one.arch): one for one, other in moved(old.values(), now.values()) if one and other}
        if moves or not self.before:
            self.before = moves
        known = {name: self.names[name] for name, _ in now if name in self.names}
        missing = [name for name, _ in now if name not in known]
        self.names = {**known, **dict(zip(missing, demangled(missing), strict=True))}

    def by_file(self) -> dict[str, list[m.Diagnostic]]:
        """Findings by absolute path, without those of removed files; findings without a file go to the project file."""
        found: dict[str, list[m.Diagnostic]] = {}
        for several in self.diagnostics.values():
            for diagnostic in several:
                path = os.path.normpath(os.path.join(self.project, diagnostic.file or "buildd.toml"))
                if diagnostic.file and not os.path.exists(path):
                    continue
                if diagnostic not in found.setdefault(path, []):
                    found[path].append(diagnostic)
        return found

    def of_function(self, name: str) -> list[m.Kernel]:
        """The kernels of a function or function template."""
        kernels = [kernel for several in self.kernels.values() for kernel in several]
        return [kernel for kernel in kernels if base_name(self.names.get(kernel.name, kernel.name)) == name]

    def holders(self, name: str, form: Form) -> dict[str, list[str]]:
        """The files with kernels of a function that have this form -> the kernels' mangled names."""
        found: dict[str, list[str]] = {}
        wanted = {kernel.name for kernel in self.of_function(name) if form.suits(kernel)}
        for action, kernels in self.kernels.items():
            file = self.files.get(action.partition("/")[0])
            names = dict.fromkeys(kernel.name for kernel in kernels if kernel.name in wanted)
            if file is not None and names:
                found.setdefault(file, []).extend(names)
        return found


@cache
def base_name(signature: str) -> str:
    """The function's own name in "void ns::kernel<int, (Kind)2>(float*)"."""
    depth = 0
    plain: list[str] = []
    for character in signature.removeprefix("void "):
        depth += character == "<"
        if not depth:
            if character == "(" and plain:
                break
            plain.append(character)
        depth -= character == ">"
    return "".join(plain).rpartition("::")[2].strip()


def needs(kernel: m.Kernel, before: m.Kernel | None = None) -> str:
    """A kernel's resources in one line: "30 registers, 256 B shared, 8 B spilled (was 28 registers)"."""

    def words(one: m.Kernel) -> list[str]:
        spilled = max(one.spill_store_bytes, 0) + max(one.spill_load_bytes, 0)
        found = [f"{one.registers} registers"] if one.registers >= 0 else []
        share = occupancy(one)
        found += [f"{share:.0%} occupancy"] if share >= 0 else []
        found += [f"{one.scalar_registers} scalar"] if one.scalar_registers >= 0 else []
        found += [f"{one.shared_bytes} B shared"] if one.shared_bytes > 0 else []
        found += [f"{one.stack_bytes} B stack"] if one.stack_bytes > 0 else []
        found += [f"{one.spilled_registers} spilled"] if one.spilled_registers > 0 else []
        return found + ([f"{spilled} B spilled"] if spilled else [])

    now = words(kernel)
    was = [word for word in words(before) if word not in now] if before is not None else []
    return ", ".join(now) + (f" (was {', '.join(was)})" if was else "")


def kernel_lines(text: str) -> list[tuple[int, str]]:
    """The line (from 0) and name of each kernel definition in a text."""
    found = []
    for match in _KERNEL.finditer(text):
        rest = _ATTRIBUTE.sub(" ", text[match.end() : match.end() + 2000])
        name = _NAME.search(rest)
        if name is not None:
            found.append((text.count("\n", 0, match.start()), name[1]))
    return found
