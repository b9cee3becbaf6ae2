"""nvcc's language: dry runs, architectures, and what flags do to a key."""

from __future__ import annotations

import pytest

from codegen.compilers import nvcc
from codegen.errors import RequestError
from codegen.flags import inspect, refuse_defines, refuse_own

CODES = ("sm_75", "sm_80", "sm_90", "sm_100", "sm_103")
DRYRUN = """\
nvcc warning : something that is no step
#$ _SPACE_=
#$ _HERE_=/opt/cuda 13/bin
#$ CICC_PATH=/opt/cuda 13/bin/../nvvm/bin
#$ INCLUDES="-I/opt/cuda 13/bin/..//include"
#$ SYSTEM_INCLUDES="-isystem" "/opt/cuda 13/bin/..//include/cccl"
#$ gcc -E -D__CUDACC_VER_MAJOR__=13 -D__CUDACC_VER_MINOR__=0 -D__CUDACC_VER_BUILD__=88 "a.cu" -o "/tmp/a.ii"
#$ "$CICC_PATH/cicc" -arch compute_80 "/tmp/a.ii"
#$ rm /tmp/a.ii
"""


def test_a_dry_run_is_read_with_its_variables_and_quotes() -> None:
    dryrun = nvcc.parse_dryrun(DRYRUN)
    assert dryrun.variables["_HERE_"] == "/opt/cuda 13/bin"
    assert [command[0] for command in dryrun.commands] == ["gcc", "/opt/cuda 13/bin/../nvvm/bin/cicc", "rm"]
    assert nvcc.version(dryrun) == "13.0.88"
    assert nvcc.include_folders(dryrun.variables) == ("/opt/cuda 13/include", "/opt/cuda 13/include/cccl")


@pytest.mark.parametrize("text", ["", "#$ ", '#$ gcc "unclosed', "#$ =\n#$ \0"])
def test_broken_dry_runs_are_read_as_far_as_they_go(text: str) -> None:
    assert nvcc.parse_dryrun(text).variables == {}


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (("sm_80",), ("sm_80",)),
        (("90a", "8.0", "sm_80"), ("sm_80", "sm_90a")),
        (("sm_100f", "sm_100a", "sm_100"), ("sm_100", "sm_100a", "sm_100f")),
        (("10.3",), ("sm_103",)),
        (("compute_90", "sm_80"), ("sm_80", "compute_90")),
    ],
)
def test_architectures_are_normalised(asked: tuple[str, ...], found: tuple[str, ...]) -> None:
    assert nvcc.architectures(asked, CODES, "") == found


@pytest.mark.parametrize("asked", ["sm_8", "sm_52", "sm_80a", "sm_90f", "native", "all-major", "gfx90a", ""])
def test_what_is_no_architecture_is_refused(asked: str) -> None:
    with pytest.raises(RequestError) as caught:
        nvcc.architectures((asked,), CODES, "buildd.toml:4")
    assert caught.value.code == "bad-arch" and caught.value.file == "buildd.toml:4" and caught.value.next_step


def test_an_architecture_of_amds_needs_another_target() -> None:
    with pytest.raises(RequestError, match="this target is compiled for NVIDIA") as caught:
        nvcc.architectures(("sm_90", "gfx90a"), CODES, "buildd.toml:4")
    assert caught.value.code == "bad-arch" and 'kind = "hip"' in caught.value.next_step


def test_gencode_has_ptx_of_the_last_only() -> None:
    assert nvcc.gencode(("sm_80", "sm_90a")) == (
        "-gencode=arch=compute_80,code=sm_80",
        "-gencode=arch=compute_90a,code=[sm_90a,compute_90a]",
    )
    assert nvcc.gencode(("compute_80",)) == ("-gencode=arch=compute_80,code=compute_80",)
    assert nvcc.gencode(("sm_80",), device_lto=True) == ("-gencode=arch=compute_80,code=lto_80",)


# ------------------------------------------------------------ flags


