"""hipcc in steps: the objects are hipcc's own to the byte, an edit repeats only what it reaches, and what is said is
what hipcc says."""

from __future__ import annotations

import re
import shutil
import sqlite3
import subprocess
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from buildd.artifacts import offload_bundle
from buildd.artifacts.hip_symbol import renamed
from buildd.processes.launch import Launch
from buildd.scheduling.execution import Execution
from buildd.state.events import Ending
from buildd.store.store import Store
from codegen.compilers.command_parser import PassThrough
from codegen.compilers.hipcc import clang_commands
from codegen.errors import RequestError
from codegen.foreign import called_tool, compile_plan
from codegen.foreign.command_line import parse
from codegen.generate import make_plan
from codegen.plan import Action, Knowledge, Output, Place, Ref, Steps
from codegen.steps.hipcc_steps import decompose
from codegen.steps.module_ids import HIP_SYMBOL, ids_of
from codegen.steps.step_kinds import OBJECT, UNIT, NotUnderstood
from protocol import messages as m
from tests.support.carry_out import answered, plan_for, request_for
from tests.support.foreign_project import ForeignProject, kept_up, prerequisites
from tests.support.hipcc_project import KERNEL, all_that_ran, assert_same, build, describe, furnish, plain
from tests.support.scheduler_harness import Story, Workspace
from tests.support.serving import short_folder
from tests.support.user import User

SOURCE = "/templates/empty/buildd_source.hip"


def project(folder: Path, cpus: int = 4) -> Workspace:
    workspace = Workspace(folder, make=make_plan, cpus=cpus)
    furnish(workspace)
    return workspace


def ran(story: Story) -> list[str]:
    """The same but for the preprocessor's."""
    return [name for name in all_that_ran(story) if not name.startswith("preprocess")]


def evict(workspace: Workspace, *names: str) -> None:
    """Have the store forget the results of these actions."""
    with closing(sqlite3.connect(workspace.store / "index.db")) as index:
        rows = {name: index.execute("SELECT key FROM results WHERE action = ?", (name,)).fetchall() for name in names}
    with Store.open(workspace.store) as store:
        for name in names:
            assert rows[name], name
            for (key,) in rows[name]:
                store.forget(m.Digest(key.hex()))


def said(story: Story) -> list[str]:
    return [line.text for line in story.of(m.LogLine) if line.stream == "stderr"]


@pytest.mark.hip
@pytest.mark.parametrize("cpus", [pytest.param(2, id="spread"), pytest.param(1, id="chained", marks=pytest.mark.slow)])
def test_an_edit_repeats_what_it_reaches_and_the_object_is_hipccs_own(
    tmp_path: Path, cpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        offload_bundle, "is_proven", lambda way: False
    )  # a chain writes the bundle itself from the second on
    workspace = project(tmp_path, cpus)
    all_steps = ["bundle", "device compile gfx90a", "device link gfx90a", "host compile"]
    assert ran(build(workspace)) == all_steps
    assert_same(workspace)
    workspace.write("include/always.h", "// a comment\n\n#define FACTOR 3\n")
    assert ran(build(workspace)) == []
    workspace.write("include/host.h", "#define HOST 5\n")
    assert ran(build(workspace)) == ["host compile"]
    assert_same(workspace)
    describe(workspace, "gfx906", "gfx90a")
    added = ["bundle", "device compile gfx906", "device link gfx906", "preprocess gfx906"]
    assert all_that_ran(build(workspace)) == added, "what the others see is known"
    assert_same(workspace)


@pytest.mark.hip
def test_the_object_of_a_source_without_kernels_is_made_once(tmp_path: Path) -> None:
    """Clang puts no device code into it, and nothing has to be exchanged."""
    workspace = project(tmp_path)
    workspace.write("src/k.hip", KERNEL[: KERNEL.index("template")] + "int host() { return HOST; }\n")
    all_steps = ["bundle", "device compile gfx90a", "device link gfx90a", "host compile"]
    assert ran(build(workspace)) == all_steps
    assert_same(workspace)
    workspace.write("include/device.h", "__device__ inline int unused() { return 1; }\n")
    assert "host compile" not in ran(build(workspace))
    assert_same(workspace)


