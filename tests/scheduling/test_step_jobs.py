"""Stories of jobs that are carried out in steps: a fake compiler for every step, real processes, no socket.

What the steps of a real nvcc make is `test_nvcc_steps`'s.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from pathlib import Path

import msgspec
import psutil
import pytest

from buildd.state.events import Relieve
from buildd.state.machine import State
from buildd.state.ready_queue import ReadyQueue
from codegen.plan import (
    Action,
    Argument,
    Discovery,
    Kept,
    Knowledge,
    NamedArtifact,
    Output,
    Place,
    Plan,
    Ref,
    Resources,
    Steps,
    Tool,
    ToolFile,
)
from codegen.steps.step_kinds import OBJECT, SOURCE, STEM
from protocol import messages as m
from tests.support.scheduler_harness import FAKE, Harness, Story, Workspace
from tests.support.waiting import until_async

COMPILER = (sys.executable, "-I", "-S", str(FAKE))
FOLDER = f"buildd_probe.steps/{STEM}"
ENVIRONMENT = {"PATH": "/usr/bin:/bin"}


def step(kind: str, made: str, *reads: str, control: str, name: str = "", transient: bool = False) -> Action:
    """A step that reads files of earlier ones, and `control` for what else it shall do."""
    arguments: list[Argument] = [Ref(place=Place.INPUT, name=f"{FOLDER}.{read}") for read in reads]
    sources: tuple[str, ...] = (f"{SOURCE}.cu",) if transient else ()
    return Action(
        name=name or kind,
        kind=kind,
        tool="",
        argv=(*COMPILER, "-I", "include", *sources, *arguments, control, "-o", Ref(place=Place.OUTPUT, name="made")),
        inputs=(*(f"{FOLDER}.{read}" for read in reads), control),
        outputs=(Output(name="made", path=made),),
        discovery=Discovery.GCC if kind in ("preprocess", "host compile") else Discovery.NONE,
        kept=Kept.NOTHING if transient else Kept.FILES,
    )


TEMPLATE = (
    step("preprocess", f"{FOLDER}.cpp4.ii", control="control/host", name="preprocess host", transient=True),
    step("cudafe++", f"{FOLDER}.cudafe1.cpp", "cpp4.ii", "module_id", control="control/cudafe"),
    step("preprocess", f"{FOLDER}.cpp1.ii", control="control/device", name="preprocess device", transient=True),
    step("cicc", f"{FOLDER}.ptx", "cpp1.ii", "module_id", control="control/cicc"),
    step("host compile", f"buildd_probe.steps/{OBJECT}", "cudafe1.cpp", "ptx", control="control/compile"),
)


def stepwise_plan(request: m.Request, knowledge: Knowledge) -> Plan:
    sources = sorted(path.name for path in Path(request.project, "src").iterdir())
    actions = tuple(
        Action(
            name=f"{name}.o",
            kind="fake",
            tool="fake",
            argv=(*COMPILER, f"src/{name}"),
            environment=tuple(sorted(request.environment.items())),
            inputs=(f"src/{name}",),
            outputs=(Output(name="object", path=f"build/{name}.o"),),
            discovery=Discovery.GCC,
            search=("include",),
            steps="fake",
            resources=Resources(memory_bytes=64 << 20, wall_s=0.1),
            timeout_s=60.0,
        )
        for name in sources
    )
    return Plan(
        targets=("all",),
        actions=actions,
        tools=(Tool(name="fake", files=(ToolFile(role="compiler", path=str(FAKE)),)),),
        steps=(Steps(name="fake", identity="tests", actions=TEMPLATE, said="from the driver\n"),),
        artifacts=tuple(NamedArtifact(target="all", name=a.name, path=a.outputs[0].path) for a in actions),
        read=(str(Path(request.project, "src")),),
    )


@pytest.fixture(params=["spread", "chained", "widened"])
def workspace(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """One CPU: a job does its steps one after another. Two: they run side by side, or do so once a few are done."""
    if request.param == "widened":
        asked: Counter[m.JobId] = Counter()
        monkeypatch.setattr(ReadyQueue, "_crowded", lambda queue: True)
        monkeypatch.setattr(State, "may_widen", lambda state, job: (asked.update([job]), asked[job] > 1)[1])
    return prepared(Workspace(tmp_path, make=stepwise_plan, cpus=1 if request.param == "chained" else 2))


def prepared(workspace: Workspace) -> Workspace:
    (workspace.project / "control").mkdir()
    for name in ("host", "cudafe", "device", "cicc", "compile"):
        workspace.write(f"control/{name}", f"//! line {name} ran\n")
    workspace.write("include/x.h", "x\n")
    workspace.write("src/a.cu", '#include "x.h"\na\n')
    return workspace


def said(story: Story) -> list[str]:
    return [line.text for line in story.of(m.LogLine)]


def assert_built(story: Story, hits: int, misses: int) -> None:
    assert (story.done.outcome, story.done.hits, story.done.misses) == (m.Outcome.BUILT, hits, misses), story


ALL = ["from the driver", "host ran", "cudafe ran", "device ran", "cicc ran", "compile ran"]


def test_a_missed_action_is_one_job_to_its_followers_and_a_hit_asks_for_no_step(workspace: Workspace) -> None:
    first = workspace.build()
    assert_built(first, 0, 1)
    assert said(first) == ALL, "in the compiler's order, each once"
    assert first.ran() == ["a.cu.o"] and len(first.of(m.Finished)) == 1
    steps = sorted(first.of(m.Finished)[0].steps, key=lambda step: step.start_s)
    assert {step.name for step in steps} == {action.name for action in TEMPLATE}
    assert steps[-1].name == "host compile" and steps[-1].wall_s > 0 and not any(step.hit for step in steps)
    made = (workspace.project / "build/a.cu.o").read_bytes()
    (workspace.project / "build/a.cu.o").unlink()

    async def again() -> dict[str, int]:
        async with Harness(workspace) as harness:
            story = await harness.build(workspace.request())
            assert_built(story, 1, 0)
            assert said(story) == [ALL[1], *ALL[2:], ALL[0]], "a hit says standard output, then standard error"
            return harness.scheduler.counters

    counters = asyncio.run(again())
    assert (counters["step_hits"], counters["step_misses"]) == (0, 0)
    assert (workspace.project / "build/a.cu.o").read_bytes() == made
    assert not list((workspace.store / "tmp").glob("*/*"))


def test_the_inputs_of_all_steps_are_the_inputs_of_the_action_and_steps_that_are_the_same_do_not_run(
    workspace: Workspace,
) -> None:
    async def build() -> tuple[Story, int, int]:
        async with Harness(workspace) as harness:
            story = await harness.build(workspace.request())
            return story, harness.scheduler.counters["step_hits"], harness.scheduler.counters["step_misses"]

    assert asyncio.run(build())[1:] == (0, 5)
    workspace.write("include/x.h", "y\n")
    story, *counted = asyncio.run(build())
    assert story.of(m.Queued)[0].reasons == ("input include/x.h: content changed",) and counted == [0, 5]
    workspace.write("control/compile", "//! line compile again\n")
    story, *counted = asyncio.run(build())
    assert story.of(m.Queued)[0].reasons == ("input control/compile: content changed",)
    assert counted == [2, 3], "both preprocessors and the host compile"
    assert said(story) == [*ALL[:5], "compile again"], "found steps say again what they said"


@pytest.mark.parametrize("place", ["shell", "buildd.toml", "config.toml"])
def test_what_spares_cudafe_its_pages_is_preloaded_into_it_alone_and_may_be_turned_off(
    workspace: Workspace, place: str
) -> None:
    for name in ("host", "cudafe", "compile"):
        workspace.write(f"control/{name}", "//! show LD_PRELOAD\n")
    host, cudafe, *_, compile_ = said(workspace.build())[1:]
    assert (host, compile_) == ("", "") and Path(cudafe).is_file() and workspace.store in Path(cudafe).parents
    environment, file = workspace.set_in(place, BUILDD_PRELOAD="0")
    assert said(workspace.build(environment=environment, file=file, recache=True))[1:3] == ["", ""]


def test_a_failed_step_is_told_with_all_that_came_before_it(workspace: Workspace) -> None:
    workspace.write("control/cicc", "//! line cicc ran\n//! error no such thing\n")
    story = workspace.build()
    (failed,) = story.of(m.Failed)
    assert (failed.kind, failed.exit_status) == (m.FailureKind.COMPILE_ERROR, 1)
    assert failed.message == "cicc ended with status 1" and failed.diagnostics[0].message == "no such thing"
    assert said(story) == [*ALL[:5], "control/cicc:2:1: error: no such thing"]
    assert story.done.failures == 1 and not (workspace.project / "build/a.cu.o").exists()
    workspace.write("control/cicc", "//! line cicc ran\n")
    assert_built(workspace.build(), 0, 1)


@pytest.mark.parametrize("workspace", ["spread"], indirect=True)
def test_of_two_failing_steps_the_first_is_told_however_late(workspace: Workspace) -> None:
    """The device pass fails at once, the host's first step only once the other has."""
    workspace.write("control/device", "//! touch failed\n//! exit 3\n")
    workspace.write("control/host", "//! wait-for failed\n//! line host ran\n//! exit 4\n")
    story = workspace.build()
    (failed,) = story.of(m.Failed)
    assert failed.exit_status == 4 and said(story) == ["from the driver", "host ran"]


