"""clang as a CUDA compiler: what it reads, and that its objects are found again."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from codegen.compilers import clang_cuda
from codegen.compilers.command_parser import Makes, PassThrough, Reason
from codegen.compilers.hipcc import own_search
from codegen.foreign.command_line import parse
from codegen.plan import Answer, Knowledge, ProbesNeeded
from tests.support.foreign_project import ForeignProject
from tests.support.user import User

CUDA = "/opt/cuda"
FLAGS = ("-x", "cuda", "--cuda-gpu-arch=sm_80", f"--cuda-path={CUDA}", "-isystem", "/opt/more")
SAID = """Debian clang version 22.1.8
 "/llvm/bin/clang" "-cc1" "-triple" "nvptx64-nvidia-cuda" "-S" "-fcuda-is-device" "-mlink-builtin-bitcode" "/opt/cuda/nvvm/libdevice/libdevice.10.bc" "-target-feature" "+ptx88" "-isystem" "/opt/more" "-internal-isystem" "/opt/cuda/include" "-x" "cuda" "/dev/null"
 "/opt/cuda/bin/ptxas" "-m64" "--gpu-name" "sm_80" "--output-file" "/tmp/null-1.o" "/tmp/null-2.s"
 "/opt/cuda/bin/fatbinary" "-64" "--create" "/tmp/null-3.fatbin" "--image3=kind=elf,sm=80,file=/tmp/null-1.o"
 "/llvm/bin/clang" "-cc1" "-triple" "x86_64-pc-linux-gnu" "-emit-obj" "-internal-isystem" "/llvm/include" "-x" "cuda" "/dev/null"
"""  # noqa: E501


def test_the_toolkits_parts_are_those_that_clang_names() -> None:
    knowledge, environment = Knowledge(), (("PATH", "/usr/bin"),)
    with pytest.raises(ProbesNeeded) as needed:
        clang_cuda.describe(knowledge, "/llvm/bin/clang++", FLAGS, environment)
    (probe,) = needed.value.probes
    assert f"{CUDA}/include/cuda.h" in probe.files and "-###" in probe.argv
    knowledge.learn(probe, Answer(status=0, stdout="", stderr=SAID))
    while True:
        try:
            toolkit = clang_cuda.describe(knowledge, "/llvm/bin/clang++", FLAGS, environment)
            break
        except ProbesNeeded as more:
            for each in more.probes:  # which libraries ptxas loads
                knowledge.learn(each, Answer(status=1, stdout="", stderr=""))
    named = {file.path for file in toolkit.files}
    assert {f"{CUDA}/bin/ptxas", f"{CUDA}/bin/fatbinary", f"{CUDA}/nvvm/libdevice/libdevice.10.bc"} <= named
    assert f"{CUDA}/version.json" in named, "clang asks for instructions that this version's ptxas knows"
    assert {"/opt/cuda/include", "/llvm/include"} <= {*toolkit.search}
    other = Knowledge()
    other.learn(probe, Answer(status=0, stdout="", stderr="clang: warning: argument unused\n"))
    with pytest.raises(PassThrough):
        clang_cuda.describe(other, "/llvm/bin/clang++", FLAGS, environment)


@pytest.mark.parametrize("option", ["-I", "-isystem", "-iquote", "-idirafter"])
def test_folders_that_a_command_names_are_not_clangs_own(option: str) -> None:
    command = ("-cc1", option, "/own", option, "./mine/", "-internal-isystem", "/llvm/include")
    for flags in ((option, "./mine/"), (f"{option}./mine/",)):
        assert set(own_search(command, flags)) == {"/own", "/llvm/include"}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("clang++ --cuda-gpu-arch=sm_80 -x cuda", Reason.LANGUAGE),
        ("clang++ --cuda-path=cuda -x cuda", Reason.LANGUAGE),
        (f"clang++ --cuda-path={CUDA} -fgpu-rdc -x cuda", Reason.UNSUPPORTED_OPTION),
        (f"clang++ --cuda-path={CUDA} -g -x cuda", Reason.UNSUPPORTED_OPTION),
    ],
)
def test_what_clang_may_not_be_told(words: str, reason: Reason) -> None:
    compile = parse((*words.replace("clang", "/usr/bin/clang", 1).split(), "-c", "a.cu"), "/x")
    assert compile.cuda and compile.makes is Makes.OBJECT
    with pytest.raises(PassThrough) as refused:
        clang_cuda.check(compile.flags)
    assert refused.value.reason is reason


@pytest.mark.parametrize(
    "words",
    ["-S -x cuda a.cu", "a.cu -o prog", "-c a.cu -Xcuda-ptxas --output-file=x", "-c a.cu --offload-arch=native"],
)
def test_other_commands_are_passed_through(words: str) -> None:
    with pytest.raises(PassThrough):
        parse(("/usr/bin/clang++", f"--cuda-path={CUDA}", *words.split()), "/x")


CLANG = shutil.which("clang++") or ""


@pytest.mark.cuda
@pytest.mark.skipif(not CLANG, reason="no clang++ (Debian: apt install clang)")
def test_clang_compiles_cuda_and_finds_it_again(kept_user: User) -> None:
    cuda = ForeignProject.with_nvcc(kept_user, "clang_cuda")
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "CPLUS_INCLUDE_PATH") if name in os.environ}
    cuda.plain |= kept
    cuda.environ |= kept
    nvcc = shutil.which("nvcc", path=cuda.plain["PATH"])
    assert nvcc
    cuda.write("k.cu", '#include "k.h"\n__global__ void k(int *p) { *p = K; }\nvoid run(int *p) { k<<<1, 1>>>(p); }\n')
    cuda.write("k.h", "#define K 1\n")
    toolkit = f"--cuda-path={Path(nvcc).resolve().parents[1]}"
    command = (
        CLANG,
        "-x",
        "cuda",
        "--cuda-gpu-arch=sm_80",
        toolkit,
        "-O1",
        "-MD",
        "-MF",
        "k.d",
        "-c",
        "k.cu",
        "-o",
        "k.o",
    )
    if cuda.plainly(*command).returncode:
        pytest.skip(f"{CLANG} does not compile with this toolkit: it is too old, or curand's headers are missing")
    right = [(cuda.folder / name).read_bytes() for name in ("k.o", "k.d")]
    for _ in range(2):
        (cuda.folder / "k.o").unlink()
        (cuda.folder / "k.d").unlink()
        cuda.good(*command)
        assert (cuda.folder / "k.o").read_bytes() == right[0]
        rules = [set(text.replace(b"\\\n", b"").split()) for text in (right[1], (cuda.folder / "k.d").read_bytes())]
        assert rules[0] == rules[1]
    assert cuda.counts() == (1, 1)
    cuda.write("k.h", "#define K 2\n")
    cuda.good(*command)
    assert cuda.counts() == (1, 2) and (cuda.folder / "k.o").read_bytes() != right[0]
    failed = cuda.call("g++", *command[1:])
    assert failed.returncode != 0 and b"cuda" in failed.stderr, "gcc's own message"
