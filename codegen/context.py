"""What a generator is given (`Context`) and what it gives back (`Part`).

Knows no kind. It stands apart from `generate`, which imports every kind, so that the kinds can import it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from codegen.plan import Action, Frozen, GeneratedFile, Knowledge, NamedArtifact, Steps, Tool, Unmeasured
from protocol.messages import Request

if TYPE_CHECKING:
    from codegen.environment import Settings as Variables
    from codegen.project import Settings
    from codegen.toolchain import Toolchains


class Part(Frozen, frozen=True):
    """The share of a plan that one target makes; fields as in `Plan`."""

    actions: tuple[Action, ...] = ()
    tools: tuple[Tool, ...] = ()
    steps: tuple[Steps, ...] = ()
    files: tuple[GeneratedFile, ...] = ()
    artifacts: tuple[NamedArtifact, ...] = ()
    notices: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    unmeasured: tuple[Unmeasured, ...] = ()
    link: tuple[str, ...] = ()
    """Outputs that a target which depends on this one links, in order, with those that they need themselves."""
    device_link: bool = False
    """`link` has relocatable device code, which whoever links it has to link too."""

    def beside(self, other: Part) -> Part:
        """Both; of what is linked elsewhere only this one's."""
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
    """The request and what is known so far. A generator is a function `(Context, its target) -> Part`."""

    request: Request
    folder: str
    """Absolute path of the project."""
    build: str
    """Folder of all outputs, relative to the project: "build". A target's outputs go below build/TARGET/."""
    settings: Settings
    """The [project] and [toolchain] tables."""
    variables: Variables
    """The request's environment variables, typed."""
    knowledge: Knowledge
    toolchains: Toolchains
    """Finds compilers and site-packages for this request; each is looked for once."""
    parts: Mapping[str, Part]
    """What the targets in `deps` became; dependencies come first."""

    @property
    def environment(self) -> Mapping[str, str]:
        """The client's variables, never this process's own."""
        return self.request.environment
