"""`buildd topology`: writes a description of this machine's GPU, with which kind `jax` compiles for it elsewhere.

Runs the worker of kind `jax` under the Python that has JAX. Knows no daemon and no store.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

from buildd.exits import FAILED, OK, USAGE
from buildd.ui.problems import parser, print_lines, print_problem
from buildd.ui.text import Line
from codegen.python.worker import FOLDER

_WAIT_S = 300.0
"""A driver that has not answered for so long hangs."""


def run(arguments: list[str]) -> int:
    command = parser(
        "topology",
        "Write a description of this machine's GPU, so that machines without one compile for it.",
        details="""\
A target of kind "jax" names the file: device = "cuda", topology = "FILE". JAX itself has to see the \
GPU here, and the jaxlib of the target has to be this one. CUDA_VISIBLE_DEVICES chooses the GPU.""",
    )
    command.add_argument("file", metavar="FILE", help="where to write it; an older one is replaced")
    command.add_argument(
        "--python", metavar="PATH", default=sys.executable, help="the Python that has JAX (default: buildd's own)"
    )
    command.add_argument(
        "--devices",
        type=int,
        default=1,
        metavar="N",
        help="describe so many GPUs, for targets with a mesh (default: 1)",
    )
    options = command.parse_args(arguments)
    path = os.path.abspath(options.file)
    new = f"{path}.{os.getpid()}"
    environ = {**os.environ, "JAX_PLATFORMS": "cuda,cpu", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    try:
        done = subprocess.run(
            [options.python, str(FOLDER / "jax_worker.py"), "--topology", new, str(options.devices)],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            timeout=_WAIT_S,
        )
        if done.returncode == 0:
            os.replace(new, path)
    except subprocess.TimeoutExpired:
        print_problem("JAX has not answered for five minutes", file=options.python, next_step="look at the driver")
        return FAILED
    except OSError as error:
        print_problem(f"cannot run it, or write the file: {error.strerror}", file=error.filename or options.python)
        return USAGE
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new)
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        reason = said[-1].removeprefix("error: ") if said else f"it ended with status {done.returncode}"
        step = "run this on the machine with the GPU, with --python of the environment that has JAX for it"
        print_problem(reason, file=options.python, next_step=step)
        return FAILED
    print_lines(
        [Line(f'{options.file}: name it in a target of kind "jax": device = "cuda", topology = "{options.file}"')]
    )
    return OK
