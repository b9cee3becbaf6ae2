"""The steps of a compile: from recorded dry runs, and with the real nvcc beside a plain run of it.

tests/data/dryruns: what `nvcc --dryrun` of a version printed, the toolkit's folder spelled /usr/local/cuda.
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest

from buildd.scheduling.step_outputs import StepOutputs
from codegen.plan import Action, Kept, Output, Place, Plan, Ref, Steps
from codegen.steps.expansion import expand, unframed
from codegen.steps.step_kinds import OBJECT, SOURCE, NotUnderstood, StepKind, placeholder
from protocol import messages as m
from tests.support.carry_out import request_for
from tests.support.dry_runs import ROOT, compile_action, read, recorded
from tests.support.nvcc_project import KERNEL, Build, plain, project
from tests.support.objects import anonymous, contents, inspector


def by_name(plan: Plan) -> dict[str, Action]:
    return {action.name.removeprefix("t/src/a.cu.o: "): action for action in plan.actions}


def argument(action: Action, after: str) -> object:
    return action.argv[action.argv.index(after) + 1]


TWO = [
    "preprocess host",
    "cudafe++",
    "preprocess compute_80",
    "cicc compute_80",
    "ptxas sm_80",
    "ptxas sm_86",
    "preprocess compute_90a",
    "cicc compute_90a",
    "ptxas sm_90a",
    "fatbin frame",
    "fatbinary",
    "host headers",
    "host compile",
]


def test_the_steps_of_two_architectures() -> None:
    plan = expand(read(recorded("13.0-two-archs")), compile_action())
    steps = by_name(plan)
    assert list(steps) == TWO, "in nvcc's order"
    folder = "build/t/obj/src/a.cu.o.steps"
    front, cicc, compiled = steps["cudafe++"], steps["cicc compute_90a"], steps["host compile"]
    assert front.inputs == (f"{folder}/a.module_id", f"{folder}/a.cpp4.ii")
    assert "--gen_module_id_file" not in front.argv, "written beforehand, so that nobody waits for it"
    assert argument(front, "--orig_src_file_name") == "src/a.cu"
    assert argument(front, "--orig_src_path_name") == Ref(place=Place.ROOT, name="project", suffix="/src/a.cu")
    assert cicc.argv[0] == Ref(place=Place.ROOT, name="cuda", suffix="/nvvm/bin/cicc")
    assert cicc.inputs == (f"{folder}/a.module_id", f"{folder}/a.compute_90a.cpp1.ii")
    included = [argument(step, "--stub_file_name") for step in (front, cicc, steps["cicc compute_80"])]
    assert included == ["a.cudafe1.stub.c"] * 3 and argument(cicc, "--include_file_name") == "a.fatbin.c"
    assert cicc.apart and not steps["ptxas sm_80"].apart
    images = [item for item in steps["fatbinary"].argv if isinstance(item, Ref) and item.place is Place.INPUT]
    assert [image.name.removeprefix(f"{folder}/a.") for image in images] == [
        "compute_80.sm_80.cubin",
        "compute_80.sm_86.cubin",
        "compute_90a.sm_90a.cubin",
        "compute_90a.ptx",
    ]
    assert images[0].prefix == "--image3=kind=elf,sm=80,file="
    assert set(compiled.inputs) == {
        "plugin.so",
        *(f"{folder}/a.{name}" for name in ("cudafe1.cpp", "cudafe1.stub.c", "fatbin.c", "headers.ii")),
    }
    made = [f"{folder}/a.{name}" for name in ("cudafe1.stub.c", "compute_90a.ptx", "cudafe1.stub.c.bare")]
    assert [output.path for output in cicc.outputs] == made
    assert compiled.outputs[0] == Output(name="object", path=f"{folder}/a.cu.o")
    assert {StepKind(step.kind) for step in plan.actions if step.kept is Kept.NOTHING} == {
        StepKind.PREPROCESS,
        StepKind.FATBINARY,
    }
    assert 'NAME="a b"' in steps["preprocess host"].argv and "src/a.cu" in steps["preprocess compute_80"].argv
    assert dict(front.environment)["HOME"] == "/home" and dict(front.environment)["PATH"].startswith(ROOT)


def test_an_added_architecture_leaves_the_steps_of_the_others_as_they_are() -> None:
    both = recorded("13.0-two-archs")
    without = by_name(expand(read(both), compile_action()))
    text = both.replace("compute_90a", "compute_91a").replace("sm_90a", "sm_91a")
    other = by_name(expand(read(text), compile_action()))
    for name in ("cudafe++", "cicc compute_80", "ptxas sm_80", "ptxas sm_86"):
        assert without[name] == other[name]
    single = by_name(expand(read(recorded("13.5-one-arch").replace(" --simt-only", "")), compile_action()))
    # Its stub is included by the host compile, the other's is not: no key holds where a file goes.
    names = [[output.name for output in steps["cicc compute_80"].outputs] for steps in (single, without)]
    assert names[0] == names[1]
    assert single["cicc compute_80"].inputs == without["cicc compute_80"].inputs


def test_relocatable_code_with_line_numbers_and_debug_information() -> None:
    plan = expand(read(recorded("13.0-relocatable")), compile_action(path_sensitive=True))
    steps = by_name(plan)
    assert all(step.path_sensitive for step in plan.actions)
    assert not steps["cicc compute_80"].apart, "the folder that it runs in is in its line table"
    assert "--ident=src/a.cu" in steps["fatbinary"].argv and "--device-c" in steps["fatbinary"].argv
    assert Ref(place=Place.ROOT, name="cutlass", prefix="-I", suffix="/include") in steps["host compile"].argv
    mapped = [item for item in steps["host compile"].argv if isinstance(item, Ref) and "prefix-map" in item.prefix]
    assert [item.suffix for item in mapped] == ["=a.cudafe1.cpp", "=a.cudafe1.stub.c", "=a.fatbin.c"]


def test_a_later_and_an_older_version() -> None:
    later = recorded("13.5-one-arch")
    assert "--simt-only" in by_name(expand(read(later), compile_action()))["cicc compute_80"].argv
    # CUDA 12 calls cicc by its name, and has its headers below targets/.
    older = later.replace('"$CICC_PATH/cicc"', "cicc").replace(" --simt-only", "").replace(" --static-host-stub", "")
    older = older.replace(f"{ROOT}/bin/../include", f"{ROOT}/bin/../targets/x86_64-linux/include")
    steps = by_name(expand(read(older), compile_action()))
    assert steps["cicc compute_80"].argv[0] == Ref(place=Place.ROOT, name="cuda", suffix="/nvvm/bin/cicc")
    assert len(steps) == 9


def test_a_profile_that_sets_no_library_path_leaves_the_callers() -> None:
    """Debian's package has such a one."""
    text = re.sub(r"^#\$ LD_LIBRARY_PATH=.*\n", "", recorded("13.0-two-archs"), flags=re.MULTILINE)
    assert text != recorded("13.0-two-archs")
    variables = {name for action in read(text).actions for name, _ in action.environment}
    assert variables == {"PATH"}
    steps = by_name(expand(read(text), compile_action(environment=(("LD_LIBRARY_PATH", "/mine"), ("PATH", "/bin")))))
    assert list(steps) == TWO
    assert all(dict(step.environment)["LD_LIBRARY_PATH"] == "/mine" for step in steps.values())