@pytest.mark.slow
@pytest.mark.hip
def test_a_text_of_which_only_the_digest_is_kept_is_made_again_for_a_step_that_has_to_run(tmp_path: Path) -> None:
    workspace = project(tmp_path)
    build(workspace)
    name = plan_for(request_for(workspace.project)).actions[0].name
    evict(workspace, name, f"{name}: device compile gfx90a")
    shutil.rmtree(workspace.project / "build")  # else nothing is to be done, once the folders are old enough to tell
    assert ran(build(workspace)) == ["device compile gfx90a"]
    assert_same(workspace)


@pytest.mark.hip
@pytest.mark.slow
def test_more_edits(tmp_path: Path) -> None:
    workspace = project(tmp_path)
    describe(workspace, "gfx90a:xnack+", "gfx90a:xnack-", "gfx906")
    names = ("gfx906", "gfx90a_xnack_off", "gfx90a_xnack_on")
    assert ran(build(workspace)) == sorted(
        ["bundle", "host compile", *(f"device {what} {name}" for what in ("compile", "link") for name in names)]
    )
    assert_same(workspace)
    workspace.write("include/device.h", "__device__ inline int only() { return 1; }\n")
    assert ran(build(workspace)) == sorted(f"device compile {name}" for name in names), "unused: the same code"
    assert_same(workspace)
    workspace.write("include/device.h", "#undef FACTOR\n#define FACTOR 7\n")
    assert "host compile" not in ran(build(workspace))
    assert_same(workspace)
    # What can see its line is compiled again when it moves.
    workspace.write("src/k.hip", KERNEL.replace("return HOST", "return HOST + __LINE__"))
    build(workspace)
    workspace.write("include/always.h", "#define FACTOR 3\n\n")
    assert ran(build(workspace)) == []
    workspace.write("src/k.hip", "\n" + KERNEL.replace("return HOST", "return HOST + __LINE__"))
    assert "host compile" in ran(build(workspace))
    assert_same(workspace)
    lambdas = KERNEL + "template <typename T> char const *name(T) { return __PRETTY_FUNCTION__; }\n"
    lambdas += "extern char const *text;\nchar const *text = name([] {});\n"
    workspace.write("src/k.hip", lambdas)
    build(workspace)
    assert_same(workspace)
    # clang calls a lambda by its line and column, which preprocessing moves.
    workspace.write("src/k.hip", "\n" + lambdas)
    with pytest.raises(AssertionError, match="it ran whole"):
        ran(build(workspace))
    assert_same(workspace)


@pytest.mark.hip
@pytest.mark.parametrize("cpus", [1, 4])
def test_no_step_begins_once_it_is_known_that_hipcc_runs_whole(tmp_path: Path, cpus: int) -> None:
    """The preprocessed text tells it here; else the first build would cost twice as much."""
    workspace = project(tmp_path, cpus)
    workspace.write("src/k.hip", "#pragma pack(1)\n" + KERNEL)
    assert not build(workspace).of(m.Finished)[-1].steps
    with closing(sqlite3.connect(workspace.store / "index.db")) as index:
        stored = {name for (name,) in index.execute("SELECT action FROM results")}
    assert any("preprocess" in name for name in stored)
    assert not any("compile" in name or "link" in name for name in stored), stored
    assert_same(workspace)


@pytest.mark.hip
@pytest.mark.slow
def test_what_is_said_is_what_hipcc_says_and_such_a_compile_runs_whole_from_then_on(tmp_path: Path) -> None:
    workspace = project(tmp_path)
    # A macro that its message shows unfolded.
    warns = "#define OVER(x) ((x) / 0)\n" + KERNEL.replace("return HOST", "return OVER(1) + HOST")
    workspace.write("src/k.hip", warns)
    story = build(workspace)
    expected = plain(workspace).stderr
    assert "expanded from macro 'OVER'" in expected
    assert said(story) == expected.splitlines() and not story.of(m.Finished)[-1].steps
    assert_same(workspace)
    workspace.write("src/k.hip", warns + "\n// edited\n")
    story = build(workspace)
    assert said(story) == expected.splitlines()
    assert len(story.of(m.Started)) == 1 and not story.of(m.Finished)[-1].steps, "no step was tried in vain"
    workspace.write("src/k.hip", warns.replace("OVER(1)", "nonsense(1)"))
    story = build(workspace)
    assert story.done.outcome is m.Outcome.FAILED and said(story) == plain(workspace).stderr.splitlines()
    workspace.write("src/k.hip", KERNEL)
    assert not build(workspace).of(m.Finished)[-1].steps, "whole once more: it might say something"
    workspace.write("src/k.hip", KERNEL.replace("FACTOR", "(FACTOR + 1)"))
    assert ran(build(workspace)) == ["bundle", "device compile gfx90a", "device link gfx90a", "host compile"]
    assert_same(workspace)


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


