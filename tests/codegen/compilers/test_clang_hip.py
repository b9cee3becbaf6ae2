"""clang as a HIP compiler without hipcc: what it may be told, what it reads, and that its objects are found again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from codegen.compilers import clang_hip
from codegen.compilers.command_parser import Family, PassThrough, Reason
from codegen.foreign import called_tool
from codegen.foreign.command_line import parse
from tests.support.foreign_project import ForeignProject, kept_up, prerequisites
from tests.support.hipcc_project import KERNEL
from tests.support.user import User

CMAKE = "-O3 --offload-arch=gfx90a --rocm-path=/opt/rocm -mllvm -amdgpu-function-calls=false -x hip -c a.cpp"


@pytest.mark.parametrize(
    "words", [CMAKE, "-c a.hip --offload-arch=gfx90a", "-xhip -c a.cc --offload-arch=gfx90a -mllvm=-amdgpu-x=true"]
)
def test_a_compile_of_hip_is_one_as_hipccs_are(words: str) -> None:
    assert parse(("/opt/rocm/llvm/bin/clang++", *words.split()), "/x").family is Family.HIPCC


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("-c a.cpp --rocm-path=/opt/rocm", Reason.UNKNOWN_OPTION),
        ("-x c++ -c a.hip -o a.o --offload-arch=gfx90a", Reason.UNKNOWN_OPTION),
        ("-c a.hip --offload-arch=gfx90a --rocm-path=rocm", Reason.UNKNOWN_OPTION),
        ("-c a.hip --offload-arch=gfx90a -mllvm=-info-output-file=x", Reason.UNKNOWN_OPTION),
        ("-c a.hip --offload-arch=native", Reason.MACHINE),
        ("-c a.hip", Reason.MACHINE),
        ("a.hip --offload-arch=gfx90a -o prog", Reason.LINK),
    ],
)
def test_other_commands_are_passed_through(words: str, reason: Reason) -> None:
    with pytest.raises(PassThrough) as refused:
        parse(("/opt/rocm/llvm/bin/clang++", *words.split()), "/x")
    assert refused.value.reason is reason


def test_an_output_or_a_macro_does_not_make_a_source_hip() -> None:
    for words in ("-c a.c -o a.hip", "-c a.c -MD -MF a.hip", "-c a.c -DX=a.hip"):
        assert parse(("clang", *words.split()), "/x").family is Family.GCC


def test_which_rocm_clang_takes_depends_on_all_its_usual_places() -> None:
    found = clang_hip.files("/llvm/bin/clang++", ("--rocm-path=/one",), (("ROCM_PATH", "/two"),))
    assert found[0] == "/llvm/bin/clang++"
    for root in ("/one", "/two", "/llvm", "/opt/rocm", "/usr"):
        assert {f"{root}/share/hip/version", f"{root}/amdgcn/bitcode/ocml.bc"} <= {*found}
    assert "/bits/ocml.bc" in clang_hip.files("/llvm/bin/clang++", ("--rocm-device-lib-path=/bits",), ())


def test_the_variable_that_names_rocm_reaches_the_tool() -> None:
    assert "ROCM_PATH" in called_tool.sent_variables()


CLANG = next((found for name in ("clang++-15", "clang++") if (found := shutil.which(name))), "")
LIBRARIES = next((path.parent for path in Path("/usr/lib").glob("*/amdgcn/bitcode/ocml.bc")), Path())


@pytest.mark.hip
@pytest.mark.skipif(not CLANG, reason="no clang++ (Debian: apt install clang-15)")
def test_clang_compiles_hip_in_steps_and_finds_it_again(kept_user: User) -> None:
    hip = ForeignProject(kept_user, kept_user.folder / "clang_hip")
    hip.write("k.cpp", KERNEL)
    for name, text in (("always.h", "#define FACTOR 3\n"), ("device.h", "\n"), ("host.h", "#define HOST 4\n")):
        hip.write(name, text)
    rocm = ("--rocm-path=/usr", f"--rocm-device-lib-path={LIBRARIES}") if LIBRARIES.name else ()
    command = (CLANG, "--offload-arch=gfx90a", *rocm, "-O2", "-x", "hip", "-MD", "-MF", "k.d", "-c", "k.cpp")
    with kept_up(kept_user):
        done = hip.plainly(*command, "-o", "k.o")
        if done.returncode:
            pytest.skip(f"{CLANG} does not compile for this ROCm: {done.stderr.decode()[-300:]}")
        right, listed = (hip.folder / "k.o").read_bytes(), prerequisites((hip.folder / "k.d").read_bytes())
        before = hip.status().counters
        for _ in range(2):
            (hip.folder / "k.o").unlink()
            (hip.folder / "k.d").unlink()
            hip.good(*command, "-o", "k.o")
            assert (hip.folder / "k.o").read_bytes() == right
            ours = prerequisites((hip.folder / "k.d").read_bytes())
            assert ours[0] == listed[0] and {*listed[1]} <= {*ours[1]}
        assert hip.counts() == (1, 1)
        ran = hip.status().counters
        assert ran["step_misses"] - before["step_misses"] == 6 and ran["whole"] == before["whole"], "it ran in steps"
        hip.write("host.h", "#define HOST 5\n")
        hip.good(*command, "-o", "k.o")
        edited = (hip.folder / "k.o").read_bytes()
        assert hip.counts() == (1, 2) and edited != right
        # The device's text is the same: its compile, its link and the bundle are not repeated.
        assert hip.status().counters["step_misses"] - ran["step_misses"] <= 3
        hip.plainly(*command, "-o", "k.o")
        assert edited == (hip.folder / "k.o").read_bytes()
        wrong = hip.call("g++", *command[1:], "-o", "k.o")
        assert wrong.returncode != 0 and b"offload-arch" in wrong.stderr, "gcc's own message"
