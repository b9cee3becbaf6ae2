"""Machine code and PTX of kernels as text, through CUDA's cuobjdump.

Knows no editor and nothing of AMD's code objects.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path

from buildd.errors import BuilddError

TIMEOUT_S = 60.0
_TOOL = "cuobjdump"
_NEXT = "install the CUDA toolkit's cuobjdump and nvdisasm, and set CUDA_HOME or PATH"


class Form(Enum):
    """In which a kernel is shown; the value is cuobjdump's option."""

    SASS = "-sass"
    PTX = "-ptx"


_KERNEL = {Form.SASS: r"^\s*Function : {name}\s*$", Form.PTX: r"\.entry\s+{name}\b"}


def disassembled(form: Form, file: str, kernels: Iterable[str], environ: Mapping[str, str]) -> str:
    """Those parts of a file's device code that hold a kernel.

    Args:
        file: a library, program, object or cubin.
        kernels: mangled names.
        environ: says where the toolkit is.

    Raises: BuilddError where there is no tool, or no such code in the file.
    """
    kernels = tuple(kernels)
    command = [_tool(environ), form.value, *(("-fun", ",".join(kernels)) if form is Form.SASS else ()), file]
    # nvdisasm stands beside it.
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
        raise BuilddError(f"{_TOOL}: {error}", file=file, next_step=_NEXT) from error
    if ran.returncode:
        said = next((line for line in ran.stderr.splitlines() if "fatal" in line), ran.stderr.strip())
        raise BuilddError(said or f"{_TOOL} ended with {ran.returncode}", file=file, next_step=_NEXT)
    wanted = re.compile("|".join(_KERNEL[form].format(name=re.escape(name)) for name in kernels), re.MULTILINE)
    found = [part for part in re.split(r"(?m)^(?=Fatbin \w+ code:$)", ran.stdout) if wanted.search(part)]
    if not found:
        raise BuilddError(
            f"no {form.name} of this kernel is in {os.path.basename(file)}",
            file=file,
            next_step="add compute_XX to the target's arch" if form is Form.PTX else "build it again",
        )
    return "".join(found)


def _tool(environ: Mapping[str, str]) -> str:
    for folder in _folders(environ):
        if found := shutil.which(_TOOL, path=folder):
            return found
    raise BuilddError(f"there is no {_TOOL}", next_step=_NEXT)


def _folders(environ: Mapping[str, str]) -> Iterator[str]:
    """Where it may be, as compilers are searched for."""
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if environ.get(name):
            yield f"{environ[name]}/bin"
    yield environ.get("PATH", os.defpath)
    for folder in sorted(Path(sysconfig.get_path("purelib"), "nvidia").glob("cu*/bin"), reverse=True):
        yield str(folder)
