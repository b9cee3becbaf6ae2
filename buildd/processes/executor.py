"""What runs tools, as a job sees it: a tool is begun, tells its lines, can be ended, and ends with an `Exit`.

There are two engines: `processes.runner` runs tools on this machine, `cluster.ray_engine` on the nodes of a cluster.
tests/cluster/test_contract.py holds both to the same behaviour.
"""

from __future__ import annotations

from typing import Protocol

from buildd.processes.launch import EndReason, Exit, Launch
from buildd.processes.running_tool import OnLine


class BegunTool(Protocol):
    """A tool that was begun."""

    @property
    def launch(self) -> Launch: ...

    @property
    def memory_bytes(self) -> int:
        """Memory of its processes; 0 while it is not known."""

    def hold(self, held: bool) -> None:
        """Stop it until there is more memory on this machine, or let it go on."""

    def kill(self, reason: EndReason = EndReason.CANCELLED) -> None:
        """End the tool and all that it started. The first reason counts."""

    async def wait(self) -> Exit:
        """How it ended. Raises RunnerError where it could not be started."""


class Executor(Protocol):
    """An engine."""

    def begin(self, launch: Launch, on_line: OnLine) -> BegunTool:
        """Begin a tool. Raises RunnerError."""
