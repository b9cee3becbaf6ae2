"""In a program that uses Inductor: the assembler that torch brings is named before anything asks which one there is.

Some torch bring a ptxas of their own (wheels for CUDA 13 of 2.9 to 2.11) and name it to Triton in Inductor's compile
workers at once, in the program itself only when Inductor first compiles a kernel there: where its workers are not up
yet. By then the version of Triton's own is remembered as part of every key, so one kernel has two, by which process
compiled it. Sets the variable that torch sets, to what torch sets it to. Knows no cache. Standard library only.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def name_it(compile_tasks: "Any") -> None:
    """Have keys made of the assembler that kernels are compiled with, whichever process compiles them.

    Args:
        compile_tasks: the module torch._inductor.runtime.compile_tasks, just imported.
    """
    compile_tasks._set_triton_ptxas_path()
    nvidia = sys.modules.get("triton.backends.nvidia.compiler")
    if nvidia is not None:
        # The program has compiled kernels of its own, and may know the version of the other one by now.
        nvidia.get_ptxas_version.cache_clear()
