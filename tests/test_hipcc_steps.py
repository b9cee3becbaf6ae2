"""hipcc in steps: the objects are hipcc's own to the byte, an edit repeats only what it reaches, and what is said is
what hipcc says."""

from __future__ import annotations

import asyncio
import re
import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from buildd import bundler
from buildd.command import launch_of
from buildd.execution import Execution
from buildd.launch import Launch
from buildd.steps import Ending
from buildd.store import Store
from codegen import foreign
from codegen.commandline import parse
from codegen.hipcc import clang_commands
from codegen.hipcc_steps import decompose
from codegen.parsing import HandThrough
from codegen.plan import Knowledge, RequestError, Steps
from codegen.step_kinds import OBJECT, UNIT, NotUnderstood
from protocol import messages as m
from tests.carry_out import answered, plan_for, request_for
from tests.floor import Floor, Shop, Story
from tests.foreign import Foreign, kept_up, prerequisites
from tests.household import Household
from tests.serving import short_folder
from tests.test_nvcc_steps import make_plan

KERNEL = """
#include <hip/hip_runtime.h>
#include "always.h"
#ifdef __HIP_DEVICE_COMPILE__
#include "device.h"
#define HOST 0
#else
#include "host.h"
#endif
template <typename T> __global__ void scale(T *x) { x[threadIdx.x] *= FACTOR; }
__global__ void first(float *x) { x[threadIdx.x] += FACTOR; }
extern "C" int run_first(float *x) { scale<<<1, 32>>>(x); first<<<1, 32>>>(x); return HOST; }
"""
SOURCE = "/templates/empty/buildd_source.hip"


def project(folder: Path, cpus: int = 4) -> Floor:
    floor = Floor(folder, make=make_plan, cpus=cpus)
    furnish(floor)
    return floor


def furnish(floor: Floor) -> None:
    describe(floor, "gfx90a")
    floor.write("include/always.h", "#define FACTOR 3\n")
    floor.write("include/device.h", "\n")
    floor.write("include/host.h", "#define HOST 4\n")
    floor.write("src/k.hip", KERNEL)


def describe(floor: Floor, *archs: str) -> None:
    text = '[project]\nname = "steps"\n[target.t]\nkind = "hip"\noutput = "object"\nsources = ["src/*.hip"]\n'
    floor.write(
        "buildd.toml", f'{text}include = ["include"]\nflags = ["-O2"]\narch = {list(archs)}\n'.replace("'", '"')
    )


def build(floor: Floor) -> Story:
    async def run() -> Story:
        async with Shop(floor) as shop:
            return await shop.build(request_for(floor.project, store=str(floor.store)))

    return asyncio.run(run())


def all_that_ran(story: Story) -> list[str]:
    """The steps that ran."""
    assert story.done.outcome is m.Outcome.BUILT, story
    (finished,) = story.of(m.Finished)
    assert finished.steps, "it ran whole"
    return sorted(step.name for step in finished.steps if not step.hit)


def ran(story: Story) -> list[str]:
    """The same but for the preprocessor's."""
    return [name for name in all_that_ran(story) if not name.startswith("preprocess")]


def evict(floor: Floor, *names: str) -> None:
    """Have the store forget the results of these actions."""
    with closing(sqlite3.connect(floor.store / "index.db")) as index:
        rows = {name: index.execute("SELECT key FROM results WHERE action = ?", (name,)).fetchall() for name in names}
    with Store.open(floor.store) as store:
        for name in names:
            assert rows[name], name
            for (key,) in rows[name]:
                store.forget(m.Digest(key.hex()))


def said(story: Story) -> list[str]:
    return [line.text for line in story.of(m.LogLine) if line.stream == "stderr"]


def plain(floor: Floor) -> subprocess.CompletedProcess[str]:
    """What hipcc itself says, and makes at plain/k.hip.o."""
    folder = floor.folder / "plain"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    plan = plan_for(request_for(floor.project))
    launch = launch_of(plan.actions[0], plan.tools[0], project=str(floor.project), private=str(folder), where=str)
    return subprocess.run(launch.argv, cwd=launch.cwd, env=dict(launch.environment), capture_output=True, text=True)