def test_newer_clangs_link_all_of_the_device_object() -> None:
    """clang 17 and later: no other words may stand behind the object."""
    around = DRY_RUN.replace(
        '"-o" "/tmp/a.out" "/tmp/a.o"', '"--whole-archive" "-o" "/tmp/a.out" "/tmp/a.o" "--no-whole-archive"'
    )
    link = decompose(around, "name", source=SOURCE, identity="p").actions[2]
    assert [word if isinstance(word, str) else word.place for word in link.argv[-5:]] == [
        "--whole-archive",
        "-o",
        Place.OUTPUT,
        Place.INPUT,
        "--no-whole-archive",
    ]
    assert link.argv[-2] == Ref(place=Place.INPUT, name=link.inputs[0])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (('"-emit-obj"', '"-emit-llvm-bc"'), "to an unexpected output"),
        (('"-fcuda-is-device"', '"-fcuda-is-device" "-debug-info-kind=constructor"'), "-debug-info-kind"),
        (('"-fcuda-is-device"', '"-fcuda-is-device" "-fsanitize=address"'), "-fsanitize"),
        (('"-D" "X=1"', '"-include-pch" "x.pch"'), "-include-pch"),
        (("/bin/lld", "/bin/mold"), "the step mold"),
        (('"-type=o"', '"-type=o" "-verbose"'), "clang-offload-bundler -verbose"),
        (('"-input=/tmp/a.out"', '"-input=/tmp/b.out"'), "a bundle of unexpected files"),
        (('"-output=/tmp/a.hipfb"', '"-output=/tmp/b.hipfb"'), "a bundle of unexpected files"),
        (('"/tmp/a.o"\n', '"/tmp/b.o"\n'), "a device link of an unexpected file"),
        (('"/tmp/a.o"\n', '"/tmp/a.o" "/tmp/b.o"\n'), "a device link of an unexpected file"),
        ((OBJECT, "/elsewhere.o"), "host compile reads an unexpected file"),
        (('"hip" "' + SOURCE, '"c++" "' + SOURCE), "a compile of an unexpected file"),
        (("Thread model: posix", "clang: warning: argument unused"), "hipcc says: clang: warning"),
        ((DRY_RUN, DRY_RUN.splitlines()[0]), "0 commands"),
    ],
)
def test_any_other_shape_is_not_understood(change: tuple[str, str], reason: str) -> None:
    assert change[0] in DRY_RUN
    with pytest.raises(NotUnderstood, match=re.escape(reason)):
        decompose(DRY_RUN.replace(*change), "name", source=SOURCE, identity="p")


@pytest.mark.slow
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
    workspace = project(tmp_path, cpus=1)
    made = build(workspace)
    assert_same(workspace)
    assert made.done.misses == 1 and not list((workspace.store / "tmp").glob("*/*"))
    inner = [(what, name) for what, name in story if "/" not in name]
    twice = [("begin", "preprocess gfx90a"), ("begin", "preprocess host"), ("keep", "preprocess gfx90a")]
    assert inner[:3] == twice and inner[3:6] == twice, "the next one is begun before the last one is kept"
    begun_then = [name for what, name in inner[6:] if what == "begin" and name != "bundle"]  # it may be composed
    assert begun_then == ["device compile gfx90a", "host compile", "device link gfx90a"]
    device = inner.index(("begin", "device compile gfx90a"))
    assert inner[device - 1] == ("keep", "preprocess gfx90a") and inner[device + 1] == ("keep", "preprocess host")


def plain_object(project: ForeignProject, command: Sequence[str], source: Path, made: Path) -> bytes:
    """What the compiler itself makes if it is given buildd's id of the module, with the symbol of this checkout."""
    outputs = (Output(name="object", path=str(made)),)
    action = Action(name="", kind="hipcc", tool="", argv=(), inputs=(str(source),), outputs=outputs)
    steps = Steps(name="", identity="", actions=(), silent=True)
    ids = ids_of(steps, action, "", (("checkout", str(project.folder)),), "")
    project.plainly(*command, f"-cuid={ids.unit}")
    plain = made.read_bytes()
    return (renamed(plain, ids.own) or b"") if HIP_SYMBOL.encode() in plain else plain