def listing_plan(request: m.Request, knowledge: Knowledge) -> Plan:
    """Of a compile with a depfile: nvcc preprocesses for all devices first."""
    plan = stepwise_plan(request, knowledge)
    (steps,) = plan.steps
    host, cudafe, device, *rest = steps.actions
    return msgspec.structs.replace(plan, steps=(msgspec.structs.replace(steps, actions=(device, host, cudafe, *rest)),))


@pytest.mark.parametrize(
    ("device", "host", "status", "words"),
    [
        ("", "//! exit 4\n", 4, ["device ran", "host ran"]),
        ("//! exit 3\n", "//! exit 4\n", 3, ["device ran"]),
        ("//! exit 3\n", "", 3, ["device ran"]),
    ],
)
def test_a_step_that_is_begun_before_its_turn_fails_in_its_turn(
    tmp_path: Path, device: str, host: str, status: int, words: list[str]
) -> None:
    """One CPU: what cudafe++ reads is made first, and stored while the device's text is made."""
    workspace = prepared(Workspace(tmp_path, make=listing_plan, cpus=1))
    workspace.write("control/host", f"//! line host ran\n//! touch begun\n{host}")
    workspace.write("control/device", f"//! wait-for begun\n//! line device ran\n{device}")
    story = workspace.build()
    (failed,) = story.of(m.Failed)
    assert failed.exit_status == status and said(story) == ["from the driver", *words]
    workspace.write("control/host", "//! line host ran\n//! touch begun\n")
    workspace.write("control/device", "//! wait-for begun\n//! line device ran\n")
    assert_built(workspace.build(), 0, 1)


