"""Machine code and PTX of kernels as text: NVIDIA's through CUDA's cuobjdump, AMD's through LLVM's llvm-objdump.

Knows no editor. Where kernels are in a file it asks `device_code`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path

from buildd.artifacts.device_code import amd_code_objects
from buildd.errors import BuilddError
from protocol.messages import Kernel

TIMEOUT_S = 60.0
_CUDA, _LLVM = "cuobjdump", "llvm-objdump"
_NEXT = {
    _CUDA: "install the CUDA toolkit's cuobjdump and nvdisasm, and set CUDA_HOME or PATH",
    _LLVM: "install LLVM's tools (Debian: apt install llvm), or set HIP_CLANG_PATH to their folder",
}


class Form(Enum):
    """The form in which a kernel is shown; the value is the option of the tool that shows it."""

    SASS = "-sass"
    PTX = "-ptx"
    ISA = "-d"

    def suits(self, kernel: Kernel) -> bool:
        """Whether a kernel can be shown in this form: AMD's have machine code alone."""
        return kernel.arch.startswith("sm_") == (self is not Form.ISA)


_KERNEL = {Form.SASS: r"^\s*Function : {name}\s*$", Form.PTX: r"\.entry\s+{name}\b"}


def disassembled(form: Form, file: str, kernels: Iterable[str], environ: Mapping[str, str]) -> str:
    """The parts of a file's device code that hold some kernels.

    Args:
        file: a library, program, object or cubin.
        kernels: mangled names.
        environ: says where the toolkit is.

    Raises: BuilddError where there is no tool, or no such code in the file.
    """
    kernels = tuple(kernels)
    if form is Form.ISA:
        return _of_amd(file, frozenset(kernels), environ)
    command = [_tool(_CUDA, environ), form.value, *(("-fun", ",".join(kernels)) if form is Form.SASS else ()), file]
    said = _said(_CUDA, command, file, environ)
    wanted = re.compile("|".join(_KERNEL[form].format(name=re.escape(name)) for name in kernels), re.MULTILINE)
    found = [part for part in re.split(r"(?m)^(?=Fatbin \w+ code:$)", said) if wanted.search(part)]
    if not found:
        raise BuilddError(
            f"no {form.name} of this kernel is in {os.path.basename(file)}",
            file=file,
            next_step="add compute_XX to the target's arch" if form is Form.PTX else "build it again",
        )
    return "".join(found)


def _of_amd(file: str, names: frozenset[str], environ: Mapping[str, str]) -> str:
    tool = _tool(_LLVM, environ)
    shown = []
    try:
        content = Path(file).read_bytes()
    except OSError as error:
        raise BuilddError(
            f"{os.path.basename(file)}: {error.strerror}", file=file, next_step="build it again"
        ) from error
    with tempfile.TemporaryDirectory(prefix="buildd-isa-") as folder:
        for number, (code, kernels) in enumerate(amd_code_objects(content)):
            mine = [kernel for kernel in kernels if kernel.name in names]
            if not mine:
                continue
            part = os.path.join(folder, f"{number}.{mine[0].arch}.o")
            Path(part).write_bytes(code)
            symbols = ",".join(kernel.name for kernel in mine)
            said = _said(_LLVM, [tool, Form.ISA.value, f"--disassemble-symbols={symbols}", part], file, environ)
            body = said.partition("Disassembly of section")[2].partition("\n")[2]
            shown.append(f"{mine[0].arch}:\n{body}")
    if not shown:
        raise BuilddError(
            f"no machine code of this kernel is in {os.path.basename(file)}", file=file, next_step="build it again"
        )
    return "\n".join(shown)


def _said(tool: str, command: list[str], file: str, environ: Mapping[str, str]) -> str:
    # CUDA's nvdisasm is beside cuobjdump, which calls it.
    path = f"{os.path.dirname(command[0])}:{environ.get('PATH', os.defpath)}"
    try:
        ran = subprocess.run(
            command,
            env={**environ, "PATH": path},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuilddError(f"{tool}: {error}", file=file, next_step=_NEXT[tool]) from error
    if ran.returncode:
        said = next((line for line in ran.stderr.splitlines() if "fatal" in line), ran.stderr.strip())
        raise BuilddError(said or f"{tool} ended with {ran.returncode}", file=file, next_step=_NEXT[tool])
    return ran.stdout


def _tool(name: str, environ: Mapping[str, str]) -> str:
    for folder in _cuda_folders(environ) if name == _CUDA else _llvm_folders(environ):
        if found := shutil.which(name, path=folder):
            return found
    raise BuilddError(f"there is no {name}", next_step=_NEXT[name])


def _cuda_folders(environ: Mapping[str, str]) -> Iterator[str]:
    """Where it may be, as compilers are searched for."""
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if environ.get(name):
            yield f"{environ[name]}/bin"
    yield environ.get("PATH", os.defpath)
    for folder in sorted(Path(sysconfig.get_path("purelib"), "nvidia").glob("cu*/bin"), reverse=True):
        yield str(folder)


def _llvm_folders(environ: Mapping[str, str]) -> Iterator[str]:
    """Folders of LLVM's tools: hipcc's clang's first, then any. The file decides the machine code, not the version."""
    if environ.get("HIP_CLANG_PATH"):
        yield environ["HIP_CLANG_PATH"]
    for name in ("ROCM_PATH", "HIP_PATH"):
        if environ.get(name):
            yield f"{environ[name]}/llvm/bin"
    yield "/opt/rocm/llvm/bin"
    yield environ.get("PATH", os.defpath)
    for folder in sorted(Path("/usr/lib").glob("llvm-*/bin"), reverse=True):
        yield str(folder)