@pytest.mark.hip
def test_a_shims_compile_goes_in_steps(tmp_path: Path) -> None:
    """Its object apart, whose -cuid clang makes of its path: depfile, status and what is said are hipcc's."""
    with short_folder() as folder:
        user = User(folder, {"HIP_PLATFORM": "amd"})
        with kept_up(user):
            other = ForeignProject(user, tmp_path / "foreign")
            other.write("include/always.h", "#define FACTOR 3\n")
            other.write("include/device.h", "\n")
            other.write("include/host.h", "#define HOST 4\n")
            other.write("src/k.hip", KERNEL)
            # As composable kernel's build calls it.
            llvm = ("-mllvm", "-amdgpu-early-inline-all=true", "-mllvm", "-amdgpu-function-calls=false")
            command = (
                "hipcc",
                "--offload-arch=gfx90a",
                "-O2",
                *llvm,
                "-Iinclude",
                "-c",
                "src/k.hip",
                "-MD",
                "-MF",
                "k.d",
            )
            done = other.call(*command, "-o", "k.o")
            assert (done.returncode, done.stderr) == (0, b"")
            counters = other.status().counters
            assert (counters["step_misses"], counters["whole"]) == (6, 0)
            ours, listed = (other.folder / "k.o").read_bytes(), prerequisites((other.folder / "k.d").read_bytes())
            plain = plain_object(other, (*command, "-o", "k.o"), other.folder / "src/k.hip", other.folder / "k.o")
            assert ours == plain
            wanted = prerequisites((other.folder / "k.d").read_bytes())
            assert listed[0] == wanted[0] and {*wanted[1]} <= {*listed[1]}
        assert user.end() == []


TWO_FOLDERS = {
    "checkouts": ("one", "some/where/two"),
    "a front end's": ("pip-wheel-abcd1234/p", "pip-wheel-zyxw9876/p"),
}


@pytest.mark.hip
@pytest.mark.parametrize(
    ("names", "shows"),
    [
        ("checkouts", True),
        ("a front end's", True),
        pytest.param("checkouts", False, marks=pytest.mark.slow),
        pytest.param("a front end's", False, marks=pytest.mark.slow),
    ],
)
def test_another_folder_finds_what_does_not_show_the_first(tmp_path: Path, names: str, shows: bool) -> None:
    """All names are absolute, as CMake and torch write them. A path in the device code binds the object to its folder,
    but for a folder of one build alone, whose name clang writes in place of its path."""
    with short_folder() as folder:
        user = User(folder, {"HIP_PLATFORM": "amd"})
        with kept_up(user):
            objects = []
            for name in TWO_FOLDERS[names]:
                other = ForeignProject(user, tmp_path / name)
                other.write("include/always.h", "#define FACTOR 3\n")
                other.write("include/device.h", "\n")
                other.write("include/host.h", "#define HOST 4\n")
                path = "__global__ void show(char const **p) { *p = __FILE__; }\n" if shows else ""
                other.write("src/k.hip", KERNEL + path)
                place = other.folder
                flags = ["--offload-arch=gfx90a", "-O2", f"-I{place}/include"]
                command = ["hipcc", *flags, "-c", f"{place}/src/k.hip", "-o", f"{place}/k.o", "-MD", "-MF", "k.d"]
                done = other.call(*command)
                assert (done.returncode, done.stderr) == (0, b"")
                assert b"/include/always.h" in (place / "k.d").read_bytes()
                assert str(place).encode() in (place / "k.d").read_bytes(), "the files of this folder are listed"
                objects.append((place / "k.o").read_bytes())
                assert (str(place).encode() in objects[-1]) == (shows and names == "checkouts")
            hit = not shows or names != "checkouts"
            assert (other.status().counters["hits"], other.status().counters["whole"]) == (int(hit), 0)
            if names == "checkouts":
                assert objects[-1] == plain_object(other, command, place / "src/k.hip", place / "k.o")
            else:
                assert objects[0] == objects[1]
        assert user.end() == []


OF_ITS_OWN = """\
#include <hip/hip_runtime.h>
#include "always.h"
static __device__ int seen;
namespace { __global__ void k(int *p) { *p = FACTOR + seen; } }
static int set() {
    int *p = nullptr, one = 1;
    k<<<1, 1>>>(p);
    return hipMemcpyToSymbol(HIP_SYMBOL(seen), &one, sizeof one);
}
static int was_set = set();
"""
"""Nothing of it is seen by other objects: two of it make a program."""
DEVICE_LIBRARIES = next(
    (found for way in ("*", "llvm-*/lib/clang/*") for found in Path("/usr/lib").glob(f"{way}/amdgcn/bitcode")),
    Path("/nowhere"),
)
CLANGS = [name for name in (f"clang++-{version}" for version in range(15, 40)) if shutil.which(name)]


