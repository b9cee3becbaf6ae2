"""A proof runs the traces of models in code, and only looks up what is compiled from them. Real processes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from buildd.store.figures import stats
from buildd.store.store import Store
from codegen.plan import Knowledge, Plan
from protocol import messages as m
from tests.support.scheduler_harness import Workspace, fake_plan


def traced_plan(request: m.Request, knowledge: Knowledge) -> Plan:
    """As `fake_plan`, but a.cu is a model in code, and its object the trace that is linked."""
    plan = fake_plan(request, knowledge)
    actions = [
        msgspec.structs.replace(action, uncacheable="code may read anything", traces=True)
        if action.name == "a.cu.o"
        else action
        for action in plan.actions
    ]
    return msgspec.structs.replace(plan, actions=tuple(actions))


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    made = Workspace(tmp_path, make=traced_plan)
    made.write("src/a.cu", "a\n")
    made.write("src/b.cu", "b\n")
    return made


def test_a_proof_runs_the_trace_and_nothing_else(workspace: Workspace) -> None:
    cold = workspace.build(mode=m.Mode.PROVE)
    assert {e.action: e.reasons[0] for e in cold.of(m.Explained)} == {
        "b.cu.o": "never built before",
        "all.so": "an input is made by b.cu.o, which would run",
    }
    assert cold.done.outcome is m.Outcome.FAILED and (cold.done.hits, cold.done.misses) == (0, 2)
    assert cold.ran() == ["a.cu.o"], "the trace alone"
    warm = workspace.build(mode=m.Mode.WARM)
    assert warm.done.outcome is m.Outcome.BUILT
    proved = workspace.build(mode=m.Mode.PROVE)
    assert proved.done.outcome is m.Outcome.BUILT and (proved.done.hits, proved.done.misses) == (2, 0)
    assert proved.ran() == ["a.cu.o"] and not proved.of(m.Explained)
    assert not (workspace.project / "build").exists()
    assert not list((workspace.store / "tmp").glob("*/warm-*"))


def test_another_model_is_not_proved_by_the_first_ones_result(workspace: Workspace) -> None:
    workspace.build(mode=m.Mode.WARM)
    workspace.write("src/a.cu", "another model\n")
    changed = workspace.build(mode=m.Mode.PROVE)
    assert [e.action for e in changed.of(m.Explained)] == ["all.so"]
    assert changed.done.outcome is m.Outcome.FAILED
    assert "1 of 3 actions would run" in changed.done.message
    workspace.write("src/a.cu", "a\n")
    assert workspace.build(mode=m.Mode.PROVE).done.outcome is m.Outcome.BUILT, "the first one's is there still"


def test_a_trace_that_fails_is_named_and_what_needs_it_is_not_proved(workspace: Workspace) -> None:
    workspace.build(mode=m.Mode.WARM)
    workspace.write("src/a.cu", "//! fail 3\n")
    story = workspace.build(mode=m.Mode.PROVE)
    assert story.done.outcome is m.Outcome.FAILED and story.done.failures == 1
    assert [e.action for e in story.of(m.Failed)] == ["a.cu.o"]
    assert {e.action: e.reasons for e in story.of(m.Explained)} == {
        "all.so": ("an input is made by a.cu.o, which failed",)
    }


def test_explain_runs_no_trace(workspace: Workspace) -> None:
    workspace.build(mode=m.Mode.WARM)
    told = workspace.build(mode=m.Mode.EXPLAIN)
    assert not told.ran()
    assert {e.action for e in told.of(m.Explained) if e.would_run} == {"a.cu.o", "all.so"}


def test_a_proof_counts_nothing_in_the_store_and_keeps_no_log(workspace: Workspace) -> None:
    workspace.build(mode=m.Mode.WARM)
    with Store.open(workspace.store) as store:
        before, builds = stats(store).counters, len(store.builds())
    workspace.build(mode=m.Mode.PROVE)
    with Store.open(workspace.store) as store:
        assert stats(store).counters == before and len(store.builds()) == builds