def test_what_nvcc_says_itself_comes_first() -> None:
    assert read("nvcc warning : old\n" + recorded("13.5-one-arch")).said == "nvcc warning : old\n"


def test_module_ids_are_unique_in_a_program_and_stable() -> None:
    steps = read(recorded("13.5-one-arch"))

    def identity(source: str, made: str, steps: Steps = steps) -> bytes:
        module, _ = expand(steps, compile_action(source, made)).files
        return module.content

    one = identity("src/a.cu", "build/t/obj/src/a.cu.o")
    assert re.fullmatch(rb"_[0-9a-f]{8}_4_a_cu_[0-9a-f]{8}", one)
    assert one == identity("src/a.cu", "build/t/obj/src/a.cu.o")
    others = {
        identity("lib/a.cu", "build/t/obj/lib/a.cu.o"),
        identity("src/a.cu", "build/u/obj/src/a.cu.o"),
        identity("src/a.cu", "build/t/obj/src/a.cu.o", read(recorded("13.5-one-arch"), "another project")),
    }
    assert len(others - {one}) == 3


def test_names_that_a_compiler_would_stumble_over() -> None:
    plan = expand(read(recorded("13.5-one-arch")), compile_action('src/my "kernel".cu', "b/x.o"))
    assert plan.actions[1].outputs[0].path == "b/x.o.steps/my__kernel_.cudafe1.cpp"
    assert 'src/my "kernel".cu' in plan.actions[0].argv
    absolute = expand(read(recorded("13.5-one-arch")), compile_action("/elsewhere/a.cu", "b/x.o"))
    assert argument(absolute.actions[1], "--orig_src_path_name") == "/elsewhere/a.cu"


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("#$ ptxas", "#$ optimise", "the step optimise"),
        ("-m64 \"/buildd", "-DX=$HOME -m64 \"/buildd", "a shell would not read only"),
        ("-m64 \"/buildd", "-DX=`id` -m64 \"/buildd", "a shell would not read only"),
        ("-m64 \"/buildd", "-m64 > log \"/buildd", "a shell would not read only"),
        ("--gen_module_id_file ", "", "not exactly one step writes the module's id"),
        ("--gen_device_file_name", "--gen_something_else", "cicc with 2 input files"),
        ("--image3=kind=elf,sm=80,file=", "--picture=kind=elf,sm=80,file=", "fatbinary"),
        ("-6_buildd_source.cudafe1.cpp\" -o", "-7_buildd_source.cudafe1.cpp\" -o", "reads an unexpected file"),
        ("-3_buildd_source.fatbin.c\" -tused", "-2_buildd_source.fatbin.c\" -tused", "cicc names an unexpected fatbin"),
        ("-6_buildd_source.ptx\"  -o", "-9_buildd_source.ptx\"  -o", "no step or more than one step writes"),
        (SOURCE + ".cu\" -o \"/tmp", "/elsewhere/x.cu\" -o \"/tmp", "preprocess of an unexpected file"),
        (OBJECT, "/elsewhere.o", "host compile reads an unexpected file"),
        ("#$ PATH=", "#$ WAY=", "no PATH"),
        ("#$ fatbinary", "#$ true", "the step true"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_said_and_never_guessed(old: str, new: str, what: str) -> None:
    text = re.sub(r" +-tused", " -tused", recorded("13.5-one-arch"))
    assert old in text, "this test can tell"
    with pytest.raises(NotUnderstood, match=re.escape(what)):
        read(text.replace(old, new))


def test_two_compiles_of_one_architecture_are_not_understood() -> None:
    text = recorded("13.0-two-archs").replace("-arch compute_90a", "-arch compute_80")
    with pytest.raises(NotUnderstood, match="two files for one architecture"):
        read(text)


def test_a_placeholder_is_a_root() -> None:
    text = recorded("13.5-one-arch").replace("-m64 ", f"-isystem {placeholder('x')}/y -m64 ")
    assert Ref(place=Place.ROOT, name="x", suffix="/y") in expand(read(text), compile_action()).actions[0].argv


# ---------------------------------------------------------------- with the real compiler


@pytest.mark.cuda
@pytest.mark.parametrize(
    "keys",
    [
        'arch = ["sm_80", "sm_90a"]\noutput = "object"\n',
        'arch = ["sm_80"]\noutput = "object"\nrdc = true\nflags = ["-lineinfo", "-O3", "--extended-lambda"]\n',
        pytest.param('arch = ["sm_80"]\noutput = "object"\nflags = ["-G", "-g"]\n', marks=pytest.mark.slow),
    ],
)
def test_the_object_holds_what_nvcc_puts_into_it(tmp_path: Path, keys: str) -> None:
    workspace = project(tmp_path, keys)
    build = Build(workspace)
    assert build.counters["step_misses"] >= 7 and not build.counters["whole"]
    done = plain(workspace, tmp_path / "plain" / "plain.o")
    assert done.returncode == 0, done.stderr
    ours, theirs = contents(build.object), contents(tmp_path / "plain" / "plain.o")
    assert "run_first" in ours["symbols"] and "ID" in ours["symbols"]
    if inspector():
        assert "_Z5scaleIfEvPT_\n0x0" in ours["machine code"] and ".entry _Z5scaleIfEvPT_" in ours["ptx"]
    for name, text in theirs.items():
        assert ours[name] == text, name


@pytest.mark.cuda
def test_objects_are_the_same_to_the_byte_from_run_to_run_and_from_checkout_to_checkout(tmp_path: Path) -> None:
    made = []
    for name in ("one", "another place/two"):
        (tmp_path / name).mkdir(parents=True)
        workspace = project(tmp_path / name, 'arch = ["sm_80", "sm_90a"]\noutput = "object"\nflags = ["-O3"]\n')
        made.append(Build(workspace).object.read_bytes())
    assert made[0] == made[1]


@pytest.mark.cuda
@pytest.mark.parametrize("otherwise", ["no frame", pytest.param("cannot be joined", marks=pytest.mark.slow)])
def test_the_host_compile_waits_for_no_ptxas_and_the_object_is_as_if_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, otherwise: str
) -> None:
    keys = 'arch = ["sm_80"]\noutput = "object"\n'
    plan = expand(read(recorded("13.0-two-archs")), compile_action())
    host, device = plan.actions[-1], next(a for a in plan.actions if a.kind == StepKind.FATBINARY.value)
    assert not {output.path for output in device.outputs}.intersection(host.inputs)
    together = unframed(plan)
    assert {path for a in together.actions for o in a.outputs for path in [o.path]}.issuperset(host.inputs[1:])
    made = []
    for name in ("apart", otherwise):
        if name == "cannot be joined":
            monkeypatch.setattr(StepOutputs, "join", lambda self: False)
        if name == "no frame":
            monkeypatch.setattr("codegen.steps.expansion.IMAGE_TEXT", b"")  # fatbinary refuses it
        (tmp_path / name).mkdir()
        build = Build(project(tmp_path / name, keys))
        made.append(build.object.read_bytes())
        assert build.counters["step_misses"] == 9 if name == "apart" else build.counters["step_misses"] > 9
    assert made[0] == made[1]