@pytest.mark.hip
@pytest.mark.parametrize(
    ("compiler", "warns", "flags"),
    [
        *((compiler, warns, ()) for compiler in CLANGS[-1:] for warns in (False, True)),
        *((compiler, False, ("--offload-compress",)) for compiler in CLANGS[-1:] if compiler >= "clang++-18"),
        pytest.param("hipcc", False, (), marks=pytest.mark.slow),
        pytest.param("hipcc", True, (), marks=pytest.mark.slow),
    ],
)
def test_a_modules_id_is_its_checkouts_own_and_binds_no_object(
    tmp_path: Path, compiler: str, warns: bool, flags: tuple[str, ...]
) -> None:
    """Objects of newer clangs have a symbol of it. Two objects with one such symbol would be no program.

    Where clang warns, it runs whole.
    """
    objects = []
    with short_folder() as folder, kept_up(user := User(folder, {"HIP_PLATFORM": "amd"})):
        for name in ("one", "some/where/two"):
            other = ForeignProject(user, tmp_path / name)
            other.write("include/always.h", "#define FACTOR 3\n")
            other.write("k.hip", OF_ITS_OWN + ("static int over() { return 1 / 0; }\n" if warns else ""))
            words = [*flags, "--offload-arch=gfx90a", "-O2", f"-I{other.folder}/include"]
            if compiler != "hipcc":  # what Debian's hipcc passes to its own clang
                words += ["-x", "hip", "--rocm-path=/usr", f"--rocm-device-lib-path={DEVICE_LIBRARIES}"]
                words.append("-mcode-object-version=4")
            made = other.folder / "k.o"
            command = [compiler, *words, "-c", str(other.folder / "k.hip"), "-o", str(made)]
            for _ in range(2):
                done = other.call(*command)
                assert (done.returncode, b"-Wdivision-by-zero" in done.stderr) == (0, warns), done.stderr
                objects.append(made.read_bytes())
                made.unlink()
            assert objects[-1] == plain_object(other, command, other.folder / "k.hip", made), name
            made.write_bytes(objects[-1])
        assert other.status().counters["misses"] == 1
        assert objects[0] == objects[1] and objects[2] == objects[3]
        has_symbol = HIP_SYMBOL.encode() in objects[0]
        assert (objects[0] != objects[2]) is has_symbol
        both = [str(tmp_path / name / "k.o") for name in ("one", "some/where/two")]
        subprocess.run(["ld", "-r", *both, "-o", str(tmp_path / "both.o")], check=True)
        assert user.end() == []


@pytest.mark.hip
def test_device_code_alone_is_asked_for_no_rules(tmp_path: Path) -> None:
    """clang 21 would write none, and warn of -MF."""
    with short_folder() as folder, kept_up(user := User(folder, {"HIP_PLATFORM": "amd"})):
        other = ForeignProject(user, tmp_path / "alone")
        source = other.write("k.hip", '#include "factor.h"\n__attribute__((global)) void k(int *p) { *p = FACTOR; }\n')
        command = ("hipcc", "--offload-arch=gfx90a", "-nogpuinc", "--genco", source.name, "-o", "k.co")
        made = []
        for factor in (2, 2, 3):
            other.write("factor.h", f"#define FACTOR {factor}\n")
            done = other.call(*command)
            assert (done.returncode, done.stderr) == (0, b"")
            made.append((other.folder / "k.co").read_bytes())
        assert made[0] == made[1] != made[2] and other.status().counters["misses"] == 2
        assert user.end() == []
    hipcc, environment = shutil.which("hipcc") or "", {"PATH": "/usr/bin:/bin", "HIP_PLATFORM": "amd"}
    described, *_ = described_as_called(tmp_path, hipcc)
    for makes, listed in (("--genco", False), ("-c", True)):
        called = (hipcc, "--offload-arch=gfx90a", makes, "k.hip", "-o", "k.o")
        request = msgspec.structs.replace(request_for(tmp_path), command=called, environment=environment)
        compile = parse(called, str(tmp_path), tuple(environment.items()))
        (action,) = compile_plan.plan(compile, described, request).actions
        assert ("-MD" in action.argv) is listed


LENGTH_OF_ITS_PATH = """\
#include <hip/hip_runtime.h>
#ifdef __HIP_DEVICE_COMPILE__
#define LENGTH 0
#else
#define LENGTH sizeof(__FILE__)
#endif
__global__ void k(int *p) { *p = 2; }
int length() { return LENGTH; }
"""


