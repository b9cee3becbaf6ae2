"""A fault inside the scheduler ends the requests that it concerns: no client waits for ever, the next build works."""

from __future__ import annotations

import asyncio
import os
import threading
import traceback
from pathlib import Path

import pytest

from buildd.builds.build_figures import Figures
from buildd.builds.event_log import RequestLog
from buildd.scheduling.foreign_compile import PASSED_THROUGH
from buildd.scheduling.foreign_intake import ForeignIntake
from buildd.shims import run_log
from codegen.plan import Knowledge, Plan, Unwanted
from protocol import messages as m
from tests.support.scheduler_harness import Harness, Story, Workspace
from tests.support.waiting import until_async


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    workspace = Workspace(tmp_path)
    workspace.write("src/a.cu", "a\n")
    workspace.write("src/b.cu", "b\n")
    return workspace


def assert_fault(done: m.Done, words: str) -> None:
    assert (done.outcome, done.code) == (m.Outcome.DAEMON_ERROR, "internal"), done
    assert "its log has the story" in done.message and words in done.message and "doctor --bundle" in done.next_step


async def end_of(harness: Harness, request: m.Request, unheard: type[m.EventBody], inside: str = "") -> Story:
    """A request whose first event of one kind cannot be passed on; inside: the first that this function tells of."""
    log = RequestLog(request.request_id)
    failed = False

    def fail(event: m.Event) -> None:
        nonlocal failed
        callers = [frame.name for frame in traceback.extract_stack()]
        if isinstance(event.body, unheard) and not failed and (not inside or inside in callers):
            failed = True
            raise RuntimeError("not to be told")

    log.listen(fail)
    harness.scheduler.submit(request, log)
    story = await harness.finish(log)
    assert failed
    return story


@pytest.mark.parametrize("kind", [m.Planned, m.Queued, m.Artifact])
def test_a_fault_at_any_event_of_a_build_ends_its_request(workspace: Workspace, kind: type[m.EventBody]) -> None:
    async def run() -> None:
        async with Harness(workspace) as harness:
            assert_fault((await end_of(harness, workspace.request(), kind)).done, "RuntimeError: not to be told")
            await until_async(lambda: harness.scheduler.idle)
            done = (await harness.build(workspace.request())).done
            assert done.outcome is m.Outcome.BUILT and done.hits + done.misses == 3

    asyncio.run(run())


def test_a_fault_at_a_tick_stops_no_build(workspace: Workspace) -> None:
    """Jobs that wait for memory are asked for again at each tick."""

    async def run() -> None:
        async with Harness(workspace) as harness:
            workspace.write("src/a.cu", "//! sleep 0.5\na\n")
            story = await end_of(harness, workspace.request(), m.Progress, inside="_ticked")
            assert story.done.outcome is m.Outcome.BUILT and len(story.of(m.Progress)) > 1

    asyncio.run(run())


def test_a_fault_after_a_job_has_ended_fails_the_job(workspace: Workspace) -> None:
    async def run() -> None:
        async with Harness(workspace) as harness:
            story = await end_of(harness, workspace.request(), m.Finished)
            assert story.done.outcome is m.Outcome.FAILED
            assert story.of(m.Failed)[0].kind is m.FailureKind.INTERNAL
            await until_async(lambda: harness.scheduler.idle)

    asyncio.run(run())


def test_a_fault_at_a_hit_ends_its_request(workspace: Workspace) -> None:
    async def run() -> None:
        async with Harness(workspace) as harness:
            await harness.build(workspace.request())
            workspace.write("src/c.cu", "c\n")
            assert_fault((await end_of(harness, workspace.request(), m.CacheHit)).done, "not to be told")
            await until_async(lambda: harness.scheduler.idle)

    asyncio.run(run())


def test_a_fault_of_the_state_machine_ends_every_request(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which instructions were lost is not known, so all requests end. The same fault meets their cancellation."""

    def refuse(*wish: object) -> str:
        raise RuntimeError("no admission")

    async def run() -> None:
        async with Harness(workspace) as harness:
            workspace.write("src/a.cu", "//! sleep 30\na\n")
            first = harness.submit(workspace.request())
            await harness.until(first, lambda body: isinstance(body, m.Started))
            monkeypatch.setattr(harness.scheduler.state._ready_queue, "_admission", refuse)
            second = await harness.build(workspace.request(environment={"PATH": "/usr/bin:/bin", "A": "1"}))
            assert_fault(second.done, "no admission")
            assert_fault((await harness.finish(first)).done, "no admission")
            assert not harness.scheduler.builds

    asyncio.run(run())


@pytest.mark.parametrize("mode", [m.Mode.EXPLAIN, m.Mode.PROVE])
def test_an_explanation_ends_where_it_is_cancelled(workspace: Workspace, mode: m.Mode) -> None:
    async def run() -> None:
        async with Harness(workspace) as harness:
            request = workspace.request(mode=mode)
            log = RequestLog(request.request_id)

            def cancel(event: m.Event) -> None:
                if isinstance(event.body, m.Explained):
                    assert harness.scheduler.cancel(request.request_id)

            log.listen(cancel)
            harness.scheduler.submit(request, log)
            story = await harness.finish(log)
            assert len(story.of(m.Explained)) == 1 and story.done.outcome is m.Outcome.CANCELLED

    asyncio.run(run())


def test_a_plan_that_nobody_waits_for_is_not_finished(tmp_path: Path) -> None:
    planning = threading.Event()

    def make(request: m.Request, knowledge: Knowledge) -> Plan:
        planning.set()
        while not knowledge.is_unwanted():
            os.sched_yield()
        raise Unwanted

    async def run() -> None:
        workspace = Workspace(tmp_path)
        async with Harness(workspace, make=make) as harness:
            log = harness.submit(workspace.request())
            await asyncio.to_thread(planning.wait)
            assert harness.scheduler.cancel(log.request_id)
            assert (await harness.finish(log)).done.outcome is m.Outcome.CANCELLED
            await until_async(lambda: harness.scheduler.idle)

    asyncio.run(run())


def test_a_store_that_no_path_can_name_ends_its_request(workspace: Workspace) -> None:
    async def run() -> None:
        async with Harness(workspace) as harness:
            assert_fault((await harness.build(workspace.request(store="/tmp/x\0y"))).done, "ValueError")
            assert harness.scheduler.idle

    asyncio.run(run())


def test_a_fault_at_the_planning_of_a_compile_is_told_with_the_figures_of_its_build(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shim runs the compiler itself and says nothing, so that the summary alone tells why nothing was kept."""

    async def fail(intake: ForeignIntake, request: m.Request, log: RequestLog, figures: Figures) -> None:
        raise ZeroDivisionError("a slip")

    notes: list[run_log.CallNote] = []
    monkeypatch.setattr(ForeignIntake, "_plan", fail)
    monkeypatch.setattr(run_log, "note_call", lambda store, build, note: notes.append(note))
    request = workspace.request(mode=m.Mode.COMPILE, command=("g++", "-c", "a.cpp"))

    async def run() -> m.Done:
        async with Harness(workspace) as harness:
            return (await harness.build(request)).done

    done = asyncio.run(run())
    assert (done.outcome, done.code) == (m.Outcome.REFUSED, PASSED_THROUGH)
    assert "ZeroDivisionError: a slip" in done.message
    assert [note.counted.passed_through for note in notes] == [{"not-carried-out": 1}]