@pytest.mark.parametrize("workspace", ["spread"], indirect=True)
def test_steps_that_stand_on_nothing_common_run_side_by_side(workspace: Workspace) -> None:
    workspace.write("control/cudafe", "//! touch one\n//! wait-for two\n")
    workspace.write("control/cicc", "//! touch two\n//! wait-for one\n")
    assert_built(workspace.build(), 0, 1)
    assert workspace.build(jobs=1, recache=True).done.outcome is m.Outcome.BUILT


@pytest.mark.parametrize("workspace", ["chained"], indirect=True)
def test_a_kill_for_memory_pressure_ends_the_step_that_runs(workspace: Workspace) -> None:
    workspace.write("control/cicc", "//! log runs\n//! wait-for go\n")

    async def story() -> Story:
        async with Harness(workspace) as harness:
            log = harness.submit(workspace.request())
            runs = workspace.project / "runs"
            # Whole lines: the step makes the file before it writes to it.
            await until_async(lambda: runs.exists() and runs.read_text().count("\n") == 1, "the step runs")
            (running,) = harness.scheduler.state.running
            harness.scheduler._feed(Relieve(running.id))
            # The step that runs is ended, and only its second run may see this file.
            await until_async(lambda: runs.read_text().count("\n") == 2, "the step runs again")
            workspace.write("go", "")
            return await harness.finish(log)

    assert_built(asyncio.run(story()), 0, 1)


