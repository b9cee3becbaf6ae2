"""`buildd ejkernel`: builds ejkernel's CUDA libraries for any architecture, and puts them where ejkernel looks.

The worker builds them below `buildd run`, so their compiles go through the daemon. Knows no library.
"""

from __future__ import annotations

import os
import sys

from buildd.commands import run as run_command
from buildd.ui.problems import parser
from codegen.python.worker import FOLDER


def run(arguments: list[str]) -> int:
    command = parser(
        "ejkernel",
        "Build ejkernel's CUDA libraries, and put them where ejkernel looks for them.",
        details="""\
ejkernel by itself compiles a library when a program first needs it, while JAX traces. The libraries of several \
architectures stand beside each other. A library that needs CUTLASS takes that of EJKERNEL_CUTLASS_INCLUDE, of the \
checkout, of CUTLASS_PATH, or of nvidia-cutlass.""",
    )
    command.add_argument("libraries", nargs="*", metavar="LIBRARY", help="only these, by name: unified_attention, ...")
    command.add_argument(
        "--arch",
        default="",
        metavar="LIST",
        help='architectures, as in "80;90" (default: EJKERNEL_CUDA_ARCHS, EJKERNEL_CUDA_ARCH, or this machine\'s GPUs)',
    )
    command.add_argument("-j", "--jobs", type=int, default=None, metavar="N", help="run N compiles at once")
    command.add_argument(
        "--python", metavar="PATH", default=sys.executable, help="the Python that has ejkernel (default: buildd's own)"
    )
    options = command.parse_args(arguments)
    own = [] if options.jobs is None else ["-j", str(options.jobs)]
    jobs = str(options.jobs or os.cpu_count() or 1)
    worker = [options.python, str(FOLDER / "ejkernel_worker.py"), options.arch, jobs, *options.libraries]
    return run_command.run([*own, "--", *worker])
