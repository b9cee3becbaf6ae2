"""Questions to tools with real processes: asked once, kept as long as what the answer stands on, and begun early."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from buildd.builds.planner import Planner
from buildd.files.digests import Files
from buildd.files.kernel_clock import STEP_NS
from buildd.processes.runner import Runner
from buildd.store.store import Store
from codegen.plan import Answer, Knowledge, Probe
from codegen.steps.decomposition import hip_probe
from tests.support.waiting import until_settled

DEADLINE_S = 30.0
ENVIRONMENT = (("PATH", "/usr/bin:/bin"),)


class Asker:
    """A tool whose description takes two questions; the second is known before what its answer stands on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "store"
        self.tool = folder / "tool"
        self.tool.write_text("one")
        self.beside: tuple[str, ...] = (str(self.tool),)
        until_settled(folder, 2 * STEP_NS)

    def probe(self, word: str, *files: str) -> Probe:
        script = f"echo {word} >> ran; cat tool; sleep 0.1"
        return Probe(argv=("sh", "-c", f"cd {self.folder}; {script}"), environment=ENVIRONMENT, files=files)

    def make(self, knowledge: Knowledge) -> str:
        knowledge.ask_ahead(self.probe("second"))
        knowledge.ask(self.probe("first"))
        (answer,) = knowledge.ask(self.probe("second", *self.beside))
        return answer.stdout

    def learn(self) -> str:
        async def run() -> str:
            runner = Runner(grace_s=0.3)
            try:
                with Store.open(self.store) as store:
                    planner = Planner(runner, store, Files(store))
                    said, _ = await asyncio.wait_for(planner.learn("tool", self.make), DEADLINE_S)
                    return said
            finally:
                await runner.close()

        return asyncio.run(run())

    def ran(self) -> list[str]:
        """What ran since the last call."""
        log = self.folder / "ran"
        words = log.read_text().split() if log.exists() else []
        log.unlink(missing_ok=True)
        return sorted(words)


@pytest.fixture
def asker(tmp_path: Path) -> Asker:
    return Asker(tmp_path)


def test_a_command_that_was_begun_early_is_not_run_again(asker: Asker) -> None:
    assert asker.learn() == "one"
    assert asker.ran() == ["first", "second"]
    assert asker.learn() == "one"
    assert asker.ran() == [], "both are remembered: nothing is begun in vain"


def test_what_is_asked_again_with_more_files_to_stand_on_is_not_run_again(asker: Asker) -> None:
    def make(knowledge: Knowledge) -> str:
        knowledge.ask_ahead(asker.probe("one"))
        knowledge.ask(asker.probe("one", __file__))
        (answer,) = knowledge.ask(asker.probe("one", __file__, *asker.beside))
        return answer.stdout

    asker.make = make  # type: ignore[method-assign]
    assert asker.learn() == "one"
    assert asker.ran() == ["one"]
    asker.tool.write_text("two")
    assert asker.learn() == "two"
    assert asker.ran() == ["one"]


def test_what_was_begun_for_an_earlier_plan_says_nothing_of_files_that_are_gone(asker: Asker) -> None:
    """The later question does not stand on them. As of hipcc, whose steps are a plan of their own."""
    other = asker.folder / "other"
    other.write_text("and more")
    until_settled(asker.folder, 2 * STEP_NS)

    def describe(knowledge: Knowledge) -> None:
        knowledge.ask_ahead(asker.probe("second"))
        knowledge.ask(asker.probe("first"))

    async def plan(planner: Planner, *files: Path) -> None:
        await planner.learn("tool", describe)
        await planner.learn("steps", lambda knowledge: knowledge.ask(asker.probe("second", *map(str, files))))

    async def run() -> None:
        runner = Runner(grace_s=0.3)
        try:
            with Store.open(asker.store) as store:
                planner = Planner(runner, store, Files(store))
                await asyncio.wait_for(plan(planner, asker.tool, other), DEADLINE_S)
                assert asker.ran() == ["first", "second"]
                other.unlink()
                await asyncio.wait_for(plan(planner, asker.tool), DEADLINE_S)
        finally:
            await runner.close()

    asyncio.run(run())
    assert asker.ran() == ["second"]


def test_an_answer_is_kept_under_the_files_that_it_stands_on(asker: Asker) -> None:
    asker.learn()
    asker.ran()
    asker.tool.write_text("two")
    assert asker.learn() == "two"
    assert asker.ran() == ["second"]


@pytest.mark.parametrize("change", ["written", "put in its place", "a link turned", "gone"])
def test_what_is_younger_than_a_command_that_was_begun_has_it_run_again(
    asker: Asker, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = asker.folder / "other"
    other.mkdir()
    (other / "tool").write_text("two")
    link = asker.folder / "link"
    link.symlink_to(asker.folder)
    asker.beside = (str(link / "tool"),)
    until_settled(asker.folder, 2 * STEP_NS)
    answered = Planner._answer

    async def changed(self: Planner, probe: Probe, digests: dict[str, str]) -> object:
        answer = await answered(self, probe, digests)
        if "first" in probe.argv[-1]:
            match change:
                case "written":
                    asker.tool.write_text("two")
                case "put in its place":
                    os.replace(other / "tool", asker.tool)
                case "a link turned":
                    link.unlink()
                    link.symlink_to(other)
                case _:
                    asker.tool.unlink()
        return answer

    monkeypatch.setattr(Planner, "_answer", changed)
    asker.learn()
    assert asker.ran() == ["first", "second", "second"]


def ask(store: Path, probe: Probe) -> Answer:
    async def run() -> Answer:
        runner = Runner(grace_s=0.3)
        try:
            with Store.open(store) as opened:
                planner = Planner(runner, opened, Files(opened))
                (answer,), _ = await asyncio.wait_for(planner.learn("t", lambda known: known.ask(probe)), DEADLINE_S)
                return answer
        finally:
            await runner.close()

    return asyncio.run(run())


@pytest.mark.parametrize("usual", ["", "/tmp/of the caller"])
def test_temporary_files_of_a_tool_are_removed_and_their_folder_has_its_usual_name(tmp_path: Path, usual: str) -> None:
    script = (
        f"ls -A $TMPDIR; mkdir $TMPDIR/left; touch $TMPDIR/left/f; echo $TMPDIR > {tmp_path}/was; echo $TMPDIR/left"
    )
    environment = (*ENVIRONMENT, *((("TMPDIR", usual),) if usual else ()))
    answer = ask(tmp_path / "store", Probe(argv=("sh", "-c", script + "; echo $TMPDIR >&2"), environment=environment))
    assert answer.stdout == f"{usual or '/tmp'}/left\n"
    assert answer.stderr == f"{usual or '/tmp'}\n"
    was = Path((tmp_path / "was").read_text().strip())
    assert was.is_absolute()
    assert not was.exists()


@pytest.mark.hip
def test_a_dry_run_of_hipcc_leaves_no_folder(tmp_path: Path) -> None:
    """clang makes one for each architecture."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    source = tmp_path / "k.hip"
    source.write_text("")
    environment = (("HIP_PLATFORM", "amd"), *ENVIRONMENT, ("TMPDIR", str(temporary)))
    words = ("-c", "--offload-arch=gfx90a", "--offload-arch=gfx906")
    answer = ask(tmp_path / "store", hip_probe(shutil.which("hipcc") or "", environment, words, str(source), ()))
    assert answer.status == 0
    assert f"{temporary}/k-" in answer.stderr, "the commands name a file there"
    assert os.listdir(temporary) == []