def assert_same(floor: Floor) -> None:
    done = plain(floor)
    assert done.returncode == 0, done.stderr
    made = (floor.project / "build/t/obj/src/k.hip.o").read_bytes()
    assert made == (floor.folder / "plain/k.hip.o").read_bytes()


@pytest.mark.hip
@pytest.mark.parametrize("cpus", [pytest.param(2, id="spread"), pytest.param(1, id="chained")])
def test_an_edit_repeats_what_it_reaches_and_the_object_is_hipccs_own(
    tmp_path: Path, cpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundler, "is_proven", lambda way: False)  # a chain writes the bundle itself from the second on
    floor = project(tmp_path, cpus)
    all_steps = ["bundle", "device compile gfx90a", "device link gfx90a", "host compile"]
    assert ran(build(floor)) == all_steps
    assert_same(floor)
    floor.write("include/always.h", "// a comment\n\n#define FACTOR 3\n")
    assert ran(build(floor)) == []
    floor.write("include/host.h", "#define HOST 5\n")
    assert ran(build(floor)) == ["host compile"]
    assert_same(floor)
    describe(floor, "gfx906", "gfx90a")
    added = ["bundle", "device compile gfx906", "device link gfx906", "preprocess gfx906"]
    assert all_that_ran(build(floor)) == added, "what the others see is known"
    assert_same(floor)


@pytest.mark.hip
def test_a_text_of_which_only_the_digest_is_kept_is_made_again_for_a_step_that_has_to_run(tmp_path: Path) -> None:
    floor = project(tmp_path)
    build(floor)
    name = plan_for(request_for(floor.project)).actions[0].name
    evict(floor, name, f"{name}: device compile gfx90a")
    shutil.rmtree(floor.project / "build")  # else nothing is to be done, once the folders are old enough to tell
    assert ran(build(floor)) == ["device compile gfx90a"]
    assert_same(floor)


@pytest.mark.hip
@pytest.mark.slow
def test_more_edits(tmp_path: Path) -> None:
    floor = project(tmp_path)
    describe(floor, "gfx90a:xnack+", "gfx90a:xnack-", "gfx906")
    names = ("gfx906", "gfx90a_xnack_off", "gfx90a_xnack_on")
    assert ran(build(floor)) == sorted(
        ["bundle", "host compile", *(f"device {what} {name}" for what in ("compile", "link") for name in names)]
    )
    assert_same(floor)
    floor.write("include/device.h", "__device__ inline int only() { return 1; }\n")
    assert ran(build(floor)) == sorted(f"device compile {name}" for name in names), "unused: the same code"
    assert_same(floor)
    floor.write("include/device.h", "#undef FACTOR\n#define FACTOR 7\n")
    assert "host compile" not in ran(build(floor))
    assert_same(floor)
    # What can see its line is compiled again when it moves.
    floor.write("src/k.hip", KERNEL.replace("return HOST", "return HOST + __LINE__"))
    build(floor)
    floor.write("include/always.h", "#define FACTOR 3\n\n")
    assert ran(build(floor)) == []
    floor.write("src/k.hip", "\n" + KERNEL.replace("return HOST", "return HOST + __LINE__"))
    assert "host compile" in ran(build(floor))
    assert_same(floor)
    lambdas = KERNEL + "template <typename T> char const *name(T) { return __PRETTY_FUNCTION__; }\n"
    lambdas += "extern char const *text;\nchar const *text = name([] {});\n"
    floor.write("src/k.hip", lambdas)
    build(floor)
    floor.write("src/k.hip", "\n" + lambdas)
    assert "host compile" in ran(build(floor)), "clang calls a lambda by its line"
    assert_same(floor)


