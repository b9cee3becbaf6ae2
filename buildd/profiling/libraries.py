"""The shared library of each candidate: built once, however many problems share it.

Knows requests and the builder; nothing of times or GPUs.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from buildd.client.candidate_builds import Builder, Built
from buildd.profiling.harness import side_request
from codegen.gemm.gemm import is_of_split
from protocol.messages import Outcome, Request, RequestId

IN_ONE_SOURCE = "BUILDD_SPLIT_KERNELS=0"


@dataclass(frozen=True, slots=True)
class BuildSpan:
    """When a library was built. Times are seconds since the call began."""

    began_s: float = 0.0
    """0 if the library was found, not compiled."""
    cpu_s: float = 0.0
    """Processor time of the compile, on all cores together."""
    ready_s: float = 0.0


class Libraries:
    """The libraries of one call.

    Args:
        request: what the candidates are built for.
        most_builds: how many are built at once.
        elapsed_s: seconds since the call began.
        say: gets lines for people.
    """

    def __init__(
        self,
        request: Request,
        builder: Builder,
        most_builds: int,
        elapsed_s: Callable[[], float],
        say: Callable[[str], None],
    ) -> None:
        self._request, self._builder, self._elapsed_s, self._say = request, builder, elapsed_s, say
        self._slots = asyncio.Semaphore(most_builds)
        self._builds: dict[str, asyncio.Task[Built]] = {}
        self._spans: dict[str, BuildSpan] = {}
        self._said_in_one_source = False
        self.compiled = self.found = 0

    async def shared(self, name: str, table: dict[str, Any], refusal: Callable[[], Built | None]) -> tuple[Built, bool]:
        """Build a candidate's library, or wait for the build that another problem began.

        Args: as `build`.

        Returns: how the build ended, and whether it was compiled for this caller first.
        """
        if name not in self._builds:
            self._builds[name] = asyncio.create_task(self.build(name, table, refusal))
        first = not self._builds[name].done()
        built = await asyncio.shield(self._builds[name])
        return built, built.misses > 0 and first

    async def build(self, name: str, table: dict[str, Any], refusal: Callable[[], Built | None]) -> Built:
        """Build a candidate's library.

        Args:
            name: of its target.
            table: the target, as it would stand in a project file.
            refusal: asked when the build's turn comes; gives what to return instead of building.
        """
        async with self._slots:
            if (refused := refusal()) is not None:
                return refused
            began_s = self._elapsed_s()
            request = side_request(self._request, name, table)
            built = await self._builder.build(request)
            if built.is_its_own_fault and (other := in_one_source(request, built.failed)) is not None:
                if not self._said_in_one_source:
                    self._say(
                        f"{built.message}; compiling kernel and launch code as one source instead: set {IN_ONE_SOURCE}"
                        " to do so from the start"
                    )
                self._said_in_one_source = True
                built = await self._builder.build(other)
            self._spans[name] = BuildSpan(began_s if built.misses else 0.0, built.cpu_s, self._elapsed_s())
        self.compiled += built.outcome is Outcome.BUILT and built.misses > 0
        self.found += built.outcome is Outcome.BUILT and built.misses == 0
        return built

    def forget(self, name: str) -> None:
        """Let the next `shared` build it: the last one was refused."""
        self._builds.pop(name, None)

    def span(self, name: str) -> BuildSpan:
        return self._spans.get(name, BuildSpan())

    @property
    def tasks(self) -> list[asyncio.Task[Built]]:
        return list(self._builds.values())


def in_one_source(request: Request, failed: tuple[str, ...]) -> Request | None:
    """The same request with each kernel and its launch code in one source; None if that would change nothing.

    A host compiler may refuse launch code that nvcc lets it see.

    Args:
        failed: actions that did not compile.
    """
    name, _, value = IN_ONE_SOURCE.partition("=")
    if request.environment.get(name) == value or not failed or not all(map(is_of_split, failed)):
        return None
    return msgspec.structs.replace(
        request,
        request_id=RequestId(os.urandom(6).hex()),
        environment={**request.environment, name: value},
    )
