"""The input of a generator (`Context`) and its result (`Part`).

Knows no kind. Kinds import this module; `generate` imports every kind, so these classes cannot be defined there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from codegen.plan import Action, Frozen, GeneratedFile, Knowledge, NamedArtifact, Steps, Tool, Unmeasured
from protocol.messages import Request

if TYPE_CHECKING:
    from codegen.compilers.toolchain import Toolchains
    from codegen.project.project_file import ProjectSettings
    from codegen.variables.settings import Settings


class Part(Frozen, frozen=True):
    """One target's share of a plan; fields as in `Plan`."""

    actions: tuple[Action, ...] = ()
    tools: tuple[Tool, ...] = ()
    steps: tuple[Steps, ...] = ()
    files: tuple[GeneratedFile, ...] = ()
    artifacts: tuple[NamedArtifact, ...] = ()
    notices: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    unmeasured: tuple[Unmeasured, ...] = ()
    link: tuple[str, ...] = ()
    """Outputs that a dependent target has to link, in link order, including the outputs that these need themselves."""
    device_link: bool = False
    """`link` contains relocatable device code: a target that links it also needs a device link."""

    def beside(self, other: Part) -> Part:
        """Return both parts as one; `link` and `device_link` stay those of this part."""
        return msgspec.structs.replace(
            self,
            actions=(*self.actions, *other.actions),
            tools=tuple(dict.fromkeys((*self.tools, *other.tools))),
            steps=tuple(dict.fromkeys((*self.steps, *other.steps))),
            files=(*self.files, *other.files),
            artifacts=(*self.artifacts, *other.artifacts),
            notices=tuple(dict.fromkeys((*self.notices, *other.notices))),
            read=tuple(dict.fromkeys((*self.read, *other.read))),
            unmeasured=tuple(dict.fromkeys((*self.unmeasured, *other.unmeasured))),
        )


@dataclass(frozen=True, slots=True)
class Context:
    """The request and everything known so far. A generator is a function `(Context, its target) -> Part`."""

    request: Request
    folder: str
    """Absolute path of the project."""
    build: str
    """Folder of all outputs, relative to the project: "build". A target's outputs go below build/TARGET/."""
    settings: ProjectSettings
    """The [project] and [toolchain] tables."""
    variables: Settings
    """The request's environment variables, typed."""
    knowledge: Knowledge
    toolchains: Toolchains
    """Finds compilers and site-packages for this request, each at most once."""
    parts: Mapping[str, Part]
    """The parts of all targets planned so far; targets in `deps` are planned first."""
    native: bool = False
    """The request or a target asked for the architectures of this machine's GPUs."""

    @property
    def environment(self) -> Mapping[str, str]:
        """The client's variables, never this process's own."""
        return self.request.environment
