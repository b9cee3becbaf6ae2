"""A scheduler without sockets and a workspace for it: a project that tests/fakes/fake-cc compiles; real processes."""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from buildd.builds.event_log import RequestLog
from buildd.scheduling.scheduler import Scheduler
from codegen.plan import (
    Action,
    Discovery,
    Knowledge,
    NamedArtifact,
    Output,
    Place,
    Plan,
    Ref,
    Resources,
    Tool,
    ToolFile,
)
from protocol import messages as m
from tests.support.own_programs import keep_programs, lend_programs
from tests.support.paths import FAKES

FAKE = FAKES / "fake-cc"
DEADLINE_S = 60.0
B = TypeVar("B")


def fake_plan(request: m.Request, knowledge: Knowledge) -> Plan:
    """Each src/*.cu of the project to an object, all of them linked into one file."""
    project = Path(request.project)
    sources = sorted(path.name for path in (project / "src").iterdir() if path.suffix == ".cu")
    environment = tuple(sorted((k, v) for k, v in request.environment.items()))
    compiler: tuple[str, ...] = (sys.executable, "-I", "-S", str(FAKE))
    actions = [
        Action(
            name=f"{name}.o",
            kind="fake",
            tool="fake",
            argv=(*compiler, "-I", "first", "-I", "include", f"src/{name}", "-o", Ref(place=Place.OUTPUT, name="o")),
            environment=environment,
            inputs=(f"src/{name}",),
            outputs=(Output(name="o", path=f"build/{name}.o"),),
            discovery=Discovery.GCC,
            search=("first", "include"),
            resources=Resources(cpus=1, memory_bytes=64 << 20, wall_s=0.1),
            timeout_s=float(request.environment.get("TIMEOUT", "60")),
        )
        for name in sources
    ]
    objects = [action.outputs[0].path for action in actions]
    actions.append(
        Action(
            name="all.so",
            kind="link",
            tool="fake",
            argv=(
                *compiler,
                *(Ref(place=Place.INPUT, name=o) for o in objects),
                "-o",
                Ref(place=Place.OUTPUT, name="library"),
            ),
            inputs=tuple(objects),
            outputs=(Output(name="library", path="build/all.so"),),
        )
    )
    return Plan(
        targets=("all",),
        actions=tuple(actions),
        tools=(Tool(name="fake", files=(ToolFile(role="compiler", path=str(FAKE)),)),),
        artifacts=(NamedArtifact(target="all", name="all.so", path="build/all.so"),),
        read=(str(project / "src"),),
    )


class Workspace:
    """One project and one store under a folder; `options` are its schedulers' arguments."""

    def __init__(self, folder: Path, **options: object) -> None:
        self.folder = folder
        self.options = options
        self.project = folder / "project"
        self.store = folder / "store"
        lend_programs(self.store)
        for sub in ("src", "first", "include"):
            (self.project / sub).mkdir(parents=True)

    def write(self, path: str, text: str) -> Path:
        target = self.project / path
        target.write_text(text)
        return target

    def request(self, **fields: object) -> m.Request:
        name = uuid.uuid4().hex
        defaults: dict = {
            "request_id": name,
            "build_id": name,
            "project": str(self.project),
            "store": str(self.store),
            "environment": {"PATH": "/usr/bin:/bin"},
        }
        return m.Request(**{**defaults, **fields})

    def another_store(self, name: str) -> str:
        """The path of a store that has no result yet."""
        store = self.folder / name
        lend_programs(store)
        return str(store)

    def set_in(self, place: str, **variables: str) -> tuple[dict[str, str], str]:
        """The environment and the project file of a request for which variables are set in one place.

        Args:
            place: "shell", "buildd.toml" or "config.toml".
        """
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(self.folder)}
        if place == "shell":
            return {**environment, **variables}, ""
        text = "[environment]\n" + "".join(f'{name} = "{value}"\n' for name, value in variables.items())
        if place == "buildd.toml":
            (self.project / place).write_text(text)
            return environment, place
        (self.folder / ".config/buildd").mkdir(parents=True)
        (self.folder / ".config/buildd" / place).write_text(text)
        return environment, ""

    def build(self, **fields: object) -> Story:
        """Build once in a scheduler of its own; what happened."""
        return asyncio.run(self._build(self.request(**fields)))

    async def _build(self, request: m.Request) -> Story:
        async with Harness(self) as harness:
            return await harness.build(request)

    @property
    def library(self) -> bytes:
        return (self.project / "build" / "all.so").read_bytes()


class Story(list[m.EventBody]):
    """The events of a finished request."""

    @property
    def done(self) -> m.Done:
        assert isinstance(self[-1], m.Done), self
        return self[-1]

    def of(self, kind: type[B]) -> list[B]:
        return [body for body in self if isinstance(body, kind)]

    def ran(self) -> list[str]:
        """Names of the actions that ran, in the order of their start."""
        return [body.action for body in self.of(m.Started)]


class Harness:
    """A scheduler on the running loop, closed at the end of its `async with`."""

    def __init__(self, workspace: Workspace, **options: object) -> None:
        self.workspace = workspace
        self._options = {**workspace.options, **options}

    async def __aenter__(self) -> Harness:
        self.scheduler = Scheduler(
            default_store=self.workspace.store, **{"make": fake_plan, "cpus": 2, **self._options}
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.scheduler.close()
        keep_programs(self.workspace.store)

    def submit(self, request: m.Request) -> RequestLog:
        log = RequestLog(request.request_id)
        self.scheduler.submit(request, log)
        return log

    async def build(self, request: m.Request) -> Story:
        return await self.finish(self.submit(request))

    async def finish(self, log: RequestLog) -> Story:
        await self.until(log, lambda body: isinstance(body, m.Done))
        return Story(event.body for event in log.after(0, 1 << 30))

    async def until(self, log: RequestLog, what: Callable[[m.EventBody], bool]) -> None:
        """Wait for an event of a request, also one that already came."""
        loop = asyncio.get_running_loop()
        came = asyncio.Event()

        def heard(event: m.Event) -> None:
            if what(event.body):
                loop.call_soon_threadsafe(came.set)

        stop = log.listen(heard)
        try:
            if not any(what(event.body) for event in log.after(0, 1 << 30)):
                await asyncio.wait_for(came.wait(), DEADLINE_S)
        finally:
            stop()
