"""Stories of jobs that are carried out in steps: a fake compiler for every step, real processes, no socket.

What the steps of a real nvcc make is `test_nvcc_steps`'s.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import psutil
import pytest

from buildd.steps import Relieve
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
from codegen.step_kinds import OBJECT, SOURCE, STEM
from protocol import messages as m
from tests.floor import FAKE, Floor, Shop, Story

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


@pytest.fixture(params=[pytest.param(2, id="spread"), pytest.param(1, id="chained")])
def floor(tmp_path: Path, request: pytest.FixtureRequest) -> Floor:
    """One CPU: a job does its steps one after another. Two: they run side by side."""
    floor = Floor(tmp_path, make=stepwise_plan, cpus=request.param)
    (floor.project / "control").mkdir()
    for name in ("host", "cudafe", "device", "cicc", "compile"):
        floor.write(f"control/{name}", f"//! line {name} ran\n")
    floor.write("include/x.h", "x\n")
    floor.write("src/a.cu", '#include "x.h"\na\n')
    return floor


def said(story: Story) -> list[str]:
    return [line.text for line in story.of(m.LogLine)]


def assert_built(story: Story, hits: int, misses: int) -> None:
    assert (story.done.outcome, story.done.hits, story.done.misses) == (m.Outcome.BUILT, hits, misses), story


ALL = ["from the driver", "host ran", "cudafe ran", "device ran", "cicc ran", "compile ran"]


def test_a_missed_action_is_one_job_to_its_followers_and_a_hit_asks_for_no_step(floor: Floor) -> None:
    first = floor.build()
    assert_built(first, 0, 1)
    assert said(first) == ALL, "in the compiler's order, each once"
    assert first.ran() == ["a.cu.o"] and len(first.of(m.Finished)) == 1
    steps = sorted(first.of(m.Finished)[0].steps, key=lambda step: step.start_s)
    assert {step.name for step in steps} == {action.name for action in TEMPLATE}
    assert steps[-1].name == "host compile" and steps[-1].wall_s > 0 and not any(step.hit for step in steps)
    made = (floor.project / "build/a.cu.o").read_bytes()
    (floor.project / "build/a.cu.o").unlink()

    async def again() -> dict[str, int]:
        async with Shop(floor) as shop:
            story = await shop.build(floor.request())
            assert_built(story, 1, 0)
            assert said(story) == [ALL[1], *ALL[2:], ALL[0]], "a hit says standard output, then standard error"
            return shop.scheduler.counters

    counters = asyncio.run(again())
    assert (counters["step_hits"], counters["step_misses"]) == (0, 0)
    assert (floor.project / "build/a.cu.o").read_bytes() == made
    assert not list((floor.store / "tmp").glob("*/*"))


def test_the_inputs_of_all_steps_are_the_inputs_of_the_action_and_steps_that_are_the_same_do_not_run(
    floor: Floor,
) -> None:
    async def build() -> tuple[Story, int, int]:
        async with Shop(floor) as shop:
            story = await shop.build(floor.request())
            return story, shop.scheduler.counters["step_hits"], shop.scheduler.counters["step_misses"]

    assert asyncio.run(build())[1:] == (0, 5)
    floor.write("include/x.h", "y\n")
    story, *counted = asyncio.run(build())
    assert story.of(m.Queued)[0].reasons == ("input include/x.h: content changed",) and counted == [0, 5]
    floor.write("control/compile", "//! line compile again\n")
    story, *counted = asyncio.run(build())
    assert story.of(m.Queued)[0].reasons == ("input control/compile: content changed",)
    assert counted == [2, 3], "both preprocessors and the host compile"
    assert said(story) == [*ALL[:5], "compile again"], "found steps say again what they said"


def test_what_spares_cudafe_its_pages_is_preloaded_into_it_alone_and_may_be_turned_off(floor: Floor) -> None:
    for name in ("host", "cudafe", "compile"):
        floor.write(f"control/{name}", "//! show LD_PRELOAD\n")
    host, cudafe, *_, compile_ = said(floor.build())[1:]
    assert (host, compile_) == ("", "") and Path(cudafe).is_file() and floor.store in Path(cudafe).parents
    environment = {"PATH": "/usr/bin:/bin", "BUILDD_PRELOAD": "0"}
    assert said(floor.build(environment=environment, recache=True))[1:3] == ["", ""]


def test_a_failed_step_is_told_with_all_that_came_before_it(floor: Floor) -> None:
    floor.write("control/cicc", "//! line cicc ran\n//! error no such thing\n")
    story = floor.build()
    (failed,) = story.of(m.Failed)
    assert (failed.kind, failed.exit_status) == (m.FailureKind.COMPILE_ERROR, 1)
    assert failed.message == "cicc ended with status 1" and failed.diagnostics[0].message == "no such thing"
    assert said(story) == [*ALL[:5], "control/cicc:2:1: error: no such thing"]
    assert story.done.failures == 1 and not (floor.project / "build/a.cu.o").exists()
    floor.write("control/cicc", "//! line cicc ran\n")
    assert_built(floor.build(), 0, 1)


@pytest.mark.parametrize("floor", [2], indirect=True)
def test_of_two_failing_steps_the_first_is_told_however_late(floor: Floor) -> None:
    """The device pass fails at once, the host's first step only once the other has."""
    floor.write("control/device", "//! touch failed\n//! exit 3\n")
    floor.write("control/host", "//! wait-for failed\n//! line host ran\n//! exit 4\n")
    story = floor.build()
    (failed,) = story.of(m.Failed)
    assert failed.exit_status == 4 and said(story) == ["from the driver", "host ran"]


