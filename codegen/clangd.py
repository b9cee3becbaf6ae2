"""Translates the command lines of nvcc and hipcc for clangd: options clang knows are respelled, the others are dropped.

For editors only: the dropped options change generated code, not the meaning of names. Pure; knows no plan and no file.
Source: clang's manual (clang.llvm.org/docs/UsersManual.html) and "Compiling CUDA with clang".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_GENCODE = re.compile(r"(?:compute|sm)_(\d+[af]?)")
_SAME = ("-I", "-D", "-U", "-isystem", "-include", "-std", "--std", "-O", "-iquote", "-idirafter")
"""Options that nvcc and clang spell alike. The value may be part of the word or the next word."""
_APART = frozenset({"-I", "-D", "-U", "-isystem", "-include", "-iquote", "-idirafter"})
_IN_CLANGS_WORDS = {
    "--use_fast_math": ("-ffast-math",),
    "-use_fast_math": ("-ffast-math",),
    "-rdc=true": ("-fgpu-rdc",),
    "--relocatable-device-code=true": ("-fgpu-rdc",),
    "-dc": ("-fgpu-rdc",),
    "-G": ("-D__CUDACC_DEBUG__",),
    "--extended-lambda": ("-D__CUDACC_EXTENDED_LAMBDA__",),
    "-extended-lambda": ("-D__CUDACC_EXTENDED_LAMBDA__",),
}
_LONG = {"--include-path": "-I", "--system-include": "-isystem", "--define-macro": "-D", "--undefine-macro": "-U"}
_HOST = ("-f", "-W", "-m", "-D", "-U", "-I", "-std", "-pthread", "-O")
"""Options for the host compiler that every gcc-like compiler knows."""
_UNKNOWN_TO_CLANG = ("-fno-gnu-unique", "-fabi-version", "-Wno-terminate", "-Wno-class-memaccess", "-fno-plt")
_CUDA = (
    "-x",
    "cuda",
    # The host pass sees both host and device code. -Wno-unknown-cuda-version: the toolkit may be newer than clang.
    "--cuda-host-only",
    "-nocudalib",
    "-Wno-unknown-cuda-version",
)

_NEWEST = 80
"""clang refuses a file for a GPU that is newer than itself, and each clang since version 11 knows sm_80. The host pass
reads the same code for all of them."""


def from_nvcc(options: Sequence[str], root: str) -> tuple[str, ...]:
    """Return clang's command line for a compile by nvcc, without the source.

    Args:
        options: nvcc's options, without the program, the source and the output.
        root: the toolkit's folder.
    """
    kept: list[str] = []
    archs: set[str] = set()
    words = iter(options)
    for word in words:
        name, equals, value = word.partition("=")
        if name in ("-gencode", "--generate-code", "-arch", "--gpu-architecture", "-code", "--gpu-code"):
            archs.update(_GENCODE.findall(value if equals else next(words, "")))
        elif name in ("-Xcompiler", "--compiler-options"):
            kept += _for_host(value if equals else next(words, ""))
        elif word in _IN_CLANGS_WORDS:
            kept += _IN_CLANGS_WORDS[word]
        elif name in _LONG:
            kept.append(_LONG[name] + (value if equals else next(words, "")))
        elif word in _APART:
            kept += [word, next(words, "")]
        elif word.startswith(_SAME):
            kept.append(word.replace("--std", "-std", 1) if word.startswith("--std") else word)
        elif not equals and word in _WITH_VALUE:
            next(words, "")
    newest = max((int(number.rstrip("af")) for number in archs), default=0)
    arch = (f"--cuda-gpu-arch=sm_{min(newest, _NEWEST)}",) if newest else ()
    return ("clang++", *_CUDA, f"--cuda-path={root}", *arch, "-isystem", f"{root}/include", *kept)


_WITH_VALUE = frozenset(
    {
        "-ccbin",
        "--compiler-bindir",
        "-Xptxas",
        "--ptxas-options",
        "-Xcudafe",
        "-Xlinker",
        "-Xnvlink",
        "-maxrregcount",
        "-diag-suppress",
        "--diag-suppress",
        "-t",
        "--threads",
        "-x",
        "-MF",
        "-MT",
        "-MQ",
    }
)
"""Options of nvcc that clang does not need and whose value is the next word."""


def _for_host(value: str) -> Iterator[str]:
    for option in value.split(","):
        option = option.strip("\"'")
        if option.startswith(_HOST) and not option.startswith(_UNKNOWN_TO_CLANG):
            yield option


def from_hipcc(options: Sequence[str]) -> tuple[str, ...]:
    """Return clang's command line for a compile by hipcc, which is clang, without the source."""
    kept = [option for option in options if not option.startswith(("-cuid=", "--offload-arch=", "-parallel-jobs"))]
    return ("clang++", "-x", "hip", "--cuda-host-only", "-nogpulib", *kept)
