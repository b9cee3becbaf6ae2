"""Reports the flags with which the installed torch compiles and links an extension. Run by the client's own
interpreter.

Knows nothing of buildd: it imports the standard library and torch only. The flags are those that
torch.utils.cpp_extension.load writes into its build.ninja: the worker calls it and takes the text that it would write.
Nothing is compiled, and no GPU is used.

    python extension_worker.py --identify
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # The folder of this script comes first on the path and holds modules of buildd, which torch must not import.
    del sys.path[0]

import inspect
import json
import os
import shlex
import sysconfig
import warnings
from collections.abc import Callable
from typing import Any

sys.dont_write_bytecode = True

NAME = "BUILDD_MODULE"
"""Placeholder for the name of the module."""
CUDA = "/BUILDD_CUDA"
"""Placeholder for the toolkit's folder, which buildd chooses, not torch."""
_NOT_ASKED = ("CC", "CUDA_HOME", "CUDA_PATH", "CUDA_INC_PATH", "CUDNN_HOME", "CUDNN_PATH", "PYTORCH_NVCC")


class Refused(Exception):
    """One message for the user."""


def identify() -> dict[str, Any]:
    """Return versions, folders, and the flags of C++ and CUDA sources and of the link."""
    for name in _NOT_ASKED:
        os.environ.pop(name, None)
    os.environ["TORCH_CUDA_ARCH_LIST"] = "8.0"
    for category in (FutureWarning, DeprecationWarning, UserWarning):
        warnings.filterwarnings("ignore", category=category)
    try:
        import torch
        from torch.utils import cpp_extension
    except ImportError as error:
        raise Refused(f"torch cannot be imported by {sys.executable}: {error}") from error
    cpp_extension.CUDA_HOME = CUDA
    libraries = os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), "lib")
    hip = torch.version.hip or ""
    return {
        "torch": f"{torch.__version__} git {torch.version.git_version}",
        "cuda": torch.version.cuda or "",
        "hip": hip,
        "folder": os.path.dirname(libraries),
        "headers": sysconfig.get_path("include"),
        "suffix": sysconfig.get_config_var("EXT_SUFFIX") or ".so",
        "limited": str(getattr(cpp_extension, "min_supported_cpython", "")),
        "libraries": sorted(name for name in os.listdir(libraries) if ".so" in name),
        "plain": _flags(cpp_extension, with_cuda=False),
        # torch for AMD translates sources first.
        "mixed": _flags(cpp_extension, with_cuda=True) if not hip else {"cxx": [], "cuda": [], "link": []},
    }


def _flags(cpp_extension: Any, *, with_cuda: bool) -> dict[str, list[str]]:
    """Return the flags that torch would write for an extension with a C++ source and, if asked, a CUDA source."""
    taken: dict[str, Any] = {}
    write = cpp_extension._write_ninja_file
    signature = inspect.signature(write)

    def take(*arguments: Any, **named: Any) -> None:
        taken.update(signature.bind(*arguments, **named).arguments)

    known: dict[str, Any] = {"with_cuda": with_cuda, "with_sycl": False, "verbose": False, "is_standalone": False}
    link = _call(cpp_extension._prepare_ldflags, {**known, "extra_ldflags": []})
    sources = ["a.cpp", *(["b.cu"] if with_cuda else [])]
    named: dict[str, list[str]] = {
        name: [] for name in ("extra_cflags", "extra_cuda_cflags", "extra_sycl_cflags", "extra_include_paths")
    }
    cpp_extension._write_ninja_file = take
    try:
        _call(
            cpp_extension._write_ninja_file_to_build_library,
            {**known, **named, "path": "build.ninja", "name": NAME, "sources": sources, "extra_ldflags": link},
        )
    finally:
        cpp_extension._write_ninja_file = write
    return {
        "cxx": _words([*(taken["cflags"] or ()), *(taken.get("post_cflags") or ())]),
        "cuda": _words([*(taken["cuda_cflags"] or ()), *(taken.get("cuda_post_cflags") or ())]) if with_cuda else [],
        "link": _words(taken["ldflags"]),
    }


def _call(function: Callable[..., Any], known: dict[str, Any]) -> Any:
    """Call one of torch's functions with the parameters that it has in this version."""
    found = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name in known:
            found[name] = known[name]
        elif parameter.default is parameter.empty:
            raise Refused(f"this torch's {function.__name__} needs {name}, which this buildd does not know")
    return function(**found)


def _words(flags: list[str]) -> list[str]:
    """Return the words into which ninja's shell would split the flags."""
    return shlex.split(" ".join(flags))


def main(arguments: list[str]) -> int:
    """Carry out the command line and return the exit status."""
    if arguments != ["--identify"]:
        print("usage: extension_worker.py --identify", file=sys.stderr)
        return 2
    try:
        print(json.dumps(identify()))
    except (Refused, AttributeError, KeyError, TypeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