@pytest.mark.parametrize("floor", [2], indirect=True)
def test_steps_that_stand_on_nothing_common_run_side_by_side(floor: Floor) -> None:
    floor.write("control/cudafe", "//! touch one\n//! wait-for two\n")
    floor.write("control/cicc", "//! touch two\n//! wait-for one\n")
    assert_built(floor.build(), 0, 1)
    assert floor.build(jobs=1, recache=True).done.outcome is m.Outcome.BUILT


@pytest.mark.parametrize("floor", [1], indirect=True)
def test_a_kill_for_memory_pressure_ends_the_step_that_runs(floor: Floor) -> None:
    floor.write("control/cicc", "//! log runs\n//! wait-for go\n")

    async def story() -> Story:
        async with Shop(floor) as shop:
            log = shop.submit(floor.request())
            while not (floor.project / "runs").exists():
                await asyncio.sleep(0)
            (running,) = shop.scheduler.state.running
            shop.scheduler._feed(Relieve(running.id))
            floor.write("go", "")
            return await shop.finish(log)

    assert_built(asyncio.run(story()), 0, 1)
    assert (floor.project / "runs").read_text().count("\n") == 2


def test_out_of_memory_runs_the_step_again_alone(floor: Floor) -> None:
    floor.write("control/cicc", "//! log runs\n//! oom\n")
    (failed,) = floor.build().of(m.Failed)
    assert failed.kind is m.FailureKind.OUT_OF_MEMORY
    assert (floor.project / "runs").read_text().count("\n") == 2


def test_a_killed_step_and_one_that_writes_nothing(floor: Floor) -> None:
    floor.write("control/cudafe", "//! signal 11\n")
    (failed,) = floor.build().of(m.Failed)
    assert failed.kind is m.FailureKind.KILLED and failed.signal == 11 and "cudafe++" in failed.message
    floor.write("control/cudafe", "//! no-output\n")
    (failed,) = floor.build().of(m.Failed)
    assert failed.kind is m.FailureKind.OUTPUT_MISSING and "cudafe++" in failed.message


def test_cancel_ends_the_steps(floor: Floor) -> None:
    floor.write("control/cudafe", "//! ignore-term\n//! touch started\n//! wait-for never\n")

    async def story() -> Story:
        async with Shop(floor) as shop:
            log = shop.submit(floor.request())
            await shop.until(log, lambda body: isinstance(body, m.Started))
            while not (floor.project / "started").exists():
                await asyncio.sleep(0)
            assert shop.scheduler.cancel(log.request_id)
            return await shop.finish(log)

    assert asyncio.run(story()).done.outcome is m.Outcome.CANCELLED
    left = [p for p in psutil.process_iter(["cmdline"]) if str(floor.store) in " ".join(p.info["cmdline"] or ())]
    assert not left
    assert not list((floor.store / "tmp").glob("*/*"))


def test_a_cancelled_follower_leaves_the_steps_to_the_other(floor: Floor) -> None:
    floor.write("control/cudafe", "//! log runs\n//! wait-for go\n")

    async def story() -> tuple[Story, Story]:
        async with Shop(floor) as shop:
            first, second = shop.submit(floor.request()), shop.submit(floor.request())
            for log in (first, second):
                await shop.until(log, lambda body: isinstance(body, m.Queued))
            while not (floor.project / "runs").exists():
                await asyncio.sleep(0)
            shop.scheduler.cancel(first.request_id)
            floor.write("go", "")
            return await shop.finish(first), await shop.finish(second)

    cancelled, built = asyncio.run(story())
    assert cancelled.done.outcome is m.Outcome.CANCELLED and built.done.outcome is m.Outcome.BUILT
    assert (floor.project / "runs").read_text().count("\n") == 1


def test_a_source_that_is_edited_while_its_steps_run(floor: Floor) -> None:
    """Every run of the last step edits the header that the first ones read."""
    floor.write("control/compile", "//! edit include/x.h\n")
    story = floor.build()
    assert story.ran().count("a.cu.o") == 3, "redone until the third run is taken as it is"
    assert [f.note for f in story.of(m.Finished) if f.note] == ["not stored: include/x.h changed while it was read"]
    floor.write("control/compile", "\n")
    assert_built(floor.build(), 0, 1)


def test_without_outputs_in_the_project(floor: Floor) -> None:
    assert_built(floor.build(mode=m.Mode.WARM), 0, 1)
    assert not (floor.project / "build").exists()
    assert floor.build(mode=m.Mode.PROVE).done.outcome is m.Outcome.BUILT
    assert_built(floor.build(), 1, 0)


def test_a_store_inside_the_project(floor: Floor) -> None:
    floor.store = floor.project / ".cache"
    assert_built(floor.build(), 0, 1)
    assert_built(floor.build(), 1, 0)


def test_many_at_once_under_two_tokens(floor: Floor) -> None:
    for n in range(12):
        floor.write(f"src/n{n}.cu", f'#include "x.h"\n{n}\n')

    async def story() -> list[Story]:
        async with Shop(floor) as shop:
            logs = [shop.submit(floor.request()) for _ in range(3)]
            return [await shop.finish(log) for log in logs]

    for done in asyncio.run(story()):
        assert done.done.outcome is m.Outcome.BUILT
        assert len(done.of(m.Artifact)) == 13
    assert_built(floor.build(), 13, 0)