@pytest.mark.cuda
def test_after_an_edit_only_what_it_changes_is_done_again(tmp_path: Path) -> None:
    workspace = project(tmp_path, 'arch = ["sm_80"]\noutput = "object"\n')
    source = workspace.project / "src/k.cu"
    first = Build(workspace)
    before = first.object.read_bytes()
    assert first.counters["step_misses"] == 9

    def after(path: str, old: str, new: str) -> tuple[int, int]:
        file = workspace.project / path
        assert old in file.read_text()
        workspace.write(path, file.read_text().replace(old, new))
        counters = Build(workspace).counters
        return counters["step_hits"], counters["step_misses"]

    assert after("src/k.cu", "a comment", "another comment") == (0, 0), "the whole action is known"
    assert after("include/always.h", "#define", "#define UNUSED\n#define") == (6, 3), "only the preprocessors"
    assert first.object.read_bytes() == before
    source.touch()
    assert after("include/host.h", "4", "5") == (4, 5), "host only: those, cudafe++ and the host compile"
    assert first.object.read_bytes() != before
    changed = first.object.read_bytes()
    assert after("buildd.toml", 'arch = ["sm_80"]', 'arch = ["sm_80", "sm_90"]') == (5, 7), (
        "cudafe++, cicc and ptxas of the first architecture are known, and its object, into which the fatbin is put"
    )
    # Back: the whole action is known, and no step is asked for.
    assert after("buildd.toml", 'arch = ["sm_80", "sm_90"]', 'arch = ["sm_80"]') == (0, 0)
    assert first.object.read_bytes() == changed
    workspace.write("buildd.toml", (workspace.project / "buildd.toml").read_text() + 'flags = ["-Xptxas=-O1"]\n')
    counters = Build(workspace).counters
    assert (counters["step_hits"], counters["step_misses"]) == (4, 5), (
        "the preprocessors, ptxas, fatbinary and its frame"
    )


