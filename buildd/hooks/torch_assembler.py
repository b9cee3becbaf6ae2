"""In a program that uses Inductor: names torch's own assembler before anything asks which one is used.

Some versions of torch (wheels 2.9 to 2.11 for CUDA 13) bring their own ptxas. Inductor's compile workers name it to
Triton at once; the program itself does so only when Inductor first compiles a kernel there, before its workers are up.
By then the version of Triton's own ptxas is part of every key, so one kernel has two keys, by the process that compiled
it. Sets the variable that torch sets, to the same value. Knows no cache. Standard library only.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def name_it(compile_tasks: "Any") -> None:
    """Make every process compute keys from the assembler that compiles the kernels.

    Args:
        compile_tasks: the module torch._inductor.runtime.compile_tasks, just imported.
    """
    compile_tasks._set_triton_ptxas_path()
    nvidia = sys.modules.get("triton.backends.nvidia.compiler")
    if nvidia is not None:
        # The program has compiled kernels of its own, and may have read the other one's version already.
        nvidia.get_ptxas_version.cache_clear()