@pytest.mark.parametrize(
    "flags",
    [
        ("-g",),
        ("-G",),
        ("-lineinfo",),
        ("--generate-line-info",),
        ("-pg",),
        ("-Xcompiler=-g",),
        ("-Xcompiler=-O2,-g3",),
        ("-Xcompiler", "-O2,-ggdb"),
        ("-Xcompiler", "-O2 -g"),
        ("--compiler-options=-fPIC,-gdwarf-5",),
        ("-Xcompiler-g",),
        ("--source-in-ptx",),
        ("-fsanitize=address",),
    ],
)
def test_flags_that_bring_paths_in(flags: tuple[str, ...]) -> None:
    assert inspect(flags).path_sensitive
    assert not inspect(flags).uncacheable


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("-O3", "-std=c++17", "--use_fast_math", "-DNDEBUG", "-Xcompiler=-fPIC,-Wall", "-maxrregcount=64"),
        ("-ftz=true", "--expt-relaxed-constexpr", "-Xptxas=-v", "-w", "-Wno-deprecated-gpu-targets"),
        ("-Iinclude/g", "-DX=-g1", "-t0", "--threads=4", "-mllvm", "-amdgpu-early-inline-all=true"),
    ],
)
def test_flags_that_do_nothing_besides(flags: tuple[str, ...]) -> None:
    effects = inspect(flags)
    assert not effects.path_sensitive and not effects.uncacheable and not effects.inputs


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (("--keep",), "intermediate"),
        (("-keep-dir", "x"), "intermediate"),
        (("-Xcompiler=-save-temps",), "intermediate"),
        (("-time", "times.csv"), "times"),
        (("--time=-",), "times"),
        (("-MD",), "depfile"),
        (("-MMD", "-MF", "x.d"), "depfile"),
        (("-Xcompiler=-O2,-MD",), "depfile"),
        (("-Xcompiler", "-Wp,-MD,x.d"), "depfile"),
        (("-Xcompiler=-fprofile-use",), "profile"),
        (("-Xcompiler", "--coverage"), "profile"),
        (("-Xcompiler=-march=native",), "processor"),
        (("-Xcompiler=-specs=x.specs",), "tools"),
        (("-Xcompiler=-B/opt/bin",), "tools"),
        (("@flags.txt",), "file"),
        (("--options-file", "flags.txt"), "file"),
        (("-Xcompiler", "-fdump-tree-all"), "report"),
    ],
)
def test_flags_that_forbid_storing_say_why(flags: tuple[str, ...], why: str) -> None:
    assert why in inspect(flags).uncacheable


def test_files_that_no_depfile_lists_become_inputs() -> None:
    assert inspect(("-Xcompiler=-fplugin=./p.so", "-Wl,-T,x")).inputs == ("./p.so",)


@pytest.mark.parametrize(
    "flag", ["-o", "-c", "-ptx", "-shared", "-arch=sm_80", "-gencode", "--offload-arch=gfx90a", "-E"]
)
def test_what_the_target_decides_is_refused(flag: str) -> None:
    with pytest.raises(RequestError) as caught:
        refuse_own(("-O3", flag), "t", "buildd.toml:2")
    assert caught.value.code == "bad-flag" and flag in caught.value.message


@pytest.mark.parametrize(("name", "toolkit"), [("sm_70", "12.9"), ("6.1", "12.9"), ("compute_35", "11.8")])
def test_an_architecture_that_nvcc_has_dropped_is_told_as_one(name: str, toolkit: str) -> None:
    with pytest.raises(RequestError) as caught:
        nvcc.architectures((name,), ("sm_75", "sm_80"), "")
    assert "no longer compiles for" in caught.value.message and "did you mean" not in caught.value.message
    assert f"CUDA {toolkit}" in caught.value.message and "sm_75, sm_80" in caught.value.next_step
    assert nvcc.architectures(("sm_70",), ("sm_70", "sm_75"), "") == ("sm_70",), "an older toolkit still does"
    with pytest.raises(RequestError) as caught:
        nvcc.architectures(("sm_76",), ("sm_75", "sm_80"), "")
    assert 'did you mean "sm_75"?' in caught.value.message


def test_several_flags_in_one_text_are_told_apart() -> None:
    with pytest.raises(RequestError) as caught:
        refuse_own(("-w", "-O3 -lineinfo"), "t", "buildd.toml:2")
    assert caught.value.next_step == 'write them apart: "-O3", "-lineinfo"' and caught.value.file == "buildd.toml:2"
    refuse_own(("-DX=a -b", "-Xcompiler=-O2 -g", "-Xcompiler", "-O2 -g", "-I/a b/c -d"), "t", "")


def test_a_macro_that_is_written_as_a_flag_is_told_as_one() -> None:
    with pytest.raises(RequestError) as caught:
        refuse_defines(("Y", "-DX=1"), "t", "buildd.toml:2")
    assert caught.value.next_step == 'write "X=1"' and caught.value.file == "buildd.toml:2"
    with pytest.raises(RequestError) as caught:
        refuse_defines(("-O3",), "t", "")
    assert caught.value.next_step == "move it to `flags`"
    refuse_defines(("X=-1",), "t", "")


def test_the_host_compilers_flags_are_its_own() -> None:
    refuse_own(("-Xcompiler", "-c", "-Xcompiler=-S", "-Xlinker", "-shared"), "t", "")