@pytest.mark.hip
@pytest.mark.slow
def test_what_is_said_is_what_hipcc_says_and_such_a_compile_runs_whole_from_then_on(tmp_path: Path) -> None:
    floor = project(tmp_path)
    # A macro that its message shows unfolded.
    warns = "#define OVER(x) ((x) / 0)\n" + KERNEL.replace("return HOST", "return OVER(1) + HOST")
    floor.write("src/k.hip", warns)
    story = build(floor)
    expected = plain(floor).stderr
    assert "expanded from macro 'OVER'" in expected
    assert said(story) == expected.splitlines() and not story.of(m.Finished)[-1].steps
    assert_same(floor)
    floor.write("src/k.hip", warns + "\n// edited\n")
    story = build(floor)
    assert said(story) == expected.splitlines()
    assert len(story.of(m.Started)) == 1 and not story.of(m.Finished)[-1].steps, "no step was tried in vain"
    floor.write("src/k.hip", warns.replace("OVER(1)", "nonsense(1)"))
    story = build(floor)
    assert story.done.outcome is m.Outcome.FAILED and said(story) == plain(floor).stderr.splitlines()
    floor.write("src/k.hip", KERNEL)
    assert not build(floor).of(m.Finished)[-1].steps, "whole once more: it might say something"
    floor.write("src/k.hip", KERNEL.replace("FACTOR", "(FACTOR + 1)"))
    assert ran(build(floor)) == ["bundle", "device compile gfx90a", "device link gfx90a", "host compile"]
    assert_same(floor)


FRONT = f'"-emit-obj" "-main-file-name" "buildd_source.hip" "-D" "X=1" "-I" "inc" "-cuid={UNIT}"'
DRY_RUN = f"""\
Debian clang version 15.0.6
Target: x86_64-pc-linux-gnu
Thread model: posix
InstalledDir: /usr/lib/llvm-15/bin
 "/llvm/bin/clang" "-cc1" {FRONT} "-fcuda-is-device" "-target-cpu" "gfx906" "-o" "/tmp/a.o" "-x" "hip" "{SOURCE}"
 "/llvm/bin/lld" "-flavor" "gnu" "-shared" "-o" "/tmp/a.out" "/tmp/a.o"
 "/llvm/bin/clang-offload-bundler" "-type=o" "-input=/dev/null" "-input=/tmp/a.out" "-output=/tmp/a.hipfb"
 "/llvm/bin/clang" "-cc1" {FRONT} "-fcuda-include-gpubinary" "/tmp/a.hipfb" "-o" "{OBJECT}" "-x" "hip" "{SOURCE}"
"""


def test_a_dry_run_of_the_known_shape_becomes_steps() -> None:
    steps = decompose(DRY_RUN, "name", source=SOURCE, identity="p")
    assert [step.name for step in steps.actions] == [
        "preprocess gfx906",
        "device compile gfx906",
        "device link gfx906",
        "bundle",
        "preprocess host",
        "host compile",
    ]
    assert steps.silent
    assert not {output.path for output in steps.actions[3].outputs}.intersection(steps.actions[-1].inputs)
    preprocess, compiled = steps.actions[:2]
    assert {"-D", "X=1", "-I", "inc", "-E"} <= set(preprocess.argv) and not {"-D", "-I"} & set(compiled.argv)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (('"-emit-obj"', '"-emit-llvm-bc"'), "to something else"),
        (('"-fcuda-is-device"', '"-fcuda-is-device" "-debug-info-kind=constructor"'), "-debug-info-kind"),
        (('"-fcuda-is-device"', '"-fcuda-is-device" "-fsanitize=address"'), "-fsanitize"),
        (('"-D" "X=1"', '"-include-pch" "x.pch"'), "-include-pch"),
        (("/bin/lld", "/bin/mold"), "the step mold"),
        (('"-input=/tmp/a.out"', '"-input=/tmp/b.out"'), "a bundle of other files"),
        (('"-output=/tmp/a.hipfb"', '"-output=/tmp/b.hipfb"'), "a bundle of other files"),
        (('"/tmp/a.o"\n', '"/tmp/b.o"\n'), "a device link of another file"),
        ((OBJECT, "/elsewhere.o"), "host compile of another file"),
        (('"hip" "' + SOURCE, '"c++" "' + SOURCE), "a compile of another file"),
        (("Thread model: posix", "clang: warning: argument unused"), "hipcc says: clang: warning"),
        ((DRY_RUN, DRY_RUN.splitlines()[0]), "0 commands"),
    ],
)
def test_any_other_shape_is_not_understood(change: tuple[str, str], reason: str) -> None:
    assert change[0] in DRY_RUN
    with pytest.raises(NotUnderstood, match=re.escape(reason)):
        decompose(DRY_RUN.replace(*change), "name", source=SOURCE, identity="p")