@pytest.mark.slow
@pytest.mark.hip
def test_a_path_that_only_a_pass_from_the_store_has_seen_binds_the_object(tmp_path: Path) -> None:
    """The host computes with its path. With one architecture more, the host's text is not made again, and the object
    shows no path."""
    with short_folder() as folder:
        user = User(folder, {"HIP_PLATFORM": "amd"})
        with kept_up(user):
            one, two = (ForeignProject(user, tmp_path / name) for name in ("one", "far/two"))
            for other, archs in ((one, ["gfx90a"]), (one, ["gfx90a", "gfx906"]), (two, ["gfx90a", "gfx906"])):
                other.write("k.hip", LENGTH_OF_ITS_PATH)
                flags = [f"--offload-arch={arch}" for arch in archs]
                command = ["hipcc", *flags, "-O1", "-c", f"{other.folder}/k.hip", "-o", f"{other.folder}/k.o"]
                done = other.call(*command)
                assert (done.returncode, done.stderr) == (0, b"")
                ours = (other.folder / "k.o").read_bytes()
                assert ours == plain_object(other, command, other.folder / "k.hip", other.folder / "k.o"), other.folder
            assert other.status().counters["whole"] == 0
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
def test_folders_that_a_variable_adds_are_none_of_the_compilers_own(tmp_path: Path, flags: tuple[str, ...]) -> None:
    environment = {"HIP_PLATFORM": "amd", "HIPCC_COMPILE_FLAGS_APPEND": "-Iinc -Imore"}
    hipcc = shutil.which("hipcc") or ""
    plain, _, _ = described_as_called(tmp_path, hipcc, environment, ())
    described, _, _ = described_as_called(tmp_path, hipcc, environment, flags)
    assert {"inc", "more"}.isdisjoint(plain.tool.search)
    assert described.tool == plain.tool


@pytest.mark.hip
def test_commands_are_read_as_a_shell_would(tmp_path: Path) -> None:
    words = ('-DTEXT="a\\b $c"', "-DSPACE= ", "-I", "o'clock")
    command = ("hipcc", "-###", "-x", "hip", "-c", "/dev/null", "--offload-arch=gfx90a", *words)
    environment = {"PATH": "/usr/bin:/bin", "HIP_PLATFORM": "amd", "TMPDIR": str(tmp_path)}
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stderr
    device, *_, host = clang_commands(said)
    for passed in (device, host):
        assert {'TEXT="a\\b $c"', "SPACE= ", "o'clock"} <= {*passed}
    assert clang_commands(' "a" b "c"') == (("a", "b", "c"),), "also where a word is not quoted"


@pytest.mark.hip
@pytest.mark.parametrize(("otherwise", "reason"), [("echo nvcc", "set HIP_PLATFORM=amd"), ("exit 1", "")])
def test_a_hipcc_that_calls_no_clang_is_passed_through(tmp_path: Path, otherwise: str, reason: str) -> None:
    """It looks for a platform itself."""
    program = tmp_path / "root/bin/hipcc"
    program.parent.mkdir(parents=True)
    works = f'[ "$HIP_PLATFORM" != amd ] || exec {shutil.which("hipcc")} "$@"' if reason else ""
    program.write_text(f"#!/bin/sh\n{works}\n{otherwise}\n")
    program.chmod(0o755)
    with pytest.raises(PassThrough if reason else RequestError, match=reason or "does not work"):
        described_as_called(tmp_path, str(program), {})


def described_as_called(
    folder: Path, hipcc: str, environment: dict[str, str] | None = None, flags: tuple[str, ...] = ("-O2",)
) -> tuple[called_tool.Described, Steps | str, Knowledge]:
    (folder / "k.hip").write_text(KERNEL)
    environment = {"PATH": "/usr/bin:/bin", **({"HIP_PLATFORM": "amd"} if environment is None else environment)}
    command = (hipcc, *flags, "--offload-arch=gfx90a", "-c", "k.hip", "-o", "k.o")
    request = msgspec.structs.replace(request_for(folder), command=command, environment=environment)
    compile, knowledge = parse(command, str(folder), tuple(environment.items())), Knowledge()
    described = answered(lambda: called_tool.describe(compile, request, knowledge), knowledge)
    return described, answered(lambda: compile_plan.steps(compile, described, (), knowledge), knowledge), knowledge