@pytest.mark.cuda
def test_an_embedded_file_is_read_again_each_time(tmp_path: Path) -> None:
    """No depfile names it, and the preprocessed text is the same."""
    embed = '\nasm(".section .rodata\\n.incbin \\"include/data\\"\\n.text\\n");\n'
    workspace = project(tmp_path, source=KERNEL.replace("#ifndef __CUDA_ARCH__\n", "#ifndef __CUDA_ARCH__" + embed))
    for content in ("first content", "second content"):
        workspace.write("include/data", content)
        build = Build(workspace)
        assert content.encode() in build.object.read_bytes()
        assert build.counters["step_hits"] <= 2, "the toolkit's headers, and the frame"


@pytest.mark.cuda
@pytest.mark.parametrize("relocatable", ["true", pytest.param("false", marks=pytest.mark.slow)])
def test_one_text_twice_in_a_program(tmp_path: Path, relocatable: str) -> None:
    """Kernels and variables of the same names, hidden in each file; also from a library with a file of that name."""
    keys = f'arch = ["sm_80"]\nrdc = {relocatable}\ndeps = ["lib"]\n'
    library = '[target.lib]\nkind = "cuda"\noutput = "static"\nsources = ["src/k.cu"]\ninclude = ["include"]\n'
    library += f'arch = ["sm_80"]\nrdc = {relocatable}\ndefine = ["first=third", "run_first=run_third"]\n'
    workspace = project(tmp_path, keys + library)
    (workspace.project / "src/deeper").mkdir()
    workspace.write("src/deeper/k.cu", KERNEL.replace("NAME", "other").replace("SECOND", "run_other"))
    workspace.write("src/main.cu", 'extern "C" int third(); extern "C" int all() { return third(); }\n')
    Build(workspace)
    loaded = ctypes.CDLL(str(workspace.project / "build/t/libt.so"))
    assert loaded.first() + loaded.other() == 14 and loaded.all() == 7


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("old", "new", "step"),
    [
        # What nvcc says of the others is compared in test_decomposition.py.
        pytest.param('#include "always.h"', '#include "missing.h"', "preprocess", marks=pytest.mark.slow),
        ("return FACTOR + HOST", "int unused; return undeclared", "cudafe++"),
        pytest.param(
            *("#ifndef __CUDA_ARCH__", "#ifdef __CUDA_ARCH__\n__device__ int f() { return g; }\n#else", "cicc"),
            marks=pytest.mark.slow,
        ),
        pytest.param("= offset;", '= offset; asm("nonsense;");', "ptxas", marks=pytest.mark.slow),
    ],
)
def test_a_failing_step_is_told_as_nvcc_tells_it(tmp_path: Path, old: str, new: str, step: str) -> None:
    workspace = project(tmp_path, source=KERNEL.replace(old, new))
    story = workspace.build(environment=request_for(workspace.project).environment)
    (failed,) = story.of(m.Failed)
    assert failed.message.startswith(f"{step} ended with status ")
    done = plain(workspace, tmp_path / "plain" / "plain.o")
    assert (done.returncode != 0) == (failed.exit_status != 0)
    said = "\n".join(line.text for line in story.of(m.LogLine))
    assert anonymous(said) == anonymous(done.stdout + done.stderr).rstrip("\n")