@pytest.mark.hip
def test_what_a_step_has_made_is_kept_while_one_runs_that_does_not_need_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And where that turns out to be of files that changed meanwhile, all is done once more."""
    story: list[tuple[str, str]] = []
    kept, begun = Execution.keep, Execution.prepare

    def keep(self: Execution) -> Ending:
        story.append(("keep", self.action.name.rpartition(": ")[2]))
        return Ending.STALE if len([1 for what, _ in story if what == "keep"]) == 1 else kept(self)

    def prepare(self: Execution) -> Launch:
        story.append(("begin", self.action.name.rpartition(": ")[2]))
        return begun(self)

    monkeypatch.setattr(Execution, "keep", keep)
    monkeypatch.setattr(Execution, "prepare", prepare)
    floor = project(tmp_path, cpus=1)
    made = build(floor)
    assert_same(floor)
    assert made.done.misses == 1 and not list((floor.store / "tmp").glob("*/*"))
    inner = [(what, name) for what, name in story if "/" not in name]
    twice = [("begin", "preprocess gfx90a"), ("begin", "preprocess host"), ("keep", "preprocess gfx90a")]
    assert inner[:3] == twice and inner[3:6] == twice, "the next one is begun before the last one is kept"
    begun_then = [name for what, name in inner[6:] if what == "begin" and name != "bundle"]  # it may be composed
    assert begun_then == ["device compile gfx90a", "host compile", "device link gfx90a"]
    device = inner.index(("begin", "device compile gfx90a"))
    assert inner[device - 1] == ("keep", "preprocess gfx90a") and inner[device + 1] == ("keep", "preprocess host")


@pytest.mark.hip
def test_a_stand_ins_compile_goes_in_steps(tmp_path: Path) -> None:
    """Its object apart, whose -cuid clang makes of its path: depfile, status and what is said are hipcc's."""
    with short_folder() as folder:
        user = Household(folder, {"HIP_PLATFORM": "amd"})
        with kept_up(user):
            other = Foreign(user, tmp_path / "foreign")
            other.write("include/always.h", "#define FACTOR 3\n")
            other.write("include/device.h", "\n")
            other.write("include/host.h", "#define HOST 4\n")
            other.write("src/k.hip", KERNEL)
            command = ("hipcc", "--offload-arch=gfx90a", "-O2", "-Iinclude", "-c", "src/k.hip", "-MD", "-MF", "k.d")
            done = other.call(*command, "-o", "k.o")
            assert (done.returncode, done.stderr) == (0, b"")
            counters = other.status().counters
            assert (counters["step_misses"], counters["whole"]) == (6, 0)
            ours, listed = (other.folder / "k.o").read_bytes(), prerequisites((other.folder / "k.d").read_bytes())
            other.plainly(*command, "-o", "k.o")
            assert ours == (other.folder / "k.o").read_bytes()
            wanted = prerequisites((other.folder / "k.d").read_bytes())
            assert listed[0] == wanted[0] and {*wanted[1]} <= {*listed[1]}
        assert user.end() == []


@pytest.mark.hip
def test_a_foreign_compiles_hipcc_is_asked_no_more_than_it_takes(tmp_path: Path) -> None:
    """Each question to it takes three starts of clang. One run answers both."""
    hipcc = shutil.which("hipcc") or ""
    described, steps, knowledge = described_as_called(tmp_path, hipcc)
    (ahead,) = knowledge.take_ahead()
    asked = [probe for probe in knowledge.asked if probe.argv[0] == hipcc]
    assert isinstance(steps, Steps)
    assert len(asked) == 2
    for probe in asked:
        assert probe == msgspec.structs.replace(ahead, files=probe.files), "begun before its files were known"
    assert {"clang", "lld", "clang-offload-bundler", "ocml.bc"} <= {file.role for file in described.tool.files}