def test_out_of_memory_runs_the_step_again_alone(workspace: Workspace) -> None:
    workspace.write("control/cicc", "//! log runs\n//! oom\n")
    (failed,) = workspace.build().of(m.Failed)
    assert failed.kind is m.FailureKind.OUT_OF_MEMORY
    assert (workspace.project / "runs").read_text().count("\n") == 2


def test_a_killed_step_and_one_that_writes_nothing(workspace: Workspace) -> None:
    workspace.write("control/cudafe", "//! signal 11\n")
    (failed,) = workspace.build().of(m.Failed)
    assert failed.kind is m.FailureKind.KILLED and failed.signal == 11 and "cudafe++" in failed.message
    workspace.write("control/cudafe", "//! no-output\n")
    (failed,) = workspace.build().of(m.Failed)
    assert failed.kind is m.FailureKind.OUTPUT_MISSING and "cudafe++" in failed.message


def test_cancel_ends_the_steps(workspace: Workspace) -> None:
    workspace.write("control/cudafe", "//! ignore-term\n//! touch started\n//! wait-for never\n")

    async def story() -> Story:
        async with Harness(workspace) as harness:
            log = harness.submit(workspace.request())
            await harness.until(log, lambda body: isinstance(body, m.Started))
            await until_async((workspace.project / "started").exists, "started is there")
            assert harness.scheduler.cancel(log.request_id)
            return await harness.finish(log)

    assert asyncio.run(story()).done.outcome is m.Outcome.CANCELLED
    left = [p for p in psutil.process_iter(["cmdline"]) if str(workspace.store) in " ".join(p.info["cmdline"] or ())]
    assert not left
    assert not list((workspace.store / "tmp").glob("*/*"))


def test_a_cancelled_follower_leaves_the_steps_to_the_other(workspace: Workspace) -> None:
    workspace.write("control/cudafe", "//! log runs\n//! wait-for go\n")

    async def story() -> tuple[Story, Story]:
        async with Harness(workspace) as harness:
            first, second = harness.submit(workspace.request()), harness.submit(workspace.request())
            for log in (first, second):
                await harness.until(log, lambda body: isinstance(body, m.Queued))
            await until_async((workspace.project / "runs").exists, "runs is there")
            harness.scheduler.cancel(first.request_id)
            workspace.write("go", "")
            return await harness.finish(first), await harness.finish(second)

    cancelled, built = asyncio.run(story())
    assert cancelled.done.outcome is m.Outcome.CANCELLED and built.done.outcome is m.Outcome.BUILT
    assert (workspace.project / "runs").read_text().count("\n") == 1


def test_a_source_that_is_edited_while_its_steps_run(workspace: Workspace) -> None:
    """Every run of the last step edits the header that the first ones read."""
    workspace.write("control/compile", "//! edit include/x.h\n")
    story = workspace.build()
    assert story.ran().count("a.cu.o") == 3, "redone until the third run is taken as it is"
    assert [f.note for f in story.of(m.Finished) if f.note] == ["not stored: include/x.h changed while it was read"]
    workspace.write("control/compile", "\n")
    assert_built(workspace.build(), 0, 1)


def test_without_outputs_in_the_project(workspace: Workspace) -> None:
    assert_built(workspace.build(mode=m.Mode.WARM), 0, 1)
    assert not (workspace.project / "build").exists()
    assert workspace.build(mode=m.Mode.PROVE).done.outcome is m.Outcome.BUILT
    assert_built(workspace.build(), 1, 0)


def test_a_store_inside_the_project(workspace: Workspace) -> None:
    workspace.store = workspace.project / ".cache"
    assert_built(workspace.build(), 0, 1)
    assert_built(workspace.build(), 1, 0)


def test_many_at_once_under_two_tokens(workspace: Workspace) -> None:
    for n in range(12):
        workspace.write(f"src/n{n}.cu", f'#include "x.h"\n{n}\n')

    async def story() -> list[Story]:
        async with Harness(workspace) as harness:
            logs = [harness.submit(workspace.request()) for _ in range(3)]
            return [await harness.finish(log) for log in logs]

    for done in asyncio.run(story()):
        assert done.done.outcome is m.Outcome.BUILT
        assert len(done.of(m.Artifact)) == 13
    assert_built(workspace.build(), 13, 0)
