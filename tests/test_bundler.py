"""Bundles of device code that are composed: as clang's own bundler writes them, and only where it was seen to."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import msgspec
import pytest

from buildd import bundler
from codegen.plan import Action, Output, Place, Ref
from codegen.step_kinds import Kind
from protocol import messages as m
from tests.floor import Floor
from tests.test_hipcc_steps import KERNEL, all_that_ran, assert_same, build, describe, furnish
from tests.test_nvcc_steps import make_plan

TOOL = m.Digest("0" * 64)
TARGETS = ("host-x86_64-unknown-linux", "hipv4-amdgcn-amd-amdhsa--gfx906", "hipv4-amdgcn-amd-amdhsa--gfx90a:xnack+")


def step(devices: int, *words: str, program: str = "/llvm/bin/clang-offload-bundler") -> Action:
    return Action(
        name="bundle",
        kind=Kind.BUNDLE.value,
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


def way(action: Action) -> bundler.Way:
    found = bundler.way_of(action, TOOL)
    assert found is not None
    return found


def test_only_known_words_are_understood() -> None:
    assert bundler.way_of(step(1, "-type=o", "-bundle-align=4096"), TOOL) is not None
    assert bundler.way_of(step(1, "-type=o", "-compress"), TOOL) is None
    assert bundler.way_of(step(1, "-type=a" + "o"), TOOL) is None
    assert bundler.way_of(msgspec.structs.replace(step(1, "-type=o"), kind=Kind.DEVICE_LINK.value), TOOL) is None
    assert bundler.composed(way(step(2, "-type=o")), [b"one"]) is None, "fewer parts than targets"


def test_a_way_holds_for_one_tool_with_the_same_words_and_environment_until_it_makes_something_else() -> None:
    mine = way(step(1, "-type=o", "-bundle-align=512"))
    made = bundler.composed(mine, [b"code"])
    assert made is not None and not bundler.is_proven(mine)
    bundler.prove(mine, [b"code"], made + b"\0")
    assert not bundler.is_proven(mine)
    bundler.prove(mine, [b"code"], made)
    assert bundler.is_proven(mine)
    others = (
        bundler.way_of(step(1, "-type=o", "-bundle-align=512"), m.Digest("1" * 64)),
        way(step(1, "-type=o", "-bundle-align=256")),
        way(msgspec.structs.replace(step(1, "-type=o", "-bundle-align=512"), environment=(("A", "1"),))),
        way(step(1, "-type=o", "-bundle-align=512", program="/other/bin/clang-offload-bundler")),
    )
    assert not any(other is None or bundler.is_proven(other) for other in others)
    bundler.prove(mine, [b"more"], b"other")
    assert not bundler.is_proven(mine)


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
            assert bundler.composed(way(action), parts) == (tmp_path / "made").read_bytes(), (align, sizes)


@pytest.mark.hip
def test_the_program_runs_once_and_objects_are_hipccs_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundler, "_proven", set())
    # One CPU: a job does its steps one after another.
    floor = Floor(tmp_path, make=make_plan, cpus=1)
    furnish(floor)
    assert "bundle" in all_that_ran(build(floor)), "nothing is known of it before"
    floor.write("include/device.h", "#undef FACTOR\n#define FACTOR 7\n")
    edited(floor)
    assert_same(floor)
    describe(floor, "gfx906", "gfx90a")
    assert "bundle" in all_that_ran(build(floor)), "other words"
    assert_same(floor)
    floor.write("src/k.hip", KERNEL.replace("FACTOR", "(FACTOR + 2)"))
    edited(floor)
    assert_same(floor)


def edited(floor: Floor) -> None:
    names = all_that_ran(build(floor))
    assert any(name.startswith("device compile") for name in names) and "bundle" not in names