@pytest.mark.hip
@pytest.mark.parametrize(
    ("flags", "questions"),
    [
        (("-O3", "-fPIC", "-Iinclude", "-I", "more", "-DA=1", "-D", "B", "-std=c++17", "-Wall", "-Wno-unused"), 1),
        (("--offload-arch=gfx906", "-x", "hip", "-I/usr/include", "-ffast-math"), 1),
        (("-isystem", "more"), 2),
        (("-nogpulib",), 2),
        (("-fno-exceptions",), 2),
    ],
)
def test_a_compilers_parts_are_the_same_with_whatever_flags_it_was_asked(
    tmp_path: Path, flags: tuple[str, ...], questions: int
) -> None:
    """Or the first compile of a build would decide under which keys its objects are kept."""
    hipcc = shutil.which("hipcc") or ""
    plain, _, _ = described_as_called(tmp_path, hipcc, {"HIP_PLATFORM": "amd", "CPATH": str(tmp_path / "nothing")})
    described, _, knowledge = described_as_called(tmp_path, hipcc, flags=flags)
    asked = {probe.argv for probe in knowledge.asked if probe.argv[0] == hipcc}
    assert len(asked) == questions
    searched = tuple(folder for folder in plain.tool.search if folder != str(tmp_path / "nothing"))
    assert described.tool == msgspec.structs.replace(plain.tool, search=searched)


@pytest.mark.hip
@pytest.mark.parametrize("flags", [("-Iinc",), ("-I", "more", "-Imore", "-Iinc"), ("-D", "-I", "-UX"), ("-I-",)])
def test_folders_that_a_variable_adds_keep_their_order_where_a_compile_adds_them_too(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    environment = {"HIP_PLATFORM": "amd", "HIPCC_COMPILE_FLAGS_APPEND": "-Iinc -Imore"}
    hipcc = shutil.which("hipcc") or ""
    plain, _, _ = described_as_called(tmp_path, hipcc, environment, ())
    described, _, _ = described_as_called(tmp_path, hipcc, environment, flags)
    assert plain.tool.search[:2] == ("inc", "more")
    assert described.tool == plain.tool


@pytest.mark.hip
def test_commands_are_read_as_a_shell_would() -> None:
    words = ('-DTEXT="a\\b $c"', "-DSPACE= ", "-I", "o'clock")
    command = ("hipcc", "-###", "-x", "hip", "-c", "/dev/null", "--offload-arch=gfx90a", *words)
    environment = {"PATH": "/usr/bin:/bin", "HIP_PLATFORM": "amd"}
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stderr
    device, *_, host = clang_commands(said)
    for passed in (device, host):
        assert {'TEXT="a\\b $c"', "SPACE= ", "o'clock"} <= {*passed}
    assert clang_commands(' "a" b "c"') == (("a", "b", "c"),), "also where a word is not quoted"


@pytest.mark.hip
@pytest.mark.parametrize(("otherwise", "reason"), [("echo nvcc", "HIP_PLATFORM=amd makes it"), ("exit 1", "")])
def test_a_hipcc_that_calls_no_clang_is_handed_through(tmp_path: Path, otherwise: str, reason: str) -> None:
    """It looks for a platform itself."""
    program = tmp_path / "root/bin/hipcc"
    program.parent.mkdir(parents=True)
    works = f'[ "$HIP_PLATFORM" != amd ] || exec {shutil.which("hipcc")} "$@"' if reason else ""
    program.write_text(f"#!/bin/sh\n{works}\n{otherwise}\n")
    program.chmod(0o755)
    with pytest.raises(HandThrough if reason else RequestError, match=reason or "does not work"):
        described_as_called(tmp_path, str(program), {})


def described_as_called(
    folder: Path, hipcc: str, environment: dict[str, str] | None = None, flags: tuple[str, ...] = ("-O2",)
) -> tuple[foreign.Described, Steps | str, Knowledge]:
    (folder / "k.hip").write_text(KERNEL)
    environment = {"PATH": "/usr/bin:/bin", **({"HIP_PLATFORM": "amd"} if environment is None else environment)}
    command = (hipcc, *flags, "--offload-arch=gfx90a", "-c", "k.hip", "-o", "k.o")
    request = msgspec.structs.replace(request_for(folder), command=command, environment=environment)
    compile, knowledge = parse(command, str(folder), tuple(environment.items())), Knowledge()
    described = answered(lambda: foreign.describe(compile, request, knowledge), knowledge)
    return described, answered(lambda: foreign.steps(compile, described, (), knowledge), knowledge), knowledge