@pytest.mark.cuda
def test_ptx_that_only_ptxas_finds_fault_with_fails_where_no_machine_code_is_made(tmp_path: Path) -> None:
    keys = 'arch = ["compute_90"]\noutput = "object"\n'
    workspace = project(tmp_path, keys, KERNEL.replace("= offset;", '= offset; asm("nonsense;");'))
    story = workspace.build(environment=request_for(workspace.project).environment)
    (failed,) = story.of(m.Failed)
    assert failed.message.startswith("ptxas ended with status ")
    workspace.write("src/k.cu", KERNEL.replace("NAME", "first").replace("SECOND", "run_first"))
    build = Build(workspace)
    assert not build.counters["whole"]
    assert plain(workspace, tmp_path / "plain" / "plain.o").returncode == 0
    assert contents(build.object) == contents(tmp_path / "plain" / "plain.o")
    header = workspace.project / "include/always.h"
    workspace.write("include/always.h", "#define UNUSED\n" + header.read_text())
    counters = Build(workspace).counters
    assert (counters["step_hits"], counters["step_misses"]) == (6, 3), "what ptxas found is known"


@pytest.mark.cuda
def test_warnings_come_in_nvccs_order_once_and_again_with_a_hit(tmp_path: Path) -> None:
    source = KERNEL.replace("{ return FACTOR", "{ int unused; return FACTOR").replace(
        "*x = offset;", "int idle; *x = 1;"
    )
    workspace = project(tmp_path, 'arch = ["sm_80"]\noutput = "object"\nflags = ["-Xptxas=-v"]\n', source)
    said = [line.text for line in Build(workspace).story.of(m.LogLine)]
    done = plain(workspace, tmp_path / "plain" / "plain.o")
    assert "declared but never referenced" in done.stderr and "registers" in done.stderr
    # ptxas tells how long it took.
    ours, theirs = (re.sub(r"[\d.]+ ms", "ms", anonymous(text)) for text in ("\n".join(said), done.stderr.rstrip("\n")))
    assert ours == theirs
    assert [line.text for line in Build(workspace).story.of(m.LogLine)] == said


@pytest.mark.cuda
@pytest.mark.parametrize("flag", ["-DHERE=$HOME", pytest.param("-Xcompiler=-DX=~", marks=pytest.mark.slow)])
def test_what_is_not_understood_runs_whole(tmp_path: Path, flag: str) -> None:
    workspace = project(tmp_path, f'arch = ["sm_80"]\noutput = "object"\nflags = ["{flag}"]\n')
    build = Build(workspace)
    assert build.counters["whole"] == 1 and not build.counters["step_misses"]
    assert build.object.exists()
