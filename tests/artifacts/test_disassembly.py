"""Machine code and PTX as text: of the kernels that are asked for, and why there is none."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from buildd.artifacts.disassembly import Form, disassembled
from buildd.errors import BuilddError

SASS = """\

Fatbin elf code:
================
arch = sm_80

	code for sm_80

Fatbin elf code:
================
arch = sm_80

	code for sm_80
		Function : _Z5saxpyfPf
	.headerflags	@"EF_CUDA_SM80"
        /*0000*/                   MOV R1, c[0x0][0x28] ;

Fatbin elf code:
================
arch = sm_90

	code for sm_90
		Function : _Z5saxpyfPfi
"""
PTX = """\

Fatbin ptx code:
================
arch = sm_80

.version 9.0
.visible .entry _Z5saxpyfPf(
.param .f32 _Z5saxpyfPf_param_0
)

Fatbin elf code:
================
arch = sm_80
"""


class Toolkit:
    """A folder with a cuobjdump."""

    def __init__(self, folder: Path) -> None:
        (folder / "bin").mkdir()
        self.program = folder / "bin" / "cuobjdump"
        self.environ = {"CUDA_HOME": str(folder), "PATH": "/usr/bin:/bin"}

    def says(self, text: str, *, status: int = 0) -> None:
        stream = 2 if status else 1
        self.program.write_text(f"#!/bin/sh\ncat >&{stream} << 'END'\n{text}END\nexit {status}\n")
        self.program.chmod(0o755)

    def shows(self, form: Form, *names: str) -> str:
        return disassembled(form, "lib.so", names, self.environ)


@pytest.fixture
def toolkit(tmp_path: Path) -> Toolkit:
    return Toolkit(tmp_path)


def test_the_parts_with_the_kernel_are_shown(toolkit: Toolkit) -> None:
    toolkit.says(SASS)
    text = toolkit.shows(Form.SASS, "_Z5saxpyfPf")
    assert "MOV R1" in text and text.count("Fatbin elf code:") == 1 and "sm_90" not in text
    assert toolkit.shows(Form.SASS, "_Z5saxpyfPf", "_Z5saxpyfPfi").count("Function :") == 2
    toolkit.says(PTX)
    text = toolkit.shows(Form.PTX, "_Z5saxpyfPf")
    assert ".visible .entry _Z5saxpyfPf(" in text and "elf code" not in text


def test_why_there_is_none(toolkit: Toolkit) -> None:
    toolkit.says("cuobjdump fatal   : Could not find executable file 'nvdisasm'\n", status=255)
    with pytest.raises(BuilddError, match="'nvdisasm'") as caught:
        toolkit.shows(Form.SASS, "_Z5saxpyfPf")
    assert "install" in caught.value.next_step
    toolkit.says(PTX)
    with pytest.raises(BuilddError, match=r"no PTX of this kernel is in lib\.so") as caught:
        toolkit.shows(Form.PTX, "_Z5saxpy")
    assert "compute_XX" in caught.value.next_step
    toolkit.program.write_text("neither a program nor a script")
    with pytest.raises(BuilddError, match="cuobjdump"):
        toolkit.shows(Form.PTX, "_Z5saxpyfPf")


@pytest.mark.hip
@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("hipcc"), reason="no hipcc (Debian: apt install hipcc)")
@pytest.mark.skipif(not shutil.which("llvm-objdump"), reason="no llvm-objdump (Debian: apt install llvm)")
def test_amds_machine_code_of_every_architecture(tmp_path: Path) -> None:
    (tmp_path / "k.hip").write_text(
        "#include <hip/hip_runtime.h>\n"
        'extern "C" __global__ void one(float *p) { p[threadIdx.x] *= 2.0f; }\n'
        'extern "C" __global__ void two(float *p) { p[threadIdx.x] += 1.0f; }\n'
    )
    environ = {"HIP_PLATFORM": "amd", "PATH": "/usr/bin:/bin"}
    command = ("hipcc", "--offload-arch=gfx90a", "--offload-arch=gfx1030", "-c", "k.hip", "-o", "k.o")
    subprocess.run(command, cwd=tmp_path, env=environ, check=True)
    text = disassembled(Form.ISA, str(tmp_path / "k.o"), ("one",), environ)
    assert "gfx90a:" in text and "gfx1030:" in text and text.count("s_endpgm") == 2
    assert "<one>:" in text and "<two>:" not in text
    with pytest.raises(BuilddError, match=r"no machine code of this kernel is in k\.o"):
        disassembled(Form.ISA, str(tmp_path / "k.o"), ("three",), environ)
