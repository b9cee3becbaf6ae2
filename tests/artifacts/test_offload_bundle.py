"""Bundles of device code that are composed: as clang's own bundler writes them, and only where it was seen to."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import msgspec
import pytest

from buildd.artifacts import offload_bundle
from codegen.generate import make_plan
from codegen.plan import Action, Output, Place, Ref
from codegen.steps.step_kinds import StepKind
from protocol import messages as m
from tests.support.hipcc_project import KERNEL, all_that_ran, assert_same, build, describe, furnish
from tests.support.scheduler_harness import Workspace

TOOL = m.Digest("0" * 64)
TARGETS = ("host-x86_64-unknown-linux", "hipv4-amdgcn-amd-amdhsa--gfx906", "hipv4-amdgcn-amd-amdhsa--gfx90a:xnack+")


def step(devices: int, *words: str, program: str = "/llvm/bin/clang-offload-bundler") -> Action:
    return Action(
        name="bundle",
        kind=StepKind.BUNDLE.value,
        tool="",
        argv=(
            program,
            *words,
            f"-targets={','.join(TARGETS[: devices + 1])}",
            "-input=/dev/null",
            *(Ref(place=Place.INPUT, name=f"{number}.out", prefix="-input=") for number in range(devices)),
            Ref(place=Place.OUTPUT, name="made", prefix="-output="),
        ),
        outputs=(Output(name="made", path="a.hipfb"),),
    )


def way(action: Action) -> offload_bundle.Way:
    found = offload_bundle.way_of(action, TOOL)
    assert found is not None
    return found


def test_only_known_words_are_understood() -> None:
    assert offload_bundle.way_of(step(1, "-type=o", "-bundle-align=4096"), TOOL) is not None
    assert offload_bundle.way_of(step(1, "-type=o", "-compress"), TOOL) is None
    assert offload_bundle.way_of(step(1, "-type=a" + "o"), TOOL) is None
    assert (
        offload_bundle.way_of(msgspec.structs.replace(step(1, "-type=o"), kind=StepKind.DEVICE_LINK.value), TOOL)
        is None
    )
    assert offload_bundle.composed(way(step(2, "-type=o")), [b"one"]) is None, "fewer parts than targets"


def test_a_way_holds_for_one_tool_with_the_same_words_and_environment_until_it_makes_something_else() -> None:
    mine = way(step(1, "-type=o", "-bundle-align=512"))
    made = offload_bundle.composed(mine, [b"code"])
    assert made is not None and not offload_bundle.is_proven(mine)
    offload_bundle.prove(mine, [b"code"], made + b"\0")
    assert not offload_bundle.is_proven(mine)
    offload_bundle.prove(mine, [b"code"], made)
    assert offload_bundle.is_proven(mine)
    others = (
        offload_bundle.way_of(step(1, "-type=o", "-bundle-align=512"), m.Digest("1" * 64)),
        way(step(1, "-type=o", "-bundle-align=256")),
        way(msgspec.structs.replace(step(1, "-type=o", "-bundle-align=512"), environment=(("A", "1"),))),
        way(step(1, "-type=o", "-bundle-align=512", program="/other/bin/clang-offload-bundler")),
    )
    assert not any(other is None or offload_bundle.is_proven(other) for other in others)
    offload_bundle.prove(mine, [b"more"], b"other")
    assert not offload_bundle.is_proven(mine)


@pytest.mark.hip
def test_composed_bundles_are_those_of_clang(tmp_path: Path) -> None:
    program = next(Path("/usr/lib").glob("llvm-*/bin/clang-offload-bundler"), None)
    if program is None:
        pytest.skip("hipcc's clang is not in /usr/lib/llvm-*")
    rng = random.Random(3)
    for align in ("", "-bundle-align=4096", "-bundle-align=8"):
        for sizes in ((1,), (4096,), (0,), (5000, 0), (0, 7), (10_000, 4096)):
            parts = [rng.randbytes(size) for size in sizes]
            for number, part in enumerate(parts):
                (tmp_path / f"{number}.out").write_bytes(part)
            action = step(len(parts), "-type=o", *filter(None, [align]), program=os.fspath(program))
            files = {"0.out": "0.out", "1.out": "1.out", "made": "made"}
            words = [w if isinstance(w, str) else w.prefix + files[w.name] for w in action.argv]
            subprocess.run(words, cwd=tmp_path, check=True)
            assert offload_bundle.composed(way(action), parts) == (tmp_path / "made").read_bytes(), (align, sizes)


@pytest.mark.hip
def test_the_program_runs_once_and_objects_are_hipccs_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload_bundle, "_proven", set())
    # One CPU: a job does its steps one after another.
    workspace = Workspace(tmp_path, make=make_plan, cpus=1)
    furnish(workspace)
    assert "bundle" in all_that_ran(build(workspace)), "nothing is known of it before"
    workspace.write("include/device.h", "#undef FACTOR\n#define FACTOR 7\n")
    edited(workspace)
    assert_same(workspace)


@pytest.mark.hip
@pytest.mark.slow
def test_the_program_runs_again_for_other_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload_bundle, "_proven", set())
    workspace = Workspace(tmp_path, make=make_plan, cpus=1)
    furnish(workspace)
    assert "bundle" in all_that_ran(build(workspace)), "nothing is known of it before"
    describe(workspace, "gfx906", "gfx90a")
    assert "bundle" in all_that_ran(build(workspace)), "other words"
    assert_same(workspace)
    workspace.write("src/k.hip", KERNEL.replace("FACTOR", "(FACTOR + 2)"))
    edited(workspace)
    assert_same(workspace)


def edited(workspace: Workspace) -> None:
    names = all_that_ran(build(workspace))
    assert any(name.startswith("device compile") for name in names) and "bundle" not in names
